//! Messages of the host's own to addresses that clients have chosen.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use url::Url;

use super::boundary::host_of;
use super::error::EgressError;
use super::failure::failure;
use super::{EgressGateway, retry};
use syncline_providers::RetryHints;

/// Of an answer's body this much is read and thrown away, so that the connection can be used again.
const READ_BYTES: usize = 4 << 10;
const READ_TIME: Duration = Duration::from_secs(1);

impl EgressGateway {
    /// Posts a message under the rules of addresses: no connection's credentials, no redirects, no retries. Whatever
    /// the answer's body is, nobody looks at it.
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
        // The status is all that counts, however the rest comes.
        let _rest = tokio::time::timeout(READ_TIME, throw_away(&mut answer)).await;
        Ok((status, headers))
    }
}

async fn throw_away(answer: &mut reqwest::Response) {
    let mut read = 0;
    while read < READ_BYTES
        && let Ok(Some(chunk)) = answer.chunk().await
    {
        read += chunk.len();
    }
}

/// How long an answer asks to be left alone, by `Retry-After`.
pub fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    retry::requested_delay(headers, &RetryHints::default(), now)
}
