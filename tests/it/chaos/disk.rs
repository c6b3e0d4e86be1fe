//! A disk of limited size for the files of a Postgres, which a disturbance can fill.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rand::Rng;
use rustix::fs::{FallocateFlags, fallocate, statvfs};
use sqlx::{Connection, PgConnection};

use super::Chaos;
use crate::support::eventually;

/// Larger than everything that a sequence writes. The image takes only the space that is used.
const DISK_BYTES: u64 = 16 << 30;
const DURATION_MS: std::ops::Range<u64> = 300..2_500;
/// Postgres keeps up to five segments of its log for reuse, and panics if there is no space for another one.
const SEGMENTS: u32 = 8;
/// Needs more space than a full disk has left.
const LARGE_TABLE: &str = "CREATE TABLE large AS SELECT * FROM generate_series(1, 100000)";

/// A file system in an image, which is unmounted when the value is dropped.
pub struct Disk {
    mounted_at: PathBuf,
}

impl Disk {
    /// Creates a disk in `folder` and mounts it. Fails without the permission to mount.
    pub fn mount(folder: &Path, mounted_at: &Path) -> Result<Self, String> {
        let image = folder.join("disk");
        let file = File::create(&image).and_then(|file| file.set_len(DISK_BYTES));
        file.map_err(|error| error.to_string())?;
        fs::create_dir_all(mounted_at).map_err(|error| error.to_string())?;
        run(Command::new("mkfs.ext4")
            .args(["-q", "-m", "0", "-E", "lazy_itable_init,lazy_journal_init"])
            .arg(&image))?;
        run(Command::new("mount").args(["-o", "loop,discard"]).arg(&image).arg(mounted_at))?;
        Ok(Self { mounted_at: mounted_at.to_owned() })
    }

    /// Leaves no space.
    fn fill(&self) {
        let ballast = File::create(self.ballast()).expect("there is space for an empty file");
        let (mut length, mut step) = (0, self.free_bytes());
        while step >= 4096 {
            match fallocate(&ballast, FallocateFlags::empty(), length, step) {
                Ok(()) => length += step,
                Err(_no_space) => step /= 2,
            }
            step = step.min(self.free_bytes());
        }
    }

    /// Ends [`fill`](Self::fill).
    fn empty(&self) {
        fs::remove_file(self.ballast()).expect("the ballast exists");
    }

    fn free_bytes(&self) -> u64 {
        let disk = statvfs(&self.mounted_at).expect("the disk is mounted");
        disk.f_bavail * disk.f_frsize
    }

    fn ballast(&self) -> PathBuf {
        self.mounted_at.join("ballast")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Postgres may still be shutting down. The disk is gone as soon as it has ended.
        let unmounted = Command::new("umount").arg("--lazy").arg(&self.mounted_at).status();
        if !unmounted.is_ok_and(|status| status.success()) {
            eprintln!("{} is still mounted", self.mounted_at.display());
        }
    }
}

fn run(command: &mut Command) -> Result<(), String> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("{}: {error}", command.get_program().display()))?;
    if output.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
}

impl Chaos {
    /// Fills the disk of a random server for a while. Returns whether Postgres had too little space.
    pub async fn fill_disk(&mut self) -> bool {
        let duration = Duration::from_millis(self.random.random_range(DURATION_MS));
        let exhausts_log = self.random.random_bool(0.3);
        let server = self.random_server();
        let url = server.url();
        let Some(disk) = &server.disk else { return false };
        disk.fill();
        let was_full = fails(&url, LARGE_TABLE).await;
        if exhausts_log {
            for _segment in 0..SEGMENTS {
                fails(&url, "CREATE TEMPORARY TABLE written (); SELECT pg_switch_wal()").await;
            }
        }
        tokio::time::sleep(duration).await;
        disk.empty();
        server.start_if_ended().await;
        // After a panic, it recovers first.
        eventually("Postgres works again", async || {
            (!fails(&url, "DROP TABLE IF EXISTS large").await).then_some(())
        })
        .await;
        was_full
    }
}

/// Whether Postgres cannot execute a statement.
async fn fails(url: &str, statement: &'static str) -> bool {
    let executed = async {
        let mut conn = PgConnection::connect(url).await?;
        sqlx::raw_sql(statement).execute(&mut conn).await?;
        conn.close().await
    };
    !matches!(tokio::time::timeout(Duration::from_secs(5), executed).await, Ok(Ok(())))
}
