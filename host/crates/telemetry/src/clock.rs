//! The clock of decisions that a host makes in memory, so that tests can advance time instead of waiting.
//!
//! Decisions that hosts make together, such as leases, schedules and positions, use the clock of the database.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use chrono::{DateTime, Utc};
use tokio::sync::watch;

/// Tells wall time and monotonic time. Clones share the same clock.
#[derive(Debug, Clone)]
pub struct Clock(Source);

#[derive(Debug, Clone)]
enum Source {
    System,
    Manual(Arc<ManualTime>),
}

#[derive(Debug)]
struct ManualTime {
    start: DateTime<Utc>,
    started: Instant,
    elapsed: watch::Sender<Duration>,
}

/// A clock for tests. Its time changes only when a test advances it.
#[derive(Debug, Clone)]
pub struct ManualClock(Arc<ManualTime>);

impl Clock {
    /// The clock of the operating system.
    pub fn system() -> Self {
        Self(Source::System)
    }

    /// A clock for tests, which shows `start`.
    pub fn manual(start: DateTime<Utc>) -> ManualClock {
        let elapsed = watch::Sender::new(Duration::ZERO);
        ManualClock(Arc::new(ManualTime { start, started: Instant::now(), elapsed }))
    }

    /// Wall time, which may jump. For comparison with times from outside the process.
    pub fn now(&self) -> DateTime<Utc> {
        match &self.0 {
            Source::System => Utc::now(),
            Source::Manual(time) => time.start + time.elapsed(),
        }
    }

    /// [`now`](Self::now), as the standard library's type.
    pub fn system_time(&self) -> SystemTime {
        self.now().into()
    }

    /// Monotonic time. For durations within the process.
    pub fn instant(&self) -> Instant {
        match &self.0 {
            Source::System => Instant::now(),
            Source::Manual(time) => time.started + time.elapsed(),
        }
    }

    /// Waits until `duration` has passed on this clock.
    pub async fn sleep(&self, duration: Duration) {
        match &self.0 {
            Source::System => tokio::time::sleep(duration).await,
            Source::Manual(time) => {
                let mut elapsed = time.elapsed.subscribe();
                let wakes_at = *elapsed.borrow() + duration;
                elapsed.wait_for(|elapsed| *elapsed >= wakes_at).await.expect("this clock holds the sender");
            }
        }
    }
}

impl ManualTime {
    fn elapsed(&self) -> Duration {
        *self.elapsed.borrow()
    }
}

impl ManualClock {
    /// Returns the clock for the code under test.
    pub fn clock(&self) -> Clock {
        Clock(Source::Manual(Arc::clone(&self.0)))
    }

    /// Moves wall time and monotonic time forward.
    pub fn advance(&self, by: Duration) {
        self.0.elapsed.send_modify(|elapsed| *elapsed += by);
    }

    /// Waits until code under test is in [`Clock::sleep`].
    pub async fn wait_for_sleeper(&self) {
        while self.0.elapsed.receiver_count() == 0 {
            tokio::task::yield_now().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_times_of_a_manual_clock_advance_together() {
        let start = DateTime::UNIX_EPOCH;
        let time = Clock::manual(start);
        let (clock, began) = (time.clock(), time.clock().instant());
        assert_eq!(clock.now(), start);
        time.advance(Duration::from_secs(90));
        assert_eq!((clock.now() - start).num_seconds(), 90);
        assert_eq!(clock.instant() - began, Duration::from_secs(90));
        assert_eq!(clock.system_time(), SystemTime::UNIX_EPOCH + Duration::from_secs(90));
    }

    #[tokio::test]
    async fn a_sleeper_wakes_when_the_clock_reaches_its_time() {
        let time = Clock::manual(DateTime::UNIX_EPOCH);
        let clock = time.clock();
        let sleeper = tokio::spawn(async move { clock.sleep(Duration::from_secs(60)).await });
        time.wait_for_sleeper().await;
        time.advance(Duration::from_secs(59));
        tokio::task::yield_now().await;
        assert!(!sleeper.is_finished());
        time.advance(Duration::from_secs(1));
        sleeper.await.expect("the sleeper does not panic");
    }
}
