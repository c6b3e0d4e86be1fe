//! How long a host retains records: settings of `syncline serve`.

use std::time::Duration;

use clap::Args;

use syncline_config::period;
use syncline_engine::{Age, RetentionSettings};

#[derive(Debug, Args)]
pub(super) struct RetentionArgs {
    /// Empty payloads that have not changed for this long; `never` keeps them
    #[arg(long, env = "SYNCLINE_PRUNE_AFTER", default_value = "30d", value_name = "DURATION")]
    prune_after: Age,
    /// Permanently delete the records of a sync that has not run for this long; `never` keeps them
    #[arg(long, env = "SYNCLINE_DELETE_AFTER", default_value = "60d", value_name = "DURATION")]
    delete_after: Age,
    /// How often the host checks for payloads to empty and records to delete
    #[arg(long, env = "SYNCLINE_RETENTION_EVERY", default_value = "5m", value_name = "DURATION", value_parser = duration)]
    retention_every: Duration,
}

impl RetentionArgs {
    pub(super) fn settings(&self) -> RetentionSettings {
        RetentionSettings {
            prune_after: self.prune_after,
            delete_after: self.delete_after,
            every: self.retention_every,
        }
    }
}

fn duration(text: &str) -> Result<Duration, &'static str> {
    period(text).ok_or("it must be a duration such as `30s` or `5m`")
}
