//! Decides when a host may take over the work of other hosts.
//!
//! While the database is unavailable, all leases expire, including those of live hosts. The first host that reaches the
//! database again gives the others time to renew their leases.

use std::time::{Duration, Instant};

use syncline_telemetry::clock::Clock;

/// The takeover grace period of a host. The host renews its own leases every third of a lease.
#[derive(Debug)]
pub(crate) struct TakeoverGrace {
    clock: Clock,
    lease: Duration,
    latest: Instant,
    waits_until: Instant,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Takeover {
    Yes,
    /// This host was recently unable to renew its own leases.
    NotYet,
}

impl TakeoverGrace {
    pub(crate) fn begin(lease: Duration, clock: Clock) -> Self {
        let now = clock.instant();
        Self { clock, lease, latest: now, waits_until: now }
    }

    /// Records that this host has renewed its leases.
    pub(crate) fn note(&mut self) -> Takeover {
        let now = self.clock.instant();
        let has_missed_one = now.duration_since(self.latest) > self.lease * 2 / 3;
        self.latest = now;
        if has_missed_one {
            self.waits_until = now + self.lease;
        }
        if now < self.waits_until { Takeover::NotYet } else { Takeover::Yes }
    }
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;

    use super::*;

    #[test]
    fn a_host_that_could_not_renew_its_leases_waits_for_one_lease() {
        let time = Clock::manual(DateTime::UNIX_EPOCH);
        let mut takeover_grace = TakeoverGrace::begin(Duration::from_secs(30), time.clock());
        let mut elapsed = 0;
        let not_yet: Vec<u64> = [10, 20, 39, 60, 70, 80, 89, 90, 100]
            .into_iter()
            .filter(|seconds| {
                time.advance(Duration::from_secs(seconds - elapsed));
                elapsed = *seconds;
                takeover_grace.note() == Takeover::NotYet
            })
            .collect();
        assert_eq!(not_yet, [60, 70, 80, 89]);
    }
}
