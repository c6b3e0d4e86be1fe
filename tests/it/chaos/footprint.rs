//! The resources that a host uses.

use std::fmt;
use std::path::Path;

use crate::support::Host;

/// The resources that a host uses.
pub struct Footprint {
    process: u32,
    memory_mb: u64,
    files: usize,
}

impl Footprint {
    pub fn of(host: &Host) -> Self {
        let folder = format!("/proc/{}", host.process());
        let files = std::fs::read_dir(Path::new(&folder).join("fd")).map(Iterator::count).unwrap_or_default();
        Self { process: host.process(), memory_mb: host.memory_mb(), files }
    }
}

impl fmt::Display for Footprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "host {}: {} MB, {} files", self.process, self.memory_mb, self.files)
    }
}

/// Checks that a host that lived through many rounds uses no more resources at the end than after warming up.
pub fn assert_flat(footprints: &[Footprint]) {
    const WARM: usize = 10;
    let Some(last) = footprints.last() else { return };
    let same: Vec<&Footprint> = footprints.iter().filter(|one| one.process == last.process).collect();
    if same.len() < 3 * WARM {
        return;
    }
    let warm = same[WARM];
    assert!(last.files <= warm.files + 20, "files: {} after warming up, {} now", warm.files, last.files);
    let most = warm.memory_mb * 3 / 2 + 30;
    assert!(last.memory_mb <= most, "memory: {} MB after warming up, {} now", warm.memory_mb, last.memory_mb);
}
