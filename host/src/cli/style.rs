//! Colours, which appear only on a terminal and without the variable `NO_COLOR`.

use std::fmt;
use std::sync::LazyLock;

use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};

static ON_OUTPUT: LazyLock<bool> =
    LazyLock::new(|| AutoStream::choice(&std::io::stdout()) != ColorChoice::Never);
static ON_ERRORS: LazyLock<bool> =
    LazyLock::new(|| AutoStream::choice(&std::io::stderr()) != ColorChoice::Never);

/// A part of a line with its own colour.
pub(super) struct Styled<'t> {
    text: &'t str,
    style: Style,
}

/// The start of an error message on standard error.
pub(super) fn error_label() -> Styled<'static> {
    styled("error:", AnsiColor::Red.on_default().bold(), *ON_ERRORS)
}

/// The state of a run, or the level of a line in its log, on standard output. `text` may be padded.
pub(super) fn state(text: &str) -> Styled<'_> {
    let style = match text.trim_end() {
        "success" => AnsiColor::Green.on_default(),
        "error" | "lost" => AnsiColor::Red.on_default(),
        "warn" | "cancelled" => AnsiColor::Yellow.on_default(),
        "running" | "info" => AnsiColor::Cyan.on_default(),
        "debug" => Style::new().dimmed(),
        _ => Style::new(),
    };
    styled(text, style, *ON_OUTPUT)
}

fn styled(text: &str, style: Style, is_on: bool) -> Styled<'_> {
    Styled { text, style: if is_on { style } else { Style::new() } }
}

impl fmt::Display for Styled<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { text, style } = self;
        write!(f, "{style}{text}{style:#}")
    }
}
