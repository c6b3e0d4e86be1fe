//! A guest for the tests whose functions run at the turns of a connection's life, and do what its metadata says.

use std::time::Duration;

use serde::Deserialize;
use serde_json::json;
use syncline_sdk::{Error, Result, connection, http, lifecycle, sync};

#[derive(Default, Deserialize)]
#[serde(default)]
struct Orders {
    /// Refuse the connection with this message.
    refuse: Option<String>,
    /// Ask the provider for this before that.
    asks: Option<String>,
    /// Fail before the deletion.
    clings: bool,
    /// Take so long before the deletion.
    lingers_ms: u64,
    /// Tell the provider of each turn.
    tells: bool,
}

/// Has no work: that a connection has a schedule shows that it is there to stay.
#[sync]
fn nothing() -> Result {
    Ok(())
}

#[lifecycle(connection_validating)]
fn validate() -> Result {
    let orders = orders()?;
    if let Some(path) = orders.asks {
        http::post(path).send_ok()?;
    }
    // An end user who connects has no metadata yet, and tags of the session.
    match orders.refuse.or(connection::info()?.tags.remove("refuse")) {
        Some(message) => Err(Error::new("refused", message)),
        None => Ok(()),
    }
}

#[lifecycle(connection_created)]
fn greet() -> Result {
    tell("/created")?;
    connection::update_metadata(&json!({ "greeted": true }))
}

#[lifecycle(connection_deleting)]
fn part() -> Result {
    let orders = orders()?;
    tell("/deleting")?;
    std::thread::sleep(Duration::from_millis(orders.lingers_ms));
    if orders.clings {
        return Err(Error::new("no", "this connection would rather stay"));
    }
    Ok(())
}

fn orders() -> Result<Orders> {
    connection::metadata()
}

fn tell(path: &str) -> Result {
    if orders()?.tells {
        http::post(path).send_ok()?;
    }
    Ok(())
}

syncline_sdk::export!(nothing, validate, greet, part);
