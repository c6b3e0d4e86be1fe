//! The provider of the syncs, whose data changes with each round.

use std::collections::BTreeSet;

use rand::Rng;
use rand::rngs::StdRng;
use serde_json::{Value, json};

/// Steps that a round adds to the sync that resumes from its checkpoint.
const STEPS_A_ROUND: u64 = 40;

/// The state of the provider, and the changes that must have been reported so far.
#[derive(Default)]
pub struct Provider {
    pub numbers: BTreeSet<u64>,
    pub salt: u64,
    pub steps: u64,
    /// Added, updated and deleted records of the full sync.
    pub reported: [u64; 3],
}

impl Provider {
    /// Changes the provider's data, and returns the metadata for the full sync.
    pub fn change(&mut self, random: &mut StdRng) -> Value {
        let (first, count) = (random.random_range(0..20), random.random_range(40..80));
        let numbers: BTreeSet<u64> = (first..first + count).collect();
        self.reported[0] += numbers.difference(&self.numbers).count() as u64;
        self.reported[1] += numbers.intersection(&self.numbers).count() as u64;
        self.reported[2] += self.numbers.difference(&numbers).count() as u64;
        self.numbers = numbers;
        self.salt += 1;
        self.steps += STEPS_A_ROUND;
        json!({ "first": first, "count": count, "batch": 4, "size_bytes": 200, "salt": self.salt.to_string() })
    }
}
