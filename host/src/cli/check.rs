//! `syncline check`: finds the mistakes in a project before a host does.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use clap::Args;

use super::Done;
use super::project::{Opened, Project, folder, show};
use crate::config::MINIMUM_INTERVAL;
use crate::crypto::random_bytes;
use crate::engine::check_components;
use crate::providers::Catalogue;
use crate::runtime::{CompiledCache, Runtime, RuntimeSettings};

#[derive(Debug, Args)]
pub(super) struct CheckArgs {
    /// Folder with the project's syncline.toml [default: this one]
    project: Option<PathBuf>,
    /// Only read syncline.toml: do not build the components to compare them with it
    #[arg(long)]
    no_build: bool,
    /// Folder of further provider files, which stand above the built-in ones
    #[arg(long, env = "SYNCLINE_PROVIDERS_DIR", value_name = "FOLDER")]
    providers_dir: Option<PathBuf>,
    /// Write the mistakes as JSON
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(args: CheckArgs) -> anyhow::Result<Done> {
    let report = |diagnostics: &crate::config::Diagnostics| -> anyhow::Result<Done> {
        if args.json {
            println!("{}", serde_json::to_string_pretty(diagnostics)?);
        } else {
            show(diagnostics);
        }
        Ok(Done::WithMistakes)
    };
    let project = match Project::open(&folder(args.project.clone())?)? {
        Opened::Project(project) => project,
        Opened::Mistakes(diagnostics) => return report(&diagnostics),
    };
    if !args.no_build {
        let bundle = project.build()?;
        let compiled = tempfile::tempdir().context("there is no place for temporary files")?;
        let compiler = std::env::current_exe().context("the program does not know its own file")?;
        let cache = CompiledCache::new(compiled.path().to_owned(), random_bytes(), compiler);
        let settings = RuntimeSettings { max_invocations: 4 };
        let runtime = Arc::new(Runtime::new(&settings, cache)?);
        let catalogue = Catalogue::load(args.providers_dir.as_deref())?;
        let found =
            check_components(&project.file, &bundle.components, MINIMUM_INTERVAL, &catalogue, &runtime).await;
        if !found.is_empty() {
            return report(&found);
        }
    }
    if args.json {
        println!("[]");
    } else {
        let functions: usize =
            project.file.config.integrations.iter().map(|integration| integration.functions().count()).sum();
        println!("no mistakes (functions: {functions}, models: {})", project.file.config.models.len());
    }
    Ok(Done::Well)
}
