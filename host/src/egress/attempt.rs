//! One attempt at a request: the exchange with the provider, and those that its redirects ask for.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method};
use tokio::time::{Instant, timeout_at};
use url::Url;

use super::boundary::{Boundary, Side, host_of};
use super::client::Clients;
use super::credentials::{Credentials, Injection};
use super::error::EgressError;
use super::mask::mask_url;
use super::redirect::{MAX_REDIRECTS, keep_headers, redirect};
use super::resolver::NoPublicAddress;
use super::{Exchange, Observer, Response, Route, headers};

/// A request that has been checked and can be tried, several times if need be.
pub(super) struct Call<'a> {
    pub clients: &'a Clients,
    pub route: &'a Route,
    pub observer: &'a dyn Observer,
    pub boundary: Boundary<'a>,
    pub url: Url,
    pub side: Side,
    pub method: Method,
    /// The caller's own.
    pub headers: HeaderMap,
    pub body: Option<Bytes>,
    pub timeout: Duration,
    pub connect_timeout: Duration,
    pub max_response_bytes: usize,
}

pub(super) struct Answer {
    pub response: Response,
    /// Whether it answers a request that carried the credentials, so that a 401 is about them.
    pub had_credentials: bool,
}

/// What one exchange sends.
struct Hop<'a> {
    url: Url,
    method: Method,
    headers: HeaderMap,
    body: Option<Bytes>,
    credentials: Option<&'a Credentials>,
}

impl Call<'_> {
    /// Sends the request once and follows redirects. `credentials` are those for the provider.
    pub async fn attempt(
        &self,
        number: u32,
        credentials: Option<&Arc<Credentials>>,
    ) -> Result<Answer, EgressError> {
        let deadline = Instant::now() + self.timeout;
        let mut hop = Hop {
            url: self.url.clone(),
            method: self.method.clone(),
            headers: self.headers.clone(),
            body: self.body.clone(),
            credentials: credentials.map(Arc::as_ref),
        };
        for _ in 0..=MAX_REDIRECTS {
            let response = self.exchange(number, &hop, deadline).await?;
            let Some(next) = redirect(&hop.url, &hop.method, response.status, &response.headers) else {
                return Ok(Answer { response, had_credentials: hop.credentials.is_some() });
            };
            self.boundary.side(&next.url)?;
            let same_origin = next.url.origin() == hop.url.origin();
            keep_headers(&mut hop.headers, same_origin, next.keeps_body);
            if !same_origin {
                // For the rest of the chain: a third party could otherwise send it back to the provider, to
                // an address of its own choosing, with our credentials.
                hop.credentials = None;
            }
            if !next.keeps_body {
                hop.body = None;
            }
            hop.url = next.url;
            hop.method = next.method;
        }
        Err(EgressError::TooManyRedirects { limit: MAX_REDIRECTS })
    }

    async fn exchange(
        &self,
        attempt: u32,
        hop: &Hop<'_>,
        deadline: Instant,
    ) -> Result<Response, EgressError> {
        let client = self.clients.for_url(&hop.url)?;
        let mut url = hop.url.clone();
        let mut secret_names = Vec::new();
        let headers = match hop.credentials {
            Some(credentials) => {
                let route = self.route;
                let injection = Injection::new(&route.provider, &route.connection_config, credentials)?;
                secret_names = injection.add_query(&mut url);
                let mut headers = headers::merge(&hop.headers, &injection)?;
                injection.sign(&hop.method, &url, hop.body.as_ref(), &mut headers)?;
                headers
            }
            None => hop.headers.clone(),
        };
        let masked_url = mask_url(&url, &secret_names);
        let mut request = client.request(hop.method.clone(), url).headers(headers);
        if let Some(body) = &hop.body {
            request = request.body(body.clone());
        }
        let started = Instant::now();
        let host = host_of(&hop.url);
        let exchange = transfer(&host, request, self.connect_timeout, self.max_response_bytes);
        let outcome = match timeout_at(deadline, exchange).await {
            Ok(outcome) => outcome,
            Err(_) => Err(EgressError::Timeout { host, after: self.timeout }),
        };
        self.observer.exchanged(&Exchange {
            attempt,
            method: &hop.method,
            url: &masked_url,
            outcome: outcome.as_ref().map(|response| response.status),
            elapsed: started.elapsed(),
            sent_bytes: hop.body.as_ref().map_or(0, Bytes::len),
            received_bytes: outcome.as_ref().map_or(0, |response| response.body.len()),
        });
        outcome
    }
}

/// Sends and reads the whole answer. The body is counted as it is decompressed, so that a small message
/// that unfolds into a huge one is dropped as soon as it passes the limit.
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
    let headers = std::mem::take(answer.headers_mut());
    let mut body = Vec::new();
    while let Some(chunk) = answer.chunk().await.map_err(failed)? {
        if chunk.len() > limit_bytes - body.len() {
            return Err(too_large());
        }
        body.extend_from_slice(&chunk);
    }
    Ok(Response { status, headers, body: body.into() })
}

/// Only the innermost cause is told: the client's own errors name the whole URL.
pub(super) fn failure(host: &str, error: &reqwest::Error, connect_timeout: Duration) -> EgressError {
    let host = host.to_owned();
    let causes = || std::iter::successors(error.source(), |cause| (*cause).source());
    if causes().any(<dyn Error>::is::<NoPublicAddress>) {
        return EgressError::AddressNotAllowed { host };
    }
    if error.is_timeout() {
        return EgressError::Timeout { host, after: connect_timeout };
    }
    let cause = causes().last().map_or_else(|| "no details".to_owned(), ToString::to_string);
    EgressError::Network { host, cause }
}
