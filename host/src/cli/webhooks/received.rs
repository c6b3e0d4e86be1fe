//! `syncline webhooks received` and `replay`: shows provider webhooks and processes them again. Also the host's
//! settings for inbound webhooks.

use std::time::Duration;

use clap::{ArgGroup, Args};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::DAY_SECONDS;
use crate::cli::client::{Client, HostArgs, ListArgs, item_path};

const RECEIVED: &str = "webhooks/received";

/// The memory for webhooks that are not stored yet: enough for several of the maximum size, and for very many usual
/// ones.
const MIN_HELD_BYTES: usize = 128 << 20;
const HELD_BODIES: usize = 4;

/// Settings of `syncline serve`.
#[derive(Debug, Args)]
pub(in crate::cli) struct InboundWebhookArgs {
    /// Maximum body size of a provider webhook
    #[arg(long, env = "SYNCLINE_WEBHOOK_INTAKE_MAX_BYTES", default_value_t = 25 << 20, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1024..=(256 << 20)))]
    webhook_intake_max_bytes: u32,
    /// How often a failed webhook function is retried
    #[arg(long, env = "SYNCLINE_WEBHOOK_FUNCTION_RETRIES", default_value_t = 10, value_name = "NUMBER")]
    webhook_function_retries: u8,
    /// How long provider webhooks are retained, for replays and for detecting duplicates
    #[arg(long, env = "SYNCLINE_RECEIVED_WEBHOOK_RETENTION_DAYS", default_value_t = 7, value_name = "DAYS", value_parser = clap::value_parser!(u64).range(1..=3650))]
    received_webhook_retention_days: u64,
}

impl InboundWebhookArgs {
    pub(in crate::cli) fn max_body_bytes(&self) -> usize {
        self.webhook_intake_max_bytes as usize
    }

    pub(in crate::cli) fn held_bytes(&self) -> usize {
        MIN_HELD_BYTES.max(HELD_BODIES * self.max_body_bytes())
    }

    pub(in crate::cli) fn function_retries(&self) -> u8 {
        self.webhook_function_retries
    }

    pub(in crate::cli) fn kept_for(&self) -> Duration {
        Duration::from_secs(self.received_webhook_retention_days * DAY_SECONDS)
    }
}

#[derive(Debug, Args)]
pub(super) struct ReceivedArgs {
    #[command(flatten)]
    host: HostArgs,
    /// Show this webhook with its body and functions, as JSON
    #[arg(conflicts_with_all = ["state", "event_type", "integration", "since", "limit", "json"])]
    id: Option<String>,
    /// List only webhooks in this state: received, processing, processed, unmatched, failed or handshake
    #[arg(long)]
    state: Option<String>,
    /// List only events of this type, as named by the provider
    #[arg(long = "type", value_name = "TYPE")]
    event_type: Option<String>,
    /// List only webhooks of this integration, by its unique key
    #[arg(long, value_name = "KEY")]
    integration: Option<String>,
    /// List only webhooks received at this time or later, such as 2026-03-01T09:00:00Z
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    #[command(flatten)]
    list: ListArgs,
}

#[derive(Debug, Args)]
#[command(group(ArgGroup::new("which").required(true).args(["id", "since"])))]
pub(super) struct ReplayArgs {
    #[command(flatten)]
    host: HostArgs,
    /// Id of the webhook
    id: Option<String>,
    /// Replay all webhooks received at this time or later that are unmatched or failed
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Replay only those in this state: processed, unmatched or failed
    #[arg(long, requires = "since")]
    state: Option<String>,
    /// Replay only those of this integration, by its unique key
    #[arg(long, requires = "since", value_name = "KEY")]
    integration: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Received {
    id: String,
    provider_config_key: String,
    #[serde(rename = "type")]
    event_type: Option<String>,
    delivery_id: Option<String>,
    state: String,
    connections: u32,
    functions_left: u32,
    functions_failed: u32,
    replays: u32,
    error: Option<String>,
    received_at: String,
    finished_at: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Replayed {
    count: u64,
}

pub(super) async fn received(args: &ReceivedArgs) -> anyhow::Result<()> {
    let client = args.host.client()?;
    if let Some(id) = &args.id {
        let found: Value = client.get(&item_path(RECEIVED, id)).await?;
        println!("{found:#}");
        return Ok(());
    }
    let parameters = [
        ("state", args.state.as_deref()),
        ("type", args.event_type.as_deref()),
        ("provider_config_key", args.integration.as_deref()),
        ("since", args.since.as_deref()),
    ];
    client.print_list(RECEIVED, "webhooks", &parameters, &args.list, Received::line).await
}

impl Received {
    fn line(&self) -> anyhow::Result<String> {
        Ok(format!(
            "{}  {}  {:10}  {}  {}  connections: {}",
            self.id,
            self.received_at,
            self.state,
            self.provider_config_key,
            self.event_type.as_deref().unwrap_or("-"),
            self.connections,
        ))
    }
}

pub(super) async fn replay(args: &ReplayArgs) -> anyhow::Result<()> {
    let client: Client = args.host.client()?;
    if let Some(id) = &args.id {
        let _replayed: Value =
            client.post_json(&format!("{}/replay", item_path(RECEIVED, id)), &json!({})).await?;
        println!("webhook {id} is queued for processing again");
        return Ok(());
    }
    let mut wanted = json!({ "since": args.since });
    for (name, value) in [("state", &args.state), ("provider_config_key", &args.integration)] {
        if let Some(value) = value {
            wanted[name] = value.as_str().into();
        }
    }
    let Replayed { count } = client.post_json("webhooks/received/replay", &wanted).await?;
    println!("{count} webhooks are queued for processing again");
    Ok(())
}
