//! Addresses that a guest must not reach, in every notation and through redirects.

use std::io::ErrorKind;
use std::net::TcpListener;

use serde_json::{Value, json};

use crate::support::{Bundle, ProviderServer, Stage, query};

/// A server on this machine that no guest may reach.
struct Neighbour(TcpListener);

impl Neighbour {
    fn listen() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        listener.set_nonblocking(true).expect("a socket can be asked without waiting");
        Self(listener)
    }

    fn port(&self) -> u16 {
        self.0.local_addr().expect("the listener has an address").port()
    }

    fn assert_no_connection(&self) {
        let came = self.0.accept();
        assert!(came.as_ref().is_err_and(|error| error.kind() == ErrorKind::WouldBlock), "{came:?}");
    }
}

/// The integration's author allows all of `hosts`. The operator allows only the provider.
async fn stage(server: &ProviderServer, hosts: &[String]) -> Stage {
    let table = "[integrations.hostile]";
    let allowing = format!("{table}\nallow_hosts = {}", json!(hosts));
    Stage::at_provider(server, &[], Bundle::guest("hostile").replace(table, &allowing)).await
}

/// The outcomes in a guest that tries each URL with `provider.send` and with `provider.send-all`.
async fn outcomes(stage: &Stage, urls: &[String]) -> Vec<Value> {
    let outcomes = stage.action("reach", &json!(urls)).await.expect(200).json();
    outcomes.as_array().expect("there is one for each URL").clone()
}

#[tokio::test]
async fn private_addresses_are_blocked_in_every_notation_and_after_redirects() {
    let (server, neighbour) = (ProviderServer::start().await, Neighbour::listen());
    let port = neighbour.port();
    let literals = [
        "127.0.0.1",
        "127.1",
        "0x7f.0.0.1",
        "2130706433",
        "0.0.0.0",
        "[::1]",
        "[::]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[::127.0.0.1]",
        "[64:ff9b::7f00:1]",
        "10.0.0.1",
        "169.254.169.254",
        "[::ffff:169.254.169.254]",
        "[::ffff:a9fe:a9fe]",
        "[fd00:ec2::254]",
    ];
    let hosts: Vec<String> =
        literals.iter().chain(&["localhost"]).map(|host| format!("{host}:{port}")).collect();
    let stage = stage(&server, &hosts).await;

    // A name is resolved when connecting. Plain HTTP is rejected before that.
    let mut urls: Vec<(String, &str)> =
        hosts.iter().map(|host| (format!("https://{host}/"), "address-not-allowed")).collect();
    urls.extend(literals.iter().map(|host| (format!("http://{host}:{port}/"), "address-not-allowed")));
    urls.push((format!("http://localhost:{port}/"), "host-not-allowed"));
    let redirected = urls.iter().map(|(url, code)| (format!("/redirect?{}", query(&[("302", url)])), *code));
    let all: Vec<(String, &str)> = urls.clone().into_iter().chain(redirected).collect();
    let asked: Vec<String> = all.iter().map(|(url, _)| url.clone()).collect();
    for ((url, code), outcome) in all.iter().zip(outcomes(&stage, &asked).await) {
        assert_eq!(outcome, json!([code, code]), "{url}");
    }
    neighbour.assert_no_connection();
    assert_eq!(outcomes(&stage, &["/there".to_owned()]).await, [json!(["200", "200"])]);
}

#[tokio::test]
async fn hosts_outside_the_allow_list_are_blocked_before_dns_resolution() {
    let (server, neighbour) = (ProviderServer::start().await, Neighbour::listen());
    let port = neighbour.port();
    let stage = stage(&server, &[]).await;
    let urls = [
        format!("https://127.0.0.1:{port}/"),
        format!("https://localhost:{port}/"),
        format!("https://[::ffff:127.0.0.1]:{port}/"),
        "http://169.254.169.254/latest/meta-data/".to_owned(),
        "https://metadata.google.internal/computeMetadata/v1/".to_owned(),
        format!("/redirect?{}", query(&[("307", &format!("https://127.0.0.1:{port}/"))])),
    ];
    for (url, outcome) in urls.iter().zip(outcomes(&stage, &urls).await) {
        assert_eq!(outcome, json!(["host-not-allowed", "host-not-allowed"]), "{url}");
    }
    neighbour.assert_no_connection();
}
