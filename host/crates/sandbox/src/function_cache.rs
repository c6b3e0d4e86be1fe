//! Machine code of single functions, so that a component is compiled again only where it has changed.
//!
//! Components in TypeScript and Python consist almost completely of an interpreter, which stays the same. The cache is
//! for development: the compiling process itself writes it, so a component that attacks the compiler could change the
//! machine code of components that are compiled later.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use wasmtime::CacheStore;

/// A longer file is replaced by one with only the new functions.
const MAX_FILE_BYTES: usize = 512 << 20;

/// Machine code by the key that Wasmtime computes from a function.
type Functions = BTreeMap<Vec<u8>, Vec<u8>>;

#[derive(Debug)]
pub(super) struct FunctionCache {
    path: PathBuf,
    known: Functions,
    /// The functions that were compiled since the file was read.
    new: Mutex<Functions>,
}

impl FunctionCache {
    /// Reads the file. A missing or damaged file is an empty cache.
    pub(super) fn open(path: &Path) -> Self {
        let bytes = std::fs::read(path).unwrap_or_default();
        let known = postcard::from_bytes(&bytes).unwrap_or_default();
        Self { path: path.to_owned(), known, new: Mutex::default() }
    }

    /// Adds the new functions to the file.
    pub(super) fn store(&self) -> std::io::Result<()> {
        let new = self.new.lock().unwrap_or_else(PoisonError::into_inner);
        if new.is_empty() {
            return Ok(());
        }
        let mut bytes = encode(&self.known.iter().chain(&*new).collect());
        if bytes.len() > MAX_FILE_BYTES {
            bytes = encode(&new.iter().collect());
        }
        let folder = self.path.parent().unwrap_or(Path::new("."));
        std::fs::create_dir_all(folder)?;
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        file.write_all(&bytes)?;
        file.persist(&self.path)?;
        Ok(())
    }
}

fn encode(functions: &BTreeMap<&Vec<u8>, &Vec<u8>>) -> Vec<u8> {
    postcard::to_allocvec(functions).expect("bytes can be serialized")
}

impl CacheStore for FunctionCache {
    fn get(&self, key: &[u8]) -> Option<Cow<'_, [u8]>> {
        self.known.get(key).map(|code| Cow::Borrowed(code.as_slice()))
    }

    fn insert(&self, key: &[u8], code: Vec<u8>) -> bool {
        self.new.lock().unwrap_or_else(PoisonError::into_inner).insert(key.to_owned(), code);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_found_after_they_were_stored() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/functions");
        let cache = FunctionCache::open(&path);
        assert!(cache.insert(b"one", vec![1, 2]));
        assert!(cache.get(b"one").is_none(), "no component contains a function twice");
        cache.store().unwrap();
        let cache = FunctionCache::open(&path);
        assert_eq!(cache.get(b"one").as_deref(), Some(&[1, 2][..]));
        assert!(cache.insert(b"two", vec![3]));
        cache.store().unwrap();
        let cache = FunctionCache::open(&path);
        assert!(cache.get(b"one").is_some() && cache.get(b"two").is_some());
    }

    #[test]
    fn a_damaged_file_is_an_empty_cache() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("functions");
        std::fs::write(&path, b"\xff\xff\xff").unwrap();
        assert!(FunctionCache::open(&path).known.is_empty());
    }
}
