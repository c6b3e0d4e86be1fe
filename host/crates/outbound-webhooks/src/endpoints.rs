//! Which receivers get the host's places: a slow or failing one must not delay another. Pure: time is given.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use rand::Rng;
use rand::seq::SliceRandom;
use uuid::Uuid;

use super::retry::Outcome;
use syncline_store::webhooks::sending::DueEndpoint;
use syncline_types::ids::EnvironmentPk;

/// Deliveries that one host sends at once.
const PLACES: usize = 128;
/// Of these, to the URLs of one environment.
const PLACES_OF_ENVIRONMENT: usize = 64;
/// And to one URL.
const PLACES_OF_ENDPOINT: usize = 8;
/// A receiver that was in trouble so often in a row is left alone for a while, then asked once at a time.
const TROUBLE: u32 = 5;
const REST: Duration = Duration::from_secs(60);
/// What is known of a receiver that nothing was sent to for longer than this no longer matters.
const FORGET_AFTER: Duration = Duration::from_secs(3600);

/// What this host knows of the receivers that it sends to.
#[derive(Default)]
pub(super) struct Endpoints {
    known: HashMap<Uuid, Endpoint>,
    in_flight: usize,
}

struct Endpoint {
    environment: EnvironmentPk,
    in_flight: usize,
    /// Attempts in a row that found it in trouble.
    troubles: u32,
    rests_until: Option<Instant>,
    used_at: Instant,
}

impl Endpoint {
    fn room(&self, now: Instant) -> usize {
        let places = match self.rests_until {
            Some(until) if until > now => 0,
            _ if self.troubles >= TROUBLE => 1,
            _ => PLACES_OF_ENDPOINT,
        };
        places.saturating_sub(self.in_flight)
    }
}

impl Endpoints {
    pub fn free(&self) -> usize {
        PLACES.saturating_sub(self.in_flight)
    }

    /// Shares the free places out: a place to each environment in turn, and within it to each receiver in turn. Gives
    /// how many deliveries may be taken for which receiver.
    pub fn pick(
        &mut self,
        mut due: Vec<DueEndpoint>,
        now: Instant,
        rng: &mut impl Rng,
    ) -> Vec<(Uuid, usize)> {
        self.known.retain(|_, endpoint| endpoint.in_flight > 0 || now - endpoint.used_at < FORGET_AFTER);
        // Where there is not enough for all, nobody is always the first.
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
            let room = self.known.get(endpoint).map_or(PLACES_OF_ENDPOINT, |known| known.room(now));
            if room == 0 {
                continue;
            }
            let position = queues.iter().position(|queue| queue.environment == *environment);
            let index = position.unwrap_or_else(|| {
                let of_environment = self.known.values().filter(|known| known.environment == *environment);
                let taken: usize = of_environment.map(|known| known.in_flight).sum();
                let room = PLACES_OF_ENVIRONMENT.saturating_sub(taken);
                queues.push(Queue { environment: *environment, room, endpoints: Vec::new(), turn: 0 });
                queues.len() - 1
            });
            queues[index].endpoints.push((*endpoint, room));
        }
        queues
    }

    pub fn begin(&mut self, endpoint: Uuid, environment: EnvironmentPk) {
        let now = Instant::now();
        let known = self.known.entry(endpoint).or_insert(Endpoint {
            environment,
            in_flight: 0,
            troubles: 0,
            rests_until: None,
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

    /// Learns from an attempt.
    pub fn note(&mut self, endpoint: Uuid, outcome: &Outcome, now: Instant) {
        let Some(known) = self.known.get_mut(&endpoint) else { return };
        if outcome.is_trouble() {
            known.troubles = known.troubles.saturating_add(1);
        } else {
            known.troubles = 0;
        }
        let rest = if known.troubles >= TROUBLE { Some(REST) } else { None };
        if let Some(rest) = rest.max(outcome.told_wait()) {
            known.rests_until = Some(now + rest);
        }
    }
}

/// The receivers of one environment that take turns.
struct Queue {
    environment: EnvironmentPk,
    room: usize,
    endpoints: Vec<(Uuid, usize)>,
    turn: usize,
}

impl Queue {
    fn next(&mut self) -> Option<Uuid> {
        self.room = self.room.checked_sub(1)?;
        self.endpoints.retain(|(_, room)| *room > 0);
        self.turn += 1;
        let count = self.endpoints.len();
        let (endpoint, room) = self.endpoints.get_mut(self.turn.checked_rem(count)?)?;
        *room -= 1;
        Some(*endpoint)
    }
}

#[cfg(test)]
mod tests {
    use http::StatusCode;
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    use super::*;

    fn due(endpoints: std::ops::Range<u128>, environment: i64) -> Vec<DueEndpoint> {
        let environment = EnvironmentPk(environment);
        endpoints.map(|number| DueEndpoint { endpoint: Uuid::from_u128(number), environment }).collect()
    }

    fn pick(endpoints: &mut Endpoints, due: Vec<DueEndpoint>, now: Instant) -> HashMap<Uuid, usize> {
        endpoints.pick(due, now, &mut StdRng::seed_from_u64(7)).into_iter().collect()
    }

    fn answer(status: u16, retry_after: Option<u64>) -> Outcome {
        let status = StatusCode::from_u16(status).unwrap();
        Outcome::Answered { status, retry_after: retry_after.map(Duration::from_secs) }
    }

    #[test]
    fn a_receiver_gets_its_share_and_no_more() {
        let mut endpoints = Endpoints::default();
        let picked = pick(&mut endpoints, due(0..2, 1), Instant::now());
        assert_eq!(picked.values().copied().collect::<Vec<_>>(), [PLACES_OF_ENDPOINT; 2]);
        for _ in 0..PLACES_OF_ENDPOINT {
            endpoints.begin(Uuid::from_u128(0), EnvironmentPk(1));
        }
        let picked = pick(&mut endpoints, due(0..2, 1), Instant::now());
        assert_eq!(picked, HashMap::from([(Uuid::from_u128(1), PLACES_OF_ENDPOINT)]));
    }

    #[test]
    fn an_environment_with_many_receivers_leaves_places_to_another() {
        let mut endpoints = Endpoints::default();
        let both = [due(0..1000, 1), due(1000..1001, 2)].concat();
        let picked = pick(&mut endpoints, both, Instant::now());
        assert_eq!(picked[&Uuid::from_u128(1000)], PLACES_OF_ENDPOINT);
        assert_eq!(picked.values().sum::<usize>(), PLACES_OF_ENVIRONMENT + PLACES_OF_ENDPOINT);
        let most =
            picked.iter().filter(|(endpoint, _)| endpoint.as_u128() < 1000).map(|(_, quota)| *quota).max();
        assert_eq!(most, Some(1), "its receivers take turns");
    }

    #[test]
    fn all_places_together_are_bounded() {
        let mut endpoints = Endpoints::default();
        let many: Vec<_> =
            (0..100).flat_map(|number| due(number * 10..number * 10 + 10, number as i64)).collect();
        let picked = pick(&mut endpoints, many, Instant::now());
        assert_eq!(picked.values().sum::<usize>(), PLACES);
    }

    #[test]
    fn a_receiver_in_trouble_rests_and_is_then_asked_once_at_a_time() {
        let (mut endpoints, endpoint, now) = (Endpoints::default(), Uuid::from_u128(0), Instant::now());
        for number in 0..TROUBLE {
            assert_eq!(pick(&mut endpoints, due(0..1, 1), now)[&endpoint], PLACES_OF_ENDPOINT, "{number}");
            endpoints.begin(endpoint, EnvironmentPk(1));
            endpoints.note(endpoint, &answer(500, None), now);
            endpoints.end(endpoint);
        }
        assert!(pick(&mut endpoints, due(0..1, 1), now).is_empty());
        let later = now + REST;
        assert_eq!(pick(&mut endpoints, due(0..1, 1), later)[&endpoint], 1);
        endpoints.begin(endpoint, EnvironmentPk(1));
        assert!(pick(&mut endpoints, due(0..1, 1), later).is_empty());
        endpoints.note(endpoint, &answer(200, None), later);
        endpoints.end(endpoint);
        assert_eq!(pick(&mut endpoints, due(0..1, 1), later)[&endpoint], PLACES_OF_ENDPOINT);
    }

    #[test]
    fn a_receiver_that_asks_for_a_while_is_left_alone_for_it() {
        let (mut endpoints, endpoint, now) = (Endpoints::default(), Uuid::from_u128(0), Instant::now());
        endpoints.begin(endpoint, EnvironmentPk(1));
        endpoints.note(endpoint, &answer(429, Some(30)), now);
        endpoints.end(endpoint);
        assert!(pick(&mut endpoints, due(0..1, 1), now + Duration::from_secs(29)).is_empty());
        assert!(!pick(&mut endpoints, due(0..1, 1), now + Duration::from_secs(30)).is_empty());
    }
}
