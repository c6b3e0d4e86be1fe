//! Tests that requests cannot reach the host's own network.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use url::Url;

use crate::stage::{Keys, gateway, get, route, settings};
use syncline_egress::{Credentials, EgressError, EgressGateway, EgressSettings, Lookup};
use syncline_telemetry::clock::Clock;
use syncline_test_server::Server;

/// Resolves every name to one address and counts the lookups.
struct Everywhere {
    address: IpAddr,
    asked: AtomicUsize,
}

impl Everywhere {
    fn new(address: &str) -> Arc<Self> {
        Arc::new(Self { address: address.parse().unwrap(), asked: AtomicUsize::new(0) })
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

#[async_trait]
impl Lookup for Everywhere {
    async fn lookup(&self, _host: &str) -> io::Result<Vec<IpAddr>> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        Ok(vec![self.address])
    }
}

/// Sends a request to a provider with this base URL.
async fn send_to(gateway: &EgressGateway, base: &str) -> Result<(), EgressError> {
    let base: Url = base.parse().unwrap();
    let mut request = get("/latest/meta-data");
    request.retries = Some(0);
    gateway
        .send(&route("unauthenticated", &base, Keys::one(Credentials::None)), request, &())
        .await
        .map(|_| ())
}

#[tokio::test]
async fn private_addresses_are_blocked_in_every_spelling() {
    let gateway = EgressGateway::new(EgressSettings::default(), Clock::system()).unwrap();
    for host in [
        "0.0.0.0",
        "0",
        "127.0.0.1",
        "127.1",
        "0x7f.1",
        "0x7f000001",
        "2130706433",
        "017700000001",
        "0177.0.0.01",
        "%31%32%37.0.0.1",
        "１２７.0.0.1",
        "127。0。0。1",
        "127.0.0.1.",
        "169.254.169.254",
        "0xa9fea9fe",
        "2852039166",
        "10.0.0.1",
        "192.168.0.1",
        "172.16.0.1",
        "100.64.0.1",
        "255.255.255.255",
        "224.0.0.1",
        "[::]",
        "[::1]",
        "[0:0:0:0:0:0:0:1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[::127.0.0.1]",
        "[::ffff:a9fe:a9fe]",
        "[64:ff9b::127.0.0.1]",
        "[2002:7f00:1::]",
        "[2001:0:7f00:1::]",
        "[fd00::]",
        "[fd00:ec2::254]",
        "[fe80::1]",
        "[ff02::1]",
    ] {
        let error = send_to(&gateway, &format!("https://{host}")).await.unwrap_err();
        assert_eq!(error.code().as_str(), "address-not-allowed", "{host}");
    }
}

#[tokio::test]
async fn names_that_resolve_to_private_addresses_are_blocked() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    for address in ["127.0.0.1", "::1", "::ffff:127.0.0.1", "169.254.169.254", "10.1.2.3"] {
        let gateway =
            EgressGateway::with_lookup(settings(&[]), Clock::system(), Everywhere::new(address)).unwrap();
        let error = send_to(&gateway, &format!("https://innocent.example:{port}")).await.unwrap_err();
        assert_eq!(error.code().as_str(), "address-not-allowed", "{address}");
        assert!(error.to_string().contains("innocent.example"), "{error}");
    }
    let gateway = gateway(&[]);
    let error = send_to(&gateway, &format!("https://localhost:{port}")).await.unwrap_err();
    assert_eq!(error.code().as_str(), "address-not-allowed");
    let connected = tokio::time::timeout(std::time::Duration::from_millis(50), listener.accept()).await;
    assert!(connected.is_err(), "a connection was opened");
}

#[tokio::test]
async fn a_connection_uses_a_single_lookup_so_dns_rebinding_fails() {
    let server = Server::start().await;
    let port = server.address.port();
    let lookup = Everywhere::new("127.0.0.1");
    let allow = vec![format!("shop.example:{port}").parse().unwrap()];
    let gateway = EgressGateway::with_lookup(
        EgressSettings { allow, ..settings(&[]) },
        Clock::system(),
        Arc::clone(&lookup) as Arc<dyn Lookup>,
    )
    .unwrap();
    let base = format!("http://shop.example:{port}");
    for _ in 0..3 {
        send_to(&gateway, &base).await.unwrap();
    }
    assert_eq!((server.seen().len(), lookup.asked()), (3, 1), "the connection is reused");
    server.answer(([("connection", "close")], "bye"));
    for _ in 0..2 {
        send_to(&gateway, &base).await.unwrap();
    }
    assert_eq!((server.seen().len(), lookup.asked()), (5, 2));
}

#[tokio::test]
async fn the_allow_list_allows_exactly_one_host_and_port() {
    let (open, closed) = (Server::start().await, Server::start().await);
    let gateway = gateway(&[open.address]);
    send_to(&gateway, open.url().as_str()).await.unwrap();
    let error = send_to(&gateway, closed.url().as_str()).await.unwrap_err();
    assert_eq!(error.code().as_str(), "address-not-allowed");
    let error = send_to(&gateway, &format!("https://localhost:{}", open.address.port())).await.unwrap_err();
    assert_eq!(error.code().as_str(), "address-not-allowed");
    assert!(closed.seen().is_empty());
}

#[tokio::test]
async fn plain_http_is_allowed_only_for_the_allow_list() {
    let lookup = Everywhere::new("8.8.8.8");
    let gateway =
        EgressGateway::with_lookup(settings(&[]), Clock::system(), Arc::clone(&lookup) as Arc<dyn Lookup>)
            .unwrap();
    for base in ["http://shop.example", "http://8.8.8.8"] {
        let error = send_to(&gateway, base).await.unwrap_err();
        assert_eq!(error.code().as_str(), "host-not-allowed", "{base}");
    }
    assert_eq!(lookup.asked(), 0);
}
