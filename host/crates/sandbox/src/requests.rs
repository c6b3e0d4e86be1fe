//! The requests of one invocation, through `syncline:integration/provider` and `wasi:http`.
//!
//! `wasmtime-wasi-http` provides the resources of `wasi:http`; the requests themselves go to the same
//! [`ProviderClient`] as those of `provider.send`.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, HeaderValue};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use syncline_types::failure_code::FailureCode;
use tokio::sync::mpsc;
use tracing::Instrument;
use wasmtime_wasi_http::{Error as HttpError, RequestOptions, WasiBody, WasiHttpHooks};

use super::sources::Timeline;
use super::{
    Failure, GuestError, Interrupt, Limit, Limits, LogLevel, ProviderClient, Request, Response, RunLog,
};

/// Reports that a request ends the run. `wasi:http` has no way to do so, because its requests run concurrently
/// with the guest.
pub(super) type InterruptSender = mpsc::Sender<Interrupt>;
pub(super) type InterruptReceiver = mpsc::Receiver<Interrupt>;

/// Only the first interrupt counts.
pub(super) fn interrupt_channel() -> (InterruptSender, InterruptReceiver) {
    mpsc::channel(1)
}

/// Sends and counts the requests of one invocation.
pub(super) struct Requests {
    provider: Arc<dyn ProviderClient>,
    sent: u64,
    limit: u64,
    /// A function cannot send a body that is larger than its memory, and `wasi:http` must not allow it either.
    max_body_bytes: usize,
    log: RunLog,
    interrupts: InterruptSender,
    /// Set in a replay.
    timeline: Option<Timeline>,
}

impl Requests {
    pub(super) fn new(
        provider: Arc<dyn ProviderClient>,
        limits: &Limits,
        log: RunLog,
        interrupts: InterruptSender,
        timeline: Option<Timeline>,
    ) -> Self {
        let (limit, max_body_bytes) = (limits.requests, limits.memory_bytes);
        Self { provider, sent: 0, limit, max_body_bytes, log, interrupts, timeline }
    }

    /// The number of requests that the guest has sent.
    pub(super) fn count(&self) -> u64 {
        self.sent
    }

    pub(super) async fn send(&mut self, request: Request) -> Result<Response, GuestError> {
        self.charge(1)?;
        match &self.timeline {
            Some(timeline) => timeline.drive(self.provider.send(request)).await?,
            None => self.provider.send(request).await,
        }
    }

    pub(super) async fn send_all(
        &mut self,
        requests: Vec<Request>,
    ) -> Result<Vec<Result<Response, Failure>>, Interrupt> {
        self.charge(requests.len() as u64)?;
        match &self.timeline {
            Some(timeline) => timeline.drive(self.provider.send_all(requests)).await?,
            None => self.provider.send_all(requests).await,
        }
    }

    fn charge(&mut self, count: u64) -> Result<(), Interrupt> {
        if count > self.limit - self.sent {
            return Err(Interrupt::Limit(Limit::Requests(self.limit)));
        }
        self.sent += count;
        Ok(())
    }
}

type HttpOutcome<T> = Result<T, HttpError>;
type Finishing = Box<dyn Future<Output = HttpOutcome<()>> + Send>;

impl WasiHttpHooks for Requests {
    /// The egress gateway derives the header from the URL.
    fn set_host_header(&mut self) -> bool {
        false
    }

    fn send_request(
        &mut self,
        request: http::Request<WasiBody>,
        options: Option<RequestOptions>,
        _: Finishing,
    ) -> Box<dyn Future<Output = HttpOutcome<(http::Response<WasiBody>, Finishing)>> + Send> {
        let charged = self.charge(1);
        let (provider, max_body_bytes) = (Arc::clone(&self.provider), self.max_body_bytes);
        let (log, interrupts) = (self.log.clone(), self.interrupts.clone());
        let timeout = options.and_then(|options| options.first_byte_timeout);
        let sending = async move {
            let name = format!("{} {}", request.method(), without_query(request.uri()));
            let sent = async {
                charged?;
                let request = read_request(request, timeout, max_body_bytes).await?;
                Ok(response(provider.send(request).await?)?)
            };
            let failed = match sent.await {
                Ok(response) => return Ok((response, Box::new(async { Ok(()) }) as Finishing)),
                // The codes of `wasi:http` have no text, so the log tells the author the reason.
                Err(RequestError::Guest(GuestError::Failure(failure))) => log
                    .write(LogLevel::Warn, &format!("{name}: {}", failure.message), None)
                    .map(|()| http_error(&failure))
                    .map_err(Interrupt::Limit),
                Err(RequestError::Http(error)) => log
                    .write(LogLevel::Warn, &format!("{name}: {error}"), None)
                    .map(|()| error)
                    .map_err(Interrupt::Limit),
                Err(RequestError::Guest(GuestError::Interrupt(interrupt))) => Err(interrupt),
            };
            match failed {
                Ok(error) => Err(error),
                Err(interrupt) => {
                    // If this fails, an earlier interrupt is already ending the run.
                    let _sent = interrupts.try_send(interrupt);
                    std::future::pending().await
                }
            }
        };
        // The request runs in a separate task, which belongs to the run's trace.
        Box::new(sending.in_current_span())
    }
}

/// Why a request of `wasi:http` has no response.
enum RequestError {
    Guest(GuestError),
    Http(HttpError),
}

impl From<GuestError> for RequestError {
    fn from(error: GuestError) -> Self {
        Self::Guest(error)
    }
}

impl From<Interrupt> for RequestError {
    fn from(interrupt: Interrupt) -> Self {
        Self::Guest(interrupt.into())
    }
}

impl From<HttpError> for RequestError {
    fn from(error: HttpError) -> Self {
        Self::Http(error)
    }
}

/// The query may contain secrets.
fn without_query(url: &http::Uri) -> String {
    let url = url.to_string();
    url.split_once('?').map_or(url.as_str(), |(before, _)| before).to_owned()
}

/// Waits for the body, which the guest writes after it has started the request.
async fn read_request(
    request: http::Request<WasiBody>,
    timeout: Option<Duration>,
    max_body_bytes: usize,
) -> HttpOutcome<Request> {
    let (parts, body) = request.into_parts();
    let headers = parts.headers.iter().map(|(name, value)| match str::from_utf8(value.as_bytes()) {
        Ok(value) => Ok((name.as_str().to_owned(), value.to_owned())),
        Err(_) => Err(HttpError::InternalError(Some(format!("the header `{name}` is not UTF-8")))),
    });
    let headers = headers.collect::<Result<_, _>>()?;
    let body = Limited::new(body, max_body_bytes).collect().await.map_err(|error| {
        let is_too_large = error.is::<LengthLimitError>();
        match error.downcast::<HttpError>() {
            Ok(error) => *error,
            Err(_) if is_too_large => HttpError::HttpRequestBodySize(Some(max_body_bytes as u64)),
            Err(error) => HttpError::InternalError(Some(error.to_string())),
        }
    })?;
    let body = Vec::from(body.to_bytes());
    Ok(Request {
        method: parts.method.to_string(),
        url: parts.uri.to_string(),
        query: Vec::new(),
        headers,
        body: Some(body).filter(|body| !body.is_empty()),
        retries: None,
        timeout_ms: timeout.map(|timeout| u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX)),
    })
}

fn response(response: Response) -> HttpOutcome<http::Response<WasiBody>> {
    let invalid = |error: http::Error| HttpError::InternalError(Some(error.to_string()));
    let Response { status, headers, body } = response;
    let mut response = http::Response::builder().status(status);
    for (name, value) in headers {
        let name = HeaderName::try_from(name).map_err(|error| invalid(error.into()))?;
        let value = HeaderValue::try_from(value).map_err(|error| invalid(error.into()))?;
        response = response.header(name, value);
    }
    response.body(Full::from(body).map_err(|never| match never {}).boxed_unsync()).map_err(invalid)
}

/// The code of `wasi:http` for a failed request.
fn http_error(failure: &Failure) -> HttpError {
    match failure.code.parse() {
        Ok(FailureCode::HostNotAllowed) => HttpError::HttpRequestDenied,
        Ok(FailureCode::AddressNotAllowed) => HttpError::DestinationIpProhibited,
        Ok(FailureCode::TooManyRedirects) => HttpError::LoopDetected,
        Ok(FailureCode::Timeout) => HttpError::HttpResponseTimeout,
        Ok(FailureCode::NetworkError) => HttpError::ConnectionTerminated,
        Ok(FailureCode::ResponseTooLarge) => HttpError::HttpResponseBodySize(None),
        _ => HttpError::InternalError(Some(failure.message.clone())),
    }
}
