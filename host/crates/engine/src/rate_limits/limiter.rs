//! Keeps requests below the providers' rates in the catalogue, so that providers need not reject any.
//!
//! Each host counts its requests in memory and publishes the counts a few times per second, all in one event. Until
//! other hosts know of its requests, a host uses only a share of the remaining rate. So hosts that start at the same
//! moment do not use the same capacity twice. If an event is lost, the provider's response makes all hosts back off
//! ([`crate::rate_limits`]).

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use uuid::Uuid;

use syncline_providers::RateLimit;
use syncline_store::rate_limits::{RateLimitScope, SentRequests};
use syncline_telemetry::clock::Clock;

/// The interval between published counts.
pub(super) const PUBLISH_INTERVAL: Duration = Duration::from_millis(100);
/// The number of parts of a window, each of which is counted and expires on its own.
const SLOTS: u32 = 20;
const SWEEP_EVERY: Duration = Duration::from_secs(10);

/// The requests in the window of each rate: those of this host, and those that other hosts have published.
pub(crate) struct Limiter {
    clock: Clock,
    meters: Mutex<Meters>,
    has_unpublished: Notify,
}

struct Meters {
    of: HashMap<RateLimitScope, Meter>,
    /// Connections and integrations with requests that were not published yet.
    recent: HashSet<RateLimitScope>,
    swept_at: Instant,
}

impl Limiter {
    pub(super) fn new(clock: Clock) -> Self {
        let meters = Meters { of: HashMap::new(), recent: HashSet::new(), swept_at: clock.instant() };
        Self { clock, meters: Mutex::new(meters), has_unpublished: Notify::new() }
    }

    /// Returns how long the next request must wait, given the number of live hosts. `None` admits and counts the
    /// request. A request whose wait would exceed `patience` is admitted as well.
    pub(crate) fn admit(
        &self,
        limited: RateLimitScope,
        rate: RateLimit,
        hosts: usize,
        patience: Duration,
    ) -> Option<Duration> {
        let now = self.clock.instant();
        let mut meters = self.meters();
        let meter = meters.of(limited, rate.per_seconds, now);
        let wait = meter.wait(rate.requests, hosts, now).filter(|wait| *wait <= patience);
        if wait.is_none() {
            meter.count(now);
            if meters.recent.insert(limited) {
                self.has_unpublished.notify_one();
            }
        }
        wait
    }

    /// Counts the requests of another host.
    pub(super) fn note(&self, host: Uuid, spent: &[SentRequests]) {
        let now = self.clock.instant();
        let mut meters = self.meters();
        for SentRequests { limited, per_seconds, requests } in spent {
            meters.of(*limited, *per_seconds, now).note(host, *requests, now);
        }
        meters.sweep(now);
    }

    /// Takes the counts to publish now, or `None` if everything was published.
    pub(super) fn take_unpublished(&self) -> Option<Vec<SentRequests>> {
        let mut meters = self.meters();
        meters.sweep(self.clock.instant());
        let Meters { of, recent, .. } = &mut *meters;
        let mut unpublished = Vec::new();
        recent.retain(|limited| {
            let Some(meter) = of.get_mut(limited) else { return false };
            let requests = meter.take_count();
            if requests > 0 {
                unpublished.push(SentRequests {
                    limited: *limited,
                    per_seconds: meter.per_seconds,
                    requests,
                });
            }
            requests > 0
        });
        (!recent.is_empty()).then_some(unpublished)
    }

    /// Waits until there are counts to publish.
    pub(super) async fn has_unpublished(&self) {
        self.has_unpublished.notified().await;
    }

    fn meters(&self) -> MutexGuard<'_, Meters> {
        self.meters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Meters {
    fn of(&mut self, limited: RateLimitScope, per_seconds: u32, now: Instant) -> &mut Meter {
        let meter = self.of.entry(limited).or_insert_with(|| Meter::new(per_seconds, now));
        if meter.per_seconds != per_seconds {
            *meter = Meter::new(per_seconds, now);
        }
        meter
    }

    fn sweep(&mut self, now: Instant) {
        if now.duration_since(self.swept_at) < SWEEP_EVERY {
            return;
        }
        self.swept_at = now;
        self.of.retain(|_, meter| {
            meter.forget(now);
            !meter.own.is_empty() || !meter.others.is_empty()
        });
    }
}

/// The requests in the last window. A request counts for slightly longer than the window, so that no window of that
/// length contains more requests than the rate allows.
struct Meter {
    per_seconds: u32,
    started_at: Instant,
    own: Sent,
    others: HashMap<Uuid, Sent>,
    /// Own requests since the last publication.
    unpublished: u32,
    /// Own requests in the last publication, which other hosts may not have received yet.
    just_published: u32,
}

impl Meter {
    fn new(per_seconds: u32, now: Instant) -> Self {
        Self {
            per_seconds,
            started_at: now,
            own: Sent::default(),
            others: HashMap::new(),
            unpublished: 0,
            just_published: 0,
        }
    }

    /// Returns how long the next request must wait.
    fn wait(&mut self, requests: u32, hosts: usize, now: Instant) -> Option<Duration> {
        self.forget(now);
        let others: u32 = self.others.values().map(Sent::total).sum();
        let left = requests.saturating_sub(self.own.total() + others);
        if left == 0 {
            return Some(self.next_end().saturating_duration_since(now).max(Duration::from_millis(1)));
        }
        // The hosts that send, and one more that may be about to start.
        let sharers = (self.others.len() + 2).min(hosts).max(1);
        let unreported = self.unpublished + self.just_published;
        let share = (left + unreported) / u32::try_from(sharers).unwrap_or(u32::MAX);
        (unreported >= share.max(1)).then_some(PUBLISH_INTERVAL)
    }

    /// Counts a request of this host.
    fn count(&mut self, now: Instant) {
        let slot = self.slot(now);
        self.own.add(slot, 1);
        self.unpublished += 1;
    }

    fn note(&mut self, host: Uuid, requests: u32, now: Instant) {
        self.forget(now);
        let slot = self.slot(now);
        self.others.entry(host).or_default().add(slot, requests);
    }

    /// Returns the number of requests to publish, and restarts the count.
    fn take_count(&mut self) -> u32 {
        self.just_published = std::mem::take(&mut self.unpublished);
        self.just_published
    }

    fn forget(&mut self, now: Instant) {
        let oldest = self.slot(now).saturating_sub(u64::from(SLOTS));
        self.own.forget_before(oldest);
        self.others.retain(|_, sent| {
            sent.forget_before(oldest);
            !sent.is_empty()
        });
    }

    /// When the oldest counted requests expire.
    fn next_end(&self) -> Instant {
        let sent = std::iter::once(&self.own).chain(self.others.values());
        let oldest = sent.filter_map(Sent::oldest).min().unwrap_or_default();
        let slots = u32::try_from(oldest).unwrap_or(u32::MAX).saturating_add(SLOTS + 1);
        self.started_at + self.slot_length() * slots
    }

    fn slot(&self, now: Instant) -> u64 {
        let elapsed = now.saturating_duration_since(self.started_at);
        u64::try_from(elapsed.as_nanos() / self.slot_length().as_nanos()).unwrap_or(u64::MAX)
    }

    fn slot_length(&self) -> Duration {
        Duration::from_secs(self.per_seconds.into()) / SLOTS
    }
}

/// The requests of one host, by the slot in which they were sent.
#[derive(Default)]
struct Sent(VecDeque<(u64, u32)>);

impl Sent {
    fn add(&mut self, slot: u64, requests: u32) {
        match self.0.back_mut() {
            Some((last, sent)) if *last == slot => *sent = sent.saturating_add(requests),
            _ => self.0.push_back((slot, requests)),
        }
    }

    fn forget_before(&mut self, slot: u64) {
        while self.oldest().is_some_and(|oldest| oldest < slot) {
            self.0.pop_front();
        }
    }

    fn oldest(&self) -> Option<u64> {
        self.0.front().map(|(slot, _)| *slot)
    }

    fn total(&self) -> u32 {
        self.0.iter().fold(0, |sum, (_, sent)| sum.saturating_add(*sent))
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;
    use proptest::prelude::*;

    use super::*;
    use syncline_types::ids::IntegrationPk;

    const RATE: u32 = 10;
    const SECOND: Duration = Duration::from_secs(1);

    impl Meter {
        fn admit(&mut self, hosts: usize, now: Instant) -> Option<Duration> {
            let wait = self.wait(RATE, hosts, now);
            if wait.is_none() {
                self.count(now);
            }
            wait
        }
    }

    /// The times at which a single host sends requests, if it always has another one to send.
    fn greedy(meter: &mut Meter, from: Instant, until: Instant) -> Vec<Instant> {
        let (mut now, mut sent_at) = (from, Vec::new());
        while now < until {
            match meter.admit(1, now) {
                None => sent_at.push(now),
                Some(wait) => now += wait,
            }
        }
        sent_at
    }

    fn max_per_second(sent_at: &[Instant]) -> usize {
        let within =
            |first: &Instant| sent_at.iter().filter(|at| **at >= *first && **at < *first + SECOND).count();
        sent_at.iter().map(within).max().unwrap_or_default()
    }

    #[test]
    fn a_single_host_uses_the_whole_rate_and_no_more() {
        let now = Instant::now();
        let sent_at = greedy(&mut Meter::new(1, now), now, now + 21 * SECOND);
        assert_eq!(max_per_second(&sent_at), RATE as usize);
        assert!(sent_at.len() >= 190, "{} in 21 s", sent_at.len());
        assert!(sent_at[RATE as usize - 1] == now, "unused capacity may be used at once");
    }

    #[test]
    fn each_request_expires_after_its_own_window() {
        let now = Instant::now();
        let mut meter = Meter::new(1, now);
        assert!(meter.admit(1, now).is_none());
        let late = now + SECOND * 9 / 10;
        assert!((1..RATE).all(|_| meter.admit(1, late).is_none()));
        let over = now + SECOND + SECOND / SLOTS;
        assert!(meter.admit(1, over).is_none(), "the first request has expired");
        assert!(meter.admit(1, over).is_some(), "the others have not");
    }

    #[test]
    fn a_request_that_would_wait_too_long_is_sent_and_counted() {
        let limiter = Limiter::new(Clock::manual(DateTime::UNIX_EPOCH).clock());
        let limited = RateLimitScope { integration: IntegrationPk(1), connection: None };
        let rate = RateLimit { requests: 1, per_seconds: 3600 };
        let admit = |patience| limiter.admit(limited, rate, 1, patience);
        assert_eq!(admit(SECOND), None);
        assert!(admit(2 * 3600 * SECOND).is_some());
        assert_eq!(admit(SECOND), None);
        let unpublished = limiter.take_unpublished().expect("there are counts");
        assert_eq!(unpublished, [SentRequests { limited, per_seconds: 3600, requests: 2 }]);
        assert_eq!(limiter.take_unpublished(), None);
    }

    #[test]
    fn requests_of_other_hosts_count_until_their_window_ends() {
        let time = Clock::manual(DateTime::UNIX_EPOCH);
        let limiter = Limiter::new(time.clock());
        let [short, long, own] =
            [1, 2, 3].map(|pk| RateLimitScope { integration: IntegrationPk(pk), connection: None });
        let spent = |limited, per_seconds| SentRequests { limited, per_seconds, requests: 1 };
        limiter.note(Uuid::from_u128(2), &[spent(short, 1), spent(long, 3600)]);
        let rate = RateLimit { requests: 1, per_seconds: 3600 };
        assert_eq!(limiter.admit(own, rate, 2, SECOND), None);
        assert!(limiter.admit(long, rate, 2, 2 * 3600 * SECOND).is_some());

        let known = || limiter.meters().of.keys().copied().collect::<HashSet<_>>();
        time.advance(SWEEP_EVERY / 2);
        limiter.note(Uuid::from_u128(2), &[]);
        assert_eq!(known().len(), 3, "meters are not swept every time");
        time.advance(SWEEP_EVERY);
        limiter.note(Uuid::from_u128(2), &[]);
        assert_eq!(known(), HashSet::from([long, own]));
    }

    #[test]
    fn a_used_up_rate_is_free_again_after_the_announced_wait() {
        let time = Clock::manual(DateTime::UNIX_EPOCH);
        let limiter = Limiter::new(time.clock());
        let limited = RateLimitScope { integration: IntegrationPk(1), connection: None };
        let rate = RateLimit { requests: 2, per_seconds: 60 };
        let admit = || limiter.admit(limited, rate, 1, 3600 * SECOND);
        assert_eq!((admit(), admit()), (None, None));
        let wait = admit().expect("the rate is used up");
        time.advance(wait / 2);
        let rest = admit().expect("the rate is still used up");
        assert_eq!(wait / 2 + rest, wait);
        time.advance(rest);
        assert_eq!(admit(), None);
    }

    #[test]
    fn requests_of_other_hosts_use_up_the_rate() {
        let now = Instant::now();
        let mut meter = Meter::new(1, now);
        meter.note(Uuid::from_u128(2), RATE, now);
        let wait = meter.admit(2, now).expect("nothing is left");
        assert!(wait > SECOND && wait <= SECOND + SECOND / SLOTS, "{wait:?}");
        assert!(meter.admit(2, now + wait).is_none());
    }

    #[test]
    fn a_host_uses_only_its_share_until_other_hosts_know_of_its_requests() {
        let now = Instant::now();
        let mut meter = Meter::new(1, now);
        let take = |meter: &mut Meter| (0..RATE).take_while(|_| meter.admit(3, now).is_none()).count();
        assert_eq!(take(&mut meter), 5);
        assert_eq!(meter.take_count(), 5);
        assert_eq!(take(&mut meter), 0, "the other hosts may not have received the event yet");
        assert_eq!(meter.take_count(), 0);
        assert_eq!(take(&mut meter), 2);
    }

    proptest! {
        /// However hosts start and pause, together they stay within the bound below.
        #[test]
        fn hosts_together_stay_near_the_rate(asks in prop::collection::vec((0..3_usize, 0..40_u64), 1..400)) {
            let start = Instant::now();
            let mut meters = [0; 3].map(|_| Meter::new(1, start));
            let (mut now, mut published_at, mut sent_at) = (start, start, Vec::new());
            for (host, pause_ms) in asks {
                now += Duration::from_millis(pause_ms);
                while now >= published_at + PUBLISH_INTERVAL {
                    published_at += PUBLISH_INTERVAL;
                    let published = [0, 1, 2].map(|number: usize| meters[number].take_count());
                    for (from, requests) in published.into_iter().enumerate().filter(|(_, requests)| *requests > 0) {
                        for to in (0..3).filter(|to| *to != from) {
                            meters[to].note(Uuid::from_u128(from as u128), requests, published_at);
                        }
                    }
                }
                if meters[host].admit(3, now).is_none() {
                    sent_at.push(now);
                }
            }
            // If three hosts start at once, each uses half of the rate, because it expects one other host.
            prop_assert!(max_per_second(&sent_at) <= RATE as usize + RATE as usize / 2 + 3);
        }
    }
}
