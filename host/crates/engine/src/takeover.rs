//! When a host may take back what others hold.
//!
//! While the database was away every lease ran out, also those of hosts that are as alive as this one. Whoever comes back
//! first leaves the others the time to renew theirs.

use std::time::{Duration, Instant};

/// What a host knows of its own turns at renewing its leases, of which there is one each third of a lease.
#[derive(Debug)]
pub(crate) struct TakeoverGrace {
    lease: Duration,
    latest: Instant,
    waits_until: Instant,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MayTakeBack {
    Yes,
    /// It was away itself a moment ago.
    NotYet,
}

impl TakeoverGrace {
    pub(crate) fn begin(lease: Duration) -> Self {
        let now = Instant::now();
        Self { lease, latest: now, waits_until: now }
    }

    /// Notes a turn that went well.
    pub(crate) fn note(&mut self) -> MayTakeBack {
        self.note_at(Instant::now())
    }

    fn note_at(&mut self, now: Instant) -> MayTakeBack {
        let has_missed_one = now.duration_since(self.latest) > self.lease * 2 / 3;
        self.latest = now;
        if has_missed_one {
            self.waits_until = now + self.lease;
        }
        if now < self.waits_until { MayTakeBack::NotYet } else { MayTakeBack::Yes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_that_was_away_waits_for_one_lease() {
        let mut takeover_grace = TakeoverGrace::begin(Duration::from_secs(30));
        let began = takeover_grace.latest;
        let answers = [10, 20, 39, 60, 70, 80, 89, 90, 100]
            .map(|seconds| (seconds, takeover_grace.note_at(began + Duration::from_secs(seconds))));
        let not_yet: Vec<u64> = answers
            .into_iter()
            .filter(|(_, answer)| *answer == MayTakeBack::NotYet)
            .map(|(seconds, _)| seconds)
            .collect();
        assert_eq!(not_yet, [60, 70, 80, 89]);
    }
}
