//! A private Postgres, which the host starts and stops itself if `DATABASE_URL` is not set.
//!
//! Files in the host's data directory: `postgres/` is the cluster with its socket, `postgres.password` contains the
//! superuser's password, `postgres.log` is the server's log, and `postgres.lock` is locked by the one host that
//! uses them. The server listens only on the socket, and it stops when the host dies: after a host was killed, the
//! next start only has to recover.

mod binaries;
mod cluster;
mod pid_file;
mod postmaster;
mod server_user;
mod shutdown;
#[cfg(test)]
mod tests;

use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use sqlx::postgres::{PgConnectOptions, PgSslMode};
use tokio_util::sync::CancellationToken;

use self::cluster::Cluster;
use self::pid_file::PidFile;
use self::postmaster::Postmaster;

/// A running private Postgres. Dropping it asks the server to shut down, [`stop`](Self::stop) also waits.
pub struct PrivatePostgres {
    connect_options: PgConnectOptions,
    postmaster: Postmaster,
    _lock: File,
}

/// The reason why there is no private Postgres, and how to correct it.
#[derive(Debug, thiserror::Error)]
pub enum PrivatePostgresError {
    #[error(
        "Postgres is not installed; install it (Debian and Ubuntu: `apt-get install \
         postgresql`, Fedora: `dnf install postgresql-server`, Alpine: `apk add postgresql`, macOS: `brew \
         install postgresql`), or set DATABASE_URL to the URL of an existing server"
    )]
    NotInstalled,
    #[error(
        "`{}` was created by Postgres {cluster_major}, but {installed} installed; install Postgres \
         {cluster_major}, or migrate the data with pg_dumpall or pg_upgrade",
        .directory.display()
    )]
    OtherVersion { directory: PathBuf, cluster_major: u32, installed: String },
    #[error("Postgres {installed} installed, but version {oldest} or later is required", oldest = binaries::OLDEST_MAJOR)]
    TooOld { installed: String },
    #[error(
        "another host (process {owner}) is using the private Postgres in `{}`; to run several hosts on one \
         database, start a Postgres server and set DATABASE_URL for each host",
        .data_dir.display()
    )]
    InUse { data_dir: PathBuf, owner: String },
    #[error(
        "Postgres does not run as root, and this machine has neither a user `postgres` nor `nobody`; \
         create one of them, or run the host as another user"
    )]
    NoServerUser,
    #[error(
        "Postgres runs as user `{user}`, who may not pass through `{}`; run `chmod o+x` on it, or choose \
         another data directory with SYNCLINE_DATA_DIR",
        .closed.display()
    )]
    Unreachable { user: String, closed: PathBuf },
    #[error(
        "the path `{}` is too long for a socket, and so is the path of the temporary directory; set a \
         shorter path with SYNCLINE_DATA_DIR or TMPDIR",
        .data_dir.display()
    )]
    PathTooLong { data_dir: PathBuf },
    #[error("initdb could not create a Postgres cluster:\n{output}")]
    Initdb { output: String },
    #[error("Postgres exited during startup ({status}); the end of `{}`:\n{log_tail}", .log.display())]
    EndedAtStart { status: String, log: PathBuf, log_tail: String },
    #[error("Postgres did not accept connections in time; start the host again, or correct the cause. The end of `{}`:\n{log_tail}", .log.display())]
    NoAnswer { log: PathBuf, log_tail: String },
    #[error("Postgres refused a connection with the password in `{}`; restore this file, or set DATABASE_URL", .password_file.display())]
    Refused { password_file: PathBuf, source: sqlx::Error },
    #[error("Postgres (process {pid}) did not stop; run `kill {pid}`")]
    DoesNotStop { pid: i32 },
    #[error("could not {action} `{}`", .path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
}

impl PrivatePostgres {
    /// Starts the Postgres of a data directory and creates both if necessary. The server accepts connections when
    /// this returns.
    ///
    /// A server that a killed host left running is stopped first and not adopted. On Linux it is already shutting
    /// down, and only a server that this process started is stopped when this process dies.
    pub async fn start(data_dir: &Path) -> Result<Self, PrivatePostgresError> {
        match Self::start_unless(&CancellationToken::new(), data_dir).await? {
            Some(started) => Ok(started),
            None => unreachable!("nothing cancels this token"),
        }
    }

    /// Like [`start`](Self::start), but returns nothing if `stop` is cancelled before the server accepts
    /// connections. The server has stopped again in that case.
    pub async fn start_unless(
        stop: &CancellationToken,
        data_dir: &Path,
    ) -> Result<Option<Self>, PrivatePostgresError> {
        let data_dir = prepare_data_dir(data_dir)?;
        let lock = lock(&data_dir)?;
        let prepared = async {
            let cluster = Cluster::open_or_create(&data_dir).await?;
            let was_interrupted = pid_file::clear(&cluster.directory).await?;
            Ok((cluster, was_interrupted))
        };
        // Creating a cluster can stop half-way here. It leaves at most a folder that the next start removes.
        let Some(prepared) = stop.run_until_cancelled(prepared).await else { return Ok(None) };
        let (cluster, was_interrupted) = prepared?;
        let started = Postmaster::start_unless(stop, &cluster, was_interrupted).await?;
        Ok(started.map(|(postmaster, connect_options)| Self { connect_options, postmaster, _lock: lock }))
    }

    /// Returns the connection options of the superuser. Their `Debug` form contains the password: never log it.
    pub fn connect_options(&self) -> &PgConnectOptions {
        &self.connect_options
    }

    /// Waits until the server has exited, which happens by itself only after a serious error.
    pub async fn ended(&mut self) {
        self.postmaster.ended().await;
    }

    /// Ends all connections, writes everything to disk and waits until the server has exited.
    pub async fn stop(self) -> Result<(), PrivatePostgresError> {
        self.postmaster.stop().await
    }
}

/// Whether this data directory contains a private Postgres, running or not.
pub fn exists(data_dir: &Path) -> bool {
    cluster::directory(data_dir).exists()
}

/// Returns the connection options of the private Postgres that a host of this data directory is running, if there
/// is one.
pub fn find_running(data_dir: &Path) -> Result<Option<PgConnectOptions>, PrivatePostgresError> {
    let directory = match data_dir.canonicalize() {
        Ok(data_dir) => cluster::directory(&data_dir),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io_error("open", data_dir)(error)),
    };
    let Some(PidFile { socket_directory: Some(socket), .. }) = pid_file::find_live(&directory)? else {
        return Ok(None);
    };
    let password = cluster::read_password(&cluster::password_file(data_dir))?;
    Ok(Some(connect_options(&socket, &password)))
}

fn connect_options(socket_directory: &Path, password: &str) -> PgConnectOptions {
    PgConnectOptions::new_without_pgpass()
        .socket(socket_directory)
        .port(postmaster::PORT)
        .username(cluster::SUPERUSER)
        .password(password)
        .database("postgres")
        .ssl_mode(PgSslMode::Disable)
}

/// Returns the absolute path of the data directory, and creates it if it is missing.
fn prepare_data_dir(data_dir: &Path) -> Result<PathBuf, PrivatePostgresError> {
    use std::os::unix::fs::DirBuilderExt;

    // If the host is root, Postgres runs as another user, who must be able to pass through.
    let mode = if server_user::is_root() { 0o711 } else { 0o700 };
    fs::DirBuilder::new()
        .recursive(true)
        .mode(mode)
        .create(data_dir)
        .map_err(io_error("create the data directory", data_dir))?;
    data_dir.canonicalize().map_err(io_error("open", data_dir))
}

/// Makes this process the only host of the data directory, until the file is closed or the process dies.
fn lock(data_dir: &Path) -> Result<File, PrivatePostgresError> {
    let path = data_dir.join("postgres.lock");
    let mut file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)
        .map_err(io_error("open", &path))?;
    match file.try_lock() {
        Ok(()) => {
            let written = file.set_len(0).and_then(|()| write!(file, "{}", std::process::id()));
            written.map_err(io_error("write", &path))?;
            Ok(file)
        }
        Err(TryLockError::WouldBlock) => {
            let mut owner = String::new();
            file.read_to_string(&mut owner).map_err(io_error("read", &path))?;
            Err(PrivatePostgresError::InUse { data_dir: data_dir.to_owned(), owner })
        }
        Err(TryLockError::Error(error)) => Err(io_error("lock", &path)(error)),
    }
}

/// Adds the action and the file to an error, for `map_err`.
fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> PrivatePostgresError {
    let path = path.to_owned();
    move |source| PrivatePostgresError::Io { action, path, source }
}
