//! Steps at which a test ends or freezes the host, to see what others make of what it leaves, and tasks that panic, to see
//! that they are started again.
//!
//! They are in every build, so that what is tested is what is shipped. One that was not armed is a load and a branch,
//! beside steps that each wait for the database.

use std::str::FromStr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use nix::sys::signal::{Signal, raise};

macro_rules! steps {
    ($($(#[$doc:meta])* $step:ident = $name:literal,)*) => {
        /// Where a host may be stopped.
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
    /// Schedules are claimed; not committed, and no other host can claim meanwhile.
    SyncClaiming = "sync-claiming",
    /// The same, committed; nobody has begun to run them.
    SyncClaimed = "sync-claimed",
    /// A run has raised the fence; not committed.
    SyncBeginning = "sync-beginning",
    /// The same, committed.
    SyncBegun = "sync-begun",
    /// A batch is written, its checkpoint is not.
    BatchWritten = "batch-written",
    /// Batch, counts and checkpoint are written; not committed.
    BatchCommitting = "batch-committing",
    /// The same, committed; the function does not know.
    BatchCommitted = "batch-committed",
    /// A full sync has deleted what it has not seen; not committed.
    SyncCompleting = "sync-completing",
    /// The same, committed.
    SyncCompleted = "sync-completed",
    /// The run is closed, its schedule is free and its webhooks are written; not committed.
    SyncReleasing = "sync-releasing",
    /// The same, committed.
    SyncReleased = "sync-released",
    /// An asynchronous action is stored; its caller does not know.
    JobQueued = "job-queued",
    /// Jobs are claimed, and nobody has begun to run them.
    JobClaimed = "job-claimed",
    /// The function has returned, and nothing is written of it.
    JobReturned = "job-returned",
    /// Result, run and webhook are written; not committed.
    JobEnding = "job-ending",
    /// The same, committed.
    JobEnded = "job-ended",
    /// A connection's row is gone, and what runs for it may still write.
    ConnectionDeleted = "connection-deleted",
    /// Nothing can be written for it any more; its records are there.
    ConnectionClosed = "connection-closed",
    /// All of its records are gone, and it is not noted.
    ConnectionEmptied = "connection-emptied",
    /// Webhooks are claimed, and none is sent.
    WebhookClaimed = "webhook-claimed",
    /// A receiver has answered, and it is not noted.
    WebhookSent = "webhook-sent",
    /// A variant is retired; its records are there.
    VariantRetired = "variant-retired",
    /// The same without its records; its schedule is there.
    VariantEmptied = "variant-emptied",
}

/// What happens to the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effect {
    /// As by `kill -9`.
    Kill,
    /// As by `kill -STOP`: until somebody lets it go on.
    Freeze,
}

/// What a test wants to happen.
#[derive(Debug, Clone)]
pub enum Failpoint {
    /// A step, how often it has to be reached, and what happens then: `batch-committing:3=kill`.
    Step(StepFailpoint),
    /// The background task of this name panics when it starts for the first time: `task:heartbeat=panic`.
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

/// Arms the one failpoint of this process.
pub fn arm(failpoint: Failpoint) {
    tracing::warn!("armed for a test: {failpoint:?}");
    ARMED.set(failpoint).expect("a process is armed once");
}

/// To be called where the step has been reached.
pub fn reach(step: Step) {
    if let Some(Failpoint::Step(armed)) = ARMED.get() {
        armed.reach(step);
    }
}

/// To be called where a background task starts.
pub fn reach_task(name: &str) {
    if let Some(Failpoint::Task(armed)) = ARMED.get()
        && armed == name
        && !TASK_PANICKED.swap(true, Ordering::Relaxed)
    {
        panic!("a test makes the task `{name}` panic");
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
        // To this thread and not to its process: another thread would take it, and this one would go on until then.
        raise(signal).expect("a process may signal itself");
    }
}

/// The text names no step, or nothing that can happen there.
#[derive(Debug, thiserror::Error)]
#[error("a failpoint is written as `STEP:TIME=kill`, `STEP:TIME=freeze` or `task:NAME=panic`")]
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
