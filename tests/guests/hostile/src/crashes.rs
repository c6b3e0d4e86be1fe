//! Functions that crash.

use std::hint::black_box;

use serde::Deserialize;
use serde_json::Value;
use syncline_sdk::{Error, Result, action};

#[action]
pub fn panic(message: Option<String>) -> Result {
    panic!("{}", message.as_deref().unwrap_or("a panic on purpose"));
}

/// Traps without a message.
#[action]
pub fn trap() -> Result {
    #[cfg(target_family = "wasm")]
    std::arch::wasm32::unreachable();
    #[cfg(not(target_family = "wasm"))]
    std::process::abort();
}

/// Ends its process with this status.
#[action]
pub fn exit(status: i32) -> Result {
    std::process::exit(status)
}

/// Reads at the highest address, which lies outside the memory.
#[action]
pub fn read_out_of_bounds() -> Result<u8> {
    let address = black_box(0xffff_fff0_usize);
    // SAFETY: none. The sandbox must prevent the access.
    Ok(unsafe { std::ptr::read_volatile(address as *const u8) })
}

/// Recurses until the engine's stack is full.
#[action]
pub fn recurse() -> Result<u64> {
    Ok(deeper(black_box(0)))
}

/// Uses no memory. The two operations keep the compiler from turning the recursion into a loop.
fn deeper(depth: u64) -> u64 {
    if depth == u64::MAX { 0 } else { deeper(depth + 1).wrapping_mul(31) ^ depth }
}

/// Recurses until the stack in the guest's own memory is full.
#[action]
pub fn recurse_in_memory() -> Result<u64> {
    Ok(deeper_in_memory(black_box(0)))
}

#[expect(unconditional_recursion, reason = "that is what it is for")]
fn deeper_in_memory(depth: u64) -> u64 {
    let frame = black_box([depth; 32]);
    deeper_in_memory(depth + 1) + frame[31]
}

#[derive(Deserialize)]
pub struct Fail {
    code: String,
    message: String,
    details: Option<Value>,
}

/// Returns the failure from its input.
#[action]
pub fn fail(fail: Fail) -> Result {
    let error = Error::new(fail.code, fail.message);
    Err(match &fail.details {
        Some(details) => error.with_details(details),
        None => error,
    })
}
