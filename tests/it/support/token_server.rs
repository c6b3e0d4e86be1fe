//! An OAuth 2 token endpoint whose refresh tokens work once. A token that is used again revokes its grant, as
//! RFC 9700, section 4.14.2, recommends.
//!
//! Each host has its own token URL, so the server knows to which host it has issued a token.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::{get, post};
use axum::{Form, Json, Router};
use rand::Rng;
use serde::Deserialize;
use serde_json::{Value, json};

/// The longest delays before and after a token is replaced.
const DELAYS_MS: [u64; 2] = [60, 120];

/// A token pair that was issued to a host.
#[derive(Debug, Clone, Copy)]
pub struct Issued {
    pub host: u32,
    pub at: Instant,
}

/// The use of a refresh token that had been replaced before.
#[derive(Debug, Clone)]
pub struct Reuse {
    pub account: String,
    pub host: u32,
    pub at: Instant,
    /// The pair that had replaced the token.
    pub replaced_by: Issued,
}

/// The consent of an account. Its tokens are numbered; the last ones are valid.
struct Grant {
    number: u64,
    issued: Vec<Issued>,
    is_revoked: bool,
}

#[derive(Default)]
struct Shared {
    grants: BTreeMap<String, Grant>,
    reuses: Vec<Reuse>,
    refreshes: u64,
}

pub struct TokenServer {
    port: u16,
    lifetime: Duration,
    shared: Arc<Mutex<Shared>>,
}

#[derive(Clone)]
struct Endpoint {
    lifetime: Duration,
    shared: Arc<Mutex<Shared>>,
}

impl TokenServer {
    /// Starts a server whose access tokens expire after `lifetime`.
    pub async fn start(lifetime: Duration) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let port = listener.local_addr().expect("the listener has an address").port();
        let shared = Arc::new(Mutex::new(Shared::default()));
        let endpoint = Endpoint { lifetime, shared: Arc::clone(&shared) };
        let router = Router::new().route("/token/{host}", post(refresh)).route("/me", get(show_account));
        tokio::spawn(axum::serve(listener, router.with_state(endpoint)).into_future());
        Self { port, lifetime, shared }
    }

    /// The address in the format of `SYNCLINE_EGRESS_ALLOW`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The catalogue entry of this server for a host.
    pub fn entry(&self, slug: &str, host: u32) -> String {
        let address = self.address();
        format!(
            r#"
            name = "{slug}"
            display_name = "Rotating tokens"
            auth_mode = "OAUTH2"
            docs = "https://www.rfc-editor.org/rfc/rfc9700"
            authorization_url = "http://{address}/auth"
            token_url = "http://{address}/token/{host}"
            source = {{ address = "https://www.rfc-editor.org/rfc/rfc9700", checked_at = "2026-11-21" }}
            [proxy]
            base_url = "http://{address}"
            "#
        )
    }

    /// Replaces the consent of an account. Returns its first credentials, in the form for an import.
    pub fn consent(&self, account: &str) -> Value {
        let mut shared = lock(&self.shared);
        let number = shared.grants.get(account).map_or(0, |grant| grant.number + 1);
        let issued = vec![Issued { host: 0, at: Instant::now() }];
        shared.grants.insert(account.to_owned(), Grant { number, issued, is_revoked: false });
        json!({
            "type": "OAUTH2",
            "access_token": token("access", account, number, 0),
            "refresh_token": token("refresh", account, number, 0),
            "expires_at": chrono::Utc::now() + self.lifetime,
        })
    }

    /// How often tokens were replaced.
    pub fn refreshes(&self) -> u64 {
        lock(&self.shared).refreshes
    }

    /// All refresh tokens that were used twice, oldest first.
    pub fn reuses(&self) -> Vec<Reuse> {
        lock(&self.shared).reuses.clone()
    }

    /// Whether this is a valid access token of the account.
    pub fn accepts(&self, account: &str, access_token: &str) -> bool {
        lock(&self.shared).account_of(access_token, self.lifetime).as_deref() == Some(account)
    }
}

impl Shared {
    fn account_of(&self, access_token: &str, lifetime: Duration) -> Option<String> {
        let (account, number, index) = parse("access", access_token)?;
        let grant = self.grants.get(account).filter(|grant| grant.number == number && !grant.is_revoked)?;
        let issued = grant.issued.get(index)?;
        (issued.at.elapsed() < lifetime).then(|| account.to_owned())
    }

    /// Replaces a refresh token. Returns the number of the new pair.
    fn replace(&mut self, host: u32, refresh_token: &str) -> Option<(String, u64, usize)> {
        let (account, number, index) = parse("refresh", refresh_token)?;
        let grant =
            self.grants.get_mut(account).filter(|grant| grant.number == number && !grant.is_revoked)?;
        let at = Instant::now();
        if let Some(replaced_by) = grant.issued.get(index + 1) {
            grant.is_revoked = true;
            self.reuses.push(Reuse { account: account.to_owned(), host, at, replaced_by: *replaced_by });
            return None;
        }
        grant.issued.push(Issued { host, at });
        self.refreshes += 1;
        Some((account.to_owned(), number, index + 1))
    }
}

#[derive(Deserialize)]
struct RefreshForm {
    refresh_token: String,
}

async fn refresh(
    State(endpoint): State<Endpoint>,
    Path(host): Path<u32>,
    Form(form): Form<RefreshForm>,
) -> (StatusCode, Json<Value>) {
    let [before, after] =
        DELAYS_MS.map(|longest| Duration::from_millis(rand::rng().random_range(0..longest)));
    tokio::time::sleep(before).await;
    let replaced = lock(&endpoint.shared).replace(host, &form.refresh_token);
    tokio::time::sleep(after).await;
    match replaced {
        Some((account, number, index)) => {
            let pair = json!({
                "token_type": "Bearer",
                "access_token": token("access", &account, number, index),
                "refresh_token": token("refresh", &account, number, index),
                "expires_in": endpoint.lifetime.as_secs(),
            });
            (StatusCode::OK, Json(pair))
        }
        None => (StatusCode::BAD_REQUEST, Json(json!({ "error": "invalid_grant" }))),
    }
}

async fn show_account(State(endpoint): State<Endpoint>, headers: HeaderMap) -> (StatusCode, Json<Value>) {
    let header = headers.get("authorization").and_then(|value| value.to_str().ok()).unwrap_or_default();
    let access_token = header.trim_start_matches("Bearer ");
    match lock(&endpoint.shared).account_of(access_token, endpoint.lifetime) {
        Some(account) => (StatusCode::OK, Json(json!({ "account": account }))),
        None => (StatusCode::UNAUTHORIZED, Json(json!({ "error": "invalid_token" }))),
    }
}

/// The words of a token are its kind, the account, the number of the grant and the token's number in it.
fn token(kind: &str, account: &str, number: u64, index: usize) -> String {
    format!("planted:{kind}:{account}:{number}:{index}")
}

fn parse<'a>(kind: &str, token: &'a str) -> Option<(&'a str, u64, usize)> {
    let words: Vec<&str> = token.strip_prefix("planted:")?.strip_prefix(kind)?.split(':').collect();
    let ["", account, number, index] = words[..] else { return None };
    Some((account, number.parse().ok()?, index.parse().ok()?))
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
