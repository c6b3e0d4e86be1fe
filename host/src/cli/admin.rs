//! `syncline admin`: accounts of the dashboard.

use clap::{Args, Subcommand};

use super::Done;
use super::address::HttpAddress;
use super::database::DatabaseArgs;
use super::installation::Installation;
use syncline_auth::{Accounts, Email, InvalidEmail, Role};

#[derive(Debug, Args)]
pub(super) struct AdminArgs {
    #[command(subcommand)]
    command: AdminCommand,
}

#[derive(Debug, Subcommand)]
enum AdminCommand {
    /// Create an administrator of the dashboard, and print the link with which the person chooses a password
    Create {
        #[command(flatten)]
        database: DatabaseArgs,
        /// Email address of the person
        #[arg(value_parser = parse_email)]
        email: Email,
        /// Name of the person
        #[arg(long, default_value = "Administrator")]
        name: String,
        /// URL at which the host is reached
        #[arg(long, env = "SYNCLINE_PUBLIC_URL", default_value = "http://127.0.0.1:3003", value_name = "URL", value_parser = HttpAddress::parse_public)]
        public_url: HttpAddress,
    },
}

pub(super) async fn run(args: AdminArgs) -> anyhow::Result<Done> {
    let AdminCommand::Create { database, email, name, public_url } = args.command;
    let installation = Installation::open(&database).await?;
    let (_, link) = Accounts::new(installation.store.clone())
        .invite(&email, &name, Role::Administrator, &installation.actor)
        .await?;
    println!("{}", syncline_dashboard::link_url(&public_url.to_string(), &link));
    installation.close().await?;
    Ok(Done::Successful)
}

fn parse_email(text: &str) -> Result<Email, InvalidEmail> {
    text.parse()
}
