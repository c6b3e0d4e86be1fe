//! Events between hosts, published with `NOTIFY`: what this host and others have changed.
//!
//! Events only speed things up. Everything that waits for an event also polls.

use std::collections::HashMap;
use std::sync::PoisonError;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sqlx::postgres::PgListener;
use sqlx::{PgConnection, PgPool};
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::rate_limits::{Backoff, SentRequests};
use syncline_telemetry::clock::Clock;
use syncline_types::ids::ConnectionPk;

/// The `NOTIFY` channel that all hosts use.
const CHANNEL: &str = "syncline";
/// How often a host notifies itself, to know that it receives events.
const PING_INTERVAL: Duration = Duration::from_secs(4);
/// Silence for longer than this means that notifications may be lost.
const SILENT_AFTER: Duration = Duration::from_secs(10);
const RECONNECT_DELAY: Duration = Duration::from_secs(1);
/// The number of connections in one event about records. Postgres allows payloads of up to 8,000 bytes.
const CONNECTIONS_PER_EVENT: usize = 300;
/// The number of entries in one event about sent requests.
const ENTRIES_PER_EVENT: usize = 100;

/// A host, with the requests that it has sent.
type SentByHost = (Uuid, Arc<[SentRequests]>);

/// A change on any host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A schedule is due.
    Due,
    /// A job is queued.
    Jobs,
    /// A run was cancelled.
    Cancel,
    /// A key was revoked.
    Keys,
    /// An outbound webhook is due.
    Webhooks,
    /// An inbound webhook was stored.
    Received,
    /// A deployment was staged or activated.
    Deployments,
    /// An environment was created, changed or deleted, or its keys changed.
    Environments,
    /// A connection was changed or deleted.
    Connection(ConnectionPk),
    /// An integration was renamed, changed or deleted.
    Integrations,
    /// Connections were deleted, and their records must be removed.
    Deletions,
    /// A provider requested a backoff.
    Backoff(Backoff),
    /// The outcome of an authorization is available for this listener.
    Outcome(Uuid),
    /// Events may have been missed: caches must be dropped.
    Missed,
}

/// Receives the events of all hosts, and publishes them to the modules of this one.
pub struct Events {
    clock: Clock,
    sender: broadcast::Sender<Event>,
    /// A separate channel, so that many changes of records do not displace other events.
    records: broadcast::Sender<Arc<[ConnectionPk]>>,
    /// A separate channel for the same reason.
    requests: broadcast::Sender<SentByHost>,
    received_at: Mutex<Option<Instant>>,
    /// The time of each host's last ping.
    hosts: Mutex<HashMap<Uuid, Instant>>,
}

/// The events that one module of the host receives.
pub struct Subscription(broadcast::Receiver<Event>);

impl Events {
    pub fn new(clock: Clock) -> Self {
        Self {
            clock,
            sender: broadcast::channel(1024).0,
            records: broadcast::channel(256).0,
            requests: broadcast::channel(256).0,
            received_at: Mutex::new(None),
            hosts: Mutex::default(),
        }
    }

    pub fn subscribe(&self) -> Subscription {
        Subscription(self.sender.subscribe())
    }

    /// Subscribes to connections whose records other hosts have changed.
    pub fn subscribe_to_records(&self) -> broadcast::Receiver<Arc<[ConnectionPk]>> {
        self.records.subscribe()
    }

    /// Subscribes to the requests under rate limits that other hosts have sent to providers.
    pub fn subscribe_to_requests(&self) -> broadcast::Receiver<SentByHost> {
        self.requests.subscribe()
    }

    /// Returns the number of live hosts, including this one.
    pub fn live_hosts(&self) -> usize {
        let hosts = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
        hosts.values().filter(|at| self.is_recent(**at)).count().max(1)
    }

    /// Publishes an event within this host at once, without the database.
    pub fn publish(&self, event: Event) {
        // Without subscribers, no one caches anything, so the event can be dropped.
        let _listeners = self.sender.send(event);
    }

    /// Whether events from other hosts would arrive now. Caches must not be used otherwise.
    pub fn is_receiving(&self) -> bool {
        let received_at = *self.received_at.lock().unwrap_or_else(PoisonError::into_inner);
        received_at.is_some_and(|at| self.is_recent(at))
    }

    /// Receives events until `shutdown`.
    pub async fn listen(&self, pool: &PgPool, host: Uuid, shutdown: CancellationToken) {
        while let Some(ended) = shutdown.run_until_cancelled(self.listen_once(pool, host)).await {
            if let Err(error) = ended {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "lost the database connection that receives events; reconnecting"
                );
            }
            self.set_received_at(None);
            self.publish(Event::Missed);
            let pause = tokio::time::sleep(RECONNECT_DELAY);
            if shutdown.run_until_cancelled(pause).await.is_none() {
                return;
            }
        }
    }

    async fn listen_once(&self, pool: &PgPool, host: Uuid) -> sqlx::Result<()> {
        let mut listener = PgListener::connect_with(pool).await?;
        listener.listen(CHANNEL).await?;
        self.set_received_at(Some(self.clock.instant()));
        self.publish(Event::Missed);
        let ping = format!("ping:{host}");
        let mut pings = tokio::time::interval(PING_INTERVAL);
        loop {
            tokio::select! {
                _ = pings.tick() => {
                    sqlx::query!("SELECT pg_notify('syncline', $1)", ping).fetch_one(pool).await?;
                    if !self.is_receiving() {
                        return Err(sqlx::Error::PoolTimedOut);
                    }
                }
                received = listener.try_recv() => {
                    let Some(notification) = received? else { return Ok(()) };
                    self.set_received_at(Some(self.clock.instant()));
                    let payload = notification.payload();
                    if let Some(event) = parse(payload) {
                        self.publish(event);
                    } else if let Some((sent_by, connections)) = parse_records(payload)
                        && sent_by != host
                    {
                        // Without subscribers, the event can be dropped.
                        let _listeners = self.records.send(connections);
                    } else if let Some((sent_by, spent)) = parse_requests(payload)
                        && sent_by != host
                    {
                        let _listeners = self.requests.send((sent_by, spent));
                    } else if let Some(pinging_host) = payload.strip_prefix("ping:").and_then(|id| id.parse().ok())
                        && self.record_ping(pinging_host)
                    {
                        // A new host must learn about this one too, so ping at once.
                        pings.reset_immediately();
                    }
                }
            }
        }
    }

    /// Stores the time of a host's ping. Returns `true` if the host was not known.
    fn record_ping(&self, host: Uuid) -> bool {
        let mut hosts = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
        hosts.retain(|_, at| self.is_recent(*at));
        hosts.insert(host, self.clock.instant()).is_none()
    }

    fn is_recent(&self, at: Instant) -> bool {
        self.clock.instant().duration_since(at) < SILENT_AFTER
    }

    fn set_received_at(&self, at: Option<Instant>) {
        *self.received_at.lock().unwrap_or_else(PoisonError::into_inner) = at;
    }
}

impl Subscription {
    /// Returns the next event, or `Missed` if events were dropped because the subscriber was too slow. Returns `None`
    /// when the host shuts down.
    pub async fn next(&mut self) -> Option<Event> {
        match self.0.recv().await {
            Ok(event) => Some(event),
            Err(RecvError::Lagged(_)) => Some(Event::Missed),
            Err(RecvError::Closed) => None,
        }
    }

    /// Waits until this event was received, or may have been missed.
    pub async fn wait_for(&mut self, wanted: Event) {
        loop {
            match self.next().await {
                Some(event) if event == wanted || event == Event::Missed => return,
                Some(_) => {}
                // The host is shutting down, and so is the caller.
                None => std::future::pending().await,
            }
        }
    }

    /// Waits like [`wait_for`](Self::wait_for), for `patience` at most.
    pub async fn wait_within(&mut self, patience: Duration, wanted: Event) {
        // The caller polls in either case.
        let _received = tokio::time::timeout(patience, self.wait_for(wanted)).await;
    }
}

/// Notifies other hosts that records of these connections have changed.
///
/// Call it outside the transaction that changes them: Postgres serializes the commits of transactions that notify.
pub async fn publish_records(
    conn: &mut PgConnection,
    host: Uuid,
    connections: &[ConnectionPk],
) -> sqlx::Result<()> {
    let to_list =
        |part: &[ConnectionPk]| part.iter().map(|pk| pk.0.to_string()).collect::<Vec<_>>().join(",");
    let payloads =
        connections.chunks(CONNECTIONS_PER_EVENT).map(|part| format!("records:{host}:{}", to_list(part)));
    notify_others(conn, payloads.collect()).await
}

/// Notifies other hosts of the requests that were sent to providers.
pub async fn publish_requests(
    conn: &mut PgConnection,
    host: Uuid,
    spent: &[SentRequests],
) -> sqlx::Result<()> {
    let to_list =
        |part: &[SentRequests]| part.iter().map(|spent| spent.to_text()).collect::<Vec<_>>().join(",");
    let payloads = spent.chunks(ENTRIES_PER_EVENT).map(|part| format!("spent:{host}:{}", to_list(part)));
    notify_others(conn, payloads.collect()).await
}

async fn notify_others(conn: &mut PgConnection, payloads: Vec<String>) -> sqlx::Result<()> {
    sqlx::query!("SELECT pg_notify('syncline', payload) FROM unnest($1::text[]) AS payload", &payloads)
        .fetch_all(conn)
        .await?;
    Ok(())
}

fn parse_records(payload: &str) -> Option<(Uuid, Arc<[ConnectionPk]>)> {
    let (host, list) = payload.strip_prefix("records:")?.split_once(':')?;
    let connections: Result<_, _> = list.split(',').map(|pk| pk.parse().map(ConnectionPk)).collect();
    Some((host.parse().ok()?, connections.ok()?))
}

fn parse_requests(payload: &str) -> Option<SentByHost> {
    let (host, spent) = payload.strip_prefix("spent:")?.split_once(':')?;
    let spent: Option<_> = spent.split(',').map(SentRequests::parse).collect();
    Some((host.parse().ok()?, spent?))
}

fn parse(payload: &str) -> Option<Event> {
    match payload {
        "due" => Some(Event::Due),
        "jobs" => Some(Event::Jobs),
        "cancel" => Some(Event::Cancel),
        "keys" => Some(Event::Keys),
        "webhooks" => Some(Event::Webhooks),
        "received" => Some(Event::Received),
        "deployments" => Some(Event::Deployments),
        "environments" => Some(Event::Environments),
        "integrations" => Some(Event::Integrations),
        "deletions" => Some(Event::Deletions),
        _ => match payload.split_once(':')? {
            ("connection", pk) => Some(Event::Connection(ConnectionPk(pk.parse().ok()?))),
            ("hold", back_off) => Some(Event::Backoff(Backoff::parse(back_off)?)),
            ("outcome", listener) => Some(Event::Outcome(listener.parse().ok()?)),
            _ => None,
        },
    }
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;

    use super::*;
    use crate::rate_limits::RateLimitScope;
    use syncline_types::ids::IntegrationPk;

    #[test]
    fn sent_requests_survive_the_notification_format() {
        let of = |connection: Option<i64>| RateLimitScope {
            integration: IntegrationPk(i64::MAX),
            connection: connection.map(ConnectionPk),
        };
        let spent = [None, Some(i64::MAX)].map(|pk| SentRequests {
            limited: of(pk),
            per_seconds: u32::MAX,
            requests: u32::MAX,
        });
        let longest = spent[1].to_text();
        assert!((longest.len() + 1) * ENTRIES_PER_EVENT < 7_900, "it exceeds the size of a notification");
        let host = Uuid::from_u128(7);
        let payload = format!("spent:{host}:{},{longest}", spent[0].to_text());
        assert_eq!(parse_requests(&payload), Some((host, Arc::from(spent))));
        for broken in
            ["spent:", "spent:x:1.2.3.4", &format!("spent:{host}:1.2.0.4"), &format!("spent:{host}:1.2.3")]
        {
            assert_eq!(parse_requests(broken), None, "{broken}");
        }
    }

    #[test]
    fn a_host_without_heartbeats_is_no_longer_alive() {
        let time = Clock::manual(DateTime::UNIX_EPOCH);
        let events = Events::new(time.clock());
        let [own, other] = [1, 2].map(Uuid::from_u128);
        assert!(events.record_ping(own) && events.record_ping(other));
        assert!(!events.record_ping(other));
        assert_eq!(events.live_hosts(), 2);
        time.advance(SILENT_AFTER / 2);
        events.record_ping(own);
        time.advance(SILENT_AFTER / 2);
        assert_eq!(events.live_hosts(), 1);
        assert!(events.record_ping(other), "a silent host counts as new");
    }

    #[test]
    fn caches_are_used_only_while_events_arrive() {
        let time = Clock::manual(DateTime::UNIX_EPOCH);
        let events = Events::new(time.clock());
        assert!(!events.is_receiving());
        events.set_received_at(Some(time.clock().instant()));
        assert!(events.is_receiving());
        time.advance(SILENT_AFTER);
        assert!(!events.is_receiving());
    }
}
