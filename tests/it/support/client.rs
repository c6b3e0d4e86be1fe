//! A client of the REST API.

use std::sync::Once;

use bytes::Bytes;
use futures_util::stream;
use serde_json::{Value, json};

use super::operations::undocumented;
use super::{Answer, Bundle, Connection, SHOP_KEY, Shop};

/// The API of one host, with one key.
#[derive(Clone)]
pub struct Api {
    http: reqwest::Client,
    base_url: String,
    key: Option<String>,
}

impl Api {
    pub fn new(base_url: String, key: Option<&str>) -> Self {
        Self { http: http_client(), base_url, key: key.map(str::to_owned) }
    }

    pub fn base_url(&self) -> &str {
        &self.base_url
    }

    /// The same API with another key, or without one.
    pub fn with_key(&self, key: Option<&str>) -> Self {
        Self { key: key.map(str::to_owned), ..self.clone() }
    }

    pub fn request(&self, method: &str, path: &str) -> Request {
        let method = method.parse().expect("the test specifies a valid method");
        let builder = self.http.request(method, format!("{}{path}", self.base_url));
        Request(match &self.key {
            Some(key) => builder.bearer_auth(key),
            None => builder,
        })
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.request("GET", path).send().await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        self.request("POST", path).json(body).send().await
    }

    pub async fn put(&self, path: &str, body: &Value) -> Answer {
        self.request("PUT", path).json(body).send().await
    }

    pub async fn patch(&self, path: &str, body: &Value) -> Answer {
        self.request("PATCH", path).json(body).send().await
    }

    pub async fn delete(&self, path: &str) -> Answer {
        self.request("DELETE", path).send().await
    }

    /// Deploys a bundle and returns the plan.
    #[track_caller]
    pub fn deploy(&self, bundle: &Bundle) -> impl Future<Output = Value> {
        let answer = self.post_bundle(bundle.to_tar(), false);
        async move { answer.await.expect(200).json() }
    }

    /// Posts bytes that need not be a valid bundle.
    pub fn post_bundle(&self, bytes: Vec<u8>, dry_run: bool) -> impl Future<Output = Answer> {
        let mode = if dry_run { "dry_run" } else { "accept_capabilities" };
        let path = format!("/deployments?{mode}=true");
        let request = self.request("POST", &path).header("Content-Type", "application/x-tar").bytes(bytes);
        async move { request.send().await }
    }

    /// Creates a connection without credentials, and waits for the first runs of its syncs.
    pub async fn connect(&self, integration: &str, metadata: Value) -> Connection {
        let connection = self.connect_as("customer-1", integration, metadata).await;
        connection.wait_until_idle().await;
        connection
    }

    /// Creates a connection without credentials under the given id, and does not wait.
    pub async fn connect_as(&self, id: &str, integration: &str, metadata: Value) -> Connection {
        Connection::import(self, integration, id, json!({ "type": "NONE" }), metadata).await
    }

    /// Creates a connection of the stripe integration to the shop, and waits for the first runs of its syncs.
    pub async fn connect_to(&self, _shop: &Shop) -> Connection {
        let credentials = json!({ "type": "BASIC", "username": SHOP_KEY, "password": "" });
        let connection = Connection::import(self, "stripe", "customer-1", credentials, json!({})).await;
        connection.wait_until_idle().await;
        connection
    }
}

/// A request under construction.
pub struct Request(reqwest::RequestBuilder);

impl Request {
    pub fn header(self, name: &str, value: &str) -> Self {
        Self(self.0.header(name, value))
    }

    pub fn json(self, body: &Value) -> Self {
        self.header("Content-Type", "application/json").bytes(body.to_string())
    }

    pub fn bytes(self, body: impl Into<reqwest::Body>) -> Self {
        Self(self.0.body(body))
    }

    /// Announces a body of this length in the header, and never sends it.
    pub fn announcing(self, length: usize) -> Self {
        let body = stream::pending::<std::io::Result<Bytes>>();
        self.header("Content-Length", &length.to_string()).bytes(reqwest::Body::wrap_stream(body))
    }

    /// Sends the request. Returns its name, and the response before its body is read.
    pub async fn open(self) -> (String, reqwest::Response) {
        let (client, request) = self.0.build_split();
        let request = request.expect("a test builds a valid request");
        let name = format!("{} {}", request.method(), request.url());
        match client.execute(request).await {
            Ok(response) => (name, response),
            Err(error) => panic!("{name} got no response: {error:?}"),
        }
    }

    /// Sends the request. Fails if the OpenAPI document does not mention the response.
    pub async fn send(self) -> Answer {
        let (answer, undocumented) = self.send_and_compare().await;
        assert!(undocumented.is_none(), "{}", undocumented.unwrap_or_default());
        answer
    }

    /// Sends the request. Also returns what the OpenAPI document does not mention about the response.
    pub async fn send_and_compare(self) -> (Answer, Option<String>) {
        let (name, response) = self.open().await;
        let (status, headers) = (response.status(), response.headers().clone());
        let path = response.url().path().to_owned();
        let body = match response.bytes().await {
            Ok(body) => body,
            Err(error) => panic!("{name} got an incomplete response: {error:?}"),
        };
        let answer = Answer { request: name, status, headers, body };
        let method = answer.request.split(' ').next().unwrap_or_default();
        let undocumented = undocumented(method, &path, &answer);
        (answer, undocumented)
    }

    /// Sends a request to a host that may die before it responds.
    pub async fn try_send(self) -> reqwest::Result<Answer> {
        let (client, request) = self.0.build_split();
        let request = request.expect("a test builds a valid request");
        let name = format!("{} {}", request.method(), request.url());
        let response = client.execute(request).await?;
        let (status, headers) = (response.status(), response.headers().clone());
        Ok(Answer { request: name, status, headers, body: response.bytes().await? })
    }
}

/// A query string.
pub fn query(parameters: &[(&str, &str)]) -> String {
    url::form_urlencoded::Serializer::new(String::new()).extend_pairs(parameters).finish()
}

/// A client for plain HTTP. The library requires a TLS provider even so.
fn http_client() -> reqwest::Client {
    static TLS: Once = Once::new();
    TLS.call_once(|| {
        let _was_set_already = rustls::crypto::ring::default_provider().install_default();
    });
    reqwest::Client::builder().no_proxy().build().expect("an HTTP client can be built")
}
