//! Functions that exceed a limit.

use std::hint::black_box;

use serde::Deserialize;
use syncline_sdk::{Result, action, http, log};

use crate::clock::wait;

/// Uses the CPU forever.
#[action]
pub fn spin() -> Result {
    for turn in 0_u64.. {
        black_box(turn);
    }
    Ok(())
}

/// Sleeps for the given number of milliseconds.
#[action]
pub fn sleep(time_ms: u64) -> Result {
    wait(time_ms);
    Ok(())
}

/// Allocates and uses memory until none is left.
#[action]
pub fn allocate() -> Result<usize> {
    let mut taken = Vec::new();
    loop {
        taken.push(black_box(vec![1_u8; 1 << 20]));
    }
}

/// Requests 3 GB at once.
#[action]
pub fn reserve() -> Result {
    black_box(Vec::<u8>::with_capacity(black_box(3 << 30)));
    Ok(())
}

/// Logs a message of the given number of bytes in one call.
#[action]
pub fn big_log(bytes: usize) -> Result {
    log::info!("{}", "x".repeat(bytes));
    Ok(())
}

/// Logs forever.
#[action]
pub fn log_flood() -> Result {
    let line = "x".repeat(1_000);
    for number in 0_u64.. {
        log::info!("{number} {line}");
    }
    Ok(())
}

/// Sends the same request to the provider forever.
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

/// Sends the given number of identical requests to the provider at once.
#[action]
pub fn request_storm(storm: Storm) -> Result {
    http::send_all((0..storm.count).map(|_| http::get(&storm.url)));
    Ok(())
}

/// Returns a text of the given number of bytes.
#[action]
pub fn big_output(bytes: usize) -> Result<String> {
    Ok("x".repeat(bytes))
}
