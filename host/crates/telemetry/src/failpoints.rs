//! Failpoints for tests. They kill or freeze the host at a given step, or make a background task panic once.
//!
//! Tests then check that other hosts recover the work, and that the task is restarted. Failpoints are part of every
//! build, so that tests run the code that is shipped. A failpoint that is not armed costs one load and one branch,
//! which is negligible next to the database access of each step.

use std::str::FromStr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use nix::sys::signal::{Signal, raise};

macro_rules! steps {
    ($($(#[$doc:meta])* $step:ident = $name:literal,)*) => {
        /// A step at which a test can stop the host.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Step {
            $($(#[$doc])* $step,)*
        }

        impl Step {
            pub const ALL: &[Self] = &[$(Self::$step,)*];

            pub fn name(self) -> &'static str {
                match self { $(Self::$step => $name,)* }
            }
        }
    };
}

steps! {
    /// Schedules are claimed but not committed. Their rows are locked, so no other host can claim them.
    SyncClaiming = "sync-claiming",
    /// Claimed schedules are committed, but their runs have not begun.
    SyncClaimed = "sync-claimed",
    /// A run has increased the fencing token, but not committed it.
    SyncBeginning = "sync-beginning",
    /// The increased fencing token is committed.
    SyncBegun = "sync-begun",
    /// A batch is written, but its checkpoint is not.
    BatchWritten = "batch-written",
    /// Batch, counts and checkpoint are written, but not committed.
    BatchCommitting = "batch-committing",
    /// Batch, counts and checkpoint are committed, but the function has not received the result.
    BatchCommitted = "batch-committed",
    /// A full sync has deleted the records that it did not see, but has not committed.
    SyncCompleting = "sync-completing",
    /// The deletions of a full sync are committed.
    SyncCompleted = "sync-completed",
    /// The run is finished, its schedule is released and its webhooks are queued, but nothing is committed.
    SyncReleasing = "sync-releasing",
    /// The end of the run is committed.
    SyncReleased = "sync-released",
    /// An asynchronous action is stored, but its caller has not received the answer.
    JobQueued = "job-queued",
    /// Jobs are claimed, but their runs have not begun.
    JobClaimed = "job-claimed",
    /// The function has returned, but its result is not written.
    JobReturned = "job-returned",
    /// Result, run and webhook are written, but not committed.
    JobEnding = "job-ending",
    /// Result, run and webhook are committed.
    JobEnded = "job-ended",
    /// The connection's row is deleted, but its runs may still write.
    ConnectionDeleted = "connection-deleted",
    /// Nothing can be written for the connection any more, but its records still exist.
    ConnectionClosed = "connection-closed",
    /// All records of the connection are deleted, but its cleanup is not marked as done.
    ConnectionEmptied = "connection-emptied",
    /// Outbound webhooks are claimed, but not sent.
    WebhookClaimed = "webhook-claimed",
    /// A receiver has answered, but the result is not stored.
    WebhookSent = "webhook-sent",
    /// A variant is marked for deletion, but its records still exist.
    VariantRetired = "variant-retired",
    /// The variant's records are deleted, but its schedule still exists.
    VariantEmptied = "variant-emptied",
    /// Ended runs are counted, but not committed.
    RunsCounting = "runs-counting",
    /// The counts of ended runs are committed.
    RunsCounted = "runs-counted",
    /// The approval of a held deletion is stored, but nothing is deleted.
    ApprovalBegun = "approval-begun",
    /// The held records are deleted, but not committed.
    ApprovalDeleting = "approval-deleting",
    /// The deletion of the held records is committed, but the run is not approved.
    ApprovalDeleted = "approval-deleted",
    /// The run is approved and its webhook is queued, but not committed.
    ApprovalEnding = "approval-ending",
    /// The approval is committed, but its caller has not received the answer.
    ApprovalEnded = "approval-ended",
    /// The record of a dead letter is saved and the letter is deleted, but not committed.
    LetterReplaying = "letter-replaying",
    /// The replay of a dead letter is committed, but its caller has not received the answer.
    LetterReplayed = "letter-replayed",
    /// A deployment is stored, but no host has compiled it.
    DeploymentStaged = "deployment-staged",
    /// Deployment, schedules and settings are switched, but not committed.
    DeploymentSwitching = "deployment-switching",
    /// The switch is committed, but this host has not noticed it.
    DeploymentSwitched = "deployment-switched",
    /// With two databases: a change of records is committed, but its entry in the audit log is not.
    RecordsCommitted = "records-committed",
}

/// What the failpoint does to the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effect {
    /// Ends it at once, as `kill -9` does.
    Kill,
    /// Stops it until it receives `SIGCONT`, as `kill -STOP` does.
    Freeze,
}

/// A failpoint that a test arms.
#[derive(Debug, Clone)]
pub enum Failpoint {
    /// A step, the number of times that the host must reach it, and the effect: `batch-committing:3=kill`.
    Step(StepFailpoint),
    /// The background task of this name panics when it first starts: `task:heartbeat=panic`.
    Task(String),
}

#[derive(Debug, Clone, Copy)]
pub struct StepFailpoint {
    step: Step,
    nth: u32,
    effect: Effect,
}

static ARMED: OnceLock<Failpoint> = OnceLock::new();
static REACHED: AtomicU32 = AtomicU32::new(0);
static TASK_PANICKED: AtomicBool = AtomicBool::new(false);

/// Arms the only failpoint of this process.
pub fn arm(failpoint: Failpoint) {
    tracing::warn!("a failpoint is armed for a test: {failpoint:?}");
    ARMED.set(failpoint).expect("only one failpoint is armed in a process");
}

/// Stops the host here if the failpoint for this step is armed.
pub fn reach(step: Step) {
    if let Some(Failpoint::Step(armed)) = ARMED.get() {
        armed.reach(step);
    }
}

/// Panics if the failpoint for this task is armed and has not panicked before.
pub fn reach_task(name: &str) {
    if let Some(Failpoint::Task(armed)) = ARMED.get()
        && armed == name
        && !TASK_PANICKED.swap(true, Ordering::Relaxed)
    {
        panic!("the armed failpoint makes the task `{name}` panic");
    }
}

impl StepFailpoint {
    fn reach(&self, step: Step) {
        if step != self.step || REACHED.fetch_add(1, Ordering::Relaxed) + 1 != self.nth {
            return;
        }
        let signal = match self.effect {
            Effect::Kill => Signal::SIGKILL,
            Effect::Freeze => Signal::SIGSTOP,
        };
        // Signals this thread, not the process: another thread could handle a process signal while this one continues.
        raise(signal).expect("a process may signal itself");
    }
}

/// The text does not name a known step with a valid effect, or a task.
#[derive(Debug, thiserror::Error)]
#[error("invalid failpoint: use `STEP:COUNT=kill`, `STEP:COUNT=freeze` or `task:NAME=panic`")]
pub struct InvalidFailpoint;

impl FromStr for Failpoint {
    type Err = InvalidFailpoint;

    fn from_str(text: &str) -> Result<Self, InvalidFailpoint> {
        let (at, effect) = text.split_once('=').ok_or(InvalidFailpoint)?;
        let (name, nth) = at.split_once(':').ok_or(InvalidFailpoint)?;
        if name == "task" {
            return if effect == "panic" { Ok(Self::Task(nth.to_owned())) } else { Err(InvalidFailpoint) };
        }
        let step = Step::ALL.iter().copied().find(|step| step.name() == name).ok_or(InvalidFailpoint)?;
        let nth = nth.parse().map_err(|_| InvalidFailpoint)?;
        let effect = match effect {
            "kill" => Effect::Kill,
            "freeze" => Effect::Freeze,
            _ => return Err(InvalidFailpoint),
        };
        Ok(Self::Step(StepFailpoint { step, nth, effect }))
    }
}
