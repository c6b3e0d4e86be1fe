//! `syncline providers`: lists the catalogue that a host would load.

use std::path::PathBuf;

use clap::Args;

use super::Done;
use syncline_providers::Catalogue;

#[derive(Debug, Args)]
pub(super) struct ProvidersArgs {
    /// List only providers whose slug or name contains this text
    search: Option<String>,
    /// Folder with additional provider files, which override the built-in ones; every file is checked
    #[arg(long, env = "SYNCLINE_PROVIDERS_DIR", value_name = "FOLDER")]
    providers_dir: Option<PathBuf>,
    /// Print the entries as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &ProvidersArgs) -> anyhow::Result<Done> {
    let catalogue = Catalogue::load(args.providers_dir.as_deref())?;
    let wanted = args.search.as_deref().unwrap_or_default().to_lowercase();
    let found: Vec<_> = catalogue
        .list()
        .into_iter()
        .filter(|provider| {
            provider.name.as_str().contains(&wanted) || provider.display_name.to_lowercase().contains(&wanted)
        })
        .collect();
    if args.json {
        println!("{}", serde_json::to_string_pretty(&found)?);
        return Ok(Done::Successful);
    }
    for provider in found {
        let mode = provider.auth_mode.as_str();
        println!("{:<32} {mode:<12} {}", provider.name.as_str(), provider.display_name);
    }
    Ok(Done::Successful)
}
