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

/// A connection that is kept open between requests.
pub struct Session {
    authority: String,
    sender: hyper::client::conn::http1::SendRequest<Full<Bytes>>,
}

impl Session {
    /// Connects to the server of `url`.
    pub async fn open(url: &str) -> Result<Self> {
        let url: hyper::Uri = url.parse()?;
        let Some(authority) = url.authority() else { bail!("{url} has no server") };
        let stream = TcpStream::connect(authority.as_str()).await?;
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok(Self { authority: authority.to_string(), sender })
    }

    /// Sends a GET request and returns the body as it was transferred. Fails if the status is not a success.
    pub async fn get(&mut self, target: &str, headers: &[(&'static str, String)]) -> Result<Bytes> {
        self.sender.ready().await?;
        let mut request = Request::get(target).header("host", &self.authority);
        for (name, value) in headers {
            request = request.header(*name, value);
        }
        let response = self.sender.send_request(request.body(Full::default())?).await?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        if !status.is_success() {
            bail!("{target} responded with {status}: {}", String::from_utf8_lossy(&body));
        }
        Ok(body)
    }
}
