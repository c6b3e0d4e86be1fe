//! Jumps of the wall clock of a host.
//!
//! libfaketime changes the time that the host's process reads. Its monotonic clock stays as it is, as in reality.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use chrono::{DateTime, TimeDelta, Utc};
use rand::Rng;
use serde_json::json;
use tempfile::TempDir;

use super::Chaos;
use super::disturbances::Disturbance;
use crate::support::{Api, HostOptions};

/// Where Debian installs libfaketime.
const LIBRARIES: [&str; 3] = [
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib/faketime/libfaketimeMT.so.1",
];
const JUMP_MINUTES: std::ops::RangeInclusive<i64> = 2..=45;
/// How long a clock is wrong after the host has shown the wrong time, in milliseconds.
const DURATION_MS: std::ops::Range<u64> = 200..2_500;
/// A host shows its new time within this time. libfaketime reads the file once a second.
const PATIENCE: Duration = Duration::from_secs(5);

/// The wall clock of one host.
pub struct WallClock {
    folder: TempDir,
    library: &'static str,
}

impl WallClock {
    /// Returns `None` if libfaketime is not installed.
    pub fn create() -> Option<Self> {
        let library = LIBRARIES.into_iter().find(|library| Path::new(library).exists())?;
        let clock = Self { folder: TempDir::new().expect("a temporary folder can be made"), library };
        clock.set(TimeDelta::zero());
        Some(clock)
    }

    /// Makes a host use this clock.
    pub fn connect(&self, options: HostOptions) -> HostOptions {
        options
            .variable("LD_PRELOAD", self.library)
            .variable("FAKETIME_TIMESTAMP_FILE", self.file().to_str().expect("the folder has a plain name"))
            .variable("FAKETIME_CACHE_DURATION", "1")
            .variable("FAKETIME_DONT_FAKE_MONOTONIC", "1")
    }

    /// Sets how far the clock is ahead of the real time.
    fn set(&self, offset: TimeDelta) {
        // The host never reads a half-written file.
        let new = self.folder.path().join("new");
        std::fs::write(&new, format!("{:+}", offset.num_seconds())).expect("the folder is writable");
        std::fs::rename(new, self.file()).expect("the folder is writable");
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("offset")
    }

    /// Removes the shared memory that libfaketime leaves behind if its process is killed.
    pub fn clean_up(process: u32) {
        for name in [format!("faketime_shm_{process}"), format!("sem.faketime_sem_{process}")] {
            let _is_gone = std::fs::remove_file(Path::new("/dev/shm").join(name));
        }
    }
}

impl Chaos {
    /// Makes the clock of a random host jump. After a while, it jumps back.
    pub fn jump_clock(&mut self) {
        let member = self.random.random_range(0..self.hosts.len());
        let minutes = self.random.random_range(JUMP_MINUTES);
        let offset = TimeDelta::minutes(if self.random.random_bool(0.5) { minutes } else { -minutes });
        let duration = Duration::from_millis(self.random.random_range(DURATION_MS));
        let (api, clock) = (Api::clone(&self.hosts[member]), self.hosts[member].clock.clone());
        let Some(clock) = clock else { return };
        self.ongoing.spawn(async move {
            clock.set(offset);
            let has_jumped = shows(&api, offset).await;
            tokio::time::sleep(duration).await;
            clock.set(TimeDelta::zero());
            let is_back = shows(&api, TimeDelta::zero()).await;
            (has_jumped && is_back).then_some(Disturbance::ClockJumped)
        });
    }
}

/// Waits until the host's time differs from the real time by `offset`.
async fn shows(api: &Api, offset: TimeDelta) -> bool {
    let began = Instant::now();
    while began.elapsed() < PATIENCE {
        // A host accepts times of browsers that are at most two hours off.
        let near = TimeDelta::seconds(7_200 - 45);
        if is_plausible(api, Utc::now() + offset + near).await
            && is_plausible(api, Utc::now() + offset - near).await
        {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(150)).await;
    }
    false
}

/// Whether the host accepts this time of a browser. It checks the time before the session, which does not exist.
async fn is_plausible(api: &Api, timestamp: DateTime<Utc>) -> bool {
    let event = json!({ "token": "unknown", "event": "open", "timestamp": timestamp });
    let request = api.request("POST", "/connect/telemetry").json(&event).try_send();
    match tokio::time::timeout(Duration::from_secs(1), request).await {
        Ok(Ok(answer)) => answer.json()["error"]["code"] != "invalid_value",
        _ => false,
    }
}
