//! A project folder: `syncline.toml`, the sources of its functions, and the bundle that is built from them.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, bail};

use super::progress::Spinner;
use crate::guest_build::{BuildOptions, build_component, is_script};
use syncline_config::bundle::Bundle;
use syncline_config::{ConfigFile, Diagnostics, FILE_NAME, IntegrationSpec, parse};

/// Path of the bundle within a project.
const BUNDLE: &str = "build/bundle.tar";

pub(super) struct Project {
    folder: PathBuf,
    pub(super) file: ConfigFile,
}

/// A project, or the mistakes in its `syncline.toml`.
pub(super) enum Opened {
    Project(Box<Project>),
    Mistakes(Diagnostics),
}

impl Project {
    pub(super) fn open(folder: &Path) -> anyhow::Result<Opened> {
        let path = folder.join(FILE_NAME);
        let text = std::fs::read_to_string(&path).with_context(|| {
            format!(
                "could not read {}; pass the project's folder as an argument, or run the command in it",
                path.display()
            )
        })?;
        let schema = |path: &str| std::fs::read_to_string(inside(folder, path)?);
        Ok(match parse(&path.display().to_string(), &text, &schema) {
            Ok(file) => Opened::Project(Box::new(Self { folder: folder.to_owned(), file })),
            Err(diagnostics) => Opened::Mistakes(diagnostics),
        })
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(super) fn bundle_path(&self) -> PathBuf {
        self.folder.join(BUNDLE)
    }

    /// Builds the component of one integration.
    pub(super) fn build_component(&self, integration: &IntegrationSpec) -> anyhow::Result<Vec<u8>> {
        let options = BuildOptions::from_env()?;
        Ok(build_component(&self.folder.join(&integration.component), &options)?)
    }

    /// Builds every component and assembles the bundle.
    pub(super) fn build(&self) -> anyhow::Result<Bundle> {
        self.build_with(&BuildOptions::from_env()?)
    }

    /// Like [`build`](Self::build), but in less time. The components are larger and slower.
    pub(super) fn build_for_development(&self) -> anyhow::Result<Bundle> {
        self.build_with(&BuildOptions { for_development: true, ..BuildOptions::from_env()? })
    }

    fn build_with(&self, options: &BuildOptions) -> anyhow::Result<Bundle> {
        let mut components = BTreeMap::new();
        for integration in &self.file.config.integrations {
            if components.contains_key(&integration.component) {
                continue;
            }
            let _spinner = is_script(&self.folder.join(&integration.component))
                .then(|| Spinner::start(format!("building {}", integration.component)));
            let component = build_component(&self.folder.join(&integration.component), options)?;
            components.insert(integration.component.clone(), component);
        }
        let mut schemas = BTreeMap::new();
        for path in self.file.schema_paths() {
            schemas.insert(path.to_owned(), std::fs::read_to_string(inside(&self.folder, path)?)?);
        }
        Ok(Bundle { config: self.file.text().to_owned(), schemas, components })
    }

    /// Builds the bundle and writes its file. Returns the bundle and the bytes of the file.
    pub(super) fn write_bundle(&self) -> anyhow::Result<(Bundle, Vec<u8>)> {
        let bundle = self.build()?;
        let bytes = bundle.write()?;
        let path = self.bundle_path();
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)
                .with_context(|| format!("could not create {}", folder.display()))?;
        }
        std::fs::write(&path, &bytes).with_context(|| format!("could not write {}", path.display()))?;
        Ok((bundle, bytes))
    }
}

/// Resolves a path in `syncline.toml`, which must stay within the project.
fn inside(folder: &Path, path: &str) -> std::io::Result<PathBuf> {
    let stays =
        Path::new(path).components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    if stays {
        Ok(folder.join(path))
    } else {
        Err(std::io::Error::other("the path leads out of the project's folder"))
    }
}

/// Prints mistakes to standard error.
pub(super) fn show(diagnostics: &Diagnostics) {
    eprint!("{}", diagnostics.render());
    let count = diagnostics.mistakes().len();
    eprintln!("{count} {}", if count == 1 { "error" } else { "errors" });
}

/// The given folder or else the current one. Fails if it is not a folder.
pub(super) fn folder(named: Option<PathBuf>) -> anyhow::Result<PathBuf> {
    let folder = named.unwrap_or_else(|| PathBuf::from("."));
    if !folder.is_dir() {
        bail!("{} is not a folder", folder.display());
    }
    Ok(folder)
}

/// The given name of a bundle, or else the name in the `syncline.toml` of the current folder.
pub(super) fn bundle_name(given: Option<String>) -> anyhow::Result<String> {
    if let Some(name) = given {
        return Ok(name);
    }
    if !Path::new(FILE_NAME).is_file() {
        bail!("name the bundle, or run the command in the folder with its {FILE_NAME}");
    }
    match Project::open(Path::new("."))? {
        Opened::Project(project) => Ok(project.file.config.name.to_string()),
        Opened::Mistakes(_) => bail!("the {FILE_NAME} of this folder has errors; name the bundle instead"),
    }
}
