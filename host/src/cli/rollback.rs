//! `syncline rollback`: deploys an earlier version of a bundle again.

use clap::Args;

use super::Done;
use super::client::HostArgs;
use super::deployment::{PlanArgs, Submission, deploy};
use super::project::bundle_name;

#[derive(Debug, Args)]
pub(super) struct RollbackArgs {
    /// Name of the bundle [default: the name in the syncline.toml of the current folder]
    bundle: Option<String>,
    /// The version to restore [default: the one that was active before the active one]
    #[arg(long, value_name = "VERSION", value_parser = clap::value_parser!(i32).range(1..))]
    to: Option<i32>,
    #[command(flatten)]
    plan: PlanArgs,
    #[command(flatten)]
    host: HostArgs,
}

pub(super) async fn run(args: RollbackArgs) -> anyhow::Result<Done> {
    let client = args.host.client()?;
    let submission = Submission::EarlierVersion { bundle: bundle_name(args.bundle)?, version: args.to };
    deploy(&client, submission, &args.plan).await?;
    Ok(Done::Successful)
}
