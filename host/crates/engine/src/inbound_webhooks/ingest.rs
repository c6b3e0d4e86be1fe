//! Takes webhooks of providers in: told from others', stored, and only then answered.
//!
//! Webhooks that come at the same time are stored by one transaction, and each is answered when it has committed. What
//! a host holds of requests that are not stored yet is bounded: one that has no room refuses, and the provider sends
//! it again.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use chrono::{DateTime, Utc};
use http::{HeaderMap, HeaderName, Method, header};
use serde_json::{Map, Value};
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::inbound_webhooks::payload::Payload;
use crate::inbound_webhooks::routing::connection_parameter;
use syncline_auth::{
    Answered, AppCredentials, Cache, Environment, Environments, IncomingWebhook, IntegrationSettings,
    Refusal, WebhookSecrets, answer_handshake, verify_webhook,
};
use syncline_providers::webhook::{Locator, RawBody, SecretSource, Verification, View, Webhook};
use syncline_providers::{Catalogue, Provider};
use syncline_store::events::{Event, Events};
use syncline_store::inbound_webhooks::{self, NewWebhook};
use syncline_store::{Store, connections, integrations};
use syncline_telemetry::clock::Clock;
use syncline_types::error_code::ErrorCode;
use syncline_types::ids::{ConnectionId, IntegrationKey, IntegrationPk, ProviderSlug};
use syncline_types::sanitize::sanitize_text;
use syncline_types::secret::Secret;

/// Requests of one integration that this host has in hand at a time.
const IN_HAND: usize = 512;
/// What is waiting to be stored, at most.
const QUEUE: usize = 4096;
/// Stored by one statement.
const GROUP: usize = 256;
const GROUP_BYTES: usize = 8 << 20;
/// Handshakes that are kept are anybody's: how long they may be, and how many are kept of an integration.
const MAX_HANDSHAKE_BYTES: usize = 64 << 10;
const KEPT_HANDSHAKES: i64 = 10;
/// A longer body is verified and read on a thread that serves no other requests. Anyone can send one, and the most
/// expensive kind, a form with many short members that have to be sorted, takes 5 ms at this length and 80 ms at 256 KiB.
const LONG_BODY_BYTES: usize = 16 << 10;
/// A provider waits for a few seconds only.
const STORED_WITHIN: Duration = Duration::from_secs(10);
const MAX_NAME_BYTES: usize = 255;

/// Beginnings of headers that are not passed on: they are about the way, or secret.
const OWN_PREFIXES: [&str; 15] = [
    "host",
    "authorization",
    "connection",
    "keep-alive",
    "content-length",
    "content-type",
    "content-encoding",
    "cookie",
    "set-cookie",
    "referer",
    "user-agent",
    "sec-",
    "proxy-",
    "www-authenticate",
    "server",
];
/// Likewise whole names, which would mean something else on the next way.
const OWN_NAMES: [HeaderName; 6] = [
    header::ACCEPT_ENCODING,
    header::EXPECT,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// Where one integration's provider calls.
pub struct WebhookEndpoint {
    environment: Arc<Environment>,
    integration: IntegrationPk,
    key: IntegrationKey,
    provider: Arc<Provider>,
    secrets: WebhookSecrets,
    in_hand: Arc<Semaphore>,
}

/// What an operator can set of the ingestion of webhooks.
#[derive(Debug, Clone)]
pub struct IngestSettings {
    /// The longest body of a provider's webhook.
    pub max_body_bytes: usize,
    /// What is held of providers' webhooks that are not stored yet.
    pub held_bytes: usize,
}

/// Verifies and stores the webhooks that providers send.
pub struct WebhookIngest {
    clock: Clock,
    store: Store,
    events: Arc<Events>,
    environments: Arc<Environments>,
    catalogue: Arc<Catalogue>,
    endpoints: Cache<(Uuid, IntegrationKey), Arc<WebhookEndpoint>>,
    limits: ConcurrencyLimits,
    held_bytes: Arc<Semaphore>,
    queue: mpsc::Sender<Queued>,
    queued: Mutex<mpsc::Receiver<Queued>>,
    max_body_bytes: usize,
}

/// The concurrency limit of each integration. It outlives the cached endpoint, which is read anew whenever any integration
/// was changed.
#[derive(Default)]
struct ConcurrencyLimits(std::sync::Mutex<HashMap<IntegrationPk, Weak<Semaphore>>>);

impl ConcurrencyLimits {
    fn of(&self, integration: IntegrationPk) -> Arc<Semaphore> {
        let mut limits = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = limits.get(&integration).and_then(Weak::upgrade) {
            return known;
        }
        let new = Arc::new(Semaphore::new(IN_HAND));
        limits.retain(|_, permits| permits.strong_count() > 0);
        limits.insert(integration, Arc::downgrade(&new));
        new
    }
}

/// What a request is, once it is known whose it is.
enum VerifiedRequest {
    Handshake(Answered),
    /// A handshake that somebody has to look at.
    Kept(Box<NewWebhook>),
    Webhook(Box<NewWebhook>),
}

struct Queued {
    webhook: NewWebhook,
    /// Whether it is new; dropped without a word, if it could not be stored.
    done: oneshot::Sender<bool>,
}

/// A request as it came in.
#[derive(Debug, Clone, Copy)]
pub struct WebhookRequest<'a> {
    pub method: &'a Method,
    /// As the provider was given it, with its query.
    pub url: &'a str,
    pub query: &'a str,
    pub headers: &'a HeaderMap,
    pub body: &'a [u8],
}

/// What a request is answered with.
#[derive(Debug)]
pub enum Ingested {
    Handshake(Answered),
    /// It is stored under this id.
    Stored(Uuid),
    /// It was there already.
    Duplicate,
}

/// Why a request is not taken.
#[derive(Debug, thiserror::Error)]
pub enum IngestError {
    #[error("there is no environment {0}")]
    UnknownEnvironment(Uuid),
    #[error("there is no integration `{0}` in this environment")]
    UnknownIntegration(IntegrationKey),
    #[error("webhooks of `{0}` are not taken: the catalogue does not say how they are told from others'")]
    NotTaken(ProviderSlug),
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error("the body is not JSON: {0}")]
    Json(String),
    #[error("the body is compressed; send it as it is")]
    Compressed,
    #[error("this host holds as many webhooks of the integration as it can; send it again in a moment")]
    TooMany,
    #[error("this host holds as many webhooks as it can; send it again in a moment")]
    Busy,
    #[error("the webhook could not be stored; send it again in a moment")]
    NotStored,
    #[error("this is no handshake that `{provider}` makes; webhooks are sent with POST")]
    NoHandshake { provider: ProviderSlug },
    #[error("a request could not be looked up")]
    Failed(#[source] anyhow::Error),
}

impl IngestError {
    /// The stable code. If its status is 5xx, the provider may send the same webhook again.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::UnknownEnvironment(_) => ErrorCode::UnknownEnvironment,
            Self::UnknownIntegration(_) => ErrorCode::UnknownIntegration,
            Self::NotTaken(_) => ErrorCode::WebhooksNotTaken,
            Self::Refused(Refusal::Unsigned(_)) => ErrorCode::MissingWebhookSignature,
            Self::Refused(Refusal::WrongSignature) => ErrorCode::InvalidWebhookSignature,
            Self::Refused(Refusal::Expired(_)) => ErrorCode::ExpiredWebhookSignature,
            Self::Refused(Refusal::NoSecret(_) | Refusal::UnusableSecret) => ErrorCode::WebhookSecretMissing,
            Self::Json(_) => ErrorCode::InvalidJson,
            Self::Compressed => ErrorCode::InvalidContentEncoding,
            Self::TooMany => ErrorCode::TooManyWebhooks,
            Self::Busy | Self::NotStored => ErrorCode::IntakeBusy,
            Self::NoHandshake { .. } | Self::Refused(Refusal::UnusableChallenge(_)) => {
                ErrorCode::UnknownHandshake
            }
            Self::Failed(_) => ErrorCode::InternalServerError,
        }
    }
}

impl WebhookIngest {
    pub fn new(
        clock: Clock,
        store: Store,
        events: Arc<Events>,
        environments: Arc<Environments>,
        catalogue: Arc<Catalogue>,
        settings: &IngestSettings,
    ) -> Arc<Self> {
        let (queue, queued) = mpsc::channel(QUEUE);
        Arc::new(Self {
            clock,
            store,
            endpoints: Cache::new(Arc::clone(&events)),
            events,
            environments,
            catalogue,
            limits: ConcurrencyLimits::default(),
            held_bytes: Arc::new(Semaphore::new(settings.held_bytes)),
            queue,
            queued: Mutex::new(queued),
            max_body_bytes: settings.max_body_bytes,
        })
    }

    /// The longest body that is taken.
    pub fn max_body_bytes(&self) -> usize {
        self.max_body_bytes
    }

    /// Room for so many more bytes of a request, until what this gives is dropped.
    pub fn hold(&self, bytes: usize) -> Result<OwnedSemaphorePermit, IngestError> {
        let bytes = u32::try_from(bytes).map_err(|_| IngestError::Busy)?;
        Arc::clone(&self.held_bytes).try_acquire_many_owned(bytes).map_err(|_| IngestError::Busy)
    }

    /// Lets integrations be read again: one was changed.
    pub(crate) fn forget(&self) {
        self.endpoints.invalidate();
    }

    async fn queue_up(&self, webhook: NewWebhook) -> Result<Ingested, IngestError> {
        let id = webhook.id;
        let (done, stored) = oneshot::channel();
        self.queue.try_send(Queued { webhook, done }).map_err(|_| IngestError::Busy)?;
        match stored.await {
            Ok(true) => Ok(Ingested::Stored(id)),
            Ok(false) => Ok(Ingested::Duplicate),
            Err(_) => Err(IngestError::NotStored),
        }
    }
}

impl WebhookEndpoint {
    /// A place among the requests that are in hand.
    pub fn acquire_permit(&self) -> Result<OwnedSemaphorePermit, IngestError> {
        Arc::clone(&self.in_hand).try_acquire_owned().map_err(|_| IngestError::TooMany)
    }

    pub fn provider(&self) -> &ProviderSlug {
        &self.provider.name
    }

    /// Whose a request is, and what is to be kept of it.
    fn verify_request(
        &self,
        webhook: &Webhook,
        secrets: &WebhookSecrets,
        request: WebhookRequest<'_>,
        now: DateTime<Utc>,
    ) -> Result<VerifiedRequest, IngestError> {
        let WebhookRequest { method, url, query, headers, body } = request;
        let raw = RawBody::new(headers, body, webhook.form_member.as_deref());
        let incoming = IncomingWebhook { method, url, query, headers, body, raw };
        let answered = answer_handshake(webhook, secrets, &incoming).transpose()?;
        let keeps = matches!(answered, Some(Answered::Kept));
        if let Some(answered) = answered.filter(|_| !keeps) {
            return Ok(VerifiedRequest::Handshake(answered));
        }
        if *method != Method::POST {
            return Err(IngestError::NoHandshake { provider: self.provider.name.clone() });
        }
        if keeps && body.len() <= MAX_HANDSHAKE_BYTES {
            // It is anybody's, so no delivery may be taken for it either.
            let new = NewWebhook { delivery_id: None, ..self.read(webhook, request, &raw, None)? };
            return Ok(VerifiedRequest::Kept(Box::new(new)));
        }
        let verified = verify_webhook(webhook, secrets, &incoming, now)?;
        self.read(webhook, request, &raw, verified.fingerprint)
            .map(|new| VerifiedRequest::Webhook(Box::new(new)))
    }

    /// What is stored of a webhook.
    fn read(
        &self,
        webhook: &Webhook,
        request: WebhookRequest<'_>,
        raw: &RawBody<'_>,
        fingerprint: Option<String>,
    ) -> Result<NewWebhook, IngestError> {
        let WebhookRequest { query, headers, body, .. } = request;
        let payload = Payload::parse(headers, body, webhook).map_err(IngestError::Json)?;
        let view = View { headers, query, json: &payload.json };
        let event = payload.events(webhook).into_iter().next();
        let event_type = View { json: event.unwrap_or(&Value::Null), ..view }.first(&webhook.event_type);
        let id = view.first(&webhook.id).map(|id| delivery_key(id, query));
        let fingerprint = fingerprint.map(|signed| delivery_key(signed, query));
        Ok(NewWebhook {
            id: Uuid::now_v7(),
            environment: self.environment.pk,
            integration: self.integration,
            event_type: event_type.map(|text| shortened(&text)),
            delivery_id: id.or_else(|| fingerprint.clone()),
            fingerprint: fingerprint.filter(|_| !webhook.signs_its_id()),
            headers: kept_headers(headers, &webhook.verification),
            query: kept_query(query, &webhook.verification),
            format: payload.format,
            body: kept_body(raw, body, &webhook.verification),
        })
    }

    fn webhook(&self) -> Result<&Webhook, IngestError> {
        self.provider.webhook.as_ref().ok_or_else(|| IngestError::NotTaken(self.provider.name.clone()))
    }
}

impl WebhookIngest {
    /// Where the provider of an integration calls.
    pub async fn find(
        &self,
        environment: Uuid,
        key: &IntegrationKey,
    ) -> Result<Arc<WebhookEndpoint>, IngestError> {
        let read = self.read_endpoint(environment, key);
        self.endpoints.get((environment, key.clone()), read).await
    }

    async fn read_endpoint(
        &self,
        id: Uuid,
        key: &IntegrationKey,
    ) -> Result<Arc<WebhookEndpoint>, IngestError> {
        let failed = |error: anyhow::Error| IngestError::Failed(error);
        let mut conn = self.store.connect().await.map_err(|error| failed(error.into()))?;
        let found =
            integrations::find_by_address(&mut conn, id, key).await.map_err(|error| failed(error.into()))?;
        let Some(integration) = found else {
            let is_known = self.environments.list().iter().any(|environment| environment.id == id);
            return Err(match is_known {
                true => IngestError::UnknownIntegration(key.clone()),
                false => IngestError::UnknownEnvironment(id),
            });
        };
        let slug = &integration.provider;
        let provider = self.catalogue.find(slug).ok_or_else(|| IngestError::NotTaken(slug.clone()))?;
        let environment =
            self.environments.get(integration.environment).await.map_err(|error| failed(error.into()))?;
        Ok(Arc::new(WebhookEndpoint {
            secrets: open_secrets(&environment, &integration).map_err(failed)?,
            environment,
            integration: integration.pk,
            key: integration.unique_key,
            provider: Arc::clone(provider),
            in_hand: self.limits.of(integration.pk),
        }))
    }

    /// Takes a request in, and gives what it is answered with. A webhook is stored by then.
    pub async fn take(
        &self,
        endpoint: &WebhookEndpoint,
        request: WebhookRequest<'_>,
    ) -> Result<Ingested, IngestError> {
        let webhook = endpoint.webhook()?;
        let secrets = self.secrets_for(endpoint, webhook, request.query).await?;
        let now = self.clock.now();
        let verify_request = || endpoint.verify_request(webhook, &secrets, request, now);
        let verified = match request.body.len() {
            0..=LONG_BODY_BYTES => verify_request()?,
            _ => tokio::task::block_in_place(verify_request)?,
        };
        match verified {
            VerifiedRequest::Handshake(answered) => Ok(Ingested::Handshake(answered)),
            VerifiedRequest::Kept(new) => self.keep_handshake(&new).await,
            VerifiedRequest::Webhook(new) => self.queue_up(*new).await,
        }
    }

    async fn keep_handshake(&self, new: &NewWebhook) -> Result<Ingested, IngestError> {
        let kept = async {
            let mut conn = self.store.connect().await?;
            inbound_webhooks::keep_handshake(&mut conn, new, KEPT_HANDSHAKES).await
        };
        kept.await.map_err(|error| IngestError::Failed(error.into()))?;
        Ok(Ingested::Handshake(Answered::Kept))
    }

    /// The secrets with which a request to this URL may be signed.
    async fn secrets_for<'e>(
        &self,
        endpoint: &'e WebhookEndpoint,
        webhook: &Webhook,
        query: &str,
    ) -> Result<Cow<'e, WebhookSecrets>, IngestError> {
        let named = connection_parameter(query).and_then(|id| id.parse::<ConnectionId>().ok());
        let Some(id) = named.filter(|_| webhook.verification.secret_source() == SecretSource::Connection)
        else {
            return Ok(Cow::Borrowed(&endpoint.secrets));
        };
        let found = async {
            let mut conn = self.store.connect().await?;
            connections::find(&mut conn, endpoint.environment.pk, &endpoint.key, &id).await
        };
        let found = found.await.map_err(|error| IngestError::Failed(error.into()))?;
        let metadata = found.and_then(|connection| connection.metadata).unwrap_or_default();
        let connection = metadata["webhook_secret"].as_str().filter(|secret| !secret.is_empty());
        let connection = connection.map(|secret| Secret::new(secret.to_owned()));
        Ok(Cow::Owned(WebhookSecrets { connection, ..endpoint.secrets.clone() }))
    }
}

/// What tells a delivery from others. Two connections may be sent the same: then the URL tells them apart.
fn delivery_key(id: String, query: &str) -> String {
    let id = match connection_parameter(query) {
        Some(connection) => format!("{id}@{connection}"),
        None => id,
    };
    if id.len() <= MAX_NAME_BYTES && !id.contains('\0') {
        return id;
    }
    format!("hash:{}", blake3::hash(id.as_bytes()).to_hex())
}

fn shortened(text: &str) -> String {
    sanitize_text(&text[..text.floor_char_boundary(MAX_NAME_BYTES)])
}

fn kept_headers(headers: &HeaderMap, verification: &Verification) -> Value {
    let carries_secret =
        |name: &HeaderName| verification.carried_secret() == Some(&Locator::Header(name.clone()));
    let is_own = |name: &HeaderName| {
        // Names are written in lower case already.
        OWN_PREFIXES.iter().any(|own| name.as_str().starts_with(own)) || OWN_NAMES.contains(name)
    };
    let mut kept = Map::new();
    for name in headers.keys().filter(|name| !is_own(name) && !carries_secret(name)) {
        let values: Vec<&str> =
            headers.get_all(name).iter().filter_map(|value| value.to_str().ok()).collect();
        if !values.is_empty() {
            kept.insert(name.to_string(), values.join(", ").into());
        }
    }
    Value::Object(kept)
}

fn kept_query(query: &str, verification: &Verification) -> String {
    let Some(Locator::Query(secret)) = verification.carried_secret() else { return sanitize_text(query) };
    let kept = url::form_urlencoded::parse(query.as_bytes()).filter(|(name, _)| name != secret);
    url::form_urlencoded::Serializer::new(String::new()).extend_pairs(kept).finish()
}

fn kept_body(raw: &RawBody<'_>, body: &[u8], verification: &Verification) -> Vec<u8> {
    match verification.carried_secret() {
        Some(Locator::Json(secret)) => raw.without(secret),
        _ => body.to_vec(),
    }
}

/// The secrets with which a provider may sign: those of the app's credentials, and those of the settings, which every
/// integration can have.
fn open_secrets(
    environment: &Environment,
    integration: &integrations::Integration,
) -> anyhow::Result<WebhookSecrets> {
    let key = &environment.data_key;
    let mut secrets = WebhookSecrets::default();
    if let Some(sealed) = &integration.sealed_credentials {
        let credentials = AppCredentials::open(key, integration.id, sealed)?;
        if let Some(app) = credentials.oauth() {
            secrets.webhook.extend(app.webhook_secret.clone());
            secrets.client = Some(app.client_secret.clone());
        }
    }
    if let Some(sealed) = &integration.sealed_settings {
        let mut settings = IntegrationSettings::open(key, integration.id, sealed)?;
        let found = ["webhook_secret", "former_webhook_secret"].map(|name| settings.custom.remove(name));
        secrets.webhook.extend(found.into_iter().flatten());
    }
    secrets.webhook.retain(|secret| !secret.expose().is_empty());
    Ok(secrets)
}

impl WebhookIngest {
    /// Drops cached endpoints when an integration or an environment was changed, until `shutdown`.
    pub async fn invalidate(self: Arc<Self>, shutdown: CancellationToken) {
        let mut events = self.events.subscribe();
        // Events may have been missed before the subscription.
        self.forget();
        while let Some(Some(event)) = shutdown.run_until_cancelled(events.next()).await {
            if matches!(event, Event::Integrations | Event::Environments | Event::Missed) {
                self.forget();
            }
        }
    }

    /// Stores what is queued, as much as there is at a time, until `shutdown` and until the queue is empty. Several may
    /// work at the same time: while one waits for the disk, the next fills a transaction.
    pub async fn store_queued(self: Arc<Self>, shutdown: CancellationToken) {
        loop {
            let mut group = Vec::with_capacity(GROUP);
            let mut queued = self.queued.lock().await;
            if shutdown.run_until_cancelled(queued.recv_many(&mut group, GROUP)).await.is_none() {
                queued.close();
                queued.recv_many(&mut group, GROUP).await;
            }
            drop(queued);
            if group.is_empty() {
                return;
            }
            while !group.is_empty() {
                let mut bytes = 0;
                let fitting = group.iter().take_while(|queued| {
                    bytes += queued.webhook.body.len();
                    bytes <= GROUP_BYTES
                });
                let fitting = fitting.count().max(1);
                store_group(&self.store, group.drain(..fitting).collect()).await;
                self.events.publish(Event::Received);
            }
        }
    }
}

async fn store_group(store: &Store, group: Vec<Queued>) {
    let (webhooks, waiting): (Vec<_>, Vec<_>) =
        group.into_iter().map(|queued| (queued.webhook, queued.done)).unzip();
    let stored = async { inbound_webhooks::insert(&mut *store.connect().await?, &webhooks).await };
    let stored: HashSet<Uuid> = match tokio::time::timeout(STORED_WITHIN, stored).await {
        Ok(Ok(stored)) => stored.into_iter().collect(),
        Ok(Err(error)) => {
            tracing::error!(error = &error as &dyn std::error::Error, "received webhooks were not stored");
            return;
        }
        Err(_) => {
            tracing::error!("the database did not store received webhooks in time");
            return;
        }
    };
    for (webhook, done) in webhooks.iter().zip(waiting) {
        // Whoever went away meanwhile sends it again, and finds it stored.
        let _went_away = done.send(stored.contains(&webhook.id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_the_way_and_secrets_are_not_kept() {
        let token = Verification::Token(toml::from_str("token = \"header:x-gitlab-token\"").unwrap());
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("x-gitlab-event", "push"),
            ("x-gitlab-token", "secret"),
            ("authorization", "Basic secret"),
            ("cookie", "a=secret"),
            ("transfer-encoding", "chunked"),
            ("telnyx-timestamp", "3"),
            ("x-many", "1"),
            ("x-many", "2"),
        ] {
            headers.append(name, value.parse().unwrap());
        }
        let kept = kept_headers(&headers, &token);
        assert_eq!(
            kept,
            serde_json::json!({ "telnyx-timestamp": "3", "x-gitlab-event": "push", "x-many": "1, 2" })
        );
        let token = Verification::Token(toml::from_str("token = \"query:secret\"").unwrap());
        assert_eq!(kept_query("a=1&secret=x&connection_id=c%201", &token), "a=1&connection_id=c+1");
    }
}
