//! The credentials of an integration's app: an app that the operator registered at the provider, used by all
//! connections of the integration.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use url::Url;
use uuid::Uuid;
use zeroize::Zeroizing;

use syncline_crypto::{AssociatedData, CryptoError, DataKey};
use syncline_providers::AuthMode;
use syncline_types::secret::{Secret, serialize_exposed, serialize_exposed_option};

const MAX_TEXT: usize = 255;
const MAX_SECRET: usize = 16_384;
/// Returned in place of a stored secret. Its length does not depend on the secret's.
const MASK: &str = "********";

/// The credentials of an integration's app. Their serde form contains all secrets and is stored encrypted. Clients
/// receive the form of [`to_wire`](Self::to_wire).
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum AppCredentials {
    /// For the auth modes `OAUTH1`, `OAUTH2` and `TBA`.
    #[serde(rename = "oauth")]
    OAuth(OAuthApp),
    /// For the auth mode `APP`.
    App(InstallableApp),
    /// For the auth mode `CUSTOM`, whose end users install the app and consent to it.
    Custom { oauth: OAuthApp, app: InstallableApp },
}

/// An app that end users consent to.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct OAuthApp {
    /// OAuth 1 calls it the consumer key.
    pub client_id: String,
    #[serde(serialize_with = "serialize_exposed")]
    pub client_secret: Secret<String>,
    /// The scopes to request instead of the catalogue's default scopes, unless empty.
    #[serde(default)]
    pub scopes: Vec<String>,
    /// The secret with which the provider signs its webhooks.
    #[serde(default, serialize_with = "serialize_exposed_option")]
    pub webhook_secret: Option<Secret<String>>,
}

/// An app that end users install, and that signs its own tokens.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct InstallableApp {
    pub app_id: String,
    /// The URL of the provider's page where the app is installed.
    pub app_link: String,
    /// An RSA key in PEM.
    #[serde(serialize_with = "serialize_exposed")]
    pub private_key: Secret<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum AppCredentialsError {
    #[error(
        "an integration with auth mode {0} has no app credentials: each connection has its own credentials"
    )]
    NotTaken(AuthMode),
    #[error("the provider's auth mode is {expected}, so `type` must be `{expected}`")]
    OtherMode { expected: AuthMode },
    #[error("must be a text of 1 to {max_bytes} bytes")]
    Text { name: &'static str, max_bytes: usize },
    #[error(
        "is the mask that responses contain instead of the secret; send the secret itself, or omit the member to \
         keep the stored one"
    )]
    Mask { name: &'static str },
    #[error(
        "must be a list of scopes, separated by commas without spaces; a scope consists of letters, digits and \
         `:/_.*-`"
    )]
    Scopes,
    #[error("must be the http or https URL of the app's page")]
    Link,
    #[error("must be an RSA private key of at least 2048 bits in PEM, which starts with -----BEGIN")]
    PrivateKey,
    #[error("`{name}` is not an app credential of auth mode {mode}")]
    UnknownField { name: String, mode: AuthMode },
    #[error("the stored app credentials cannot be decrypted")]
    Sealed(#[from] CryptoError),
    #[error("the stored app credentials have a format that this version does not know")]
    Unreadable,
}

impl AppCredentialsError {
    /// Returns the field that is invalid.
    pub fn field(&self) -> Option<&str> {
        match self {
            Self::NotTaken(_) | Self::Sealed(_) | Self::Unreadable => None,
            Self::OtherMode { .. } => Some("type"),
            Self::Text { name, .. } | Self::Mask { name } => Some(name),
            Self::Scopes => Some("scopes"),
            Self::Link => Some("app_link"),
            Self::PrivateKey => Some("private_key"),
            Self::UnknownField { name, .. } => Some(name),
        }
    }
}

impl AppCredentials {
    /// Whether integrations of this auth mode need an app before end users can connect. Integrations of mode `TBA` do
    /// not, because their connections can have their own app.
    pub fn are_required(mode: AuthMode) -> bool {
        matches!(mode, AuthMode::OAuth1 | AuthMode::OAuth2 | AuthMode::App | AuthMode::Custom)
    }

    /// Parses the app credentials that a client sent for an integration of this auth mode.
    pub fn parse(mode: AuthMode, members: Map<String, Value>) -> Result<Self, AppCredentialsError> {
        let mut fields = Fields(members);
        if !Self::are_required(mode) && mode != AuthMode::TokenBased {
            return Err(AppCredentialsError::NotTaken(mode));
        }
        if fields.0.remove("type").is_none_or(|given| given != mode.as_str()) {
            return Err(AppCredentialsError::OtherMode { expected: mode });
        }
        let parsed = match mode {
            AuthMode::App => Self::App(fields.installable_app()?),
            AuthMode::Custom => Self::Custom { oauth: fields.client()?, app: fields.installable_app()? },
            _ => Self::OAuth(OAuthApp {
                scopes: fields.scopes()?,
                webhook_secret: fields.webhook_secret()?,
                ..fields.client()?
            }),
        };
        match fields.0.into_iter().next() {
            Some((name, _)) => Err(AppCredentialsError::UnknownField { name, mode }),
            None => Ok(parsed),
        }
    }

    /// Parses changed app credentials. Members that the client omits keep their values.
    pub fn parse_change(
        mode: AuthMode,
        mut members: Map<String, Value>,
        previous: Option<&Self>,
    ) -> Result<Self, AppCredentialsError> {
        for (name, value) in previous.map(|previous| previous.members(mode)).unwrap_or_default() {
            members.entry(name).or_insert(value);
        }
        Self::parse(mode, members)
    }

    /// The members from which [`parse`](Self::parse) creates these credentials, with all secrets. Empty if the
    /// credentials are of another auth mode, because the provider's entry has changed.
    fn members(&self, mode: AuthMode) -> Map<String, Value> {
        let is_of_mode = match self {
            Self::App(_) => mode == AuthMode::App,
            Self::Custom { .. } => mode == AuthMode::Custom,
            Self::OAuth(_) => !matches!(mode, AuthMode::App | AuthMode::Custom),
        };
        let Value::Object(mut members) = self.to_wire(mode) else { return Map::new() };
        if !is_of_mode {
            return Map::new();
        }
        let client_secret = self.oauth().map(|oauth| &oauth.client_secret);
        let webhook_secret = self.oauth().and_then(|oauth| oauth.webhook_secret.as_ref());
        let private_key = self.app().map(|app| &app.private_key);
        let secrets = [
            ("client_secret", client_secret),
            ("webhook_secret", webhook_secret),
            ("private_key", private_key),
        ];
        for (name, secret) in secrets {
            if let (Some(member), Some(secret)) = (members.get_mut(name), secret) {
                *member = secret.expose().as_str().into();
            }
        }
        members
    }

    /// Returns the app that end users consent to, if there is one.
    pub fn oauth(&self) -> Option<&OAuthApp> {
        match self {
            Self::OAuth(oauth) | Self::Custom { oauth, .. } => Some(oauth),
            Self::App(_) => None,
        }
    }

    /// Returns the app that end users install, if there is one.
    pub fn app(&self) -> Option<&InstallableApp> {
        match self {
            Self::App(app) | Self::Custom { app, .. } => Some(app),
            Self::OAuth(_) => None,
        }
    }

    /// Encrypts the credentials for the row of the integration with this id.
    pub fn seal(&self, key: &DataKey, integration: Uuid) -> Vec<u8> {
        let plain = serde_json::to_vec(self).expect("credentials can be represented as JSON");
        key.seal(associated_data(&integration.to_string()), &Zeroizing::new(plain))
    }

    /// Decrypts the result of [`seal`](Self::seal). Fails for a value that was encrypted for another row.
    pub fn open(key: &DataKey, integration: Uuid, sealed: &[u8]) -> Result<Self, AppCredentialsError> {
        let opened = key.open(associated_data(&integration.to_string()), sealed)?;
        serde_json::from_slice(&opened).map_err(|_| AppCredentialsError::Unreadable)
    }

    /// Returns the form for clients, with a mask in place of keys and secrets.
    pub fn to_wire(&self, mode: AuthMode) -> Value {
        match self {
            Self::OAuth(oauth) => json!({
                "type": mode.as_str(),
                "client_id": oauth.client_id,
                "client_secret": MASK,
                "scopes": oauth.scopes.join(","),
                "webhook_secret": oauth.webhook_secret.as_ref().map(|_| MASK),
            }),
            Self::App(app) => json!({
                "type": mode.as_str(),
                "app_id": app.app_id,
                "private_key": MASK,
                "app_link": app.app_link,
            }),
            Self::Custom { oauth, app } => json!({
                "type": mode.as_str(),
                "client_id": oauth.client_id,
                "client_secret": MASK,
                "app_id": app.app_id,
                "app_link": app.app_link,
                "private_key": MASK,
            }),
        }
    }
}

fn associated_data(integration: &str) -> AssociatedData<'_> {
    AssociatedData { column: "integrations.sealed_credentials", row: integration }
}

/// The fields that have not been parsed yet.
struct Fields(Map<String, Value>);

impl Fields {
    fn text(&mut self, name: &'static str, max_bytes: usize) -> Result<String, AppCredentialsError> {
        match self.0.remove(name) {
            Some(Value::String(text)) if !text.is_empty() && text.len() <= max_bytes => Ok(text),
            _ => Err(AppCredentialsError::Text { name, max_bytes }),
        }
    }

    fn secret(
        &mut self,
        name: &'static str,
        max_bytes: usize,
    ) -> Result<Secret<String>, AppCredentialsError> {
        let secret = Secret::new(self.text(name, max_bytes)?);
        if secret.expose() == MASK {
            return Err(AppCredentialsError::Mask { name });
        }
        Ok(secret)
    }

    fn client(&mut self) -> Result<OAuthApp, AppCredentialsError> {
        Ok(OAuthApp {
            client_id: self.text("client_id", MAX_TEXT)?,
            client_secret: self.secret("client_secret", MAX_SECRET)?,
            scopes: Vec::new(),
            webhook_secret: None,
        })
    }

    fn scopes(&mut self) -> Result<Vec<String>, AppCredentialsError> {
        let is_scope = |scope: &str| {
            !scope.is_empty() && scope.bytes().all(|b| b.is_ascii_alphanumeric() || b":/_.*-".contains(&b))
        };
        match self.0.remove("scopes") {
            None | Some(Value::Null) => Ok(Vec::new()),
            Some(Value::String(list)) if list.is_empty() => Ok(Vec::new()),
            Some(Value::String(list)) if list.split(',').all(is_scope) => {
                Ok(list.split(',').map(str::to_owned).collect())
            }
            Some(_) => Err(AppCredentialsError::Scopes),
        }
    }

    fn webhook_secret(&mut self) -> Result<Option<Secret<String>>, AppCredentialsError> {
        const NAME: &str = "webhook_secret";
        match self.0.get(NAME) {
            Some(Value::Null) => {
                self.0.remove(NAME);
                Ok(None)
            }
            Some(_) => self.secret(NAME, MAX_TEXT).map(Some),
            None => Ok(None),
        }
    }

    fn installable_app(&mut self) -> Result<InstallableApp, AppCredentialsError> {
        let app_id = self.text("app_id", MAX_TEXT)?;
        let app_link = self.text("app_link", MAX_SECRET)?;
        // End users' browsers are redirected to this URL.
        if !Url::parse(&app_link).is_ok_and(|url| matches!(url.scheme(), "http" | "https")) {
            return Err(AppCredentialsError::Link);
        }
        let private_key = self.secret("private_key", MAX_SECRET)?;
        if !is_rsa_key(private_key.expose()) {
            return Err(AppCredentialsError::PrivateKey);
        }
        Ok(InstallableApp { app_id, app_link, private_key })
    }
}

/// Checks the key when it is stored, so that an unusable key is not discovered later, when an end user connects.
fn is_rsa_key(pem: &str) -> bool {
    use rustls::pki_types::PrivateKeyDer;
    use rustls::pki_types::pem::PemObject;

    match PrivateKeyDer::from_pem_slice(pem.as_bytes()) {
        Ok(PrivateKeyDer::Pkcs1(der)) => ring::rsa::KeyPair::from_der(der.secret_pkcs1_der()).is_ok(),
        Ok(PrivateKeyDer::Pkcs8(der)) => ring::rsa::KeyPair::from_pkcs8(der.secret_pkcs8_der()).is_ok(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use syncline_crypto::MasterKeys;

    /// A key that exists only for these tests.
    const PRIVATE_KEY: &str = include_str!("../../../../tests/keys/app.pem");

    fn parse(mode: AuthMode, value: Value) -> Result<AppCredentials, AppCredentialsError> {
        let Value::Object(members) = value else { panic!("not an object") };
        AppCredentials::parse(mode, members)
    }

    fn oauth() -> Value {
        json!({ "type": "OAUTH2", "client_id": "id", "client_secret": "planted" })
    }

    fn with(mut value: Value, name: &str, member: Value) -> Value {
        value[name] = member;
        value
    }

    #[test]
    fn an_error_names_the_invalid_field() {
        let app = json!({
            "type": "APP", "app_id": "1", "app_link": "https://code.test/apps/a", "private_key": PRIVATE_KEY,
        });
        for (mode, value, blamed) in [
            (AuthMode::ApiKey, oauth(), None),
            (AuthMode::OAuth1, oauth(), Some("type")),
            (AuthMode::OAuth2, json!({ "client_id": "id", "client_secret": "s" }), Some("type")),
            (AuthMode::OAuth2, with(oauth(), "client_id", json!("")), Some("client_id")),
            (AuthMode::OAuth2, with(oauth(), "client_id", json!("i".repeat(256))), Some("client_id")),
            (AuthMode::OAuth2, with(oauth(), "client_secret", json!(MASK)), Some("client_secret")),
            (AuthMode::OAuth2, with(oauth(), "client_secret", json!(7)), Some("client_secret")),
            (AuthMode::OAuth2, with(oauth(), "scopes", json!("read, write")), Some("scopes")),
            (AuthMode::OAuth2, with(oauth(), "scopes", json!("read,")), Some("scopes")),
            (AuthMode::OAuth2, with(oauth(), "scopes", json!(["read"])), Some("scopes")),
            (AuthMode::OAuth2, with(oauth(), "webhook_secret", json!("")), Some("webhook_secret")),
            (AuthMode::OAuth2, with(oauth(), "webhook_secret", json!(MASK)), Some("webhook_secret")),
            (AuthMode::OAuth2, with(oauth(), "app_id", json!("1")), Some("app_id")),
            (AuthMode::App, with(app.clone(), "app_link", json!("javascript:alert(1)")), Some("app_link")),
            (AuthMode::App, with(app.clone(), "private_key", json!("-----BEGIN")), Some("private_key")),
            (AuthMode::App, with(app.clone(), "scopes", json!("a")), Some("scopes")),
            (AuthMode::Custom, with(app, "type", json!("CUSTOM")), Some("client_id")),
        ] {
            let error = parse(mode, value.clone()).unwrap_err();
            assert_eq!(error.field(), blamed, "{mode} {value}");
            assert!(!error.to_string().contains("planted"));
        }
    }

    #[test]
    fn secrets_are_masked_in_the_form_for_clients() {
        let app = json!({
            "type": "CUSTOM", "client_id": "id", "client_secret": "planted", "app_id": "1",
            "app_link": "https://code.test/apps/a", "private_key": PRIVATE_KEY,
        });
        let wire = parse(AuthMode::Custom, app.clone()).unwrap().to_wire(AuthMode::Custom);
        assert_eq!(wire, with(with(app, "client_secret", json!(MASK)), "private_key", json!(MASK)));
        let scoped = with(oauth(), "scopes", json!("read:all,write"));
        let shown = |value: Value| parse(AuthMode::OAuth2, value).unwrap().to_wire(AuthMode::OAuth2);
        let expected = json!({
            "type": "OAUTH2", "client_id": "id", "client_secret": MASK, "scopes": "read:all,write",
            "webhook_secret": null,
        });
        assert_eq!(shown(scoped.clone()), expected);
        let signed = with(scoped, "webhook_secret", json!("planted"));
        assert_eq!(shown(signed), with(expected, "webhook_secret", json!(MASK)));
    }

    #[test]
    fn omitted_members_of_a_change_keep_their_values() {
        let change = |mode, before: &AppCredentials, value: Value| {
            let Value::Object(members) = value else { panic!("not an object") };
            AppCredentials::parse_change(mode, members, Some(before))
        };
        let full = with(with(oauth(), "scopes", json!("read")), "webhook_secret", json!("planted-2"));
        let before = parse(AuthMode::OAuth2, full).unwrap();
        let after = change(AuthMode::OAuth2, &before, json!({ "client_id": "other" })).unwrap();
        let after = after.oauth().unwrap();
        assert_eq!((&*after.client_id, after.client_secret.expose().as_str()), ("other", "planted"));
        assert_eq!(after.scopes, ["read"]);
        assert_eq!(after.webhook_secret.as_ref().unwrap().expose(), "planted-2");
        let cleared = json!({ "scopes": "", "webhook_secret": null });
        let cleared = change(AuthMode::OAuth2, &before, cleared).unwrap();
        let cleared = cleared.oauth().unwrap();
        assert!(cleared.scopes.is_empty() && cleared.webhook_secret.is_none());
        let error = change(AuthMode::App, &before, json!({ "app_id": "1" })).unwrap_err();
        assert_eq!(error.field(), Some("type"), "members of another auth mode are not kept");

        let app = json!({
            "type": "APP", "app_id": "1", "app_link": "https://code.test/apps/a", "private_key": PRIVATE_KEY,
        });
        let before = parse(AuthMode::App, app).unwrap();
        let after = change(AuthMode::App, &before, json!({ "app_id": "2" })).unwrap();
        let after = after.app().unwrap();
        assert_eq!((&*after.app_id, after.private_key.expose().as_str()), ("2", PRIVATE_KEY));
    }

    #[test]
    fn app_credentials_decrypt_only_for_their_own_integration() {
        let keys = MasterKeys::parse(&MasterKeys::generate("a")).unwrap();
        let (key, _) = keys.new_data_key("environment");
        let (own, other) = (Uuid::new_v4(), Uuid::new_v4());
        let sealed = parse(AuthMode::OAuth2, oauth()).unwrap().seal(&key, own);
        let opened = AppCredentials::open(&key, own, &sealed).unwrap();
        assert_eq!(opened.oauth().unwrap().client_secret.expose(), "planted");
        assert!(matches!(AppCredentials::open(&key, other, &sealed), Err(AppCredentialsError::Sealed(_))));
    }

    #[test]
    fn the_debug_output_contains_no_secret() {
        assert!(!format!("{:?}", parse(AuthMode::OAuth2, oauth()).unwrap()).contains("planted"));
    }
}
