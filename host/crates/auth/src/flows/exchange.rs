//! Obtains tokens with the fields that an end user entered, as the provider file describes: by exchanging the fields
//! (TWO_STEP, BILL), by signing a JWT (JWT), or both.

use std::borrow::Cow;
use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use chrono::{DateTime, TimeDelta, Utc};
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderValue, Method, Request};
use serde_json::{Map, Value};
use url::{Url, form_urlencoded};

use super::{Flow, FlowError, MAX_RESPONSE_BYTES, TIMEOUT, TokenResponse};
use crate::{ExchangedToken, sign_jwt};
use syncline_providers::{BodyFormat, JwtRecipe, KeyEncoding, Provider, Template, TokenRequest, Variable};
use syncline_types::secret::{Mask, Secret};

/// The fields that an end user entered, by their names in the provider file.
pub type TypedFields = BTreeMap<String, Secret<String>>;

/// The values that templates of a token request can use.
#[derive(Debug, Clone, Copy)]
pub struct TokenRequestValues<'a> {
    pub connection_config: &'a Map<String, Value>,
    pub fields: &'a TypedFields,
    /// The signed JWT, if the provider file defines one.
    pub jwt: Option<&'a Secret<String>>,
    /// The current token, when it is renewed.
    pub token: Option<&'a Secret<String>>,
    pub refresh_token: Option<&'a Secret<String>>,
}

impl TokenRequestValues<'_> {
    /// Returns a mask for all secrets that the request may contain.
    fn mask(&self) -> Mask {
        let secrets = self.fields.values().chain(self.jwt).chain(self.token).chain(self.refresh_token);
        Mask::of(secrets.map(|secret| secret.expose().as_str()))
    }
}

impl Flow<'_> {
    /// Obtains a token with the fields that an end user entered.
    pub async fn exchange(&self, fields: TypedFields) -> Result<ExchangedToken, FlowError> {
        let now = self.gateway.clock().now();
        let provider = self.provider;
        let values = TokenRequestValues {
            connection_config: self.connection_config,
            fields: &fields,
            jwt: None,
            token: None,
            refresh_token: None,
        };
        let jwt =
            provider.jwt.as_ref().map(|recipe| sign_token(provider, recipe, &values, now)).transpose()?;
        match (&provider.token_request, &provider.jwt, jwt) {
            (Some(request), _, jwt) => {
                let obtained =
                    self.request_token(request, &TokenRequestValues { jwt: jwt.as_ref(), ..values }).await?;
                Ok(exchanged(fields, obtained))
            }
            (None, Some(recipe), Some(jwt)) => Ok(ExchangedToken {
                fields,
                token: Some(jwt),
                refresh_token: None,
                expires_at: Some(now + TimeDelta::seconds(recipe.expires_in.into())),
                raw: "{}".into(),
            }),
            _ => Err(FlowError::IncompleteProvider("token_request")),
        }
    }

    /// Renews a token, with the refresh token if there is one, or else with the fields that were entered.
    pub(super) async fn renew_exchanged(&self, old: &ExchangedToken) -> Result<ExchangedToken, FlowError> {
        if let (Some(request), Some(refresh_token)) = (&self.provider.refresh_request, &old.refresh_token) {
            let values = TokenRequestValues {
                connection_config: self.connection_config,
                fields: &old.fields,
                jwt: None,
                token: old.token.as_ref(),
                refresh_token: Some(refresh_token),
            };
            match self.request_token(request, &values).await {
                Ok(mut obtained) => {
                    obtained.refresh_token = obtained.refresh_token.or_else(|| old.refresh_token.clone());
                    return Ok(exchanged(old.fields.clone(), obtained));
                }
                Err(error) if error.is_temporary() => return Err(error),
                // The refresh token is no longer valid. The entered fields may still be.
                Err(_) => {}
            }
        }
        self.exchange(old.fields.clone()).await
    }

    async fn request_token(
        &self,
        request: &TokenRequest,
        values: &TokenRequestValues<'_>,
    ) -> Result<TokenResponse, FlowError> {
        let request = token_request(self.provider, request, values)?;
        let answer = self.gateway.send_own(request, TIMEOUT, MAX_RESPONSE_BYTES).await?;
        TokenResponse::read(
            self.provider,
            answer.status,
            &answer.body,
            &values.mask(),
            self.gateway.clock().now(),
        )
    }
}

/// Builds the request that obtains a token.
pub fn token_request(
    provider: &Provider,
    request: &TokenRequest,
    values: &TokenRequestValues<'_>,
) -> Result<Request<Bytes>, FlowError> {
    let template = request.url.as_ref().or(provider.token_url.as_ref());
    let template = template.ok_or(FlowError::IncompleteProvider("token_url"))?;
    let mut url = provider.render_url(template, values.connection_config)?;
    let mut params: BTreeMap<String, String> =
        provider.render_params(&provider.token_params, values.connection_config)?.into_iter().collect();
    for (name, template) in &request.body {
        if let Some(value) = render(provider, template, values)? {
            params.insert(name.clone(), value);
        }
    }
    let (content_type, body) = match request.format {
        BodyFormat::Form => (Some("application/x-www-form-urlencoded"), form(&params)),
        BodyFormat::Json => (Some("application/json"), nested(&params).to_string()),
        BodyFormat::Query => {
            url.query_pairs_mut().extend_pairs(&params);
            (None, String::new())
        }
    };
    let mut built = Request::new(Bytes::from(body));
    *built.method_mut() = Method::POST;
    *built.uri_mut() = uri(&url)?;
    let headers = built.headers_mut();
    headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
    if let Some(content_type) = content_type {
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    }
    for (key, template) in &request.headers {
        if let Some(value) = render(provider, template, values)? {
            let mut value = HeaderValue::from_str(&value)
                .map_err(|_| FlowError::Unsendable { header: key.name().to_string() })?;
            value.set_sensitive(template.has_credentials());
            headers.insert(key.name().clone(), value);
        }
    }
    Ok(built)
}

/// Signs the JWT that the provider file defines.
pub(super) fn sign_token(
    provider: &Provider,
    recipe: &JwtRecipe,
    values: &TokenRequestValues<'_>,
    now: DateTime<Utc>,
) -> Result<Secret<String>, FlowError> {
    let members = |templates: &BTreeMap<String, Template>| {
        let mut members = Map::new();
        for (name, template) in templates {
            if let Some(value) = render(provider, template, values)? {
                members.insert(name.clone(), value.into());
            }
        }
        Ok::<_, FlowError>(members)
    };
    let mut claims = members(&recipe.claims)?;
    claims.insert("iat".to_owned(), now.timestamp().into());
    claims.insert("exp".to_owned(), (now.timestamp() + i64::from(recipe.expires_in)).into());
    let key = render(provider, &recipe.key, values)?;
    let key = Secret::new(key.ok_or_else(|| FlowError::MissingCredential("key".to_owned()))?);
    let key = decode_key(recipe.key_encoding, key.expose())?;
    Ok(sign_jwt(recipe.algorithm, &key, &members(&recipe.header)?, &claims)?)
}

fn decode_key(encoding: KeyEncoding, key: &str) -> Result<Secret<Vec<u8>>, FlowError> {
    let bytes = match encoding {
        // A key that was copied from a JSON file contains `\n` instead of line breaks.
        KeyEncoding::Text => Some(key.replace("\\n", "\n").into_bytes()),
        KeyEncoding::Hex => from_hex(key),
        KeyEncoding::Base64 => STANDARD.decode(key).ok(),
    };
    let name = match encoding {
        KeyEncoding::Text => "text",
        KeyEncoding::Hex => "hexadecimal digits",
        KeyEncoding::Base64 => "Base64",
    };
    bytes.map(Secret::new).ok_or(FlowError::KeyEncoding(name))
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits: Vec<u32> = text.chars().map(|digit| digit.to_digit(16)).collect::<Option<_>>()?;
    let bytes = digits.chunks(2).map(|pair| match pair {
        [high, low] => u8::try_from(high * 16 + low).ok(),
        _ => None,
    });
    bytes.collect()
}

/// Renders a template. Returns `None` if it refers to an optional value that is not set.
fn render(
    provider: &Provider,
    template: &Template,
    values: &TokenRequestValues<'_>,
) -> Result<Option<String>, FlowError> {
    enum Missing {
        Optional,
        Other(FlowError),
    }
    let secret = |secret: Option<&Secret<String>>, variable: &Variable| match secret {
        Some(value) => Ok(Cow::Owned(value.expose().clone())),
        None => Err(Missing::Other(FlowError::MissingCredential(variable.to_string()))),
    };
    let rendered = template.render(|variable| match variable {
        Variable::ConnectionConfig(name) => match provider.answer(values.connection_config, name) {
            Ok(Some(answer)) => Ok(Cow::Owned(answer.into_owned())),
            Ok(None) => Err(Missing::Optional),
            Err(unusable) => Err(Missing::Other(unusable.into())),
        },
        Variable::Credential(name) => match values.fields.get(name) {
            None if provider.credentials.get(name).is_some_and(|question| question.optional) => {
                Err(Missing::Optional)
            }
            given => secret(given, variable),
        },
        Variable::Jwt => secret(values.jwt, variable),
        Variable::AccessToken => secret(values.token, variable),
        Variable::RefreshToken => secret(values.refresh_token, variable),
        Variable::ApiKey
        | Variable::Username
        | Variable::Password
        | Variable::ClientId
        | Variable::ClientSecret => secret(None, variable),
    });
    match rendered {
        Ok(text) => Ok(Some(text)),
        Err(Missing::Optional) => Ok(None),
        Err(Missing::Other(error)) => Err(error),
    }
}

fn exchanged(fields: TypedFields, obtained: TokenResponse) -> ExchangedToken {
    ExchangedToken {
        fields,
        token: Some(obtained.access_token),
        refresh_token: obtained.refresh_token,
        expires_at: obtained.expires_at,
        raw: obtained.raw,
    }
}

fn form(params: &BTreeMap<String, String>) -> String {
    form_urlencoded::Serializer::new(String::new()).extend_pairs(params).finish()
}

fn nested(params: &BTreeMap<String, String>) -> Value {
    let mut members = Map::new();
    for (name, value) in params {
        put(&mut members, name, value);
    }
    Value::Object(members)
}

/// Inserts a value. A dot in the name creates a nested object.
fn put(members: &mut Map<String, Value>, name: &str, value: &str) {
    match name.split_once('.') {
        Some((outer, inner)) => {
            let entry = members.entry(outer).or_insert_with(|| Value::Object(Map::new()));
            if let Value::Object(members) = entry {
                put(members, inner, value);
            }
        }
        None => drop(members.insert(name.to_owned(), value.into())),
    }
}

fn uri(url: &Url) -> Result<http::Uri, FlowError> {
    url.as_str().parse().map_err(|_| FlowError::IncompleteProvider("token_url"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn provider(more: &str) -> Provider {
        toml::from_str(&format!(
            r#"
            name = "acme"
            display_name = "Acme"
            auth_mode = "TWO_STEP"
            docs = "https://acme.example"
            token_url = "https://${{connectionConfig.shop}}.acme.example/token"
            token_params = {{ audience = "api" }}
            {more}
            [source]
            address = "https://acme.example"
            checked_at = "2026-11-21"
            [connection_config.shop]
            title = "Shop"
            description = "The name of your shop."
            pattern = '[a-z]+'
            [credentials.user]
            title = "User"
            description = "Who you are."
            [credentials.pin]
            title = "Pin"
            description = "Another proof."
            optional = true
            "#
        ))
        .unwrap()
    }

    fn built(more: &str, fields: &[(&str, &str)]) -> Result<Request<Bytes>, FlowError> {
        let provider = provider(more);
        let fields = fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).into())).collect();
        let config = json!({ "shop": "tea" });
        let values = TokenRequestValues {
            connection_config: config.as_object().unwrap(),
            fields: &fields,
            jwt: None,
            token: None,
            refresh_token: None,
        };
        token_request(&provider, provider.token_request.as_ref().unwrap(), &values)
    }

    const BODY: &str =
        r#"body = { "login.user" = "${credentials.user}", "login.pin" = "${credentials.pin}", kind = "x" }"#;

    #[test]
    fn fields_are_encoded_in_the_format_of_the_provider_file() {
        let request = |format: &str| {
            let more = format!("token_request = {{ format = \"{format}\", {BODY} }}");
            built(&more, &[("user", "a&b"), ("pin", "1")]).unwrap()
        };
        let form = request("form");
        assert_eq!(
            (form.method().as_str(), form.uri().to_string().as_str()),
            ("POST", "https://tea.acme.example/token")
        );
        assert_eq!(form.headers()[CONTENT_TYPE], "application/x-www-form-urlencoded");
        assert_eq!(form.body(), "audience=api&kind=x&login.pin=1&login.user=a%26b");

        let json = request("json");
        let body: Value = serde_json::from_slice(json.body()).unwrap();
        assert_eq!(body, json!({ "audience": "api", "kind": "x", "login": { "user": "a&b", "pin": "1" } }));

        let query = request("query");
        assert!(query.body().is_empty() && !query.headers().contains_key(CONTENT_TYPE));
        assert_eq!(query.uri().query(), Some("audience=api&kind=x&login.pin=1&login.user=a%26b"));
    }

    #[test]
    fn only_optional_fields_can_be_omitted() {
        let more = format!("token_request = {{ format = \"json\", {BODY} }}");
        let body: Value = serde_json::from_slice(built(&more, &[("user", "a")]).unwrap().body()).unwrap();
        assert_eq!(body["login"], json!({ "user": "a" }));
        let missing = built(&more, &[("pin", "1")]).unwrap_err();
        assert_eq!(missing, FlowError::MissingCredential("credentials.user".to_owned()));
    }

    #[test]
    fn an_invalid_header_is_reported_without_its_value() {
        let more = r#"token_request = { headers = { "x-user" = "${credentials.user}" } }"#;
        let error = built(more, &[("user", "s3cret\n")]).unwrap_err();
        assert_eq!(error, FlowError::Unsendable { header: "x-user".to_owned() });
        assert!(built(more, &[("user", "u")]).unwrap().headers()["x-user"].is_sensitive());
    }

    #[test]
    fn keys_are_decoded_with_the_encoding_of_the_provider_file() {
        let read = |encoding, text: &str| decode_key(encoding, text).map(|key| key.expose().clone());
        assert_eq!(read(KeyEncoding::Hex, "00fFa1"), Ok(vec![0, 255, 161]));
        assert_eq!(read(KeyEncoding::Base64, "AP8="), Ok(vec![0, 255]));
        assert_eq!(read(KeyEncoding::Text, "a\\nb"), Ok(b"a\nb".to_vec()));
        for text in ["0", "0g", "é"] {
            assert_eq!(
                read(KeyEncoding::Hex, text),
                Err(FlowError::KeyEncoding("hexadecimal digits")),
                "{text}"
            );
        }
        assert!(read(KeyEncoding::Base64, "*").is_err());
    }
}
