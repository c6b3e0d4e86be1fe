//! The page at the end of an authorization: shows the outcome, reports it to the window that opened it, and closes.

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::super::error::ApiError;
use syncline_crypto::random_bytes;

const SCRIPT: &str = include_str!("page.js");
const STYLE: &str = include_str!("page.css");

/// The page for a connected account.
pub(super) fn success_page() -> Response {
    render(StatusCode::OK, "Connected", "Your account is connected. You can close this window.", None)
}

/// The page for a failed authorization, with the reason.
pub(super) fn failure_page(error: ApiError) -> Response {
    let (status, code, message) = error.into_client_error();
    render(status, "Not connected", &message, Some(code.as_str()))
}

/// The texts are not trusted: maud escapes them, and the script reads them as data.
fn render(status: StatusCode, title: &str, message: &str, code: Option<&str>) -> Response {
    let nonce = STANDARD.encode(random_bytes::<16>());
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'"
    );
    let headers = [
        (header::CONTENT_SECURITY_POLICY, policy.as_str()),
        (header::CACHE_CONTROL, "no-store"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
    ];
    let headers = headers.map(|(name, value)| (name, value.to_owned()));
    (status, headers, markup(&nonce, title, message, code).into_string()).into_response()
}

fn markup(nonce: &str, title: &str, message: &str, code: Option<&str>) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="robots" content="noindex";
                title { (title) }
                style nonce=(nonce) { (PreEscaped(STYLE)) }
            }
            body data-code=[code] data-message=(message) {
                main {
                    h1 { (title) }
                    p role=(if code.is_some() { "alert" } else { "status" }) { (message) }
                    @if code.is_some() {
                        p { "Close this window and try again." }
                    }
                    button type="button" id="close" hidden { "Close this window" }
                }
                script nonce=(nonce) { (PreEscaped(SCRIPT)) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_of_the_provider_is_escaped() {
        let said = r#"</p><script>alert(1)</script>" onload="x"#;
        let page = markup("n", "Not connected", said, Some("callback_err")).into_string();
        assert!(!page.contains("<script>alert") && !page.contains(r#"" onload="#), "{page}");
        assert_eq!(page.matches("<script").count(), 1);
    }
}
