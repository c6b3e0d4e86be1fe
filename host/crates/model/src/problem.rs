//! What is wrong with a value, and where: collected while the walk is still inside of it.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What is wrong at one place of a value. It names types, never the value, which may be secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// A JSON pointer such as `/address/zip`; empty for the whole value.
    pub path: String,
    /// Such as `expected string, got integer`.
    pub problem: String,
}

/// The problems of one value that are reported; further ones are dropped.
pub(super) const MAX_PROBLEMS: usize = 10;

/// The problems found so far. Their paths begin at the array or object that the walk is in: whoever leaves a
/// member adds its key to those that were found in it.
#[derive(Default)]
pub(super) struct Problems(Vec<Problem>);

/// How many problems there were at some moment.
#[derive(Clone, Copy)]
pub(super) struct Mark(usize);

impl Mark {
    /// Before the first problem.
    pub(super) const START: Self = Self(0);
}

const HALF_A_PAIR: &str = "is not text: it holds half of a surrogate pair (`\\ud800` to `\\udfff`)";

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

    /// A string with half of a surrogate pair: JSON allows it, but it is not Unicode, and many readers refuse
    /// the whole text that it is in.
    #[cold]
    pub(super) fn add_half_a_pair(&mut self) {
        self.add(Problem::here(HALF_A_PAIR));
    }

    /// Puts a key or an index in front of the paths found since.
    #[cold]
    pub(super) fn locate(&mut self, since: Mark, key: &str) {
        let step = step(key);
        self.0[since.0..].iter_mut().for_each(|problem| problem.path.insert_str(0, &step));
    }

    /// Of a repeated key the last value counts, so what was wrong with the one before does not. What is no
    /// text stays a problem, for both values are stored.
    #[cold]
    pub(super) fn forget_member(&mut self, since: Mark, key: &str) {
        if self.0.len() == MAX_PROBLEMS {
            return; // Of problems elsewhere some may have been dropped: the value must stay refused.
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
