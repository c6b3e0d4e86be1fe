//! A real OAuth 2 server: oidc-provider, which is certified.

use std::fs::File;
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::host::free_port;
use super::{Api, Host, HostOptions, TestDatabase, eventually, repository, text};

/// The provider that the catalogue entry describes.
pub const OAUTH_PROVIDER: &str = "test-oauth";

/// A client that is registered at the server.
pub struct OAuthClient {
    pub id: String,
    pub secret: String,
}

pub struct OAuthServer {
    child: Child,
    folder: TempDir,
    port: u16,
    api: Api,
}

impl OAuthServer {
    pub async fn start() -> Self {
        Self::with_token_lifetime(3600).await
    }

    /// With access tokens that expire after the given number of seconds.
    pub async fn with_token_lifetime(seconds: u32) -> Self {
        let folder = TempDir::new().expect("a temporary folder can be made");
        let log = File::create(folder.path().join("log")).expect("a log can be made");
        let port = free_port();
        let child = Command::new("node")
            .arg(repository("tests/node/oidc.mjs"))
            .args([port.to_string(), seconds.to_string()])
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("the file handle can be cloned"))
            .stderr(log)
            .spawn()
            .expect("Node.js is not installed; `scripts/setup` says what to install");
        let api = Api::new(format!("http://127.0.0.1:{port}"), None);
        let server = Self { child, folder, port, api };
        eventually("the OAuth server listens", async || TcpStream::connect(server.address()).ok()).await;
        server.write_entry(OAUTH_PROVIDER, "");
        server
    }

    /// The address in the format of `SYNCLINE_EGRESS_ALLOW`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub fn issuer(&self) -> &str {
        self.api.base_url()
    }

    /// A host with this server in its catalogue.
    pub async fn spawn_host(&self, db: &TestDatabase) -> Host {
        self.host_options(db).spawn().await
    }

    pub fn host_options(&self, db: &TestDatabase) -> HostOptions {
        let folder = self.folder.path().join("providers");
        let folder = folder.to_str().expect("temporary folders have plain names");
        HostOptions::new()
            .database(db)
            .variable("SYNCLINE_PROVIDERS_DIR", folder)
            .variable("SYNCLINE_EGRESS_ALLOW", &self.address())
    }

    /// Writes a catalogue entry for the server, with additional lines at its end. Hosts read it when they start.
    pub fn write_entry(&self, slug: &str, more: &str) {
        let issuer = self.issuer();
        let entry = format!(
            r#"
            name = "{slug}"
            display_name = "Test OAuth"
            auth_mode = "OAUTH2"
            docs = "https://github.com/panva/node-oidc-provider"
            authorization_url = "{issuer}/auth"
            token_url = "{issuer}/token"
            default_scopes = ["openid", "offline_access"]
            authorization_params = {{ prompt = "consent" }}
            source = {{ address = "https://github.com/panva/node-oidc-provider", checked_at = "2026-11-21" }}
            [proxy]
            base_url = "{issuer}"
            verification = {{ method = "GET", endpoint = "/me" }}
            {more}
            "#
        );
        let folder = self.folder.path().join("providers");
        std::fs::create_dir_all(&folder).expect("a folder can be made");
        std::fs::write(folder.join(format!("{slug}.toml")), entry).expect("a file can be written");
    }

    /// Registers a client with this callback URL.
    pub async fn register_client(&self, redirect_uri: &str) -> OAuthClient {
        let made = self.api.post("/reg", &json!({ "redirect_uris": [redirect_uri] })).await;
        let made = made.expect(201).json();
        OAuthClient {
            id: text(&made["client_id"]).to_owned(),
            secret: text(&made["client_secret"]).to_owned(),
        }
    }

    /// Creates an integration of this server on a host, with a new client.
    pub async fn integrate(&self, host: &Api, key: &str, provider: &str) -> OAuthClient {
        let client = self.register_client(&format!("{}/oauth/callback", host.base_url())).await;
        let body = json!({
            "provider": provider, "unique_key": key,
            "credentials": { "type": "OAUTH2", "client_id": client.id, "client_secret": client.secret },
        });
        host.post("/integrations", &body).await.expect(200);
        client
    }

    /// Revokes a grant, as its user might at the provider.
    pub async fn revoke(&self, client: &OAuthClient, refresh_token: &str) {
        let form = [("client_id", &*client.id), ("client_secret", &client.secret), ("token", refresh_token)];
        let request = self.api.request("POST", "/token/revocation");
        let request = request.header("Content-Type", "application/x-www-form-urlencoded");
        request.bytes(super::client::query(&form)).send().await.expect(200);
    }

    /// Breaks the token endpoint with `html`, `error` or `slow`. `late` delays its answers by a second, `hold` holds
    /// them back until [`fail_held`](Self::fail_held), and `none` restores it.
    pub async fn set_fault(&self, fault: &str) {
        self.api.post(&format!("/test/fault?token={fault}"), &Value::Null).await.expect(200);
    }

    /// The number of requests that the server holds back.
    pub async fn held(&self) -> u64 {
        self.api.get("/test/held").await.expect(200).json().as_u64().expect("a number")
    }

    /// Answers the requests that the server holds back with an error. Returns their number.
    pub async fn fail_held(&self) -> u64 {
        self.api.post("/test/release", &Value::Null).await.expect(200).json().as_u64().expect("a number")
    }
}

impl Drop for OAuthServer {
    fn drop(&mut self) {
        let _ended_already = self.child.kill();
        let _was_waited_for = self.child.wait();
        if std::thread::panicking() {
            let log = std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
            eprintln!("--- log of the OAuth server ---\n{log}--- end of the OAuth server's log ---");
        }
    }
}
