//! `syncline versions`: lists the deployed versions of a bundle.

use clap::Args;
use serde::Deserialize;
use serde_json::Value;

use super::Done;
use super::client::{HostArgs, ListArgs};

#[derive(Debug, Args)]
pub(super) struct VersionsArgs {
    /// Name of the bundle [default: all bundles]
    bundle: Option<String>,
    #[command(flatten)]
    list: ListArgs,
    #[command(flatten)]
    host: HostArgs,
}

#[derive(Debug, Deserialize)]
struct Version {
    bundle: String,
    version: i32,
    digest: String,
    state: String,
    deployed_by: String,
    signed_by: Option<String>,
    restored_version: Option<i32>,
    created_at: String,
    activated_at: Option<String>,
    changes: Vec<Value>,
}

pub(super) async fn run(args: VersionsArgs) -> anyhow::Result<Done> {
    let client = args.host.client()?;
    let parameters = [("bundle", args.bundle.as_deref())];
    client.print_list("deployments", "deployments", &parameters, &args.list, line).await?;
    Ok(Done::Successful)
}

fn line(version: &Value) -> anyhow::Result<String> {
    let version = Version::deserialize(version)?;
    let changes = match version.changes.len() {
        1 => "1 change".to_owned(),
        count => format!("{count} changes"),
    };
    let mut line = format!(
        "{} {}  {}  {:10}  {}  {}  {changes}",
        version.bundle,
        version.version,
        version.activated_at.as_deref().unwrap_or(&version.created_at),
        version.state,
        version.digest.get(..12).unwrap_or(&version.digest),
        version.deployed_by,
    );
    if let Some(restored) = version.restored_version {
        line.push_str(&format!("  restored version {restored}"));
    }
    if let Some(key) = version.signed_by {
        line.push_str(&format!("  signed with {key}"));
    }
    Ok(line)
}
