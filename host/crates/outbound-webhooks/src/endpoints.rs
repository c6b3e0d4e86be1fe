//! Shares the host's permits among receivers, so that a slow or failing receiver delays no other.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use rand::Rng;
use rand::seq::SliceRandom;
use uuid::Uuid;

use super::retry::Outcome;
use syncline_store::outbound_webhooks::sending::DueEndpoint;
use syncline_telemetry::clock::Clock;
use syncline_types::ids::EnvironmentPk;

/// Maximum number of deliveries that one host sends concurrently.
const PERMITS: usize = 128;
/// Maximum number of these for the URLs of one environment.
const PERMITS_OF_ENVIRONMENT: usize = 64;
/// Maximum number of these for one URL.
const PERMITS_OF_ENDPOINT: usize = 8;
/// After this many consecutive failures, a receiver gets no deliveries for a pause, and then one at a time.
const MAX_FAILURES: u32 = 5;
const PAUSE: Duration = Duration::from_secs(60);
/// The state of a receiver is forgotten after this long without a delivery.
const FORGET_AFTER: Duration = Duration::from_secs(3600);

/// The state of the receivers to which this host sends.
pub(super) struct Endpoints {
    clock: Clock,
    known: HashMap<Uuid, Endpoint>,
    in_flight: usize,
}

struct Endpoint {
    environment: EnvironmentPk,
    in_flight: usize,
    /// The number of consecutive failed attempts.
    failures: u32,
    paused_until: Option<Instant>,
    used_at: Instant,
}

impl Endpoint {
    fn free_permits(&self, now: Instant) -> usize {
        let permits = match self.paused_until {
            Some(until) if until > now => 0,
            _ if self.failures >= MAX_FAILURES => 1,
            _ => PERMITS_OF_ENDPOINT,
        };
        permits.saturating_sub(self.in_flight)
    }
}

impl Endpoints {
    pub fn new(clock: Clock) -> Self {
        Self { clock, known: HashMap::new(), in_flight: 0 }
    }

    pub fn free(&self) -> usize {
        PERMITS.saturating_sub(self.in_flight)
    }

    /// Distributes the free permits: one to each environment in turn, and within it one to each receiver in turn.
    /// Returns how many deliveries may be claimed for each receiver.
    pub fn pick(&mut self, mut due: Vec<DueEndpoint>, rng: &mut impl Rng) -> Vec<(Uuid, usize)> {
        let now = self.clock.instant();
        self.known.retain(|_, endpoint| endpoint.in_flight > 0 || now - endpoint.used_at < FORGET_AFTER);
        // If there are not enough permits for all, the order is random.
        due.shuffle(rng);
        let mut queues = self.queues(&due, now);
        let mut picked: Vec<(Uuid, usize)> = Vec::new();
        let mut free = self.free();
        while free > 0 && !queues.is_empty() {
            queues.retain_mut(|queue| {
                let Some(endpoint) = queue.next().filter(|_| free > 0) else { return false };
                free -= 1;
                match picked.iter_mut().find(|(picked, _)| *picked == endpoint) {
                    Some((_, quota)) => *quota += 1,
                    None => picked.push((endpoint, 1)),
                }
                true
            });
        }
        picked
    }

    fn queues(&self, due: &[DueEndpoint], now: Instant) -> Vec<Queue> {
        let mut queues: Vec<Queue> = Vec::new();
        for DueEndpoint { endpoint, environment } in due {
            let free_permits =
                self.known.get(endpoint).map_or(PERMITS_OF_ENDPOINT, |known| known.free_permits(now));
            if free_permits == 0 {
                continue;
            }
            let position = queues.iter().position(|queue| queue.environment == *environment);
            let index = position.unwrap_or_else(|| {
                let of_environment = self.known.values().filter(|known| known.environment == *environment);
                let used: usize = of_environment.map(|known| known.in_flight).sum();
                let free_permits = PERMITS_OF_ENVIRONMENT.saturating_sub(used);
                queues.push(Queue {
                    environment: *environment,
                    free_permits,
                    endpoints: Vec::new(),
                    next_index: 0,
                });
                queues.len() - 1
            });
            queues[index].endpoints.push((*endpoint, free_permits));
        }
        queues
    }

    pub fn begin(&mut self, endpoint: Uuid, environment: EnvironmentPk) {
        let now = self.clock.instant();
        let known = self.known.entry(endpoint).or_insert(Endpoint {
            environment,
            in_flight: 0,
            failures: 0,
            paused_until: None,
            used_at: now,
        });
        known.in_flight += 1;
        known.used_at = now;
        self.in_flight += 1;
    }

    pub fn end(&mut self, endpoint: Uuid) {
        if let Some(known) = self.known.get_mut(&endpoint) {
            known.in_flight = known.in_flight.saturating_sub(1);
            self.in_flight = self.in_flight.saturating_sub(1);
        }
    }

    /// Records the outcome of an attempt.
    pub fn note(&mut self, endpoint: Uuid, outcome: &Outcome) {
        let now = self.clock.instant();
        let Some(known) = self.known.get_mut(&endpoint) else { return };
        if outcome.is_trouble() {
            known.failures = known.failures.saturating_add(1);
        } else {
            known.failures = 0;
        }
        let pause = if known.failures >= MAX_FAILURES { Some(PAUSE) } else { None };
        if let Some(pause) = pause.max(outcome.requested_delay()) {
            known.paused_until = Some(now + pause);
        }
    }
}

/// The receivers of one environment, which are served in turn.
struct Queue {
    environment: EnvironmentPk,
    free_permits: usize,
    endpoints: Vec<(Uuid, usize)>,
    next_index: usize,
}

impl Queue {
    fn next(&mut self) -> Option<Uuid> {
        self.free_permits = self.free_permits.checked_sub(1)?;
        self.endpoints.retain(|(_, free_permits)| *free_permits > 0);
        self.next_index += 1;
        let count = self.endpoints.len();
        let (endpoint, free_permits) = self.endpoints.get_mut(self.next_index.checked_rem(count)?)?;
        *free_permits -= 1;
        Some(*endpoint)
    }
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;
    use http::StatusCode;
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    use syncline_telemetry::clock::ManualClock;

    use super::*;

    fn due(endpoints: std::ops::Range<u128>, environment: i64) -> Vec<DueEndpoint> {
        let environment = EnvironmentPk(environment);
        endpoints.map(|number| DueEndpoint { endpoint: Uuid::from_u128(number), environment }).collect()
    }

    fn new_endpoints() -> (ManualClock, Endpoints) {
        let time = Clock::manual(DateTime::UNIX_EPOCH);
        let endpoints = Endpoints::new(time.clock());
        (time, endpoints)
    }

    fn pick(endpoints: &mut Endpoints, due: Vec<DueEndpoint>) -> HashMap<Uuid, usize> {
        endpoints.pick(due, &mut StdRng::seed_from_u64(7)).into_iter().collect()
    }

    fn answer(status: u16, retry_after: Option<u64>) -> Outcome {
        let status = StatusCode::from_u16(status).unwrap();
        Outcome::Answered { status, retry_after: retry_after.map(Duration::from_secs) }
    }

    #[test]
    fn a_receiver_gets_no_more_than_its_share() {
        let (_time, mut endpoints) = new_endpoints();
        let picked = pick(&mut endpoints, due(0..2, 1));
        assert_eq!(picked.values().copied().collect::<Vec<_>>(), [PERMITS_OF_ENDPOINT; 2]);
        for _ in 0..PERMITS_OF_ENDPOINT {
            endpoints.begin(Uuid::from_u128(0), EnvironmentPk(1));
        }
        let picked = pick(&mut endpoints, due(0..2, 1));
        assert_eq!(picked, HashMap::from([(Uuid::from_u128(1), PERMITS_OF_ENDPOINT)]));
    }

    #[test]
    fn an_environment_with_many_receivers_leaves_permits_to_others() {
        let (_time, mut endpoints) = new_endpoints();
        let both = [due(0..1000, 1), due(1000..1001, 2)].concat();
        let picked = pick(&mut endpoints, both);
        assert_eq!(picked[&Uuid::from_u128(1000)], PERMITS_OF_ENDPOINT);
        assert_eq!(picked.values().sum::<usize>(), PERMITS_OF_ENVIRONMENT + PERMITS_OF_ENDPOINT);
        let most =
            picked.iter().filter(|(endpoint, _)| endpoint.as_u128() < 1000).map(|(_, quota)| *quota).max();
        assert_eq!(most, Some(1), "its receivers are served in turn");
    }

    #[test]
    fn the_total_number_of_permits_is_bounded() {
        let (_time, mut endpoints) = new_endpoints();
        let many: Vec<_> =
            (0..100).flat_map(|number| due(number * 10..number * 10 + 10, number as i64)).collect();
        let picked = pick(&mut endpoints, many);
        assert_eq!(picked.values().sum::<usize>(), PERMITS);
    }

    #[test]
    fn a_failing_receiver_pauses_and_then_gets_one_delivery_at_a_time() {
        let ((time, mut endpoints), endpoint) = (new_endpoints(), Uuid::from_u128(0));
        for number in 0..MAX_FAILURES {
            assert_eq!(pick(&mut endpoints, due(0..1, 1))[&endpoint], PERMITS_OF_ENDPOINT, "{number}");
            endpoints.begin(endpoint, EnvironmentPk(1));
            endpoints.note(endpoint, &answer(500, None));
            endpoints.end(endpoint);
        }
        assert!(pick(&mut endpoints, due(0..1, 1)).is_empty());
        time.advance(PAUSE);
        assert_eq!(pick(&mut endpoints, due(0..1, 1))[&endpoint], 1);
        endpoints.begin(endpoint, EnvironmentPk(1));
        assert!(pick(&mut endpoints, due(0..1, 1)).is_empty());
        endpoints.note(endpoint, &answer(200, None));
        endpoints.end(endpoint);
        assert_eq!(pick(&mut endpoints, due(0..1, 1))[&endpoint], PERMITS_OF_ENDPOINT);
    }

    #[test]
    fn a_receiver_gets_nothing_until_its_retry_after_has_passed() {
        let ((time, mut endpoints), endpoint) = (new_endpoints(), Uuid::from_u128(0));
        endpoints.begin(endpoint, EnvironmentPk(1));
        endpoints.note(endpoint, &answer(429, Some(30)));
        endpoints.end(endpoint);
        time.advance(Duration::from_secs(29));
        assert!(pick(&mut endpoints, due(0..1, 1)).is_empty());
        time.advance(Duration::from_secs(1));
        assert!(!pick(&mut endpoints, due(0..1, 1)).is_empty());
    }

    #[test]
    fn an_idle_receiver_is_forgotten_unless_a_delivery_is_in_flight() {
        let ((time, mut endpoints), endpoint) = (new_endpoints(), Uuid::from_u128(0));
        endpoints.begin(endpoint, EnvironmentPk(1));
        time.advance(FORGET_AFTER);
        pick(&mut endpoints, Vec::new());
        assert_eq!(endpoints.known.len(), 1);
        endpoints.end(endpoint);
        pick(&mut endpoints, Vec::new());
        assert_eq!(endpoints.known.len(), 0);
    }
}
