//! `syncline connections`: lists, shows, imports and deletes connections.

use std::collections::BTreeMap;

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::client::{ConnectionName, HostArgs, ListArgs};
use super::json_input::JsonInput;
use super::selection::{ConnectionArgs, explain};
use super::{Done, output};

const PATH: &str = "connections";

#[derive(Debug, Args)]
pub(super) struct ConnectionsArgs {
    #[command(subcommand)]
    command: ConnectionsCommand,
}

#[derive(Debug, Subcommand)]
enum ConnectionsCommand {
    /// List connections, newest first
    List {
        #[command(flatten)]
        host: HostArgs,
        /// List only connections of this integration, by its unique key
        #[arg(long, short, value_name = "KEY")]
        integration: Option<String>,
        /// List only connections whose id, or whose user's name or email address, contains this text
        #[arg(long, value_name = "TEXT")]
        search: Option<String>,
        #[command(flatten)]
        list: ListArgs,
    },
    /// Show one connection, as JSON
    Show {
        #[command(flatten)]
        host: HostArgs,
        /// Id of the connection
        id: String,
        /// Unique key of the integration [default: the only integration that has such a connection]
        #[arg(long, short, value_name = "KEY")]
        integration: Option<String>,
        /// Print the credentials, too; the audit log records it
        #[arg(long)]
        show_credentials: bool,
    },
    /// Create a connection, or replace its credentials
    Import {
        #[command(flatten)]
        host: HostArgs,
        /// Id of the connection [default: a generated id]
        id: Option<String>,
        /// Unique key of the integration
        #[arg(long, short, value_name = "KEY")]
        integration: String,
        /// Credentials as JSON, such as {"type": "API_KEY", "apiKey": "…"}; @FILE reads a file, and @- standard input
        #[arg(long, value_name = "JSON", default_value = r#"{"type": "NONE"}"#, hide_default_value = true)]
        credentials: String,
        /// Metadata as JSON, or @FILE
        #[arg(long, value_name = "JSON")]
        metadata: Option<String>,
        /// Values that the provider needs as JSON, such as {"subdomain": "acme"}, or @FILE
        #[arg(long, value_name = "JSON")]
        connection_config: Option<String>,
        /// Tag of the connection; can be repeated
        #[arg(long = "tag", value_name = "NAME=VALUE", value_parser = parse_tag)]
        tags: Vec<(String, String)>,
    },
    /// Delete a connection and its records
    Delete {
        #[command(flatten)]
        host: HostArgs,
        /// Id of the connection
        id: String,
        /// Unique key of the integration [default: the only integration that has such a connection]
        #[arg(long, short, value_name = "KEY")]
        integration: Option<String>,
        /// Delete without asking for confirmation
        #[arg(long, short)]
        yes: bool,
    },
}

/// The fields of a connection that the list prints.
#[derive(Debug, Deserialize)]
struct Listed {
    connection_id: String,
    provider_config_key: String,
    provider: String,
    created: String,
    #[serde(default)]
    errors: Vec<ActiveError>,
}

#[derive(Debug, Deserialize)]
struct ActiveError {
    r#type: String,
}

#[derive(Debug, Serialize)]
struct Import {
    #[serde(skip_serializing_if = "Option::is_none")]
    connection_id: Option<String>,
    provider_config_key: String,
    credentials: Box<RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    connection_config: Option<Box<RawValue>>,
    tags: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize)]
struct Imported {
    connection_id: String,
    provider_config_key: String,
}

pub(super) async fn run(args: ConnectionsArgs) -> anyhow::Result<Done> {
    match args.command {
        ConnectionsCommand::List { host, integration, search, list } => {
            let filter = [("integrationId", integration.as_deref()), ("search", search.as_deref())];
            host.client()?.print_list(PATH, "connections", &filter, &list, line).await?;
        }
        ConnectionsCommand::Show { host, id, integration, show_credentials } => {
            let client = host.client()?;
            let connection = ConnectionArgs { integration, connection: Some(id) }.find(&client).await?;
            let mut shown: Value = if show_credentials {
                client.get(&connection.path()).await?
            } else {
                // The list has no credentials, so nothing is refreshed or recorded as read.
                let ConnectionName { integration, id } = &connection;
                let filter = [("integrationId", Some(&**integration)), ("connectionId", Some(&**id))];
                let mut found: Value = client.query(PATH, &filter).await?;
                let found = found["connections"].get_mut(0).map(Value::take);
                found.with_context(|| format!("there is no connection `{connection}`"))?
            };
            if !show_credentials && let Some(members) = shown.as_object_mut() {
                members.remove("credentials");
            }
            println!("{shown:#}");
        }
        ConnectionsCommand::Import {
            host,
            id,
            integration,
            credentials,
            metadata,
            connection_config,
            tags,
        } => {
            let read = |json: String| anyhow::Ok(JsonInput::read(&json)?.into_raw());
            let import = Import {
                connection_id: id,
                provider_config_key: integration.clone(),
                credentials: read(credentials).context("--credentials")?,
                metadata: metadata.map(read).transpose().context("--metadata")?,
                connection_config: connection_config.map(read).transpose().context("--connection-config")?,
                tags: tags.into_iter().collect(),
            };
            let client = host.client()?;
            let imported =
                client.post::<Imported>(PATH, "application/json", serde_json::to_vec(&import)?).await;
            match imported {
                Ok(imported) => {
                    println!(
                        "imported connection {}/{}",
                        imported.provider_config_key, imported.connection_id
                    );
                }
                Err(error) => return Err(explain(&client, &integration, &[], error).await),
            }
        }
        ConnectionsCommand::Delete { host, id, integration, yes } => {
            let client = host.client()?;
            let connection = ConnectionArgs { integration, connection: Some(id) }.find(&client).await?;
            let question = format!("delete connection {connection} and its records?");
            if !yes && !output::confirmed(&question, "use --yes to delete")? {
                println!("not deleted");
                return Ok(Done::Successful);
            }
            client.delete(&connection.path()).await?;
            println!("deleted connection {connection}");
        }
    }
    Ok(Done::Successful)
}

/// Imports a connection to a provider without credentials.
pub(super) async fn import_without_credentials(
    client: &super::client::Client,
    integration: &str,
    id: &str,
) -> anyhow::Result<ConnectionName> {
    let body =
        json!({ "connection_id": id, "provider_config_key": integration, "credentials": { "type": "NONE" } });
    let Imported { connection_id, provider_config_key } = client.post_json(PATH, &body).await?;
    Ok(ConnectionName { integration: provider_config_key, id: connection_id })
}

fn line(connection: &Value) -> anyhow::Result<String> {
    let Listed { connection_id, provider_config_key, provider, created, errors } =
        Listed::deserialize(connection)?;
    let errors: Vec<String> = errors.into_iter().map(|error| format!("{} error", error.r#type)).collect();
    let line = format!("{provider_config_key}/{connection_id}  {provider}  {created}  {}", errors.join(", "));
    Ok(line.trim_end().to_owned())
}

fn parse_tag(text: &str) -> anyhow::Result<(String, String)> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => bail!("a tag has the form NAME=VALUE, such as plan=pro"),
    }
}
