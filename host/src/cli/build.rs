//! `syncline build`: builds the components and writes the bundle.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use super::Done;
use super::project::{Opened, Project, folder, show};
use syncline_config::bundle::BundleDigest;

#[derive(Debug, Args)]
pub(super) struct BuildArgs {
    /// Folder with the project's syncline.toml [default: the current folder]
    project: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(args: BuildArgs) -> anyhow::Result<Done> {
    let project = match Project::open(&folder(args.project)?)? {
        Opened::Project(project) => project,
        Opened::Mistakes(diagnostics) => {
            show(&diagnostics);
            return Ok(Done::WithMistakes);
        }
    };
    let (bundle, bytes) = project.write_bundle()?;
    if args.json {
        let sizes: BTreeMap<&str, usize> =
            bundle.components.iter().map(|(path, wasm)| (&**path, wasm.len())).collect();
        let digest = BundleDigest::of(&bytes).to_string();
        let printed = json!({ "bundle": project.bundle_path(), "digest": digest, "components": sizes });
        println!("{printed:#}");
        return Ok(Done::Successful);
    }
    for (path, wasm) in &bundle.components {
        println!("component {path}: {} KB", wasm.len() / 1024);
    }
    println!("bundle {}: {}", project.bundle_path().display(), BundleDigest::of(&bytes));
    Ok(Done::Successful)
}
