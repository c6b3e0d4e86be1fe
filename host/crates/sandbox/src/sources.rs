//! Where an invocation gets its time and its random numbers from.
//!
//! A normal run uses those of the system. A run that is recorded uses a [`SteppedClock`] and a [`RandomSeed`], from
//! which a replay produces the same values. A replay also uses a [`Timeline`], which decides when the answers of
//! concurrent requests arrive and when sleeps end.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use rand_core::TryRng;
use tokio::sync::oneshot;
use wasmtime_wasi::{HostMonotonicClock, HostWallClock};

use super::Interrupt;

/// A guest that reads the clock more often than this between two steps waits for time to pass.
const READS_PER_STEP: u32 = 10_000;
/// How far the clock advances with each further read.
const READ_STEP: Duration = Duration::from_millis(1);

/// The sources of an invocation.
#[derive(Debug, Clone, Default)]
pub enum Sources {
    /// The system's clocks and random numbers.
    #[default]
    System,
    /// For a run that is recorded.
    Recorded { clock: SteppedClock, seed: RandomSeed },
    /// For a replay. It needs a runtime with a single thread, because the order in which tasks run must not depend on
    /// chance.
    Replayed { timeline: Timeline, seed: RandomSeed },
}

impl Sources {
    /// The clock and the seed, except for a normal run.
    pub(super) fn stepped(&self) -> Option<(&SteppedClock, &RandomSeed)> {
        match self {
            Self::System => None,
            Self::Recorded { clock, seed } => Some((clock, seed)),
            Self::Replayed { timeline, seed } => Some((&timeline.clock, seed)),
        }
    }

    pub(super) fn timeline(&self) -> Option<&Timeline> {
        match self {
            Self::Replayed { timeline, .. } => Some(timeline),
            Self::System | Self::Recorded { .. } => None,
        }
    }

    /// Milliseconds since the Unix epoch.
    pub(super) fn now_ms(&self) -> u64 {
        match self.stepped() {
            Some((clock, _)) => u64::try_from(clock.wall().as_millis()).unwrap_or(u64::MAX),
            None => Utc::now().timestamp_millis().max(0).cast_unsigned(),
        }
    }
}

/// A clock that stands still while a guest computes. It advances when the host answers a request and when a sleep
/// ends, so its values depend only on the requests and sleeps of the guest.
#[derive(Debug, Clone)]
pub struct SteppedClock(Arc<Steps>);

#[derive(Debug)]
struct Steps {
    began: Instant,
    started_at: DateTime<Utc>,
    state: Mutex<ClockState>,
}

#[derive(Debug, Default)]
struct ClockState {
    /// Since the start, in whole microseconds.
    elapsed: Duration,
    reads: u32,
}

impl SteppedClock {
    /// A clock that starts at this time.
    pub fn new(started_at: DateTime<Utc>) -> Self {
        Self(Arc::new(Steps { began: Instant::now(), started_at, state: Mutex::default() }))
    }

    pub fn started_at(&self) -> DateTime<Utc> {
        self.0.started_at
    }

    /// The time of the clock since its start.
    pub fn elapsed(&self) -> Duration {
        self.state().elapsed
    }

    /// Advances the clock to the real time since its start.
    pub fn step(&self) {
        self.step_to(self.0.began.elapsed());
    }

    /// Advances the clock to this time since its start. It never goes back.
    pub fn step_to(&self, elapsed: Duration) {
        let elapsed = Duration::from_micros(u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX));
        let mut state = self.state();
        state.elapsed = state.elapsed.max(elapsed);
        state.reads = 0;
    }

    /// The time since the start, as a guest reads it.
    pub(super) fn monotonic(&self) -> Duration {
        let mut state = self.state();
        // A guest may read the clock in a loop until a time has passed.
        state.reads = state.reads.saturating_add(1);
        if state.reads > READS_PER_STEP {
            state.elapsed += READ_STEP;
        }
        state.elapsed
    }

    /// The time since the Unix epoch, as a guest reads it.
    pub(super) fn wall(&self) -> Duration {
        let start = self.0.started_at.timestamp_micros().max(0).cast_unsigned();
        Duration::from_micros(start) + self.monotonic()
    }

    /// When the clock will reach a time, if it follows the real time.
    pub(super) fn instant_of(&self, elapsed: Duration) -> Option<Instant> {
        self.0.began.checked_add(elapsed)
    }

    fn state(&self) -> MutexGuard<'_, ClockState> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HostWallClock for SteppedClock {
    fn resolution(&self) -> Duration {
        Duration::from_micros(1)
    }

    fn now(&self) -> Duration {
        self.wall()
    }
}

impl HostMonotonicClock for SteppedClock {
    fn resolution(&self) -> u64 {
        1_000
    }

    fn now(&self) -> u64 {
        u64::try_from(self.monotonic().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// The events that a replay waits for, in the order of their times. They happen while the guest waits.
#[derive(Debug, Clone)]
pub struct Timeline {
    clock: SteppedClock,
    events: Arc<Mutex<Events>>,
}

#[derive(Debug, Default)]
struct Events {
    waiting: BTreeMap<(Duration, u64), oneshot::Sender<()>>,
    /// Orders events of the same time.
    next: u64,
}

impl Timeline {
    pub fn new(clock: SteppedClock) -> Self {
        Self { clock, events: Arc::default() }
    }

    pub fn clock(&self) -> &SteppedClock {
        &self.clock
    }

    /// Waits until this much time has passed. Dropping the receiver removes the event.
    pub fn after(&self, delay: Duration) -> oneshot::Receiver<()> {
        let (sender, receiver) = oneshot::channel();
        let at = self.clock.elapsed().saturating_add(delay);
        let mut events = self.events();
        let number = events.next;
        events.next += 1;
        events.waiting.insert((at, number), sender);
        receiver
    }

    /// Lets the next event happen, and advances the clock to its time. Returns `false` if no event is waiting.
    pub(super) fn advance(&self) -> bool {
        loop {
            let Some(((at, _), sender)) = self.events().waiting.pop_first() else { return false };
            if sender.is_closed() {
                continue;
            }
            self.clock.step_to(at);
            if sender.send(()).is_ok() {
                return true;
            }
        }
    }

    /// Waits for a future while events happen. The guest waits meanwhile.
    pub(super) async fn drive<T>(&self, work: impl Future<Output = T>) -> Result<T, Interrupt> {
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                biased;
                output = &mut work => return Ok(output),
                () = settle() => {}
            }
            if !self.advance() {
                return Err(endless_wait());
            }
        }
    }

    fn events(&self) -> MutexGuard<'_, Events> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The guest waits for something that will not happen.
pub(super) fn endless_wait() -> Interrupt {
    let message = "the function waits for a response that the recorded run did not receive";
    Interrupt::Host(anyhow::Error::msg(message))
}

/// Lets all other tasks of the thread run until they wait for the guest or for an event.
pub(super) async fn settle() {
    // Each round runs every task that can run. A request passes through fewer tasks than this.
    for _ in 0..32 {
        tokio::task::yield_now().await;
    }
}

/// The seed of an invocation's random numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RandomSeed(pub [u8; 32]);

/// The text of a seed is not 64 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a random seed has 64 hexadecimal digits")]
pub struct InvalidRandomSeed;

impl RandomSeed {
    /// The bytes for one purpose.
    pub(super) fn bytes(&self, purpose: &str) -> SeededBytes {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(purpose.as_bytes());
        SeededBytes(hasher.finalize_xof())
    }
}

impl fmt::Display for RandomSeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&blake3::Hash::from_bytes(self.0).to_hex())
    }
}

impl FromStr for RandomSeed {
    type Err = InvalidRandomSeed;

    fn from_str(text: &str) -> Result<Self, InvalidRandomSeed> {
        blake3::Hash::from_hex(text).map(|hash| Self(*hash.as_bytes())).map_err(|_| InvalidRandomSeed)
    }
}

/// Random numbers that depend only on a seed. The algorithm is part of the format of recordings, so it never changes.
pub(super) struct SeededBytes(blake3::OutputReader);

impl SeededBytes {
    fn next<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        self.0.fill(&mut bytes);
        bytes
    }

    pub(super) fn next_u128(&mut self) -> u128 {
        u128::from_le_bytes(self.next())
    }
}

impl TryRng for SeededBytes {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        Ok(u32::from_le_bytes(self.next()))
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        Ok(u64::from_le_bytes(self.next()))
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Infallible> {
        self.0.fill(bytes);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clock() -> SteppedClock {
        SteppedClock::new(DateTime::from_timestamp(1_000_000_000, 0).unwrap())
    }

    #[test]
    fn a_stepped_clock_stands_still_between_steps_and_never_goes_back() {
        let clock = clock();
        assert_eq!((clock.wall(), clock.wall()), (Duration::from_secs(1_000_000_000), clock.wall()));
        clock.step_to(Duration::from_millis(5));
        clock.step_to(Duration::from_millis(3));
        assert_eq!(clock.monotonic(), Duration::from_millis(5));
    }

    #[test]
    fn a_guest_that_waits_in_a_loop_sees_time_pass() {
        let clock = clock();
        let mut reads = 0;
        while clock.monotonic() < Duration::from_millis(3) {
            reads += 1;
        }
        assert_eq!(reads, READS_PER_STEP + 2);
    }

    #[test]
    fn events_happen_in_the_order_of_their_times() {
        let timeline = Timeline::new(clock());
        let mut late = timeline.after(Duration::from_millis(20));
        let mut early = timeline.after(Duration::from_millis(10));
        drop(timeline.after(Duration::from_millis(1)));
        assert!(timeline.advance());
        assert!(early.try_recv().is_ok() && late.try_recv().is_err());
        assert_eq!(timeline.clock().elapsed(), Duration::from_millis(10));
        assert!(timeline.advance() && late.try_recv().is_ok() && !timeline.advance());
    }

    #[test]
    fn a_seed_always_produces_the_same_numbers() {
        let seed: RandomSeed = format!("{}07", "00".repeat(31)).parse().unwrap();
        assert_eq!(seed.to_string(), format!("{}07", "00".repeat(31)));
        let numbers = || {
            let mut bytes = seed.bytes("secure");
            (bytes.try_next_u64(), bytes.try_next_u32(), bytes.next_u128())
        };
        assert_eq!(numbers(), numbers());
        assert_ne!(seed.bytes("secure").next_u128(), seed.bytes("insecure").next_u128());
        assert!("0".parse::<RandomSeed>().is_err());
    }
}
