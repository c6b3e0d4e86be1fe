//! Sends messages of the host itself, such as outbound webhooks, to URLs that clients configured.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use url::Url;

use super::boundary::host_of;
use super::error::EgressError;
use super::failure::failure;
use super::{EgressGateway, retry};
use syncline_providers::RetryHints;

/// Up to this many bytes of an answer's body are read and discarded, so that the connection can be reused.
const MAX_DISCARDED_BYTES: usize = 4 << 10;
const MAX_DISCARD_TIME: Duration = Duration::from_secs(1);

impl EgressGateway {
    /// Posts a message. The rules for private addresses apply. The message carries no credentials of a connection, and
    /// there are no redirects or retries. Returns the status and headers; the answer's body is discarded.
    pub async fn post_message(
        &self,
        url: Url,
        headers: HeaderMap,
        body: Bytes,
        timeout: Duration,
    ) -> Result<(StatusCode, HeaderMap), EgressError> {
        let host = host_of(&url);
        let request = self.clients.for_url(&url)?.post(url).headers(headers).body(body);
        let mut answer = match tokio::time::timeout(timeout, request.send()).await {
            Ok(answer) => answer.map_err(|error| failure(&host, &error, self.settings.connect_timeout))?,
            Err(_) => return Err(EgressError::Timeout { host, after: timeout }),
        };
        let (status, headers) = (answer.status(), std::mem::take(answer.headers_mut()));
        // Only the status matters, so errors in the rest of the answer are ignored.
        let _rest = tokio::time::timeout(MAX_DISCARD_TIME, discard_body(&mut answer)).await;
        Ok((status, headers))
    }
}

async fn discard_body(answer: &mut reqwest::Response) {
    let mut read = 0;
    while read < MAX_DISCARDED_BYTES
        && let Ok(Some(chunk)) = answer.chunk().await
    {
        read += chunk.len();
    }
}

/// Returns the delay that an answer requests with `Retry-After`.
pub fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    retry::requested_delay(headers, &RetryHints::default(), now)
}
