//! A tonic server on vigie's tasks, and tonic's client: on vigie's sockets, without a tokio runtime anywhere, and on tokio's.

use tonic::transport::{Channel, Endpoint};
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};
use vigie::http::{Connector, Executor};
use vigie_ecosystem::Service;

fn start() -> (Service, Endpoint) {
    let service = Service::start(env!("CARGO_BIN_EXE_tonic"), &[]);
    let endpoint = Endpoint::from_shared(format!("http://{}", service.address)).unwrap();
    (service, endpoint)
}

async fn check_health(service: Service, channel: Channel) {
    let mut client = HealthClient::new(channel);
    let request = || HealthCheckRequest { service: "ship".to_owned() };
    let status = client.check(request()).await.unwrap().into_inner().status();
    assert_eq!(status, ServingStatus::Serving);
    let unknown = client.check(HealthCheckRequest { service: "boat".to_owned() }).await;
    assert_eq!(unknown.unwrap_err().code(), tonic::Code::NotFound);

    // A stream of answers, of which the second comes when the server is told to end.
    let mut changes = client.watch(request()).await.unwrap().into_inner();
    assert_eq!(changes.message().await.unwrap().unwrap().status(), ServingStatus::Serving);
    let ended = std::thread::spawn(|| service.terminate());
    assert_eq!(changes.message().await.unwrap().unwrap().status(), ServingStatus::NotServing);
    assert!(changes.message().await.is_err(), "the server has cut it off");
    assert!(!ended.join().unwrap(), "one connection had not ended");
}

#[test]
fn health_is_checked_and_watched() {
    let (service, endpoint) = start();
    vigie::Runtime::new().unwrap().block_on(async {
        let endpoint = endpoint.executor(Executor::default());
        let channel = endpoint.connect_with_connector(Connector::new()).await.unwrap();
        check_health(service, channel).await;
    });
}

#[test]
fn a_client_on_tokio_is_answered() {
    let (service, endpoint) = start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        check_health(service, endpoint.connect().await.unwrap()).await;
    });
}
