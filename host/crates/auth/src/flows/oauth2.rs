//! OAuth 2: the authorization request, and the grants of the token endpoint. The `oauth2` crate builds the requests.
//! Before they are sent, they are adapted to the provider's deviations from the standard.

use std::time::Duration;

use bytes::Bytes;
use chrono::{TimeDelta, Utc};
use futures_util::future::BoxFuture;
use http::HeaderValue;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use oauth2::basic::{BasicErrorResponse, BasicTokenType};
use oauth2::{
    AccessToken, AsyncHttpClient, AuthType, AuthUrl, AuthorizationCode, ClientId, ClientSecret, CsrfToken,
    EndpointNotSet, EndpointSet, HttpRequest, HttpResponse, PkceCodeChallenge, PkceCodeVerifier, RedirectUrl,
    RefreshToken, RequestTokenError, Scope, StandardRevocableToken, TokenUrl,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use url::{Url, form_urlencoded};

use super::{Flow, FlowError, MAX_RESPONSE_BYTES, OAuthClient, TIMEOUT, TokenResponse};
use syncline_providers::{BodyFormat, Provider, Template, TokenRequestAuth, UnusableConfig, UrlTemplate};
use syncline_types::secret::{Mask, Secret};

/// The assumed lifetime of a client-credentials token if the provider does not return one.
const DEFAULT_LIFETIME: TimeDelta = TimeDelta::minutes(55);

/// The parameters of an authorization request.
#[derive(Debug, Clone, Copy)]
pub struct AuthorizationRequest<'a> {
    pub client_id: &'a str,
    pub redirect_uri: &'a str,
    pub state: &'a Secret<String>,
    pub scopes: &'a [String],
    /// `None` if the provider file disables PKCE.
    pub pkce_verifier: Option<&'a Secret<String>>,
    /// Additional parameters, which override those of the provider file.
    pub params: &'a [(String, String)],
}

/// Returns the URL to which the end user's browser is redirected.
pub fn authorization_url(
    provider: &Provider,
    connection_config: &Map<String, Value>,
    request: &AuthorizationRequest<'_>,
) -> Result<Url, FlowError> {
    let template = provider.authorization_url.as_ref();
    let template = template.ok_or(FlowError::IncompleteProvider("authorization_url"))?;
    let url = provider.render_url(template, connection_config)?;
    let client: Client = oauth2::Client::new(ClientId::new(request.client_id.to_owned()));
    let client =
        client.set_auth_uri(AuthUrl::from_url(url)).set_redirect_uri(redirect_url(request.redirect_uri)?);
    let state = || CsrfToken::new(request.state.expose().clone());
    let mut authorize = client.authorize_url(state);
    if let Some(verifier) = request.pkce_verifier {
        let verifier = PkceCodeVerifier::new(verifier.expose().clone());
        authorize = authorize.set_pkce_challenge(PkceCodeChallenge::from_code_verifier_sha256(&verifier));
    }
    let (mut url, _) = authorize.url();
    let separator = provider.scope_separator.as_deref().unwrap_or(" ");
    let mut params: Vec<(String, String)> =
        url.query_pairs().map(|(name, value)| (name.into_owned(), value.into_owned())).collect();
    if !request.scopes.is_empty() {
        params.push(("scope".to_owned(), request.scopes.join(separator)));
    }
    let own = provider.render_params(&provider.authorization_params, connection_config)?;
    for (name, value) in own.into_iter().chain(request.params.iter().cloned()) {
        // Parameters that secure the flow cannot be overridden.
        if !["state", "redirect_uri", "client_id", "code_challenge", "code_challenge_method"]
            .contains(&name.as_str())
        {
            params.retain(|(existing, _)| *existing != name);
            params.push((name, value));
        }
    }
    rename_client_id(provider, &mut params);
    url.query_pairs_mut().clear().extend_pairs(&params);
    Ok(url)
}

impl Flow<'_> {
    /// Exchanges the code of an authorization response for a token.
    pub async fn exchange_code(
        &self,
        code: String,
        pkce_verifier: Option<&Secret<String>>,
        redirect_uri: &str,
    ) -> Result<TokenResponse, FlowError> {
        let client = self.oauth2_client(self.token_url()?)?.set_redirect_uri(redirect_url(redirect_uri)?);
        let mut request = client.exchange_code(AuthorizationCode::new(code));
        if let Some(verifier) = pkce_verifier {
            request = request.set_pkce_verifier(PkceCodeVerifier::new(verifier.expose().clone()));
        }
        for (name, value) in self.params(&self.provider.token_params)? {
            request = request.add_extra_param(name, value);
        }
        into_response(request.request_async(self).await)
    }

    /// Exchanges a refresh token for a new token. The provider may invalidate the old refresh token.
    pub async fn refresh(&self, refresh_token: &Secret<String>) -> Result<TokenResponse, FlowError> {
        let url = match &self.provider.refresh_url {
            Some(template) => self.render(template)?,
            None => self.token_url()?,
        };
        let client = self.oauth2_client(url)?;
        let refresh_token = RefreshToken::new(refresh_token.expose().clone());
        let mut request = client.exchange_refresh_token(&refresh_token);
        // The provider file may set the grant type of the code exchange, which does not apply here.
        let first = self.provider.token_params.iter().filter(|(name, _)| *name != "grant_type");
        for (name, value) in self.params(first.chain(&self.provider.refresh_params))? {
            request = request.add_extra_param(name, value);
        }
        into_response(request.request_async(self).await)
    }

    /// Requests a token with only the client's own credentials.
    pub async fn client_credentials(&self) -> Result<TokenResponse, FlowError> {
        let client = self.oauth2_client(self.token_url()?)?;
        let mut request = client.exchange_client_credentials();
        if !self.scopes.is_empty() {
            let separator = self.provider.scope_separator.as_deref().unwrap_or(" ");
            request = request.add_scope(Scope::new(self.scopes.join(separator)));
        }
        for (name, value) in self.params(&self.provider.token_params)? {
            request = request.add_extra_param(name, value);
        }
        let mut obtained = into_response(request.request_async(self).await)?;
        obtained.expires_at =
            obtained.expires_at.or_else(|| self.gateway.clock().now().checked_add_signed(DEFAULT_LIFETIME));
        Ok(obtained)
    }

    fn params<'p>(
        &self,
        params: impl IntoIterator<Item = (&'p String, &'p Template)>,
    ) -> Result<Vec<(String, String)>, UnusableConfig> {
        self.provider.render_params(params, self.connection_config)
    }

    fn token_url(&self) -> Result<Url, FlowError> {
        let template = self.provider.token_url.as_ref().ok_or(FlowError::IncompleteProvider("token_url"))?;
        Ok(self.render(template)?)
    }

    fn render(&self, template: &UrlTemplate) -> Result<Url, UnusableConfig> {
        self.provider.render_url(template, self.connection_config)
    }

    fn oauth2_client(&self, token_url: Url) -> Result<TokenClient, FlowError> {
        let OAuthClient { id, secret } = self.client.as_ref().ok_or(FlowError::NoClient)?;
        let mut client: Client = oauth2::Client::new(ClientId::new(id.clone()));
        if let Some(secret) = secret
            && self.provider.token_request_auth_method != Some(TokenRequestAuth::Custom)
        {
            client = client.set_client_secret(ClientSecret::new(secret.expose().clone()));
        }
        let auth_type = match self.provider.token_request_auth_method {
            Some(TokenRequestAuth::Basic) => AuthType::BasicAuth,
            Some(TokenRequestAuth::Custom) | None => AuthType::RequestBody,
        };
        Ok(client.set_auth_type(auth_type).set_token_uri(TokenUrl::from_url(token_url)))
    }

    /// Returns a mask for all secrets in a request of the `oauth2` crate.
    fn mask_of(&self, request: &HttpRequest) -> Mask {
        const SECRETS: [&str; 3] = ["code", "code_verifier", "refresh_token"];
        let mut mask = Mask::default();
        if let Some(secret) = self.client.as_ref().and_then(|client| client.secret.as_ref()) {
            mask.add(secret.expose());
        }
        for (name, value) in form_urlencoded::parse(request.body()) {
            if SECRETS.contains(&&*name) {
                mask.add(&value);
            }
        }
        let header = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        if let Some(encoded) = header.and_then(|value| value.strip_prefix("Basic ")) {
            mask.add(encoded);
        }
        mask
    }

    fn adapt_to_provider(&self, request: HttpRequest) -> Result<http::Request<Bytes>, FlowError> {
        let (mut parts, body) = request.into_parts();
        let mut params: Vec<(String, String)> = form_urlencoded::parse(&body).into_owned().collect();
        rename_client_id(self.provider, &mut params);
        let form = || form_urlencoded::Serializer::new(String::new()).extend_pairs(&params).finish();
        let body = match self.provider.token_request_format.unwrap_or_default() {
            BodyFormat::Form => form(),
            BodyFormat::Json => {
                parts.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
                let members: Map<String, Value> =
                    params.iter().map(|(name, value)| (name.clone(), value.as_str().into())).collect();
                Value::Object(members).to_string()
            }
            BodyFormat::Query => {
                parts.headers.remove(CONTENT_TYPE);
                let separator = if parts.uri.query().is_some() { '&' } else { '?' };
                parts.uri = format!("{}{separator}{}", parts.uri, form())
                    .parse()
                    .map_err(|_| FlowError::IncompleteProvider("token_url"))?;
                String::new()
            }
        };
        Ok(http::Request::from_parts(parts, body.into()))
    }
}

impl<'c> AsyncHttpClient<'c> for Flow<'_> {
    type Error = FlowError;
    type Future = BoxFuture<'c, Result<HttpResponse, FlowError>>;

    /// Sends a request of the `oauth2` crate, adapted to the provider, and converts the answer to the form that the
    /// crate parses.
    fn call(&'c self, request: HttpRequest) -> Self::Future {
        Box::pin(async move {
            let sent = self.mask_of(&request);
            let request = self.adapt_to_provider(request)?;
            let answer = self.gateway.send_own(request, TIMEOUT, MAX_RESPONSE_BYTES).await?;
            let read = TokenResponse::read(
                self.provider,
                answer.status,
                &answer.body,
                &sent,
                self.gateway.clock().now(),
            )?;
            let body = serde_json::to_vec(&ParsedResponse::from(read)).unwrap_or_default();
            let mut response = HttpResponse::new(body);
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            Ok(response)
        })
    }
}

type Client = oauth2::Client<
    BasicErrorResponse,
    ParsedResponse,
    oauth2::basic::BasicTokenIntrospectionResponse,
    StandardRevocableToken,
    oauth2::basic::BasicRevocationErrorResponse,
>;
type TokenClient = oauth2::Client<
    BasicErrorResponse,
    ParsedResponse,
    oauth2::basic::BasicTokenIntrospectionResponse,
    StandardRevocableToken,
    oauth2::basic::BasicRevocationErrorResponse,
    EndpointNotSet,
    EndpointNotSet,
    EndpointNotSet,
    EndpointNotSet,
    EndpointSet,
>;

/// A response that was already parsed, in the form in which it passes through the `oauth2` crate.
#[derive(Debug, Serialize, Deserialize)]
struct ParsedResponse {
    access_token: AccessToken,
    refresh_token: Option<RefreshToken>,
    expires_at: Option<chrono::DateTime<Utc>>,
    raw: RefreshToken,
}

impl From<TokenResponse> for ParsedResponse {
    fn from(read: TokenResponse) -> Self {
        let text = |secret: &Secret<String>| secret.expose().clone();
        Self {
            access_token: AccessToken::new(text(&read.access_token)),
            refresh_token: read.refresh_token.as_ref().map(|token| RefreshToken::new(text(token))),
            expires_at: read.expires_at,
            // Used only because this type does not print its value.
            raw: RefreshToken::new(text(&read.raw)),
        }
    }
}

impl From<ParsedResponse> for TokenResponse {
    fn from(parsed: ParsedResponse) -> Self {
        Self {
            access_token: Secret::new(parsed.access_token.into_secret()),
            refresh_token: parsed.refresh_token.map(|token| Secret::new(token.into_secret())),
            expires_at: parsed.expires_at,
            raw: Secret::new(parsed.raw.into_secret()),
        }
    }
}

impl oauth2::TokenResponse for ParsedResponse {
    type TokenType = BasicTokenType;

    fn access_token(&self) -> &AccessToken {
        &self.access_token
    }

    fn token_type(&self) -> &BasicTokenType {
        &BasicTokenType::Bearer
    }

    fn expires_in(&self) -> Option<Duration> {
        None
    }

    fn refresh_token(&self) -> Option<&RefreshToken> {
        self.refresh_token.as_ref()
    }

    fn scopes(&self) -> Option<&Vec<Scope>> {
        None
    }
}

fn into_response(
    outcome: Result<ParsedResponse, RequestTokenError<FlowError, BasicErrorResponse>>,
) -> Result<TokenResponse, FlowError> {
    match outcome {
        Ok(parsed) => Ok(parsed.into()),
        Err(RequestTokenError::Request(error)) => Err(error),
        // The crate receives a response that was already parsed, so it cannot fail.
        Err(_) => Err(FlowError::NotUnderstood {
            status: http::StatusCode::OK,
            what: "an unreadable answer".to_owned(),
        }),
    }
}

fn rename_client_id(provider: &Provider, params: &mut [(String, String)]) {
    if let Some(other) = &provider.client_id_param {
        for (name, _) in params.iter_mut().filter(|(name, _)| name == "client_id") {
            name.clone_from(other);
        }
    }
}

fn redirect_url(text: &str) -> Result<RedirectUrl, FlowError> {
    RedirectUrl::new(text.to_owned()).map_err(|_| FlowError::IncompleteProvider("redirect_uri"))
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const ENTRY: &str = r#"
        name = "acme"
        display_name = "Acme"
        auth_mode = "OAUTH2"
        docs = "https://acme.example"
        authorization_url = "https://${connectionConfig.shop}.acme.example/authorize"
        token_url = "https://api.acme.example/token"
        scope_separator = ","
        authorization_params = { access_type = "offline", prompt = "consent" }
        [source]
        address = "https://acme.example"
        checked_at = "2026-11-21"
        [connection_config.shop]
        title = "Shop"
        description = "The name of your shop."
        pattern = '[a-z]+'
    "#;

    /// Builds the request that would exchange a code or request a client-credentials token, without sending it.
    pub fn token_request(flow: &Flow<'_>, is_own_client: bool) -> http::Request<Bytes> {
        let redirect = redirect_url("https://syncline.example/oauth/callback").unwrap();
        let client = flow.oauth2_client(flow.token_url().unwrap()).unwrap().set_redirect_uri(redirect);
        let params = flow.params(&flow.provider.token_params).unwrap();
        let sent = std::cell::RefCell::new(None);
        let send = |request: HttpRequest| -> Result<HttpResponse, FlowError> {
            sent.replace(Some(flow.adapt_to_provider(request)?));
            Err(FlowError::NoClient)
        };
        let refused = if is_own_client {
            let request = client.exchange_client_credentials();
            params.into_iter().fold(request, |request, (n, v)| request.add_extra_param(n, v)).request(&send)
        } else {
            let request = client.exchange_code(AuthorizationCode::new("sample-code".to_owned()));
            params.into_iter().fold(request, |request, (n, v)| request.add_extra_param(n, v)).request(&send)
        };
        assert!(refused.is_err());
        sent.into_inner().unwrap()
    }

    fn params(entry: &str, extra: &[(&str, &str)]) -> BTreeMap<String, String> {
        let provider: Provider = toml::from_str(entry).unwrap();
        let config = serde_json::json!({ "shop": "tea" });
        let extra: Vec<_> = extra.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
        let request = AuthorizationRequest {
            client_id: "client",
            redirect_uri: "https://syncline.example/oauth/callback",
            state: &"state".into(),
            scopes: &["read".to_owned(), "write".to_owned()],
            pkce_verifier: Some(&"dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk".into()),
            params: &extra,
        };
        let url = authorization_url(&provider, config.as_object().unwrap(), &request).unwrap();
        assert_eq!((url.host_str(), url.path()), (Some("tea.acme.example"), "/authorize"));
        url.query_pairs().map(|(name, value)| (name.into_owned(), value.into_owned())).collect()
    }

    #[test]
    fn the_authorization_request_follows_the_standard_and_the_provider_file() {
        let params = params(ENTRY, &[("prompt", "select_account"), ("login_hint", "ada@example.com")]);
        let expected = [
            ("access_type", "offline"),
            ("client_id", "client"),
            // From RFC 7636, appendix B.
            ("code_challenge", "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM"),
            ("code_challenge_method", "S256"),
            ("login_hint", "ada@example.com"),
            ("prompt", "select_account"),
            ("redirect_uri", "https://syncline.example/oauth/callback"),
            ("response_type", "code"),
            ("scope", "read,write"),
            ("state", "state"),
        ];
        let expected: BTreeMap<_, _> =
            expected.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        assert_eq!(params, expected);
    }

    #[test]
    fn parameters_that_secure_the_flow_cannot_be_overridden() {
        let attack = [("state", "s"), ("redirect_uri", "https://evil.example"), ("code_challenge", "c")];
        let params = params(ENTRY, &attack);
        assert_eq!(params["state"], "state");
        assert_eq!(params["redirect_uri"], "https://syncline.example/oauth/callback");
        assert_ne!(params["code_challenge"], "c");
    }

    #[test]
    fn a_provider_file_can_rename_the_client_id_parameter() {
        let entry = ENTRY.replace("scope_separator", "client_id_param = \"client_key\"\nscope_separator");
        let params = params(&entry, &[]);
        assert_eq!(params.get("client_key").map(String::as_str), Some("client"));
        assert!(!params.contains_key("client_id"));
    }
}
