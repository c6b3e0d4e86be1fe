//! The secret key of the host that `syncline dev` starts. It is stored in the project, so that other commands in the
//! same folder find it.

use std::path::{Path, PathBuf};

use anyhow::Context;

use super::database::write_private_file;
use syncline_auth::ApiKey;

fn path(project: &Path) -> PathBuf {
    project.join(".syncline/dev.key")
}

pub(super) fn read(project: &Path) -> Option<String> {
    let text = std::fs::read_to_string(path(project)).ok()?;
    Some(text.trim().to_owned())
}

/// Returns the key of the project, and creates it if there is no such file.
pub(super) fn read_or_create(project: &Path) -> anyhow::Result<String> {
    if let Some(key) = read(project) {
        return Ok(key);
    }
    let key = ApiKey::generate();
    let key = key.expose();
    write_private_file(&path(project), key.as_bytes())
        .context("could not store the secret key of this project")?;
    Ok(key.to_owned())
}
