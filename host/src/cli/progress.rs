//! A spinner for work that takes seconds. It is on standard error, and only on a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

const EVERY: Duration = Duration::from_millis(100);

/// Shows that work is in progress until the value is dropped.
pub(super) struct Spinner(ProgressBar);

impl Spinner {
    pub(super) fn start(message: impl Into<String>) -> Self {
        // indicatif draws nothing if standard error is not a terminal.
        let bar = ProgressBar::new_spinner().with_message(message.into());
        let style =
            ProgressStyle::with_template("{spinner} {msg} ({elapsed})").expect("the template is valid");
        bar.set_style(style);
        bar.enable_steady_tick(EVERY);
        Self(bar)
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
