//! A test guest that saves the provider's webhooks, and fails where its connection's metadata says so.

use serde::Deserialize;
use serde_json::{Value, json};
use syncline_sdk::{Error, Result, Webhook, Writer, connection, sync, webhook};

#[derive(Default, Deserialize)]
#[serde(default)]
struct Settings {
    /// Fail before saving.
    fails: bool,
    /// Fail after saving.
    fails_after: bool,
}

/// Does nothing, because all records come from webhooks.
#[sync]
fn nothing() -> Result {
    Ok(())
}

/// Saves every event under the id of its delivery.
#[webhook]
fn note(call: Webhook) -> Result {
    let id = call.headers.get("x-github-delivery").cloned().unwrap_or_default();
    let event = call.headers.get("x-github-event").cloned().unwrap_or_default();
    let action = call.body.get("action").cloned().unwrap_or(Value::Null);
    let mut notes = Writer::new("Note");
    notes.save(&json!({ "id": id, "event": event, "action": action, "members": call.body.as_object().map(|all| all.len()) }))?;
    notes.finish()?;
    Ok(())
}

/// Subscribes only to pushes.
#[webhook]
fn pushed(call: Webhook) -> Result {
    let settings: Settings = connection::metadata()?;
    let failure = Error::new("failed-on-purpose", "the metadata asks for a failure");
    if settings.fails {
        return Err(failure);
    }
    let mut pushes = Writer::new("Push");
    pushes.save(&json!({ "id": call.body["ref"] }))?;
    pushes.finish()?;
    if settings.fails_after { Err(failure) } else { Ok(()) }
}

syncline_sdk::export!(nothing, note, pushed);
