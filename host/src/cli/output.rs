//! What commands print, in place of the macros of the same names, which end a program in the middle of its work when
//! nobody reads on. Whoever pipes into `head` has seen enough; what was asked for is done all the same.

use std::fmt::Arguments;
use std::io::{ErrorKind, Write};
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether nobody reads what is printed.
static IS_CLOSED: AtomicBool = AtomicBool::new(false);
/// Whether something that somebody wanted to read could not be written.
static IS_LOST: AtomicBool = AtomicBool::new(false);

macro_rules! println {
    () => { $crate::cli::output::print(format_args!("\n")) };
    ($($text:tt)+) => { $crate::cli::output::print(format_args!("{}\n", format_args!($($text)+))) };
}

macro_rules! eprint {
    ($($text:tt)+) => { $crate::cli::output::tell(format_args!($($text)+)) };
}

macro_rules! eprintln {
    ($($text:tt)+) => { $crate::cli::output::tell(format_args!("{}\n", format_args!($($text)+))) };
}

/// For what would be printed without an end.
pub(super) fn is_closed() -> bool {
    IS_CLOSED.load(Ordering::Relaxed)
}

/// Whether the command has failed by not saying what it did.
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
                tell(format_args!("error: what the command says cannot be written: {error}\n"));
            }
        }
    }
}

pub(super) fn tell(text: Arguments<'_>) {
    // There is nowhere left to say that it failed.
    let _written = std::io::stderr().write_fmt(text);
}
