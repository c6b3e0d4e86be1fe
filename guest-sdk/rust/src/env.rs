//! Variables that the operator defines for functions.

use crate::host;

/// Returns the value of a variable.
pub fn var(name: &str) -> Option<String> {
    vars().into_iter().find(|(present, _)| present == name).map(|(_, value)| value)
}

/// Returns the names and values of all variables that the integration can read.
pub fn vars() -> Vec<(String, String)> {
    host::environment::variables()
}
