//! The files of a project, and waiting until they change.
//!
//! The files are polled. A notification of the operating system would come some milliseconds earlier, but not on
//! network and container file systems, and would need a watch for each folder of `node_modules` and `target`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// How often the files are compared.
const EVERY: Duration = Duration::from_millis(100);
/// Folders with files that tools write. Hidden folders are left out, too.
const BUILT: [&str; 6] = ["target", "build", "dist", "node_modules", "__pycache__", "venv"];

/// The files of a project at a moment.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Sources {
    folder: PathBuf,
    files: BTreeMap<PathBuf, (Option<SystemTime>, u64)>,
}

impl Sources {
    pub(super) fn read(folder: &Path) -> Self {
        let mut files = BTreeMap::new();
        let mut folders = vec![folder.to_owned()];
        // A file that disappears meanwhile is a change that the next comparison finds.
        while let Some(entries) = folders.pop().map(std::fs::read_dir) {
            for entry in entries.into_iter().flatten().flatten() {
                let name = entry.file_name();
                let name = name.to_string_lossy();
                let Ok(metadata) = entry.metadata() else { continue };
                if name.starts_with('.') || (metadata.is_dir() && BUILT.contains(&&*name)) {
                    continue;
                }
                if metadata.is_dir() {
                    folders.push(entry.path());
                } else if metadata.is_file() {
                    files.insert(entry.path(), (metadata.modified().ok(), metadata.len()));
                }
            }
        }
        Self { folder: folder.to_owned(), files }
    }

    /// Waits until the files have changed, and then until the author's editor has written all of them.
    pub(super) async fn changed(&self) {
        let mut current = self.wait_until_other(self).await;
        loop {
            let settled = tokio::time::timeout(EVERY, self.wait_until_other(&current)).await;
            match settled {
                Ok(later) => current = later,
                Err(_) => return,
            }
        }
    }

    async fn wait_until_other(&self, than: &Self) -> Self {
        loop {
            let current = Self::read(&self.folder);
            if current != *than {
                return current;
            }
            tokio::time::sleep(EVERY / 2).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[tokio::test]
    async fn changes_of_sources_are_noticed_and_those_of_build_output_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::create_dir_all(path("src")).unwrap();
        fs::create_dir_all(path("node_modules/a")).unwrap();
        fs::write(path("src/index.ts"), "one").unwrap();
        let sources = Sources::read(folder.path());
        fs::write(path("node_modules/a/index.js"), "x").unwrap();
        fs::write(path(".hidden"), "x").unwrap();
        assert_eq!(Sources::read(folder.path()), sources);

        let edit = async { fs::write(path("src/index.ts"), "another").unwrap() };
        let ((), ()) = tokio::join!(sources.changed(), edit);
        assert_ne!(Sources::read(folder.path()), sources);
    }
}
