//! A tonic service on vigie's tasks, and tonic's client on vigie's sockets: no tokio runtime anywhere.

use tonic::{service::Routes, transport::Endpoint};
use tonic_health::{
    ServingStatus,
    pb::{HealthCheckRequest, health_check_response, health_client::HealthClient},
    server::health_reporter,
};
use vigie::{
    Runtime,
    http::{self, Connector},
    net::TcpListener,
};

#[test]
fn health_is_checked_and_watched() {
    Runtime::new().unwrap().block_on(async {
        let (reporter, health) = health_reporter();
        reporter.set_service_status("ship", ServingStatus::Serving).await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let routes = Routes::new(health).prepare();
        vigie::spawn(async move { http::serve(listener, routes.into_axum_router()).await })
            .detach();

        let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
        let channel = endpoint.executor(http::Executor::default());
        let channel = channel.connect_with_connector(Connector::new()).await.unwrap();
        let mut client = HealthClient::new(channel);
        let request = || HealthCheckRequest { service: "ship".to_owned() };
        let status = client.check(request()).await.unwrap().into_inner().status();
        assert_eq!(status, health_check_response::ServingStatus::Serving);

        // A stream of answers, of which the second comes with the change.
        let mut changes = client.watch(request()).await.unwrap().into_inner();
        assert_eq!(changes.message().await.unwrap().unwrap().status, 1);
        reporter.set_service_status("ship", ServingStatus::NotServing).await;
        assert_eq!(changes.message().await.unwrap().unwrap().status, 2);
        let unknown = client.check(HealthCheckRequest { service: "boat".to_owned() }).await;
        assert_eq!(unknown.unwrap_err().code(), tonic::Code::NotFound);
    });
}
