//! Recordings of runs.
//!
//! A recording contains everything that a function received from the host, and the outcome of its run. A replay runs
//! the function again with the same data, and compares the outcomes. The format is documented in
//! `docs/reference/recordings.md`.

mod comparison;
mod exchange;
mod file;
mod masking;
mod outcome;
mod player;
mod recorder;

pub use self::comparison::{changed_fields, differences};
pub use self::exchange::{Exchange, RecordedRequest, RecordedResponse};
pub use self::file::{FORMAT, InvalidRecording, KeptRecord, RecordedConnection, RecordedRun, Recording};
pub use self::masking::Masking;
pub use self::outcome::{LoggedLine, Outcome, RecordChange, RunFailure, SavedRecord};
pub use self::player::Player;
pub use self::recorder::Recorder;
