//! How often each disturbance was chosen, and how often it happened.

use std::collections::BTreeMap;
use std::fmt;

use super::disturbances::Disturbance;

#[derive(Debug, Clone, Copy, Default)]
struct Count {
    chosen: u32,
    happened: u32,
}

/// Counts disturbances. A disturbance may not happen: a killed host needs a host to kill, and a partition needs
/// traffic.
#[derive(Debug, Default)]
pub struct Tally(BTreeMap<Disturbance, Count>);

impl Tally {
    pub fn choose(&mut self, disturbance: Disturbance) {
        self.0.entry(disturbance).or_default().chosen += 1;
    }

    pub fn note(&mut self, disturbance: Disturbance) {
        self.0.entry(disturbance).or_default().happened += 1;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, (disturbance, Count { chosen, happened })) in self.0.iter().enumerate() {
            let separator = if number == 0 { "" } else { ", " };
            write!(f, "{separator}{disturbance:?} {happened}")?;
            if happened < chosen {
                write!(f, " of {chosen}")?;
            }
        }
        Ok(())
    }
}
