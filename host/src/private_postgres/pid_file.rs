//! `postmaster.pid`, which identifies a running Postgres and may remain after a crash.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::Pid;
use tracing::warn;

use super::shutdown::SHUTDOWN_STEPS;
use super::{PrivatePostgresError, io_error, postmaster};

/// What a running server states about itself.
#[derive(Debug, PartialEq, Eq)]
pub struct PidFile {
    pub pid: Pid,
    /// Missing only while the server starts.
    pub socket_directory: Option<PathBuf>,
}

/// Returns the server that is running on a cluster, if there is one.
pub fn find_live(cluster: &Path) -> Result<Option<PidFile>, PrivatePostgresError> {
    let path = path_in(cluster);
    let text = match fs::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io_error("read", &path)(error)),
    };
    Ok(parse(&text).filter(|file| is_postmaster_of(file.pid, cluster)))
}

/// Ensures that no server is running on the cluster. The caller holds the lock. Stops a server that is still
/// running. Also removes the files of a dead server, because another process may have its process id by now, and
/// Postgres would take that process for a running server. Returns whether there was a server or a file.
pub async fn clear(cluster: &Path) -> Result<bool, PrivatePostgresError> {
    if let Some(orphan) = find_live(cluster)? {
        warn!("stopping the Postgres (process {}) that a killed host left running", orphan.pid);
        end(orphan.pid, cluster).await?;
    }
    let socket = format!(".s.PGSQL.{}", postmaster::PORT);
    let leftovers = [path_in(cluster), cluster.join(format!("{socket}.lock")), cluster.join(socket)];
    let mut found = false;
    for leftover in leftovers {
        match fs::remove_file(&leftover) {
            Ok(()) => found = true,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(io_error("remove", &leftover)(error)),
        }
    }
    Ok(found)
}

/// Stops a server that is not our child process, so its end can only be observed by polling.
async fn end(pid: Pid, cluster: &Path) -> Result<(), PrivatePostgresError> {
    for (signal, patience) in SHUTDOWN_STEPS {
        // An error means that the process has already exited, which the loop detects.
        rustix::process::kill_process(pid, signal).ok();
        let sent_at = Instant::now();
        while sent_at.elapsed() < patience {
            if !is_postmaster_of(pid, cluster) {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    Err(PrivatePostgresError::DoesNotStop { pid: pid.as_raw_nonzero().get() })
}

fn path_in(cluster: &Path) -> PathBuf {
    cluster.join("postmaster.pid")
}

/// Parses the lines: process id, data directory, start time, port, socket directory, …, as far as the server has
/// started.
fn parse(text: &[u8]) -> Option<PidFile> {
    let mut lines = text.split(|byte| *byte == b'\n');
    let pid = str::from_utf8(lines.next()?).ok()?.trim().parse().ok()?;
    let socket_directory = lines.nth(3).filter(|line| !line.is_empty());
    Some(PidFile {
        pid: Pid::from_raw(pid)?,
        socket_directory: socket_directory.map(|line| PathBuf::from(OsStr::from_bytes(line))),
    })
}

/// Whether the process is a Postgres that runs in this directory. A process id alone proves nothing.
#[cfg(target_os = "linux")]
fn is_postmaster_of(pid: Pid, cluster: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;

    let process = PathBuf::from(format!("/proc/{}", pid.as_raw_nonzero()));
    let command = fs::read(process.join("cmdline")).unwrap_or_default();
    let program = command.split(|byte| *byte == 0).next().unwrap_or_default();
    let is_postgres = Path::new(OsStr::from_bytes(program)).file_name() == Some(OsStr::new("postgres"));
    let (Ok(works_in), Ok(cluster)) = (fs::metadata(process.join("cwd")), fs::metadata(cluster)) else {
        return false;
    };
    is_postgres && (works_in.dev(), works_in.ino()) == (cluster.dev(), cluster.ino())
}

/// Whether the process is a Postgres that was started on this directory. A process id alone proves nothing.
#[cfg(not(target_os = "linux"))]
fn is_postmaster_of(pid: Pid, cluster: &Path) -> bool {
    let pid = pid.as_raw_nonzero().to_string();
    let listing = std::process::Command::new("ps").args(["-ww", "-o", "command=", "-p", &pid]).output();
    listing.is_ok_and(|listing| {
        let command = String::from_utf8_lossy(&listing.stdout);
        command.contains("/postgres ") && command.contains(&*cluster.to_string_lossy())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pid_file_of_a_starting_server_is_parsed() {
        let pid = Pid::from_raw(4711).unwrap();
        let whole = "4711\n/data/postgres\n1700000000\n5432\n/data/postgres\n\n  12 34\nready   \n";
        let socket_directory = Some(PathBuf::from("/data/postgres"));
        assert_eq!(parse(whole.as_bytes()), Some(PidFile { pid, socket_directory }));
        let young = parse(b"4711\n/data/postgres\n1700000000\n5432\n");
        assert_eq!(young, Some(PidFile { pid, socket_directory: None }));
        assert_eq!(parse(b""), None);
        assert_eq!(parse(b"0\n"), None);
        assert_eq!(parse(b"junk\n"), None);
    }
}
