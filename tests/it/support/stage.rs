//! A host with one deployed integration and one connection, where most tests start.

use std::ops::Deref;

use serde_json::{Value, json};

use super::{Bundle, Connection, Host, HostOptions, ProviderServer, Shop, SlowProvider, TestDatabase};

/// Dereferences to the connection. Fields are dropped in order: the host before its database.
pub struct Stage {
    pub connection: Connection,
    pub host: Host,
    pub db: TestDatabase,
}

impl Stage {
    /// With the hostile guest, whose records tests choose, and no records.
    pub async fn hostile() -> Self {
        Self::of(&Bundle::guest("hostile"), json!({ "steps": 0 })).await
    }

    /// With the smallest example and the given number of saved numbers.
    pub async fn numbers(count: u64) -> Self {
        Self::of(&Bundle::example("minimal"), json!({ "count": count, "batch": 10 })).await
    }

    /// With this bundle, and a connection of its integration with this metadata.
    pub async fn of(bundle: &Bundle, metadata: Value) -> Self {
        Self::with(&[], bundle, metadata).await
    }

    /// Like [`of`](Self::of), on a host with these settings.
    pub async fn with(variables: &[(&str, &str)], bundle: &Bundle, metadata: Value) -> Self {
        let db = TestDatabase::create().await;
        let options = HostOptions::new().database(&db);
        let options = variables.iter().fold(options, |options, (name, value)| options.variable(name, value));
        let host = options.spawn().await;
        host.deploy(bundle).await;
        let connection = host.connect(bundle.integration(), metadata).await;
        Self { connection, host, db }
    }

    /// Like [`hostile`](Self::hostile), on the given host.
    pub async fn at(host: Host, db: TestDatabase) -> Self {
        host.deploy(&Bundle::guest("hostile")).await;
        let connection = host.connect("hostile", json!({ "steps": 0 })).await;
        Self { connection, host, db }
    }

    /// With the hostile guest and a test provider, on a host with these settings.
    pub async fn at_provider(server: &ProviderServer, variables: &[(&str, &str)], bundle: Bundle) -> Self {
        let address = server.address.to_string();
        let variables = [variables, &[("SYNCLINE_EGRESS_ALLOW", &*address)]].concat();
        Self::with(&variables, &bundle.at_address(&server.base_url()), json!({ "steps": 0 })).await
    }

    /// With the hostile guest, modified by `change`, and a provider that the test controls.
    pub async fn at_slow_provider(provider: &SlowProvider, change: impl FnOnce(Bundle) -> Bundle) -> Self {
        let variables = [("SYNCLINE_EGRESS_ALLOW", &*provider.address())];
        Self::with(&variables, &change(provider.bundle()), json!({ "steps": 0 })).await
    }

    /// With the stripe example and a connection to the shop.
    pub async fn stripe(shop: &Shop) -> Self {
        let db = TestDatabase::create().await;
        let host = HostOptions::new().database(&db).allow(shop).spawn().await;
        host.deploy(&Bundle::example("stripe").at(shop)).await;
        let connection = host.connect_to(shop).await;
        Self { connection, host, db }
    }
}

impl Deref for Stage {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.connection
    }
}

/// A change for [`Connection::commit`] that saves these records of the model `Item`.
pub fn save(items: &Value) -> Value {
    json!({ "save": { "model": "Item", "items": items.to_string() } })
}

/// A change that deletes these records of the model `Item`.
pub fn delete(ids: &[&str]) -> Value {
    json!({ "delete": { "model": "Item", "ids": ids } })
}
