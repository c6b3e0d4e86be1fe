//! Implements the world's imports with the fake host. Names and types are those of the generated bindings.

use super::state::{State, failure};
use super::{LogLine, Request};

pub mod provider {
    use super::{Request, State};
    use crate::bindings::syncline::integration::provider as wire;

    pub fn send(request: &wire::Request) -> Result<wire::Response, wire::Failure> {
        let mut line = format!("{} {}", request.method, request.url);
        for (name, value) in &request.query {
            line.push(if line.contains('?') { '&' } else { '?' });
            line.push_str(&format!("{name}={value}"));
        }
        let body = String::from_utf8_lossy(request.body.as_deref().unwrap_or_default()).into_owned();
        Ok(State::with(|state| state.send(Request { line, headers: request.headers.clone(), body })))
    }

    pub fn send_all(requests: &[wire::Request]) -> Vec<Result<wire::Response, wire::Failure>> {
        requests.iter().map(send).collect()
    }
}

pub mod records {
    use super::State;
    use crate::bindings::syncline::integration::records::{Change, Counts, Failure};

    pub fn commit(changes: &[Change], checkpoint: Option<&str>) -> Result<Counts, Failure> {
        State::with(|state| state.commit(changes, checkpoint))
    }

    pub fn get(model: &str, ids: &[String]) -> Result<Vec<Option<String>>, Failure> {
        let json_of = |state: &State, id| Some(state.records.get(model)?.get(id)?.to_string());
        State::with(|state| {
            state.check_model(model)?;
            Ok(ids.iter().map(|id| json_of(state, id)).collect())
        })
    }
}

pub mod checkpoint {
    use super::State;

    pub fn get() -> Option<String> {
        State::with(|state| state.checkpoint.as_ref().map(ToString::to_string))
    }
}

pub mod connection {
    use serde_json::{Map, Value};

    use super::{State, failure};
    use crate::bindings::syncline::integration::connection::{Failure, Info};

    pub fn get() -> Info {
        Info {
            connection_id: "connection-1".to_owned(),
            integration: "integration".to_owned(),
            provider: "provider".to_owned(),
            environment: "test".to_owned(),
            config: State::with(|state| state.config.to_string()),
            tags: "{}".to_owned(),
        }
    }

    pub fn metadata() -> String {
        State::with(|state| state.metadata.to_string())
    }

    pub fn set_metadata(metadata: &str) -> Result<(), Failure> {
        let metadata = object(metadata)?;
        State::with(|state| state.metadata = Value::Object(metadata));
        Ok(())
    }

    pub fn update_metadata(changes: &str) -> Result<(), Failure> {
        let changes = object(changes)?;
        State::with(|state| {
            if let Value::Object(metadata) = &mut state.metadata {
                metadata.extend(changes);
            }
        });
        Ok(())
    }

    pub fn credentials() -> Result<String, Failure> {
        State::with(|state| state.credentials.as_ref().map(ToString::to_string))
            .ok_or_else(|| failure("not-allowed", "the test has not set credentials with `set_credentials`"))
    }

    fn object(json: &str) -> Result<Map<String, Value>, Failure> {
        serde_json::from_str(json)
            .map_err(|error| failure("invalid-metadata", &format!("not a JSON object: {error}")))
    }
}

pub mod environment {
    use super::State;

    pub fn variables() -> Vec<(String, String)> {
        State::with(|state| state.variables.clone().into_iter().collect())
    }
}

pub mod log {
    use super::{LogLine, State};
    use crate::bindings::syncline::integration::log::Level;

    pub fn write(level: Level, message: &str, fields: Option<&str>) {
        let fields = fields.and_then(|json| serde_json::from_str(json).ok());
        State::with(|state| state.log.push(LogLine { level, message: message.to_owned(), fields }));
    }

    /// The test itself shows the panic.
    pub fn panicked(_message: &str, _location: Option<&str>) {}
}

pub mod run {
    use super::State;
    use crate::bindings::syncline::integration::run::Info;

    pub fn get() -> Info {
        Info { id: "00000000-0000-4000-8000-000000000000".to_owned(), variant: "base".to_owned(), attempt: 1 }
    }

    pub fn is_full() -> bool {
        State::with(|state| state.is_full)
    }

    pub fn progress(done: u64, total: Option<u64>) {
        State::with(|state| state.progress = Some((done, total)));
    }

    pub fn cancelled() -> bool {
        State::with(|state| state.cancelled)
    }

    pub fn now() -> u64 {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        since.as_millis().try_into().unwrap_or(u64::MAX)
    }
}
