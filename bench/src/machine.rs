//! The machine on which the numbers were measured.

use std::fmt;
use std::process::Command;

use chrono::{SecondsFormat, Utc};
use serde::Serialize;

#[derive(Serialize)]
pub struct Machine {
    cores: usize,
    cpu: String,
    memory_gb: u64,
    kernel: String,
    build: &'static str,
    commit: String,
    date: String,
    /// Average number of processes that used or waited for a core in the minute before. Above 0.5, other programs
    /// were busy.
    load_before: f64,
}

impl Machine {
    pub fn look() -> Self {
        let meminfo = read("/proc/meminfo");
        let memory_kb: u64 = field(&meminfo, "MemTotal")
            .and_then(|text| text.strip_suffix(" kB")?.parse().ok())
            .unwrap_or_default();
        Self {
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            cpu: field(&read("/proc/cpuinfo"), "model name").unwrap_or("unknown processor").to_owned(),
            memory_gb: memory_kb.div_ceil(1 << 20),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            build: if cfg!(debug_assertions) { "dev" } else { "release" },
            commit: commit(),
            date: Utc::now().to_rfc3339_opts(SecondsFormat::Secs, true),
            load_before: read("/proc/loadavg")
                .split(' ')
                .next()
                .and_then(|load| load.parse().ok())
                .unwrap_or(f64::NAN),
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cores, cpu, memory_gb, kernel, build, commit, date, load_before } = self;
        write!(
            f,
            "{date}, commit {commit}, {build} build; {cores} cores of {cpu}, {memory_gb} GB, Linux {kernel}, load \
             {load_before} before"
        )
    }
}

/// Returns the commit, with a mark if there are uncommitted changes.
fn commit() -> String {
    let described = Command::new("git").args(["describe", "--always", "--dirty", "--exclude", "*"]).output();
    match described {
        Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout).trim().to_owned(),
        _ => "unknown".to_owned(),
    }
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// Returns the value of a line `name : value`, the format of files in /proc.
pub fn field<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(key, _)| key.trim() == name)
        .map(|(_, value)| value.trim())
}
