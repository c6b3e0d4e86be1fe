//! Test support: databases, the built host, third-party servers, and a client of the REST API.

mod acme;
mod answer;
mod assembled;
mod audit;
mod browser;
mod bundle;
mod citus;
mod client;
mod command;
mod connection;
mod dashboard;
mod database;
mod echo;
mod events;
mod host;
mod json;
mod local_project;
pub mod new_project;
mod node;
mod numbers;
mod oauth_scene;
mod oauth_server;
pub mod operations;
pub mod populated;
mod postgres_proxy;
mod provider;
mod python_server;
mod receiver;
mod relay;
mod shop;
mod slow_client;
mod slow_provider;
mod stage;
mod token_server;
mod wait;
pub mod webhook_scene;

pub use self::acme::{ACME_JWT_KEY, ACME_PIN, ACME_SECRET, Acme};
pub use self::answer::Answer;
pub use self::assembled::Assembled;
pub use self::audit::assert_settled;
pub use self::browser::{Browser, Visited};
pub use self::bundle::Bundle;
pub use self::citus::ClusterDatabase;
pub use self::client::{Api, Request, query};
pub use self::connection::{Connection, Page};
pub use self::dashboard::{PASSWORD, Person, between};
pub use self::database::{RECORD_TABLES, TestDatabase};
pub use self::echo::Echo;
pub use self::events::{EventStream, Follower};
pub use self::host::{ENCRYPTION_KEY, Host, HostOptions, SECRET_KEY, compiled_dir, free_port};
pub use self::json::{cursor_of, ids_of, masked, text, without_metadata};
pub use self::local_project::LocalProject;
pub use self::node::{node, run_in_browser};
pub use self::numbers::Numbers;
pub use self::oauth_scene::{KEY, OAuthScene, consent, open_session};
pub use self::oauth_server::{OAUTH_PROVIDER, OAuthClient, OAuthServer};
pub use self::postgres_proxy::{Fault, PostgresProxy};
pub use self::provider::{BOMB_BYTES, PROVIDER_KEY, Provider, REFRESHED_TOKEN, Server as ProviderServer};
pub use self::python_server::PythonServer;
pub use self::receiver::{Receiver, Reply, Webhook};
pub use self::relay::{Effects, Network, Relay};
pub use self::shop::{SHOP_KEY, Shop};
pub use self::slow_client::answer_to_slow_body;
pub use self::slow_provider::{PendingRequest, SlowProvider};
pub use self::stage::{Stage, delete, save};
pub use self::token_server::TokenServer;
pub use self::wait::{eventually, eventually_within};

use std::path::{Path, PathBuf};

/// The member of a record that contains its metadata.
pub const METADATA_KEY: &str = "_service_metadata";

/// A path in the repository.
pub fn repository(path: impl AsRef<Path>) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the host's folder has a parent").join(path)
}
