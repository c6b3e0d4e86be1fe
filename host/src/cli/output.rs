//! Printing for commands. These macros replace the standard ones, which panic when the reader of a pipe has gone
//! away, such as `head` after its last line. A command completes its work in that case.

use std::fmt::Arguments;
use std::io::{ErrorKind, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the reader of standard output has closed it.
static IS_CLOSED: AtomicBool = AtomicBool::new(false);
/// Whether output was lost for another reason.
static IS_LOST: AtomicBool = AtomicBool::new(false);

macro_rules! println {
    () => { $crate::cli::output::print(format_args!("\n")) };
    ($($text:tt)+) => { $crate::cli::output::print(format_args!("{}\n", format_args!($($text)+))) };
}

macro_rules! print {
    ($($text:tt)+) => { $crate::cli::output::print(format_args!($($text)+)) };
}

macro_rules! eprint {
    ($($text:tt)+) => { $crate::cli::output::print_error(format_args!($($text)+)) };
}

macro_rules! eprintln {
    ($($text:tt)+) => { $crate::cli::output::print_error(format_args!("{}\n", format_args!($($text)+))) };
}

/// Lets a command that prints continuously stop.
pub(super) fn is_closed() -> bool {
    IS_CLOSED.load(Ordering::Relaxed)
}

/// Makes the command fail, because its output is incomplete.
pub(super) fn is_lost() -> bool {
    IS_LOST.load(Ordering::Relaxed)
}

pub(super) fn print(text: Arguments<'_>) {
    if is_closed() {
        return;
    }
    match std::io::stdout().write_fmt(text) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::BrokenPipe => IS_CLOSED.store(true, Ordering::Relaxed),
        Err(error) => {
            if !IS_LOST.swap(true, Ordering::Relaxed) {
                print_error(format_args!("error: could not write the command's output: {error}\n"));
            }
        }
    }
}

pub(super) fn print_error(text: Arguments<'_>) {
    // There is no other place to report that this failed.
    let _written = std::io::stderr().write_fmt(text);
}

/// Asks the user a question. Fails without a terminal; `instead` is the option that replaces the answer.
pub(super) fn confirmed(question: &str, instead: &str) -> anyhow::Result<bool> {
    if !std::io::stdin().is_terminal() {
        anyhow::bail!("cannot ask for confirmation without a terminal; {instead}");
    }
    print!("{question} [y/N] ");
    std::io::stdout().flush()?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
