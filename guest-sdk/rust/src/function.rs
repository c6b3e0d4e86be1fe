//! The implementation behind the attributes and [`export!`](crate::export): a component's table of functions, and
//! the conversion between JSON text and typed functions. Not part of the public interface.

use std::any::TypeId;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::bindings::syncline::integration::types::Failure;
use crate::{Error, Result, records};

/// An entry of a component's table, which an attribute creates.
pub struct Function {
    pub kind: &'static str,
    pub name: &'static str,
    pub description: &'static str,
    pub call: fn(Option<String>) -> Result<Option<String>>,
}

/// Implements the world's `describe`.
pub fn describe(functions: &[Function]) -> String {
    let functions: Vec<_> = functions
        .iter()
        .map(|function| {
            json!({ "kind": function.kind, "name": function.name, "description": function.description })
        })
        .collect();
    json!({
        "sdk": { "name": env!("CARGO_PKG_NAME"), "version": env!("CARGO_PKG_VERSION") },
        "functions": functions,
    })
    .to_string()
}

/// Implements the world's `invoke`.
pub fn invoke(
    functions: &[Function],
    kind: &str,
    name: &str,
    input: Option<String>,
) -> Result<Option<String>, Failure> {
    records::take_unsaved();
    let called = match functions.iter().find(|function| function.kind == kind && function.name == name) {
        Some(function) => (function.call)(input),
        None => Err(Error::new("unknown-function", format!("this component has no {kind} `{name}`"))),
    };
    let called = called.and_then(|output| records::take_unsaved().map_or(Ok(output), Err));
    called.map_err(Error::into_failure)
}

/// Reports the message of a panic to the host. Otherwise the guest would trap without one.
pub fn report_panics() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        std::panic::set_hook(Box::new(|panic| {
            let payload = panic.payload();
            let message = payload
                .downcast_ref::<&str>()
                .copied()
                .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
                .unwrap_or("a panic without a message");
            let location = panic.location().map(ToString::to_string);
            crate::host::log::panicked(message, location.as_deref());
        }));
    });
}

/// Calls a function without input and output.
pub fn call_plain<E: Into<Error>>(function: impl Fn() -> Result<(), E>) -> Result<Option<String>> {
    function().map(|()| None).map_err(Into::into)
}

/// Calls a function with an output.
pub fn call<T: Serialize + 'static, E: Into<Error>>(
    function: impl Fn() -> Result<T, E>,
) -> Result<Option<String>> {
    output(function().map_err(Into::into)?)
}

/// Calls a function with an input, which is `null` if the caller sent none.
pub fn call_with<I: DeserializeOwned, T: Serialize + 'static, E: Into<Error>>(
    function: impl Fn(I) -> Result<T, E>,
    input: Option<String>,
) -> Result<Option<String>> {
    let input = serde_json::from_str(input.as_deref().unwrap_or("null")).map_err(|error| match &input {
        Some(_) => Error::invalid_input(format!("could not deserialize the input: {error}")),
        None => Error::invalid_input("the function requires an input, but the request has no input"),
    })?;
    output(function(input).map_err(Into::into)?)
}

/// `()` is no output. `null`, which a missing `Option` is serialized as, is an output.
fn output<T: Serialize + 'static>(value: T) -> Result<Option<String>> {
    if TypeId::of::<T>() == TypeId::of::<()>() {
        return Ok(None);
    }
    let json = serde_json::to_string(&value).map_err(|error| {
        Error::new("invalid-output", format!("could not serialize the output as JSON: {error}"))
    })?;
    Ok(Some(json))
}
