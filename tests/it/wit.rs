//! A published version of the WIT world never changes, because existing components depend on it.

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};
use wit_component::WitPrinter;
use wit_parser::Resolve;

use crate::support::repository;

/// The versions in `wit/published.toml`, each with the digest of its content.
fn published() -> BTreeMap<String, String> {
    let text = std::fs::read_to_string(repository("wit/published.toml")).expect("wit/published.toml exists");
    toml::from_str(&text).expect("wit/published.toml lists versions and digests")
}

/// SHA-256 of the package printed without comments, so that only comments can change.
fn digest(version: &str) -> String {
    let mut resolve = Resolve::default();
    let (package, _) =
        resolve.push_dir(repository("wit").join(version)).unwrap_or_else(|error| panic!("{error:?}"));
    let name = &resolve.packages[package].name;
    assert_eq!(
        name.to_string(),
        format!("syncline:integration@{version}"),
        "the folder name must be the version"
    );
    let mut printer = WitPrinter::default();
    printer.emit_docs(false).print(&resolve, package, &[]).expect("a parsed package can be printed");
    let text = printer.output.to_string();
    Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn a_published_version_never_changes() {
    for (version, published) in published() {
        assert_eq!(
            digest(&version),
            published,
            "wit/{version} has changed: undo the change, and add a new version instead"
        );
    }
}

#[test]
fn every_version_is_listed() {
    let folders = std::fs::read_dir(repository("wit"))
        .expect("wit/ exists")
        .map(|entry| entry.expect("it can be read"));
    let mut versions: Vec<String> = folders
        .filter(|entry| entry.path().is_dir())
        .map(|entry| entry.file_name().into_string().expect("versions are text"))
        .collect();
    versions.sort();
    assert_eq!(
        published().into_keys().collect::<Vec<_>>(),
        versions,
        "wit/published.toml and the folders in wit/"
    );
}
