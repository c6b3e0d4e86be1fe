//! What one invocation may use.

use std::fmt;
use std::time::Duration;

use wasmtime::ResourceLimiter;

/// Tables larger than this are refused, whatever the limits of a function say.
pub(super) const MAX_TABLE_ELEMENTS: usize = 200_000;

/// The bounds of one invocation. Crossing one ends it with an error that names the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Time on a processor.
    pub cpu: Duration,
    /// Time from start to end, waiting included.
    pub wall: Duration,
    pub memory_bytes: usize,
    pub log_bytes: usize,
    /// The value that the function returns.
    pub output_bytes: usize,
    /// The body of one answer of the provider, decompressed.
    pub response_bytes: usize,
    pub requests: u64,
    /// One call of `records.commit`.
    pub batch_bytes: usize,
    /// The text of one record.
    pub record_bytes: usize,
    /// Records saved by one invocation.
    pub records: u64,
    /// Of a sync: time without a commit. Watched by whoever runs it.
    pub idle: Duration,
}

impl Limits {
    /// No invocation gets more memory than this, whatever its limits say.
    pub const MAX_MEMORY_BYTES: usize = 512 << 20;

    /// For an action: somebody waits for it.
    pub const ACTION: Self = Self {
        cpu: Duration::from_secs(30),
        wall: Duration::from_secs(120),
        memory_bytes: 128 << 20,
        log_bytes: 1 << 20,
        output_bytes: 2 << 20,
        response_bytes: 32 << 20,
        requests: 1_000,
        batch_bytes: 50 << 20,
        record_bytes: 10 << 20,
        records: 100_000,
        idle: Duration::MAX,
    };

    /// For a sync: it works in the background and may go through millions of records.
    pub const SYNC: Self = Self {
        cpu: Duration::from_secs(3_600),
        wall: Duration::from_secs(24 * 3_600),
        memory_bytes: 256 << 20,
        log_bytes: 4 << 20,
        requests: 1_000_000,
        records: 100_000_000,
        idle: Duration::from_secs(3_600),
        ..Self::ACTION
    };

    /// For describing a component at deployment.
    pub(super) const DESCRIBE: Self = Self {
        cpu: Duration::from_secs(5),
        wall: Duration::from_secs(10),
        log_bytes: 64 << 10,
        ..Self::ACTION
    };
}

/// The limit that was crossed, with its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    Cpu(Duration),
    Wall(Duration),
    Memory(usize),
    Table(usize),
    Log(usize),
    Output(usize),
    Requests(u64),
    Records(u64),
    /// Of what is kept of one model, connection and variant.
    Stream(u64),
    Stack,
}

impl Limit {
    /// The name of the limit, as in the sync configuration file.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Cpu(_) => "cpu",
            Self::Wall(_) => "wall",
            Self::Memory(_) => "memory",
            Self::Table(_) => "table",
            Self::Log(_) => "log",
            Self::Output(_) => "output",
            Self::Requests(_) => "requests",
            Self::Records(_) => "records",
            Self::Stream(_) => "stream",
            Self::Stack => "stack",
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu(time) => {
                write!(f, "the function used more than its {time:?} of processor time (limit `cpu`)")
            }
            Self::Wall(time) => write!(f, "the function took longer than its {time:?} (limit `wall`)"),
            Self::Memory(bytes) => {
                write!(
                    f,
                    "the function asked for more than its {} MB of memory (limit `memory`)",
                    bytes >> 20
                )
            }
            Self::Table(elements) => {
                write!(f, "the function grew a table beyond {elements} elements (limit `table`)")
            }
            Self::Log(bytes) => {
                write!(f, "the function logged more than its {} KB (limit `log`)", bytes >> 10)
            }
            Self::Output(bytes) => {
                write!(f, "the function returned more than its {} KB (limit `output`)", bytes >> 10)
            }
            Self::Requests(count) => {
                write!(f, "the function sent more than its {count} requests (limit `requests`)")
            }
            Self::Records(count) => {
                write!(f, "the function saved more than its {count} records (limit `records`)")
            }
            Self::Stream(count) => write!(
                f,
                "the connection would have more than {count} records of one model and variant (limit `stream`)"
            ),
            Self::Stack => write!(f, "the function called itself too deeply (limit `stack`)"),
        }
    }
}

/// Refuses growth beyond the limits, and remembers that it did: a guest only sees that it got no memory, and
/// usually ends with a trap that says nothing of the cause.
#[derive(Debug)]
pub(super) struct MemoryLimiter {
    memory_bytes: usize,
    in_use_bytes: usize,
    pub(super) peak_bytes: usize,
    pub(super) refused: Option<Limit>,
}

impl MemoryLimiter {
    pub(super) fn new(limits: &Limits) -> Self {
        Self { memory_bytes: limits.memory_bytes, in_use_bytes: 0, peak_bytes: 0, refused: None }
    }
}

impl ResourceLimiter for MemoryLimiter {
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        let in_use = self.in_use_bytes + desired.saturating_sub(current);
        if in_use > self.memory_bytes {
            self.refused = Some(Limit::Memory(self.memory_bytes));
            return Ok(false);
        }
        self.in_use_bytes = in_use;
        self.peak_bytes = self.peak_bytes.max(in_use);
        Ok(true)
    }

    fn table_growing(
        &mut self,
        _current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        if desired > MAX_TABLE_ELEMENTS {
            self.refused = Some(Limit::Table(MAX_TABLE_ELEMENTS));
            return Ok(false);
        }
        Ok(true)
    }
}
