//! `syncline check`: finds the mistakes in a project before it is deployed.

use std::path::PathBuf;

use clap::Args;

use super::Done;
use super::compiled::CompiledArgs;
use super::project::{Opened, Project, folder, show};
use crate::generate::{generate, is_generated};
use syncline_config::MINIMUM_INTERVAL;
use syncline_engine::{check_components, check_settings};
use syncline_providers::Catalogue;

#[derive(Debug, Args)]
pub(super) struct CheckArgs {
    /// Folder with the project's syncline.toml [default: the current folder]
    project: Option<PathBuf>,
    /// Check only syncline.toml, without building the components
    #[arg(long)]
    no_build: bool,
    /// Folder with additional provider files, which override the built-in ones
    #[arg(long, env = "SYNCLINE_PROVIDERS_DIR", value_name = "FOLDER")]
    providers_dir: Option<PathBuf>,
    #[command(flatten)]
    compiled: CompiledArgs,
    /// Print the mistakes as JSON
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(args: CheckArgs) -> anyhow::Result<Done> {
    let report = |diagnostics: &syncline_config::Diagnostics| -> anyhow::Result<Done> {
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
    let mut stale = project.file.diagnostics();
    for file in generate(project.folder(), &project.file) {
        let is_stale = |text: String| is_generated(&text) && text != file.text;
        if std::fs::read_to_string(project.folder().join(&file.path)).is_ok_and(is_stale) {
            let message = format!("`{}` does not match the models", file.path.display());
            let help = "run `syncline generate` to write it again";
            stale.add(project.file.key(&["models"]), message, Some(help.to_owned()));
        }
    }
    if !stale.is_empty() {
        return report(&stale);
    }
    let catalogue = Catalogue::load(args.providers_dir.as_deref())?;
    if args.no_build {
        let mut found = check_settings(&project.file, MINIMUM_INTERVAL, &catalogue);
        for integration in &project.file.config.integrations {
            let component = project.folder().join(&integration.component);
            if !component.exists() {
                let place = project.file.value(&["integrations", integration.key.as_str(), "component"]);
                let message = format!("there is no folder or file `{}`", integration.component);
                let help = "name the folder with the sources of the functions, or a .wasm file";
                found.add(place, message, Some(help.to_owned()));
            }
        }
        if !found.is_empty() {
            return report(&found);
        }
    } else {
        let bundle = project.build()?;
        let sandbox = args.compiled.sandbox(4)?;
        let checked =
            check_components(&project.file, &bundle.components, MINIMUM_INTERVAL, &catalogue, &sandbox).await;
        if !checked.mistakes.is_empty() {
            return report(&checked.mistakes);
        }
        for function in checked.unlisted {
            eprintln!("note: the {function} is in no table of syncline.toml, so it is not deployed");
        }
    }
    if args.json {
        println!("[]");
    } else {
        let functions: usize =
            project.file.config.integrations.iter().map(|integration| integration.functions().count()).sum();
        println!("no mistakes (functions: {functions}, models: {})", project.file.config.models.len());
    }
    Ok(Done::Successful)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn check(integration: &str, runs: &str) -> Done {
        let folder = tempfile::tempdir().unwrap();
        let text = format!(
            "name = \"shop\"\n[models.Item]\nid = \"string\"\n[integrations.shop]\ncomponent = \"shop\"\n{integration}\n\
             [integrations.shop.syncs.items]\nmodel = \"Item\"\nruns = \"{runs}\"\n"
        );
        std::fs::write(folder.path().join("syncline.toml"), text).unwrap();
        std::fs::create_dir(folder.path().join("shop")).unwrap();
        let project = Some(folder.path().to_owned());
        run(CheckArgs {
            project,
            no_build: true,
            providers_dir: None,
            compiled: CompiledArgs::default(),
            json: true,
        })
        .await
        .unwrap()
    }

    #[tokio::test]
    async fn providers_hosts_and_frequencies_are_checked_without_a_build() {
        let provider = "provider = \"unauthenticated\"";
        assert!(matches!(check(provider, "every hour").await, Done::Successful));
        for (integration, runs) in [
            ("provider = \"unauthentikated\"".to_owned(), "every hour"),
            (format!("{provider}\nallow_hosts = [\"not a host\"]"), "every hour"),
            (provider.to_owned(), "every 5 s"),
        ] {
            assert!(matches!(check(&integration, runs).await, Done::WithMistakes), "{integration} {runs}");
        }
    }
}
