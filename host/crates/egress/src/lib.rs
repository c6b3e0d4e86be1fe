//! The egress gateway: every request that the host sends for a guest or a client passes through it.
//!
//! It determines the destination ([`boundary`]), adds the connection's credentials for the provider only
//! ([`credentials`]), blocks private addresses ([`resolver`], [`client`]), follows redirects under the same rules
//! ([`attempt`]), and retries where that can help ([`retry`]).

mod address;
mod answer_body;
mod attempt;
mod boundary;
mod client;
mod credentials;
mod decode;
mod error;
mod failure;
mod forward;
mod headers;
mod host_pattern;
mod mask;
mod message;
mod oauth1;
mod redirect;
mod resolver;
mod retry;
mod settings;
mod upload;
mod wsse;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode};
use serde_json::{Map, Value};
use url::Url;

use attempt::{Answer, Call, ReadWhole, Receive};
use boundary::{Boundary, Side};
use client::Clients;
use decode::Encoding;
use retry::Retries;
use upload::Payload;

pub use address::is_public;
pub use answer_body::AnswerBody;
pub use client::EgressSetupError;
pub use credentials::{CredentialSource, Credentials, FinalAnswer, FixedCredentials};
pub use error::{CredentialsUnavailable, EgressError, UploadFailure};
pub use forward::{ForwardedBody, ForwardedRequest};
pub use host_pattern::{HostPattern, InvalidHostPattern};
pub use mask::mask_url;
pub use message::retry_after;
pub use oauth1::{Handshake, OAuth1Keys};
pub use resolver::{Lookup, SystemLookup};
pub use settings::{EgressSettings, HostPort, InvalidHostPort};
pub use upload::Incoming;
pub use upload::TakeMemory;

use syncline_providers::{Provider, UnusableConfig};
use syncline_telemetry::clock::Clock;

/// Requests that waited together continue with a random delay of up to this duration.
const MAX_SPREAD: Duration = Duration::from_secs(1);
/// The minimum time for which a request may wait to stay below the provider's rate, even without patience.
const MIN_RATE_LIMIT_WAIT: Duration = Duration::from_secs(10);
/// The maximum time for which a request may wait to stay below the provider's rate, regardless of its patience.
const MAX_RATE_LIMIT_WAIT: Duration = Duration::from_secs(60);

/// Sends requests under the rules of this module. A host has one gateway, which owns the pooled connections.
pub struct EgressGateway {
    clock: Clock,
    clients: Clients,
    settings: EgressSettings,
}

/// The destination and credentials of a connection's requests.
#[derive(Clone)]
pub struct Route {
    pub provider: Arc<Provider>,
    /// Replaces the provider's own base URL, from the integration's `base_url`.
    pub base_url: Option<Url>,
    pub connection_config: Map<String, Value>,
    pub usual_base: UsualBase,
    /// Further hosts that are allowed. Requests to them carry no credentials.
    pub allow_hosts: Vec<HostPattern>,
    pub credentials: Arc<dyn CredentialSource>,
    /// The function's limit for an answer. The gateway's own limit applies in addition.
    pub max_response_bytes: Option<usize>,
    pub rate_limiter: Arc<dyn RateLimiter>,
}

/// The base URL that the catalogue defines for a connection. Computed at the first request.
#[derive(Clone, Default)]
pub struct UsualBase(OnceLock<Result<Option<Url>, UnusableConfig>>);

impl Route {
    /// Returns the base URL for this connection, or `None` if the provider has no fixed one.
    fn base(&self) -> Result<Option<&Url>, EgressError> {
        match &self.base_url {
            Some(base_url) => Ok(Some(base_url)),
            None => self.usual_base().map_err(|unusable| EgressError::invalid(unusable.to_string())),
        }
    }

    /// A full URL below the provider's usual base URL means the path, because this connection may have another base
    /// URL. The connection's own base URL is tried first: the usual one may be a prefix of it.
    fn path_below_base<'u>(&self, url: &'u str) -> &'u str {
        let bases = [self.base().ok().flatten(), self.usual_base().ok().flatten()];
        bases.into_iter().flatten().find_map(|base| boundary::behind(url, base)).unwrap_or(url)
    }

    fn usual_base(&self) -> Result<Option<&Url>, &UnusableConfig> {
        let compute = || self.provider.base_url(&self.connection_config);
        self.usual_base.0.get_or_init(compute).as_ref().map(Option::as_ref)
    }
}

/// Keeps the requests of a connection below its provider's rate limit.
pub trait RateLimiter: Send + Sync {
    /// Returns the remaining time of the backoff that the provider requested, or `None` if there is none.
    fn backoff_left(&self) -> Option<Duration>;

    /// Returns the time to wait to stay below the provider's rate. `None` admits and counts the request. A request
    /// that would wait longer than `patience` is admitted, too: the provider rejects it if necessary.
    fn admit(&self, patience: Duration) -> Option<Duration>;

    /// Holds back all requests for the duration that the provider requested.
    fn back_off(&self, wait: Duration);

    /// Records that a request has waited because of a rate limit.
    fn note_wait(&self, waited: Duration);
}

/// Applies no rate limit.
impl RateLimiter for () {
    fn backoff_left(&self) -> Option<Duration> {
        None
    }

    fn admit(&self, _patience: Duration) -> Option<Duration> {
        None
    }

    fn back_off(&self, _wait: Duration) {}

    fn note_wait(&self, _waited: Duration) {}
}

/// A request of a guest. Nothing in it has been checked.
#[derive(Clone, Default)]
pub struct Request {
    pub method: String,
    /// A path below the provider's base URL, or a full URL.
    pub url: String,
    /// Appended to the URL's own parameters, in this order.
    pub query: Vec<(String, String)>,
    pub headers: Vec<(String, String)>,
    pub body: Option<Bytes>,
    /// The number of retries. The default is the host's setting for methods that are safe to repeat, and 0 for others.
    pub retries: Option<u8>,
    /// The time limit of one attempt.
    pub timeout: Option<Duration>,
    /// How long the request may wait because of the provider's rate limit.
    pub patience: Duration,
}

/// The provider's answer, whatever its status.
#[derive(Debug, Clone)]
pub struct Response<B = Bytes> {
    pub status: StatusCode,
    pub headers: HeaderMap,
    /// Decompressed, unless the request asked for the body as it was sent.
    pub body: B,
}

/// Observes every exchange, including each retry and redirect, to log and count it.
pub trait Observer: Send + Sync {
    /// Called before each authenticated request, with all forms in which it carries the credentials, because the
    /// provider may repeat them in its answer.
    fn authenticating(&self, _secrets: &[&str]) {}

    fn exchanged(&self, exchange: &Exchange<'_>);
}

/// One request with its outcome. Contains no secrets.
#[derive(Debug)]
pub struct Exchange<'a> {
    /// The number of the attempt, counted from 1.
    pub attempt: u32,
    pub method: &'a Method,
    /// The URL with its secrets masked.
    pub url: &'a str,
    pub outcome: Result<StatusCode, &'a EgressError>,
    pub elapsed: Duration,
    pub sent_bytes: usize,
    /// The size after decompression. 0 if the body is forwarded as it arrives.
    pub received_bytes: usize,
}

impl EgressGateway {
    pub fn new(settings: EgressSettings, clock: Clock) -> Result<Self, EgressSetupError> {
        Self::with_lookup(settings, clock, Arc::new(SystemLookup))
    }

    /// Creates a gateway with its own name resolution. The resolved addresses are filtered as usual.
    pub fn with_lookup(
        settings: EgressSettings,
        clock: Clock,
        lookup: Arc<dyn Lookup>,
    ) -> Result<Self, EgressSetupError> {
        Ok(Self { clock, clients: Clients::new(&settings, &lookup)?, settings })
    }

    /// The clock that decides when rate limits end and tokens expire.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Sends one request and reads the whole answer. An error status is an answer, not an error.
    pub async fn send(
        &self,
        route: &Route,
        request: Request,
        observer: &dyn Observer,
    ) -> Result<Response, EgressError> {
        let settings = &self.settings;
        let method = parse_method(&request.method)?;
        let retries = Retries::new(settings, &method, request.retries);
        let boundary = Boundary { base: route.base()?, base_override: None, allow_hosts: &route.allow_hosts };
        let (url, side) = boundary.resolve(route.path_below_base(&request.url), &request.query)?;
        let max_bytes = route
            .max_response_bytes
            .map_or(settings.max_response_bytes, |own| own.min(settings.max_response_bytes));
        let call = Call {
            clock: &self.clock,
            clients: &self.clients,
            route,
            observer,
            boundary,
            url,
            side,
            method,
            headers: headers::parse(&request.headers)?,
            forwards_headers: false,
            payload: request.body.map_or(Payload::Empty, Payload::Whole),
            timeout: request.timeout.unwrap_or(settings.request_timeout).min(settings.max_request_timeout),
            connect_timeout: settings.connect_timeout,
            wait_deadline: self.clock.instant() + request.patience,
            receive: ReadWhole { max_bytes },
        };
        self.send_call(&call, retries, &[]).await
    }

    /// Sends a request, and retries it as long as that can help. `retry_on` are statuses to retry in addition to the
    /// default ones.
    async fn send_call<R: Receive>(
        &self,
        call: &Call<'_, R>,
        retries: Retries,
        retry_on: &[StatusCode],
    ) -> Result<Response<R::Body>, EgressError> {
        let (Answer { response, had_credentials }, credentials) =
            self.final_answer(call, retries, retry_on).await?;
        if let Some(used) = credentials.filter(|_| had_credentials) {
            let hints = &call.route.provider.proxy.retry;
            let answer = FinalAnswer {
                host: &boundary::host_of(&call.url),
                status: response.status,
                is_rate_limit: retry::is_rate_limit(response.status, &response.headers, hints),
            };
            call.route.credentials.answered(&used, &answer).await;
        }
        Ok(response)
    }

    /// Returns the answer to the last attempt, with the credentials that were used for it.
    async fn final_answer<R: Receive>(
        &self,
        call: &Call<'_, R>,
        mut retries: Retries,
        retry_on: &[StatusCode],
    ) -> Result<(Answer<R::Body>, Option<Arc<Credentials>>), EgressError> {
        let hints = &call.route.provider.proxy.retry;
        let mut may_refresh = true;
        call.wait_for_rate_limit().await?;
        let mut credentials = call.current_credentials().await?;
        let mut number = 1;
        loop {
            let outcome = call.attempt(number, credentials.as_ref()).await;
            number += 1;
            let is_held = outcome.as_ref().is_ok_and(|answer| call.record_rate_limit(answer));
            if !call.payload.can_be_sent_again() {
                return outcome.map(|answer| (answer, credentials));
            }
            if let (Ok(answer), Some(rejected)) = (&outcome, &credentials)
                && answer.had_credentials
                && answer.response.status == StatusCode::UNAUTHORIZED
                && std::mem::take(&mut may_refresh)
                && let Some(fresh) = call.route.credentials.refresh_after_rejection(rejected).await?
            {
                // The provider did not process the request, so repeating it is safe.
                credentials = Some(fresh);
                continue;
            }
            let requested_delay = match &outcome {
                Ok(Answer { response: Response { status, headers, .. }, .. })
                    if retry_on.contains(status) || retry::is_retryable(*status, headers, hints) =>
                {
                    retry::requested_delay(headers, hints, self.clock.system_time())
                }
                Err(error) if error.is_retryable() => None,
                _ => return outcome.map(|answer| (answer, credentials)),
            };
            // A backoff that holds back all requests of the connection also delays this retry.
            let wait =
                if is_held { retries.spend() } else { retries.next_wait(requested_delay, rand::random()) };
            let Some(wait) = wait else {
                return outcome.map(|answer| (answer, credentials));
            };
            // Dropping the answer releases its connection during the wait.
            drop(outcome);
            self.clock.sleep(wait).await;
            call.wait_for_rate_limit().await?;
            credentials = call.current_credentials().await?;
        }
    }

    /// Sends one request of the host itself, such as a token request. The rules for private addresses apply. The
    /// request carries no credentials of a connection, and there are no redirects or retries. `max_bytes` limits the
    /// answer.
    pub async fn send_own(
        &self,
        request: http::Request<Bytes>,
        timeout: Duration,
        max_bytes: usize,
    ) -> Result<Response, EgressError> {
        let (mut parts, body) = request.into_parts();
        let url = Url::parse(&parts.uri.to_string())
            .map_err(|_| EgressError::invalid("the request must have a full URL"))?;
        let host = boundary::host_of(&url);
        let client = self.clients.for_url(&url)?;
        Encoding::Decoded.ask(&mut parts.headers);
        let request = client.request(parts.method, url).headers(parts.headers).body(body);
        let exchange = attempt::transfer(&host, request, self.settings.connect_timeout, max_bytes);
        match tokio::time::timeout(timeout, exchange).await {
            Ok(answer) => answer,
            Err(_) => Err(EgressError::Timeout { host, after: timeout }),
        }
    }
}

impl<R> Call<'_, R> {
    async fn current_credentials(&self) -> Result<Option<Arc<Credentials>>, CredentialsUnavailable> {
        match self.side {
            Side::Provider => self.route.credentials.current().await.map(Some),
            Side::AllowedHost => Ok(None),
        }
    }

    /// Waits while the provider is rate limiting the connection, or would do so after more requests.
    async fn wait_for_rate_limit(&self) -> Result<(), EgressError> {
        if self.side != Side::Provider {
            return Ok(());
        }
        let began = self.clock.instant();
        let rate_limit_deadline =
            self.wait_deadline.clamp(began + MIN_RATE_LIMIT_WAIT, began + MAX_RATE_LIMIT_WAIT);
        loop {
            let now = self.clock.instant();
            let backoff_left = self.route.rate_limiter.backoff_left();
            let wait = backoff_left.or_else(|| {
                self.route.rate_limiter.admit(rate_limit_deadline.saturating_duration_since(now))
            });
            let Some(left) = wait else { return Ok(()) };
            if backoff_left.is_some() && now + left > self.wait_deadline {
                return Err(EgressError::RateLimited {
                    host: boundary::host_of(&self.url),
                    retry_after: left,
                });
            }
            // Spreads requests that waited together.
            let wait = left + (left / 10).min(MAX_SPREAD).mul_f64(rand::random());
            self.clock.sleep(wait).await;
            self.route.rate_limiter.note_wait(wait);
        }
    }

    /// Records a rate limit that an answer reports, for all requests that share it. Returns `true` if requests are now
    /// held back.
    fn record_rate_limit<B>(&self, Answer { response, had_credentials }: &Answer<B>) -> bool {
        let hints = &self.route.provider.proxy.retry;
        // A third party that a redirect led to cannot impose a rate limit.
        if !had_credentials || !retry::is_rate_limit(response.status, &response.headers, hints) {
            return false;
        }
        match retry::requested_delay(&response.headers, hints, self.clock.system_time()) {
            Some(wait) if !wait.is_zero() => {
                self.route.rate_limiter.back_off(wait);
                self.route.rate_limiter.backoff_left().is_some()
            }
            _ => false,
        }
    }
}

/// Ignores all exchanges.
impl Observer for () {
    fn exchanged(&self, _exchange: &Exchange<'_>) {}
}

fn parse_method(text: &str) -> Result<Method, EgressError> {
    let method = Method::from_bytes(text.as_bytes())
        .map_err(|_| EgressError::invalid(format!("`{}` is not an HTTP method", text.escape_debug())))?;
    check_method(&method)?;
    Ok(method)
}

/// CONNECT would open a tunnel around the gateway, and TRACE would return the credentials to the caller.
fn check_method(method: &Method) -> Result<(), EgressError> {
    if ["CONNECT", "TRACE"].iter().any(|refused| method.as_str().eq_ignore_ascii_case(refused)) {
        return Err(EgressError::invalid(format!("the method `{method}` is not allowed")));
    }
    Ok(())
}
