//! `syncline webhooks`: shows outbound deliveries and sends them again. Also the host's delivery settings.

mod received;

use std::time::Duration;

use clap::{ArgGroup, Args, Subcommand};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub(super) use self::received::InboundWebhookArgs;

use self::received::{ReceivedArgs, ReplayArgs};
use super::Done;
use super::client::{Client, HostArgs, ListArgs, item_path};
use syncline_outbound_webhooks::{Delays, SenderSettings};

const DELIVERIES: &str = "webhooks/deliveries";
const DAY_SECONDS: u64 = 24 * 60 * 60;

/// Settings of `syncline serve`.
#[derive(Debug, Args)]
pub(super) struct SenderArgs {
    /// Delays between the attempts to deliver a webhook
    #[arg(long, env = "SYNCLINE_WEBHOOK_RETRIES", default_value = Delays::DEFAULT, value_name = "DURATION,…")]
    webhook_retries: Delays,
    /// How long a webhook receiver may take to respond
    #[arg(long, env = "SYNCLINE_WEBHOOK_TIMEOUT_SECONDS", default_value_t = 20, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=60))]
    webhook_timeout_seconds: u64,
    /// How long deliveries are retained
    #[arg(long, env = "SYNCLINE_WEBHOOK_RETENTION_DAYS", default_value_t = 30, value_name = "DAYS", value_parser = clap::value_parser!(u64).range(1..=3650))]
    webhook_retention_days: u64,
}

impl SenderArgs {
    pub(super) fn settings(&self, grace: Duration) -> SenderSettings {
        SenderSettings {
            delays: self.webhook_retries.clone(),
            timeout: Duration::from_secs(self.webhook_timeout_seconds),
            retention: Duration::from_secs(self.webhook_retention_days * DAY_SECONDS),
            grace,
        }
    }
}

#[derive(Debug, Args)]
pub(super) struct WebhooksArgs {
    #[command(subcommand)]
    command: WebhooksCommand,
}

#[derive(Debug, Subcommand)]
enum WebhooksCommand {
    /// List deliveries, newest first
    List {
        #[command(flatten)]
        host: HostArgs,
        /// List only deliveries in this state: pending, delivered, failed or cancelled
        #[arg(long)]
        state: Option<String>,
        /// List only deliveries of this type: auth, sync, forward or async_action
        #[arg(long = "type", value_name = "TYPE")]
        kind: Option<String>,
        /// List only deliveries about this connection
        #[arg(long, requires = "integration", value_name = "ID")]
        connection: Option<String>,
        /// Unique key of the connection's integration
        #[arg(long, requires = "connection", value_name = "KEY")]
        integration: Option<String>,
        /// List only deliveries created at this time or later, such as 2026-03-01T09:00:00Z
        #[arg(long, value_name = "TIME")]
        since: Option<String>,
        #[command(flatten)]
        list: ListArgs,
    },
    /// Show one delivery with its body and attempts, as JSON
    Show {
        #[command(flatten)]
        host: HostArgs,
        /// Id of the delivery
        id: String,
    },
    /// Send one delivery again, or all that failed permanently since a time
    #[command(group(ArgGroup::new("which").required(true).args(["id", "failed_since"])))]
    Redeliver {
        #[command(flatten)]
        host: HostArgs,
        /// Id of the delivery
        id: Option<String>,
        /// Send every delivery that failed permanently and was created at this time or later
        #[arg(long, value_name = "TIME")]
        failed_since: Option<String>,
    },
    /// List provider webhooks, newest first, or show one
    Received(ReceivedArgs),
    /// Process a provider webhook again, or all that are unmatched or failed since a time
    Replay(ReplayArgs),
}

#[derive(Debug, Serialize, Deserialize)]
struct Delivery {
    id: String,
    webhook_id: String,
    #[serde(rename = "type")]
    kind: String,
    state: String,
    url: String,
    provider_config_key: Option<String>,
    connection_id: Option<String>,
    attempt_count: u32,
    next_attempt_at: Option<String>,
    created_at: String,
    finished_at: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Redelivered {
    count: u64,
}

pub(super) async fn run(args: WebhooksArgs) -> anyhow::Result<Done> {
    match args.command {
        WebhooksCommand::List { host, state, kind, connection, integration, since, list } => {
            let parameters = [
                ("state", state.as_deref()),
                ("type", kind.as_deref()),
                ("connection_id", connection.as_deref()),
                ("provider_config_key", integration.as_deref()),
                ("since", since.as_deref()),
            ];
            let client = host.client()?;
            client.print_list(DELIVERIES, "deliveries", &parameters, &list, Delivery::line).await?;
        }
        WebhooksCommand::Show { host, id } => {
            let found: Value = host.client()?.get(&item_path(DELIVERIES, &id)).await?;
            println!("{found:#}");
        }
        WebhooksCommand::Redeliver { host, id, failed_since } => {
            redeliver(&host.client()?, id.as_deref(), failed_since.as_deref()).await?;
        }
        WebhooksCommand::Received(args) => received::received(&args).await?,
        WebhooksCommand::Replay(args) => received::replay(&args).await?,
    }
    Ok(Done::Successful)
}

impl Delivery {
    fn line(&self) -> anyhow::Result<String> {
        let about = match (&self.provider_config_key, &self.connection_id) {
            (Some(integration), Some(connection)) => format!("{integration}/{connection}"),
            _ => "-".to_owned(),
        };
        Ok(format!(
            "{}  {}  {:9}  {:4}  {about}  {}  attempts: {}",
            self.id, self.created_at, self.state, self.kind, self.url, self.attempt_count,
        ))
    }
}

async fn redeliver(client: &Client, id: Option<&str>, failed_since: Option<&str>) -> anyhow::Result<()> {
    if let Some(id) = id {
        let _sent: Value =
            client.post_json(&format!("{}/redeliver", item_path(DELIVERIES, id)), &json!({})).await?;
        println!("delivery {id} will be sent again");
        return Ok(());
    }
    let since = json!({ "since": failed_since });
    let Redelivered { count } = client.post_json("webhooks/deliveries/redeliver", &since).await?;
    println!("{count} deliveries will be sent again");
    Ok(())
}
