//! Tests every provider of the catalogue with its own example values: the URL to which end users are redirected, the
//! requests to its token endpoint, and the credentials in a request to its API.

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::HeaderMap;
use percent_encoding::percent_decode_str;
use serde_json::{Map, Value, json};
use url::Url;

use super::exchange::sign_token;
use super::{
    AuthorizationRequest, Flow, TokenRequestValues, TypedFields, authorization_url, oauth2, token_request,
};
use crate::{AppCredentials, StoredCredentials};
use syncline_egress::{EgressGateway, EgressSettings, FixedCredentials, Request, Route, UsualBase};
use syncline_providers::{
    AuthMode, Catalogue, JwtAlgorithm, Provider, Question, QuestionFormat, Template, UrlTemplate, Variable,
};
use syncline_telemetry::clock::Clock;
use syncline_test_server::Server;

const RSA_KEY: &str = include_str!("../../../../../tests/keys/rsa_pkcs8.pem");
const EC_KEY: &str = include_str!("../../../../../tests/keys/ec.pem");
const TOKEN: &str = "sample-token";

/// A provider with sample values for its fields.
struct Sample {
    provider: Arc<Provider>,
    config: Map<String, Value>,
    fields: TypedFields,
}

fn samples() -> Vec<Sample> {
    let sample = |provider: &Arc<Provider>| {
        let config = answers(provider, &provider.connection_config);
        let fields = answers(provider, &provider.credentials);
        Sample {
            provider: Arc::clone(provider),
            config: config.into_iter().map(|(name, answer)| (name, answer.into())).collect(),
            fields: fields.into_iter().map(|(name, answer)| (name, answer.into())).collect(),
        }
    };
    Catalogue::load(None).unwrap().list().iter().map(sample).collect()
}

fn answers(provider: &Provider, questions: &BTreeMap<String, Question>) -> BTreeMap<String, String> {
    let values = questions.iter().filter_map(|(name, question)| {
        let value = signing_key(provider, name)
            .or_else(|| question.example.clone())
            .or_else(|| question.default_value.clone())
            .or_else(|| question.choices.first().cloned());
        let value = value.or_else(|| match question.format {
            _ if question.optional => None,
            Some(QuestionFormat::Email) => Some("ada@example.com".to_owned()),
            Some(QuestionFormat::Uuid) => Some("57246542-96fe-1a63-e053-0824d011072a".to_owned()),
            Some(QuestionFormat::Hostname) => Some("host.example.com".to_owned()),
            Some(QuestionFormat::Uri) => Some("https://host.example.com".to_owned()),
            None => Some(format!("sample-{}", name.replace('_', "-"))),
        });
        let value = value?;
        let fits = question.pattern.as_ref().is_none_or(|pattern| pattern.matches(&value));
        assert!(fits, "{}: `{name}` needs an example that matches its pattern", provider.name);
        Some((name.clone(), value))
    });
    values.collect()
}

/// Returns a valid signing key if the field expects one.
fn signing_key(provider: &Provider, name: &str) -> Option<String> {
    let recipe = provider.jwt.as_ref()?;
    let is_key = recipe.key.variables().any(|variable| *variable == Variable::Credential(name.to_owned()));
    match recipe.algorithm {
        JwtAlgorithm::Rs256 if is_key => Some(RSA_KEY.to_owned()),
        JwtAlgorithm::Es256 if is_key => Some(EC_KEY.to_owned()),
        _ => None,
    }
}

fn app() -> AppCredentials {
    let app = json!({ "kind": "oauth", "client_id": "sample-client", "client_secret": "sample-secret" });
    serde_json::from_value(app).unwrap()
}

fn assert_safe(sample: &Sample, template: &UrlTemplate, url: &Url) {
    let name = &sample.provider.name;
    assert_eq!(url.scheme(), "https", "{name}: {url}");
    assert!(url.host_str().is_some_and(|host| host.contains('.')), "{name}: {url}");
    let choices = |name: &str| {
        sample.provider.connection_config.get(name).map_or(&[][..], |question| question.choices.as_slice())
    };
    assert!(template.has_fixed_domain(choices), "{name}: {}", String::from(template.clone()));
}

#[test]
fn every_provider_has_a_valid_authorization_url() {
    let mut checked = 0;
    for sample in samples() {
        let provider = &*sample.provider;
        let Some(template) = &provider.authorization_url else { continue };
        if !matches!(provider.auth_mode, AuthMode::OAuth2 | AuthMode::Custom | AuthMode::McpOAuth2) {
            assert_safe(&sample, template, &provider.render_url(template, &sample.config).unwrap());
            continue;
        }
        let verifier = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk".into();
        let request = AuthorizationRequest {
            client_id: "sample-client",
            redirect_uri: "https://syncline.example/oauth/callback",
            state: &"sample-state".into(),
            scopes: &provider.default_scopes,
            pkce_verifier: (!provider.disable_pkce).then_some(&verifier),
            params: &[],
        };
        let url = authorization_url(provider, &sample.config, &request);
        let url = url.unwrap_or_else(|error| panic!("{}: {error}", provider.name));
        assert_safe(&sample, template, &url);
        let params: BTreeMap<_, _> = url.query_pairs().collect();
        let client_id = provider.client_id_param.as_deref().unwrap_or("client_id");
        for (name, value) in [
            (client_id, "sample-client"),
            ("state", "sample-state"),
            ("redirect_uri", "https://syncline.example/oauth/callback"),
        ] {
            assert_eq!(params.get(name).map(AsRef::as_ref), Some(value), "{}: {url}", provider.name);
        }
        assert_eq!(params.contains_key("code_challenge"), !provider.disable_pkce, "{}", provider.name);
        checked += 1;
    }
    assert!(checked > 80, "{checked}");
}

#[test]
fn every_token_request_contains_the_clients_credentials() {
    let gateway = EgressGateway::new(EgressSettings::default(), Clock::system()).unwrap();
    let app = app();
    for sample in samples() {
        let provider = &*sample.provider;
        let name = &provider.name;
        let values = TokenRequestValues {
            connection_config: &sample.config,
            fields: &sample.fields,
            jwt: None,
            token: None,
            refresh_token: None,
        };
        let jwt = provider.jwt.as_ref().map(|recipe| {
            sign_token(provider, recipe, &values, chrono::Utc::now())
                .unwrap_or_else(|error| panic!("{name}: {error}"))
        });
        let (request, proofs) = match provider.auth_mode {
            AuthMode::OAuth2 | AuthMode::Custom | AuthMode::McpOAuth2 => {
                let flow = Flow::new(&gateway, provider, &sample.config, Some(&app));
                (oauth2::tests::token_request(&flow, false), vec!["sample-code".to_owned()])
            }
            AuthMode::OAuth2ClientCredentials => {
                let flow = Flow::new(&gateway, provider, &sample.config, Some(&app));
                (oauth2::tests::token_request(&flow, true), vec!["client_credentials".to_owned()])
            }
            _ => {
                let Some(request) = &provider.token_request else { continue };
                let values = TokenRequestValues { jwt: jwt.as_ref(), ..values };
                let built = token_request(provider, request, &values)
                    .unwrap_or_else(|error| panic!("{name}: {error}"));
                let variables =
                    request.body.values().chain(request.headers.values()).flat_map(Template::variables);
                let proofs = variables.filter_map(|variable| match variable {
                    Variable::Credential(field) => {
                        sample.fields.get(field).map(|value| value.expose().clone())
                    }
                    Variable::Jwt => jwt.as_ref().map(|jwt| jwt.expose().clone()),
                    _ => None,
                });
                (built, proofs.collect())
            }
        };
        let url = Url::parse(&request.uri().to_string()).unwrap();
        let own = provider.token_request.as_ref().and_then(|request| request.url.as_ref());
        assert_safe(&sample, own.or(provider.token_url.as_ref()).unwrap(), &url);
        let sent = readable(request.headers(), &url, request.body());
        assert!(!proofs.is_empty(), "{name} sends no proof");
        for proof in proofs {
            assert!(sent.contains(&proof), "{name} does not send `{proof}`: {sent}");
        }
    }
}

#[tokio::test]
async fn every_api_request_carries_the_credentials() {
    let server = Server::start().await;
    let allow = vec![server.address.to_string().parse().unwrap()];
    let gateway =
        EgressGateway::new(EgressSettings { allow, ..EgressSettings::default() }, Clock::system()).unwrap();
    let app = app();
    for sample in samples() {
        let provider = &*sample.provider;
        let name = &provider.name;
        provider.check_config(&sample.config).unwrap_or_else(|error| panic!("{name}: {error}"));
        if let Some(template) = &provider.proxy.base_url {
            assert_safe(&sample, template, &provider.render_url(template, &sample.config).unwrap());
        }
        let stored = stored(&sample);
        let credentials = stored.for_requests(app.oauth()).unwrap_or_else(|error| panic!("{name}: {error}"));
        let fixed = FixedCredentials::new(credentials);
        let route = Route {
            provider: Arc::clone(&sample.provider),
            base_url: Some(server.url()),
            connection_config: sample.config.clone(),
            usual_base: UsualBase::default(),
            allow_hosts: Vec::new(),
            credentials: Arc::new(fixed),
            max_response_bytes: None,
            rate_limiter: Arc::new(()),
        };
        let verification = provider.proxy.verification.as_ref();
        let path = verification.map(|request| provider.render(&request.endpoint, &sample.config).unwrap());
        let url = path.unwrap_or_else(|| "/".to_owned());
        gateway
            .send(&route, Request { method: "GET".to_owned(), url, ..Request::default() }, &())
            .await
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        let seen = server.seen().pop().unwrap();
        let url = server.url().join(&seen.path).unwrap();
        let sent = readable(&seen.headers, &url, seen.body.as_bytes());
        let field = |name: &str| sample.fields.get(name).map(|value| value.expose().clone());
        let proof = match provider.auth_mode {
            AuthMode::None => continue,
            AuthMode::ApiKey => field("apiKey").unwrap(),
            AuthMode::Basic | AuthMode::InstallPlugin => field("username").or(field("password")).unwrap(),
            AuthMode::OAuth1 | AuthMode::TokenBased => "oauth_signature=".to_owned(),
            AuthMode::Signature => "UsernameToken ".to_owned(),
            _ => TOKEN.to_owned(),
        };
        assert!(sent.contains(&proof), "{name} does not send `{proof}`: {sent}");
    }
}

fn stored(sample: &Sample) -> StoredCredentials {
    let mode = sample.provider.auth_mode;
    let fields: Map<String, Value> =
        sample.fields.iter().map(|(name, value)| (name.clone(), value.expose().as_str().into())).collect();
    let mut stored = json!({ "type": mode.as_str(), "raw": "{}", "expires_at": null });
    let members = stored.as_object_mut().unwrap();
    match mode {
        AuthMode::OAuth2 | AuthMode::McpOAuth2 | AuthMode::McpOAuth2Generic => {
            members.insert("type".to_owned(), "OAUTH2".into());
            members.insert("access_token".to_owned(), TOKEN.into());
        }
        AuthMode::App => {
            members.insert("installation_id".to_owned(), "1".into());
            members.insert("access_token".to_owned(), TOKEN.into());
        }
        AuthMode::Custom => {
            let app =
                json!({ "installation_id": "1", "access_token": TOKEN, "raw": "{}", "expires_at": null });
            members.insert("app".to_owned(), app);
        }
        AuthMode::OAuth1 => {
            members.insert("oauth_token".to_owned(), TOKEN.into());
            members.insert("oauth_token_secret".to_owned(), "sample".into());
        }
        AuthMode::OAuth2ClientCredentials => {
            members.insert("token".to_owned(), TOKEN.into());
            members.extend(fields);
        }
        AuthMode::Jwt | AuthMode::TwoStep | AuthMode::Bill | AuthMode::Signature => {
            members.insert("token".to_owned(), TOKEN.into());
            members.insert("fields".to_owned(), Value::Object(fields));
        }
        _ => members.extend(fields),
    }
    if mode == AuthMode::Basic {
        for name in ["username", "password"] {
            members.entry(name).or_insert_with(|| "".into());
        }
    }
    serde_json::from_value(stored).unwrap_or_else(|error| panic!("{}: {error}", sample.provider.name))
}

/// Returns everything that was sent as one text, decoded.
fn readable(headers: &HeaderMap, url: &Url, body: &[u8]) -> String {
    let mut text = String::new();
    for value in headers.values() {
        let value = String::from_utf8_lossy(value.as_bytes());
        if let Some(pair) = value.strip_prefix("Basic ") {
            text.push_str(&String::from_utf8_lossy(&STANDARD.decode(pair).unwrap()));
        }
        text.push_str(&value);
        text.push('\n');
    }
    let body = String::from_utf8_lossy(body).replace('+', " ");
    for part in [url.as_str(), &body] {
        text.push_str(part);
        text.push('\n');
        text.push_str(&percent_decode_str(part).decode_utf8_lossy());
        text.push('\n');
    }
    text
}
