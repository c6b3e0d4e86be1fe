//! Finds the Postgres programs that are installed on this machine.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use tokio::process::Command;

use super::PrivatePostgresError;

/// The oldest major version that supports everything in our schema.
pub const OLDEST_MAJOR: u32 = 15;

/// Where installers put versions side by side, and the prefix of the version number there.
const VERSIONED_HOMES: [(&str, &str); 6] = [
    ("/usr/lib/postgresql", ""),
    ("/usr", "pgsql-"),
    ("/opt/homebrew/opt", "postgresql@"),
    ("/usr/local/opt", "postgresql@"),
    ("/home/linuxbrew/.linuxbrew/opt", "postgresql@"),
    ("/Applications/Postgres.app/Contents/Versions", ""),
];

/// The programs of one Postgres version.
pub struct Binaries {
    directory: PathBuf,
    pub major: u32,
}

impl Binaries {
    pub fn program(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }
}

/// Returns the best programs for a new cluster: those in the PATH, or else the newest ones in the usual places.
pub async fn find_for_new_cluster() -> Result<Binaries, PrivatePostgresError> {
    let mut too_old = Vec::new();
    for directory in candidates().await {
        match major_of(&directory).await {
            Some(major) if major >= OLDEST_MAJOR => return Ok(Binaries { directory, major }),
            Some(major) => too_old.push(major),
            None => {}
        }
    }
    if too_old.is_empty() {
        return Err(PrivatePostgresError::NotInstalled);
    }
    Err(PrivatePostgresError::TooOld { installed: enumerate(&too_old) })
}

/// Returns the programs of the major version that created the cluster. No other version can read it.
pub async fn find_for_cluster(
    directory: &Path,
    cluster_major: u32,
) -> Result<Binaries, PrivatePostgresError> {
    let mut others = Vec::new();
    for directory in candidates().await {
        match major_of(&directory).await {
            Some(major) if major == cluster_major => return Ok(Binaries { directory, major }),
            Some(major) => others.push(major),
            None => {}
        }
    }
    if others.is_empty() {
        return Err(PrivatePostgresError::NotInstalled);
    }
    let directory = directory.to_owned();
    Err(PrivatePostgresError::OtherVersion { directory, cluster_major, installed: enumerate(&others) })
}

/// Returns directories that contain both required programs, the preferred one first.
async fn candidates() -> Vec<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let mut directories: Vec<PathBuf> = env::split_paths(&path).collect();
    directories.extend(pg_config_bindir().await);
    for (home, prefix) in VERSIONED_HOMES {
        directories.extend(versions_under(Path::new(home), prefix));
    }
    directories.retain(|directory| {
        directory.is_absolute() && directory.join("postgres").is_file() && directory.join("initdb").is_file()
    });
    directories
}

async fn pg_config_bindir() -> Option<PathBuf> {
    let output = Command::new("pg_config").arg("--bindir").output().await.ok()?;
    let bindir = String::from_utf8(output.stdout).ok()?;
    Some(PathBuf::from(bindir.trim()))
}

/// Returns the `bin` directories below `home/<prefix><version>`, newest first.
fn versions_under(home: &Path, prefix: &str) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(home) else { return Vec::new() };
    let mut versions: Vec<(u32, PathBuf)> = entries
        .flatten()
        .filter_map(|entry| {
            let major = entry.file_name().to_str()?.strip_prefix(prefix)?.parse().ok()?;
            Some((major, entry.path().join("bin")))
        })
        .collect();
    versions.sort_unstable_by(|a, b| b.cmp(a));
    versions.into_iter().map(|(_, directory)| directory).collect()
}

async fn major_of(directory: &Path) -> Option<u32> {
    let output = Command::new(directory.join("postgres")).arg("--version").output().await.ok()?;
    parse_major(&String::from_utf8(output.stdout).ok()?)
}

/// Parses the output of `postgres --version`, such as `postgres (PostgreSQL) 15.13 (Debian 15.13-0+deb12u1)`.
fn parse_major(version: &str) -> Option<u32> {
    let number = version.split_whitespace().nth(2)?;
    let digits = number.split(|c: char| !c.is_ascii_digit()).next()?;
    digits.parse().ok()
}

/// Returns `16 and 17 are`, for a sentence about the installed versions.
fn enumerate(majors: &[u32]) -> String {
    let mut majors = majors.to_vec();
    majors.sort_unstable();
    majors.dedup();
    let verb = if majors.len() == 1 { "is" } else { "are" };
    let names: Vec<String> = majors.iter().map(u32::to_string).collect();
    format!("{} {verb}", names.join(" and "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_major_version_is_parsed_from_every_vendors_output() {
        assert_eq!(parse_major("postgres (PostgreSQL) 15.13 (Debian 15.13-0+deb12u1)\n"), Some(15));
        assert_eq!(parse_major("postgres (PostgreSQL) 18beta2\n"), Some(18));
        assert_eq!(parse_major("postgres (PostgreSQL) 17devel\n"), Some(17));
        assert_eq!(parse_major("bash: postgres: not found\n"), None);
    }

    #[test]
    fn the_newest_of_several_versions_comes_first() {
        let home = tempfile::tempdir().unwrap();
        for name in ["pgsql-9", "pgsql-16", "pgsql-15", "pgsql-latest", "other-99"] {
            fs::create_dir(home.path().join(name)).unwrap();
        }
        let found = versions_under(home.path(), "pgsql-");
        let expected = ["pgsql-16/bin", "pgsql-15/bin", "pgsql-9/bin"];
        assert_eq!(found, expected.map(|version| home.path().join(version)));
    }
}
