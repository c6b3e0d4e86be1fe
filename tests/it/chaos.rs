//! Hosts and their database crash, freeze, leave and join at random moments, and the network between them fails.
//! Meanwhile syncs run, readers follow them, and clients trigger, reset, pause and start syncs and create and delete
//! variants. After each round, everything has to be as if nothing had happened.
//!
//! `make test` runs rounds for about 100 seconds. `make soak` runs them for as long as requested and prints what it
//! did. `SEED` repeats the same rounds; the moments within a round are only as exact as the machine's clock.

mod checks;
mod disturbances;
mod footprint;
mod network;
mod provider;
mod readers;
mod server;
mod site;
mod tally;

use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use serde_json::json;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use self::disturbances::Disturbance;
use self::footprint::{Footprint, assert_flat};
use self::provider::Provider;
use self::readers::{Follower, LiveHosts, follow};
use self::site::{Member, Site};
use self::tally::Tally;
use crate::support::{Bundle, Connection, eventually};

/// How long everything may take to settle after a round.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(60);
/// How long new rounds are started by default, counted from the start of the test.
const DEFAULT_DURATION: Duration = Duration::from_secs(100);
/// Names of the connections. On the wild one, the cache is emptied and variants are created and deleted, which readers
/// would notice.
const FULL: &str = "full";
const STEPS: &str = "steps";
const WILD: &str = "wild";
const VARIANT: &str = "second";

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

/// Fields are dropped in order: the hosts before their database.
struct Chaos {
    hosts: Vec<Member>,
    site: Site,
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
    /// Disturbances that last longer than a moment. Each reports itself if it really happened.
    ongoing: JoinSet<Option<Disturbance>>,
    tally: Tally,
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
        let began = Instant::now();
        let mut chaos = Self::begin(seed, least_hosts, most_hosts).await;
        let stop = CancellationToken::new();
        let [full, steps] = chaos.followers.clone();
        let (live_hosts, connection) = (chaos.live_hosts.clone(), chaos.full.through(&chaos.hosts[0]));
        let full = tokio::spawn(follow(live_hosts, connection, "Number", full, stop.clone()));
        let (live_hosts, connection) = (chaos.live_hosts.clone(), chaos.steps.through(&chaos.hosts[0]));
        let steps = tokio::spawn(follow(live_hosts, connection, "Step", steps, stop.clone()));

        let mut done = 0;
        let mut footprints = Vec::new();
        while done < rounds && time.is_none_or(|time| began.elapsed() < time) {
            chaos.round().await;
            done += 1;
            assert!(!full.is_finished() && !steps.is_finished(), "a reader found something wrong");
            footprints.push(Footprint::of(&chaos.hosts[0]));
            println!(
                "round {done}: {} s, {}, {}",
                began.elapsed().as_secs(),
                chaos.tally,
                footprints[footprints.len() - 1]
            );
        }
        stop.cancel();
        full.await.expect("the reader found nothing wrong");
        steps.await.expect("the reader found nothing wrong");
        println!("SEED={seed}: {done} rounds in {} s, {}", began.elapsed().as_secs(), chaos.tally);
        assert_flat(&footprints);
    }

    async fn begin(seed: u64, least_hosts: usize, most_hosts: usize) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let site = Site::prepare().await;
        let mut hosts = vec![site.spawn_host(is_remote(&mut random)).await];
        hosts[0].deploy(&Bundle::example("minimal").tracking_deletes("numbers")).await;
        hosts[0].deploy(&Bundle::guest("hostile")).await;
        let url = site.receiver.url("/hooks");
        site.db
            .execute(&format!("UPDATE environments SET webhook_url = '{url}', on_auth_creation = false"))
            .await;
        let nothing = json!({ "count": 0, "steps": 0 });
        let full = hosts[0].connect_as(FULL, "minimal", nothing.clone()).await;
        let steps = hosts[0].connect_as(STEPS, "hostile", nothing.clone()).await;
        let wild = hosts[0].connect_as(WILD, "minimal", nothing).await;
        wild.wait_until_idle().await;
        full.wait_until_idle().await;
        steps.wait_until_idle().await;
        while hosts.len() < least_hosts {
            hosts.push(site.spawn_host(is_remote(&mut random)).await);
        }
        let live_hosts = LiveHosts::default();
        live_hosts.set(&hosts);
        Self {
            random,
            site,
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
            ongoing: JoinSet::new(),
            tally: Tally::default(),
        }
    }

    async fn round(&mut self) {
        let orders = self.provider.change(&mut self.random);
        let host = &self.hosts[0];
        self.full.through(host).set_metadata(orders.clone()).await;
        self.wild.through(host).set_metadata(orders).await;
        let orders = json!({ "steps": self.provider.steps, "pause_ms": 20 });
        self.steps.through(host).set_metadata(orders).await;
        self.site
            .db
            .execute(
                "UPDATE schedules SET due_at = now(), due_reason = 'trigger'
                 WHERE run_id IS NULL AND sync_name IN ('numbers', 'steps');
                 NOTIFY syncline, 'due'",
            )
            .await;
        for _ in 0..self.random.random_range(6..=18) {
            tokio::time::sleep(Duration::from_millis(self.random.random_range(0..120))).await;
            let disturbance = *Disturbance::ALL.choose(&mut self.random).expect("there are some");
            self.tally.choose(disturbance);
            if self.disturb(disturbance).await {
                self.tally.note(disturbance);
            }
        }
        self.wait_for_ongoing().await;
        while self.hosts.len() < self.least_hosts {
            self.add_host().await;
        }
        self.finish_pending().await;
        self.settle().await;
        self.check().await;
    }

    /// Waits until the disturbances that last longer have ended, and every host is ready again.
    async fn wait_for_ongoing(&mut self) {
        while let Some(ended) = self.ongoing.join_next().await {
            if let Some(disturbance) = ended.expect("a disturbance does not panic") {
                self.tally.note(disturbance);
            }
        }
        for host in &self.hosts {
            let ready = host.with_key(None);
            eventually("the host is ready again", async || {
                (ready.get("/ready").await.status == 200).then_some(())
            })
            .await;
        }
    }

    async fn add_host(&mut self) {
        let is_remote = is_remote(&mut self.random);
        self.hosts.push(self.site.spawn_host(is_remote).await);
        self.live_hosts.set(&self.hosts);
    }
}

/// Decides whether a host is remote. Most are, because only their network can fail. The others notice at once when
/// Postgres refuses a connection.
fn is_remote(random: &mut StdRng) -> bool {
    random.random_bool(0.75)
}
