//! Settings of `syncline serve` that limit clients.

use std::num::NonZeroU32;
use std::time::Duration;

use clap::Args;

use syncline_api::ClientLimitSettings;
use syncline_api::server::{ServerSettings, TrustedProxies};

const GIB: i64 = 1 << 30;
const DAY_SECONDS: u64 = 24 * 60 * 60;

#[derive(Debug, Args)]
pub(super) struct ClientLimitArgs {
    /// How long a client may send or read nothing, within a request and between requests
    #[arg(long, env = "SYNCLINE_CLIENT_TIMEOUT_SECONDS", default_value_t = 75, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=DAY_SECONDS))]
    client_timeout_seconds: u64,
    /// Maximum number of network connections of clients
    #[arg(long, env = "SYNCLINE_MAX_CLIENT_CONNECTIONS", default_value_t = 10_000, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    max_client_connections: u32,
    /// Maximum number of network connections of one client address that is not a trusted proxy
    #[arg(long, env = "SYNCLINE_MAX_CLIENT_CONNECTIONS_PER_ADDRESS", default_value_t = 5_000, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    max_client_connections_per_address: u32,
    /// Maximum number of WebSockets of one client address
    #[arg(long, env = "SYNCLINE_MAX_WEBSOCKETS_PER_ADDRESS", default_value_t = 500, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    max_websockets_per_address: u32,
    /// Addresses and networks of reverse proxies whose header X-Forwarded-For names the client, such as 10.0.0.0/8,
    /// separated by commas
    #[arg(
        long,
        env = "SYNCLINE_TRUSTED_PROXIES",
        default_value = "",
        hide_default_value = true,
        value_name = "NETWORK,…"
    )]
    trusted_proxies: TrustedProxies,
    /// Length at which a page of records, dead letters or log lines ends, whatever its number of items
    #[arg(long, env = "SYNCLINE_MAX_PAGE_BYTES", default_value_t = 16 << 20, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1024..=GIB))]
    max_page_bytes: u32,
    /// Maximum memory for request bodies that are being read or processed
    #[arg(long, env = "SYNCLINE_MAX_BODY_MEMORY_BYTES", default_value_t = 512 << 20, value_name = "BYTES", value_parser = clap::value_parser!(u32).range((1 << 20)..))]
    max_body_memory_bytes: u32,
    /// Maximum number of requests per minute with one secret key on this host [default: no limit]
    #[arg(long, env = "SYNCLINE_MAX_REQUESTS_PER_MINUTE_PER_KEY", value_name = "NUMBER")]
    max_requests_per_minute_per_key: Option<NonZeroU32>,
    /// Maximum number of requests per minute with all secret keys of one environment on this host [default: no limit]
    #[arg(long, env = "SYNCLINE_MAX_REQUESTS_PER_MINUTE_PER_ENVIRONMENT", value_name = "NUMBER")]
    max_requests_per_minute_per_environment: Option<NonZeroU32>,
}

impl ClientLimitArgs {
    pub(super) fn max_page_bytes(&self) -> usize {
        self.max_page_bytes as usize
    }

    pub(super) fn limits(&self) -> ClientLimitSettings {
        ClientLimitSettings {
            body_memory_bytes: self.max_body_memory_bytes as usize,
            max_websockets_per_address: self.max_websockets_per_address as usize,
            requests_per_minute_per_key: self.max_requests_per_minute_per_key,
            requests_per_minute_per_environment: self.max_requests_per_minute_per_environment,
        }
    }

    pub(super) fn server(&self) -> ServerSettings {
        ServerSettings {
            patience: Duration::from_secs(self.client_timeout_seconds),
            max_connections: self.max_client_connections as usize,
            max_connections_per_address: self.max_client_connections_per_address as usize,
            trusted_proxies: self.trusted_proxies.clone(),
        }
    }
}
