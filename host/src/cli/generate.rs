//! `syncline generate`: writes the types of a project's models.

use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::Args;

use super::Done;
use super::project::{Opened, Project, folder, show};
use crate::generate::{generate, is_generated};

#[derive(Debug, Args)]
pub(super) struct GenerateArgs {
    /// Folder with the project's syncline.toml [default: the current folder]
    project: Option<PathBuf>,
    /// Write nothing, and fail if a file is out of date
    #[arg(long)]
    check: bool,
}

pub(super) fn run(args: &GenerateArgs) -> anyhow::Result<Done> {
    let folder = folder(args.project.clone())?;
    let project = match Project::open(&folder)? {
        Opened::Project(project) => project,
        Opened::Mistakes(diagnostics) => {
            show(&diagnostics);
            return Ok(Done::WithMistakes);
        }
    };
    let files = generate(&folder, &project.file);
    if files.is_empty() {
        bail!(
            "no component of the project has sources; `component` must name a folder with a Cargo.toml, package.json or \
             pyproject.toml"
        );
    }
    let mut done = Done::Successful;
    for file in files {
        let path = folder.join(&file.path);
        let shown = file.path.display();
        match std::fs::read_to_string(&path) {
            Ok(text) if text == file.text => println!("{shown} is up to date"),
            Ok(text) if !is_generated(&text) => {
                bail!("{shown} was not generated; move its content to another file, and delete it")
            }
            _ if args.check => {
                eprintln!("{shown} is out of date; run `syncline generate`");
                done = Done::WithMistakes;
            }
            _ => {
                std::fs::write(&path, &file.text)
                    .with_context(|| format!("could not write {}", path.display()))?;
                println!("wrote {shown}");
            }
        }
    }
    Ok(done)
}
