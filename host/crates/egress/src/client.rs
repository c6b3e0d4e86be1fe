//! The HTTP clients of the egress gateway, and the choice of the client for a URL.
//!
//! There are two clients, each with its own connection pool. One reaches only public addresses, and the other one
//! reaches the hosts of the operator's allow list. An address is checked when its connection is opened, so a pooled
//! connection needs no second check. Connections never move between the pools.

use std::net::IpAddr;
use std::sync::Arc;

use reqwest::redirect;
use rustls::{ClientConfig, RootCertStore};
use url::{Host, Url};

use super::address::is_public;
use super::boundary::host_of;
use super::error::EgressError;
use super::resolver::{Lookup, Resolver};
use super::settings::{EgressSettings, HostPort};

const USER_AGENT: &str = concat!("syncline/", env!("CARGO_PKG_VERSION"));

/// Why the egress gateway could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum EgressSetupError {
    #[error("could not set up TLS")]
    Tls(#[from] rustls::Error),
    #[error("could not set up the HTTP client")]
    Client(#[from] reqwest::Error),
}

pub(super) struct Clients {
    guarded: reqwest::Client,
    open: reqwest::Client,
    allow: Vec<HostPort>,
}

impl Clients {
    pub fn new(settings: &EgressSettings, lookup: &Arc<dyn Lookup>) -> Result<Self, EgressSetupError> {
        let tls = tls_config()?;
        let client = |public_only| {
            reqwest::Client::builder()
                .tls_backend_preconfigured(tls.clone())
                .dns_resolver(Resolver { lookup: Arc::clone(lookup), public_only })
                // A proxy would resolve names itself and bypass the address filter.
                .no_proxy()
                // The gateway follows redirects itself, under its own rules.
                .redirect(redirect::Policy::none())
                .referer(false)
                .user_agent(USER_AGENT)
                .connect_timeout(settings.connect_timeout)
                .build()
        };
        Ok(Self { guarded: client(true)?, open: client(false)?, allow: settings.allow.clone() })
    }

    /// Returns the client for a URL. Names are checked when they are resolved. A literal address is checked here,
    /// after the URL parser has normalized its spelling.
    pub fn for_url(&self, url: &Url) -> Result<&reqwest::Client, EgressError> {
        if self.is_on_allow_list(url) {
            return Ok(&self.open);
        }
        let literal: Option<IpAddr> = match url.host() {
            Some(Host::Ipv4(address)) => Some(address.into()),
            Some(Host::Ipv6(address)) => Some(address.into()),
            Some(Host::Domain(_)) | None => None,
        };
        if literal.is_some_and(|address| !is_public(address)) {
            return Err(EgressError::AddressNotAllowed { host: host_of(url) });
        }
        if url.scheme() != "https" {
            return Err(EgressError::PlainHttp { host: host_of(url) });
        }
        Ok(&self.guarded)
    }

    /// Whether the operator's allow list contains the host and port.
    fn is_on_allow_list(&self, url: &Url) -> bool {
        self.allow.iter().any(|entry| entry.matches(url))
    }
}

fn tls_config() -> Result<ClientConfig, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(root_certificates())
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

/// Returns the operating system's certificates, because an operator may have added a company's certificate or removed
/// one. The variables `SSL_CERT_FILE` and `SSL_CERT_DIR` apply. A minimal container has no certificates. In that case,
/// Mozilla's list at build time is used.
fn root_certificates() -> RootCertStore {
    let mut store = RootCertStore::empty();
    store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if store.is_empty() {
        store.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    }
    store
}
