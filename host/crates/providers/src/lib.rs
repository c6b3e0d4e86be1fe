//! The catalogue of providers: where each one's API is, how it is authenticated, and what an end user is
//! asked for. One TOML file a provider, compiled in; an operator's folder adds to them or replaces them.

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
use std::path::Path;
use std::sync::Arc;

pub use answers::{WrongAnswer, WrongAnswerKind, check_answers};
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

/// The files of `host/crates/providers/catalogue`. A debug build reads them where they are, so that trying a change needs no
/// compiling.
#[derive(rust_embed::Embed)]
#[folder = "catalogue"]
#[include = "*.toml"]
struct Shipped;

/// Every provider that the host knows.
#[derive(Debug)]
pub struct Catalogue {
    providers: BTreeMap<ProviderSlug, Arc<Provider>>,
}

/// Why the catalogue cannot be loaded. Names the file, and the key where one is at fault.
#[derive(Debug, thiserror::Error)]
pub enum CatalogueError {
    #[error("the folder of providers `{folder}` cannot be read")]
    Folder { folder: String, source: std::io::Error },
    #[error("the provider file `{file}` cannot be read")]
    File { file: String, source: std::io::Error },
    #[error("the provider file `{file}` is malformed: {problem}")]
    Malformed { file: String, problem: String },
    #[error("the provider file `{file}` breaks a rule at `{key}`: {problem}")]
    Rule { file: String, key: String, problem: String },
}

/// Whose file it is. An operator may allow what we would not ship.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    Shipped,
    Operator,
}

impl Catalogue {
    /// The providers that we ship, and those of the operator's folder: its `*.toml` files, named by slug.
    /// A slug that we ship too is replaced as a whole.
    pub fn load(operator_folder: Option<&Path>) -> Result<Self, CatalogueError> {
        let mut catalogue = Self { providers: BTreeMap::new() };
        for file in Shipped::iter() {
            let text = Shipped::get(&file).map(|shipped| shipped.data).unwrap_or_default();
            let slug = file.trim_end_matches(".toml");
            catalogue.add(&file, slug, &String::from_utf8_lossy(&text), Origin::Shipped)?;
        }
        if let Some(folder) = operator_folder {
            catalogue.add_folder(folder)?;
        }
        Ok(catalogue)
    }

    pub fn find(&self, slug: &ProviderSlug) -> Option<&Arc<Provider>> {
        self.providers.get(slug)
    }

    /// All providers, ordered by slug.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Provider>> {
        self.providers.values()
    }

    fn add_folder(&mut self, folder: &Path) -> Result<(), CatalogueError> {
        let unreadable = |source| CatalogueError::Folder { folder: folder.display().to_string(), source };
        for entry in std::fs::read_dir(folder).map_err(unreadable)? {
            let path = entry.map_err(unreadable)?.path();
            if path.extension().is_none_or(|extension| extension != "toml") {
                continue;
            }
            let file = path.display().to_string();
            let text = std::fs::read_to_string(&path)
                .map_err(|source| CatalogueError::File { file: file.clone(), source })?;
            let stem = path.file_stem().unwrap_or_default().to_string_lossy();
            self.add(&file, &stem, &text, Origin::Operator)?;
        }
        Ok(())
    }

    fn add(&mut self, file: &str, stem: &str, text: &str, origin: Origin) -> Result<(), CatalogueError> {
        let provider: Provider = toml::from_str(text).map_err(|error| CatalogueError::Malformed {
            file: file.to_owned(),
            problem: error.to_string(),
        })?;
        rules::check(&provider, stem, origin).map_err(|broken| CatalogueError::Rule {
            file: file.to_owned(),
            key: broken.key,
            problem: broken.problem,
        })?;
        self.providers.insert(provider.name.clone(), Arc::new(provider));
        Ok(())
    }
}

#[cfg(test)]
mod tests;
