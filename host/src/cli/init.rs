//! `syncline init`: creates a project.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};
use clap::Args;

use super::Done;
use super::project::{Opened, Project};
use crate::generate::generate;
use syncline_config::did_you_mean;
use syncline_providers::{AuthMode, Catalogue, Provider};
use template::{GITHUB_ISSUES, ITEMS, Language, Subject};

mod template;

/// Provider of a project that is created without `--provider`: GitHub's public API, which needs no account.
const PUBLIC_PROVIDER: &str = "unauthenticated";
const PUBLIC_ADDRESS: &str = "https://api.github.com";

#[derive(Debug, Args)]
pub(super) struct InitArgs {
    /// Folder to create; an existing one must be empty
    folder: PathBuf,
    /// Language of the functions
    #[arg(long, short, value_enum)]
    language: Language,
    /// Slug of a provider in the catalogue (`syncline providers` lists them) [default: GitHub's public API, without an
    /// account]
    #[arg(long, value_name = "SLUG")]
    provider: Option<String>,
    /// Folder `guest-sdk` in a clone of the Syncline repository [default: the one of the clone that contains this
    /// program or the project]
    #[arg(long, env = "SYNCLINE_SDK_DIR", value_name = "FOLDER")]
    sdk: Option<PathBuf>,
    /// Folder with additional provider files, which override the built-in ones
    #[arg(long, env = "SYNCLINE_PROVIDERS_DIR", value_name = "FOLDER")]
    providers_dir: Option<PathBuf>,
}

pub(super) fn run(args: &InitArgs) -> anyhow::Result<Done> {
    let folder = std::path::absolute(&args.folder)?;
    refuse_content(&folder)?;
    let subject = subject(args, &folder)?;
    for (path, text) in args.language.files(&subject) {
        write(&folder.join(path), &text)?;
    }
    let project = match Project::open(&folder)? {
        Opened::Project(project) => project,
        Opened::Mistakes(diagnostics) => {
            bail!("the new project contains mistakes:\n{}", diagnostics.render())
        }
    };
    for file in generate(&folder, &project.file) {
        write(&folder.join(file.path), &file.text)?;
    }
    println!("created {}", args.folder.display());
    println!("next: follow {}", args.folder.join("README.md").display());
    Ok(Done::Successful)
}

/// Fails if the folder contains anything, so that nothing is overwritten.
fn refuse_content(folder: &Path) -> anyhow::Result<()> {
    match std::fs::read_dir(folder) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error).with_context(|| format!("could not read {}", folder.display())),
        Ok(mut entries) => match entries.next() {
            None => Ok(()),
            Some(_) => bail!("{} is not empty; name another folder", folder.display()),
        },
    }
}

fn subject(args: &InitArgs, folder: &Path) -> anyhow::Result<Subject> {
    let sdk = sdk(args.sdk.as_deref(), args.language, folder)?;
    let catalogue = Catalogue::load(args.providers_dir.as_deref())?;
    let slug = args.provider.as_deref().unwrap_or(PUBLIC_PROVIDER);
    let provider = find(&catalogue, slug)?;
    let is_public = args.provider.is_none();
    let known = provider.proxy.base_url.as_ref().map(|url| String::from(url.clone()));
    let address = match &known {
        _ if is_public => format!("base_url = \"{PUBLIC_ADDRESS}\""),
        Some(known) => format!("# The provider's address is {known}."),
        None => "# base_url = \"https://api.example.com\"  # the provider has no fixed address".to_owned(),
    };
    let is_github = is_public || known.as_deref() == Some(PUBLIC_ADDRESS);
    let integration = if is_public { "github" } else { slug };
    Ok(Subject {
        list: if is_github { &GITHUB_ISSUES } else { &ITEMS },
        name: project_name(folder),
        integration: integration.to_owned(),
        provider: slug.to_owned(),
        provider_name: if is_public { "GitHub".to_owned() } else { provider.display_name.clone() },
        address,
        connect: how_to_connect(&provider, integration, is_github),
        sdk,
    })
}

fn find(catalogue: &Catalogue, slug: &str) -> anyhow::Result<Arc<Provider>> {
    let providers = catalogue.list();
    if let Some(provider) = providers.iter().find(|provider| provider.name.as_str() == slug) {
        return Ok(Arc::clone(provider));
    }
    let similar = did_you_mean(slug, providers.iter().map(|provider| provider.name.as_str()));
    let hint = similar.map(|similar| format!("did you mean `{similar}`? ")).unwrap_or_default();
    bail!("there is no provider `{slug}` in the catalogue; {hint}`syncline providers` lists all providers")
}

/// The sentences of the README about connections.
fn how_to_connect(provider: &Provider, integration: &str, is_github: bool) -> String {
    let adapt = if is_github {
        String::new()
    } else {
        format!(
            "\n\nBefore the first run, replace the list in the code, its parameters, and the fields of the model with those \
             of {}'s API: {}",
            provider.display_name, provider.docs
        )
    };
    let connect = match provider.auth_mode {
        AuthMode::None => "`syncline dev` also creates the connection `dev`.".to_owned(),
        _ => format!(
            "A function runs for a *connection*, which is one user's account. Create one in a second terminal in this folder:\n\n\
             ```sh\nsyncline connections import dev --integration {integration} --credentials @credentials.json\n```\n\n\
             The file contains the credentials, such as `{{\"type\": \"API_KEY\", \"apiKey\": \"…\"}}`. The type of this \
             provider is `{}`.",
            provider.auth_mode.as_str()
        ),
    };
    connect + &adapt
}

/// A name for the project that all languages accept: the folder's name in lower case with other characters replaced.
fn project_name(folder: &Path) -> String {
    let name = folder.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    let name: String =
        name.chars().map(|c| if c.is_ascii_lowercase() || c.is_ascii_digit() { c } else { '-' }).collect();
    let name = name.trim_matches('-');
    match name.chars().next() {
        Some(first) if first.is_ascii_lowercase() => name.chars().take(64).collect(),
        _ => format!("integration-{name}").trim_end_matches('-').chars().take(64).collect(),
    }
}

/// Returns the path of the language's SDK, relative to the project if the project is in the same clone.
fn sdk(given: Option<&Path>, language: Language, folder: &Path) -> anyhow::Result<String> {
    let is_sdk = |sdks: &Path| sdks.join(language.sdk_folder()).join(language.sdk_manifest()).is_file();
    let found = match given {
        Some(given) if is_sdk(given) => given.canonicalize()?,
        Some(given) => bail!(
            "{} does not contain the SDK for this language; name the folder `guest-sdk` of a clone of the Syncline repository",
            given.display()
        ),
        None => {
            let program = std::env::current_exe().unwrap_or_default();
            let near = folder.ancestors().chain(program.ancestors()).map(|folder| folder.join("guest-sdk"));
            near.into_iter().find(|sdks| is_sdk(sdks)).context(
                "could not find the SDK, which is not published; clone the Syncline repository, and name its folder \
                 `guest-sdk` with --sdk",
            )?
        }
    };
    let sdk = found.join(language.sdk_folder());
    let clone = found.parent().unwrap_or(&found);
    let path = match folder.strip_prefix(clone) {
        Ok(inside) => {
            let up = inside.components().map(|_| "..").collect::<PathBuf>();
            up.join("guest-sdk").join(language.sdk_folder())
        }
        Err(_) => sdk,
    };
    Ok(path.to_str().context("the path of the SDK is not UTF-8")?.to_owned())
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    let written =
        path.parent().map_or(Ok(()), std::fs::create_dir_all).and_then(|()| std::fs::write(path, text));
    written.with_context(|| format!("could not write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_project_is_a_valid_package_name() {
        for (folder, name) in
            [("/a/My Shop", "my-shop"), ("/a/42", "integration-42"), ("/", "integration"), ("/a/_x_", "x")]
        {
            assert_eq!(project_name(Path::new(folder)), name);
        }
    }
}
