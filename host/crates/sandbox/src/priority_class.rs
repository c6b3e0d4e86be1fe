//! The priority classes of invocations.

/// The priority of an invocation, by whether a caller waits for its result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PriorityClass {
    Interactive,
    Background,
}
