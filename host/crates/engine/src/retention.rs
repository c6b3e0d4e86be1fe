//! Empties payloads and deletes records that have not changed for a long time.
//!
//! Hosts share the work without coordination: each step is a short transaction under a lock that one host has at a
//! time. A writer of a stream waits for at most one step.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use syncline_config::period;
use syncline_store::{Store, retention};

/// Number of records of one step.
const STEP: i64 = 500;
/// The minimum pause after a step. After a longer step, the pause is as long as the step.
const MIN_PAUSE: Duration = Duration::from_millis(10);

/// Settings for the age of records that an operator can change.
#[derive(Debug, Clone, Copy)]
pub struct RetentionSettings {
    /// Payloads that have not changed for this long are emptied. Dead letters that have not come again for this long
    /// are dropped.
    pub prune_after: Age,
    /// Records of a sync that has not run for this long are deleted.
    pub delete_after: Age,
    /// The interval between checks.
    pub every: Duration,
}

/// A maximum age.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Age {
    Any,
    Most(Duration),
}

/// Why a text is not an age. The message shows valid ages.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("it must be a duration such as `12h` or `30d`, or `never`")]
pub struct InvalidAge;

impl FromStr for Age {
    type Err = InvalidAge;

    fn from_str(text: &str) -> Result<Self, InvalidAge> {
        match text {
            "never" => Ok(Self::Any),
            text => period(text).map(Self::Most).ok_or(InvalidAge),
        }
    }
}

/// Removes payloads, records and dead letters that are too old.
pub struct Retention {
    store: Store,
    settings: RetentionSettings,
}

impl Retention {
    pub fn new(store: Store, settings: RetentionSettings) -> Arc<Self> {
        Arc::new(Self { store, settings })
    }

    /// Removes old data periodically, until `shutdown`.
    pub async fn run(self: Arc<Self>, shutdown: CancellationToken) {
        let mut ticks = tokio::time::interval(self.settings.every);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        while shutdown.run_until_cancelled(ticks.tick()).await.is_some() {
            if let Some(Err(error)) = shutdown.run_until_cancelled(self.run_until_idle()).await {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "could not remove old records; retrying"
                );
            }
        }
    }

    /// Works until nothing is due, or another host has the lock.
    async fn run_until_idle(&self) -> sqlx::Result<()> {
        for work in [Work::Delete, Work::Prune, Work::DropLetters] {
            let Age::Most(age) = work.age(&self.settings) else { continue };
            let mut records = 0;
            loop {
                let started_at = Instant::now();
                let Some(done) = self.step(work, age).await? else { break };
                records += done;
                tokio::time::sleep(started_at.elapsed().max(MIN_PAUSE)).await;
            }
            if records > 0 {
                tracing::info!(records, "{}", work.report());
            }
        }
        Ok(())
    }

    /// Performs one step. Returns the number of records, or `None` if nothing is due or another host has the lock.
    async fn step(&self, work: Work, age: Duration) -> sqlx::Result<Option<u64>> {
        let mut tx = self.store.begin_records().await?;
        if !retention::try_lock(&mut tx).await? {
            return Ok(None);
        }
        let done = match work {
            Work::Prune => retention::prune_step(&mut tx, age, STEP).await?,
            Work::Delete => retention::delete_step(&mut tx, age, STEP).await?,
            Work::DropLetters => retention::drop_letters_step(&mut tx, age, STEP).await?,
        };
        tx.commit().await?;
        Ok(done)
    }
}

#[derive(Clone, Copy)]
enum Work {
    Prune,
    Delete,
    DropLetters,
}

impl Work {
    fn age(self, retention: &RetentionSettings) -> Age {
        match self {
            Self::Prune | Self::DropLetters => retention.prune_after,
            Self::Delete => retention.delete_after,
        }
    }

    fn report(self) -> &'static str {
        match self {
            Self::Prune => "emptied payloads that have not changed for a long time",
            Self::DropLetters => "dropped dead letters that have not come again for a long time",
            Self::Delete => "deleted records of syncs that have not run for a long time",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_is_a_duration_or_never() {
        assert_eq!("30d".parse(), Ok(Age::Most(Duration::from_secs(30 * 86_400))));
        assert_eq!("90 m".parse(), Ok(Age::Most(Duration::from_secs(5_400))));
        assert_eq!("never".parse(), Ok(Age::Any));
        for text in ["", "30", "0d", "-1d", "1.5d", "Never", "30 days", "99999999999999999999d", "36501d"] {
            assert_eq!(text.parse::<Age>(), Err(InvalidAge), "{text}");
        }
    }
}
