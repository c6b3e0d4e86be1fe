//! Bundles: `syncline.toml` with its schemas and components, in one file.
//!
//! A bundle is an uncompressed tar archive whose bytes depend only on its content:
//!
//! ```text
//! bundle.json               {"format": 1, "components": {"<component in the file>": "<sha256>"}}
//! syncline.toml
//! schemas/<path>            the files that models name as `schema`
//! components/<sha256>.wasm
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Read, Write};
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tar::{Archive, Builder, EntryType, Header};

use super::{ConfigFile, Diagnostics, FILE_NAME, parse};
use syncline_types::units::Bytes;

/// Maximum size of a bundle, in bytes.
pub const MAX_BUNDLE_BYTES: usize = 256 << 20;
/// Maximum size of a file in a bundle that is not a component, in bytes.
const MAX_TEXT_BYTES: usize = 4 << 20;
const MAX_ENTRIES: usize = 1_000;
/// Block size of the tar format, in bytes.
const BLOCK: usize = 512;
const FORMAT: u32 = 1;
const MANIFEST: &str = "bundle.json";
const SCHEMAS: &str = "schemas/";
const COMPONENTS: &str = "components/";

/// The content of a bundle.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Bundle {
    /// Text of `syncline.toml`.
    pub config: String,
    /// Texts of the schema files, by their path in `syncline.toml`.
    pub schemas: BTreeMap<String, String>,
    /// Compiled components, by their `component` in `syncline.toml`.
    pub components: BTreeMap<String, Vec<u8>>,
}

/// SHA-256 of a bundle's bytes, as 64 hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct BundleDigest(String);

/// The reason why bytes cannot be read as a bundle.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    #[error("the bundle has {bytes} bytes; the maximum is {}", Bytes(MAX_BUNDLE_BYTES as u64))]
    TooLarge { bytes: usize },
    #[error("the bundle is truncated; build or upload it again")]
    Truncated,
    // The reader's own message is left out, because it quotes the file, which can contain anything.
    #[error("the bundle is not a tar archive; create one with `syncline build`")]
    NotTar,
    #[error("the bundle has more than {MAX_ENTRIES} files")]
    TooManyEntries,
    #[error("`{name}` in the bundle is not a regular file with a relative path")]
    OddEntry { name: String },
    #[error("`{name}` does not belong in a bundle; create the bundle with `syncline build`")]
    UnknownEntry { name: String },
    #[error("`{name}` is in the bundle twice")]
    EntryTwice { name: String },
    #[error("`{name}` is longer than {}", Bytes(MAX_TEXT_BYTES as u64))]
    EntryTooLarge { name: String },
    #[error("`{name}` is not UTF-8 text")]
    NotText { name: String },
    #[error("the bundle has no `{name}`")]
    Missing { name: String },
    #[error("the bundle's `bundle.json` is malformed: {0}")]
    Manifest(#[source] serde_json::Error),
    #[error("the bundle has format {format}, but this host supports only format {FORMAT}")]
    Format { format: u32 },
    #[error("`{name}` was changed after the bundle was built: its SHA-256 does not match")]
    Changed { name: String },
    #[error("the bundle's archive was packed by another program; create it with `syncline build`")]
    NotCanonical,
}

#[derive(Serialize, Deserialize)]
struct Manifest {
    format: u32,
    components: BTreeMap<String, String>,
}

impl Bundle {
    /// Writes the bundle. Equal bundles have equal bytes.
    pub fn write(&self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.write_to(&mut bytes)?;
        Ok(bytes)
    }

    fn write_to(&self, output: &mut impl Write) -> io::Result<()> {
        let digests = self.components.iter().map(|(path, wasm)| (path.clone(), sha256(wasm)));
        let manifest = Manifest { format: FORMAT, components: digests.collect() };
        let mut tar = Builder::new(output);
        append(&mut tar, MANIFEST, serde_json::to_string(&manifest)?.as_bytes())?;
        append(&mut tar, FILE_NAME, self.config.as_bytes())?;
        for (path, text) in &self.schemas {
            append(&mut tar, &format!("{SCHEMAS}{path}"), text.as_bytes())?;
        }
        let components: BTreeMap<String, &Vec<u8>> =
            self.components.values().map(|wasm| (sha256(wasm), wasm)).collect();
        for (digest, wasm) in components {
            append(&mut tar, &format!("{COMPONENTS}{digest}.wasm"), wasm)?;
        }
        tar.finish()
    }

    /// Reads a bundle that [`Bundle::write`] wrote, and rejects anything else.
    pub fn read(bytes: &[u8]) -> Result<Self, BundleError> {
        let mut files = unpack(bytes)?;
        let manifest = take(&mut files, MANIFEST)?;
        let manifest: Manifest = serde_json::from_slice(&manifest).map_err(BundleError::Manifest)?;
        if manifest.format != FORMAT {
            return Err(BundleError::Format { format: manifest.format });
        }
        let config = text(FILE_NAME, take(&mut files, FILE_NAME)?)?;
        let mut components = BTreeMap::new();
        for (path, digest) in &manifest.components {
            let name = format!("{COMPONENTS}{digest}.wasm");
            // Several integrations can share a component.
            let wasm = files.get(&name).ok_or_else(|| BundleError::Missing { name: name.clone() })?;
            if sha256(wasm) != *digest {
                return Err(BundleError::Changed { name });
            }
            components.insert(path.clone(), wasm.clone());
        }
        files.retain(|name, _| {
            let digest = name.strip_prefix(COMPONENTS).and_then(|name| name.strip_suffix(".wasm"));
            !digest.is_some_and(|digest| manifest.components.values().any(|known| known == digest))
        });
        let mut schemas = BTreeMap::new();
        for (name, bytes) in files {
            match name.strip_prefix(SCHEMAS) {
                Some(path) => schemas.insert(path.to_owned(), text(&name, bytes)?),
                None => return Err(BundleError::UnknownEntry { name }),
            };
        }
        let bundle = Self { config, schemas, components };
        // A stored bundle is written again for a rollback, and its digest and signature must still match.
        let mut rest = Comparison { expected: bytes };
        match bundle.write_to(&mut rest) {
            Ok(()) if rest.expected.is_empty() => Ok(bundle),
            _ => Err(BundleError::NotCanonical),
        }
    }

    /// Parses the configuration file with the bundle's own schemas.
    pub fn parse_config(&self) -> Result<ConfigFile, Diagnostics> {
        parse(FILE_NAME, &self.config, &|path| {
            self.schemas.get(path).cloned().ok_or_else(|| io::Error::other("the file is not in the bundle"))
        })
    }
}

impl BundleDigest {
    pub fn of(bundle: &[u8]) -> Self {
        Self(sha256(bundle))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for BundleDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The text is not a bundle digest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{given}` is not a bundle digest; a digest has 64 hexadecimal digits")]
pub struct InvalidDigest {
    given: String,
}

impl FromStr for BundleDigest {
    type Err = InvalidDigest;

    fn from_str(text: &str) -> Result<Self, InvalidDigest> {
        if text.len() != 64 || !text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
            return Err(InvalidDigest { given: text.chars().take(80).collect() });
        }
        Ok(Self(text.to_owned()))
    }
}

impl TryFrom<String> for BundleDigest {
    type Error = InvalidDigest;

    fn try_from(text: String) -> Result<Self, InvalidDigest> {
        text.parse()
    }
}

impl From<BundleDigest> for String {
    fn from(digest: BundleDigest) -> String {
        digest.0
    }
}

/// Compares written bytes with the expected ones, and removes those that match.
struct Comparison<'a> {
    expected: &'a [u8],
}

impl Write for Comparison<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.expected.strip_prefix(bytes) {
            Some(rest) => {
                self.expected = rest;
                Ok(bytes.len())
            }
            None => Err(io::Error::other("the bytes differ")),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Appends a file. All metadata is fixed, so that a bundle does not depend on the time and user of the build.
fn append(tar: &mut Builder<impl Write>, name: &str, content: &[u8]) -> io::Result<()> {
    let mut header = Header::new_ustar();
    header.set_path(name)?;
    header.set_size(content.len() as u64);
    header.set_mode(0o644);
    header.set_mtime(0);
    header.set_uid(0);
    header.set_gid(0);
    header.set_cksum();
    tar.append(&header, content)
}

/// Returns the files of a tar archive, by name. The archive must be complete, including its end mark.
fn unpack(bytes: &[u8]) -> Result<BTreeMap<String, Vec<u8>>, BundleError> {
    if bytes.len() > MAX_BUNDLE_BYTES {
        return Err(BundleError::TooLarge { bytes: bytes.len() });
    }
    let mut files = BTreeMap::new();
    let mut end = 0;
    for entry in Archive::new(bytes).entries().map_err(|_| BundleError::NotTar)? {
        let mut entry = entry.map_err(|error| not_tar(&error, bytes))?;
        if files.len() == MAX_ENTRIES {
            return Err(BundleError::TooManyEntries);
        }
        let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        let is_plain_path =
            name.split('/').all(|step| !matches!(step, "" | "." | "..")) && !name.contains('\\');
        if entry.header().entry_type() != EntryType::Regular || !is_plain_path {
            return Err(BundleError::OddEntry { name });
        }
        let size = usize::try_from(entry.size()).unwrap_or(usize::MAX);
        let start = usize::try_from(entry.raw_file_position()).unwrap_or(usize::MAX);
        if size > bytes.len().saturating_sub(start) {
            return Err(BundleError::Truncated);
        }
        if size > MAX_TEXT_BYTES && !name.starts_with(COMPONENTS) {
            return Err(BundleError::EntryTooLarge { name });
        }
        let mut content = Vec::with_capacity(size);
        entry.read_to_end(&mut content).map_err(|_| BundleError::NotTar)?;
        end = start + size.next_multiple_of(BLOCK);
        if files.insert(name.clone(), content).is_some() {
            return Err(BundleError::EntryTwice { name });
        }
    }
    // The end mark consists of two empty blocks.
    match bytes.get(end..end + 2 * BLOCK) {
        Some(mark) if mark.iter().all(|byte| *byte == 0) => Ok(files),
        _ => Err(BundleError::Truncated),
    }
}

/// Distinguishes truncated bundles from other files by the first block. The reader does not report every
/// truncation as an early end, but a complete archive consists of whole blocks.
fn not_tar(error: &io::Error, bytes: &[u8]) -> BundleError {
    let is_tar = bytes.get(257..262) == Some(b"ustar");
    let is_cut = error.kind() == io::ErrorKind::UnexpectedEof || !bytes.len().is_multiple_of(BLOCK);
    if is_tar && is_cut { BundleError::Truncated } else { BundleError::NotTar }
}

fn take(files: &mut BTreeMap<String, Vec<u8>>, name: &str) -> Result<Vec<u8>, BundleError> {
    files.remove(name).ok_or_else(|| BundleError::Missing { name: name.to_owned() })
}

fn text(name: &str, bytes: Vec<u8>) -> Result<String, BundleError> {
    String::from_utf8(bytes).map_err(|_| BundleError::NotText { name: name.to_owned() })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bundle() -> Bundle {
        let component = |text: &str| text.as_bytes().to_vec();
        Bundle {
            config: "name = \"shop\"\n[models.Invoice]\nschema = \"schemas/invoice.json\"\n".to_owned(),
            schemas: BTreeMap::from([("schemas/invoice.json".to_owned(), "{}".to_owned())]),
            components: BTreeMap::from([
                ("stripe".to_owned(), component("\0asm one")),
                ("../shared/crm.wasm".to_owned(), component("\0asm two")),
                ("stripe-eu".to_owned(), component("\0asm one")),
            ]),
        }
    }

    fn refusal(bytes: &[u8]) -> String {
        Bundle::read(bytes).unwrap_err().to_string()
    }

    /// Returns a tar archive with these files, after a manifest and a configuration file.
    fn tar_with(entries: &[(&str, EntryType)]) -> Vec<u8> {
        let mut tar = Builder::new(Vec::new());
        append(&mut tar, MANIFEST, br#"{"format":1,"components":{}}"#).unwrap();
        append(&mut tar, FILE_NAME, b"name = \"shop\"").unwrap();
        for (name, kind) in entries {
            let mut header = Header::new_ustar();
            header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
            header.set_entry_type(*kind);
            header.set_size(0);
            header.set_cksum();
            tar.append(&header, &[][..]).unwrap();
        }
        tar.into_inner().unwrap()
    }

    #[test]
    fn a_written_bundle_can_be_read_and_equal_bundles_have_equal_bytes() {
        let bytes = bundle().write().unwrap();
        assert_eq!(Bundle::read(&bytes).unwrap(), bundle());
        assert_eq!(BundleDigest::of(&bytes), BundleDigest::of(&bundle().write().unwrap()));
        assert_eq!(bundle().parse_config().unwrap().config.models.len(), 1);
    }

    #[test]
    fn the_bytes_of_a_bundle_depend_only_on_its_content() {
        let digest = BundleDigest::of(&bundle().write().unwrap());
        assert_eq!(digest.as_str(), "74ac1a248a02a4b776875e1b2c89c4b3bdc58b05d61ca3c50176c6c434f12cea");
        assert_eq!(digest.as_str().parse(), Ok(digest));
        assert!("xyz".parse::<BundleDigest>().is_err());
    }

    #[test]
    fn an_invalid_bundle_is_rejected_with_a_reason() {
        assert_eq!(refusal(b""), "the bundle is truncated; build or upload it again");
        assert_eq!(
            refusal(&[b'x'; 2_000]),
            "the bundle is not a tar archive; create one with `syncline build`"
        );
        assert_eq!(
            refusal(&tar_with(&[("extra.txt", EntryType::Regular)])),
            "`extra.txt` does not belong in a bundle; create the bundle with `syncline build`"
        );
        assert_eq!(
            refusal(&tar_with(&[("components/aa.wasm", EntryType::Regular)])),
            "`components/aa.wasm` does not belong in a bundle; create the bundle with `syncline build`"
        );
        for (name, kind) in [
            ("schemas/x.json", EntryType::Symlink),
            ("schemas/x.json", EntryType::Link),
            ("schemas", EntryType::Directory),
            ("schemas/../x", EntryType::Regular),
            ("/etc/passwd", EntryType::Regular),
            ("schemas//x", EntryType::Regular),
        ] {
            assert_eq!(
                refusal(&tar_with(&[(name, kind)])),
                format!("`{name}` in the bundle is not a regular file with a relative path")
            );
        }
        assert_eq!(
            refusal(&tar_with(&[(FILE_NAME, EntryType::Regular)])),
            "`syncline.toml` is in the bundle twice"
        );
    }

    #[test]
    fn an_archive_that_was_packed_differently_is_rejected() {
        let mut tar = Builder::new(Vec::new());
        append(&mut tar, FILE_NAME, b"name = \"shop\"").unwrap();
        append(&mut tar, MANIFEST, br#"{"format":1,"components":{}}"#).unwrap();
        assert_eq!(
            refusal(&tar.into_inner().unwrap()),
            "the bundle's archive was packed by another program; create it with `syncline build`"
        );
        let empty = Bundle { config: "name = \"shop\"".to_owned(), ..Bundle::default() };
        let padded = [empty.write().unwrap(), vec![0; BLOCK]].concat();
        assert!(matches!(Bundle::read(&padded), Err(BundleError::NotCanonical)));
    }

    #[test]
    fn a_changed_component_is_rejected() {
        let mut bytes = bundle().write().unwrap();
        let at = bytes.windows(8).position(|window| window == b"\0asm two").unwrap();
        bytes[at + 5] = b'T';
        assert!(
            refusal(&bytes).ends_with("was changed after the bundle was built: its SHA-256 does not match")
        );
    }

    #[test]
    fn a_bundle_that_is_truncated_anywhere_is_rejected() {
        let bytes = bundle().write().unwrap();
        for length in 0..bytes.len() {
            assert!(Bundle::read(&bytes[..length]).is_err(), "{length} of {}", bytes.len());
        }
        assert!(matches!(Bundle::read(&bytes[..bytes.len() / 2]), Err(BundleError::Truncated)));
    }

    proptest! {
        #[test]
        fn a_damaged_bundle_does_not_panic(at in any::<proptest::sample::Index>(), byte in any::<u8>()) {
            let mut bytes = bundle().write().unwrap();
            let at = at.index(bytes.len());
            bytes[at] = byte;
            drop(Bundle::read(&bytes));
        }
    }
}
