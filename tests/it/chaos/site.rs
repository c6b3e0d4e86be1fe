//! The databases and third-party servers of a sequence, and the hosts that use them.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use tempfile::TempDir;

use super::accounts::{ROTATING, TOKEN_LIFETIME};
use super::clock::WallClock;
use super::network::Links;
use super::server::Server;
use crate::support::{Host, HostOptions, Receiver, TestDatabase, TokenServer};

/// Fields are dropped in order: the databases before their servers.
pub struct Site {
    pub db: TestDatabase,
    /// The server of the control database, and the server of the records database if that is separate.
    pub servers: Vec<Server>,
    pub receiver: Receiver,
    pub tokens: TokenServer,
    /// A folder of provider files for each host.
    providers: TempDir,
}

/// A host of the sequence.
pub struct Member {
    host: Host,
    pub number: u32,
    /// Its network to Postgres, or `None` if it uses the socket of the server.
    pub links: Option<Arc<Links>>,
    /// Its wall clock, or `None` if libfaketime is not installed.
    pub clock: Option<Arc<WallClock>>,
}

impl Site {
    pub async fn prepare(has_records_database: bool) -> Self {
        let mut servers = vec![Server::start().await];
        let mut db = TestDatabase::create_on(&servers[0].url()).await;
        if has_records_database {
            let server = Server::start().await;
            db = db.with_records_on(&server.url()).await;
            servers.push(server);
        }
        let (receiver, tokens) = (Receiver::start().await, TokenServer::start(TOKEN_LIFETIME).await);
        let providers = TempDir::new().expect("a temporary folder can be made");
        Self { db, servers, receiver, tokens, providers }
    }

    /// Starts a host. If it is remote, its connections to Postgres pass through a network that can fail.
    pub async fn spawn_host(&self, number: u32, is_remote: bool) -> Member {
        let providers = self.providers.path().join(number.to_string());
        std::fs::create_dir(&providers).expect("the folder is writable");
        let entry = self.tokens.entry(ROTATING, number);
        std::fs::write(providers.join(format!("{ROTATING}.toml")), entry).expect("the folder is writable");
        let providers = providers.to_str().expect("temporary folders have plain names");
        let allowed = format!("{},{}", self.receiver.address(), self.tokens.address());
        let mut options = HostOptions::new()
            .database(&self.db)
            .variable("SYNCLINE_LEASE_SECONDS", "1")
            .variable("SYNCLINE_DATABASE_CONNECTIONS", "12")
            .variable("SYNCLINE_GRACE_SECONDS", "5")
            .variable("SYNCLINE_EGRESS_ALLOW", &allowed)
            .variable("SYNCLINE_PROVIDERS_DIR", providers)
            .variable("SYNCLINE_WEBHOOK_RETRIES", "200ms,1s,1s,1s,1s")
            // Syncs are interrupted far more often here than stall detection allows by default.
            .variable("SYNCLINE_MAX_IDLE_ATTEMPTS", "1000000");
        let mut links = None;
        if is_remote {
            let started = Links::start(&self.db).await;
            options = started.connect(options, &self.db);
            links = Some(Arc::new(started));
        }
        let clock = WallClock::create().map(Arc::new);
        if let Some(clock) = &clock {
            options = clock.connect(options);
        }
        Member { host: options.spawn().await, number, links, clock }
    }
}

impl Deref for Member {
    type Target = Host;

    fn deref(&self) -> &Host {
        &self.host
    }
}

impl DerefMut for Member {
    fn deref_mut(&mut self) -> &mut Host {
        &mut self.host
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if self.clock.is_some() {
            WallClock::clean_up(self.host.process());
        }
    }
}
