//! Statistics of runs for overviews, and what needs an operator's attention.
//!
//! An overview never reads runs, of which there may be millions. Each run is queued when it ends (see `ended_runs` in
//! the migrations), and one host at a time adds queued runs to the statistics of their periods. An overview therefore
//! contains a run a few seconds after its end.

mod counting;
mod histogram;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::{DateTime, TimeDelta, Utc};
use tokio_util::sync::CancellationToken;

use crate::lookup::{LookupError, find_integration};
use crate::statistics::counting::{period_start, periods};
use crate::statistics::histogram::Histogram;
use syncline_store::Store;
use syncline_store::attention;
use syncline_store::run_statistics::{self, PeriodStatistics};
use syncline_telemetry::clock::Clock;
use syncline_telemetry::failpoints::{self, Step};
use syncline_types::ids::{EnvironmentPk, IntegrationKey, IntegrationPk};

/// The highest number in an [`Attention`]. It means: this many or more.
pub const MAX_ATTENTION: i64 = attention::MOST;

/// How often a host looks for runs to count.
const INTERVAL: Duration = Duration::from_secs(1);
/// Runs that one transaction counts.
const BATCH: i64 = 5_000;
const DELETE_INTERVAL: Duration = Duration::from_secs(3600);
/// Periods that one statement deletes.
const DELETE_BATCH: i64 = 10_000;
/// How long statistics are stored. Longer than runs by default, because they are small.
const KEPT_FOR: Duration = Duration::from_secs(90 * 24 * 3600);

/// The time that an overview covers. The latest point is the current hour, quarter of a day, or day, in UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatisticsRange {
    /// 24 points of an hour.
    Day,
    /// 28 points of six hours.
    Week,
    /// 30 points of a day.
    Month,
}

impl StatisticsRange {
    /// The hours between two points.
    fn hours(self) -> i16 {
        match self {
            Self::Day => 1,
            Self::Week => 6,
            Self::Month => 24,
        }
    }

    fn points(self) -> i32 {
        match self {
            Self::Day => 24,
            Self::Week => 28,
            Self::Month => 30,
        }
    }
}

/// The runs that ended in some time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunFigures {
    pub succeeded: i64,
    pub failed: i64,
    pub cancelled: i64,
    /// Runs whose host was lost.
    pub lost: i64,
    /// Records that functions saved or deleted, including those that did not change.
    pub records_saved: i64,
    /// Records that syncs added, updated or deleted.
    pub records_changed: i64,
    /// How long requests waited because of rate limits, in total.
    pub backoff: Duration,
    /// The median time from start to end. `None` without runs.
    pub duration_p50: Option<Duration>,
    pub duration_p95: Option<Duration>,
    /// The median time between due and start, of runs that are scheduled or queued.
    pub queue_delay_p50: Option<Duration>,
    pub queue_delay_p95: Option<Duration>,
}

impl RunFigures {
    /// All runs that have ended.
    pub fn runs(&self) -> i64 {
        self.succeeded + self.failed + self.cancelled + self.lost
    }

    /// The runs that have failed, by themselves or with their host.
    pub fn failures(&self) -> i64 {
        self.failed + self.lost
    }
}

/// The runs that ended in one period.
#[derive(Debug, Clone)]
pub struct StatisticsPoint {
    pub starts_at: DateTime<Utc>,
    pub figures: RunFigures,
}

/// The runs of one integration.
#[derive(Debug, Clone)]
pub struct IntegrationFigures {
    /// `None` if the integration was deleted.
    pub integration: Option<IntegrationKey>,
    pub figures: RunFigures,
}

/// The statistics of an environment or an integration.
#[derive(Debug, Clone)]
pub struct Overview {
    /// One for each period, oldest first, including periods without runs.
    pub points: Vec<StatisticsPoint>,
    pub totals: RunFigures,
    /// The integrations with runs, the busiest first.
    pub integrations: Vec<IntegrationFigures>,
}

/// The number of problems of each kind, up to [`MAX_ATTENTION`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attention {
    /// Connections with an error of their authentication or of a sync.
    pub failing_connections: i64,
    /// Syncs of connections, by variant, whose latest run failed.
    pub failing_syncs: i64,
    /// Runs whose deletions wait for an approval.
    pub held_deletions: i64,
    pub dead_letters: i64,
    /// Outbound webhooks that were given up.
    pub failed_deliveries: i64,
}

/// Counts ended runs, and reads the statistics.
pub struct Statistics {
    clock: Clock,
    store: Store,
}

impl Statistics {
    pub fn new(clock: Clock, store: Store) -> Arc<Self> {
        Arc::new(Self { clock, store })
    }

    /// Returns the statistics of an environment, or of one of its integrations.
    pub async fn overview(
        &self,
        environment: EnvironmentPk,
        integration: Option<&IntegrationKey>,
        range: StatisticsRange,
    ) -> Result<Overview, LookupError> {
        let mut conn = self.store.connect().await?;
        let integration = match integration {
            Some(key) => Some(find_integration(&mut conn, environment, key).await?.pk),
            None => None,
        };
        let length = TimeDelta::hours(range.hours().into());
        let since = period_start(self.clock.now(), range.hours()) - length * (range.points() - 1);
        let rows = run_statistics::list(&mut conn, environment, range.hours(), since, integration).await?;

        let mut points: Vec<(DateTime<Utc>, Sum)> =
            (0..range.points()).map(|point| (since + length * point, Sum::default())).collect();
        let mut totals = Sum::default();
        let mut integrations: BTreeMap<IntegrationPk, Sum> = BTreeMap::new();
        for row in &rows {
            if let Some((_, point)) = points.iter_mut().find(|(starts_at, _)| *starts_at == row.starts_at) {
                point.add(row);
            }
            totals.add(row);
            integrations.entry(row.integration).or_default().add(row);
        }
        let pks: Vec<IntegrationPk> = integrations.keys().copied().collect();
        let keys: BTreeMap<_, _> =
            run_statistics::integration_keys(&mut conn, &pks).await?.into_iter().collect();
        let mut integrations: Vec<IntegrationFigures> = integrations
            .into_iter()
            .map(|(pk, sum)| IntegrationFigures {
                integration: keys.get(&pk).cloned(),
                figures: sum.into_figures(),
            })
            .collect();
        integrations.sort_by_key(|integration| std::cmp::Reverse(integration.figures.runs()));
        let points = points
            .into_iter()
            .map(|(starts_at, sum)| StatisticsPoint { starts_at, figures: sum.into_figures() });
        Ok(Overview { points: points.collect(), totals: totals.into_figures(), integrations })
    }

    /// Counts what needs attention in an environment.
    pub async fn attention(&self, environment: EnvironmentPk) -> sqlx::Result<Attention> {
        let problems = attention::count(&mut *self.store.connect().await?, environment).await?;
        let dead_letters =
            attention::count_dead_letters(&mut *self.store.connect_records().await?, environment).await?;
        Ok(Attention {
            failing_connections: problems.connections,
            failing_syncs: problems.syncs,
            held_deletions: problems.held_deletions,
            dead_letters,
            failed_deliveries: problems.deliveries,
        })
    }

    /// Counts ended runs and deletes old statistics, until `shutdown`.
    pub async fn run(self: Arc<Self>, shutdown: CancellationToken) {
        let mut ticks = tokio::time::interval(INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut deleted_at: Option<Instant> = None;
        while shutdown.run_until_cancelled(ticks.tick()).await.is_some() {
            let turn = async {
                while self.count_batch().await? {}
                if deleted_at.is_none_or(|at| at.elapsed() >= DELETE_INTERVAL) {
                    deleted_at = Some(Instant::now());
                    self.delete_old().await?;
                }
                Ok::<_, sqlx::Error>(())
            };
            if let Some(Err(error)) = shutdown.run_until_cancelled(turn).await {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "could not update the statistics of runs; retrying"
                );
            }
        }
    }

    /// Counts the runs that were queued first. Returns whether there may be more.
    async fn count_batch(&self) -> sqlx::Result<bool> {
        let mut tx = self.store.begin().await?;
        if !run_statistics::try_lock(&mut tx).await? {
            return Ok(false);
        }
        // Taking and counting commit together. If this host is lost before, another one takes the same runs.
        let ended = run_statistics::take_ended(&mut tx, BATCH).await?;
        if ended.is_empty() {
            return Ok(false);
        }
        run_statistics::add(&mut tx, &periods(&ended)).await?;
        failpoints::reach(Step::RunsCounting);
        tx.commit().await?;
        failpoints::reach(Step::RunsCounted);
        Ok(ended.len() as i64 == BATCH)
    }

    async fn delete_old(&self) -> sqlx::Result<()> {
        loop {
            let mut conn = self.store.connect().await?;
            let deleted = run_statistics::delete_old(&mut conn, KEPT_FOR, DELETE_BATCH).await?;
            if deleted.cast_signed() < DELETE_BATCH {
                return Ok(());
            }
        }
    }
}

/// The sum of several rows.
#[derive(Default)]
struct Sum {
    figures: RunFigures,
    backoff_ms: i64,
    durations: Histogram,
    queue_delays: Histogram,
}

impl Sum {
    fn add(&mut self, row: &PeriodStatistics) {
        self.figures.succeeded += row.succeeded;
        self.figures.failed += row.failed;
        self.figures.cancelled += row.cancelled;
        self.figures.lost += row.lost;
        self.figures.records_saved += row.records_saved;
        self.figures.records_changed += row.records_changed;
        self.backoff_ms += row.backoff_ms;
        self.durations.add(&row.durations);
        self.queue_delays.add(&row.queue_delays);
    }

    fn into_figures(self) -> RunFigures {
        RunFigures {
            backoff: Duration::from_millis(self.backoff_ms.max(0).cast_unsigned()),
            duration_p50: self.durations.percentile(0.5),
            duration_p95: self.durations.percentile(0.95),
            queue_delay_p50: self.queue_delays.percentile(0.5),
            queue_delay_p95: self.queue_delays.percentile(0.95),
            ..self.figures
        }
    }
}
