//! Decides which IP addresses are public. Guests can only reach public addresses: others belong to the host itself,
//! its network and its cloud's metadata service.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{Ipv4Net, Ipv6Net};

/// Whether an address belongs to a machine on the public internet.
pub fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => !NOT_PUBLIC_V4.iter().any(|block| block.contains(&address)),
        // All public IPv6 addresses are in one block. This excludes `::`, `::1`, IPv4-mapped and IPv4-compatible
        // addresses, NAT64, unique local, link-local and multicast addresses.
        IpAddr::V6(address) => {
            GLOBAL_UNICAST_V6.contains(&address)
                && !NOT_PUBLIC_V6.iter().any(|block| block.contains(&address))
        }
    }
}

/// The IANA registry of special-purpose addresses, plus multicast and the former class E.
const NOT_PUBLIC_V4: [Ipv4Net; 15] = [
    v4([0, 0, 0, 0], 8),       // this network; 0.0.0.0 reaches loopback
    v4([10, 0, 0, 0], 8),      // private
    v4([100, 64, 0, 0], 10),   // carrier-grade NAT
    v4([127, 0, 0, 0], 8),     // loopback
    v4([169, 254, 0, 0], 16),  // link-local, and the metadata services of clouds
    v4([172, 16, 0, 0], 12),   // private
    v4([192, 0, 0, 0], 24),    // protocol assignments
    v4([192, 0, 2, 0], 24),    // documentation
    v4([192, 88, 99, 0], 24),  // relays of 6to4
    v4([192, 168, 0, 0], 16),  // private
    v4([198, 18, 0, 0], 15),   // benchmarks
    v4([198, 51, 100, 0], 24), // documentation
    v4([203, 0, 113, 0], 24),  // documentation
    v4([224, 0, 0, 0], 4),     // multicast
    v4([240, 0, 0, 0], 4),     // reserved, and broadcast
];

const GLOBAL_UNICAST_V6: Ipv6Net = v6([0x2000, 0], 3);

/// Blocks within [`GLOBAL_UNICAST_V6`] that are not public.
const NOT_PUBLIC_V6: [Ipv6Net; 4] = [
    v6([0x2001, 0], 23),     // protocol assignments, with Teredo
    v6([0x2001, 0xdb8], 32), // documentation
    v6([0x2002, 0], 16),     // 6to4, which wraps any IPv4 address
    v6([0x3fff, 0], 20),     // documentation
];

const fn v4([a, b, c, d]: [u8; 4], prefix: u8) -> Ipv4Net {
    Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), prefix)
}

/// Builds a network from the first two groups of an address. The other groups are zero.
const fn v6([a, b]: [u16; 2], prefix: u8) -> Ipv6Net {
    Ipv6Net::new_assert(Ipv6Addr::new(a, b, 0, 0, 0, 0, 0, 0), prefix)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn public(address: &str) -> bool {
        is_public(address.parse().unwrap())
    }

    #[test]
    fn internet_addresses_are_public() {
        for address in [
            "1.1.1.1",
            "8.8.8.8",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "126.255.255.255",
            "128.0.0.1",
            "169.253.255.255",
            "172.15.255.255",
            "172.32.0.0",
            "192.167.255.255",
            "198.17.255.255",
            "198.20.0.0",
            "223.255.255.255",
            "2606:4700::6810:84e5",
            "2a00:1450::1",
            "2001:200::1",
            "2003::1",
        ] {
            assert!(public(address), "{address}");
        }
    }

    #[test]
    fn special_purpose_addresses_are_not_public() {
        for address in [
            "0.0.0.0",
            "0.1.2.3",
            "10.0.0.1",
            "100.64.0.1",
            "100.127.255.255",
            "127.0.0.1",
            "127.255.255.254",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.8",
            "192.0.2.1",
            "192.88.99.1",
            "192.168.1.1",
            "198.19.0.1",
            "198.51.100.7",
            "203.0.113.9",
            "224.0.0.1",
            "239.1.1.1",
            "240.0.0.1",
            "255.255.255.255",
        ] {
            assert!(!public(address), "{address}");
        }
    }

    #[test]
    fn local_and_ipv4_embedding_ipv6_addresses_are_not_public() {
        for address in [
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:8.8.8.8",
            "::127.0.0.1",
            "::ffff:0:7f00:1",
            "64:ff9b::7f00:1",
            "64:ff9b:1::a00:1",
            "100::1",
            "2001::1",
            "2001:0:4136:e378:8000:63bf:3fff:fdd2",
            "2001:10::1",
            "2001:db8::1",
            "2002:7f00:1::",
            "2002:a00:1::1",
            "3fff::1",
            "5f00::1",
            "fc00::1",
            "fd00:ec2::254",
            "fe80::1",
            "fec0::1",
            "ff02::1",
        ] {
            assert!(!public(address), "{address}");
        }
    }

    #[test]
    fn the_addresses_next_to_a_special_purpose_ipv4_block_are_public() {
        for (first, last) in [
            ("10.0.0.0", "10.255.255.255"),
            ("100.64.0.0", "100.127.255.255"),
            ("127.0.0.0", "127.255.255.255"),
            ("169.254.0.0", "169.254.255.255"),
            ("172.16.0.0", "172.31.255.255"),
            ("192.0.0.0", "192.0.0.255"),
            ("192.0.2.0", "192.0.2.255"),
            ("192.88.99.0", "192.88.99.255"),
            ("192.168.0.0", "192.168.255.255"),
            ("198.18.0.0", "198.19.255.255"),
            ("198.51.100.0", "198.51.100.255"),
            ("203.0.113.0", "203.0.113.255"),
        ] {
            let [first, last] = [first, last].map(|address| address.parse::<Ipv4Addr>().unwrap().to_bits());
            let public = |bits| is_public(Ipv4Addr::from_bits(bits).into());
            let found = [first - 1, first, last, last + 1].map(public);
            assert_eq!(found, [true, false, false, true], "{}", Ipv4Addr::from_bits(first));
        }
    }

    #[test]
    fn the_addresses_next_to_a_special_purpose_ipv6_block_are_public() {
        for (first, last) in [
            ("2001::", "2001:1ff:ffff:ffff:ffff:ffff:ffff:ffff"),
            ("2001:db8::", "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff"),
            ("2002::", "2002:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
            ("3fff::", "3fff:fff:ffff:ffff:ffff:ffff:ffff:ffff"),
        ] {
            let [first, last] = [first, last].map(|address| address.parse::<Ipv6Addr>().unwrap().to_bits());
            let public = |bits| is_public(Ipv6Addr::from_bits(bits).into());
            let found = [first - 1, first, last, last + 1].map(public);
            assert_eq!(found, [true, false, false, true], "{}", Ipv6Addr::from_bits(first));
        }
    }

    #[test]
    fn the_blocks_at_the_ends_of_the_address_space_are_not_public() {
        for address in ["0.255.255.255", "224.0.0.0", "239.255.255.255", "240.0.0.0", "1fff:ffff::", "4000::"]
        {
            assert!(!public(address), "{address}");
        }
        for address in ["1.0.0.0", "223.255.255.255", "2000::", "3fff:ffff::"] {
            assert!(public(address), "{address}");
        }
    }

    proptest! {
        #[test]
        fn addresses_that_the_standard_library_calls_local_are_not_public(bits: u32) {
            let address = Ipv4Addr::from_bits(bits);
            if address.is_private() || address.is_loopback() || address.is_link_local() || address.is_multicast()
                || address.is_broadcast() || address.is_documentation() || address.is_unspecified()
            {
                prop_assert!(!is_public(address.into()));
            }
            prop_assert!(!is_public(address.to_ipv6_mapped().into()));
            prop_assert!(!is_public(address.to_ipv6_compatible().into()));
        }
    }
}
