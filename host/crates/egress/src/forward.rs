//! Forwards a client's request to the provider as it arrives, and the answer back to the client.

use std::time::Duration;

use http::{HeaderMap, Method, StatusCode};
use url::Url;

use super::answer_body::AnswerBody;
use super::attempt::{Call, PassOn};
use super::boundary::{self, Boundary};
use super::decode::Encoding;
use super::error::{EgressError, UploadFailure};
use super::retry::Retries;
use super::upload::{Incoming, Payload, TakeMemory, Upload, UploadLimits};
use super::{EgressGateway, Observer, Response, Route, check_method, headers};

/// A request of a client's backend.
pub struct ForwardedRequest {
    pub method: Method,
    /// A path below the base URL with its query, or a full URL. Not decoded.
    pub target: String,
    /// Replaces the provider's base URL.
    pub base_override: Option<Url>,
    pub headers: HeaderMap,
    pub body: Option<ForwardedBody>,
    /// The number of retries.
    pub retries: u8,
    /// Statuses to retry in addition to the default ones.
    pub retry_on: Vec<StatusCode>,
    /// Whether the host decompresses the answer.
    pub decompress: bool,
    /// Whether the client's headers are also sent after a redirect to another origin. Credentials never are.
    pub forward_headers_on_redirect: bool,
}

pub struct ForwardedBody {
    pub incoming: Incoming,
    /// The body's length, if the client announced it.
    pub announced_bytes: Option<u64>,
    /// Memory for the beginning of the body. Without it, the host does not count this memory.
    pub buffer: Option<TakeMemory>,
}

/// The pauses of a client may always take this long together.
const MIN_PAUSES: Duration = Duration::from_secs(60);
/// The rate at which a client must send a body on average.
const MIN_BYTES_PER_SECOND: u64 = 16 << 10;

impl EgressGateway {
    /// Forwards a request and returns the answer as soon as its headers have arrived. An error status is an answer,
    /// not an error.
    ///
    /// A request can be sent again, for a retry, with refreshed credentials or after a redirect, only while everything
    /// that was read of its body is still buffered.
    pub async fn forward(
        &self,
        route: &Route,
        request: ForwardedRequest,
        observer: &dyn Observer,
    ) -> Result<Response<AnswerBody>, EgressError> {
        let settings = &self.settings;
        check_method(&request.method)?;
        let boundary = self.boundary(route, request.base_override)?;
        let (url, side) = boundary.resolve(route.path_below_base(&request.target), &[])?;
        let encoding = if request.decompress { Encoding::Decoded } else { Encoding::AsSent };
        let call = Call {
            clock: &self.clock,
            clients: &self.clients,
            route,
            observer,
            boundary,
            url,
            side,
            headers: headers::check(request.headers, request.decompress)?,
            forwards_headers: request.forward_headers_on_redirect,
            payload: self.payload(request.body)?,
            timeout: settings.forward_timeout,
            connect_timeout: settings.connect_timeout,
            // Without retries, the client prefers an immediate answer over waiting for a rate limit.
            wait_deadline: self.clock.instant()
                + if request.retries > 0 { settings.max_wait } else { Duration::ZERO },
            receive: PassOn { encoding },
            method: request.method,
        };
        let retries = Retries::new(settings, &call.method, Some(request.retries));
        self.send_call(&call, retries, &request.retry_on).await
    }

    fn boundary<'r>(
        &self,
        route: &'r Route,
        base_override: Option<Url>,
    ) -> Result<Boundary<'r>, EgressError> {
        let boundary = Boundary { base: route.base()?, base_override: None, allow_hosts: &route.allow_hosts };
        if let Some(url) = &base_override
            && boundary.side(url).is_err()
        {
            return Err(EgressError::OverrideNotAllowed { host: boundary::host_of(url) });
        }
        Ok(Boundary { base_override, ..boundary })
    }

    fn payload(&self, body: Option<ForwardedBody>) -> Result<Payload, EgressError> {
        let Some(body) = body else { return Ok(Payload::Empty) };
        let limits = UploadLimits {
            max_bytes: self.settings.max_forward_bytes,
            max_buffered_bytes: self.settings.kept_forward_bytes,
            idle: self.settings.forward_timeout,
            max_pauses: self.settings.forward_timeout.max(MIN_PAUSES),
            min_bytes_per_second: MIN_BYTES_PER_SECOND,
        };
        if body.announced_bytes.is_some_and(|length| length > limits.max_bytes) {
            return Err(EgressError::Upload(UploadFailure::TooLong { limit_bytes: limits.max_bytes }));
        }
        Ok(Payload::Upload(Upload::new(body, limits)))
    }
}
