//! The problems of a value with their places, which are collected during the walk.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What is wrong at one place of a value. It names types but never the value, which may be secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// A JSON pointer such as `/address/zip`; empty for the whole value.
    pub path: String,
    /// A description such as `expected string, got integer`.
    pub problem: String,
}

/// Maximum number of problems that are reported for one value. Further ones are dropped.
pub(super) const MAX_PROBLEMS: usize = 10;

/// The problems found so far. Their paths start at the current array or object of the walk. When the walk leaves a
/// member, its key is prepended to the paths of the problems in it.
#[derive(Default)]
pub(super) struct Problems(Vec<Problem>);

/// The number of problems at some moment.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Mark(usize);

impl Mark {
    /// Before the first problem.
    pub(super) const START: Self = Self(0);
}

const HALF_A_PAIR: &str =
    "is not valid Unicode: it contains half of a surrogate pair (`\\ud800` to `\\udfff`)";

impl Problem {
    /// A problem of the value itself.
    pub(super) fn here(problem: impl Into<String>) -> Self {
        Self { path: String::new(), problem: problem.into() }
    }

    /// A problem of the member with this key.
    pub(super) fn of_member(key: &str, problem: impl Into<String>) -> Self {
        Self { path: step(key), problem: problem.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.path.is_empty() {
            write!(f, "at {}: ", self.path)?;
        }
        f.write_str(&self.problem)
    }
}

impl Problems {
    #[inline]
    pub(super) fn mark(&self) -> Mark {
        Mark(self.0.len())
    }

    #[inline]
    pub(super) fn any_since(&self, mark: Mark) -> bool {
        self.0.len() > mark.0
    }

    #[cold]
    pub(super) fn add(&mut self, problem: Problem) {
        if self.0.len() < MAX_PROBLEMS {
            self.0.push(problem);
        }
    }

    /// Adds the problem of a string with half of a surrogate pair. JSON allows it, but it is not Unicode, and many
    /// readers reject the whole text.
    #[cold]
    pub(super) fn add_half_a_pair(&mut self) {
        self.add(Problem::here(HALF_A_PAIR));
    }

    /// Prepends a key or an index to the paths of the problems since the mark.
    #[cold]
    pub(super) fn locate(&mut self, since: Mark, key: &str) {
        let step = step(key);
        self.0[since.0..].iter_mut().for_each(|problem| problem.path.insert_str(0, &step));
    }

    /// Removes the problems of an earlier value of a repeated key, because only the last value is used. Invalid
    /// text stays a problem, because both values are stored.
    #[cold]
    pub(super) fn forget_member(&mut self, since: Mark, key: &str) {
        if self.0.len() == MAX_PROBLEMS {
            return; // Other problems may have been dropped, so the value must stay refused.
        }
        let step = step(key);
        let found = self.0.split_off(since.0);
        self.0.extend(found.into_iter().filter(|problem| {
            let below = problem.path.strip_prefix(&step);
            let is_inside = below.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
            !is_inside || problem.problem == HALF_A_PAIR
        }));
    }

    pub(super) fn drop_since(&mut self, mark: Mark) {
        self.0.truncate(mark.0);
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    pub(super) fn take(&mut self) -> Vec<Problem> {
        std::mem::take(&mut self.0)
    }
}

/// A step of a JSON pointer (RFC 6901).
fn step(key: &str) -> String {
    format!("/{}", key.replace('~', "~0").replace('/', "~1"))
}
