//! Accounts at a provider whose access tokens expire within seconds, and whose refresh tokens work once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use rand::Rng;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::disturbances::Disturbance;
use super::readers::LiveHosts;
use super::{Chaos, SETTLE_TIMEOUT};
use crate::support::{Api, Connection, TokenServer};

/// The integration's unique key, and its provider.
pub const ROTATING: &str = "rotating";
pub const TOKEN_LIFETIME: Duration = Duration::from_secs(4);
const ACCOUNTS: usize = 8;
const TIMEOUT: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_millis(80);
/// A live host stores new tokens within this time: after the longest fault, it waits up to 10 seconds for the locks of
/// a dead host's transaction, and tries again after at most 5 seconds.
const STORE_TIME: Duration = Duration::from_secs(30);
/// Without faults, a live host finishes its refreshes within this time.
const RECOVERY_TIME: Duration = Duration::from_secs(7);
/// Inaccuracy of the recorded time of a kill.
const TOLERANCE: Duration = Duration::from_secs(1);

/// The accounts, and what the sequence knows about them.
#[derive(Default)]
pub struct Accounts {
    /// When hosts were killed, by their numbers.
    killed: BTreeMap<u32, Instant>,
    /// The number of reused refresh tokens that were explained.
    explained: usize,
    pub uses: Arc<AtomicU64>,
}

impl Accounts {
    /// Creates the integration and connects the accounts.
    pub async fn connect(api: &Api, server: &TokenServer) -> Self {
        let body = json!({
            "provider": ROTATING, "unique_key": ROTATING,
            "credentials": { "type": "OAUTH2", "client_id": "app", "client_secret": "planted-app-secret" },
        });
        api.post("/integrations", &body).await.expect(200);
        for number in 0..ACCOUNTS {
            reconnect(api, server, &account(number)).await;
        }
        Self::default()
    }

    pub fn note_kill(&mut self, host: u32) {
        self.killed.insert(host, Instant::now());
    }

    /// The number of accounts that had to reconnect because a host was killed.
    pub fn reconnected(&self) -> usize {
        self.explained
    }
}

fn account(number: usize) -> String {
    format!("account-{number}")
}

async fn reconnect(api: &Api, server: &TokenServer, account: &str) {
    Connection::import(api, ROTATING, account, server.consent(account), json!({})).await;
}

/// The path of an account's connection, with refreshed credentials.
fn refreshed(account: &str) -> String {
    format!("/connections/{account}?provider_config_key={ROTATING}&force_refresh=true")
}

/// Sends requests to the provider for random accounts, through any host, until `stop`.
pub async fn use_accounts(live_hosts: LiveHosts, uses: Arc<AtomicU64>, stop: CancellationToken) {
    while !stop.is_cancelled() {
        if let Some(api) = live_hosts.any() {
            let account = account(rand::rng().random_range(0..ACCOUNTS));
            let request = api.request("GET", "/proxy/me").header("Connection-Id", &account);
            let request = request.header("Provider-Config-Key", ROTATING).try_send();
            if let Ok(Ok(answer)) = tokio::time::timeout(TIMEOUT, request).await
                && answer.status == 200
            {
                assert_eq!(answer.json()["account"], *account, "the provider sees the token of the account");
                uses.fetch_add(1, Ordering::SeqCst);
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

impl Chaos {
    /// Requests new credentials of an account from all hosts at once.
    pub fn force_refresh(&mut self) {
        let path = refreshed(&account(self.random.random_range(0..ACCOUNTS)));
        let hosts: Vec<Api> = self.hosts.iter().map(|host| Api::clone(host)).collect();
        self.ongoing.spawn(async move {
            let requests = hosts.iter().map(async |api| {
                let request = api.request("GET", &path).try_send();
                matches!(tokio::time::timeout(TIMEOUT, request).await, Ok(Ok(answer)) if answer.status == 200)
            });
            join_all(requests).await.contains(&true).then_some(Disturbance::RefreshForced)
        });
    }

    /// Checks that no refresh token was used twice, except if the host that got its successor was killed before it
    /// could store it. Connects these accounts again, as their users would.
    pub async fn check_accounts(&mut self) {
        let reuses = self.site.tokens.reuses();
        for reuse in &reuses[self.accounts.explained..] {
            let issued = reuse.replaced_by;
            let is_explained = self.accounts.killed.get(&issued.host).is_some_and(|killed_at| {
                (issued.at..issued.at + STORE_TIME + TOLERANCE).contains(&(*killed_at + TOLERANCE))
            });
            assert!(
                is_explained,
                "host {} used a refresh token of {} {:?} after host {}, which was not killed, had replaced it",
                reuse.host,
                reuse.account,
                reuse.at - issued.at,
                issued.host
            );
            println!(
                "{} was disconnected: host {} was killed before it stored a new refresh token",
                reuse.account, issued.host
            );
            reconnect(&self.hosts[0], &self.site.tokens, &reuse.account).await;
        }
        self.accounts.explained = reuses.len();
    }

    /// Checks at the end of a sequence that every account works. Skips the waiting time for the leases of dead hosts.
    pub async fn check_every_account(&mut self) {
        let began = Instant::now();
        for number in 0..ACCOUNTS {
            let account = account(number);
            while !self.is_usable(&account).await {
                if began.elapsed() > RECOVERY_TIME {
                    // A lease lasts 30 seconds. Those that are older than 10 seconds belong to hosts that were killed.
                    let release = "UPDATE connections SET refresh_leased_until = now()
                                   WHERE refresh_leased_until BETWEEN now() AND now() + interval '20 seconds'";
                    self.site.db.execute(release).await;
                }
                self.check_accounts().await;
                assert!(began.elapsed() < SETTLE_TIMEOUT, "{account} does not work");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }

    async fn is_usable(&self, account: &str) -> bool {
        let request = self.hosts[0].request("GET", &refreshed(account)).try_send();
        let Ok(Ok(answer)) = tokio::time::timeout(TIMEOUT, request).await else { return false };
        let credentials: Value = answer.json()["credentials"].clone();
        answer.status == 200
            && credentials["access_token"]
                .as_str()
                .is_some_and(|token| self.site.tokens.accepts(account, token))
    }
}
