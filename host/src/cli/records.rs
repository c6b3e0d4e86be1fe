//! `syncline records`: lists records, and distributes the records database.

mod distribute;
mod list;

use clap::{Args, Subcommand};

use super::Done;

#[derive(Debug, Args)]
pub(super) struct RecordsArgs {
    #[command(subcommand)]
    command: RecordsCommand,
}

#[derive(Debug, Subcommand)]
enum RecordsCommand {
    /// List records of one model and connection, those that changed first at the top
    List(Box<list::RecordListArgs>),
    /// Distribute the records database over the nodes of a Citus cluster; safe to repeat
    Distribute(distribute::DistributeArgs),
}

pub(super) async fn run(args: RecordsArgs) -> anyhow::Result<Done> {
    match args.command {
        RecordsCommand::List(args) => list::run(*args).await,
        RecordsCommand::Distribute(args) => distribute::run(args).await,
    }
}
