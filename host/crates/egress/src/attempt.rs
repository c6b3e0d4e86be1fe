//! One attempt at a request: the exchange with the provider, and one more for each redirect.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::TryStreamExt;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use tokio::time::{Instant, sleep_until, timeout_at};
use tracing::Instrument;
use url::Url;

use super::answer_body::AnswerBody;
use super::boundary::{Boundary, Side, host_of, same_origin};
use super::client::Clients;
use super::credentials::{Credentials, Injection};
use super::decode::Encoding;
use super::error::EgressError;
use super::failure::{cut, failure};
use super::mask::mask_url;
use super::redirect::{MAX_REDIRECTS, keep_headers, redirect};
use super::upload::Payload;
use super::{Exchange, Observer, Response, Route, headers};
use syncline_telemetry::clock::Clock;
use syncline_telemetry::metrics::metrics;

/// A checked request, which can be attempted several times.
pub(super) struct Call<'a, R> {
    pub clock: &'a Clock,
    pub clients: &'a Clients,
    pub route: &'a Route,
    pub observer: &'a dyn Observer,
    pub boundary: Boundary<'a>,
    pub url: Url,
    pub side: Side,
    pub method: Method,
    /// The caller's headers.
    pub headers: HeaderMap,
    /// Whether the caller's headers are also sent after a redirect to another origin.
    pub forwards_headers: bool,
    pub payload: Payload,
    /// The time limit of one attempt. [`PassOn`] applies it to silence instead.
    pub timeout: Duration,
    pub connect_timeout: Duration,
    /// Until when the request may wait for the provider's rate limit.
    pub wait_deadline: std::time::Instant,
    pub receive: R,
}

pub(super) struct Answer<B> {
    pub response: Response<B>,
    /// Whether the request carried the connection's credentials. If so, a 401 means that the provider rejected them.
    pub had_credentials: bool,
}

/// How the answer is received.
pub(super) trait Receive: Send + Sync {
    type Body: Send;

    /// The encoding in which the body is received.
    fn encoding(&self) -> Encoding;

    /// Sends the request and receives its answer: completely, or only up to the headers, depending on `Body`.
    fn receive(
        &self,
        sending: Sending<'_>,
    ) -> impl Future<Output = Result<Response<Self::Body>, EgressError>> + Send;

    /// The number of body bytes that have arrived so far.
    fn received_bytes(body: &Self::Body) -> usize;
}

/// An exchange that is ready to be sent.
pub(super) struct Sending<'a> {
    pub host: &'a str,
    pub request: reqwest::RequestBuilder,
    pub payload: &'a Payload,
    /// The end of the attempt, which can consist of several exchanges because of redirects.
    pub deadline: Instant,
    /// The limit of the attempt or, for [`PassOn`], of silence.
    pub timeout: Duration,
    pub connect_timeout: Duration,
}

/// Reads the whole answer within the attempt's time limit.
pub(super) struct ReadWhole {
    pub max_bytes: usize,
}

/// Returns the answer as soon as its headers have arrived. The time limit applies to silence, because the duration of
/// a body depends on its length.
pub(super) struct PassOn {
    pub encoding: Encoding,
}

/// One request of an attempt: the first one, or one that follows a redirect.
struct Hop<'a> {
    url: Url,
    method: Method,
    headers: HeaderMap,
    payload: Payload,
    credentials: Option<&'a Credentials>,
    is_redirect: bool,
}

impl<R: Receive> Call<'_, R> {
    /// Sends the request once and follows redirects. `credentials` are the connection's credentials for the provider.
    pub async fn attempt(
        &self,
        number: u32,
        credentials: Option<&Arc<Credentials>>,
    ) -> Result<Answer<R::Body>, EgressError> {
        let deadline = Instant::now() + self.timeout;
        let mut hop = Hop {
            url: self.url.clone(),
            method: self.method.clone(),
            headers: self.headers.clone(),
            payload: self.payload.clone(),
            credentials: credentials.map(Arc::as_ref),
            is_redirect: false,
        };
        for _ in 0..=MAX_REDIRECTS {
            let exchanged = self.exchange(number, &hop, deadline).await;
            let response =
                exchanged.map_err(|error| if hop.is_redirect { error.of_redirect() } else { error })?;
            let Some(next) = redirect(&hop.url, &hop.method, response.status, &response.headers) else {
                return Ok(Answer { response, had_credentials: hop.credentials.is_some() });
            };
            self.boundary.side(&next.url).map_err(EgressError::of_redirect)?;
            let same_origin = same_origin(&next.url, &hop.url);
            keep_headers(&mut hop.headers, same_origin || self.forwards_headers, next.keeps_body);
            if !same_origin {
                // Applies to the rest of the chain. Otherwise a third party could redirect back to an address at the
                // provider of its choice, with the credentials.
                hop.credentials = None;
            }
            if !next.keeps_body {
                hop.payload = Payload::Empty;
            } else if !hop.payload.can_be_sent_again() {
                return Err(EgressError::UploadNotKept.of_redirect());
            }
            hop.url = next.url;
            hop.method = next.method;
            hop.is_redirect = true;
        }
        Err(EgressError::TooManyRedirects { limit: MAX_REDIRECTS })
    }

    async fn exchange(
        &self,
        attempt: u32,
        hop: &Hop<'_>,
        deadline: Instant,
    ) -> Result<Response<R::Body>, EgressError> {
        let client = self.clients.for_url(&hop.url)?;
        let mut url = hop.url.clone();
        let mut secret_names = Vec::new();
        let mut headers = match hop.credentials {
            Some(credentials) => {
                let route = self.route;
                let injection = Injection::new(&route.provider, &route.connection_config, credentials)?;
                self.observer.authenticating(&injection.secrets(credentials));
                secret_names = injection.add_query(&mut url);
                let mut headers = headers::merge(&hop.headers, &injection)?;
                let form = if injection.signs_form(&headers) { hop.payload.whole().await? } else { None };
                injection.sign(&hop.method, &url, form.as_ref(), &mut headers)?;
                headers
            }
            None => hop.headers.clone(),
        };
        if let Some(length) = hop.payload.announced_bytes(&hop.method) {
            headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
        }
        self.receive.encoding().ask(&mut headers);
        let masked_url = mask_url(&url, &secret_names);
        let mut request = client.request(hop.method.clone(), url).headers(headers);
        if let Some(body) = hop.payload.to_body() {
            request = request.body(body);
        }
        let started = Instant::now();
        let host = host_of(&hop.url);
        let sending = Sending {
            host: &host,
            request,
            payload: &hop.payload,
            deadline,
            timeout: self.timeout,
            connect_timeout: self.connect_timeout,
        };
        let span = tracing::debug_span!(
            "provider request",
            otel.kind = "client",
            http.request.method = %hop.method,
            url.full = masked_url,
            http.request.resend_count = i64::from(attempt - 1),
            http.response.status_code = tracing::field::Empty,
        );
        let mut outcome = self.receive.receive(sending).instrument(span.clone()).await;
        if let Ok(response) = &outcome {
            // As an unsigned number, the status would be recorded as text.
            span.record("http.response.status_code", i64::from(response.status.as_u16()));
        }
        if outcome.is_err()
            && let Some(failure) = hop.payload.failure()
        {
            outcome = Err(EgressError::Upload(failure));
        }
        let status = outcome.as_ref().ok().map(|response| response.status.as_u16());
        metrics().count_exchange(self.route.provider.name.as_str(), status, attempt, started.elapsed());
        self.observer.exchanged(&Exchange {
            attempt,
            method: &hop.method,
            url: &masked_url,
            outcome: outcome.as_ref().map(|response| response.status),
            elapsed: started.elapsed(),
            sent_bytes: hop.payload.sent_bytes(),
            received_bytes: outcome.as_ref().map_or(0, |response| R::received_bytes(&response.body)),
        });
        outcome
    }
}

impl Receive for ReadWhole {
    type Body = Bytes;

    fn encoding(&self) -> Encoding {
        Encoding::Decoded
    }

    async fn receive(&self, sending: Sending<'_>) -> Result<Response, EgressError> {
        let Sending { host, request, deadline, timeout, connect_timeout, .. } = sending;
        match timeout_at(deadline, transfer(host, request, connect_timeout, self.max_bytes)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(EgressError::Timeout { host: host.to_owned(), after: timeout }),
        }
    }

    fn received_bytes(body: &Bytes) -> usize {
        body.len()
    }
}

impl Receive for PassOn {
    type Body = AnswerBody;

    fn encoding(&self) -> Encoding {
        self.encoding
    }

    async fn receive(&self, sending: Sending<'_>) -> Result<Response<AnswerBody>, EgressError> {
        let Sending { host, request, payload, timeout, connect_timeout, .. } = sending;
        // Any answer, including a redirect, ends the wait for the provider.
        let mut deadline = Instant::now() + timeout;
        let mut answer = std::pin::pin!(request.send());
        let mut answer = loop {
            tokio::select! {
                answered = &mut answer => {
                    break answered.map_err(|error| failure(host, &error, connect_timeout))?;
                }
                () = sleep_until(deadline) => match payload.last_moved() {
                    // The request's body is still being sent.
                    Some(moved_at) if moved_at + timeout > deadline => deadline = moved_at + timeout,
                    _ => return Err(EgressError::Timeout { host: host.to_owned(), after: timeout }),
                },
            }
        };
        let status = answer.status();
        if status == StatusCode::SWITCHING_PROTOCOLS {
            let cause = "it switched to another protocol without a request for it".to_owned();
            return Err(EgressError::Network { host: host.to_owned(), cause });
        }
        let mut headers = std::mem::take(answer.headers_mut());
        let incoming = self.encoding.body(answer, &mut headers);
        Ok(Response { status, headers, body: AnswerBody::new(host, incoming, timeout) })
    }

    /// The body has not been read yet when the exchange is reported.
    fn received_bytes(_: &AnswerBody) -> usize {
        0
    }
}

/// Sends the request and reads the whole answer. The limit applies to the decompressed body, so a small body that
/// decompresses to a huge one is dropped as soon as it exceeds the limit.
pub(super) async fn transfer(
    host: &str,
    request: reqwest::RequestBuilder,
    connect_timeout: Duration,
    limit_bytes: usize,
) -> Result<Response, EgressError> {
    let failed = |error: reqwest::Error| failure(host, &error, connect_timeout);
    let too_large = || EgressError::ResponseTooLarge { host: host.to_owned(), limit_bytes };
    let mut answer = request.send().await.map_err(failed)?;
    let status = answer.status();
    let mut headers = std::mem::take(answer.headers_mut());
    let mut incoming = Encoding::Decoded.body(answer, &mut headers);
    let mut body = Vec::new();
    while let Some(chunk) = incoming.try_next().await.map_err(|error| cut(host, &error, connect_timeout))? {
        if chunk.len() > limit_bytes - body.len() {
            return Err(too_large());
        }
        body.extend_from_slice(&chunk);
    }
    Ok(Response { status, headers, body: body.into() })
}
