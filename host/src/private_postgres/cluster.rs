//! The files of the private Postgres: creates the cluster on first use and finds the existing one later.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};

use rand::distr::{Alphanumeric, SampleString};
use tracing::info;

use super::binaries::{self, Binaries};
use super::server_user::{self, ServerUser};
use super::{PrivatePostgresError, io_error};

/// The role that owns everything in a private Postgres.
pub const SUPERUSER: &str = "syncline";

/// How many bytes of the log an error shows.
const LOG_TAIL_BYTES: u64 = 3000;

/// At startup, a log longer than this many bytes is renamed and replaces the previously renamed one.
const LOG_ROTATION_BYTES: u64 = 4 << 20;

/// Prefix of incomplete clusters. A start removes those that a killed host left behind.
const STAGING_PREFIX: &str = "postgres.new-";

/// An initialised cluster and the programs to run it.
pub struct Cluster {
    pub directory: PathBuf,
    pub user: Option<ServerUser>,
    pub binaries: Binaries,
    pub password: String,
    pub password_file: PathBuf,
    pub log_file: PathBuf,
}

pub fn directory(data_dir: &Path) -> PathBuf {
    data_dir.join("postgres")
}

pub fn password_file(data_dir: &Path) -> PathBuf {
    data_dir.join("postgres.password")
}

pub fn read_password(file: &Path) -> Result<String, PrivatePostgresError> {
    fs::read_to_string(file).map_err(io_error("read", file))
}

impl Cluster {
    /// Opens or creates the cluster of a data directory, whose lock the caller holds.
    pub async fn open_or_create(data_dir: &Path) -> Result<Self, PrivatePostgresError> {
        let directory = directory(data_dir);
        let password_file = password_file(data_dir);
        let user = server_user::choose(&directory)?;
        let (binaries, password) = if directory.exists() {
            let major = major_of(&directory)?;
            (binaries::find_for_cluster(&directory, major).await?, read_password(&password_file)?)
        } else {
            let binaries = binaries::find_for_new_cluster().await?;
            info!("creating a private Postgres {} in `{}`", binaries.major, directory.display());
            let password = Alphanumeric.sample_string(&mut rand::rng(), 40);
            write_secret(&password_file, &password)?;
            create(data_dir, &binaries, user.as_ref(), &password).await?;
            (binaries, password)
        };
        let log_file = data_dir.join("postgres.log");
        rotate(&log_file)?;
        Ok(Self { directory, user, binaries, password, password_file, log_file })
    }

    /// Opens the log for appending, and returns its current length.
    pub fn open_log(&self) -> Result<(File, u64), PrivatePostgresError> {
        let log = File::options().append(true).create(true).mode(0o600).open(&self.log_file);
        let log = log.map_err(io_error("open", &self.log_file))?;
        let start = log.metadata().map_err(io_error("read", &self.log_file))?.len();
        Ok((log, start))
    }

    /// Returns the last lines of the log since `start`.
    pub fn log_tail(&self, start: u64) -> String {
        let read = || -> io::Result<Vec<u8>> {
            let mut log = File::open(&self.log_file)?;
            let end = log.metadata()?.len();
            log.seek(SeekFrom::Start(start.max(end.saturating_sub(LOG_TAIL_BYTES))))?;
            let mut tail = Vec::new();
            log.read_to_end(&mut tail)?;
            Ok(tail)
        };
        match read() {
            Ok(tail) => String::from_utf8_lossy(&tail).trim_end().to_owned(),
            Err(error) => format!("(could not read the log: {error})"),
        }
    }
}

/// Creates the cluster under a temporary name and renames it when it is complete, so that there is never an
/// incomplete cluster. `initdb` syncs its files; skipping that saves no measurable time.
async fn create(
    data_dir: &Path,
    binaries: &Binaries,
    user: Option<&ServerUser>,
    password: &str,
) -> Result<(), PrivatePostgresError> {
    remove_leftovers(data_dir)?;
    let staging = tempfile::Builder::new()
        .prefix(STAGING_PREFIX)
        .permissions(fs::Permissions::from_mode(0o700))
        .tempdir_in(data_dir)
        .map_err(io_error("write to", data_dir))?;
    let password_file = staging.path().join("password");
    write_secret(&password_file, password)?;
    server_user::hand_over(&password_file, user)?;
    server_user::hand_over(staging.path(), user)?;

    let staged = staging.path().join("cluster");
    let program = binaries.program("initdb");
    let mut command = server_user::command(&program, user, staging.path());
    command.arg("--pgdata").arg(&staged).arg("--pwfile").arg(&password_file);
    command.args(["--username", SUPERUSER, "--auth", "scram-sha-256"]);
    command.args(["--encoding", "UTF8", "--locale", "C", "--data-checksums"]);
    // In a separate process group, so that Ctrl-C in a terminal reaches only the host, which then ends it.
    command.process_group(0);
    let mut command = tokio::process::Command::from(command);
    let output = command.kill_on_drop(true).stdin(std::process::Stdio::null()).output().await;
    let output = output.map_err(|error| server_user::spawn_error(error, &program, user, staging.path()))?;
    if !output.status.success() {
        let output = String::from_utf8_lossy(&output.stderr).trim_end().to_owned();
        return Err(PrivatePostgresError::Initdb { output });
    }
    let directory = directory(data_dir);
    fs::rename(&staged, &directory).map_err(io_error("create", &directory))?;
    let parent = File::open(data_dir).and_then(|parent| parent.sync_all());
    parent.map_err(io_error("write to", data_dir))
}

fn remove_leftovers(data_dir: &Path) -> Result<(), PrivatePostgresError> {
    for entry in fs::read_dir(data_dir).map_err(io_error("list", data_dir))?.flatten() {
        if entry.file_name().to_string_lossy().starts_with(STAGING_PREFIX) {
            fs::remove_dir_all(entry.path()).map_err(io_error("remove", &entry.path()))?;
        }
    }
    Ok(())
}

fn write_secret(path: &Path, secret: &str) -> Result<(), PrivatePostgresError> {
    let file = File::options().write(true).create(true).truncate(true).mode(0o600).open(path);
    let written = file.and_then(|mut file| {
        file.write_all(secret.as_bytes())?;
        file.sync_all()
    });
    written.map_err(io_error("write", path))
}

fn major_of(cluster: &Path) -> Result<u32, PrivatePostgresError> {
    let path = cluster.join("PG_VERSION");
    let version = fs::read_to_string(&path).map_err(io_error("read", &path))?;
    let major = version.trim().parse();
    major.map_err(|error| io_error("read a major version from", &path)(io::Error::other(error)))
}

fn rotate(log: &Path) -> Result<(), PrivatePostgresError> {
    if fs::metadata(log).is_ok_and(|metadata| metadata.len() > LOG_ROTATION_BYTES) {
        fs::rename(log, log.with_extension("log.1")).map_err(io_error("rename", log))?;
    }
    Ok(())
}
