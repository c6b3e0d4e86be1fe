//! What `deploy` and `rollback` share: the plan, the confirmation, and the deployment itself.

use anyhow::bail;
use bytes::Bytes;
use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::client::Client;
use super::output;
use super::progress::{Spinner, Upload};

/// What the host does with a bundle before it answers.
const CHECKING: &str = "the host is checking the bundle and compiling its components";
const DEPLOYING: &str = "every host is compiling the components, and then the bundle becomes active";

/// How to handle the plan.
#[derive(Debug, Args)]
pub(super) struct PlanArgs {
    /// Only show what would change
    #[arg(long)]
    dry_run: bool,
    /// Deploy without asking for confirmation
    #[arg(long, short)]
    yes: bool,
    /// Accept capabilities that the active version does not have, also without a question
    #[arg(long)]
    accept_capabilities: bool,
    /// Print the plan with --dry-run, or else the deployment, as JSON
    #[arg(long)]
    json: bool,
}

/// What to deploy.
pub(super) enum Submission {
    Bundle {
        bytes: Bytes,
        /// The content of the `.minisig` file.
        signature: Option<String>,
    },
    EarlierVersion {
        bundle: String,
        version: Option<i32>,
    },
}

#[derive(Debug, Serialize, Deserialize)]
struct Deployment {
    /// None for a plan, and if the bundle was already active.
    id: Option<String>,
    bundle: String,
    version: Option<i32>,
    digest: String,
    changes: Vec<Change>,
    warnings: Vec<String>,
    capabilities: Value,
    new_capabilities: Vec<Capability>,
    sdks: Value,
    signed_by: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Change {
    change: String,
    kind: String,
    integration: Option<String>,
    name: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Capability {
    integration: String,
    kind: String,
    name: String,
}

/// Shows the plan, asks if necessary, and deploys.
pub(super) async fn deploy(client: &Client, submission: Submission, args: &PlanArgs) -> anyhow::Result<()> {
    let plan = submission.send(client, "dry_run=true", CHECKING, args).await?;
    if args.dry_run && args.json {
        println!("{}", serde_json::to_string_pretty(&plan)?);
        return Ok(());
    }
    if !args.json {
        plan.print();
    }
    if args.dry_run {
        return Ok(());
    }
    let asks_for_more = !plan.new_capabilities.is_empty();
    if args.yes && asks_for_more && !args.accept_capabilities {
        bail!(
            "the bundle asks for capabilities that the active version does not have: {}; check them, then use \
             --accept-capabilities",
            plan.list_new_capabilities()
        );
    }
    let question = if asks_for_more && !args.accept_capabilities {
        "deploy these changes and accept the new capabilities?"
    } else {
        "deploy these changes?"
    };
    let instead = "use --yes to deploy, or --dry-run to only show the changes";
    if !args.yes && !output::confirmed(question, instead)? {
        eprintln!("not deployed");
        return Ok(());
    }
    // Capabilities that were not in the plan are not accepted: the active version may have changed since.
    let accepts = args.accept_capabilities || asks_for_more;
    let deployed =
        submission.send(client, &format!("accept_capabilities={accepts}"), DEPLOYING, args).await?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&deployed)?);
    } else {
        println!("{}", deployed.outcome());
    }
    Ok(())
}

impl Submission {
    /// Shows the progress of the upload and then `work`, unless the command prints JSON.
    async fn send(
        &self,
        client: &Client,
        query: &str,
        work: &'static str,
        args: &PlanArgs,
    ) -> anyhow::Result<Deployment> {
        match self {
            Self::Bundle { bytes, signature } => {
                // Kept until the host has answered, which is long after the last byte was sent.
                let shown = (!args.json).then(|| Upload::start(bytes.len(), work));
                let upload = shown.clone();
                let on_sent = move |sent_bytes| {
                    if let Some(upload) = &upload {
                        upload.set_sent(sent_bytes);
                    }
                };
                let path = format!("deployments?{query}");
                client.post_bundle(&path, bytes.clone(), signature.as_deref(), on_sent).await
            }
            Self::EarlierVersion { bundle, version } => {
                let _working = (!args.json).then(|| Spinner::start(work));
                let body = json!({ "bundle": bundle, "version": version });
                client.post_json(&format!("deployments/rollback?{query}"), &body).await
            }
        }
    }
}

impl Deployment {
    fn print(&self) {
        match self.version {
            Some(version) => println!("changes to bundle `{}` (active version: {version}):", self.bundle),
            None => println!("first deployment of bundle `{}`:", self.bundle),
        }
        for Change { change, kind, integration, name } in &self.changes {
            let sign = match change.as_str() {
                "add" => '+',
                "remove" => '-',
                _ => '~',
            };
            let path: Vec<&str> = integration.iter().chain(name).map(String::as_str).collect();
            println!("  {sign} {kind} {}", path.join("/"));
        }
        if self.changes.is_empty() {
            println!("  none, except for possible changes in the functions' code");
        }
        for warning in &self.warnings {
            println!("  ! {warning}");
        }
        if !self.new_capabilities.is_empty() {
            println!("capabilities that the active version does not have:");
            for capability in &self.new_capabilities {
                println!("  * {}", capability.text());
            }
        }
        if let Some(key) = &self.signed_by {
            println!("signed with the key `{key}`");
        }
    }

    fn list_new_capabilities(&self) -> String {
        self.new_capabilities.iter().map(Capability::text).collect::<Vec<_>>().join(", ")
    }

    fn outcome(&self) -> String {
        let Self { bundle, version, .. } = self;
        let version = version.unwrap_or_default();
        match (&self.id, self.changes.as_slice()) {
            (None, _) => {
                format!("bundle `{bundle}` version {version} was already active; nothing has changed")
            }
            (Some(_), []) => {
                format!(
                    "bundle `{bundle}` version {version} is active; its definition is unchanged, its code may have \
                     changed"
                )
            }
            (Some(_), _) => format!("bundle `{bundle}` version {version} is active"),
        }
    }
}

impl Capability {
    fn text(&self) -> String {
        let Self { integration, kind, name } = self;
        let what = match (kind.as_str(), name.as_str()) {
            ("base_url", _) => format!("send requests with credentials to {name}"),
            ("credentials", _) => format!("read the connection's credentials in {name}"),
            ("host", _) => format!("send requests to {name}"),
            ("model", _) => format!("save records of {name}"),
            ("variable", "*") => "read all environment variables".to_owned(),
            ("variable", _) => format!("read the environment variable {name}"),
            _ => format!("{kind} {name}"),
        };
        format!("{integration}: {what}")
    }
}

#[cfg(test)]
mod tests {
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
                "id": id, "bundle": "shop", "version": 3, "digest": "", "changes": changes, "warnings": [],
                "capabilities": [], "new_capabilities": [], "sdks": {}, "signed_by": null,
            });
            let deployed: Deployment = serde_json::from_value(deployed).unwrap();
            assert_eq!(deployed.outcome(), format!("bundle `shop` {expected}"));
        }
    }

    #[test]
    fn a_capability_is_described_in_words() {
        for (kind, name, text) in [
            ("base_url", "https://x.example", "shop: send requests with credentials to https://x.example"),
            ("credentials", "syncs.buyers", "shop: read the connection's credentials in syncs.buyers"),
            ("host", "x.example", "shop: send requests to x.example"),
            ("model", "Buyer", "shop: save records of Buyer"),
            ("variable", "*", "shop: read all environment variables"),
            ("variable", "TEAM", "shop: read the environment variable TEAM"),
        ] {
            let capability =
                Capability { integration: "shop".to_owned(), kind: kind.to_owned(), name: name.to_owned() };
            assert_eq!(capability.text(), text);
        }
    }
}
