//! Faults of the network between a host and Postgres.

use std::time::Duration;

use rand::Rng;
use rand::seq::IndexedRandom;

use super::Chaos;
use super::disturbances::Disturbance;
use crate::support::{Effects, HostOptions, Network, Relay, TestDatabase};

/// How long a fault lasts, in milliseconds. The lease of a host is one second.
const DURATION_MS: std::ops::Range<u64> = 100..2_500;
/// The latency of a slow network in each direction, in milliseconds.
const LATENCY_MS: std::ops::Range<u64> = 5..120;
/// How long connections take to notice that they were reset.
const RESET_TIME: Duration = Duration::from_millis(100);

/// The network between one host and its databases.
pub struct Links {
    control: Relay,
    records: Option<Relay>,
}

impl Links {
    pub async fn start(db: &TestDatabase) -> Self {
        let mut records = None;
        if let Some(url) = db.records_url() {
            records = Some(Relay::start(&url).await);
        }
        Self { control: Relay::start(&db.url()).await, records }
    }

    /// Makes a host use this network.
    pub fn connect(&self, options: HostOptions, db: &TestDatabase) -> HostOptions {
        let records = self.records.iter().zip(db.records_url()).map(|(relay, url)| relay.url_of(&url)).next();
        options.database_urls(self.control.url_of(&db.url()), records)
    }

    /// The links of the chosen databases. There may be only one.
    fn chosen(&self, has_control: bool, has_records: bool) -> Vec<&Relay> {
        let control = (has_control || self.records.is_none()).then_some(&self.control);
        control.into_iter().chain(self.records.as_ref().filter(|_| has_records)).collect()
    }
}

impl Chaos {
    /// Begins a fault of the network of a random host. It ends by itself.
    pub fn disturb_network(&mut self, disturbance: Disturbance) {
        let links: Vec<_> = self.hosts.iter().filter_map(|host| host.links.clone()).collect();
        let links = links.choose(&mut self.random).cloned();
        let duration = Duration::from_millis(self.random.random_range(DURATION_MS));
        let latency = Duration::from_millis(self.random.random_range(LATENCY_MS));
        let [is_cut_to_server, is_cut_to_host] =
            *[[true, true], [true, false], [false, true]].choose(&mut self.random).expect("there are some");
        let [has_control, has_records] =
            *[[true, true], [true, false], [false, true]].choose(&mut self.random).expect("there are some");
        // A firewall that has forgotten a connection resets it. Otherwise, TCP sends everything again.
        let ends_with_reset = self.random.random_bool(0.5);
        let Some(links) = links else { return };
        self.ongoing.spawn(async move {
            let relays = links.chosen(has_control, has_records);
            let before: Vec<Effects> = relays.iter().map(|relay| relay.effects()).collect();
            match disturbance {
                Disturbance::NetworkPartitioned => {
                    for relay in &relays {
                        relay.change(|network| {
                            network.is_cut_to_server |= is_cut_to_server;
                            network.is_cut_to_host |= is_cut_to_host;
                        });
                    }
                    tokio::time::sleep(duration).await;
                    for relay in &relays {
                        if ends_with_reset {
                            relay.reset_connections();
                        }
                        relay.change(|network| {
                            *network = Network { latency: network.latency, ..Network::default() };
                        });
                    }
                }
                Disturbance::NetworkSlow => {
                    for relay in &relays {
                        relay.change(|network| network.latency = latency);
                    }
                    tokio::time::sleep(duration).await;
                    for relay in &relays {
                        relay.change(|network| network.latency = Duration::ZERO);
                    }
                }
                _ => {
                    for relay in &relays {
                        relay.reset_connections();
                    }
                    tokio::time::sleep(RESET_TIME).await;
                }
            }
            let has_happened = relays
                .iter()
                .zip(before)
                .any(|(relay, before)| happened(disturbance, before, relay.effects()));
            has_happened.then_some(disturbance)
        });
    }
}

/// Whether a fault has had an effect: a host without traffic does not notice a short partition.
fn happened(disturbance: Disturbance, before: Effects, now: Effects) -> bool {
    match disturbance {
        Disturbance::NetworkPartitioned => now.held_back > before.held_back,
        Disturbance::NetworkSlow => now.delayed > before.delayed,
        _ => now.reset > before.reset,
    }
}
