//! A provider that returns what it is sent, with a host and a backend that receives webhooks.

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{Bundle, Connection, Host, HostOptions, ProviderServer, Receiver, TestDatabase};

/// A host with one deployed bundle, whose provider responds with the request that it received.
pub struct Echo {
    pub host: Host,
    pub db: TestDatabase,
    pub server: ProviderServer,
    pub receiver: Receiver,
    integration: String,
    _folder: TempDir,
}

impl Echo {
    /// A catalogue entry with an API key in a header.
    pub const API_KEY: &str = r#"
auth_mode = "API_KEY"
credentials.apiKey = { title = "Key", description = "Yours.", secret = true }
[proxy]
base_url = "{server}"
[proxy.headers]
x-api-key = "${apiKey}"
"#;
    /// A catalogue entry with access tokens that can be refreshed.
    pub const OAUTH2: &str = r#"
auth_mode = "OAUTH2"
authorization_url = "{server}/authorize"
token_url = "{server}/token"
proxy = { base_url = "{server}" }
"#;

    /// `entry` is the authentication part of the provider's catalogue entry. `{server}` is replaced with its URL.
    pub async fn start(entry: &str, bundle: Bundle) -> Self {
        let (server, receiver) = (ProviderServer::start().await, Receiver::start().await);
        let folder = TempDir::new().expect("a temporary folder can be made");
        let head = "name = \"echo\"\ndisplay_name = \"Echo\"\ndocs = \"https://example.com\"\n\
                    source = { address = \"https://example.com\", checked_at = \"2026-01-01\" }\n";
        let entry = entry.replace("{server}", &server.base_url());
        std::fs::write(folder.path().join("echo.toml"), format!("{head}{entry}"))
            .expect("the folder is writable");
        let db = TestDatabase::create().await;
        let host = HostOptions::new()
            .database(&db)
            .variable("SYNCLINE_PROVIDERS_DIR", &folder.path().display().to_string())
            .variable("SYNCLINE_EGRESS_ALLOW", &format!("{},{}", server.address, receiver.address()))
            .spawn()
            .await;
        let url = receiver.url("/hooks");
        db.execute(&format!("UPDATE environments SET webhook_url = '{url}'")).await;
        let bundle = bundle.replace("\"unauthenticated\"", "\"echo\"");
        host.deploy(&bundle).await;
        let integration = bundle.integration().to_owned();
        Self { host, db, server, receiver, integration, _folder: folder }
    }

    /// Sets the app of the integration, with this secret.
    pub async fn set_app(&self, secret: &str) {
        let app = json!({ "type": "OAUTH2", "client_id": "client-1", "client_secret": secret });
        let path = format!("/integrations/{}", self.integration);
        self.host.patch(&path, &json!({ "credentials": app })).await.expect(200);
    }

    /// Imports a connection, and waits for the first runs of its syncs.
    pub async fn connect(&self, credentials: Value) -> Connection {
        let metadata = json!({ "steps": 0 });
        let connection =
            Connection::import(&self.host, &self.integration, "customer-1", credentials, metadata).await;
        connection.wait_until_idle().await;
        connection
    }

    /// The text of all runs and their logs.
    pub async fn run_details(&self) -> String {
        let mut details = String::new();
        let runs = self.host.get("/runs?limit=100").await.expect(200);
        for run in runs.json()["runs"].as_array().expect("a list") {
            let id = run["id"].as_str().expect("an id");
            for path in [format!("/runs/{id}"), format!("/runs/{id}/logs?limit=1000")] {
                details += &self.host.get(&path).await.expect(200).text();
            }
        }
        details + &runs.text()
    }

    /// The text of all webhooks to the backend.
    pub fn webhook_texts(&self) -> String {
        self.receiver.webhooks().into_iter().map(|webhook| webhook.text).collect()
    }
}
