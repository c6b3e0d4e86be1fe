//! The documentation names the tests that prove each guarantee. Every named test has to exist.

use std::path::PathBuf;

use crate::support::repository;

/// The pages that name tests.
const PAGES: [&str; 3] = ["docs/guarantees.md", "docs/testing.md", "SECURITY.md"];

/// The file that contains a test which a page calls `file::test`, as docs/guarantees.md describes.
fn test_path(file: &str) -> PathBuf {
    match file.strip_prefix("sdk/") {
        Some(file) => repository("guest-sdk/rust/tests").join(file),
        None if file.ends_with(".rs") => source_file(file),
        None => repository("tests/it").join(format!("{}.rs", file.replace("::", "/"))),
    }
}

/// A file of a crate under `host/crates`, or of the host itself.
fn source_file(file: &str) -> PathBuf {
    let in_crate = file.split_once('/').and_then(|(name, rest)| {
        let folder = repository("host/crates").join(name);
        let rest =
            if rest.starts_with("tests/") { PathBuf::from(rest) } else { PathBuf::from("src").join(rest) };
        folder.is_dir().then(|| folder.join(rest))
    });
    in_crate.unwrap_or_else(|| repository("host/src").join(file))
}

/// File and name, if the code span is the name of a test and not of a function or a setting.
fn parse_test(code: &str) -> Option<(&str, &str)> {
    let (file, test) = code.rsplit_once("::")?;
    let is_name =
        |text: &str| text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
    (is_name(test) && code != "file::test").then_some((file, test))
}

/// Whether the file contains the test, or exists if no test is named.
fn has_test(file: &str, test: &str) -> bool {
    let exists = |source: String| test.is_empty() || source.contains(&format!("fn {test}("));
    std::fs::read_to_string(test_path(file)).is_ok_and(exists)
}

#[test]
fn every_test_named_in_the_documentation_exists() {
    for page in PAGES {
        let text = std::fs::read_to_string(repository(page)).expect("the page exists");
        let named: Vec<_> = text.split('`').skip(1).step_by(2).filter_map(parse_test).collect();
        assert!(named.len() > 30, "{page} names {} tests", named.len());
        let missing: Vec<_> = named.into_iter().filter(|(file, test)| !has_test(file, test)).collect();
        assert!(missing.is_empty(), "{page} names tests that do not exist: {missing:?}");
    }
}
