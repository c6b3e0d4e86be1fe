//! Hosts and their database crash, freeze, leave and join at random moments. Meanwhile syncs run, readers follow them,
//! and clients trigger, reset, pause and start syncs and create and delete variants. After each round, everything has
//! to be as if nothing had happened.
//!
//! `make test` runs rounds for about 100 seconds. `make soak` runs them for as long as requested and prints what it
//! did. `SEED` repeats the same rounds; the moments within a round are only as exact as the machine's clock.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chrono::{DateTime, Utc};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use sqlx::ConnectOptions;
use syncline::private_postgres::PrivatePostgres;
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use crate::support::{
    Api, Bundle, Connection, Host, HostOptions, METADATA_KEY, Page, Receiver, TestDatabase, assert_settled,
    cursor_of, query, text,
};

/// How long everything may take to settle after a round.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(60);
/// How long new rounds are started by default.
const DEFAULT_DURATION: Duration = Duration::from_secs(100);
/// Steps that a round adds to the sync that resumes from its checkpoint.
const STEPS_A_ROUND: u64 = 40;
/// Names of the connections. On the wild one, the cache is emptied and variants are created and deleted, which readers
/// would notice.
const FULL: &str = "full";
const STEPS: &str = "steps";
const WILD: &str = "wild";
const VARIANT: &str = "second";

/// A disturbance in the middle of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Disturbance {
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
    Triggered,
    Reset,
    CacheEmptied,
    Paused,
    Started,
    VariantCreated,
    VariantDeleted,
}

impl Disturbance {
    const ALL: [Self; 13] = [
        Self::HostKilled,
        Self::DatabaseKilled,
        Self::BothKilled,
        Self::HostFrozen,
        Self::HostStopped,
        Self::HostJoins,
        Self::Triggered,
        Self::Reset,
        Self::CacheEmptied,
        Self::Paused,
        Self::Started,
        Self::VariantCreated,
        Self::VariantDeleted,
    ];
}

#[tokio::test]
async fn one_host_and_its_database_recover_from_random_faults() {
    Chaos::run(1, 1).await;
}

#[tokio::test]
async fn a_changing_set_of_hosts_recovers_from_random_faults() {
    Chaos::run(2, 4).await;
}

/// A numeric environment variable that the caller of the tests can set.
fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok().filter(|text| !text.is_empty())?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is `{text}`; it must be a number")))
}

/// A durable Postgres: the private one that hosts bring along.
struct Server {
    folder: TempDir,
    postgres: Option<PrivatePostgres>,
}

impl Server {
    async fn start() -> Self {
        use std::os::unix::fs::PermissionsExt;
        let folder = TempDir::new().expect("a temporary folder can be made");
        // Postgres cannot run as root. If the tests do, it runs as another user, who needs access to this folder.
        let passable = std::fs::Permissions::from_mode(0o711);
        std::fs::set_permissions(folder.path(), passable).expect("the folder is writable");
        let mut server = Self { folder, postgres: None };
        server.start_again().await;
        server
    }

    async fn start_again(&mut self) {
        let data_dir = self.folder.path().join("data");
        self.postgres = Some(PrivatePostgres::start(&data_dir).await.expect("Postgres starts"));
    }

    fn url(&self) -> String {
        self.postgres.as_ref().expect("Postgres is running").connect_options().to_url_lossy().to_string()
    }

    /// Kills the process without a graceful stop.
    async fn kill(&mut self) {
        let pid_file = self.folder.path().join("data/postgres/postmaster.pid");
        let pid = std::fs::read_to_string(pid_file).expect("Postgres is running");
        let pid = pid.lines().next().and_then(|line| line.parse().ok()).and_then(Pid::from_raw);
        kill_process(pid.expect("the first line is a process id"), Signal::KILL)
            .expect("Postgres is running");
        let mut postgres = self.postgres.take().expect("Postgres is running");
        postgres.ended().await;
    }
}

/// The hosts that can currently receive requests.
#[derive(Clone, Default)]
struct LiveHosts(Arc<Mutex<Vec<Api>>>);

impl LiveHosts {
    fn set(&self, hosts: &[Host]) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) =
            hosts.iter().map(|host| Api::clone(host)).collect();
    }

    fn any(&self) -> Option<Api> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).choose(&mut rand::rng()).cloned()
    }
}

/// What a reader that follows cursors has seen of a stream.
#[derive(Debug, Default)]
struct Progress {
    cursor: Option<String>,
    position: i64,
    /// The last state of each record: its content without metadata, or `None` if it was deleted.
    records: BTreeMap<String, Option<Value>>,
    /// How often each content was read.
    contents: BTreeMap<String, u32>,
}

impl Progress {
    fn read(&mut self, page: &Page) {
        for record in &page.records {
            let cursor = cursor_of(record);
            let position = position_of(cursor);
            assert!(position > self.position, "positions grow: {position} after {}", self.position);
            self.position = position;
            self.cursor = Some(cursor.to_owned());
            let mut content = record.clone();
            let metadata = content.as_object_mut().and_then(|members| members.remove(METADATA_KEY));
            let is_deleted = metadata.expect("the record has metadata")["deleted_at"].is_string();
            let id = text(&record["id"]).to_owned();
            if !is_deleted {
                *self.contents.entry(content.to_string()).or_default() += 1;
            }
            self.records.insert(id, (!is_deleted).then_some(content));
        }
    }

    fn live(&self) -> BTreeMap<&str, &Value> {
        self.records.iter().filter_map(|(id, content)| Some((id.as_str(), content.as_ref()?))).collect()
    }
}

/// The position in a cursor. Cursors are opaque to clients; this test checks that positions grow.
fn position_of(cursor: &str) -> i64 {
    let bytes = URL_SAFE_NO_PAD.decode(cursor).expect("a cursor is base64");
    i64::from_be_bytes(bytes[13..21].try_into().expect("eight bytes"))
}

type Follower = Arc<Mutex<Progress>>;

/// Follows a stream through any live host until it is stopped.
async fn follow(
    live_hosts: LiveHosts,
    connection: Connection,
    model: &'static str,
    progress: Follower,
    stop: CancellationToken,
) {
    while !stop.is_cancelled() {
        let Some(api) = live_hosts.any() else {
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        let cursor = progress.lock().unwrap_or_else(PoisonError::into_inner).cursor.clone();
        let mut parameters = vec![("model", model), ("limit", "10")];
        parameters.extend(cursor.as_deref().map(|cursor| ("cursor", cursor)));
        let request =
            connection.through(&api).request("GET", &format!("/records?{}", query(&parameters))).try_send();
        // A frozen host responds much later, or never.
        if let Ok(Ok(answer)) = tokio::time::timeout(Duration::from_secs(2), request).await
            && answer.status == 200
        {
            let page = Page::read(&answer);
            let is_end = page.next_cursor.is_none();
            progress.lock().unwrap_or_else(PoisonError::into_inner).read(&page);
            if !is_end {
                continue;
            }
        }
        tokio::time::sleep(Duration::from_millis(15)).await;
    }
}

/// The state of the provider, and the changes that must have been reported so far.
#[derive(Default)]
struct Provider {
    numbers: BTreeSet<u64>,
    salt: u64,
    steps: u64,
    /// Added, updated and deleted records of the full sync.
    reported: [u64; 3],
}

impl Provider {
    /// Changes the provider's data, and returns the metadata for the full sync.
    fn change(&mut self, random: &mut StdRng) -> Value {
        let (first, count) = (random.random_range(0..20), random.random_range(40..80));
        let numbers: BTreeSet<u64> = (first..first + count).collect();
        self.reported[0] += numbers.difference(&self.numbers).count() as u64;
        self.reported[1] += numbers.intersection(&self.numbers).count() as u64;
        self.reported[2] += self.numbers.difference(&numbers).count() as u64;
        self.numbers = numbers;
        self.salt += 1;
        self.steps += STEPS_A_ROUND;
        json!({ "first": first, "count": count, "batch": 4, "size_bytes": 200, "salt": self.salt.to_string() })
    }
}

/// Fields are dropped in order: the hosts before their database.
struct Chaos {
    hosts: Vec<Host>,
    db: TestDatabase,
    server: Server,
    receiver: Receiver,
    random: StdRng,
    live_hosts: LiveHosts,
    least_hosts: usize,
    most_hosts: usize,
    provider: Provider,
    full: Connection,
    steps: Connection,
    wild: Connection,
    /// A time before the last accepted request to empty the cache.
    emptied_since: Option<DateTime<Utc>>,
    /// No host has confirmed whether the variant was deleted.
    is_variant_in_doubt: bool,
    followers: [Follower; 2],
    disturbances: BTreeMap<Disturbance, u32>,
}

impl Chaos {
    /// Runs rounds with the given number of hosts until the time is up.
    async fn run(least_hosts: usize, most_hosts: usize) {
        let seed = setting("SEED").unwrap_or_else(|| rand::rng().random_range(0..1_000_000));
        let rounds = setting("ROUNDS");
        let time = setting("MINUTES").map(|minutes| Duration::from_secs(minutes * 60));
        let time = time.or(rounds.is_none().then_some(DEFAULT_DURATION));
        let rounds = rounds.unwrap_or(u64::MAX);
        println!("SEED={seed}, {least_hosts} to {most_hosts} hosts");
        let mut chaos = Self::begin(seed, least_hosts, most_hosts).await;
        let stop = CancellationToken::new();
        let [full, steps] = chaos.followers.clone();
        let (live_hosts, connection) = (chaos.live_hosts.clone(), chaos.full.through(&chaos.hosts[0]));
        let full = tokio::spawn(follow(live_hosts, connection, "Number", full, stop.clone()));
        let (live_hosts, connection) = (chaos.live_hosts.clone(), chaos.steps.through(&chaos.hosts[0]));
        let steps = tokio::spawn(follow(live_hosts, connection, "Step", steps, stop.clone()));

        let began = Instant::now();
        let mut done = 0;
        let mut footprints = Vec::new();
        while done < rounds && time.is_none_or(|time| began.elapsed() < time) {
            chaos.round().await;
            done += 1;
            assert!(!full.is_finished() && !steps.is_finished(), "a reader found something wrong");
            footprints.push(Footprint::of(&chaos.hosts[0]));
            println!(
                "round {done}: {} s, {:?}, {}",
                began.elapsed().as_secs(),
                chaos.disturbances,
                footprints[footprints.len() - 1]
            );
        }
        stop.cancel();
        full.await.expect("the reader found nothing wrong");
        steps.await.expect("the reader found nothing wrong");
        println!("SEED={seed}: {done} rounds in {} s, {:?}", began.elapsed().as_secs(), chaos.disturbances);
        assert_flat(&footprints);
    }

    async fn begin(seed: u64, least_hosts: usize, most_hosts: usize) -> Self {
        let server = Server::start().await;
        let db = TestDatabase::create_on(&server.url()).await;
        let receiver = Receiver::start().await;
        let mut hosts = vec![options(&db, &receiver).spawn().await];
        hosts[0].deploy(&Bundle::example("minimal").tracking_deletes("numbers")).await;
        hosts[0].deploy(&Bundle::guest("hostile")).await;
        let url = receiver.url("/hooks");
        db.execute(&format!("UPDATE environments SET webhook_url = '{url}', on_auth_creation = false")).await;
        let nothing = json!({ "count": 0, "steps": 0 });
        let full = hosts[0].connect_as(FULL, "minimal", nothing.clone()).await;
        let steps = hosts[0].connect_as(STEPS, "hostile", nothing.clone()).await;
        let wild = hosts[0].connect_as(WILD, "minimal", nothing).await;
        wild.wait_until_idle().await;
        full.wait_until_idle().await;
        steps.wait_until_idle().await;
        while hosts.len() < least_hosts {
            hosts.push(options(&db, &receiver).spawn().await);
        }
        let live_hosts = LiveHosts::default();
        live_hosts.set(&hosts);
        Self {
            random: StdRng::seed_from_u64(seed),
            server,
            db,
            receiver,
            hosts,
            live_hosts,
            least_hosts,
            most_hosts,
            provider: Provider::default(),
            full,
            steps,
            wild,
            emptied_since: None,
            is_variant_in_doubt: false,
            followers: Default::default(),
            disturbances: BTreeMap::new(),
        }
    }

    async fn round(&mut self) {
        let orders = self.provider.change(&mut self.random);
        let host = &self.hosts[0];
        self.full.through(host).set_metadata(orders.clone()).await;
        self.wild.through(host).set_metadata(orders).await;
        let orders = json!({ "steps": self.provider.steps, "pause_ms": 20 });
        self.steps.through(host).set_metadata(orders).await;
        self.db
            .execute(
                "UPDATE schedules SET due_at = now(), due_reason = 'trigger'
                 WHERE run_id IS NULL AND sync_name IN ('numbers', 'steps');
                 NOTIFY syncline, 'due'",
            )
            .await;
        for _ in 0..self.random.random_range(6..=18) {
            tokio::time::sleep(Duration::from_millis(self.random.random_range(0..120))).await;
            let disturbance = *Disturbance::ALL.choose(&mut self.random).expect("there are some");
            self.disturb(disturbance).await;
            *self.disturbances.entry(disturbance).or_default() += 1;
        }
        while self.hosts.len() < self.least_hosts {
            self.add_host().await;
        }
        self.finish_pending().await;
        self.settle().await;
        self.check().await;
    }

    async fn disturb(&mut self, disturbance: Disturbance) {
        // The first host is spared when possible, so that leaks show over time.
        let spared_hosts = usize::from(self.least_hosts > 1);
        let victim = self.random.random_range(spared_hosts..self.hosts.len().max(spared_hosts + 1));
        match disturbance {
            Disturbance::HostKilled | Disturbance::HostStopped if victim >= self.hosts.len() => {}
            Disturbance::HostKilled => {
                self.hosts.remove(victim).kill();
            }
            Disturbance::DatabaseKilled => {
                self.server.kill().await;
                self.server.start_again().await;
            }
            Disturbance::BothKilled => {
                self.server.kill().await;
                if victim < self.hosts.len() {
                    self.hosts.remove(victim).kill();
                }
                self.server.start_again().await;
            }
            Disturbance::HostFrozen => {
                let host = &self.hosts[victim.min(self.hosts.len() - 1)];
                host.freeze();
                tokio::time::sleep(Duration::from_millis(self.random.random_range(1_100..1_600))).await;
                host.thaw();
            }
            Disturbance::HostStopped => {
                self.hosts.remove(victim).stop().await;
            }
            Disturbance::HostJoins if self.hosts.len() < self.most_hosts => self.add_host().await,
            Disturbance::HostJoins => {}
            Disturbance::Triggered => self.command_random("trigger").await,
            Disturbance::Paused => self.command_random("pause").await,
            Disturbance::Started => self.command_random("start").await,
            Disturbance::Reset => {
                // Not on the steps: a reader would see steps that are saved twice.
                let connection = [&self.full, &self.wild][self.random.random_range(0..2)];
                self.reset(connection, json!({ "reset": true })).await;
            }
            Disturbance::CacheEmptied => {
                let since = Utc::now();
                let opts = json!({ "reset": true, "emptyCache": true });
                if self.reset(&self.wild, opts).await {
                    self.emptied_since = Some(since);
                }
            }
            Disturbance::VariantCreated => _ = self.request_variant("POST").await,
            Disturbance::VariantDeleted => {
                let status = self.request_variant("DELETE").await;
                self.is_variant_in_doubt |= !matches!(status, Some(200 | 404));
            }
        }
        if self.hosts.is_empty() {
            self.add_host().await;
        }
        self.live_hosts.set(&self.hosts);
    }

    /// Sends a command for all syncs of a random connection.
    async fn command_random(&mut self, command: &str) {
        let connection = [&self.full, &self.steps, &self.wild][self.random.random_range(0..3)];
        self.command(connection, command).await;
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
    async fn finish_pending(&mut self) {
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

    async fn add_host(&mut self) {
        self.hosts.push(options(&self.db, &self.receiver).spawn().await);
        self.live_hosts.set(&self.hosts);
    }

    /// Waits until both syncs have succeeded with the latest metadata. Skips the waiting time of retries.
    async fn settle(&self) {
        let began = Instant::now();
        loop {
            let open =
                "SELECT count(*) FROM schedules WHERE run_id IS NOT NULL OR unreported_since IS NOT NULL
                            OR due_at <= now() + interval '1 minute'";
            if self.db.number(open).await == 0 {
                return;
            }
            self.db
                .execute(
                    "UPDATE schedules SET due_at = now()
                     WHERE run_id IS NULL AND (due_reason = 'retry' OR unreported_since IS NOT NULL) AND due_at > now();
                     NOTIFY syncline, 'due'",
                )
                .await;
            assert!(began.elapsed() < SETTLE_TIMEOUT, "a sync is stuck: {}", self.describe().await);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn describe(&self) -> String {
        let schedules = "SELECT sync_name || ' run ' || coalesce(run_id::text, '-') || ' due ' || coalesce(due_at::text, '-')
                             || ' failures ' || failures FROM schedules";
        let runs = "SELECT function_name || ' ' || state || ' ' || coalesce(error_message, '') FROM runs
                    ORDER BY started_at DESC LIMIT 10";
        format!("{:#?}\n{:#?}", self.db.texts(schedules).await, self.db.texts(runs).await)
    }

    /// Checks that everything is as if nothing had happened.
    async fn check(&self) {
        assert_settled(&self.db).await;
        let (full, steps) = (self.full.through(&self.hosts[0]), self.steps.through(&self.hosts[0]));
        let salt = self.provider.salt.to_string();
        let stored = full.all(&[("model", "Number"), ("limit", "500"), ("filter", "added,updated")]).await;
        let numbers: BTreeSet<u64> =
            stored.iter().map(|record| record["value"].as_u64().expect("the record has a value")).collect();
        assert_eq!((stored.len(), &numbers), (self.provider.numbers.len(), &self.provider.numbers));
        assert!(stored.iter().all(|record| record["salt"] == *salt), "all records have their last content");
        let counted = full.status("numbers").await["recordCount"].clone();
        assert_eq!(counted, json!({ "Number": self.provider.numbers.len() }));

        let made = steps.all(&[("model", "Step"), ("limit", "500")]).await;
        let ids: Vec<&str> = made.iter().map(|record| text(&record["id"])).collect();
        let expected: Vec<String> = (0..self.provider.steps).map(|step| format!("step-{step}")).collect();
        assert_eq!(ids, expected, "each step exists once, in order");
        assert!(
            made.iter().all(|step| step[METADATA_KEY]["last_action"] == "ADDED"),
            "no record was saved twice"
        );

        self.check_wild().await;
        for (follower, stored) in self.followers.iter().zip([&stored, &made]) {
            self.wait_for_reader(follower, stored).await;
        }
        self.check_webhooks().await;
    }

    /// Checks the connection whose cache was emptied and whose variants came and went: it has the provider's records.
    async fn check_wild(&self) {
        let wild = self.wild.through(&self.hosts[0]);
        let made = format!("SELECT count(*) FROM schedules WHERE variant = '{VARIANT}'");
        let variants = [("base", true), (VARIANT, self.db.number(&made).await == 1)];
        for (variant, exists) in variants {
            let parameters =
                [("model", "Number"), ("variant", variant), ("limit", "500"), ("filter", "added,updated")];
            let stored = wild.all(&parameters).await;
            let numbers: BTreeSet<u64> = stored
                .iter()
                .map(|record| record["value"].as_u64().expect("the record has a value"))
                .collect();
            let expected = if exists { self.provider.numbers.clone() } else { BTreeSet::new() };
            assert_eq!((stored.len(), &numbers), (expected.len(), &expected), "variant {variant}");
            let salt = self.provider.salt.to_string();
            assert!(
                stored.iter().all(|record| record["salt"] == *salt),
                "all records have their last content"
            );
            if let Some(since) = self.emptied_since.filter(|_| variant == "base") {
                let first_seen = |record: &Value| -> DateTime<Utc> {
                    text(&record[METADATA_KEY]["first_seen_at"]).parse().expect("a time")
                };
                let all_are_new = stored.iter().all(|record| first_seen(record) >= since);
                assert!(
                    all_are_new,
                    "the cache was not emptied since {since}, although a host accepted the request"
                );
            }
        }
    }

    /// Checks that the reader ends with exactly the stored records, and has read no content twice.
    async fn wait_for_reader(&self, follower: &Follower, stored: &[Value]) {
        let last = stored.iter().map(|record| position_of(cursor_of(record))).max().unwrap_or_default();
        let began = Instant::now();
        while follower.lock().unwrap_or_else(PoisonError::into_inner).position < last {
            assert!(began.elapsed() < SETTLE_TIMEOUT, "the reader makes no progress");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let progress = follower.lock().unwrap_or_else(PoisonError::into_inner);
        let stored: BTreeMap<&str, Value> = stored
            .iter()
            .map(|record| {
                let mut content = record.clone();
                content.as_object_mut().expect("it is an object").remove(METADATA_KEY);
                (text(&record["id"]), content)
            })
            .collect();
        let stored: BTreeMap<&str, &Value> = stored.iter().map(|(id, content)| (*id, content)).collect();
        assert_eq!(progress.live(), stored, "the reader has missed nothing");
        let twice: Vec<_> = progress.contents.iter().filter(|(_, times)| **times > 1).collect();
        assert!(twice.is_empty(), "the reader received twice: {twice:?}");
    }

    /// Checks that each success was reported under one id, and that the reports add up to every change once.
    async fn check_webhooks(&self) {
        let reported = "SELECT count(*) FROM outbound_webhook_deliveries WHERE body::json ->> 'type' = 'sync'
                        AND body::json ->> 'success' = 'true' AND body::json ->> 'syncName' <> 'commit-raw'";
        let successes = "SELECT count(*) FROM runs WHERE kind = 'sync' AND state = 'success' AND function_name <> 'commit-raw'";
        assert_eq!(self.db.number(reported).await, self.db.number(successes).await);
        let sums = |connection: &str| {
            let sum = |name: &str| {
                format!("coalesce(sum((body::json -> 'responseResults' ->> '{name}')::bigint), 0)")
            };
            let all = ["added", "updated", "deleted"].map(sum).join(" || ' ' || ");
            format!(
                "SELECT {all} FROM outbound_webhook_deliveries
                 WHERE body::json ->> 'success' = 'true' AND body::json ->> 'connectionId' = '{connection}'
                     AND body::json ->> 'syncName' <> 'commit-raw'"
            )
        };
        let [added, updated, deleted] = self.provider.reported;
        assert_eq!(self.db.texts(&sums(FULL)).await, [format!("{added} {updated} {deleted}")]);
        assert_eq!(self.db.texts(&sums(STEPS)).await, [format!("{} 0 0", self.provider.steps)]);
    }
}

fn identifiers(connection: &Connection) -> Value {
    json!({ "provider_config_key": connection.integration, "connection_id": connection.id })
}

fn options(db: &TestDatabase, receiver: &Receiver) -> HostOptions {
    HostOptions::new()
        .database(db)
        .variable("SYNCLINE_LEASE_SECONDS", "1")
        .variable("SYNCLINE_DATABASE_CONNECTIONS", "12")
        .variable("SYNCLINE_GRACE_SECONDS", "5")
        .variable("SYNCLINE_EGRESS_ALLOW", &receiver.address())
        .variable("SYNCLINE_WEBHOOK_RETRIES", "200ms,1s,1s,1s,1s")
        // Syncs are interrupted far more often here than stall detection allows by default.
        .variable("SYNCLINE_MAX_IDLE_ATTEMPTS", "1000000")
}

/// The resources that a host uses.
struct Footprint {
    process: u32,
    memory_mb: u64,
    files: usize,
}

impl Footprint {
    fn of(host: &Host) -> Self {
        let folder = format!("/proc/{}", host.process());
        let files = std::fs::read_dir(Path::new(&folder).join("fd")).map(Iterator::count).unwrap_or_default();
        Self { process: host.process(), memory_mb: host.memory_mb(), files }
    }
}

impl fmt::Display for Footprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "host {}: {} MB, {} files", self.process, self.memory_mb, self.files)
    }
}

/// Checks that a host that lived through many rounds uses no more resources at the end than after warming up.
fn assert_flat(footprints: &[Footprint]) {
    const WARM: usize = 10;
    let Some(last) = footprints.last() else { return };
    let same: Vec<&Footprint> = footprints.iter().filter(|one| one.process == last.process).collect();
    if same.len() < 3 * WARM {
        return;
    }
    let warm = same[WARM];
    assert!(last.files <= warm.files + 20, "files: {} after warming up, {} now", warm.files, last.files);
    let most = warm.memory_mb * 3 / 2 + 30;
    assert!(last.memory_mb <= most, "memory: {} MB after warming up, {} now", warm.memory_mb, last.memory_mb);
}
