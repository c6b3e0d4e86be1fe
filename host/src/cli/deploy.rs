//! `syncline deploy`: shows what a bundle would change on a host, and deploys it.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::Args;
use serde::Deserialize;

use super::Done;
use super::client::{Client, HostArgs};
use super::project::{Opened, Project, folder, show};

const BUNDLE_TYPE: &str = "application/x-tar";

#[derive(Debug, Args)]
pub(super) struct DeployArgs {
    /// Folder with the project's syncline.toml [default: the current folder]
    project: Option<PathBuf>,
    /// Deploy this bundle instead of building one
    #[arg(long, value_name = "FILE", conflicts_with = "project")]
    bundle: Option<PathBuf>,
    /// Only show what would change
    #[arg(long)]
    dry_run: bool,
    /// Deploy without asking for confirmation
    #[arg(long, short)]
    yes: bool,
    #[command(flatten)]
    host: HostArgs,
}

#[derive(Debug, Deserialize)]
struct Deployment {
    /// None if the bundle was already active.
    id: Option<String>,
    bundle: String,
    version: Option<i32>,
    changes: Vec<Change>,
    warnings: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Change {
    change: String,
    kind: String,
    integration: Option<String>,
    name: Option<String>,
}

pub(super) async fn run(args: DeployArgs) -> anyhow::Result<Done> {
    let client = args.host.client()?;
    let bytes = match &args.bundle {
        Some(path) => std::fs::read(path).with_context(|| format!("could not read {}", path.display()))?,
        None => match Project::open(&folder(args.project.clone())?)? {
            Opened::Project(project) => project.write_bundle()?.1,
            Opened::Mistakes(diagnostics) => {
                show(&diagnostics);
                return Ok(Done::WithMistakes);
            }
        },
    };
    let plan = post(&client, "deployments?dry_run=true", &bytes).await?;
    print_plan(&plan);
    if args.dry_run {
        return Ok(Done::Successful);
    }
    if !args.yes && !confirmed()? {
        println!("not deployed");
        return Ok(Done::Successful);
    }
    let deployed = post(&client, "deployments", &bytes).await?;
    println!("{}", outcome(&deployed));
    Ok(Done::Successful)
}

fn outcome(deployed: &Deployment) -> String {
    let Deployment { bundle, version, .. } = deployed;
    let version = version.unwrap_or_default();
    match (&deployed.id, deployed.changes.as_slice()) {
        (None, _) => format!("bundle `{bundle}` version {version} was already active; nothing has changed"),
        (Some(_), []) => {
            format!(
                "bundle `{bundle}` version {version} is active; its definition is unchanged, its code may have changed"
            )
        }
        (Some(_), _) => format!("bundle `{bundle}` version {version} is active"),
    }
}

async fn post(client: &Client, path: &str, bytes: &[u8]) -> anyhow::Result<Deployment> {
    client.post(path, BUNDLE_TYPE, bytes.to_vec()).await
}

fn print_plan(plan: &Deployment) {
    match plan.version {
        Some(version) => println!("changes to bundle `{}` (active version: {version}):", plan.bundle),
        None => println!("first deployment of bundle `{}`:", plan.bundle),
    }
    for Change { change, kind, integration, name } in &plan.changes {
        let sign = match change.as_str() {
            "add" => '+',
            "remove" => '-',
            _ => '~',
        };
        let path: Vec<&str> = integration.iter().chain(name).map(String::as_str).collect();
        println!("  {sign} {kind} {}", path.join("/"));
    }
    if plan.changes.is_empty() {
        println!("  none, except for possible changes in the functions' code");
    }
    for warning in &plan.warnings {
        println!("  ! {warning}");
    }
}

fn confirmed() -> anyhow::Result<bool> {
    if !std::io::stdin().is_terminal() {
        bail!(
            "cannot ask for confirmation without a terminal; use --yes to deploy, or --dry-run to only show the changes"
        );
    }
    print!("deploy these changes? [y/N] ");
    std::io::stdout().flush()?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_outcome_states_what_has_changed() {
        let change = json!({ "change": "add", "kind": "sync", "integration": "shop", "name": "buyers" });
        for (id, changes, expected) in [
            (json!(null), json!([]), "version 3 was already active; nothing has changed"),
            (
                json!("a"),
                json!([]),
                "version 3 is active; its definition is unchanged, its code may have changed",
            ),
            (json!("a"), json!([change]), "version 3 is active"),
        ] {
            let deployed = json!({
                "id": id, "bundle": "shop", "version": 3, "changes": changes, "warnings": [],
            });
            let deployed = serde_json::from_value(deployed).unwrap();
            assert_eq!(outcome(&deployed), format!("bundle `shop` {expected}"));
        }
    }
}
