//! Distributes the host's concurrency permits fairly: no integration may use all of them while another waits. Pure.

use std::collections::{HashMap, HashSet};

use rand::Rng;
use rand::seq::SliceRandom;

use syncline_types::ids::{EnvironmentPk, IntegrationPk};

/// An integration with its environment. Permits are shared among environments first, then among integrations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Tenant {
    pub environment: EnvironmentPk,
    pub integration: IntegrationPk,
}

/// A tenant with waiting runs, and the maximum number of its runs on this host.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Candidate {
    pub tenant: Tenant,
    pub most: usize,
    /// The number of the round in which the tenant last received a permit.
    pub served: u64,
}

/// The round in which each integration last received a permit.
#[derive(Debug, Default)]
pub(crate) struct Served {
    round: u64,
    last: HashMap<IntegrationPk, u64>,
}

impl Served {
    pub(crate) fn last(&self, integration: IntegrationPk) -> u64 {
        self.last.get(&integration).copied().unwrap_or(0)
    }

    pub(crate) fn note(&mut self, integrations: impl Iterator<Item = IntegrationPk>) {
        self.round += 1;
        self.last.extend(integrations.map(|integration| (integration, self.round)));
    }

    /// Forgets integrations that have no waiting runs.
    pub(crate) fn retain(&mut self, waiting: &HashSet<IntegrationPk>) {
        self.last.retain(|integration, _| waiting.contains(integration));
    }
}

/// Gives each free permit to the environment with the fewest running syncs, and within it to the integration with the
/// fewest. Among equals, the one that has waited longest comes first.
///
/// So a tenant without running syncs receives the next free permit, however many runs of others wait. A tenant without
/// competition receives all permits. Returns how many runs each integration may start.
pub(crate) fn share(
    candidates: &[Candidate],
    running: &HashMap<Tenant, usize>,
    free: usize,
    rng: &mut impl Rng,
) -> HashMap<IntegrationPk, usize> {
    let mut candidates = candidates.to_vec();
    // Shuffled, so that no tenant is always first among those that have received no permit yet.
    candidates.shuffle(rng);
    let mut counts = running.clone();
    let mut of_environment: HashMap<EnvironmentPk, usize> = HashMap::new();
    for (tenant, count) in running {
        *of_environment.entry(tenant.environment).or_default() += count;
    }
    let mut shares = HashMap::new();
    for _ in 0..free {
        candidates
            .retain(|candidate| counts.get(&candidate.tenant).is_none_or(|count| *count < candidate.most));
        let fewest = candidates.iter().min_by_key(|Candidate { tenant, served, .. }| {
            let environment = of_environment.get(&tenant.environment).copied().unwrap_or(0);
            (environment, counts.get(tenant).copied().unwrap_or(0), *served)
        });
        let Some(Candidate { tenant, .. }) = fewest else { break };
        *counts.entry(*tenant).or_default() += 1;
        *of_environment.entry(tenant.environment).or_default() += 1;
        *shares.entry(tenant.integration).or_default() += 1;
    }
    shares
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    use super::*;

    fn tenant(environment: i64, integration: i64) -> Tenant {
        Tenant { environment: EnvironmentPk(environment), integration: IntegrationPk(integration) }
    }

    fn shares(waiting: &[Tenant], running: &[(Tenant, usize)], free: usize) -> HashMap<IntegrationPk, usize> {
        let candidates: Vec<_> =
            waiting.iter().map(|tenant| Candidate { tenant: *tenant, most: usize::MAX, served: 0 }).collect();
        share(&candidates, &running.iter().copied().collect(), free, &mut StdRng::seed_from_u64(7))
    }

    #[test]
    fn a_tenant_without_running_syncs_gets_the_next_permit() {
        let (greedy, modest) = (tenant(1, 1), tenant(1, 2));
        assert_eq!(
            shares(&[greedy, modest], &[(greedy, 99)], 1),
            HashMap::from([(modest.integration, 1)]),
            "even if the other tenant started first"
        );
        assert_eq!(shares(&[greedy], &[(greedy, 99)], 5), HashMap::from([(greedy.integration, 5)]));
    }

    #[test]
    fn among_equals_the_tenant_that_waited_longest_is_next() {
        let tenants = [tenant(1, 1), tenant(1, 2), tenant(2, 3)];
        let mut served = Served::default();
        let mut order = Vec::new();
        for seed in 0..9 {
            let candidate = |tenant: &Tenant| Candidate {
                tenant: *tenant,
                most: usize::MAX,
                served: served.last(tenant.integration),
            };
            let candidates = tenants.each_ref().map(candidate);
            let shares = share(&candidates, &HashMap::new(), 1, &mut StdRng::seed_from_u64(seed));
            served.note(shares.keys().copied());
            order.extend(shares.into_keys());
        }
        assert_eq!(order[..3].iter().collect::<HashSet<_>>().len(), 3, "each tenant was served once");
        assert_eq!(order[..3], order[3..6]);
        assert_eq!(order[..3], order[6..]);
    }

    #[test]
    fn an_environment_with_many_integrations_gets_no_larger_share() {
        let many: Vec<_> = (0..100).map(|number| tenant(1, number)).chain([tenant(2, 100)]).collect();
        let shares = shares(&many, &[], 20);
        assert_eq!(shares[&IntegrationPk(100)], 10);
        assert_eq!(
            shares.values().copied().max(),
            Some(10),
            "the integrations of the first environment share the rest evenly"
        );
        assert_eq!(shares.len(), 11);
    }

    #[test]
    fn a_tenant_gets_no_more_than_its_limit() {
        let (limited, other) = (tenant(1, 1), tenant(1, 2));
        let candidates = [
            Candidate { tenant: limited, most: 3, served: 0 },
            Candidate { tenant: other, most: usize::MAX, served: 0 },
        ];
        let running = HashMap::from([(limited, 2)]);
        let shares = share(&candidates, &running, 10, &mut StdRng::seed_from_u64(7));
        assert_eq!(shares, HashMap::from([(limited.integration, 1), (other.integration, 9)]));
    }

    proptest! {
        /// Within an environment, a tenant that received a permit is at most one ahead of each waiting tenant.
        #[test]
        fn permits_are_even_within_an_environment(
            running in prop::collection::vec(0_usize..20, 1..8), free in 0_usize..100, seed: u64,
        ) {
            let running: HashMap<_, _> =
                running.into_iter().enumerate().map(|(at, count)| (tenant(1, at as i64), count)).collect();
            let candidates: Vec<_> =
                running.keys().map(|tenant| Candidate { tenant: *tenant, most: usize::MAX, served: 0 }).collect();
            let shares = share(&candidates, &running, free, &mut StdRng::seed_from_u64(seed));
            prop_assert_eq!(shares.values().sum::<usize>(), free);
            let total = |tenant: &Tenant| running[tenant] + shares.get(&tenant.integration).copied().unwrap_or(0);
            let least = running.keys().map(total).min().unwrap_or(0);
            for tenant in running.keys().filter(|tenant| shares.contains_key(&tenant.integration)) {
                prop_assert!(total(tenant) <= least + 1);
            }
        }
    }
}
