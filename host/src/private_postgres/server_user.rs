//! The unprivileged user as which Postgres runs if the host is root, because Postgres refuses to run as root.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::unistd::{Uid, User};

use super::{PrivatePostgresError, io_error};

/// The owner of the cluster and user of the server. `None` instead of it means the current user.
pub struct ServerUser {
    name: String,
    uid: u32,
    gid: u32,
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Returns the owner of an existing cluster. For a new one, returns `postgres`, or `nobody` if there is no such
/// user.
pub fn choose(cluster: &Path) -> Result<Option<ServerUser>, PrivatePostgresError> {
    if !is_root() {
        return Ok(None);
    }
    if let Ok(metadata) = fs::metadata(cluster)
        && metadata.uid() != 0
    {
        let (uid, gid) = (metadata.uid(), metadata.gid());
        let user = User::from_uid(Uid::from_raw(uid)).ok().flatten();
        let name = user.map_or_else(|| uid.to_string(), |user| user.name);
        return Ok(Some(ServerUser { name, uid, gid }));
    }
    let user = ["postgres", "nobody"].into_iter().find_map(|name| User::from_name(name).ok().flatten());
    let user = user.ok_or(PrivatePostgresError::NoServerUser)?;
    Ok(Some(ServerUser { name: user.name, uid: user.uid.as_raw(), gid: user.gid.as_raw() }))
}

/// Returns a command that runs as the server's user in `directory`. It inherits no environment, because the host's
/// environment contains secrets, which another user could read from the process.
pub fn command(program: &Path, user: Option<&ServerUser>, directory: &Path) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("LC_ALL", "C").current_dir(directory);
    if let Some(user) = user {
        command.uid(user.uid).gid(user.gid);
    }
    command
}

/// Makes the server's user the owner of a new file or directory.
pub fn hand_over(path: &Path, user: Option<&ServerUser>) -> Result<(), PrivatePostgresError> {
    let Some(user) = user else { return Ok(()) };
    chown(path, Some(user.uid), Some(user.gid)).map_err(io_error("change the owner of", path))
}

/// Explains why a [`command`] could not be started. Usually its user has no access to the directory.
pub fn spawn_error(
    error: io::Error,
    program: &Path,
    user: Option<&ServerUser>,
    directory: &Path,
) -> PrivatePostgresError {
    if error.kind() == io::ErrorKind::PermissionDenied
        && let Some(user) = user
        && let Some(closed) = user.closed_ancestor(directory).or_else(|| user.closed_ancestor(program))
    {
        return PrivatePostgresError::Unreachable { user: user.name.clone(), closed };
    }
    io_error("run", program)(error)
}

impl ServerUser {
    /// Returns the outermost directory above `path` that this user may not pass through.
    fn closed_ancestor(&self, path: &Path) -> Option<PathBuf> {
        let mut ancestors: Vec<&Path> = path.ancestors().skip(1).collect();
        ancestors.reverse();
        let is_closed = |directory: &&Path| fs::metadata(directory).is_ok_and(|m| !self.may_pass(&m));
        ancestors.into_iter().find(is_closed).map(Path::to_owned)
    }

    fn may_pass(&self, directory: &fs::Metadata) -> bool {
        let passing_bit = match directory {
            owned if owned.uid() == self.uid => 0o100,
            shared if shared.gid() == self.gid => 0o010,
            _ => 0o001,
        };
        directory.mode() & passing_bit != 0
    }
}
