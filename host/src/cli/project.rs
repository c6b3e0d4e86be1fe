//! A project folder: `syncline.toml` beside the functions' sources, and the bundle that is built from them.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, bail};

use crate::guest_build::{BuildOptions, build_rust};
use syncline_config::bundle::Bundle;
use syncline_config::{ConfigFile, Diagnostics, FILE_NAME, parse};

/// Where in a project its bundle is written.
const BUNDLE: &str = "build/bundle.tar";

pub(super) struct Project {
    folder: PathBuf,
    pub(super) file: ConfigFile,
}

/// A project, or what is wrong with its file.
pub(super) enum Opened {
    Project(Box<Project>),
    Mistakes(Diagnostics),
}

impl Project {
    pub(super) fn open(folder: &Path) -> anyhow::Result<Opened> {
        let path = folder.join(FILE_NAME);
        let text = std::fs::read_to_string(&path).with_context(|| {
            format!("{} cannot be read; name the project's folder, or change into it", path.display())
        })?;
        let schema = |path: &str| std::fs::read_to_string(inside(folder, path)?);
        Ok(match parse(&path.display().to_string(), &text, &schema) {
            Ok(file) => Opened::Project(Box::new(Self { folder: folder.to_owned(), file })),
            Err(diagnostics) => Opened::Mistakes(diagnostics),
        })
    }

    pub(super) fn bundle_path(&self) -> PathBuf {
        self.folder.join(BUNDLE)
    }

    /// Builds every component and puts the bundle together.
    pub(super) fn build(&self) -> anyhow::Result<Bundle> {
        let options = BuildOptions::from_env()?;
        let mut components = BTreeMap::new();
        for integration in &self.file.config.integrations {
            if components.contains_key(&integration.component) {
                continue;
            }
            let component = build_rust(&self.folder.join(&integration.component), &options)?;
            components.insert(integration.component.clone(), component);
        }
        let mut schemas = BTreeMap::new();
        for path in self.file.schema_paths() {
            schemas.insert(path.to_owned(), std::fs::read_to_string(inside(&self.folder, path)?)?);
        }
        Ok(Bundle { config: self.file.text().to_owned(), schemas, components })
    }

    /// Builds, and writes the bundle's file. Gives its bytes.
    pub(super) fn write_bundle(&self) -> anyhow::Result<(Bundle, Vec<u8>)> {
        let bundle = self.build()?;
        let bytes = bundle.write()?;
        let path = self.bundle_path();
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)
                .with_context(|| format!("{} cannot be made", folder.display()))?;
        }
        std::fs::write(&path, &bytes).with_context(|| format!("{} cannot be written", path.display()))?;
        Ok((bundle, bytes))
    }
}

/// A path that the file names, which must stay in the project.
fn inside(folder: &Path, path: &str) -> std::io::Result<PathBuf> {
    let stays =
        Path::new(path).components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    if stays {
        Ok(folder.join(path))
    } else {
        Err(std::io::Error::other("it is outside of the project's folder"))
    }
}

/// Shows mistakes on standard error.
pub(super) fn show(diagnostics: &Diagnostics) {
    eprint!("{}", diagnostics.render());
    let count = diagnostics.mistakes().len();
    eprintln!("{count} {}", if count == 1 { "mistake" } else { "mistakes" });
}

/// The folder that was named, or this one, if it is there.
pub(super) fn folder(named: Option<PathBuf>) -> anyhow::Result<PathBuf> {
    let folder = named.unwrap_or_else(|| PathBuf::from("."));
    if !folder.is_dir() {
        bail!("{} is no folder", folder.display());
    }
    Ok(folder)
}
