//! A host with an integration of a certified OAuth server, and an end user who connects there.

use serde_json::{Value, json};
use url::Url;

use super::{Api, Browser, Host, OAUTH_PROVIDER, OAuthClient, OAuthServer, TestDatabase, Visited, text};

/// The integration's unique key.
pub const KEY: &str = "crm";

/// A host with an integration of a certified OAuth server.
pub struct OAuthScene {
    pub host: Host,
    pub server: OAuthServer,
    pub client: OAuthClient,
    pub db: TestDatabase,
}

impl OAuthScene {
    pub async fn create() -> Self {
        Self::with_entry("").await
    }

    pub async fn with_entry(more: &str) -> Self {
        Self::with_server(OAuthServer::start().await, more).await
    }

    /// With access tokens that expire after the given number of seconds.
    pub async fn with_token_lifetime(seconds: u32) -> Self {
        Self::with_server(OAuthServer::with_token_lifetime(seconds).await, "").await
    }

    async fn with_server(server: OAuthServer, more: &str) -> Self {
        let db = TestDatabase::create().await;
        server.write_entry(OAUTH_PROVIDER, more);
        let host = server.spawn_host(&db).await;
        let client = server.integrate(&host, KEY, OAUTH_PROVIDER).await;
        Self { host, server, client, db }
    }

    pub async fn session(&self, body: Value) -> String {
        open_session(&self.host, "/connect/sessions", body).await
    }

    /// A session for a new connection.
    pub async fn user_session(&self) -> String {
        self.session(json!({ "end_user": { "id": "u-1", "email": "ada@example.com" } })).await
    }

    pub fn start(&self, token: &str, more: &str) -> String {
        format!("{}/oauth/connect/{KEY}?connect_session_token={token}{more}", self.host.base_url())
    }

    pub fn callback(&self) -> String {
        format!("{}/oauth/callback", self.host.base_url())
    }

    pub async fn connections(&self) -> Vec<Value> {
        let listed = self.host.get("/connections").await.expect(200).json();
        listed["connections"].as_array().expect("a list").clone()
    }

    pub async fn connection(&self, id: &str) -> Value {
        self.host.get(&format!("/connections/{id}?provider_config_key={KEY}")).await.expect(200).json()
    }

    /// Another host on the same database.
    pub async fn another_host(&self) -> Host {
        self.server.spawn_host(&self.db).await
    }

    /// Connects an account and returns the connection's id.
    pub async fn connect_account(&self) -> String {
        let (mut browser, token) = (Browser::new(), self.user_session().await);
        let back = self.authorize(&mut browser, &token, "").await;
        browser.visit(back.as_str()).await.answer.expect(200);
        text(&self.connections().await[0]["connection_id"]).to_owned()
    }

    /// Checks that the provider accepts the token.
    pub async fn expect_accepted(&self, access_token: &str) {
        let provider = Api::new(self.server.issuer().to_owned(), Some(access_token));
        provider.get("/me").await.expect(200);
    }

    /// Starts an authorization at the provider, and stops before the callback. Returns the callback's URL.
    pub async fn authorize(&self, browser: &mut Browser, token: &str, more: &str) -> Url {
        let login = browser.visit(&self.start(token, more)).await;
        consent(browser, login, &self.callback()).await.url
    }
}

pub async fn open_session(api: &Api, path: &str, body: Value) -> String {
    let session = api.post(path, &body).await.expect(201).json();
    text(&session["data"]["token"]).to_owned()
}

/// Logs in at the provider and consents. Stops before a URL with this prefix.
pub async fn consent(browser: &mut Browser, login: Visited, stop_before: &str) -> Visited {
    let login = login.expect_page("Sign-in");
    let form = [("prompt", "login"), ("login", "ada"), ("password", "any")];
    let asked = browser.submit(&login, &form).await.expect_page("Authorize");
    browser.submit_until(&asked, &[("prompt", "consent")], stop_before).await
}

impl Visited {
    #[track_caller]
    pub fn expect_page(self, title: &str) -> Url {
        let page = self.answer.clone().expect(200).text();
        assert!(page.contains(title), "no `{title}` at {}: {page}", self.url);
        self.url
    }
}
