//! Hosts and their database crash, freeze, leave and join at random moments, and the network between them fails.
//! Meanwhile syncs run, readers follow them, and clients trigger, reset, pause and start syncs and create and delete
//! variants. A provider sends webhooks, and tokens of another provider expire. After each round, everything has to be
//! as if nothing had happened.
//!
//! `make test-full` runs rounds for about 85 seconds. `make soak` runs them for as long as requested and prints what it
//! did. `SEED` repeats the same rounds; the moments within a round are only as exact as the machine's clock.

mod accounts;
mod checks;
mod clock;
mod disk;
mod disturbances;
mod footprint;
mod inbound;
mod network;
mod provider;
mod readers;
mod server;
mod site;
mod tally;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use serde_json::json;
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use self::accounts::{Accounts, use_accounts};
use self::clock::WallClock;
use self::disturbances::Disturbance;
use self::footprint::{Footprint, assert_flat};
use self::inbound::Deliveries;
use self::provider::Provider;
use self::readers::{Follower, LiveHosts, follow};
use self::site::{Build, Member, Site, other_binary};
use self::tally::Tally;
use crate::support::{Bundle, Connection, eventually};

/// How long everything may take to settle after a round.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(60);
/// How long new rounds are started by default, counted from the start of the test. With the last round, the test takes
/// about 100 seconds.
const DEFAULT_DURATION: Duration = Duration::from_secs(85);
/// Names of the connections. On the wild one, the cache is emptied and variants are created and deleted, which readers
/// would notice.
const FULL: &str = "full";
const STEPS: &str = "steps";
const WILD: &str = "wild";
const VARIANT: &str = "second";
/// Hosts are numbered.
const FIRST_HOST: u32 = 1;

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
    next_host: u32,
    site: Site,
    random: StdRng,
    live_hosts: LiveHosts,
    least_hosts: usize,
    most_hosts: usize,
    provider: Provider,
    full: Connection,
    steps: Connection,
    wild: Connection,
    deliveries: Arc<Deliveries>,
    accounts: Accounts,
    /// A time before the last accepted request to empty the cache.
    emptied_since: Option<DateTime<Utc>>,
    /// No host has confirmed whether the variant was deleted.
    is_variant_in_doubt: bool,
    followers: [Follower; 3],
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
        // Half of the sequences have a separate records database.
        let has_records_database = seed % 2 == 1;
        let databases = 1 + u32::from(has_records_database);
        println!("SEED={seed}, {least_hosts} to {most_hosts} hosts, databases: {databases}");
        if WallClock::create().is_none() {
            println!("no clock jumps, because libfaketime is not installed: run `apt-get install faketime`");
        }
        match other_binary() {
            Some(path) => println!("the other build is {}", path.display()),
            None => println!("all hosts are of one build, because SYNCLINE_SOAK_OTHER_BINARY is not set"),
        }
        let began = Instant::now();
        let mut chaos = Self::begin(seed, has_records_database, least_hosts, most_hosts).await;
        let stop = CancellationToken::new();
        let clients = chaos.start_clients(&stop);

        let mut done = 0;
        let mut footprints = Vec::new();
        while done < rounds && time.is_none_or(|time| began.elapsed() < time) {
            let [disturbed, settled, checked] = chaos.round().await.map(|time| time.as_secs());
            done += 1;
            assert!(
                !clients.iter().any(JoinHandle::is_finished),
                "a client or a reader found something wrong"
            );
            footprints.push(Footprint::of(&chaos.hosts[0]));
            println!(
                "round {done}: {} s ({disturbed} + {settled} + {checked}), {chaos}, {}",
                began.elapsed().as_secs(),
                footprints[footprints.len() - 1]
            );
        }
        stop.cancel();
        for client in clients {
            client.await.expect("the client found nothing wrong");
        }
        chaos.check_every_account().await;
        chaos.check_every_delivery().await;
        println!("SEED={seed}: {done} rounds in {} s, {chaos}", began.elapsed().as_secs());
        assert_flat(&footprints);
    }

    /// Starts the clients that send requests all the time.
    fn start_clients(&self, stop: &CancellationToken) -> Vec<JoinHandle<()>> {
        let live_hosts = || self.live_hosts.clone();
        let [full, steps, notes] = &self.followers;
        let streams = [
            (&self.full, "Number", full),
            (&self.steps, "Step", steps),
            (&self.deliveries.connection, "Note", notes),
        ];
        let readers = streams.map(|(connection, model, follower)| {
            let connection = connection.through(&self.hosts[0]);
            tokio::spawn(follow(live_hosts(), connection, model, Arc::clone(follower), stop.clone()))
        });
        let deliveries = Arc::clone(&self.deliveries).send(live_hosts(), stop.clone());
        let uses = use_accounts(live_hosts(), Arc::clone(&self.accounts.uses), stop.clone());
        readers.into_iter().chain([tokio::spawn(deliveries), tokio::spawn(uses)]).collect()
    }

    async fn begin(seed: u64, has_records_database: bool, least_hosts: usize, most_hosts: usize) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let site = Site::prepare(has_records_database).await;
        let mut hosts = vec![site.spawn_host(FIRST_HOST, is_remote(&mut random), Build::Own).await];
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
        let deliveries = Deliveries::prepare(&hosts[0]).await;
        let accounts = Accounts::connect(&hosts[0], &site.tokens).await;
        deliveries.connection.wait_until_idle().await;
        wild.wait_until_idle().await;
        full.wait_until_idle().await;
        steps.wait_until_idle().await;
        while hosts.len() < least_hosts {
            let number = FIRST_HOST + hosts.len() as u32;
            hosts.push(site.spawn_host(number, is_remote(&mut random), Build::Own).await);
        }
        let live_hosts = LiveHosts::default();
        live_hosts.set(&hosts);
        Self {
            random,
            site,
            next_host: FIRST_HOST + hosts.len() as u32,
            hosts,
            live_hosts,
            least_hosts,
            most_hosts,
            provider: Provider::default(),
            full,
            steps,
            wild,
            deliveries,
            accounts,
            emptied_since: None,
            is_variant_in_doubt: false,
            followers: Default::default(),
            ongoing: JoinSet::new(),
            tally: Tally::default(),
        }
    }

    /// Returns how long the disturbances, the recovery and the checks took.
    async fn round(&mut self) -> [Duration; 3] {
        let began = Instant::now();
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
            for choices in [&Disturbance::OVERLAPPING[..], &Disturbance::ALL] {
                let disturbance = *choices.choose(&mut self.random).expect("there are some");
                self.tally.choose(disturbance);
                if self.disturb(disturbance).await {
                    self.tally.note(disturbance);
                }
            }
        }
        self.wait_for_ongoing().await;
        let (disturbed, began) = (began.elapsed(), Instant::now());
        while self.hosts.len() < self.least_hosts {
            self.add_host().await;
        }
        self.finish_pending().await;
        self.settle().await;
        let (settled, began) = (began.elapsed(), Instant::now());
        self.check().await;
        [disturbed, settled, began.elapsed()]
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

    /// Starts a host of any build.
    async fn add_host(&mut self) {
        let build = if self.random.random_bool(0.5) { Build::Own } else { Build::Own.opposite() };
        self.add_host_of(build).await;
    }

    async fn add_host_of(&mut self, build: Build) {
        let is_remote = is_remote(&mut self.random);
        self.hosts.push(self.site.spawn_host(self.next_host, is_remote, build).await);
        self.next_host += 1;
        self.live_hosts.set(&self.hosts);
    }
}

impl fmt::Display for Chaos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}; {} inbound webhooks, {} refreshes for {} uses, {} accounts disconnected by a killed host",
            self.tally,
            self.deliveries.acknowledged(),
            self.site.tokens.refreshes(),
            self.accounts.uses.load(Ordering::SeqCst),
            self.accounts.reconnected()
        )
    }
}

/// Decides whether a host is remote. Most are, because only their network can fail. The others notice at once when
/// Postgres refuses a connection.
fn is_remote(random: &mut StdRng) -> bool {
    random.random_bool(0.75)
}
