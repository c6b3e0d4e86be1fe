//! Functions that use too much of something.

use std::hint::black_box;

use serde::Deserialize;
use syncline_sdk::{Result, action, http, log};

use crate::clock::wait;

/// Uses the processor for ever.
#[action]
pub fn spin() -> Result {
    for turn in 0_u64.. {
        black_box(turn);
    }
    Ok(())
}

/// Waits idly for so many milliseconds.
#[action]
pub fn sleep(time_ms: u64) -> Result {
    wait(time_ms);
    Ok(())
}

/// Takes memory and uses it, until there is none.
#[action]
pub fn allocate() -> Result<usize> {
    let mut taken = Vec::new();
    loop {
        taken.push(black_box(vec![1_u8; 1 << 20]));
    }
}

/// Hands the host a text of so many bytes in one call, as a message to log.
#[action]
pub fn big_log(bytes: usize) -> Result {
    log::info!("{}", "x".repeat(bytes));
    Ok(())
}

/// Logs for ever.
#[action]
pub fn log_flood() -> Result {
    let line = "x".repeat(1_000);
    for number in 0_u64.. {
        log::info!("{number} {line}");
    }
    Ok(())
}

/// Asks the provider for the same thing for ever.
#[action]
pub fn request_flood(url: String) -> Result {
    loop {
        http::get(&url).send()?;
    }
}

#[derive(Deserialize)]
pub struct Storm {
    url: String,
    count: usize,
}

/// Asks the provider for the same thing so many times at once.
#[action]
pub fn request_storm(storm: Storm) -> Result {
    http::send_all((0..storm.count).map(|_| http::get(&storm.url)));
    Ok(())
}

/// Returns a text of so many bytes.
#[action]
pub fn big_output(bytes: usize) -> Result<String> {
    Ok("x".repeat(bytes))
}
