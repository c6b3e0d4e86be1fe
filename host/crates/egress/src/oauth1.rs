//! Signs requests with OAuth 1 (RFC 5849). The signature covers the method, the final URL, its query and a form.

use std::fmt::Display;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, Method};
use oauth1_request::request::AssertSorted;
use oauth1_request::signature_method::{Sign, SignatureMethod as Signing};
use oauth1_request::{Builder, Credentials as Pair};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use ring::hmac;
use serde_json::{Map, Value};
use url::{Url, form_urlencoded};

use syncline_providers::{AuthMode, SignatureMethod};
use syncline_types::secret::{Mask, Secret};

/// All characters except the unreserved characters of RFC 3986, as RFC 5849 section 3.6 requires.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// The keys of the app (consumer) and of the end user (token).
#[derive(Debug, Clone)]
pub struct OAuth1Keys {
    pub consumer_key: String,
    pub consumer_secret: Secret<String>,
    pub token: Secret<String>,
    pub token_secret: Secret<String>,
}

/// Returns the value of the `Authorization` header, with a new nonce. `form` is the body if it is a form.
pub(super) fn authorization(
    keys: &OAuth1Keys,
    signature: SignatureMethod,
    realm: Option<&str>,
    method: &Method,
    url: &Url,
    form: Option<&[u8]>,
) -> String {
    let signed = sign(keys, Recipe(signature), method, url, form);
    match (realm, signed.strip_prefix("OAuth ")) {
        (Some(realm), Some(parameters)) => {
            format!("OAuth realm=\"{}\",{parameters}", utf8_percent_encode(realm, ENCODED))
        }
        _ => signed,
    }
}

/// A request of the app itself, while it obtains the token of an end user.
#[derive(Debug, Clone, Copy)]
pub enum Handshake<'a> {
    /// Requests temporary credentials. The provider redirects the end user to `callback`.
    Temporary { callback: &'a str },
    /// Requests the token, with the temporary credentials and the verifier from the callback.
    Token { token: &'a str, token_secret: &'a Secret<String>, verifier: &'a str },
}

impl Handshake<'_> {
    /// Returns a mask for all secrets of the request.
    pub fn mask(self, consumer_secret: &Secret<String>) -> Mask {
        let mut mask = Mask::of([consumer_secret.expose().as_str()]);
        if let Self::Token { token, token_secret, verifier } = self {
            [token, token_secret.expose(), verifier].into_iter().for_each(|secret| mask.add(secret));
        }
        mask
    }

    /// Returns the value of the `Authorization` header for a POST request without a body.
    pub fn authorization(
        self,
        consumer_key: &str,
        consumer_secret: &Secret<String>,
        signature: SignatureMethod,
        url: &Url,
    ) -> String {
        let app = Pair::new(consumer_key, consumer_secret.expose().as_str());
        let mut builder = Builder::new(app, Recipe(signature));
        builder.version(true);
        match self {
            Self::Temporary { callback } => {
                builder.callback(callback);
            }
            Self::Token { token, token_secret, verifier } => {
                builder.token(Pair::new(token, token_secret.expose().as_str())).verifier(verifier);
            }
        }
        authorize(&builder, &Method::POST, url, None)
    }
}

/// Returns the realm of token-based authentication, which is the account. Host names spell a sandbox `1234-sb1`, and
/// the realm spells it `1234_SB1`.
pub(super) fn realm(mode: AuthMode, config: &Map<String, Value>) -> Option<String> {
    if mode != AuthMode::TokenBased {
        return None;
    }
    let account = config.get("accountId")?.as_str()?;
    Some(account.to_ascii_uppercase().replace('-', "_"))
}

/// Whether the body is a form. If so, the signature covers its fields.
pub(super) fn is_form(headers: &HeaderMap) -> bool {
    let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = content_type.split(';').next().unwrap_or_default().trim();
    essence.eq_ignore_ascii_case("application/x-www-form-urlencoded")
}

fn sign(keys: &OAuth1Keys, recipe: Recipe, method: &Method, url: &Url, form: Option<&[u8]>) -> String {
    let app = Pair::new(keys.consumer_key.as_str(), keys.consumer_secret.expose().as_str());
    let mut builder = Builder::new(app, recipe);
    builder.token(Pair::new(keys.token.expose().as_str(), keys.token_secret.expose().as_str()));
    builder.version(true);
    authorize(&builder, method, url, form)
}

fn authorize(
    builder: &Builder<'_, Recipe, &str, &str>,
    method: &Method,
    url: &Url,
    form: Option<&[u8]>,
) -> String {
    let of_form = form.into_iter().flat_map(form_urlencoded::parse);
    let mut parameters: Vec<(String, String, String)> = url
        .query_pairs()
        .chain(of_form)
        .map(|(name, value)| {
            // The library expects names as they appear in the signature base string, where they are encoded twice.
            let name = encode(&encode(&name));
            (name, encode(&value), value.into_owned())
        })
        .collect();
    // RFC 5849 section 3.4.1.3.2 requires the order of the encoded parameters.
    parameters.sort_unstable();
    let mut bare = url.clone();
    bare.set_query(None);
    bare.set_fragment(None);
    let parameters = parameters.iter().map(|(name, _, value)| (name, value));
    builder.authorize(method.as_str(), bare.as_str(), &AssertSorted::new(parameters))
}

fn encode(text: &str) -> String {
    utf8_percent_encode(text, ENCODED).to_string()
}

/// Creates signatures. The library has no HMAC-SHA256 and does not encode the secrets of PLAINTEXT.
#[derive(Clone, Copy)]
struct Recipe(SignatureMethod);

struct Signature {
    recipe: SignatureMethod,
    /// The consumer secret and the token secret.
    key: Secret<String>,
    /// The beginning of the signature base string that is known so far.
    text: String,
}

impl Signing for Recipe {
    type Sign = Signature;

    fn sign_with(self, client_secret: &str, token_secret: Option<&str>) -> Signature {
        let key = format!("{}&{}", encode(client_secret), encode(token_secret.unwrap_or_default()));
        Signature { recipe: self.0, key: key.into(), text: String::new() }
    }
}

impl Sign for Signature {
    type Signature = String;

    fn get_signature_method_name(&self) -> &'static str {
        match self.recipe {
            SignatureMethod::HmacSha1 => "HMAC-SHA1",
            SignatureMethod::HmacSha256 => "HMAC-SHA256",
            SignatureMethod::Plaintext => "PLAINTEXT",
        }
    }

    fn request_method(&mut self, method: &str) {
        self.text = format!("{method}&");
    }

    fn uri<T: Display>(&mut self, uri: T) {
        self.text.push_str(&format!("{uri}&"));
    }

    fn parameter<V: Display>(&mut self, key: &str, value: V) {
        self.text.push_str(&format!("{key}%3D{value}"));
    }

    fn delimiter(&mut self) {
        self.text.push_str("%26");
    }

    fn end(self) -> String {
        let key = self.key.expose();
        let hmac = |algorithm| {
            STANDARD.encode(hmac::sign(&hmac::Key::new(algorithm, key.as_bytes()), self.text.as_bytes()))
        };
        encode(&match self.recipe {
            SignatureMethod::HmacSha1 => hmac(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY),
            SignatureMethod::HmacSha256 => hmac(hmac::HMAC_SHA256),
            SignatureMethod::Plaintext => key.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys() -> OAuth1Keys {
        OAuth1Keys {
            consumer_key: "ck".to_owned(),
            consumer_secret: "cs&".into(),
            token: "tk".into(),
            token_secret: "ts".into(),
        }
    }

    fn fields(header: &str) -> Vec<(String, String)> {
        let fields = header.strip_prefix("OAuth ").unwrap().split(',');
        fields
            .map(|field| {
                let (name, value) = field.split_once('=').unwrap();
                let value = value.trim_matches('"');
                (
                    name.to_owned(),
                    percent_encoding::percent_decode_str(value).decode_utf8().unwrap().into_owned(),
                )
            })
            .collect()
    }

    fn field(header: &str, name: &str) -> Option<String> {
        fields(header).into_iter().find(|(other, _)| other == name).map(|(_, value)| value)
    }

    /// Computes the expected signature independently, from the text of the RFC.
    fn expected(header: &str, method: &str, uri: &str, parameters: &[(&str, &str)]) -> String {
        let mut all: Vec<(String, String)> =
            parameters.iter().map(|(name, value)| (encode(name), encode(value))).collect();
        let of_protocol =
            fields(header).into_iter().filter(|(name, _)| name != "realm" && name != "oauth_signature");
        all.extend(of_protocol.map(|(name, value)| (encode(&name), encode(&value))));
        all.sort();
        let normalised: Vec<String> = all.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let base = format!("{method}&{}&{}", encode(uri), encode(&normalised.join("&")));
        let algorithm = match field(header, "oauth_signature_method").as_deref() {
            Some("HMAC-SHA256") => hmac::HMAC_SHA256,
            _ => hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY,
        };
        STANDARD.encode(hmac::sign(&hmac::Key::new(algorithm, b"cs%26&ts"), base.as_bytes()))
    }

    #[test]
    fn method_url_query_and_form_are_signed() {
        let url =
            Url::parse("https://API.x.com:443/a%20b/c?z=1&page%5Bsize%5D=5&a=b+c&a=b%21&é=%C3%BC&page=2")
                .unwrap();
        for method in [SignatureMethod::HmacSha1, SignatureMethod::HmacSha256] {
            let form = Some(&b"q=x%26y&filter%5Ba%5D=1&oauth=1"[..]);
            let header = authorization(&keys(), method, Some("1_SB1"), &Method::POST, &url, form);
            let parameters = [
                ("z", "1"),
                ("page[size]", "5"),
                ("a", "b c"),
                ("a", "b!"),
                ("é", "ü"),
                ("page", "2"),
                ("q", "x&y"),
                ("filter[a]", "1"),
                ("oauth", "1"),
            ];
            let expected = expected(&header, "POST", "https://api.x.com/a%20b/c", &parameters);
            assert_eq!(field(&header, "oauth_signature"), Some(expected), "{header}");
            assert_eq!(field(&header, "realm").as_deref(), Some("1_SB1"));
            assert_eq!(field(&header, "oauth_token").as_deref(), Some("tk"));
        }
    }

    #[test]
    fn every_request_has_a_new_nonce() {
        let url = Url::parse("https://api.x.com/").unwrap();
        let nonce = || {
            let header = authorization(&keys(), SignatureMethod::HmacSha1, None, &Method::GET, &url, None);
            field(&header, "oauth_nonce").unwrap()
        };
        assert_ne!(nonce(), nonce());
    }

    #[test]
    fn a_plaintext_signature_is_both_secrets() {
        let url = Url::parse("https://api.x.com/").unwrap();
        let header = authorization(&keys(), SignatureMethod::Plaintext, None, &Method::GET, &url, None);
        assert_eq!(field(&header, "oauth_signature").as_deref(), Some("cs%26&ts"));
    }

    #[test]
    fn the_realm_is_the_account_in_the_providers_spelling() {
        let config = |account: &str| {
            let Value::Object(config) = serde_json::json!({ "accountId": account }) else {
                panic!("no object")
            };
            config
        };
        assert_eq!(realm(AuthMode::TokenBased, &config("1234-sb1")).as_deref(), Some("1234_SB1"));
        assert_eq!(realm(AuthMode::OAuth1, &config("1234")), None);
    }

    #[test]
    fn only_the_body_of_a_form_is_signed() {
        let of = |content_type: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_TYPE, http::HeaderValue::from_static(content_type));
            is_form(&headers)
        };
        assert!(of("application/x-www-form-urlencoded; charset=utf-8"));
        assert!(!of("application/json"));
        assert!(!is_form(&HeaderMap::new()));
    }
}
