//! A histogram of durations with logarithmic buckets, which can be stored, added up, and asked for percentiles.

use std::time::Duration;

/// The number of buckets between a duration and its double. A percentile is off by at most one bucket, 19 %.
const BUCKETS_PER_DOUBLING: f64 = 4.0;
/// The last bucket contains everything from about 62 hours on.
const BUCKETS: usize = 112;

/// The number of durations in each bucket. The first bucket is for less than one millisecond. Bucket `n` begins at
/// `2^((n - 1) / 4)` milliseconds. Empty buckets at the end are left out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Histogram(Vec<i64>);

impl Histogram {
    /// Adds one duration.
    pub(crate) fn record(&mut self, milliseconds: i64) {
        let bucket = bucket_of(milliseconds);
        if self.0.len() <= bucket {
            self.0.resize(bucket + 1, 0);
        }
        self.0[bucket] += 1;
    }

    /// Adds the counts of another histogram.
    pub(crate) fn add(&mut self, counts: &[i64]) {
        if self.0.len() < counts.len() {
            self.0.resize(counts.len(), 0);
        }
        self.0.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    }

    pub(crate) fn into_counts(self) -> Vec<i64> {
        self.0
    }

    /// Returns the duration that the share `share` of all durations does not exceed, for example 0.95. Returns `None`
    /// for an empty histogram.
    pub(crate) fn percentile(&self, share: f64) -> Option<Duration> {
        let total: i64 = self.0.iter().sum();
        if total <= 0 {
            return None;
        }
        let rank = ((total as f64 * share).ceil() as i64).clamp(1, total);
        let mut before = 0;
        for (bucket, count) in self.0.iter().enumerate() {
            if before + count >= rank {
                // Durations are taken to be spread evenly over their bucket.
                let position = ((rank - before) as f64 - 0.5) / *count as f64;
                return Some(within(bucket, position));
            }
            before += count;
        }
        None
    }
}

fn bucket_of(milliseconds: i64) -> usize {
    if milliseconds < 1 {
        return 0;
    }
    let doublings = (milliseconds as f64).log2();
    ((doublings * BUCKETS_PER_DOUBLING) as usize + 1).min(BUCKETS - 1)
}

/// The duration at a position from 0 (the start of the bucket) to 1 (its end).
fn within(bucket: usize, position: f64) -> Duration {
    let milliseconds = match bucket {
        0 => position,
        _ => ((bucket as f64 - 1.0 + position) / BUCKETS_PER_DOUBLING).exp2(),
    };
    Duration::from_secs_f64(milliseconds / 1_000.0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(durations: &[i64]) -> Histogram {
        let mut histogram = Histogram::default();
        durations.iter().for_each(|duration| histogram.record(*duration));
        histogram
    }

    fn milliseconds(duration: Option<Duration>) -> f64 {
        duration.expect("the histogram is not empty").as_secs_f64() * 1_000.0
    }

    #[test]
    fn an_empty_histogram_has_no_percentiles() {
        assert_eq!(Histogram::default().percentile(0.5), None);
    }

    #[test]
    fn negative_and_very_long_durations_are_counted() {
        let histogram = of(&[-5, i64::MAX]);
        assert!(milliseconds(histogram.percentile(0.5)) <= 1.0);
        assert!(milliseconds(histogram.percentile(1.0)) > 2e8);
    }

    proptest! {
        #[test]
        fn percentiles_are_off_by_at_most_one_bucket(
            mut durations in prop::collection::vec(1_i64..100_000_000, 1..200),
            share in 0.01..1.0_f64,
        ) {
            let estimate = milliseconds(of(&durations).percentile(share));
            durations.sort_unstable();
            let rank = (durations.len() as f64 * share).ceil() as usize;
            let exact = durations[rank - 1] as f64;
            let most = 2_f64.powf(1.0 / BUCKETS_PER_DOUBLING) * 1.000_001;
            prop_assert!(estimate <= exact * most && estimate >= exact / most, "{estimate} instead of {exact}");
        }

        #[test]
        fn a_sum_of_histograms_equals_the_histogram_of_all_durations(
            one in prop::collection::vec(0_i64..100_000_000, 0..50),
            other in prop::collection::vec(0_i64..100_000_000, 0..50),
        ) {
            let mut sum = of(&one);
            sum.add(&of(&other).into_counts());
            prop_assert_eq!(sum, of(&[one, other].concat()));
        }
    }
}
