//! Settings that the operator gives to functions.

use crate::host;

/// The variable of that name.
pub fn var(name: &str) -> Option<String> {
    vars().into_iter().find(|(present, _)| present == name).map(|(_, value)| value)
}

/// All variables that the integration may see, by name.
pub fn vars() -> Vec<(String, String)> {
    host::environment::variables()
}
