//! A client of the REST API, for commands that talk to a running host.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt;
use std::path::Path;

use anyhow::{Context, bail};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use clap::Args;
use futures_util::stream;
use reqwest::StatusCode;
use reqwest::header::{CONTENT_LENGTH, CONTENT_TYPE};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use url::form_urlencoded;

use super::address::HttpAddress;
use super::{dev_key, output};

/// The step in which the progress of an upload is reported.
const UPLOAD_CHUNK_BYTES: usize = 64 << 10;
const BUNDLE_TYPE: &str = "application/x-tar";
const CUT_ANSWER: &str = "the host's response ended early; run the command again";
const UNKNOWN_ANSWER: &str =
    "could not read the host's response; use the same version of `syncline` as the host";

/// The host to which a command sends requests.
#[derive(Debug, Clone, Args)]
pub(super) struct HostArgs {
    /// Address of the host
    #[arg(long, env = "SYNCLINE_URL", default_value = "http://127.0.0.1:3003", value_name = "URL", value_parser = HttpAddress::parse_host)]
    url: HttpAddress,
    /// Secret key of the environment [default for a host on this machine: the key of `syncline dev` in the current
    /// folder]
    #[arg(long, env = "SYNCLINE_SECRET_KEY", hide_env_values = true, value_name = "KEY")]
    secret_key: Option<String>,
}

/// How a command prints a list.
#[derive(Debug, Clone, Args)]
pub(super) struct ListArgs {
    /// Maximum number of entries
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=500))]
    pub(super) limit: u32,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

/// A query parameter. It is omitted if its value is `None`.
pub(super) type Parameter<'a> = (&'a str, Option<&'a str>);

#[derive(Clone)]
pub(super) struct Client {
    http: reqwest::Client,
    url: HttpAddress,
    secret_key: String,
    /// The connection that requests name in their headers.
    connection: Option<ConnectionName>,
}

/// A connection, by the names that clients use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ConnectionName {
    pub(super) integration: String,
    pub(super) id: String,
}

/// A response of the host that is an error.
#[derive(Debug, thiserror::Error)]
#[error("the host refused the request: {message} ({code}, {status})")]
pub(super) struct Refusal {
    pub(super) code: String,
    message: String,
    status: StatusCode,
}

#[derive(Deserialize)]
struct ErrorBody {
    error: ErrorDetail,
}

#[derive(Deserialize)]
struct ErrorDetail {
    code: String,
    message: Option<String>,
}

impl HostArgs {
    pub(super) fn client(&self) -> anyhow::Result<Client> {
        let of_dev = || self.url.is_on_this_machine().then(|| dev_key::read(Path::new("."))).flatten();
        let secret_key = self.secret_key.clone().or_else(of_dev).context(
            "no secret key is set; set SYNCLINE_SECRET_KEY or --secret-key (`syncline keys create` creates a key)",
        )?;
        Ok(Client::new(self.url.clone(), secret_key))
    }

    pub(super) fn url(&self) -> &HttpAddress {
        &self.url
    }

    pub(super) fn secret_key(&self) -> Option<&str> {
        self.secret_key.as_deref()
    }
}

impl ConnectionName {
    /// The path of the connection in the API.
    pub(super) fn path(&self) -> String {
        let integration: String = form_urlencoded::byte_serialize(self.integration.as_bytes()).collect();
        format!("{}?provider_config_key={integration}", item_path("connections", &self.id))
    }
}

impl fmt::Display for ConnectionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.integration, self.id)
    }
}

impl Client {
    pub(super) fn new(url: HttpAddress, secret_key: String) -> Self {
        Self { http: reqwest::Client::new(), url, secret_key, connection: None }
    }

    /// Whether a host answers at the address. It may not be ready yet.
    pub(super) async fn finds_a_host(&self) -> bool {
        match self.url.at("health") {
            Ok(url) => self.http.get(url).send().await.is_ok_and(|response| response.status().is_success()),
            Err(_) => false,
        }
    }

    /// A client whose requests name a connection.
    pub(super) fn for_connection(&self, connection: &ConnectionName) -> Self {
        Self { connection: Some(connection.clone()), ..self.clone() }
    }

    pub(super) async fn get<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        self.send(self.http.get(self.url.at(path)?)).await
    }

    pub(super) async fn query<T: DeserializeOwned>(
        &self,
        path: &str,
        parameters: &[Parameter<'_>],
    ) -> anyhow::Result<T> {
        self.send(self.get_with(path, parameters)?).await
    }

    fn get_with(&self, path: &str, parameters: &[Parameter<'_>]) -> anyhow::Result<reqwest::RequestBuilder> {
        let mut url = self.url.at(path)?;
        let given = parameters.iter().filter_map(|(name, value)| Some((name, value.as_ref()?)));
        url.query_pairs_mut().extend_pairs(given);
        Ok(self.http.get(url))
    }

    /// Sends a GET request with additional headers.
    pub(super) async fn query_as<T: DeserializeOwned>(
        &self,
        path: &str,
        parameters: &[(&str, &str)],
        headers: &[(&str, &str)],
    ) -> anyhow::Result<T> {
        let parameters: Vec<_> = parameters.iter().map(|(name, value)| (*name, Some(*value))).collect();
        let request = self.get_with(path, &parameters)?;
        self.send(headers.iter().fold(request, |request, (name, value)| request.header(*name, *value))).await
    }

    /// Prints the lines of a response while it arrives.
    pub(super) async fn print_lines(&self, path: &str, parameters: &[Parameter<'_>]) -> anyhow::Result<()> {
        let mut response = self.begin(self.get_with(path, parameters)?).await?;
        let mut unprinted = Vec::new();
        while let Some(part) = response.chunk().await.context(CUT_ANSWER)? {
            unprinted.extend_from_slice(&part);
            if let Some(end) = unprinted.iter().rposition(|byte| *byte == b'\n') {
                let lines: Vec<u8> = unprinted.drain(..=end).collect();
                print!("{}", String::from_utf8(lines).context(UNKNOWN_ANSWER)?);
            }
            if output::is_closed() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Prints the list in the response's member `name`, as JSON or as one line for each item.
    pub(super) async fn print_list<T: Serialize + DeserializeOwned>(
        &self,
        path: &str,
        name: &str,
        parameters: &[Parameter<'_>],
        args: &ListArgs,
        line: impl Fn(&T) -> anyhow::Result<String>,
    ) -> anyhow::Result<()> {
        let mut items: Vec<T> = Vec::new();
        let mut cursor = None;
        // A page of long entries has fewer than requested.
        loop {
            let limit = (args.limit as usize - items.len()).to_string();
            let of_page = [("limit", Some(&*limit)), ("cursor", cursor.as_deref())];
            let mut page: HashMap<String, Value> = self.query(path, &[parameters, &of_page].concat()).await?;
            let found = page.remove(name).context(UNKNOWN_ANSWER)?;
            items.extend(serde_json::from_value::<Vec<T>>(found).context(UNKNOWN_ANSWER)?);
            cursor = page.get("next_cursor").and_then(Value::as_str).map(str::to_owned);
            if cursor.is_none() || items.len() >= args.limit as usize {
                break;
            }
        }
        if args.json {
            println!("{}", serde_json::to_string_pretty(&items)?);
            return Ok(());
        }
        for item in &items {
            println!("{}", line(item)?);
        }
        Ok(())
    }

    /// Posts bytes and parses the JSON response.
    pub(super) async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        content_type: &str,
        bytes: Vec<u8>,
    ) -> anyhow::Result<T> {
        self.send(self.http.post(self.url.at(path)?).header(CONTENT_TYPE, content_type).body(bytes)).await
    }

    /// Posts the file of a bundle and its signature. Calls `on_sent` with the number of bytes that have been sent.
    pub(super) async fn post_bundle<T: DeserializeOwned>(
        &self,
        path: &str,
        bytes: Bytes,
        signature: Option<&str>,
        on_sent: impl Fn(usize) + Send + Sync + 'static,
    ) -> anyhow::Result<T> {
        let mut request = self
            .http
            .post(self.url.at(path)?)
            .header(CONTENT_TYPE, BUNDLE_TYPE)
            .header(CONTENT_LENGTH, bytes.len())
            .body(counted(bytes, on_sent));
        if let Some(signature) = signature {
            request = request.header("Bundle-Signature", STANDARD.encode(signature));
        }
        self.send(request).await
    }

    pub(super) async fn post_json<T: DeserializeOwned>(&self, path: &str, body: &Value) -> anyhow::Result<T> {
        self.post(path, "application/json", body.to_string().into_bytes()).await
    }

    pub(super) async fn put_json<T: DeserializeOwned>(&self, path: &str, body: &Value) -> anyhow::Result<T> {
        let request = self.http.put(self.url.at(path)?).header(CONTENT_TYPE, "application/json");
        self.send(request.body(body.to_string())).await
    }

    /// Posts JSON and returns the text of the response, which may be empty.
    pub(super) async fn post_for_text(&self, path: &str, body: Vec<u8>) -> anyhow::Result<String> {
        let request = self.http.post(self.url.at(path)?).header(CONTENT_TYPE, "application/json").body(body);
        let answer = self.answer(request).await?;
        String::from_utf8(answer.into()).context(UNKNOWN_ANSWER)
    }

    /// Sends a DELETE request, and ignores the body of the response.
    pub(super) async fn delete(&self, path: &str) -> anyhow::Result<()> {
        self.answer(self.http.delete(self.url.at(path)?)).await.map(drop)
    }

    async fn send<T: DeserializeOwned>(&self, request: reqwest::RequestBuilder) -> anyhow::Result<T> {
        let body = self.answer(request).await?;
        serde_json::from_slice(&body).context(UNKNOWN_ANSWER)
    }

    async fn answer(&self, request: reqwest::RequestBuilder) -> anyhow::Result<Bytes> {
        self.begin(request).await?.bytes().await.context(CUT_ANSWER)
    }

    /// Sends a request and waits for the beginning of a successful response.
    async fn begin(&self, request: reqwest::RequestBuilder) -> anyhow::Result<reqwest::Response> {
        let request = match &self.connection {
            Some(ConnectionName { integration, id }) => {
                request.header("Provider-Config-Key", integration).header("Connection-Id", id)
            }
            None => request,
        };
        let response = request.bearer_auth(&self.secret_key).send().await.with_context(|| {
            format!(
                "could not reach a host at {}; check that it is running, and that --url or SYNCLINE_URL is its \
                 address",
                self.url
            )
        })?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let body = response.bytes().await.context(CUT_ANSWER)?;
        match serde_json::from_slice::<ErrorBody>(&body) {
            Ok(ErrorBody { error }) => {
                let ErrorDetail { code, message } = error;
                Err(Refusal { code, message: message.unwrap_or_default(), status }.into())
            }
            Err(_) => {
                bail!("{} responded with {status}; check that it is the address of a Syncline host", self.url)
            }
        }
    }
}

/// A body that is sent in chunks, and reports how many bytes have been sent.
fn counted(bytes: Bytes, on_sent: impl Fn(usize) + Send + Sync + 'static) -> reqwest::Body {
    let starts = (0..bytes.len()).step_by(UPLOAD_CHUNK_BYTES);
    let chunks = starts.map(move |start| {
        let end = bytes.len().min(start + UPLOAD_CHUNK_BYTES);
        on_sent(end);
        Ok::<_, Infallible>(bytes.slice(start..end))
    });
    reqwest::Body::wrap_stream(stream::iter(chunks))
}

/// Returns the path of one item of a list.
pub(super) fn item_path(list: &str, id: &str) -> String {
    let escaped: String = form_urlencoded::byte_serialize(id.as_bytes()).collect();
    format!("{list}/{escaped}")
}
