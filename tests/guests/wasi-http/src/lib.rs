//! Sends requests through `wasi:http` with an ordinary client instead of the SDK's.

use std::collections::BTreeMap;
use std::pin::pin;

use futures_util::future::{join_all, select};
use futures_util::stream;
use serde::{Deserialize, Serialize};
use syncline_sdk::{Error, Result, action};
use wstd::http::{Body, Client, Request};
use wstd::runtime::block_on;
use wstd::task::sleep;
use wstd::time::Duration;

syncline_sdk::export!(abandon, fetch, fetch_all, upload);

#[derive(Deserialize)]
struct Fetch {
    method: Option<String>,
    url: String,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    #[serde(default)]
    body: String,
}

#[derive(Serialize)]
struct Fetched {
    status: u16,
    headers: BTreeMap<String, String>,
    body: String,
}

/// Sends the request from its input and returns the response.
#[action]
fn fetch(fetch: Fetch) -> Result<Fetched> {
    let mut request = Request::builder().method(fetch.method.as_deref().unwrap_or("GET")).uri(fetch.url);
    for (name, value) in fetch.headers {
        request = request.header(name, value);
    }
    let request = request.body(Body::from(fetch.body)).map_err(failed)?;
    block_on(async {
        let mut response = Client::new().send(request).await.map_err(failed)?;
        let body = response.body_mut().str_contents().await.map_err(failed)?.to_owned();
        let headers = response.headers().iter().map(|(name, value)| {
            (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned())
        });
        Ok(Fetched { status: response.status().as_u16(), headers: headers.collect(), body })
    })
}

/// Sends all requests at the same time and returns their statuses.
#[action]
fn fetch_all(urls: Vec<String>) -> Result<Vec<u16>> {
    let get = async |url: String| -> Result<u16> {
        let request = Request::get(url).body(Body::empty()).map_err(failed)?;
        let response = Client::new().send(request).await.map_err(failed)?;
        Ok(response.status().as_u16())
    };
    block_on(join_all(urls.into_iter().map(get))).into_iter().collect()
}

#[derive(Deserialize)]
struct Upload {
    url: String,
    chunks: usize,
    chunk_bytes: usize,
}

/// Sends a body that is written while the request is in progress, and returns the status of the response.
#[action]
fn upload(upload: Upload) -> Result<u16> {
    let chunk = vec![b'x'; upload.chunk_bytes];
    let chunks = std::iter::repeat_n(chunk, upload.chunks);
    let request = Request::post(upload.url).body(Body::from_stream(stream::iter(chunks))).map_err(failed)?;
    let response = block_on(Client::new().send(request)).map_err(failed)?;
    Ok(response.status().as_u16())
}

/// Starts a request and returns before its response arrives.
#[action]
fn abandon(url: String) -> Result {
    let request = Request::get(url).body(Body::empty()).map_err(failed)?;
    block_on(async {
        let client = Client::new();
        select(pin!(client.send(request)), pin!(sleep(Duration::from_millis(200)))).await;
    });
    Ok(())
}

fn failed(error: impl std::fmt::Debug) -> Error {
    Error::new("fetch-failed", format!("{error:?}"))
}
