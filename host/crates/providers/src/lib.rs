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

/// The files in `host/crates/providers/catalogue`. A debug build reads them from disk, so that a change needs no
/// compilation.
#[derive(rust_embed::Embed)]
#[folder = "catalogue"]
#[include = "*.toml"]
struct Shipped;

/// All providers that the host knows.
#[derive(Debug)]
pub struct Catalogue {
    providers: BTreeMap<ProviderSlug, Arc<Provider>>,
}

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

    /// Returns all providers, ordered by slug.
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
mod fuzz;
#[cfg(test)]
mod tests;
