//! The one gate: every request that leaves the host for a guest or a client passes here.
//!
//! It finds out where a request goes ([`boundary`]), puts the connection's credentials in for the provider
//! and nobody else ([`credentials`]), keeps it away from private addresses ([`resolver`], [`client`]),
//! follows redirects under the same rules ([`attempt`]) and tries again where that helps ([`retry`]).

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
pub use credentials::{CredentialSource, Credentials, FixedCredentials};
pub use error::{CredentialsUnavailable, EgressError, UploadFailure};
pub use forward::{ForwardedBody, ForwardedRequest};
pub use host_pattern::{HostPattern, InvalidHostPattern};
pub use mask::mask_url;
pub use message::retry_after;
pub use oauth1::{Handshake, OAuth1Keys};
pub use resolver::{Lookup, SystemLookup};
pub use settings::{EgressSettings, HostPort, InvalidHostPort};
pub use upload::Incoming;

use syncline_providers::{Provider, UnusableConfig};
use syncline_telemetry::clock::Clock;

/// How far apart requests go on that were held back together.
const MAX_SPREAD: Duration = Duration::from_secs(1);
/// For so long a request waits to keep to a rate, also if nobody has patience for it …
const MIN_RATE_LIMIT_WAIT: Duration = Duration::from_secs(10);
/// … and whatever patience there is.
const MAX_RATE_LIMIT_WAIT: Duration = Duration::from_secs(60);

/// Sends requests under the rules above. One a host: it keeps the connections that are reused.
pub struct EgressGateway {
    clock: Clock,
    clients: Clients,
    settings: EgressSettings,
}

/// Whose requests they are: where the provider is for this connection, and what proves it.
#[derive(Clone)]
pub struct Route {
    pub provider: Arc<Provider>,
    /// The integration's `base_url`, in place of the provider's own address.
    pub base_url: Option<Url>,
    pub connection_config: Map<String, Value>,
    pub usual_base: UsualBase,
    /// Further hosts. Requests to them carry no credentials.
    pub allow_hosts: Vec<HostPattern>,
    pub credentials: Arc<dyn CredentialSource>,
    /// The function's own limit of an answer; the gate's stands above it.
    pub max_response_bytes: Option<usize>,
    pub rate_limiter: Arc<dyn RateLimiter>,
}

/// Where the catalogue says that a provider is for a connection: worked out at the first request.
#[derive(Clone, Default)]
pub struct UsualBase(OnceLock<Result<Option<Url>, UnusableConfig>>);

impl Route {
    /// Where the provider is for this connection. `None`: it has no fixed address.
    fn base(&self) -> Result<Option<&Url>, EgressError> {
        match &self.base_url {
            Some(base_url) => Ok(Some(base_url)),
            None => self.usual_base().map_err(|unusable| EgressError::invalid(unusable.to_string())),
        }
    }

    fn usual_base(&self) -> Result<Option<&Url>, &UnusableConfig> {
        let work_out = || self.provider.base_url(&self.connection_config);
        self.usual_base.0.get_or_init(work_out).as_ref().map(Option::as_ref)
    }
}

/// How requests of one connection keep to what its provider has said about too many of them.
pub trait RateLimiter: Send + Sync {
    /// How long requests are held back; `None` if they are not.
    fn backoff_left(&self) -> Option<Duration>;

    /// How long the next request has to wait to keep to the provider's rate; `None`: it may go, and is counted. So may
    /// one that would have to wait for longer than `patience`: the provider is the one to refuse it.
    fn admit(&self, patience: Duration) -> Option<Duration>;

    /// The provider asked to be left alone for so long.
    fn back_off(&self, wait: Duration);
}

/// For requests that are not counted with others.
impl RateLimiter for () {
    fn backoff_left(&self) -> Option<Duration> {
        None
    }

    fn admit(&self, _patience: Duration) -> Option<Duration> {
        None
    }

    fn back_off(&self, _wait: Duration) {}
}

/// A request as a guest states it. Nothing in it has been checked.
#[derive(Clone, Default)]
pub struct Request {
    pub method: String,
    /// A path behind the provider's base URL, or a whole URL.
    pub url: String,
    /// Appended to the URL's own, in this order.
    pub query: Vec<(String, String)>,
    pub headers: Vec<(String, String)>,
    pub body: Option<Bytes>,
    /// How often to try again; by default the host's number for methods that are safe to repeat, else 0.
    pub retries: Option<u8>,
    /// Time for one attempt.
    pub timeout: Option<Duration>,
    /// How long it may be held back because the provider had too many requests before.
    pub patience: Duration,
}

/// What the provider answered, whatever its status.
#[derive(Debug, Clone)]
pub struct Response<B = Bytes> {
    pub status: StatusCode,
    pub headers: HeaderMap,
    /// Decompressed, unless it was to be left as it is.
    pub body: B,
}

/// Sees every exchange, to log and to count it: each retry and each redirect is one.
pub trait Observer: Send + Sync {
    /// Called before each request that proves whose it is, with every form in which it carries the credentials: the
    /// provider may repeat them in its answer.
    fn authenticating(&self, _secrets: &[&str]) {}

    fn exchanged(&self, exchange: &Exchange<'_>);
}

/// One request on the wire and what came of it. Holds no secret.
#[derive(Debug)]
pub struct Exchange<'a> {
    /// From 1.
    pub attempt: u32,
    pub method: &'a Method,
    /// Masked.
    pub url: &'a str,
    pub outcome: Result<StatusCode, &'a EgressError>,
    pub elapsed: Duration,
    pub sent_bytes: usize,
    /// Decompressed. 0 if the body is passed on as it arrives.
    pub received_bytes: usize,
}

impl EgressGateway {
    pub fn new(settings: EgressSettings, clock: Clock) -> Result<Self, EgressSetupError> {
        Self::with_lookup(settings, clock, Arc::new(SystemLookup))
    }

    /// With name resolution of one's own. Its answers are filtered like any other.
    pub fn with_lookup(
        settings: EgressSettings,
        clock: Clock,
        lookup: Arc<dyn Lookup>,
    ) -> Result<Self, EgressSetupError> {
        Ok(Self { clock, clients: Clients::new(&settings, &lookup)?, settings })
    }

    /// Sends one request and reads the whole answer. An error status is an answer.
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
        let (url, side) = boundary.resolve(&request.url, &request.query)?;
        let most_bytes = route
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
            patient_until: self.clock.instant() + request.patience,
            receive: ReadWhole { most_bytes },
        };
        self.send_call(&call, retries, &[]).await
    }

    /// Sends a request as often as that helps. `retry_on` are statuses that mean "later" beside the usual ones.
    async fn send_call<R: Receive>(
        &self,
        call: &Call<'_, R>,
        mut retries: Retries,
        retry_on: &[StatusCode],
    ) -> Result<Response<R::Body>, EgressError> {
        let hints = &call.route.provider.proxy.retry;
        let mut may_refresh = true;
        call.keep_pace().await?;
        let mut credentials = call.current_credentials().await?;
        let mut number = 1;
        loop {
            let outcome = call.attempt(number, credentials.as_ref()).await;
            number += 1;
            let is_held = outcome.as_ref().is_ok_and(|answer| call.note_limit(answer));
            if !call.payload.can_be_sent_again() {
                return outcome.map(|answer| answer.response);
            }
            if let (Ok(answer), Some(rejected)) = (&outcome, &credentials)
                && answer.had_credentials
                && answer.response.status == StatusCode::UNAUTHORIZED
                && std::mem::take(&mut may_refresh)
                && let Some(fresh) = call.route.credentials.refresh_after_rejection(rejected).await?
            {
                // The provider did nothing with the request, so sending it again repeats nothing.
                credentials = Some(fresh);
                continue;
            }
            let told = match &outcome {
                Ok(Answer { response: Response { status, headers, .. }, .. })
                    if retry_on.contains(status) || retry::is_retryable(*status, headers, hints) =>
                {
                    retry::requested_delay(headers, hints, self.clock.system_time())
                }
                Err(error) if error.is_retryable() => None,
                _ => return outcome.map(|answer| answer.response),
            };
            // What holds back all requests of the connection holds back this one, too.
            let wait = if is_held { retries.spend() } else { retries.next_wait(told, rand::random()) };
            let Some(wait) = wait else {
                return outcome.map(|answer| answer.response);
            };
            // What is left of a refused answer must not keep its connection meanwhile.
            drop(outcome);
            self.clock.sleep(wait).await;
            call.keep_pace().await?;
            credentials = call.current_credentials().await?;
        }
    }

    /// Sends one request of the host's own, such as for a token, under the rules of addresses: no connection's
    /// credentials, no redirects, no retries. `most_bytes` bounds the answer.
    pub async fn send_own(
        &self,
        request: http::Request<Bytes>,
        timeout: Duration,
        most_bytes: usize,
    ) -> Result<Response, EgressError> {
        let (mut parts, body) = request.into_parts();
        let url = Url::parse(&parts.uri.to_string())
            .map_err(|_| EgressError::invalid("the request has no whole URL"))?;
        let host = boundary::host_of(&url);
        let client = self.clients.for_url(&url)?;
        Encoding::Decoded.ask(&mut parts.headers);
        let request = client.request(parts.method, url).headers(parts.headers).body(body);
        let exchange = attempt::transfer(&host, request, self.settings.connect_timeout, most_bytes);
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

    /// Waits while the provider wants to be left alone, or would if it got more.
    async fn keep_pace(&self) -> Result<(), EgressError> {
        if self.side != Side::Provider {
            return Ok(());
        }
        let began = self.clock.instant();
        let paced_until = self.patient_until.clamp(began + MIN_RATE_LIMIT_WAIT, began + MAX_RATE_LIMIT_WAIT);
        loop {
            let now = self.clock.instant();
            let backoff_left = self.route.rate_limiter.backoff_left();
            let wait = backoff_left
                .or_else(|| self.route.rate_limiter.admit(paced_until.saturating_duration_since(now)));
            let Some(left) = wait else { return Ok(()) };
            if backoff_left.is_some() && now + left > self.patient_until {
                return Err(EgressError::RateLimited {
                    host: boundary::host_of(&self.url),
                    retry_after: left,
                });
            }
            // Those who were held back together do not come back together.
            self.clock.sleep(left + (left / 10).min(MAX_SPREAD).mul_f64(rand::random())).await;
        }
    }

    /// Remembers that the provider had too many requests, for all who share its limit. `true`: they are held back.
    fn note_limit<B>(&self, Answer { response, had_credentials }: &Answer<B>) -> bool {
        let hints = &self.route.provider.proxy.retry;
        // A third party, to which a redirect led, has no say in this.
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

/// For requests that nobody watches.
impl Observer for () {
    fn exchanged(&self, _exchange: &Exchange<'_>) {}
}

fn parse_method(text: &str) -> Result<Method, EgressError> {
    let method = Method::from_bytes(text.as_bytes())
        .map_err(|_| EgressError::invalid(format!("`{}` is not an HTTP method", text.escape_debug())))?;
    check_method(&method)?;
    Ok(method)
}

/// CONNECT would open a tunnel past the gate, and TRACE sends the credentials back to the caller.
fn check_method(method: &Method) -> Result<(), EgressError> {
    if ["CONNECT", "TRACE"].iter().any(|refused| method.as_str().eq_ignore_ascii_case(refused)) {
        return Err(EgressError::invalid(format!("the method {method} cannot be sent")));
    }
    Ok(())
}
