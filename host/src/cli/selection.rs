//! The connection and the names that a command is given: defaults, and suggestions for unknown names.

use anyhow::{anyhow, bail};
use clap::Args;
use serde::Deserialize;

use super::client::{Client, ConnectionName, Refusal, item_path};
use syncline_config::did_you_mean;

/// How many connections a message lists.
const LISTED: usize = 10;

/// The connection for which a command works.
#[derive(Debug, Clone, Default, Args)]
pub(super) struct ConnectionArgs {
    /// Unique key of the integration [default: the integration of the only connection]
    #[arg(long, short, value_name = "KEY")]
    pub(super) integration: Option<String>,
    /// Id of the connection [default: the only connection]
    #[arg(long, short, value_name = "ID")]
    pub(super) connection: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Connections {
    connections: Vec<Listed>,
}

#[derive(Debug, Deserialize)]
struct Listed {
    connection_id: String,
    provider_config_key: String,
}

#[derive(Debug, Deserialize)]
struct Integrations {
    data: Vec<Integration>,
}

#[derive(Debug, Deserialize)]
struct Integration {
    unique_key: String,
}

#[derive(Debug, Deserialize)]
struct Functions {
    data: Vec<Function>,
}

#[derive(Debug, Deserialize)]
struct Function {
    name: String,
    r#type: String,
    #[serde(default)]
    returns: Vec<String>,
}

impl ConnectionArgs {
    /// Returns the named connection, or else the only one that the arguments leave.
    pub(super) async fn find(&self, client: &Client) -> anyhow::Result<ConnectionName> {
        if let (Some(integration), Some(id)) = (&self.integration, &self.connection) {
            return Ok(ConnectionName { integration: integration.clone(), id: id.clone() });
        }
        let mut found =
            list(client, self.integration.as_deref(), self.connection.as_deref(), LISTED + 1).await?;
        match found.len() {
            1 => Ok(found.remove(0)),
            0 => Err(self.nothing_found(client).await?),
            _ => {
                let mut names: Vec<String> = found.iter().take(LISTED).map(ToString::to_string).collect();
                if found.len() > LISTED {
                    names.push("…".to_owned());
                }
                bail!(
                    "several connections match: {}; choose one with --integration and --connection",
                    names.join(", ")
                )
            }
        }
    }

    async fn nothing_found(&self, client: &Client) -> anyhow::Result<anyhow::Error> {
        let keys = integrations(client).await?;
        if let Some(key) = self.integration.as_deref().filter(|key| !keys.iter().any(|known| known == key)) {
            return Ok(anyhow!("there is no integration `{key}`{}", suggestion(key, &keys)));
        }
        let of_integration = self.integration.as_ref().map(|key| format!(" of the integration `{key}`"));
        let named = self.connection.as_ref().map(|id| format!(" `{id}`"));
        Ok(anyhow!(
            "there is no connection{}{}; create one with `syncline connections import`, or in the dashboard",
            named.unwrap_or_default(),
            of_integration.unwrap_or_default()
        ))
    }
}

/// Lists connections, newest first.
pub(super) async fn list(
    client: &Client,
    integration: Option<&str>,
    id: Option<&str>,
    limit: usize,
) -> anyhow::Result<Vec<ConnectionName>> {
    let limit = limit.to_string();
    let parameters = [("integrationId", integration), ("connectionId", id), ("limit", Some(&*limit))];
    let found: Connections = client.query("connections", &parameters).await?;
    let name =
        |listed: Listed| ConnectionName { integration: listed.provider_config_key, id: listed.connection_id };
    Ok(found.connections.into_iter().map(name).collect())
}

async fn integrations(client: &Client) -> anyhow::Result<Vec<String>> {
    let found: Integrations = client.get("integrations").await?;
    Ok(found.data.into_iter().map(|integration| integration.unique_key).collect())
}

async fn functions(client: &Client, integration: &str) -> anyhow::Result<Vec<Function>> {
    let found: Functions =
        client.get(&format!("{}/functions?limit=100", item_path("integrations", integration))).await?;
    Ok(found.data)
}

/// Adds the most similar known name to the host's error about an unknown name. `given` are the names in the request
/// that can be unknown.
pub(super) async fn explain(
    client: &Client,
    integration: &str,
    given: &[String],
    error: anyhow::Error,
) -> anyhow::Error {
    let Some(code) = error.downcast_ref::<Refusal>().map(|refusal| refusal.code.clone()) else {
        return error;
    };
    let known = match &*code {
        "unknown_integration" => integrations(client).await,
        "unknown_action" => names(client, integration, "action").await,
        "unknown_sync" => names(client, integration, "sync").await,
        "unknown_model" => models(client, integration).await,
        _ => return error,
    };
    // The error itself is more important than a suggestion.
    let Ok(known) = known else { return error };
    let integration = integration.to_owned();
    let given = if code == "unknown_integration" { std::slice::from_ref(&integration) } else { given };
    let unknown = given.iter().find(|name| !known.contains(name));
    match unknown.map(|name| suggestion(name, &known)) {
        Some(suggestion) if !suggestion.is_empty() => anyhow!("{error}{suggestion}"),
        _ => error,
    }
}

async fn names(client: &Client, integration: &str, kind: &str) -> anyhow::Result<Vec<String>> {
    let functions = functions(client, integration).await?;
    Ok(functions
        .into_iter()
        .filter(|function| function.r#type == kind)
        .map(|function| function.name)
        .collect())
}

async fn models(client: &Client, integration: &str) -> anyhow::Result<Vec<String>> {
    let functions = functions(client, integration).await?;
    Ok(functions.into_iter().flat_map(|function| function.returns).collect())
}

fn suggestion(given: &str, known: &[String]) -> String {
    let similar = did_you_mean(given, known.iter().map(String::as_str));
    similar.map(|similar| format!("; did you mean `{similar}`?")).unwrap_or_default()
}
