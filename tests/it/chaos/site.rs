//! The databases and third-party servers of a sequence, and the hosts that use them.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use super::network::Links;
use super::server::Server;
use crate::support::{Host, HostOptions, Receiver, TestDatabase};

/// Fields are dropped in order: the database before its server.
pub struct Site {
    pub db: TestDatabase,
    pub server: Server,
    pub receiver: Receiver,
}

/// A host of the sequence.
pub struct Member {
    host: Host,
    /// Its network to Postgres, or `None` if it uses the socket of the server.
    pub links: Option<Arc<Links>>,
}

impl Site {
    pub async fn prepare() -> Self {
        let server = Server::start().await;
        let db = TestDatabase::create_on(&server.url()).await;
        Self { db, server, receiver: Receiver::start().await }
    }

    /// Starts a host. If it is remote, its connections to Postgres pass through a network that can fail.
    pub async fn spawn_host(&self, is_remote: bool) -> Member {
        let mut options = HostOptions::new()
            .database(&self.db)
            .variable("SYNCLINE_LEASE_SECONDS", "1")
            .variable("SYNCLINE_DATABASE_CONNECTIONS", "12")
            .variable("SYNCLINE_GRACE_SECONDS", "5")
            .variable("SYNCLINE_EGRESS_ALLOW", &self.receiver.address())
            .variable("SYNCLINE_WEBHOOK_RETRIES", "200ms,1s,1s,1s,1s")
            // Syncs are interrupted far more often here than stall detection allows by default.
            .variable("SYNCLINE_MAX_IDLE_ATTEMPTS", "1000000");
        let mut links = None;
        if is_remote {
            let started = Links::start(&self.db).await;
            options = started.connect(options, &self.db);
            links = Some(Arc::new(started));
        }
        Member { host: options.spawn().await, links }
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
