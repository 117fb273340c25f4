//! A chat by tungstenite: what one says, all hear.
//!
//! `cargo run --bin websocket 127.0.0.1:8080`, then in a browser's console, once in each of two windows:
//! `s = new WebSocket("ws://127.0.0.1:8080"); s.onmessage = m => console.log(m.data)`, and `s.send("ahoy")`.

use std::{env, error::Error};

use futures_util::{SinkExt, StreamExt};
use tokio_tungstenite::{accept_async, tungstenite};
use tungstenite::{Message, Utf8Bytes};
use vigie::{
    net::{TcpListener, TcpStream},
    sync::broadcast::{self, Sender, error::RecvError},
};

async fn chat(stream: TcpStream, said: Sender<Utf8Bytes>) -> Result<(), tungstenite::Error> {
    let mut heard = said.subscribe();
    let (mut to_client, mut from_client) = accept_async(stream).await?.split();
    loop {
        vigie::select! {
            message = from_client.next() => match message.transpose()? {
                // If there is no other, this one hears it all the same.
                Some(Message::Text(text)) => drop(said.send(text)),
                Some(_) => {}
                None => return Ok(()),
            },
            text = heard.recv() => match text {
                Ok(text) => to_client.send(Message::Text(text)).await?,
                Err(RecvError::Lagged(missed)) => {
                    to_client.send(Message::text(format!("you missed {missed}"))).await?;
                }
                Err(RecvError::Closed) => return Ok(()),
            },
        }
    }
}

#[vigie::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = env::args().nth(1).unwrap_or("127.0.0.1:0".to_owned());
    let listener = TcpListener::bind(address).await?;
    println!("{}", listener.local_addr()?);
    let (said, _) = broadcast::channel(100);
    loop {
        let (stream, peer) = listener.accept().await?;
        let said = said.clone();
        vigie::spawn(async move {
            if let Err(error) = chat(stream, said).await {
                eprintln!("{peer}: {error}");
            }
        })
        .detach();
    }
}
