//! The priority classes of invocations.

/// Whether somebody waits for what an invocation comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PriorityClass {
    Interactive,
    Background,
}
