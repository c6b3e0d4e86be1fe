//! Kinds of functions, and the states of runs and jobs.
//!
//! Each value has the same text in the configuration file, the database and the API.

use serde::{Deserialize, Serialize};
use strum::{Display, EnumString, IntoStaticStr, VariantArray};

/// Declares an enum whose values are written as their lower-case names in the database and on the wire.
macro_rules! text_enum {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(
            Debug,
            Clone,
            Copy,
            PartialEq,
            Eq,
            PartialOrd,
            Ord,
            Hash,
            Display,
            EnumString,
            IntoStaticStr,
            VariantArray,
            Serialize,
            Deserialize,
        )]
        #[serde(rename_all = "lowercase")]
        #[strum(serialize_all = "lowercase")]
        #[cfg_attr(feature = "sqlx", derive(sqlx::Type), sqlx(type_name = "text", rename_all = "lowercase"))]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)+
        }

        impl $name {
            pub const ALL: &[Self] = Self::VARIANTS;

            pub fn as_str(self) -> &'static str {
                self.into()
            }
        }
    };
}

pub(crate) use text_enum;

text_enum!(
    /// The kind of a function. Its text is the first argument of a component's `invoke`.
    FunctionKind {
        /// Runs on a schedule and saves records.
        Sync,
        /// Runs on demand for one connection.
        Action,
        /// Handles a provider's webhook.
        Webhook,
        /// Handles an event of a connection, such as its creation.
        Lifecycle,
    }
);

text_enum!(
    /// Why a run was started.
    RunTrigger {
        /// A sync's schedule was due.
        Schedule,
        /// A client triggered a sync.
        Trigger,
        /// A client started a paused sync.
        Start,
        /// The previous run failed.
        Retry,
        /// A client called an action.
        Api,
        /// An event of the connection occurred.
        Lifecycle,
        /// A provider's webhook arrived.
        Webhook,
    }
);

text_enum!(
    /// The state of a run.
    RunState {
        Running,
        Success,
        Error,
        /// The run was stopped before its function returned.
        Cancelled,
        /// The run's host did not renew the lease.
        Lost,
    }
);

text_enum!(
    /// The state of a job.
    JobState { Queued, Running, Success, Error }
);

/// Which runs of a sync are recorded.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Display,
    EnumString,
    IntoStaticStr,
    VariantArray,
    Serialize,
    Deserialize,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
#[cfg_attr(feature = "sqlx", derive(sqlx::Type), sqlx(type_name = "text", rename_all = "snake_case"))]
pub enum RecordedRuns {
    /// The first run that fails.
    NextFailedRun,
    EveryRun,
}

impl RecordedRuns {
    pub const ALL: &[Self] = Self::VARIANTS;

    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

impl FunctionKind {
    /// Returns the trigger of a run of this kind that has no schedule.
    pub fn direct_trigger(self) -> RunTrigger {
        match self {
            Self::Sync => RunTrigger::Trigger,
            Self::Action => RunTrigger::Api,
            Self::Webhook => RunTrigger::Webhook,
            Self::Lifecycle => RunTrigger::Lifecycle,
        }
    }
}
