//! The process metrics that Prometheus client libraries export by convention, under their standard names.

use std::fs;
use std::sync::atomic::AtomicU64;
use std::time::{SystemTime, UNIX_EPOCH};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use rustix::time::{ClockId, clock_gettime};

pub(super) struct Process {
    cpu_seconds: Counter<f64, AtomicU64>,
    resident_bytes: Gauge,
    open_fds: Gauge,
}

impl Process {
    pub(super) fn new(registry: &mut Registry) -> Self {
        let named = registry.sub_registry_with_prefix("process");
        let process = Self {
            cpu_seconds: Counter::default(),
            resident_bytes: Gauge::default(),
            open_fds: Gauge::default(),
        };
        let started: Gauge<f64, AtomicU64> = Gauge::default();
        started.set(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64());
        named.register_with_unit(
            "cpu",
            "CPU time of the process",
            Unit::Seconds,
            process.cpu_seconds.clone(),
        );
        named.register_with_unit(
            "resident_memory",
            "Resident memory of the process",
            Unit::Bytes,
            process.resident_bytes.clone(),
        );
        named.register("open_fds", "Open file descriptors", process.open_fds.clone());
        named.register_with_unit(
            "start_time",
            "Start time of the process, in seconds since 1970",
            Unit::Seconds,
            started,
        );
        process
    }

    /// Reads the current values from the operating system. A value that cannot be read keeps its previous value.
    pub(super) fn observe(&self) {
        let cpu = clock_gettime(ClockId::ProcessCPUTime);
        let cpu = cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9;
        self.cpu_seconds.inner().store(cpu.to_bits(), std::sync::atomic::Ordering::Relaxed);
        if let Some(kilobytes) = resident_kilobytes() {
            self.resident_bytes.set(kilobytes * 1024);
        }
        if let Ok(open) = fs::read_dir("/proc/self/fd") {
            self.open_fds.set(open.count() as i64);
        }
    }
}

fn resident_kilobytes() -> Option<i64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
}
