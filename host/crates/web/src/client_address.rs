//! The addresses of clients, also behind reverse proxies.

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;

use axum::http::{HeaderMap, HeaderValue};
use ipnet::IpNet;

const HEADER: &str = "x-forwarded-for";

/// The address of a request's client.
#[derive(Debug, Clone, Copy)]
pub struct ClientAddress(pub IpAddr);

/// The reverse proxies whose header `X-Forwarded-For` is believed. Anyone else could write anything into it.
#[derive(Debug, Clone, Default)]
pub struct TrustedProxies(Arc<[IpNet]>);

impl TrustedProxies {
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.iter().any(|network| network.contains(&address))
    }

    /// Returns the client of a request that `peer` sent. Each proxy appends the address from which it received the
    /// request to the header, so the client is the last address that is not a trusted proxy.
    pub fn client(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        let mut client = peer;
        if !self.contains(peer) {
            return client;
        }
        let texts = headers.get_all(HEADER).into_iter().rev().map(HeaderValue::to_str);
        for text in texts.flat_map(|text| text.unwrap_or_default().rsplit(',')) {
            let Some(address) = parse_address(text.trim()) else { return client };
            client = address;
            if !self.contains(address) {
                return client;
            }
        }
        client
    }
}

impl FromStr for TrustedProxies {
    type Err = String;

    /// Parses addresses and networks that are separated by commas, such as `10.0.0.7,192.168.0.0/16`.
    fn from_str(text: &str) -> Result<Self, String> {
        let network = |part: &str| {
            let address = part.parse::<IpAddr>().map(IpNet::from);
            address
                .or_else(|_| part.parse())
                .map_err(|_| format!("`{part}` must be an IP address, or a network such as 10.0.0.0/8"))
        };
        text.split(',')
            .map(str::trim)
            .filter(|part| !part.is_empty())
            .map(network)
            .collect::<Result<_, _>>()
            .map(Self)
    }
}

/// Parses an address. Some proxies add the port.
fn parse_address(text: &str) -> Option<IpAddr> {
    let address = text.parse::<IpAddr>().or_else(|_| text.parse::<SocketAddr>().map(|address| address.ip()));
    address.ok().map(|address| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(proxies: &str, peer: &str, forwarded: &[&str]) -> String {
        let headers = forwarded.iter().map(|value| (HEADER.parse().unwrap(), value.parse().unwrap()));
        let headers = HeaderMap::from_iter(headers);
        proxies.parse::<TrustedProxies>().unwrap().client(peer.parse().unwrap(), &headers).to_string()
    }

    #[test]
    fn the_header_counts_only_if_a_trusted_proxy_sent_it() {
        assert_eq!(client("", "10.0.0.1", &["1.2.3.4"]), "10.0.0.1");
        assert_eq!(client("10.0.0.2", "10.0.0.1", &["1.2.3.4"]), "10.0.0.1");
        assert_eq!(client("10.0.0.0/8, ::1", "10.0.0.1", &["1.2.3.4"]), "1.2.3.4");
        assert_eq!(client("10.0.0.0/8, ::1", "::1", &["2001:db8::1"]), "2001:db8::1");
        assert_eq!(client("10.0.0.1", "10.0.0.1", &[]), "10.0.0.1");
    }

    #[test]
    fn the_client_is_the_last_address_that_is_not_a_proxy() {
        let client = |forwarded: &[&str]| client("10.0.0.0/8", "10.0.0.1", forwarded);
        // A client can send the header itself. The proxy appends the client's real address.
        assert_eq!(client(&["9.9.9.9, 1.2.3.4, 10.0.0.2"]), "1.2.3.4");
        assert_eq!(client(&["9.9.9.9", "1.2.3.4"]), "1.2.3.4");
        assert_eq!(client(&["10.0.0.3, 10.0.0.2"]), "10.0.0.3");
        assert_eq!(client(&["1.2.3.4:5678"]), "1.2.3.4");
        assert_eq!(client(&["[2001:db8::1]:5678"]), "2001:db8::1");
        assert_eq!(client(&["1.2.3.4, unknown, 10.0.0.2"]), "10.0.0.2");
    }

    #[test]
    fn an_invalid_proxy_is_named() {
        let problem = "10.0.0.1,proxy.example.com".parse::<TrustedProxies>().unwrap_err();
        assert!(problem.starts_with("`proxy.example.com` must be an IP address"), "{problem}");
    }
}
