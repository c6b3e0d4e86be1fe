//! Forwarding: a client's request goes to the provider as it arrives, and the answer comes back the same way.

use std::time::Duration;

use http::{HeaderMap, Method, StatusCode};
use url::Url;

use super::answer_body::AnswerBody;
use super::attempt::{Call, PassOn};
use super::boundary::{self, Boundary};
use super::decode::Encoding;
use super::error::{EgressError, UploadFailure};
use super::retry::Retries;
use super::upload::{Incoming, Payload, Upload, UploadLimits};
use super::{EgressGateway, Observer, Response, Route, check_method, headers};

/// A request as a client's backend states it.
pub struct ForwardedRequest {
    pub method: Method,
    /// A path behind the base URL with its query, or a whole URL. Not decoded.
    pub target: String,
    /// In place of the provider's base URL.
    pub base_override: Option<Url>,
    pub headers: HeaderMap,
    pub body: Option<ForwardedBody>,
    /// How often to try again.
    pub retries: u8,
    /// Statuses to try again on, beside the usual ones.
    pub retry_on: Vec<StatusCode>,
    /// Whether the answer is to be decompressed.
    pub decompress: bool,
    /// Whether the headers go along when a redirect leads to another origin. Credentials never do.
    pub forward_headers_on_redirect: bool,
}

pub struct ForwardedBody {
    pub incoming: Incoming,
    /// Its length, if the client has said it.
    pub announced_bytes: Option<u64>,
}

impl EgressGateway {
    /// Sends a request on and gives the answer as soon as its head is there. An error status is an answer.
    ///
    /// A request with a body can only be sent again, be it for a retry, for fresh credentials or for a redirect,
    /// as long as no more was read of its body than is kept.
    pub async fn forward(
        &self,
        route: &Route,
        request: ForwardedRequest,
        observer: &dyn Observer,
    ) -> Result<Response<AnswerBody>, EgressError> {
        let settings = &self.settings;
        check_method(&request.method)?;
        let boundary = self.boundary(route, request.base_override)?;
        // Who writes out the provider's usual address means the path: the provider may be elsewhere here. First its
        // own address is looked for, which may be one behind the usual one.
        let bases = [boundary.base, route.usual_base().ok().flatten()];
        let target = bases.into_iter().flatten().find_map(|base| boundary::behind(&request.target, base));
        let (url, side) = boundary.resolve(target.unwrap_or(&request.target), &[])?;
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
            // A client that asks for no retries would rather know.
            patient_until: self.clock.instant()
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
        let Some(ForwardedBody { incoming, announced_bytes }) = body else { return Ok(Payload::Empty) };
        let limits = UploadLimits {
            most_bytes: self.settings.max_forward_bytes,
            kept_bytes: self.settings.kept_forward_bytes,
            idle: self.settings.forward_timeout,
        };
        if announced_bytes.is_some_and(|length| length > limits.most_bytes) {
            return Err(EgressError::Upload(UploadFailure::TooLong { limit_bytes: limits.most_bytes }));
        }
        Ok(Payload::Upload(Upload::new(incoming, announced_bytes, limits)))
    }
}
