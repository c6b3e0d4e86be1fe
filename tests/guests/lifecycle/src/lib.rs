//! A test guest with lifecycle functions that do what the connection's metadata says.

use std::time::Duration;

use serde::Deserialize;
use serde_json::json;
use syncline_sdk::{Error, Result, connection, http, lifecycle, sync};

#[derive(Default, Deserialize)]
#[serde(default)]
struct Settings {
    /// Reject the connection with this message.
    refuse: Option<String>,
    /// Send a request to this path of the provider before validating.
    asks: Option<String>,
    /// Fail in the pre-deletion function.
    clings: bool,
    /// Sleep for this long in the pre-deletion function.
    lingers_ms: u64,
    /// Send a request to the provider at each event.
    tells: bool,
}

/// Does nothing. Its schedule shows that the connection was created permanently.
#[sync]
fn nothing() -> Result {
    Ok(())
}

#[lifecycle(connection_validating)]
fn validate() -> Result {
    let settings = settings()?;
    if let Some(path) = settings.asks {
        http::post(path).send_ok()?;
    }
    // A connection from a connect session has no metadata yet, but it has the session's tags.
    match settings.refuse.or(connection::info()?.tags.remove("refuse")) {
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
    let settings = settings()?;
    tell("/deleting")?;
    std::thread::sleep(Duration::from_millis(settings.lingers_ms));
    if settings.clings {
        return Err(Error::new("no", "this connection would rather stay"));
    }
    Ok(())
}

fn settings() -> Result<Settings> {
    connection::metadata()
}

fn tell(path: &str) -> Result {
    if settings()?.tells {
        http::post(path).send_ok()?;
    }
    Ok(())
}

syncline_sdk::export!(nothing, validate, greet, part);
