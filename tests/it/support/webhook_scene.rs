//! A host that receives provider webhooks, and the webhooks that a provider would send.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Value, json};
use sha2::Sha256;

use super::{Answer, Api, Bundle, Connection, Host, HostOptions, Request, TestDatabase, eventually, text};

/// The secret that signs the webhooks.
pub const SECRET: &str = "planted-secret-of-webhooks";

/// A host with the guest for GitHub's webhooks, and a connection.
pub struct Scene {
    pub connection: Connection,
    /// Path of the integration's webhook URL.
    pub url: String,
    pub host: Host,
    pub db: TestDatabase,
}

impl Scene {
    pub async fn create() -> Self {
        Self::with(|options| options).await
    }

    pub async fn with(options: impl FnOnce(HostOptions) -> HostOptions) -> Self {
        let db = TestDatabase::create().await;
        let host = options(options_for(&db)).spawn().await;
        host.deploy(&Bundle::guest("webhooks")).await;
        set_secret(&host, "webhooks", SECRET).await;
        let connection = connect(&host, "customer-1", json!({ "repository": "acme/shop" })).await;
        let url = webhook_path(&host, "webhooks").await;
        Self { connection, url, host, db }
    }

    /// Sends a delivery as GitHub would.
    pub async fn deliver(&self, event: &str, id: &str, body: &Value) -> Answer {
        self.delivery(&self.host, event, id, &body.to_string()).send().await
    }

    pub fn delivery(&self, host: &Api, event: &str, id: &str, body: &str) -> Request {
        let signature = format!("sha256={}", hex_hmac(SECRET, body));
        signed(host, &self.url, event, id, body, &signature)
    }

    pub async fn notes(&self) -> Vec<Value> {
        self.connection.all(&[("model", "Note")]).await
    }

    pub async fn wait_for_notes(&self, count: usize) -> Vec<Value> {
        eventually(&format!("{count} events are saved"), async || {
            let notes = self.notes().await;
            (notes.len() == count).then_some(notes)
        })
        .await
    }

    pub async fn wait_for_state(&self, id: &str, state: &str) -> Value {
        eventually(&format!("webhook {id} is {state}"), async || {
            let webhook = self.host.get(&format!("/webhooks/received/{id}")).await.expect(200).json();
            (webhook["state"] == state).then_some(webhook)
        })
        .await
    }

    pub async fn stored(&self) -> i64 {
        self.db.number("SELECT count(*) FROM inbound_webhooks").await
    }
}

pub fn options_for(db: &TestDatabase) -> HostOptions {
    HostOptions::new()
        .database(db)
        .variable("SYNCLINE_WEBHOOK_FUNCTION_RETRIES", "1")
        .variable("SYNCLINE_LEASE_SECONDS", "1")
}

pub async fn set_secret(api: &Api, integration: &str, secret: &str) {
    let body = json!({ "custom": { "webhook_secret": secret } });
    api.patch(&format!("/integrations/{integration}"), &body).await.expect(200);
}

pub async fn connect(api: &Api, id: &str, metadata: Value) -> Connection {
    let credentials =
        json!({ "type": "API_KEY", "apiKey": "github_pat_planted0123456789abcdefghijABCDEFGHIJ" });
    Connection::import(api, "webhooks", id, credentials, metadata).await
}

/// Path of an integration's webhook URL.
pub async fn webhook_path(api: &Api, integration: &str) -> String {
    let shown = api.get(&format!("/integrations/{integration}?include=webhook")).await.expect(200).json();
    let url = text(&shown["data"]["webhook_url"]).to_owned();
    url.strip_prefix(api.base_url()).expect("it is a URL of the host").to_owned()
}

/// Creates an integration with the given app credentials. Returns the path of its webhook URL.
pub async fn integration(api: &Api, provider: &str, credentials: Value, secret: Option<&str>) -> String {
    let mut body = json!({ "provider": provider, "unique_key": provider });
    if !credentials.is_null() {
        body["credentials"] = credentials;
    }
    if let Some(secret) = secret {
        body["custom"] = json!({ "webhook_secret": secret });
    }
    api.post("/integrations", &body).await.expect(200);
    webhook_path(api, provider).await
}

pub fn app() -> Value {
    json!({ "type": "OAUTH2", "client_id": "id", "client_secret": "planted-client-secret" })
}

pub fn signed(api: &Api, url: &str, event: &str, id: &str, body: &str, signature: &str) -> Request {
    api.with_key(None)
        .request("POST", url)
        .header("content-type", "application/json")
        .header("x-github-event", event)
        .header("x-github-delivery", id)
        .header("x-hub-signature-256", signature)
        .bytes(body.to_owned())
}

pub fn hex_hmac(secret: &str, text: &str) -> String {
    hmac(secret, text).iter().map(|byte| format!("{byte:02x}")).collect()
}

pub fn base64_hmac(secret: &str, text: &str) -> String {
    STANDARD.encode(hmac(secret, text))
}

fn hmac(secret: &str, text: &str) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).expect("a key of any length");
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().to_vec()
}

pub fn push(branch: &str) -> Value {
    json!({ "ref": branch, "repository": { "full_name": "acme/shop" } })
}
