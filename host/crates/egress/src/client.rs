//! The HTTP clients behind the gate, and which one a URL may use.
//!
//! There are two kinds, each with its own pool of connections: one that reaches public addresses only, and one
//! for the hosts of the operator's allow list. A connection is checked when it is opened, so a pooled one needs
//! no second check, and none can pass from one pool to the other.

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

/// Why the gate cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum EgressSetupError {
    #[error("TLS cannot be set up")]
    Tls(#[from] rustls::Error),
    #[error("the HTTP client cannot be set up")]
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
                // A proxy would resolve names itself, past our filter.
                .no_proxy()
                // Redirects are followed by the gate, under its own rules.
                .redirect(redirect::Policy::none())
                .referer(false)
                .user_agent(USER_AGENT)
                .connect_timeout(settings.connect_timeout)
                .build()
        };
        Ok(Self { guarded: client(true)?, open: client(false)?, allow: settings.allow.clone() })
    }

    /// The client for a URL, or why there is none. A name is checked when it is resolved; a literal address,
    /// however it was spelled, was normalised by the URL parser and is checked here.
    pub fn for_url(&self, url: &Url) -> Result<&reqwest::Client, EgressError> {
        if self.is_opened(url) {
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

    /// Whether the operator's allow list has the host.
    fn is_opened(&self, url: &Url) -> bool {
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

/// The machine's own certificates, since an operator may have added a company's or removed one that is no
/// longer trusted; `SSL_CERT_FILE` and `SSL_CERT_DIR` are heeded. A bare container has none: then Mozilla's,
/// as they were when this host was built.
fn root_certificates() -> RootCertStore {
    let mut store = RootCertStore::empty();
    store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if store.is_empty() {
        store.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    }
    store
}
