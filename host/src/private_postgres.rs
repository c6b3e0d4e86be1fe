//! A private Postgres, which the host starts and stops itself when it has no `DATABASE_URL`.
//!
//! Inside the host's data directory, `postgres/` is the cluster with its socket, `postgres.password` the
//! superuser's password, `postgres.log` what the server says, and `postgres.lock` is held by the one host
//! that may use them. The server listens on the socket only, and it dies with the host: a host that was
//! killed leaves nothing behind but a recovery at the next start.

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

/// A running Postgres of our own. Dropping it asks the server to shut down, [`stop`](Self::stop) also waits.
pub struct PrivatePostgres {
    connect_options: PgConnectOptions,
    postmaster: Postmaster,
    _lock: File,
}

/// Why there is no private Postgres. Each says what would help.
#[derive(Debug, thiserror::Error)]
pub enum PrivatePostgresError {
    #[error(
        "no Postgres is installed to keep the data in; install one (Debian and Ubuntu: `apt-get install \
         postgresql`, Fedora: `dnf install postgresql-server`, Alpine: `apk add postgresql`, macOS: `brew \
         install postgresql`), or set DATABASE_URL to use a server you have"
    )]
    NotInstalled,
    #[error(
        "`{}` was made by Postgres {cluster_major}, and {installed} installed here; install Postgres \
         {cluster_major} again, or move the data with pg_dumpall or pg_upgrade",
        .directory.display()
    )]
    OtherVersion { directory: PathBuf, cluster_major: u32, installed: String },
    #[error("Postgres {installed} installed, and at least {oldest} is needed", oldest = binaries::OLDEST_MAJOR)]
    TooOld { installed: String },
    #[error(
        "another host (process {owner}) uses the private Postgres in `{}`; to let several hosts share a \
         database, start a Postgres server and set DATABASE_URL for each",
        .data_dir.display()
    )]
    InUse { data_dir: PathBuf, owner: String },
    #[error("Postgres refuses to run as root, and this machine has neither a user `postgres` nor `nobody`")]
    NoServerUser,
    #[error(
        "Postgres runs as user `{user}`, who may not pass through `{}`; run `chmod o+x` on it, or choose \
         another data directory with SYNCLINE_DATA_DIR",
        .closed.display()
    )]
    Unreachable { user: String, closed: PathBuf },
    #[error(
        "the path `{}` is too long for a socket, and so is that of the temporary directory; choose a \
         shorter one with SYNCLINE_DATA_DIR or TMPDIR",
        .data_dir.display()
    )]
    PathTooLong { data_dir: PathBuf },
    #[error("initdb could not make a Postgres cluster:\n{output}")]
    Initdb { output: String },
    #[error("Postgres ended while it started ({status}); the end of `{}`:\n{log_tail}", .log.display())]
    EndedAtStart { status: String, log: PathBuf, log_tail: String },
    #[error("Postgres did not answer in time; the end of `{}`:\n{log_tail}", .log.display())]
    NoAnswer { log: PathBuf, log_tail: String },
    #[error("Postgres refused a connection by `{}`", .password_file.display())]
    Refused { password_file: PathBuf, source: sqlx::Error },
    #[error("Postgres (process {pid}) does not stop; look at it, and end it by hand")]
    DoesNotStop { pid: i32 },
    #[error("cannot {action} `{}`", .path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
}

impl PrivatePostgres {
    /// Starts the Postgres of a data directory, making both the first time. It answers when this returns.
    ///
    /// A server that a killed host left running is stopped first, not adopted: on Linux it is shutting
    /// down already, and only a server that we started ourselves dies with us.
    pub async fn start(data_dir: &Path) -> Result<Self, PrivatePostgresError> {
        match Self::start_unless(&CancellationToken::new(), data_dir).await? {
            Some(started) => Ok(started),
            None => unreachable!("nothing cancels this token"),
        }
    }

    /// As [`start`](Self::start), but gives nothing if `stop` is cancelled before the server answers. A server that
    /// was started has stopped again then.
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
        // Making a cluster ends half-way then. At most it leaves a folder that the next start removes.
        let Some(prepared) = stop.run_until_cancelled(prepared).await else { return Ok(None) };
        let (cluster, was_interrupted) = prepared?;
        let started = Postmaster::start_unless(stop, &cluster, was_interrupted).await?;
        Ok(started.map(|(postmaster, connect_options)| Self { connect_options, postmaster, _lock: lock }))
    }

    /// How to connect, as superuser. Its `Debug` form shows the password: never log it.
    pub fn connect_options(&self) -> &PgConnectOptions {
        &self.connect_options
    }

    /// Waits until the server has ended, which it does by itself only if something is badly wrong.
    pub async fn ended(&mut self) {
        self.postmaster.ended().await;
    }

    /// Ends all connections, writes everything to disk and waits for the server's end.
    pub async fn stop(self) -> Result<(), PrivatePostgresError> {
        self.postmaster.stop().await
    }
}

/// Whether there is a private Postgres in this data directory, running or not.
pub fn exists(data_dir: &Path) -> bool {
    cluster::directory(data_dir).exists()
}

/// How to connect to the private Postgres that a host of this data directory is running, if one is.
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

/// The absolute path of the data directory, which is made if it is missing.
fn prepare_data_dir(data_dir: &Path) -> Result<PathBuf, PrivatePostgresError> {
    use std::os::unix::fs::DirBuilderExt;

    // Root's Postgres runs as somebody else, who must be able to pass through.
    let mode = if server_user::we_are_root() { 0o711 } else { 0o700 };
    fs::DirBuilder::new()
        .recursive(true)
        .mode(mode)
        .create(data_dir)
        .map_err(io_error("create the data directory", data_dir))?;
    data_dir.canonicalize().map_err(io_error("open", data_dir))
}

/// Makes us the one host of this data directory, until the file is closed or we die.
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

/// For `map_err`: names what was being done, and to which file.
fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> PrivatePostgresError {
    let path = path.to_owned();
    move |source| PrivatePostgresError::Io { action, path, source }
}
