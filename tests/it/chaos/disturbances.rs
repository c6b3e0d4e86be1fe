//! The disturbances of a round.

use std::time::{Duration, Instant};

use chrono::Utc;
use rand::Rng;
use serde_json::{Value, json};

use super::server::Server;
use super::site::Member;
use super::{Chaos, SETTLE_TIMEOUT, VARIANT};
use crate::support::Connection;

/// A disturbance in the middle of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Disturbance {
    /// `kill -9` of a host.
    HostKilled,
    /// `kill -9` of Postgres.
    DatabaseKilled,
    /// `kill -9` of a host and Postgres.
    BothKilled,
    /// A host freezes for longer than its lease.
    HostFrozen,
    /// A host stops gracefully.
    HostStopped,
    HostJoins,
    /// A host stops gracefully, and one of the other build takes its place, as in an upgrade or its reversal.
    HostReplaced,
    /// Nothing arrives from a host at Postgres for a while, or nothing from Postgres at the host, or both.
    NetworkPartitioned,
    /// Everything takes a while between a host and Postgres.
    NetworkSlow,
    /// The connections of a host to Postgres are reset.
    ConnectionsReset,
    /// All hosts are asked for new credentials of an account at once.
    RefreshForced,
    /// The wall clock of a host jumps forwards or backwards by minutes, and back again.
    ClockJumped,
    /// There is no space left on the disk of Postgres for a while.
    DiskFull,
    Triggered,
    Reset,
    CacheEmptied,
    Paused,
    Started,
    VariantCreated,
    VariantDeleted,
}

impl Disturbance {
    pub const ALL: [Self; 20] = [
        Self::HostKilled,
        Self::DatabaseKilled,
        Self::BothKilled,
        Self::HostFrozen,
        Self::HostStopped,
        Self::HostJoins,
        Self::HostReplaced,
        Self::NetworkPartitioned,
        Self::NetworkSlow,
        Self::ConnectionsReset,
        Self::RefreshForced,
        Self::ClockJumped,
        Self::DiskFull,
        Self::Triggered,
        Self::Reset,
        Self::CacheEmptied,
        Self::Paused,
        Self::Started,
        Self::VariantCreated,
        Self::VariantDeleted,
    ];

    /// Those that last for a while and overlap with others.
    pub const OVERLAPPING: [Self; 5] = [
        Self::NetworkPartitioned,
        Self::NetworkSlow,
        Self::ConnectionsReset,
        Self::RefreshForced,
        Self::ClockJumped,
    ];
}

impl Chaos {
    /// Returns whether the disturbance has happened. Those that last longer report it later.
    pub async fn disturb(&mut self, disturbance: Disturbance) -> bool {
        // The first host is spared when possible, so that leaks show over time.
        let spared_hosts = usize::from(self.least_hosts > 1);
        let victim = self.random.random_range(spared_hosts..self.hosts.len().max(spared_hosts + 1));
        let happened = match disturbance {
            Disturbance::HostKilled | Disturbance::HostStopped | Disturbance::HostReplaced
                if victim >= self.hosts.len() =>
            {
                false
            }
            Disturbance::HostKilled => {
                self.kill_host(victim);
                true
            }
            Disturbance::DatabaseKilled => {
                let server = self.random_server();
                server.kill().await;
                server.start_again().await;
                true
            }
            Disturbance::BothKilled => {
                let server = self.random.random_range(0..self.site.servers.len());
                self.site.servers[server].kill().await;
                let has_victim = victim < self.hosts.len();
                if has_victim {
                    self.kill_host(victim);
                }
                self.site.servers[server].start_again().await;
                has_victim
            }
            Disturbance::HostFrozen => {
                let host = &self.hosts[victim.min(self.hosts.len() - 1)];
                host.freeze();
                tokio::time::sleep(Duration::from_millis(self.random.random_range(1_100..1_600))).await;
                host.thaw();
                true
            }
            Disturbance::HostStopped => {
                self.hosts.remove(victim).stop().await;
                true
            }
            Disturbance::HostReplaced => {
                let mut old = self.hosts.remove(victim);
                self.live_hosts.set(&self.hosts);
                old.stop().await;
                self.add_host_of(old.build.opposite()).await;
                self.hosts.last().is_some_and(Member::runs_its_build)
            }
            Disturbance::HostJoins if self.hosts.len() < self.most_hosts => {
                self.add_host().await;
                true
            }
            Disturbance::HostJoins => false,
            Disturbance::NetworkPartitioned | Disturbance::NetworkSlow | Disturbance::ConnectionsReset => {
                self.disturb_network(disturbance);
                false
            }
            Disturbance::RefreshForced => {
                self.force_refresh();
                false
            }
            Disturbance::ClockJumped => {
                self.jump_clock();
                false
            }
            Disturbance::DiskFull => self.fill_disk().await,
            Disturbance::Triggered => self.command_random("trigger").await,
            Disturbance::Paused => self.command_random("pause").await,
            Disturbance::Started => self.command_random("start").await,
            Disturbance::Reset => {
                // Not on the steps: a reader would see steps that are saved twice.
                let connection = [&self.full, &self.wild][self.random.random_range(0..2)];
                self.reset(connection, json!({ "reset": true })).await
            }
            Disturbance::CacheEmptied => {
                let since = Utc::now();
                let opts = json!({ "reset": true, "emptyCache": true });
                let is_accepted = self.reset(&self.wild, opts).await;
                if is_accepted {
                    self.emptied_since = Some(since);
                }
                is_accepted
            }
            Disturbance::VariantCreated => self.request_variant("POST").await == Some(200),
            Disturbance::VariantDeleted => {
                let status = self.request_variant("DELETE").await;
                self.is_variant_in_doubt |= !matches!(status, Some(200 | 404));
                status == Some(200)
            }
        };
        if self.hosts.is_empty() {
            self.add_host().await;
        }
        self.live_hosts.set(&self.hosts);
        happened
    }

    pub fn random_server(&mut self) -> &mut Server {
        let server = self.random.random_range(0..self.site.servers.len());
        &mut self.site.servers[server]
    }

    fn kill_host(&mut self, victim: usize) {
        let mut member = self.hosts.remove(victim);
        member.kill();
        self.accounts.note_kill(member.number);
    }

    /// Sends a command for all syncs of a random connection.
    async fn command_random(&mut self, command: &str) -> bool {
        let connection = [&self.full, &self.steps, &self.wild][self.random.random_range(0..3)];
        self.command(connection, command).await
    }

    /// Returns `false` if no host has accepted the command.
    async fn command(&self, connection: &Connection, command: &str) -> bool {
        let mut body = identifiers(connection);
        body["syncs"] = json!([]);
        self.send("POST", &format!("/sync/{command}"), &body).await == Some(200)
    }

    /// Returns `false` if no host has accepted the reset.
    async fn reset(&self, connection: &Connection, opts: Value) -> bool {
        let mut body = identifiers(connection);
        body["syncs"] = json!(["numbers"]);
        body["opts"] = opts;
        self.send("POST", "/sync/trigger", &body).await == Some(200)
    }

    async fn request_variant(&self, method: &str) -> Option<u16> {
        self.send(method, &format!("/sync/numbers/variant/{VARIANT}"), &identifiers(&self.wild)).await
    }

    /// Sends a request to any live host. `None` means that the outcome is unknown.
    async fn send(&self, method: &str, path: &str, body: &Value) -> Option<u16> {
        let request = self.live_hosts.any()?.request(method, path).json(body).try_send();
        match tokio::time::timeout(Duration::from_secs(2), request).await {
            Ok(Ok(answer)) => Some(answer.status.as_u16()),
            _ => None,
        }
    }

    /// Starts paused syncs, repeats unconfirmed requests, and triggers every sync once more.
    pub async fn finish_pending(&mut self) {
        let began = Instant::now();
        while self.is_variant_in_doubt {
            assert!(began.elapsed() < SETTLE_TIMEOUT, "the variant cannot be deleted");
            self.is_variant_in_doubt = !matches!(self.request_variant("DELETE").await, Some(200 | 404));
        }
        for connection in [&self.full, &self.steps, &self.wild] {
            for command in ["start", "trigger"] {
                while !self.command(connection, command).await {
                    assert!(began.elapsed() < SETTLE_TIMEOUT, "no host accepts a command");
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
        }
    }
}

fn identifiers(connection: &Connection) -> Value {
    json!({ "provider_config_key": connection.integration, "connection_id": connection.id })
}
