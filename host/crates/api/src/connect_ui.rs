//! The Connect UI: the page on which end users connect their accounts, and `connect.js`, which opens it above a page of
//! your product.
//!
//! The files in `host/crates/api/connect-ui` are served unchanged, except for the address of the REST API in the page.

use std::fmt::Write;
use std::str::FromStr;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use axum::response::{IntoResponse, Redirect};
use axum::routing::get;
use sha2::{Digest, Sha256};
use url::Url;

use syncline_web::static_files::answer;

/// A debug build reads the files from the source folder, so that changes need no compilation.
#[derive(rust_embed::Embed)]
#[folder = "connect-ui"]
struct Files;

const PAGE: &str = "index.html";
/// The placeholder in the page for the address of the API.
const API_PLACEHOLDER: &str = "{{api}}";

/// The pages that can show the Connect UI in a frame: the sources of a `frame-ancestors` directive.
#[derive(Debug, Clone)]
pub struct FrameAncestors(String);

#[derive(Debug, thiserror::Error)]
#[error("it must be `*`, `'none'`, or addresses such as https://app.example.com, separated by spaces")]
pub struct InvalidFrameAncestors;

impl FromStr for FrameAncestors {
    type Err = InvalidFrameAncestors;

    fn from_str(text: &str) -> Result<Self, InvalidFrameAncestors> {
        let is_plain = |byte: u8| byte.is_ascii_graphic() && !b";,".contains(&byte);
        let mut sources = text.split(' ').filter(|source| !source.is_empty()).peekable();
        if sources.peek().is_none() || !sources.all(|source| source.bytes().all(is_plain)) {
            return Err(InvalidFrameAncestors);
        }
        Ok(Self(text.trim().to_owned()))
    }
}

/// The address of the API, as the page uses it.
#[derive(Debug, Clone)]
pub enum ApiAddress {
    /// The parent path of the page.
    BesideThePage,
    /// Another address, because the page is served from its own.
    At(Url),
}

/// What the responses of the pages depend on.
struct Pages {
    api: ApiAddress,
    content_security_policy: HeaderValue,
}

/// The routes of the Connect UI. They need no key: the page is the same for all users and loads the session itself.
pub fn router<S: Clone + Send + Sync + 'static>(api: ApiAddress, ancestors: &FrameAncestors) -> Router<S> {
    let policy = content_security_policy(&api, ancestors);
    let content_security_policy = HeaderValue::from_str(&policy).expect("all parts are printable ASCII");
    // The page refers to its files by relative URLs, which need the slash at the end of its own URL.
    let with_slash = |query: axum::extract::RawQuery| async move {
        let query = query.0.map(|query| format!("?{query}")).unwrap_or_default();
        Redirect::temporary(&format!("connect/{query}"))
    };
    Router::new()
        .route("/connect", get(with_slash))
        .route("/connect/", get(page))
        .route("/connect/connect.js", get(opener))
        .route("/connect/assets/{*path}", get(asset))
        .with_state(Arc::new(Pages { api, content_security_policy }))
}

async fn page(State(pages): State<Arc<Pages>>, headers: HeaderMap) -> Response<Body> {
    let file = Files::get(PAGE).map(|file| file.data).unwrap_or_default();
    let api = match &pages.api {
        ApiAddress::BesideThePage => "../",
        ApiAddress::At(url) => url.as_str(),
    };
    let html = String::from_utf8_lossy(&file).replace(API_PLACEHOLDER, &escaped(api));
    let hash = Sha256::digest(html.as_bytes());
    let mut response = answer(html.into_bytes(), &hash, "text/html; charset=utf-8", &headers);
    let security = response.headers_mut();
    security.insert(header::CONTENT_SECURITY_POLICY, pages.content_security_policy.clone());
    // The URL of the page can contain the session token.
    security.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    response
}

async fn opener(headers: HeaderMap) -> Response<Body> {
    file("connect.js", &headers)
}

async fn asset(Path(path): Path<String>, headers: HeaderMap) -> Response<Body> {
    file(&format!("assets/{path}"), &headers)
}

fn file(path: &str, headers: &HeaderMap) -> Response<Body> {
    let Some(file) = Files::get(path) else { return StatusCode::NOT_FOUND.into_response() };
    let content_type = match path.rsplit_once('.').map_or("", |(_, extension)| extension) {
        "js" => "text/javascript; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "json" => "application/json",
        "svg" => "image/svg+xml",
        _ => "application/octet-stream",
    };
    answer(file.data.into_owned(), &file.metadata.sha256_hash(), content_type, headers)
}

/// Allows only the page's own files and the API, and no conversion of text to code or markup.
fn content_security_policy(api: &ApiAddress, ancestors: &FrameAncestors) -> String {
    let mut policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'".to_owned();
    let mut connect = " 'self'".to_owned();
    if let ApiAddress::At(url) = api {
        let origin = url.origin().ascii_serialization();
        let socket = origin.replacen("http", "ws", 1);
        let _infallible = write!(policy, " {origin}");
        let _infallible = write!(connect, " {origin} {socket}");
    }
    policy
        + "; connect-src"
        + &connect
        + "; base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; frame-ancestors "
        + &ancestors.0
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn frame_ancestors_cannot_add_another_directive() {
        for text in ["*", "'none'", "https://a.example", " https://a.example  https://b.example:8443 "] {
            assert!(text.parse::<FrameAncestors>().is_ok(), "{text}");
        }
        for text in ["", "  ", "*; script-src *", "https://a.example, https://b.example", "\n", "é"] {
            assert!(text.parse::<FrameAncestors>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_separate_api_address_is_in_the_content_security_policy() {
        let api = ApiAddress::At("https://api.example.com/sync".parse().unwrap());
        let policy = content_security_policy(&api, &"'none'".parse().unwrap());
        assert!(
            policy.contains("connect-src 'self' https://api.example.com wss://api.example.com;"),
            "{policy}"
        );
        assert!(policy.contains("img-src 'self' https://api.example.com;"), "{policy}");
        assert!(policy.ends_with("frame-ancestors 'none'"), "{policy}");
    }

    /// The placeholders of a text, such as `{name}`.
    fn placeholders(text: &str) -> BTreeSet<String> {
        let pattern = regex::Regex::new(r"\{\w+\}").unwrap();
        pattern.find_iter(text).map(|found| found.as_str().to_owned()).collect()
    }

    fn messages(path: &str) -> serde_json::Map<String, serde_json::Value> {
        serde_json::from_slice(&Files::get(path).unwrap().data)
            .unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    /// A missing text would appear in English.
    #[test]
    fn every_translation_has_the_same_keys_and_placeholders() {
        let english = messages("assets/locales/en.json");
        let others = Files::iter().filter(|path| path.starts_with("assets/locales/"));
        for path in others {
            let translation = messages(&path);
            let keys = |of: &serde_json::Map<String, _>| of.keys().cloned().collect::<BTreeSet<_>>();
            assert_eq!(keys(&english), keys(&translation), "{path}");
            for (key, text) in &translation {
                let (text, original) = (text.as_str().unwrap(), english[key].as_str().unwrap());
                assert!(!text.is_empty(), "{path}: {key}");
                assert_eq!(placeholders(original), placeholders(text), "{path}: {key}");
            }
        }
    }
}
