//! Framed relays over real sockets.

use std::{io, time::Duration};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use vigie_detect::net::{TcpListener, TcpStream};
use vigie_forward::relay::{FrameMode, Framing, LengthFormat};
use vigie_runtime::{spawn, time};

use crate::{Serving, echo, exchange, local, pattern, run, tcp};

fn message(format: LengthFormat, body: &[u8]) -> Vec<u8> {
    let mut room = [0; 10];
    let bytes = format.write(body.len() as u64, &mut room).expect("it fits the format");
    [&room[..bytes], body].concat()
}

const MODES: [FrameMode; 3] =
    [FrameMode::Planned, FrameMode::StoreAndForward, FrameMode::CutThrough];

/// Goal: messages of all sizes arrive unchanged, in all formats and modes. Method: a mix around the sizes of
/// buffers, there and back.
#[test]
fn messages_arrive_unchanged() {
    for format in LengthFormat::ALL {
        for mode in MODES {
            run(async {
                let framing = Framing::new(format).mode(mode);
                let relay = Serving::start(tcp(echo().await?).framing(framing));
                let long = if format == LengthFormat::U16Be { 65_535 } else { 1_300_000 };
                let sizes = [0, 1, 100, 4090, 4096, 16_380, 16_384, long, 3, 65_530, 65_535, long];
                let bytes: Vec<u8> =
                    sizes.iter().flat_map(|size| message(format, &pattern(7, *size))).collect();
                let heard = exchange(relay.connect().await?, bytes.clone()).await?;
                assert!(heard == bytes, "{format} {mode:?}: {} of {}", heard.len(), bytes.len());
                relay.until(|stats| stats.finished == 1).await;
                let stats = relay.handle.stats();
                assert_eq!(stats.messages, 24);
                let is_stored = mode == FrameMode::StoreAndForward;
                assert!(!is_stored || stats.messages_cut_through == 0);
                Ok(())
            });
        }
    }
}

/// Goal: a receiver of stored messages never gets half of one, neither after an end nor after a reset, and in both
/// modes a reset says that something is missing. Method: complete messages, then a part of one, then either.
#[test]
fn half_a_message_is_never_taken_for_a_whole_one() {
    for mode in [FrameMode::StoreAndForward, FrameMode::CutThrough] {
        for is_reset in [false, true] {
            run(async {
                let listener = TcpListener::bind(local()).await?;
                let framing = Framing::new(LengthFormat::U32Be).mode(mode);
                let relay = Serving::start(tcp(listener.local_addr()?).framing(framing));
                let mut client = relay.connect().await?;
                let (mut served, _) = listener.accept().await?;
                let whole = message(LengthFormat::U32Be, &pattern(8, 5000));
                let half = &message(LengthFormat::U32Be, &pattern(9, 300_000))[..200_000];
                client.write_all(&whole).await?;
                let mut heard = vec![0; whole.len()];
                served.read_exact(&mut heard).await?;
                assert!(heard == whole);
                client.write_all(half).await?;
                if mode == FrameMode::CutThrough {
                    let mut heard = vec![0; half.len()];
                    served.read_exact(&mut heard).await?;
                    assert!(heard == half, "a part arrives before the end");
                }
                if is_reset {
                    client.set_linger(Some(Duration::ZERO))?;
                }
                drop(client);
                let ended = served.read(&mut [0; 1]).await;
                relay.until(|stats| stats.reset == 1).await;
                let stats = relay.handle.stats();
                let error = ended.expect_err("no end of a stream, and nothing of a half message");
                assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
                if mode == FrameMode::CutThrough {
                    assert_eq!((stats.messages_torn, stats.messages_dropped), (1, 0));
                } else {
                    assert_eq!((stats.messages_torn, stats.messages_dropped), (0, 1));
                }
                Ok(())
            });
        }
    }
}

/// Goal: a message that is too long is refused, after all earlier ones were delivered. Method: one byte more than
/// allowed, after a message of the allowed length.
#[test]
fn long_messages_are_refused() {
    run(async {
        let listener = TcpListener::bind(local()).await?;
        let framing = Framing::new(LengthFormat::Varint).message_bytes_max(1000);
        let relay = Serving::start(tcp(listener.local_addr()?).framing(framing));
        let mut client = relay.connect().await?;
        // In one write, so that both are there when the second is refused.
        let whole = message(LengthFormat::Varint, &[1; 1000]);
        let long = message(LengthFormat::Varint, &[2; 1001]);
        client.write_all(&[&whole[..], &long[..]].concat()).await?;
        let (mut served, _) = listener.accept().await?;
        let mut heard = vec![0; whole.len()];
        served.read_exact(&mut heard).await?;
        assert!(heard == whole);
        assert!(served.read(&mut [0; 1]).await.is_err(), "the receiver knows that there was more");
        assert!(client.read(&mut [0; 1]).await.is_err(), "the sender is reset");
        relay.until(|stats| stats.malformed == 1).await;
        Ok(())
    });
}

/// Goal: complete messages arrive before their sender's reset, even those that the receiver's kernel has no room for
/// yet. Method: a receiver that reads nothing until the sender is gone, with small queues.
#[test]
fn whole_messages_arrive_before_a_reset() {
    for mode in MODES {
        run(async {
            let listener = TcpListener::bind(local()).await?;
            rustix::net::sockopt::set_socket_recv_buffer_size(&listener, 4096)?;
            let framing = Framing::new(LengthFormat::U32Be).mode(mode);
            let relay = Serving::start(tcp(listener.local_addr()?).framing(framing));
            let mut client = relay.connect().await?;
            let (mut served, _) = listener.accept().await?;
            let bytes = message(LengthFormat::U32Be, &pattern(10, 10_000)).repeat(20);
            client.write_all(&bytes).await?;
            relay.until(|stats| stats.messages == 20 && stats.bytes_up == bytes.len() as u64).await;
            client.set_linger(Some(Duration::ZERO))?;
            drop(client);
            let (mut heard, mut room) = (Vec::new(), vec![0; 8 << 10]);
            let error = loop {
                // Slower than the relay notices the reset.
                time::sleep(Duration::from_millis(2)).await;
                match served.read(&mut room).await {
                    Ok(0) => panic!("{mode:?}: no end of a stream"),
                    Ok(bytes) => heard.extend_from_slice(&room[..bytes]),
                    Err(error) => break error,
                }
            };
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
            assert!(heard == bytes, "{mode:?}: {} of {}", heard.len(), bytes.len());
            relay.until(|stats| stats.reset == 1).await;
            Ok(())
        });
    }
}

/// Goal: with less memory than the messages in flight need, all of them still arrive, stored or, where allowed, cut
/// through. Method: memory for one message, and eight connections that have each sent half of one before any sends
/// more.
#[test]
fn memory_is_shared_without_a_deadlock() {
    for mode in [FrameMode::Planned, FrameMode::StoreAndForward] {
        run(async {
            let framing = Framing::new(LengthFormat::U32Be).mode(mode).message_bytes_max(500_000);
            let relay =
                Serving::start(tcp(echo().await?).framing(framing).memory_bytes_max(1_300_000));
            let bytes = message(LengthFormat::U32Be, &pattern(11, 500_000));
            let mut streams = Vec::new();
            for _ in 0..8 {
                let mut stream: TcpStream = relay.connect().await?;
                stream.write_all(&bytes[..250_000]).await?;
                streams.push(stream);
            }
            let mut tasks = Vec::new();
            for stream in streams {
                let (rest, whole) = (bytes[250_000..].to_vec(), bytes.clone());
                tasks.push(spawn(async move {
                    let heard = exchange(stream, rest).await?;
                    assert!(heard == whole, "{} bytes", heard.len());
                    io::Result::Ok(())
                }));
            }
            for task in tasks {
                task.await.expect("no message is damaged")?;
            }
            Ok(())
        });
    }
}

/// Goal: memory for a stored message is freed before the next bytes are read, so that a longer message finds room.
/// Method: repeatedly a message that is stored, one that ends where the read behind it ends, and one that is longer.
#[test]
fn a_longer_message_finds_room() {
    for mode in MODES {
        run(async {
            let framing = Framing::new(LengthFormat::U32Be).mode(mode);
            let relay = Serving::start(tcp(echo().await?).framing(framing));
            // With their headers 300 000 and 4 096 bytes.
            let sizes = [299_996, 4092, 700_000].into_iter().cycle().take(24);
            let bytes: Vec<u8> =
                sizes.flat_map(|size| message(LengthFormat::U32Be, &pattern(13, size))).collect();
            let heard = exchange(relay.connect().await?, bytes.clone()).await?;
            assert!(heard == bytes, "{mode:?}: {} of {}", heard.len(), bytes.len());
            Ok(())
        });
    }
}
