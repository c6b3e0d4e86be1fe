//! Resolves names and removes addresses that are not public.
//!
//! The HTTP client resolves a name once for each connection and connects only to the returned addresses. So a name
//! server cannot return another address between the check and the connection (DNS rebinding).

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use async_trait::async_trait;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use super::address::is_public;

/// Looks up the addresses of a host name. Implemented by the operating system's resolver and by tests.
#[async_trait]
pub trait Lookup: Send + Sync {
    async fn lookup(&self, host: &str) -> io::Result<Vec<IpAddr>>;
}

/// The operating system's resolver, which also reads `/etc/hosts`.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemLookup;

#[async_trait]
impl Lookup for SystemLookup {
    async fn lookup(&self, host: &str) -> io::Result<Vec<IpAddr>> {
        Ok(tokio::net::lookup_host((host, 0)).await?.map(|address| address.ip()).collect())
    }
}

/// The host has addresses, but none that is public.
#[derive(Debug, thiserror::Error)]
#[error("the host name has no public address")]
pub(super) struct NoPublicAddress;

/// The resolver of an HTTP client.
pub(super) struct Resolver {
    pub lookup: Arc<dyn Lookup>,
    /// `false` only for the client that reaches the hosts of the operator's allow list.
    pub public_only: bool,
}

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let lookup = Arc::clone(&self.lookup);
        let public_only = self.public_only;
        Box::pin(async move {
            let mut addresses = lookup.lookup(name.as_str()).await?;
            if public_only {
                addresses.retain(|address| is_public(*address));
                if addresses.is_empty() {
                    return Err(NoPublicAddress.into());
                }
            }
            let addresses: Addrs = Box::new(addresses.into_iter().map(|address| SocketAddr::new(address, 0)));
            Ok(addresses)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// Returns prepared answers in order.
    struct Answers(Mutex<Vec<Vec<IpAddr>>>);

    #[async_trait]
    impl Lookup for Answers {
        async fn lookup(&self, _host: &str) -> io::Result<Vec<IpAddr>> {
            Ok(self.0.lock().unwrap().remove(0))
        }
    }

    fn resolver(answers: &[&[&str]], public_only: bool) -> Resolver {
        let parse = |answer: &&[&str]| answer.iter().map(|address| address.parse().unwrap()).collect();
        Resolver { lookup: Arc::new(Answers(Mutex::new(answers.iter().map(parse).collect()))), public_only }
    }

    async fn resolve(resolver: &Resolver) -> Result<Vec<String>, String> {
        match resolver.resolve("rebind.example".parse().unwrap()).await {
            Ok(addresses) => Ok(addresses.map(|address| address.ip().to_string()).collect()),
            Err(error) => Err(error.to_string()),
        }
    }

    #[tokio::test]
    async fn only_public_addresses_of_a_mixed_answer_are_returned() {
        let resolver = resolver(&[&["10.0.0.1", "8.8.8.8", "::ffff:127.0.0.1", "2606:4700::1", "::1"]], true);
        assert_eq!(resolve(&resolver).await.unwrap(), ["8.8.8.8", "2606:4700::1"]);
    }

    #[tokio::test]
    async fn a_name_that_is_rebound_to_a_private_address_is_rejected() {
        let resolver = resolver(&[&["8.8.8.8"], &["127.0.0.1"]], true);
        assert_eq!(resolve(&resolver).await.unwrap(), ["8.8.8.8"]);
        assert_eq!(resolve(&resolver).await.unwrap_err(), NoPublicAddress.to_string());
    }

    #[tokio::test]
    async fn private_addresses_are_returned_for_the_allow_list() {
        assert_eq!(resolve(&resolver(&[&["127.0.0.1"]], false)).await.unwrap(), ["127.0.0.1"]);
    }
}
