//! A spinner for work that takes seconds. It is on standard error, and only on a terminal.

use std::sync::Arc;
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

/// Shows the upload of a file until the value is dropped. After the last byte, it says what the host is doing.
#[derive(Clone)]
pub(super) struct Upload(Arc<Uploading>);

struct Uploading {
    spinner: Spinner,
    total_bytes: usize,
    afterwards: &'static str,
}

impl Upload {
    pub(super) fn start(total_bytes: usize, afterwards: &'static str) -> Self {
        let spinner = Spinner::start(upload_message(0, total_bytes, afterwards));
        Self(Arc::new(Uploading { spinner, total_bytes, afterwards }))
    }

    pub(super) fn set_sent(&self, sent_bytes: usize) {
        let Uploading { spinner, total_bytes, afterwards } = &*self.0;
        spinner.0.set_message(upload_message(sent_bytes, *total_bytes, afterwards));
    }
}

fn upload_message(sent_bytes: usize, total_bytes: usize, afterwards: &str) -> String {
    if sent_bytes >= total_bytes {
        return afterwards.to_owned();
    }
    let megabytes = |bytes: usize| bytes as f64 / 1e6;
    format!("uploading the bundle: {:.1} of {:.1} MB", megabytes(sent_bytes), megabytes(total_bytes))
}

impl Drop for Spinner {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upload_shows_its_progress_and_then_what_the_host_does() {
        let message = |sent| upload_message(sent, 12_340_000, "the host is checking the bundle");
        assert_eq!(message(0), "uploading the bundle: 0.0 of 12.3 MB");
        assert_eq!(message(6_500_000), "uploading the bundle: 6.5 of 12.3 MB");
        assert_eq!(message(12_340_000), "the host is checking the bundle");
    }
}
