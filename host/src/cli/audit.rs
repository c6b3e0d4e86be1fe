//! `syncline audit`: shows and exports the audit log.

use clap::{Args, Subcommand};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Done;
use super::client::{HostArgs, ListArgs, Parameter};

const PATH: &str = "audit-log";

#[derive(Debug, Args)]
pub(super) struct AuditArgs {
    #[command(subcommand)]
    command: AuditCommand,
}

#[derive(Debug, Subcommand)]
enum AuditCommand {
    /// List entries of the audit log, newest first
    List {
        #[command(flatten)]
        host: HostArgs,
        #[command(flatten)]
        filter: AuditFilter,
        #[command(flatten)]
        list: ListArgs,
    },
    /// Print all entries as JSON lines, newest first
    Export {
        #[command(flatten)]
        host: HostArgs,
        #[command(flatten)]
        filter: AuditFilter,
    },
}

#[derive(Debug, Args)]
struct AuditFilter {
    /// Only entries of this environment
    #[arg(long, short, value_name = "NAME")]
    environment: Option<String>,
    /// Only entries of this author: the id of a key, account or connect session, or the name of an operating system's
    /// user
    #[arg(long, value_name = "ID")]
    actor: Option<String>,
    /// Only entries with this action, such as connection.deleted
    #[arg(long)]
    action: Option<String>,
    /// Only entries about this object, such as shop/user-1
    #[arg(long, value_name = "NAME")]
    target: Option<String>,
    /// Only entries of this time or later, such as 2026-03-01T09:00:00Z
    #[arg(long, value_name = "TIME")]
    after: Option<String>,
    /// Only entries before this time
    #[arg(long, value_name = "TIME")]
    before: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    id: String,
    at: String,
    environment: Option<String>,
    actor: Actor,
    action: String,
    target: Target,
    details: Value,
    address: Option<String>,
    request_id: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Actor {
    kind: String,
    id: String,
    name: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Target {
    kind: String,
    name: String,
}

pub(super) async fn run(args: AuditArgs) -> anyhow::Result<Done> {
    match args.command {
        AuditCommand::List { host, filter, list } => {
            host.client()?.print_list(PATH, "entries", &filter.parameters(), &list, Entry::line).await?;
        }
        AuditCommand::Export { host, filter } => {
            host.client()?.print_lines(&format!("{PATH}/export"), &filter.parameters()).await?;
        }
    }
    Ok(Done::Successful)
}

impl AuditFilter {
    fn parameters(&self) -> [Parameter<'_>; 6] {
        [
            ("environment", self.environment.as_deref()),
            ("actor", self.actor.as_deref()),
            ("action", self.action.as_deref()),
            ("target", self.target.as_deref()),
            ("after", self.after.as_deref()),
            ("before", self.before.as_deref()),
        ]
    }
}

impl Entry {
    fn line(&self) -> anyhow::Result<String> {
        let Actor { kind, id, name } = &self.actor;
        Ok(format!(
            "{}  {}  {}  {} {}  {kind} {}  {}",
            self.at,
            self.environment.as_deref().unwrap_or("-"),
            self.action,
            self.target.kind,
            self.target.name,
            name.as_deref().unwrap_or(id),
            self.address.as_deref().unwrap_or("-"),
        ))
    }
}
