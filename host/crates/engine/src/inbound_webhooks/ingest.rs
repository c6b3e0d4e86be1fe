//! Receives provider webhooks: verifies them, stores them, and only then acknowledges them.
//!
//! One transaction stores webhooks that arrive at the same time, and each is acknowledged after the commit. The memory
//! for requests that are not stored yet is bounded. A host without free memory refuses a request, and the provider
//! sends it again.

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

use crate::body_memory::{BodyMemory, BodyOwner, HeldBody};
use crate::inbound_webhooks::payload::Outline;
use crate::inbound_webhooks::routing::connection_parameter;
use syncline_auth::{
    Answered, AppCredentials, Cache, Environment, Environments, IncomingWebhook, IntegrationSettings,
    Refusal, WebhookSecrets, answer_handshake, verify_webhook,
};
use syncline_providers::webhook::{
    Locator, RawBody, SecretSource, Verification, Webhook, form_members, is_form,
};
use syncline_providers::{Catalogue, Provider};
use syncline_store::events::{Event, Events};
use syncline_store::inbound_webhooks::{self, NewWebhook};
use syncline_store::{Store, connections, integrations};
use syncline_telemetry::clock::Clock;
use syncline_types::error_code::ErrorCode;
use syncline_types::ids::{ConnectionId, IntegrationKey, IntegrationPk, ProviderSlug};
use syncline_types::sanitize::sanitize_text;
use syncline_types::secret::Secret;

/// Concurrent requests of one integration on this host.
const MAX_CONCURRENT: usize = 512;
/// Maximum number of webhooks that wait to be stored.
const QUEUE: usize = 4096;
/// Maximum number and bytes of webhooks that one statement stores.
const GROUP: usize = 256;
const GROUP_BYTES: usize = 8 << 20;
/// Stored handshakes are not authenticated. These limit their length, and their number per integration.
const MAX_HANDSHAKE_BYTES: usize = 64 << 10;
const KEPT_HANDSHAKES: i64 = 10;
/// Longer bodies are verified and parsed on a thread that serves no other requests, because anyone can send one. The
/// most expensive kind is a form with many short members, which must be sorted: it takes 5 ms at this length.
const LONG_BODY_BYTES: usize = 16 << 10;
/// Maximum number of members of a form. Each occupies many times its length, and they are sorted before the signature
/// is known to be valid. The longest known forms have about a hundred members.
const MAX_FORM_MEMBERS: usize = 10_000;
/// Short, because a provider waits for only a few seconds.
const STORE_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_NAME_BYTES: usize = 255;

/// Prefixes of headers that are not passed on, because they concern the transport or contain secrets.
const DROPPED_PREFIXES: [&str; 15] = [
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
/// Complete names of headers that are not passed on, because they would mean something else in the next request.
const DROPPED_NAMES: [HeaderName; 6] = [
    header::ACCEPT_ENCODING,
    header::EXPECT,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// The endpoint to which the provider of one integration sends webhooks.
pub struct WebhookEndpoint {
    environment: Arc<Environment>,
    integration: IntegrationPk,
    key: IntegrationKey,
    provider: Arc<Provider>,
    secrets: WebhookSecrets,
    permits: Arc<Semaphore>,
}

/// Settings of webhook ingestion that an operator can change.
#[derive(Debug, Clone)]
pub struct IngestSettings {
    /// Maximum length of a webhook body, in bytes.
    pub max_body_bytes: usize,
    /// Maximum memory for provider webhooks that are not stored yet, in bytes.
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
    memory: Arc<BodyMemory>,
    queue: mpsc::Sender<Queued>,
    queued: Mutex<mpsc::Receiver<Queued>>,
    max_body_bytes: usize,
}

/// The concurrency limit of each integration. It outlives cached endpoints, which are dropped whenever any integration
/// changes.
#[derive(Default)]
struct ConcurrencyLimits(std::sync::Mutex<HashMap<IntegrationPk, Weak<Semaphore>>>);

impl ConcurrencyLimits {
    fn of(&self, integration: IntegrationPk) -> Arc<Semaphore> {
        let mut limits = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = limits.get(&integration).and_then(Weak::upgrade) {
            return known;
        }
        let new = Arc::new(Semaphore::new(MAX_CONCURRENT));
        limits.retain(|_, permits| permits.strong_count() > 0);
        limits.insert(integration, Arc::downgrade(&new));
        new
    }
}

/// A request after verification.
enum VerifiedRequest {
    Handshake(Answered),
    /// A handshake that the operator must look at.
    Kept(Box<NewWebhook>),
    Webhook(Box<NewWebhook>),
}

struct Queued {
    webhook: NewWebhook,
    /// Receives whether the webhook is new. Dropped without a value if storing failed.
    done: oneshot::Sender<bool>,
}

/// An incoming request.
#[derive(Debug, Clone, Copy)]
pub struct WebhookRequest<'a> {
    pub method: &'a Method,
    /// The URL as the provider knows it, with its query.
    pub url: &'a str,
    pub query: &'a str,
    pub headers: &'a HeaderMap,
    pub body: &'a [u8],
}

/// The response to a request.
#[derive(Debug)]
pub enum Ingested {
    Handshake(Answered),
    /// The webhook is stored under this id.
    Stored(Uuid),
    /// The webhook was stored already.
    Duplicate,
}

/// Why a request is refused.
#[derive(Debug, thiserror::Error)]
pub enum IngestError {
    #[error("there is no environment `{0}`; check the webhook URL")]
    UnknownEnvironment(Uuid),
    #[error("there is no integration `{0}` in this environment; check the webhook URL")]
    UnknownIntegration(IntegrationKey),
    #[error("webhooks from `{0}` are not supported: the catalogue has no signature scheme for it")]
    NotTaken(ProviderSlug),
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error("the body is not JSON: {0}")]
    Json(String),
    #[error("bodies with Content-Encoding are not supported; send the body uncompressed")]
    Compressed,
    #[error(
        "this host's limit of concurrent webhooks for this integration is reached; send the webhook again later"
    )]
    TooMany,
    #[error(
        "this host's memory for incoming webhooks, or the share of this integration, is full; send the webhook again \
         later"
    )]
    Busy,
    #[error("the form has more than {MAX_FORM_MEMBERS} members")]
    TooManyMembers,
    #[error("the webhook could not be stored; send it again later")]
    NotStored,
    #[error("this is not a known handshake of `{provider}`; send webhooks with POST")]
    NoHandshake { provider: ProviderSlug },
    #[error("the integration of this webhook could not be looked up")]
    Failed(#[source] anyhow::Error),
}

impl IngestError {
    /// The stable code. If its status is 5xx, the provider may send the webhook again.
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
            Self::TooManyMembers => ErrorCode::PayloadTooLarge,
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
            memory: BodyMemory::new(settings.held_bytes),
            queue,
            queued: Mutex::new(queued),
            max_body_bytes: settings.max_body_bytes,
        })
    }

    /// Maximum length of a body that is accepted, in bytes.
    pub fn max_body_bytes(&self) -> usize {
        self.max_body_bytes
    }

    /// Begins to hold the body of a request to this endpoint. It can use the shares of the integration and of its
    /// environment.
    pub fn hold(&self, endpoint: &WebhookEndpoint) -> HeldBody {
        self.memory.hold(&[
            BodyOwner::Environment(endpoint.environment.pk),
            BodyOwner::Integration(endpoint.integration),
        ])
    }

    /// Invalidates cached endpoints after an integration changed.
    pub(crate) fn forget(&self) {
        self.endpoints.invalidate();
    }

    async fn enqueue(&self, webhook: NewWebhook) -> Result<Ingested, IngestError> {
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
    /// Acquires a permit for one concurrent request.
    pub fn acquire_permit(&self) -> Result<OwnedSemaphorePermit, IngestError> {
        Arc::clone(&self.permits).try_acquire_owned().map_err(|_| IngestError::TooMany)
    }

    pub fn provider(&self) -> &ProviderSlug {
        &self.provider.name
    }

    /// Verifies a request and builds the row to store.
    fn verify_request(
        &self,
        webhook: &Webhook,
        secrets: &WebhookSecrets,
        request: WebhookRequest<'_>,
        now: DateTime<Utc>,
    ) -> Result<VerifiedRequest, IngestError> {
        let WebhookRequest { method, url, query, headers, body } = request;
        if (is_form(headers) || webhook.signs_form()) && form_members(body) > MAX_FORM_MEMBERS {
            return Err(IngestError::TooManyMembers);
        }
        let raw = RawBody::new(headers, body, webhook.form_member.as_deref());
        let incoming = IncomingWebhook { method, url, query, headers, body, raw };
        let answered = answer_handshake(webhook, secrets, &incoming).transpose()?;
        let is_kept = matches!(answered, Some(Answered::Kept));
        if let Some(answered) = answered.filter(|_| !is_kept) {
            return Ok(VerifiedRequest::Handshake(answered));
        }
        if *method != Method::POST {
            return Err(IngestError::NoHandshake { provider: self.provider.name.clone() });
        }
        if is_kept && body.len() <= MAX_HANDSHAKE_BYTES {
            // The handshake is not authenticated, so it must not count as a delivery with this id.
            let new = NewWebhook { delivery_id: None, ..self.read(webhook, request, &raw, None)? };
            return Ok(VerifiedRequest::Kept(Box::new(new)));
        }
        let verified = verify_webhook(webhook, secrets, &incoming, now)?;
        self.read(webhook, request, &raw, verified.fingerprint)
            .map(|new| VerifiedRequest::Webhook(Box::new(new)))
    }

    /// Parses a webhook into the row that is stored.
    fn read(
        &self,
        webhook: &Webhook,
        request: WebhookRequest<'_>,
        raw: &RawBody<'_>,
        fingerprint: Option<String>,
    ) -> Result<NewWebhook, IngestError> {
        let WebhookRequest { query, headers, body, .. } = request;
        let outline = Outline::parse(headers, body, webhook).map_err(IngestError::Json)?;
        let event_type = outline.event_type(headers, query, webhook);
        let id = outline.id(headers, query, webhook).map(|id| delivery_key(id, query));
        let fingerprint = fingerprint.map(|signed| delivery_key(signed, query));
        Ok(NewWebhook {
            id: Uuid::now_v7(),
            environment: self.environment.pk,
            integration: self.integration,
            event_type: event_type.map(|text| shortened(&text)),
            delivery_id: id.or_else(|| fingerprint.clone()),
            fingerprint: fingerprint.filter(|_| !webhook.signs_its_id()),
            headers: stored_headers(headers, &webhook.verification),
            query: stored_query(query, &webhook.verification),
            format: outline.format,
            body: stored_body(raw, body, &webhook.verification),
        })
    }

    fn webhook(&self) -> Result<&Webhook, IngestError> {
        self.provider.webhook.as_ref().ok_or_else(|| IngestError::NotTaken(self.provider.name.clone()))
    }
}

impl WebhookIngest {
    /// Returns the endpoint of an integration.
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
            provider,
            permits: self.limits.of(integration.pk),
        }))
    }

    /// Verifies a request, stores it if it is a webhook, and returns the response.
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
            VerifiedRequest::Webhook(new) => self.enqueue(*new).await,
        }
    }

    async fn keep_handshake(&self, new: &NewWebhook) -> Result<Ingested, IngestError> {
        let stored = async {
            let mut conn = self.store.connect().await?;
            inbound_webhooks::keep_handshake(&mut conn, new, KEPT_HANDSHAKES).await
        };
        stored.await.map_err(|error| IngestError::Failed(error.into()))?;
        Ok(Ingested::Handshake(Answered::Kept))
    }

    /// Returns the secrets that may sign a request to this URL.
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
        let metadata = found.and_then(|connection| connection.metadata).unwrap_or_default().to_value();
        let connection = metadata["webhook_secret"].as_str().filter(|secret| !secret.is_empty());
        let connection = connection.map(|secret| Secret::new(secret.to_owned()));
        Ok(Cow::Owned(WebhookSecrets { connection, ..endpoint.secrets.clone() }))
    }
}

/// Identifies a delivery. A provider may send the same delivery to two connections; then the URL distinguishes them.
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

fn stored_headers(headers: &HeaderMap, verification: &Verification) -> Value {
    let carries_secret =
        |name: &HeaderName| verification.carried_secret() == Some(&Locator::Header(name.clone()));
    let is_dropped = |name: &HeaderName| {
        // `HeaderName` is always in lower case.
        DROPPED_PREFIXES.iter().any(|prefix| name.as_str().starts_with(prefix))
            || DROPPED_NAMES.contains(name)
    };
    let mut stored = Map::new();
    for name in headers.keys().filter(|name| !is_dropped(name) && !carries_secret(name)) {
        let values: Vec<&str> =
            headers.get_all(name).iter().filter_map(|value| value.to_str().ok()).collect();
        if !values.is_empty() {
            stored.insert(name.to_string(), values.join(", ").into());
        }
    }
    Value::Object(stored)
}

fn stored_query(query: &str, verification: &Verification) -> String {
    let Some(Locator::Query(secret)) = verification.carried_secret() else { return sanitize_text(query) };
    let stored = url::form_urlencoded::parse(query.as_bytes()).filter(|(name, _)| name != secret);
    url::form_urlencoded::Serializer::new(String::new()).extend_pairs(stored).finish()
}

fn stored_body(raw: &RawBody<'_>, body: &[u8], verification: &Verification) -> Vec<u8> {
    match verification.carried_secret() {
        Some(Locator::Json(secret)) => raw.without(secret),
        _ => body.to_vec(),
    }
}

/// Decrypts the secrets with which a provider may sign: those of the app's credentials, and those of the integration's
/// settings.
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
    /// Drops cached endpoints after an integration or environment changed, until `shutdown`.
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

    /// Stores queued webhooks in groups, until `shutdown` and an empty queue. Several tasks may do so concurrently:
    /// while one waits for the disk, the next prepares its transaction.
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
    let stored: HashSet<Uuid> = match tokio::time::timeout(STORE_TIMEOUT, stored).await {
        Ok(Ok(stored)) => stored.into_iter().collect(),
        Ok(Err(error)) => {
            tracing::error!(
                error = &error as &dyn std::error::Error,
                "could not store inbound webhooks; their providers send them again"
            );
            return;
        }
        Err(_) => {
            tracing::error!("storing inbound webhooks timed out; their providers send them again");
            return;
        }
    };
    for (webhook, done) in webhooks.iter().zip(waiting) {
        // If the client disconnected meanwhile, it sends the webhook again, which is then a duplicate.
        let _disconnected = done.send(stored.contains(&webhook.id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transport_headers_and_secrets_are_not_stored() {
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
        let stored = stored_headers(&headers, &token);
        assert_eq!(
            stored,
            serde_json::json!({ "telnyx-timestamp": "3", "x-gitlab-event": "push", "x-many": "1, 2" })
        );
        let token = Verification::Token(toml::from_str("token = \"query:secret\"").unwrap());
        assert_eq!(stored_query("a=1&secret=x&connection_id=c%201", &token), "a=1&connection_id=c+1");
    }
}
