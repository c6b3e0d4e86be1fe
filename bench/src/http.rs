//! A minimal HTTP client for the requests that wrk does not send.

use anyhow::{Result, bail};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// Sends one request on a new connection and returns the body. Fails if the status is not a success.
pub async fn send(
    method: Method,
    url: &str,
    headers: &[(&str, &str)],
    body: impl Into<Bytes>,
) -> Result<Bytes> {
    let url: hyper::Uri = url.parse()?;
    let (status, body) = exchange(method, &url, headers, body.into()).await?;
    if !status.is_success() {
        bail!("{url} responded with {status}: {}", String::from_utf8_lossy(&body));
    }
    Ok(body)
}

async fn exchange(
    method: Method,
    url: &hyper::Uri,
    headers: &[(&str, &str)],
    body: Bytes,
) -> Result<(StatusCode, Bytes)> {
    let (Some(authority), Some(target)) = (url.authority(), url.path_and_query()) else {
        bail!("{url} has no server or path");
    };
    let stream = TcpStream::connect(authority.as_str()).await?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let mut request =
        Request::builder().method(method).uri(target.as_str()).header("host", authority.as_str());
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let response = sender.send_request(request.body(Full::new(body))?).await?;
    let status = response.status();
    Ok((status, response.into_body().collect().await?.to_bytes()))
}
