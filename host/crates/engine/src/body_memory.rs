//! Bounds the memory for request bodies that are read and not processed yet. No environment or integration can take all
//! of it, and a part is reserved for small bodies.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{Semaphore, SemaphorePermit};

use syncline_types::ids::{EnvironmentPk, IntegrationPk};

/// Bodies up to this length can use the reserve.
const SMALL_BODY_BYTES: usize = 16 << 10;
/// The reserve is this fraction of the memory.
const RESERVE_DIVISOR: usize = 8;

/// An owner of bodies, which can use a share of the memory only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BodyOwner {
    /// Three quarters of the memory that is not reserved.
    Environment(EnvironmentPk),
    /// Half of the memory that is not reserved.
    Integration(IntegrationPk),
}

/// Memory for request bodies.
pub struct BodyMemory {
    common: Arc<Semaphore>,
    common_bytes: usize,
    reserve: Arc<Semaphore>,
    shares: Mutex<HashMap<BodyOwner, Weak<Semaphore>>>,
}

impl BodyMemory {
    pub fn new(bytes: usize) -> Arc<Self> {
        let reserved = bytes / RESERVE_DIVISOR;
        let common_bytes = bytes - reserved;
        Arc::new(Self {
            common: Arc::new(Semaphore::new(common_bytes)),
            common_bytes,
            reserve: Arc::new(Semaphore::new(reserved)),
            shares: Mutex::default(),
        })
    }

    /// The length of the longest body that an environment can send, in bytes.
    pub fn longest_body(&self) -> usize {
        self.share_bytes(BodyOwner::Environment(EnvironmentPk(0)))
    }

    /// Begins to hold a body that belongs to these owners.
    pub fn hold(&self, owners: &[BodyOwner]) -> HeldBody {
        let mut pools: Vec<_> = owners.iter().map(|owner| self.share(*owner)).collect();
        pools.push(Arc::clone(&self.common));
        HeldBody { pools, common_bytes: 0, reserve: Arc::clone(&self.reserve), reserved_bytes: 0 }
    }

    fn share_bytes(&self, owner: BodyOwner) -> usize {
        match owner {
            BodyOwner::Environment(_) => self.common_bytes / 4 * 3,
            BodyOwner::Integration(_) => self.common_bytes / 2,
        }
    }

    fn share(&self, owner: BodyOwner) -> Arc<Semaphore> {
        let mut shares = self.shares.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = shares.get(&owner).and_then(Weak::upgrade) {
            return known;
        }
        let new = Arc::new(Semaphore::new(self.share_bytes(owner)));
        shares.retain(|_, share| share.strong_count() > 0);
        shares.insert(owner, Arc::downgrade(&new));
        new
    }
}

/// The memory that one body holds, until it is dropped.
#[derive(Debug)]
pub struct HeldBody {
    /// The shares of the owners, and the common memory.
    pools: Vec<Arc<Semaphore>>,
    /// Taken from each of the pools.
    common_bytes: usize,
    reserve: Arc<Semaphore>,
    reserved_bytes: usize,
}

impl HeldBody {
    /// Takes memory for `bytes` more bytes. Returns `false` if there is not enough.
    pub fn grow(&mut self, bytes: usize) -> bool {
        let Ok(permits) = u32::try_from(bytes) else { return false };
        let taken: Result<Vec<_>, _> = self.pools.iter().map(|pool| pool.try_acquire_many(permits)).collect();
        if let Ok(taken) = taken {
            taken.into_iter().for_each(SemaphorePermit::forget);
            self.common_bytes += bytes;
            return true;
        }
        if self.common_bytes + self.reserved_bytes + bytes > SMALL_BODY_BYTES {
            return false;
        }
        let Ok(reserved) = self.reserve.try_acquire_many(permits) else { return false };
        reserved.forget();
        self.reserved_bytes += bytes;
        true
    }
}

impl Drop for HeldBody {
    fn drop(&mut self) {
        for pool in &self.pools {
            pool.add_permits(self.common_bytes);
        }
        self.reserve.add_permits(self.reserved_bytes);
    }
}

/// The memory of one request's body. The middleware keeps this value until the handler has answered, because a handler
/// works with the body after it was read.
#[derive(Clone)]
pub struct RequestMemory {
    memory: Arc<BodyMemory>,
    held: Arc<Mutex<Option<HeldBody>>>,
}

impl RequestMemory {
    pub fn new(memory: Arc<BodyMemory>) -> Self {
        Self { memory, held: Arc::default() }
    }

    /// The length of the longest body that fits into the memory, in bytes.
    pub fn longest_body(&self) -> usize {
        self.memory.longest_body()
    }

    /// Begins to count a body until the handler has answered. A request has one body, so this is called once.
    pub fn begin(&self, owner: Option<BodyOwner>) {
        *self.held.lock().unwrap_or_else(PoisonError::into_inner) = Some(self.hold(owner));
    }

    /// Takes memory for `bytes` more bytes of the body. Returns `false` if there is not enough.
    #[must_use]
    pub fn grow(&self, bytes: usize) -> bool {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.as_mut().is_none_or(|held| held.grow(bytes))
    }

    /// Begins to count a part of the body, until the returned value is dropped.
    pub fn hold(&self, owner: Option<BodyOwner>) -> HeldBody {
        self.memory.hold(owner.as_slice())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY: usize = 8 << 20;

    fn integration(number: i64) -> [BodyOwner; 2] {
        [BodyOwner::Environment(EnvironmentPk(1)), BodyOwner::Integration(IntegrationPk(number))]
    }

    /// Holds bodies of 64 KiB until no more fit.
    fn fill(memory: &BodyMemory, owners: &[BodyOwner]) -> Vec<HeldBody> {
        std::iter::repeat_with(|| memory.hold(owners))
            .map_while(|mut body| body.grow(64 << 10).then_some(body))
            .collect()
    }

    #[test]
    fn an_owner_gets_only_its_share() {
        let memory = BodyMemory::new(MEMORY);
        let first = fill(&memory, &integration(1));
        assert_eq!(first.len(), 7 * 16 / 2);
        let second = fill(&memory, &integration(2));
        assert_eq!(second.len(), 7 * 16 / 4, "the rest of the environment's share");
        let other = fill(&memory, &[BodyOwner::Environment(EnvironmentPk(2))]);
        assert_eq!(other.len(), 7 * 16 / 4, "the rest of the memory");
        drop(first);
        assert_eq!(fill(&memory, &integration(3)).len(), 7 * 16 / 2);
    }

    #[test]
    fn a_small_body_fits_into_full_memory() {
        let memory = BodyMemory::new(MEMORY);
        let _first = fill(&memory, &integration(1));
        let mut small = memory.hold(&integration(1));
        assert!(small.grow(10 << 10) && small.grow(6 << 10));
        assert!(!small.grow(1), "it is no longer small");
        let mut long = memory.hold(&integration(1));
        assert!(!long.grow(SMALL_BODY_BYTES + 1));
    }

    #[test]
    fn released_memory_can_be_used_again() {
        let memory = BodyMemory::new(MEMORY);
        for _ in 0..3 {
            let mut bodies = fill(&memory, &integration(1));
            let small = bodies.iter().map(|_| memory.hold(&integration(1)));
            let small: Vec<_> = small.map_while(|mut body| body.grow(16 << 10).then_some(body)).collect();
            bodies.extend(small);
        }
        assert_eq!(memory.common.available_permits() + memory.reserve.available_permits(), MEMORY);
    }
}
