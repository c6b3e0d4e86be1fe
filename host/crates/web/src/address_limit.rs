//! Limits what one client address can use at the same time.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};

/// The bits of an IPv6 address that identify a network. One client usually has all addresses of its network.
const NETWORK_BITS: u32 = 64;

/// A limit for each client address. The addresses of an IPv6 network count as one.
#[derive(Debug)]
pub struct AddressLimit {
    most: usize,
    used: Mutex<HashMap<IpAddr, usize>>,
}

impl AddressLimit {
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, used: Mutex::default() })
    }

    /// Acquires a permit, or returns `None` if the address has reached the limit.
    pub fn try_acquire(self: &Arc<Self>, address: IpAddr) -> Option<AddressPermit> {
        let network = network_of(address);
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let count = used.get(&network).copied().unwrap_or_default();
        if count >= self.most {
            return None;
        }
        used.insert(network, count + 1);
        Some(AddressPermit { limit: Arc::clone(self), network })
    }
}

/// Releases the permit when it is dropped.
#[derive(Debug)]
pub struct AddressPermit {
    limit: Arc<AddressLimit>,
    network: IpAddr,
}

impl Drop for AddressPermit {
    fn drop(&mut self) {
        let mut used = self.limit.used.lock().unwrap_or_else(PoisonError::into_inner);
        match used.get_mut(&self.network) {
            Some(count) if *count > 1 => *count -= 1,
            _ => {
                used.remove(&self.network);
            }
        }
    }
}

fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => {
            let mask = !0_u128 << (u128::BITS - NETWORK_BITS);
            Ipv6Addr::from_bits(address.to_bits() & mask).into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_address_has_its_own_limit() {
        let limit = AddressLimit::new(2);
        let acquire = |address: &str| limit.try_acquire(address.parse().unwrap());
        let held = [acquire("10.0.0.1"), acquire("::ffff:10.0.0.1")];
        assert!(held.iter().all(Option::is_some));
        assert!(acquire("10.0.0.1").is_none());
        assert!(acquire("10.0.0.2").is_some());
        drop(held);
        assert!(limit.used.lock().unwrap().is_empty());
        assert!(acquire("10.0.0.1").is_some());
    }

    #[test]
    fn an_ipv6_network_counts_as_one_address() {
        let limit = AddressLimit::new(1);
        let acquire = |address: &str| limit.try_acquire(address.parse().unwrap());
        let _held = acquire("2001:db8:0:1::1");
        assert!(acquire("2001:db8:0:1:ffff::2").is_none());
        assert!(acquire("2001:db8:0:2::1").is_some());
    }
}
