//! The signed-in person of a request, and the cookie of the session.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::Arc;

use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, header};
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use super::Dashboard;
use super::error::PageError;
use syncline_auth::{Environment, NewSession, Scope, SignedIn};
use syncline_types::actor::Actor;
use syncline_web::request_source::RequestSource;

const SESSION_COOKIE: &str = "syncline_session";
/// A short message for the next page, such as "The key was revoked".
const NOTICE_COOKIE: &str = "syncline_notice";
/// The script sends this header, because it handles errors and redirects itself.
const SCRIPT_HEADER: &str = "x-dashboard-script";

/// The token of the request's session, which every submitted form must contain. The extractor of [`Visitor`] stores it
/// with the request.
#[derive(Clone)]
pub(crate) struct FormToken(pub(crate) String);

/// A signed-in person who requests a page.
pub(crate) struct Visitor {
    pub(crate) person: SignedIn,
    pub(crate) notice: Option<String>,
    pub(crate) from_script: bool,
    pub(crate) environments: Vec<Arc<Environment>>,
    source: RequestSource,
}

impl FromRequestParts<Dashboard> for Visitor {
    type Rejection = PageError;

    async fn from_request_parts(parts: &mut Parts, app: &Dashboard) -> Result<Self, PageError> {
        let token = cookie(&parts.headers, SESSION_COOKIE).ok_or(PageError::SignInRequired)?;
        let person = app.accounts.find_session(token).await?.ok_or(PageError::SignInRequired)?;
        parts.extensions.insert(FormToken(person.form_token().to_owned()));
        let notice = cookie(&parts.headers, NOTICE_COOKIE);
        Ok(Self {
            person,
            notice: notice.map(|text| percent_decode_str(text).decode_utf8_lossy().into_owned()),
            from_script: is_from_script(&parts.headers),
            environments: app.environments.list(),
            source: RequestSource::of(parts),
        })
    }
}

impl Visitor {
    pub(crate) fn allows(&self, scope: Scope) -> bool {
        self.person.allows(scope)
    }

    /// The author of changes that this request makes.
    pub(crate) fn actor(&self) -> Actor {
        self.source.actor(self.person.identity())
    }

    pub(crate) fn require(&self, scope: Scope) -> Result<(), PageError> {
        Ok(self.person.require(scope)?)
    }
}

/// A signed-in person who requests a page about an environment.
pub(crate) struct Visit {
    pub(crate) visitor: Visitor,
    pub(crate) environment: Arc<Environment>,
}

impl Deref for Visit {
    type Target = Visitor;

    fn deref(&self) -> &Visitor {
        &self.visitor
    }
}

impl FromRequestParts<Dashboard> for Visit {
    type Rejection = PageError;

    async fn from_request_parts(parts: &mut Parts, app: &Dashboard) -> Result<Self, PageError> {
        let visitor = Visitor::from_request_parts(parts, app).await?;
        let Path(path) = Path::<HashMap<String, String>>::from_request_parts(parts, app)
            .await
            .map_err(|_| PageError::NotFound("the address of this page is malformed".to_owned()))?;
        let name = path.get("environment").map(String::as_str).unwrap_or_default();
        let environment = app.environments.find_by_name(name).ok_or_else(|| {
            PageError::NotFound(format!("there is no environment `{name}`; it may have been deleted"))
        })?;
        Ok(Self { visitor, environment })
    }
}

impl Visit {
    /// The address of a page of this environment: `url("runs")`.
    pub(crate) fn url(&self, rest: &str) -> String {
        format!("/dashboard/environments/{}/{rest}", self.environment.name)
    }
}

/// Escapes one segment of a path.
pub(crate) fn segment(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

/// Returns the value of a cookie.
pub(crate) fn cookie<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    let all = headers.get_all(header::COOKIE).into_iter().filter_map(|value| value.to_str().ok());
    let mut pairs = all.flat_map(|value| value.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(key, _)| *key == name).map(|(_, value)| value)
}

pub(crate) fn session_token(headers: &HeaderMap) -> Option<&str> {
    cookie(headers, SESSION_COOKIE)
}

/// The cookie that starts a session. Scripts cannot read it, and browsers do not send it with requests of other sites,
/// except when a person follows a link.
pub(crate) fn session_cookie(app: &Dashboard, session: &NewSession) -> HeaderValue {
    set_cookie(app, SESSION_COOKIE, session.expose(), "")
}

/// Removes the cookie of the session.
pub(crate) fn ended_session_cookie(app: &Dashboard) -> HeaderValue {
    set_cookie(app, SESSION_COOKIE, "", "; Max-Age=0")
}

/// The cookie that shows `notice` on the next page.
pub(crate) fn notice_cookie(app: &Dashboard, notice: &str) -> HeaderValue {
    let text = utf8_percent_encode(notice, NON_ALPHANUMERIC).to_string();
    set_cookie(app, NOTICE_COOKIE, &text, "; Max-Age=60")
}

/// Removes the notice after it was shown.
pub(crate) fn shown_notice_cookie(app: &Dashboard) -> HeaderValue {
    set_cookie(app, NOTICE_COOKIE, "", "; Max-Age=0")
}

fn set_cookie(app: &Dashboard, name: &str, value: &str, more: &str) -> HeaderValue {
    let secure = if app.public_url.starts_with("https:") { "; Secure" } else { "" };
    let text = format!("{name}={value}; Path=/dashboard; HttpOnly; SameSite=Lax{secure}{more}");
    HeaderValue::from_str(&text).expect("cookies consist of printable ASCII")
}

pub(crate) fn is_from_script(headers: &HeaderMap) -> bool {
    headers.contains_key(SCRIPT_HEADER)
}
