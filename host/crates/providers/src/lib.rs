//! The catalogue of providers: the address of each API, its authentication, and the questions for end users. Each
//! provider has one TOML file, which is compiled in. The files in an operator's folder add to these or replace
//! them.

mod answers;
mod auth_mode;
mod key_encoding;
mod monogram;
mod provider;
mod proxy;
mod question;
mod rules;
mod source;
mod template;
mod url_template;
pub mod webhook;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::SystemTime;

pub use answers::{WrongAnswer, WrongAnswerKind, check_answers, check_credential};
pub use auth_mode::AuthMode;
pub use key_encoding::KeyEncoding;
pub use monogram::monogram;
pub use provider::{
    BodyFormat, JwtAlgorithm, JwtRecipe, Provider, SignatureMethod, SignatureScheme, TokenRequest,
    TokenRequestAuth, TokenResponsePaths,
};
pub use proxy::{
    BasicTemplates, HeaderKey, LimitScope, Paginate, Proxy, RateLimit, RetryHints, Verification,
    VerificationMethod,
};
pub use question::{Pattern, Question, QuestionFormat, QuestionKind};
pub use source::{Evidence, Source};
pub use template::{InvalidTemplate, Template, Variable};
pub use url_template::{InvalidUrlTemplate, UnusableConfig, UrlTemplate};
pub use webhook::Webhook;

use syncline_types::ids::ProviderSlug;

/// The files in `host/crates/providers/catalogue`. A debug build reads them from disk, so that a change needs no
/// compilation.
#[derive(rust_embed::Embed)]
#[folder = "catalogue"]
#[include = "*.toml"]
struct Shipped;

/// All providers that the host knows.
#[derive(Debug)]
pub struct Catalogue {
    operator_folder: Option<PathBuf>,
    /// The operator's files when they were last read.
    read_files: Mutex<Files>,
    providers: RwLock<Providers>,
}

type Providers = BTreeMap<ProviderSlug, Arc<Provider>>;
/// Each file with its time of modification and its size in bytes.
type Files = Vec<(PathBuf, Option<SystemTime>, u64)>;

/// The reason why the catalogue cannot be loaded, with the file and, where possible, the key.
#[derive(Debug, thiserror::Error)]
pub enum CatalogueError {
    #[error("could not read the provider folder `{folder}`")]
    Folder { folder: String, source: std::io::Error },
    #[error("could not read the provider file `{file}`")]
    File { file: String, source: std::io::Error },
    #[error("the provider file `{file}` is malformed: {problem}")]
    Malformed { file: String, problem: String },
    #[error("the provider file `{file}` is invalid at `{key}`: {problem}")]
    Rule { file: String, key: String, problem: String },
}

/// Who wrote a file. Operators may allow more than the built-in files do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    Shipped,
    Operator,
}

impl Catalogue {
    /// Loads the built-in providers and those in the operator's folder, which contains `*.toml` files named by
    /// slug. A file of the operator replaces a built-in provider of the same slug completely.
    pub fn load(operator_folder: Option<&Path>) -> Result<Self, CatalogueError> {
        // Before the files are read, so that a change in between is noticed later.
        let read_files = Mutex::new(list_files(operator_folder));
        let providers = RwLock::new(read_all(operator_folder)?);
        Ok(Self { operator_folder: operator_folder.map(Path::to_owned), read_files, providers })
    }

    /// Reads all files again if a file of the operator has changed. Returns whether it did. If a file is invalid, the
    /// providers stay as they are, and the error is reported once for each change.
    pub fn reload_if_changed(&self) -> Result<bool, CatalogueError> {
        let files = list_files(self.operator_folder());
        let mut read_files = self.read_files.lock().unwrap_or_else(PoisonError::into_inner);
        if *read_files == files {
            return Ok(false);
        }
        *read_files = files;
        let providers = read_all(self.operator_folder())?;
        *self.providers.write().unwrap_or_else(PoisonError::into_inner) = providers;
        Ok(true)
    }

    /// The folder whose files add to the built-in providers.
    pub fn operator_folder(&self) -> Option<&Path> {
        self.operator_folder.as_deref()
    }

    pub fn find(&self, slug: &ProviderSlug) -> Option<Arc<Provider>> {
        self.providers.read().unwrap_or_else(PoisonError::into_inner).get(slug).cloned()
    }

    /// Returns all providers, ordered by slug.
    pub fn list(&self) -> Vec<Arc<Provider>> {
        self.providers.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }
}

/// Lists the provider files of a folder. The list is empty if the folder cannot be read.
fn list_files(folder: Option<&Path>) -> Files {
    let entries = folder.into_iter().flat_map(std::fs::read_dir).flatten().flatten();
    let mut files: Files = entries
        .map(|entry| entry.path())
        .filter(|path| is_provider_file(path))
        .filter_map(|path| {
            let metadata = std::fs::metadata(&path).ok()?;
            Some((path, metadata.modified().ok(), metadata.len()))
        })
        .collect();
    files.sort();
    files
}

fn is_provider_file(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "toml")
}

fn read_all(operator_folder: Option<&Path>) -> Result<Providers, CatalogueError> {
    let mut providers = Providers::new();
    for file in Shipped::iter() {
        let text = Shipped::get(&file).map(|shipped| shipped.data).unwrap_or_default();
        let slug = file.trim_end_matches(".toml");
        add(&mut providers, &file, slug, &String::from_utf8_lossy(&text), Origin::Shipped)?;
    }
    if let Some(folder) = operator_folder {
        add_folder(&mut providers, folder)?;
    }
    Ok(providers)
}

fn add_folder(providers: &mut Providers, folder: &Path) -> Result<(), CatalogueError> {
    let unreadable = |source| CatalogueError::Folder { folder: folder.display().to_string(), source };
    for entry in std::fs::read_dir(folder).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        if !is_provider_file(&path) {
            continue;
        }
        let file = path.display().to_string();
        let text = std::fs::read_to_string(&path)
            .map_err(|source| CatalogueError::File { file: file.clone(), source })?;
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        add(providers, &file, &stem, &text, Origin::Operator)?;
    }
    Ok(())
}

fn add(
    providers: &mut Providers,
    file: &str,
    stem: &str,
    text: &str,
    origin: Origin,
) -> Result<(), CatalogueError> {
    let provider: Provider = toml::from_str(text)
        .map_err(|error| CatalogueError::Malformed { file: file.to_owned(), problem: error.to_string() })?;
    rules::check(&provider, stem, origin).map_err(|broken| CatalogueError::Rule {
        file: file.to_owned(),
        key: broken.key,
        problem: broken.problem,
    })?;
    providers.insert(provider.name.clone(), Arc::new(provider));
    Ok(())
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests;
