//! `syncline deploy`: shows what a bundle would change on a host, and deploys it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;

use super::Done;
use super::client::HostArgs;
use super::deployment::{PlanArgs, Submission, deploy};
use super::project::{Opened, Project, folder, show};

#[derive(Debug, Args)]
pub(super) struct DeployArgs {
    /// Folder with the project's syncline.toml, or the file of a bundle [default: the current folder]
    project: Option<PathBuf>,
    /// Deploy this bundle instead of building one
    #[arg(long, value_name = "FILE", conflicts_with = "project")]
    bundle: Option<PathBuf>,
    /// The minisign signature of the bundle [default: the bundle's file name with `.minisig`, if it exists]
    #[arg(long, value_name = "FILE")]
    signature: Option<PathBuf>,
    #[command(flatten)]
    plan: PlanArgs,
    #[command(flatten)]
    host: HostArgs,
}

pub(super) async fn run(args: DeployArgs) -> anyhow::Result<Done> {
    let client = args.host.client()?;
    let file = args.bundle.or_else(|| args.project.clone().filter(|path| path.is_file()));
    let (bytes, default_signature) = match &file {
        Some(path) => {
            let bytes = std::fs::read(path).with_context(|| format!("could not read {}", path.display()))?;
            (bytes, Some(signature_of(path)).filter(|path| path.is_file()))
        }
        None => match Project::open(&folder(args.project)?)? {
            Opened::Project(project) => (project.write_bundle()?.1, None),
            Opened::Mistakes(diagnostics) => {
                show(&diagnostics);
                return Ok(Done::WithMistakes);
            }
        },
    };
    let signature = args.signature.or(default_signature).map(|path| {
        std::fs::read_to_string(&path).with_context(|| format!("could not read {}", path.display()))
    });
    let submission = Submission::Bundle { bytes: bytes.into(), signature: signature.transpose()? };
    deploy(&client, submission, &args.plan).await?;
    Ok(Done::Successful)
}

/// Returns the path of a bundle's signature, as minisign writes it: `bundle.tar.minisig`.
fn signature_of(bundle: &Path) -> PathBuf {
    let mut path = OsString::from(bundle);
    path.push(".minisig");
    path.into()
}
