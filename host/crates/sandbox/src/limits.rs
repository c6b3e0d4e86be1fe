//! The limits of one invocation.

use std::fmt;
use std::time::Duration;

use wasmtime::ResourceLimiter;

use syncline_types::units::TimeSpan;

/// Tables larger than this are rejected, independently of a function's limits.
pub(super) const MAX_TABLE_ELEMENTS: usize = 200_000;

/// The limits of one invocation. Exceeding one ends the invocation with an error that names the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// CPU time.
    pub cpu: Duration,
    /// Time from start to end, including waiting.
    pub wall: Duration,
    pub memory_bytes: usize,
    pub log_bytes: usize,
    /// Maximum size of the function's return value.
    pub output_bytes: usize,
    /// Maximum size of the body of one provider answer, after decompression.
    pub response_bytes: usize,
    pub requests: u64,
    /// Maximum size of one call of `records.commit`.
    pub batch_bytes: usize,
    /// Maximum size of one record as JSON.
    pub record_bytes: usize,
    /// Maximum number of records that one invocation saves.
    pub records: u64,
    /// For a sync: maximum time without a commit. The sandbox's caller enforces it.
    pub idle: Duration,
}

impl Limits {
    /// The maximum memory of an invocation, independently of its limits.
    pub const MAX_MEMORY_BYTES: usize = 512 << 20;

    /// The defaults for an action, whose caller waits.
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

    /// The defaults for a sync, which runs in the background and may process millions of records.
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

    /// The limits for describing a component during a deployment.
    pub(super) const DESCRIBE: Self = Self {
        cpu: Duration::from_secs(5),
        wall: Duration::from_secs(10),
        log_bytes: 64 << 10,
        ..Self::ACTION
    };
}

/// The limit that was exceeded, with its value.
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
    /// The stored records of one model, connection and variant.
    Stream(u64),
    Stack,
}

impl Limit {
    /// Returns the name of the limit, as in `syncline.toml`.
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

impl Limit {
    /// What the function exceeded, without what to do next.
    pub(super) fn problem(&self) -> String {
        match self {
            Self::Cpu(time) => {
                format!("the function used more than {} of CPU time (limit `cpu`)", TimeSpan(*time))
            }
            Self::Wall(time) => format!("the function took longer than {} (limit `wall`)", TimeSpan(*time)),
            Self::Memory(bytes) => {
                format!("the function requested more than {} MB of memory (limit `memory`)", bytes >> 20)
            }
            Self::Table(elements) => {
                format!("the function requested a table of more than {elements} elements (limit `table`)")
            }
            Self::Log(bytes) => format!("the function logged more than {} KB (limit `log`)", bytes >> 10),
            Self::Output(bytes) => {
                format!("the function returned more than {} KB (limit `output`)", bytes >> 10)
            }
            Self::Requests(count) => {
                format!("the function sent more than {count} requests (limit `requests`)")
            }
            Self::Records(count) => format!("the function saved more than {count} records (limit `records`)"),
            Self::Stream(count) => format!(
                "the connection would have more than {count} records of one model and variant (limit `stream`)"
            ),
            Self::Stack => "the function's calls are nested too deeply (limit `stack`)".to_owned(),
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; ", self.problem())?;
        let remedy = match self {
            Self::Cpu(_) | Self::Wall(_) => "reduce the work",
            Self::Memory(_) => "use less memory",
            Self::Log(_) => "log less",
            Self::Output(_) => "return less",
            Self::Requests(_) => "send fewer requests",
            Self::Records(_) => "save fewer records",
            Self::Table(_) => return f.write_str("use a smaller table, because this limit is fixed"),
            Self::Stream(_) => {
                return f.write_str(
                    "save fewer records, or let the operator raise the setting SYNCLINE_MAX_STREAM_RECORDS",
                );
            }
            Self::Stack => return f.write_str("use loops instead of recursion, because this limit is fixed"),
        };
        write!(f, "{remedy}, or raise `limits.{}` in syncline.toml", self.name())
    }
}

/// Rejects growth beyond the limits and records the rejection. A guest only sees that an allocation failed, and
/// usually traps without naming the cause.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exceeded_limit_says_what_to_do() {
        assert_eq!(
            Limit::Wall(Duration::from_secs(120)).to_string(),
            "the function took longer than 2 minutes (limit `wall`); reduce the work, or raise `limits.wall` in \
             syncline.toml"
        );
        assert_eq!(
            Limit::Stack.to_string(),
            "the function's calls are nested too deeply (limit `stack`); use loops instead of recursion, because this \
             limit is fixed"
        );
    }
}
