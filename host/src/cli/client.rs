//! A client of the REST API, for commands that talk to a running host.

use std::collections::HashMap;

use anyhow::{Context, bail};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use clap::Args;
use reqwest::header::CONTENT_TYPE;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use url::form_urlencoded;

use super::address::HttpAddress;
use super::output;

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
    /// Secret key of the environment
    #[arg(long, env = "SYNCLINE_SECRET_KEY", hide_env_values = true, value_name = "KEY")]
    secret_key: Option<String>,
}

/// How a command prints a list.
#[derive(Debug, Clone, Args)]
pub(super) struct ListArgs {
    /// Maximum number of entries
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=500))]
    limit: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A query parameter. It is omitted if its value is `None`.
pub(super) type Parameter<'a> = (&'a str, Option<&'a str>);

pub(super) struct Client {
    http: reqwest::Client,
    url: HttpAddress,
    secret_key: String,
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
        let secret_key = self.secret_key.clone().context(
            "no secret key is set; set SYNCLINE_SECRET_KEY or --secret-key (`syncline keys create` creates a key)",
        )?;
        Ok(Client { http: reqwest::Client::new(), url: self.url.clone(), secret_key })
    }
}

impl Client {
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

    /// Posts the file of a bundle and its signature.
    pub(super) async fn post_bundle<T: DeserializeOwned>(
        &self,
        path: &str,
        bytes: Vec<u8>,
        signature: Option<&str>,
    ) -> anyhow::Result<T> {
        let mut request = self.http.post(self.url.at(path)?).header(CONTENT_TYPE, BUNDLE_TYPE).body(bytes);
        if let Some(signature) = signature {
            request = request.header("Bundle-Signature", STANDARD.encode(signature));
        }
        self.send(request).await
    }

    pub(super) async fn post_json<T: DeserializeOwned>(&self, path: &str, body: &Value) -> anyhow::Result<T> {
        self.post(path, "application/json", body.to_string().into_bytes()).await
    }

    /// Sends a DELETE request whose response has no body.
    pub(super) async fn delete(&self, path: &str) -> anyhow::Result<()> {
        self.answer(self.http.delete(self.url.at(path)?)).await.map(drop)
    }

    async fn send<T: DeserializeOwned>(&self, request: reqwest::RequestBuilder) -> anyhow::Result<T> {
        let body = self.answer(request).await?;
        serde_json::from_slice(&body).context(UNKNOWN_ANSWER)
    }

    async fn answer(&self, request: reqwest::RequestBuilder) -> anyhow::Result<bytes::Bytes> {
        self.begin(request).await?.bytes().await.context(CUT_ANSWER)
    }

    /// Sends a request and waits for the beginning of a successful response.
    async fn begin(&self, request: reqwest::RequestBuilder) -> anyhow::Result<reqwest::Response> {
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
                bail!(
                    "the host refused the request: {} ({}, {status})",
                    error.message.unwrap_or_default(),
                    error.code
                )
            }
            Err(_) => {
                bail!("{} responded with {status}; check that it is the address of a Syncline host", self.url)
            }
        }
    }
}

/// Returns the path of one item of a list.
pub(super) fn item_path(list: &str, id: &str) -> String {
    let escaped: String = form_urlencoded::byte_serialize(id.as_bytes()).collect();
    format!("{list}/{escaped}")
}
