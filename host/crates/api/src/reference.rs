//! The reference that is generated from the code: the tables of `docs/errors.md`, and `docs/openapi.json`.
//!
//! `make docs` writes both; a test compares what is committed.

use std::fmt::Write;

use strum::VariantArray;
use syncline_types::error_code::ErrorCode;

use crate::error::status::statuses;

/// The codes that requests are answered with, as a Markdown table.
fn request_codes() -> String {
    let mut table = "| Code | Status | Meaning | What to do |\n|---|---|---|---|\n".to_owned();
    for code in ErrorCode::VARIANTS.iter().filter(|code| !statuses(**code).is_empty()) {
        let mut numbers: Vec<_> = statuses(*code).iter().map(|status| status.as_u16().to_string()).collect();
        numbers.sort();
        let numbers = numbers.join(", ");
        let _infallible =
            writeln!(table, "| `{code}` | {numbers} | {} | {} |", code.meaning(), code.remedy());
    }
    table
}

/// The codes that only runs and connections carry, as a Markdown table.
fn other_codes() -> String {
    let mut table = "| Code | Meaning | What to do |\n|---|---|---|\n".to_owned();
    for code in ErrorCode::VARIANTS.iter().filter(|code| statuses(**code).is_empty()) {
        let _infallible = writeln!(table, "| `{code}` | {} | {} |", code.meaning(), code.remedy());
    }
    table
}

/// Replaces what stands in a page between the markers of a name.
fn fill(page: &str, name: &str, content: &str) -> Option<String> {
    let (begin, end) = (format!("<!-- generated: {name} -->\n"), format!("<!-- end of {name} -->"));
    let (before, rest) = page.split_once(&begin)?;
    let (_, after) = rest.split_once(&end)?;
    Some(format!("{before}{begin}{content}{end}{after}"))
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::*;

    fn docs(file: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs").join(file)
    }

    /// Compares a file with what it should be, or writes it if `SYNCLINE_WRITE_DOCS` is set.
    fn compare(file: &str, expected: &str) {
        if std::env::var_os("SYNCLINE_WRITE_DOCS").is_some() {
            std::fs::write(docs(file), expected).unwrap();
        }
        let found = std::fs::read_to_string(docs(file)).unwrap_or_default();
        assert!(found == expected, "docs/{file} is not what the code generates; run `make docs`");
    }

    #[test]
    fn the_error_reference_is_generated_from_the_codes() {
        let page = std::fs::read_to_string(docs("errors.md")).unwrap();
        let page = fill(&page, "codes of requests", &request_codes()).unwrap();
        let page = fill(&page, "codes of runs and connections", &other_codes()).unwrap();
        compare("errors.md", &page);
    }

    #[test]
    fn the_committed_openapi_document_is_the_one_that_hosts_serve() {
        let document = crate::openapi().to_pretty_json().unwrap();
        compare("openapi.json", &(document + "\n"));
    }
}
