//! `syncline records`: the records database.

mod distribute;

use clap::{Args, Subcommand};

use super::Done;

#[derive(Debug, Args)]
pub(super) struct RecordsArgs {
    #[command(subcommand)]
    command: RecordsCommand,
}

#[derive(Debug, Subcommand)]
enum RecordsCommand {
    /// Distribute the records database over the nodes of a Citus cluster; safe to repeat
    Distribute(distribute::DistributeArgs),
}

pub(super) async fn run(args: RecordsArgs) -> anyhow::Result<Done> {
    match args.command {
        RecordsCommand::Distribute(args) => distribute::run(args).await,
    }
}
