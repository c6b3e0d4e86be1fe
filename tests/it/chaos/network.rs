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

/// The network between one host and its database.
pub struct Links {
    control: Relay,
}

impl Links {
    pub async fn start(db: &TestDatabase) -> Self {
        Self { control: Relay::start(&db.url()).await }
    }

    /// Makes a host use this network.
    pub fn connect(&self, options: HostOptions, db: &TestDatabase) -> HostOptions {
        options.database_url(self.control.url_of(&db.url()))
    }
}

impl Chaos {
    /// Begins a fault of the network of a random host. It ends by itself.
    pub fn disturb_network(&mut self, disturbance: Disturbance) {
        let member = self.random.random_range(0..self.hosts.len());
        let duration = Duration::from_millis(self.random.random_range(DURATION_MS));
        let latency = Duration::from_millis(self.random.random_range(LATENCY_MS));
        let [is_cut_to_server, is_cut_to_host] =
            *[[true, true], [true, false], [false, true]].choose(&mut self.random).expect("there are some");
        // A firewall that has forgotten a connection resets it. Otherwise, TCP sends everything again.
        let ends_with_reset = self.random.random_bool(0.5);
        let Some(links) = self.hosts[member].links.clone() else { return };
        self.ongoing.spawn(async move {
            let relay = &links.control;
            let before = relay.effects();
            match disturbance {
                Disturbance::NetworkPartitioned => {
                    relay.change(|network| {
                        network.is_cut_to_server |= is_cut_to_server;
                        network.is_cut_to_host |= is_cut_to_host;
                    });
                    tokio::time::sleep(duration).await;
                    if ends_with_reset {
                        relay.reset_connections();
                    }
                    relay.change(|network| {
                        *network = Network { latency: network.latency, ..Network::default() };
                    });
                }
                Disturbance::NetworkSlow => {
                    relay.change(|network| network.latency = latency);
                    tokio::time::sleep(duration).await;
                    relay.change(|network| network.latency = Duration::ZERO);
                }
                _ => {
                    relay.reset_connections();
                    tokio::time::sleep(RESET_TIME).await;
                }
            }
            happened(disturbance, before, relay.effects()).then_some(disturbance)
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
