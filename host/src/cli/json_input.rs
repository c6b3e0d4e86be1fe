//! JSON on the command line: as an argument, in a file, or on standard input.

use std::io::Read;

use anyhow::Context;
use serde_json::value::RawValue;

/// JSON, exactly as it was written.
#[derive(Debug, Clone)]
pub(super) struct JsonInput(Box<RawValue>);

impl JsonInput {
    /// Reads `JSON`, `@FILE`, or `@-` for standard input.
    pub(super) fn read(argument: &str) -> anyhow::Result<Self> {
        let (text, place) = match argument.strip_prefix('@') {
            None => (argument.to_owned(), "the argument".to_owned()),
            Some("-") => {
                let mut text = String::new();
                std::io::stdin().read_to_string(&mut text).context("could not read standard input")?;
                (text, "standard input".to_owned())
            }
            Some(path) => {
                let text = std::fs::read_to_string(path).with_context(|| format!("could not read {path}"))?;
                (text, path.to_owned())
            }
        };
        let json = serde_json::from_str(&text);
        json.map(Self).with_context(|| format!("{place} is not JSON; for a string, write '\"text\"'"))
    }

    pub(super) fn into_raw(self) -> Box<RawValue> {
        self.0
    }
}
