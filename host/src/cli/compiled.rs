//! The components that commands compile on this computer. They are kept for later commands.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use clap::Args;

use syncline_crypto::random_bytes;
use syncline_sandbox::{CompiledCache, Sandbox, SandboxSettings};

/// Where compiled components are kept.
#[derive(Debug, Clone, Default, Args)]
pub(super) struct CompiledArgs {
    /// Folder for compiled components [default: the user's cache folder]
    #[arg(long, env = "SYNCLINE_COMPILED_DIR", value_name = "FOLDER")]
    compiled_dir: Option<PathBuf>,
}

impl CompiledArgs {
    pub(super) fn sandbox(&self, max_invocations: u32) -> anyhow::Result<Arc<Sandbox>> {
        let folder = self.compiled_dir.clone().or_else(cache_folder).unwrap_or_else(std::env::temp_dir);
        // A host protects its components in the same folder with a different key.
        let folder = folder.join("local");
        let key = compiled_key(&folder)?;
        let compiler =
            std::env::current_exe().context("could not determine the path of the `syncline` binary")?;
        let cache = CompiledCache::new(folder, key, compiler).reusing_functions();
        Ok(Arc::new(Sandbox::new(&SandboxSettings { max_invocations }, cache)?))
    }
}

fn cache_folder() -> Option<PathBuf> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?;
    Some(cache.join("syncline").join("compiled"))
}

/// The key that protects compiled components against changes by others. Created on first use.
fn compiled_key(folder: &Path) -> anyhow::Result<[u8; 32]> {
    let path = folder.join("key");
    if let Some(key) = std::fs::read(&path).ok().and_then(|key| key.try_into().ok()) {
        return Ok(key);
    }
    let create = || {
        std::fs::create_dir_all(folder)?;
        let file = tempfile::NamedTempFile::new_in(folder)?;
        std::fs::write(file.path(), random_bytes::<32>())?;
        match file.persist_noclobber(&path) {
            Ok(_) => {}
            // Another command has just created the key.
            Err(_) if path.exists() => {}
            Err(error) => return Err(error.error),
        }
        std::fs::read(&path)
    };
    let key = create().with_context(|| format!("could not create {}", path.display()))?;
    let invalid = |_| anyhow::anyhow!("{} is damaged; delete it", path.display());
    key.try_into().map_err(invalid)
}
