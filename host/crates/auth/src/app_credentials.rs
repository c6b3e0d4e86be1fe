//! What an integration's app proves itself with at the provider: one app of the operator's for all connections of
//! the integration.

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
/// What stands in the place of a secret that was stored. Its length says nothing of the secret's.
const MASK: &str = "********";

/// The credentials of an integration's app. As serde writes it, it is the sealed form, with every secret in it;
/// [`to_wire`](Self::to_wire) is what clients read.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum AppCredentials {
    /// Of auth modes `OAUTH1`, `OAUTH2` and `TBA`.
    #[serde(rename = "oauth")]
    OAuth(OAuthApp),
    /// Of auth mode `APP`.
    App(InstallableApp),
    /// Of auth mode `CUSTOM`: end users install the app and consent to it.
    Custom { oauth: OAuthApp, app: InstallableApp },
}

/// An app that users consent to.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct OAuthApp {
    /// The consumer key, in the words of OAuth 1.
    pub client_id: String,
    #[serde(serialize_with = "serialize_exposed")]
    pub client_secret: Secret<String>,
    /// Asked for in place of the catalogue's default scopes, unless empty.
    #[serde(default)]
    pub scopes: Vec<String>,
    /// What the provider signs its webhooks with.
    #[serde(default, serialize_with = "serialize_exposed_option")]
    pub webhook_secret: Option<Secret<String>>,
}

/// An app that users install, and that signs as itself.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct InstallableApp {
    pub app_id: String,
    /// The provider's page of the app, where it is installed.
    pub app_link: String,
    /// An RSA key in PEM.
    #[serde(serialize_with = "serialize_exposed")]
    pub private_key: Secret<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum AppCredentialsError {
    #[error(
        "an integration of auth mode {0} takes no app credentials: each of its connections brings its own"
    )]
    NotTaken(AuthMode),
    #[error("the provider's auth mode is {expected}, so `type` must be `{expected}`")]
    OtherMode { expected: AuthMode },
    #[error("must be text of 1 to {most} bytes")]
    Text { name: &'static str, most: usize },
    #[error("is the mask that stands in answers; send the secret itself")]
    Mask { name: &'static str },
    #[error("must be scopes of letters, digits and `:/_.*-`, separated by commas, without spaces")]
    Scopes,
    #[error("must be the http or https address of the app's page")]
    Link,
    #[error("must be an RSA private key of 2048 bits or more in PEM, beginning with -----BEGIN")]
    PrivateKey,
    #[error("`{name}` is not an app credential of auth mode {mode}")]
    UnknownField { name: String, mode: AuthMode },
    #[error("stored app credentials do not open")]
    Sealed(#[from] CryptoError),
    #[error("stored app credentials are not of a form that this version knows")]
    Unreadable,
}

impl AppCredentialsError {
    /// The field that is to blame.
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
    /// Whether an integration of this mode cannot connect anybody without an app. One of mode `TBA` can: its
    /// connections may bring their own.
    pub fn are_required(mode: AuthMode) -> bool {
        matches!(mode, AuthMode::OAuth1 | AuthMode::OAuth2 | AuthMode::App | AuthMode::Custom)
    }

    /// Reads what a client sent for an integration of a provider of this mode.
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

    /// The app that users consent to, if there is one.
    pub fn oauth(&self) -> Option<&OAuthApp> {
        match self {
            Self::OAuth(oauth) | Self::Custom { oauth, .. } => Some(oauth),
            Self::App(_) => None,
        }
    }

    /// The app that users install, if there is one.
    pub fn app(&self) -> Option<&InstallableApp> {
        match self {
            Self::App(app) | Self::Custom { app, .. } => Some(app),
            Self::OAuth(_) => None,
        }
    }

    /// Encrypts them for the row of the integration with this id.
    pub fn seal(&self, key: &DataKey, integration: Uuid) -> Vec<u8> {
        let plain = serde_json::to_vec(self).expect("credentials are plain data with text keys");
        key.seal(associated_data(&integration.to_string()), &Zeroizing::new(plain))
    }

    /// Decrypts what [`seal`](Self::seal) gave. What was sealed for another row does not open.
    pub fn open(key: &DataKey, integration: Uuid, sealed: &[u8]) -> Result<Self, AppCredentialsError> {
        let opened = key.open(associated_data(&integration.to_string()), sealed)?;
        serde_json::from_slice(&opened).map_err(|_| AppCredentialsError::Unreadable)
    }

    /// The form that clients read, with a mask in the place of keys and secrets.
    pub fn to_wire(&self, mode: AuthMode) -> Value {
        match self {
            Self::OAuth(oauth) => json!({
                "type": mode.as_str(),
                "client_id": oauth.client_id,
                "client_secret": MASK,
                "scopes": oauth.scopes.join(","),
                "webhook_secret": oauth.webhook_secret.as_ref().map(Secret::expose),
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

/// The members that are still to be taken.
struct Fields(Map<String, Value>);

impl Fields {
    fn text(&mut self, name: &'static str, most: usize) -> Result<String, AppCredentialsError> {
        match self.0.remove(name) {
            Some(Value::String(text)) if !text.is_empty() && text.len() <= most => Ok(text),
            _ => Err(AppCredentialsError::Text { name, most }),
        }
    }

    fn secret(&mut self, name: &'static str) -> Result<Secret<String>, AppCredentialsError> {
        let secret = Secret::new(self.text(name, MAX_SECRET)?);
        if secret.expose() == MASK {
            return Err(AppCredentialsError::Mask { name });
        }
        Ok(secret)
    }

    fn client(&mut self) -> Result<OAuthApp, AppCredentialsError> {
        Ok(OAuthApp {
            client_id: self.text("client_id", MAX_TEXT)?,
            client_secret: self.secret("client_secret")?,
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
            Some(_) => self.text(NAME, MAX_TEXT).map(|secret| Some(secret.into())),
            None => Ok(None),
        }
    }

    fn installable_app(&mut self) -> Result<InstallableApp, AppCredentialsError> {
        let app_id = self.text("app_id", MAX_TEXT)?;
        let app_link = self.text("app_link", MAX_SECRET)?;
        // A browser is sent there.
        if !Url::parse(&app_link).is_ok_and(|url| matches!(url.scheme(), "http" | "https")) {
            return Err(AppCredentialsError::Link);
        }
        let private_key = self.secret("private_key")?;
        if !is_rsa_key(private_key.expose()) {
            return Err(AppCredentialsError::PrivateKey);
        }
        Ok(InstallableApp { app_id, app_link, private_key })
    }
}

/// A key that cannot sign is better found out when it is stored than when somebody connects.
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

    /// Made for these tests and used nowhere else.
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
    fn a_refusal_names_the_field() {
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
    fn what_is_read_has_no_secret_in_it() {
        let app = json!({
            "type": "CUSTOM", "client_id": "id", "client_secret": "planted", "app_id": "1",
            "app_link": "https://code.test/apps/a", "private_key": PRIVATE_KEY,
        });
        let wire = parse(AuthMode::Custom, app.clone()).unwrap().to_wire(AuthMode::Custom);
        assert_eq!(wire, with(with(app, "client_secret", json!(MASK)), "private_key", json!(MASK)));
        let scoped = with(oauth(), "scopes", json!("read:all,write"));
        assert_eq!(
            parse(AuthMode::OAuth2, scoped).unwrap().to_wire(AuthMode::OAuth2),
            json!({
                "type": "OAUTH2", "client_id": "id", "client_secret": MASK, "scopes": "read:all,write",
                "webhook_secret": null,
            })
        );
    }

    #[test]
    fn what_was_sealed_for_one_integration_does_not_open_for_another() {
        let keys = MasterKeys::parse(&MasterKeys::generate("a")).unwrap();
        let (key, _) = keys.new_data_key("environment");
        let (own, other) = (Uuid::new_v4(), Uuid::new_v4());
        let sealed = parse(AuthMode::OAuth2, oauth()).unwrap().seal(&key, own);
        let opened = AppCredentials::open(&key, own, &sealed).unwrap();
        assert_eq!(opened.oauth().unwrap().client_secret.expose(), "planted");
        assert!(matches!(AppCredentials::open(&key, other, &sealed), Err(AppCredentialsError::Sealed(_))));
    }

    #[test]
    fn nothing_of_it_is_printed() {
        assert!(!format!("{:?}", parse(AuthMode::OAuth2, oauth()).unwrap()).contains("planted"));
    }
}
