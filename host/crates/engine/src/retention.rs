//! Empties payloads and deletes records that nothing has happened to for long.
//!
//! Hosts share the work without knowing of each other: a step is one short transaction under a lock that only one has
//! at a time. Whoever writes to a stream waits for one step at most, and is let in before the next.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use syncline_config::period;
use syncline_store::{Store, retention};

/// Records of one step.
const STEP: i64 = 500;
/// The pause after a step; a step that took longer is followed by as much.
const LEAST_PAUSE: Duration = Duration::from_millis(10);

/// What an operator can say about the age of records.
#[derive(Debug, Clone, Copy)]
pub struct RetentionSettings {
    /// Payloads that have not changed for so long are emptied, and dead letters dropped that have not come again.
    pub prune_after: Age,
    /// Records of a sync that has not run for so long are deleted.
    pub delete_after: Age,
    /// How often what is due is looked for.
    pub every: Duration,
}

/// How old something may become.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Age {
    Any,
    Most(Duration),
}

/// Why a text is no age. Says what would be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("must be a duration such as `12h` or `30d`, or `never`")]
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

/// Removes what is too old.
pub struct Retention {
    store: Store,
    settings: RetentionSettings,
}

impl Retention {
    pub fn new(store: Store, settings: RetentionSettings) -> Arc<Self> {
        Arc::new(Self { store, settings })
    }

    /// Looks for what is due, until `shutdown`.
    pub async fn run(self: Arc<Self>, shutdown: CancellationToken) {
        let mut ticks = tokio::time::interval(self.settings.every);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        while shutdown.run_until_cancelled(ticks.tick()).await.is_some() {
            if let Some(Err(error)) = shutdown.run_until_cancelled(self.run_until_idle()).await {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "what is too old was not removed; it will be tried again"
                );
            }
        }
    }

    /// Works until nothing is due, or another host does.
    async fn run_until_idle(&self) -> sqlx::Result<()> {
        for work in [Work::Delete, Work::Prune, Work::DropLetters] {
            let Age::Most(age) = work.age(&self.settings) else { continue };
            let mut records = 0;
            loop {
                let began = Instant::now();
                let Some(done) = self.step(work, age).await? else { break };
                records += done;
                tokio::time::sleep(began.elapsed().max(LEAST_PAUSE)).await;
            }
            if records > 0 {
                tracing::info!(records, "{}", work.report());
            }
        }
        Ok(())
    }

    /// Gives the number of records that were worked on. `None`: there is nothing to do, or another host does it.
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
            Self::Prune => "payloads that have not changed for long were emptied",
            Self::DropLetters => "dead letters that have not come again for long were dropped",
            Self::Delete => "records of syncs that have not run for long were deleted",
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
