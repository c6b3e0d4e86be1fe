//! The server process: it dies with the host, is awaited until it accepts connections, and is stopped in order.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use std::{env, fs, io};

use rustix::process::Pid;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{ConnectOptions, Connection};
use tempfile::TempDir;
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::cluster::Cluster;
use super::shutdown::SHUTDOWN_STEPS;
use super::{PrivatePostgresError, io_error, server_user};

/// Part of the socket's name. Nothing listens on a network port.
pub const PORT: u16 = 5432;

/// The longest socket path that every Unix accepts. macOS has 104 bytes including the final zero.
const LONGEST_SOCKET_PATH: usize = 103;

/// How long the server may not respond at all. During crash recovery, it responds that it is starting.
const SILENCE_LIMIT: Duration = Duration::from_mins(1);

/// How long the processes of a killed server may keep its shared memory. Each of them ends with its current
/// statement.
const LEFTOVERS_LIMIT: Duration = Duration::from_secs(30);

/// Safe for the data and modest with memory. Other settings, such as `fsync`, have their defaults.
const SETTINGS: [&str; 13] = [
    "cluster_name=syncline",
    "listen_addresses=",
    "unix_socket_permissions=0700",
    "max_connections=100",
    "shared_buffers=256MB",
    "max_wal_size=2GB",
    "checkpoint_timeout=15min",
    "random_page_cost=1.1",
    "jit=off",
    "log_checkpoints=off",
    // Neither statements nor values are logged, because they may be secret.
    "log_error_verbosity=terse",
    "log_min_error_statement=panic",
    "log_timezone=UTC",
];

/// Our server process. Dropping it asks the server to shut down.
pub struct Postmaster {
    pid: Pid,
    /// Receives the exit status of the server.
    ended: watch::Receiver<Option<ExitStatus>>,
    _socket_directory: SocketDirectory,
}

impl Postmaster {
    /// Starts the server on a cluster without a server, and waits until it accepts connections. Returns nothing if
    /// `stop` is cancelled before that; no server is running in that case.
    pub async fn start_unless(
        stop: &CancellationToken,
        cluster: &Cluster,
        was_interrupted: bool,
    ) -> Result<Option<(Self, PgConnectOptions)>, PrivatePostgresError> {
        let started_at = Instant::now();
        let patience = if was_interrupted { LEFTOVERS_LIMIT } else { Duration::ZERO };
        while !stop.is_cancelled() {
            match Self::try_start(stop, cluster).await {
                Err(PrivatePostgresError::EndedAtStart { .. }) if started_at.elapsed() < patience => {
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
                result => return result,
            }
        }
        Ok(None)
    }

    async fn try_start(
        stop: &CancellationToken,
        cluster: &Cluster,
    ) -> Result<Option<(Self, PgConnectOptions)>, PrivatePostgresError> {
        let started_at = Instant::now();
        let socket_directory = SocketDirectory::choose(cluster)?;
        let connect_options = super::connect_options(socket_directory.path(), &cluster.password);
        let (log, log_start) = cluster.open_log()?;
        let error_log = log.try_clone().map_err(io_error("open", &cluster.log_file))?;

        let program = cluster.binaries.program("postgres");
        let mut command = server_user::command(&program, cluster.user.as_ref(), &cluster.directory);
        command.arg("-D").arg(&cluster.directory);
        command.arg("-k").arg(socket_directory.path()).arg("-p").arg(PORT.to_string());
        command.args(SETTINGS.iter().flat_map(|setting| ["-c", *setting]));
        command.stdin(Stdio::null()).stdout(log).stderr(error_log);

        let (pid, ended) = spawn_in_own_thread(command).await.map_err(|error| {
            server_user::spawn_error(error, &program, cluster.user.as_ref(), &cluster.directory)
        })?;
        let mut postmaster = Self { pid, ended, _socket_directory: socket_directory };
        let answer = postmaster.wait_for_answer(&connect_options, cluster, log_start);
        match stop.run_until_cancelled(answer).await {
            Some(answered) => answered?,
            None => {
                postmaster.stop().await?;
                return Ok(None);
            }
        }
        info!(
            "private Postgres {} in `{}` is ready after {} ms",
            cluster.binaries.major,
            cluster.directory.display(),
            started_at.elapsed().as_millis()
        );
        Ok(Some((postmaster, connect_options)))
    }

    pub async fn ended(&mut self) {
        // An error means that the waiting thread has ended, which happens only after the server has exited.
        self.ended.wait_for(Option::is_some).await.ok();
    }

    /// Shuts down in order. If that takes too long, stops the server at once, and the next start has to recover.
    pub async fn stop(mut self) -> Result<(), PrivatePostgresError> {
        for (signal, patience) in SHUTDOWN_STEPS {
            self.kill(signal);
            if tokio::time::timeout(patience, self.ended()).await.is_ok() {
                return Ok(());
            }
            warn!("private Postgres did not stop within {} s", patience.as_secs());
        }
        Err(PrivatePostgresError::DoesNotStop { pid: self.pid.as_raw_nonzero().get() })
    }

    fn kill(&self, signal: rustix::process::Signal) {
        if self.ended.borrow().is_none() {
            // This fails only if the server has just exited, which is the desired state.
            rustix::process::kill_process(self.pid, signal).ok();
        }
    }

    async fn wait_for_answer(
        &mut self,
        options: &PgConnectOptions,
        cluster: &Cluster,
        log_start: u64,
    ) -> Result<(), PrivatePostgresError> {
        // Refused connections are normal during startup and not worth a log line.
        let options = options.clone().disable_statement_logging();
        let mut last_response_at = Instant::now();
        while last_response_at.elapsed() < SILENCE_LIMIT {
            if let Some(status) = *self.ended.borrow() {
                return Err(PrivatePostgresError::EndedAtStart {
                    status: status.to_string(),
                    log: cluster.log_file.clone(),
                    log_tail: cluster.log_tail(log_start),
                });
            }
            match tokio::time::timeout(SILENCE_LIMIT, PgConnection::connect_with(&options)).await {
                Ok(Ok(connection)) => {
                    connection.close().await.ok();
                    return Ok(());
                }
                Ok(Err(error)) if is_still_starting(&error) => last_response_at = Instant::now(),
                Ok(Err(sqlx::Error::Io(_))) | Err(_) => {}
                Ok(Err(source)) => {
                    let password_file = cluster.password_file.clone();
                    return Err(PrivatePostgresError::Refused { password_file, source });
                }
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let log_tail = cluster.log_tail(log_start);
        Err(PrivatePostgresError::NoAnswer { log: cluster.log_file.clone(), log_tail })
    }
}

impl Drop for Postmaster {
    fn drop(&mut self) {
        self.kill(rustix::process::Signal::INT);
    }
}

/// The directory of the server's socket: the cluster, or a separate directory if that path is too long.
enum SocketDirectory {
    Cluster(PathBuf),
    Temporary(TempDir),
}

impl SocketDirectory {
    fn choose(cluster: &Cluster) -> Result<Self, PrivatePostgresError> {
        use std::os::unix::fs::PermissionsExt;

        if is_fit_for_socket(&cluster.directory) {
            return Ok(Self::Cluster(cluster.directory.clone()));
        }
        let temporary = tempfile::Builder::new()
            .prefix("syncline-")
            .permissions(fs::Permissions::from_mode(0o700))
            .tempdir()
            .map_err(io_error("write to", &env::temp_dir()))?;
        if !is_fit_for_socket(temporary.path()) {
            return Err(PrivatePostgresError::PathTooLong { data_dir: cluster.directory.clone() });
        }
        server_user::hand_over(temporary.path(), cluster.user.as_ref())?;
        Ok(Self::Temporary(temporary))
    }

    fn path(&self) -> &Path {
        match self {
            Self::Cluster(path) => path,
            Self::Temporary(directory) => directory.path(),
        }
    }
}

/// Whether the path is short enough, and free of special characters in Postgres's list of socket directories.
fn is_fit_for_socket(directory: &Path) -> bool {
    let path = directory.as_os_str().as_encoded_bytes();
    let socket_path_bytes = path.len() + format!("/.s.PGSQL.{PORT}").len();
    let is_plain = path.iter().all(|byte| !b"\",".contains(byte) && !byte.is_ascii_whitespace());
    socket_path_bytes <= LONGEST_SOCKET_PATH && is_plain
}

/// 57P03: the server is starting up, which takes some time after a crash.
fn is_still_starting(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(|error| error.code().as_deref() == Some("57P03"))
}

/// Starts the server from a thread that waits for its end. The kernel stops the server when the thread that started
/// it ends. Threads of the runtime come and go, but this one lives as long as the server.
async fn spawn_in_own_thread(mut command: Command) -> io::Result<(Pid, watch::Receiver<Option<ExitStatus>>)> {
    // A separate process group keeps the terminal's Ctrl-C from the server, so that the host can finish first.
    command.process_group(0);
    end_with_parent(&mut command);
    let (started_tx, started_rx) = oneshot::channel();
    let (ended_tx, ended_rx) = watch::channel(None);
    thread::Builder::new().name("private-postgres".to_owned()).spawn(move || match command.spawn() {
        Ok(mut child) => {
            started_tx.send(Ok(Pid::from_child(&child))).ok();
            if let Ok(status) = child.wait() {
                ended_tx.send_replace(Some(status));
            }
        }
        Err(error) => {
            started_tx.send(Err(error)).ok();
        }
    })?;
    let pid = started_rx.await.map_err(io::Error::other)??;
    Ok((pid, ended_rx))
}

/// Makes the kernel shut the server down when the host dies for any reason.
#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "there is no other way to run code between fork and exec")]
fn end_with_parent(command: &mut Command) {
    // SAFETY: the closure makes one system call and touches no memory, so it may run in a forked child. It runs
    // after the change of user, which would undo its effect.
    unsafe {
        command.pre_exec(|| {
            rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::INT))?;
            Ok(())
        });
    }
}

/// On other systems, a killed host leaves its server running until the next host stops it.
#[cfg(not(target_os = "linux"))]
fn end_with_parent(_: &mut Command) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_socket_path_is_exact() {
        let name_bytes = "/.s.PGSQL.5432".len();
        assert!(is_fit_for_socket(Path::new(&"x".repeat(LONGEST_SOCKET_PATH - name_bytes))));
        assert!(!is_fit_for_socket(Path::new(&"x".repeat(LONGEST_SOCKET_PATH - name_bytes + 1))));
        assert!(!is_fit_for_socket(Path::new("/data/one,two")));
    }
}
