//! What commands that use the database share: connections to it, its environments with decrypted keys, and an
//! orderly shutdown.

use std::sync::Arc;

use anyhow::Context;
use clap::Args;
use nix::unistd::{Uid, User};

use super::database::{Database, DatabaseArgs};
use syncline_auth::{ApiKeys, Authenticator, DEFAULT_ENVIRONMENT, Environment, Environments};
use syncline_store::Store;
use syncline_store::events::Events;
use syncline_telemetry::clock::Clock;
use syncline_types::actor::Actor;

/// The environment that a command concerns.
#[derive(Debug, Clone, Args)]
pub(super) struct EnvironmentArgs {
    /// Name of the environment
    #[arg(long, short, default_value = DEFAULT_ENVIRONMENT, value_name = "NAME")]
    pub(super) environment: String,
    #[command(flatten)]
    pub(super) database: DatabaseArgs,
}

pub(super) struct Installation {
    pub(super) store: Store,
    pub(super) environments: Arc<Environments>,
    pub(super) api_keys: ApiKeys,
    /// The author of the changes that the command makes.
    pub(super) actor: Actor,
    database: Database,
}

impl Installation {
    pub(super) async fn open(args: &DatabaseArgs) -> anyhow::Result<Self> {
        let master_keys = args.master_keys()?;
        let database = args.open().await?;
        let store = Store::open(database.databases.clone(), 2).await?;
        // A command receives no events, so nothing is cached.
        let clock = Clock::system();
        let events = Arc::new(Events::new(clock.clone()));
        let environments = Environments::open(clock, store.clone(), master_keys, Arc::clone(&events)).await?;
        let authenticator = Authenticator::new(store.clone(), Arc::clone(&environments), events);
        let api_keys = ApiKeys::new(store.clone(), authenticator);
        Ok(Self { store, environments, api_keys, actor: Actor::command_line(user_name()), database })
    }

    pub(super) fn environment(&self, name: &str) -> anyhow::Result<Arc<Environment>> {
        self.environments.find_by_name(name).with_context(|| {
            format!("there is no environment `{name}`; create it with `syncline env create {name}`")
        })
    }

    pub(super) async fn close(self) -> anyhow::Result<()> {
        self.store.close().await;
        self.database.close().await
    }
}

/// Returns the name of the operating system's user, or the user's number if it has no name.
fn user_name() -> String {
    let uid = Uid::current();
    match User::from_uid(uid) {
        Ok(Some(user)) => user.name,
        Ok(None) | Err(_) => uid.to_string(),
    }
}
