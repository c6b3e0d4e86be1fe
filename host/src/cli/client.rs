//! A client of a host's API, for commands that talk to a running one.

use anyhow::{Context, bail};
use clap::Args;
use reqwest::header::CONTENT_TYPE;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use url::Url;

/// Which host to talk to.
#[derive(Debug, Clone, Args)]
pub(super) struct HostArgs {
    /// Address of the host
    #[arg(long, env = "SYNCLINE_URL", default_value = "http://127.0.0.1:3003", value_name = "URL")]
    url: Url,
    /// Secret key of the environment
    #[arg(long, env = "SYNCLINE_SECRET_KEY", hide_env_values = true, value_name = "KEY")]
    secret_key: Option<String>,
}

pub(super) struct Client {
    http: reqwest::Client,
    url: Url,
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
            "there is no secret key; set SYNCLINE_SECRET_KEY, or make one with `syncline keys create`",
        )?;
        Ok(Client { http: reqwest::Client::new(), url: self.url.clone(), secret_key })
    }
}

impl Client {
    pub(super) async fn get<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        self.send(self.http.get(self.url.join(path)?)).await
    }

    /// Posts bytes and reads the JSON answer.
    pub(super) async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        content_type: &str,
        bytes: Vec<u8>,
    ) -> anyhow::Result<T> {
        self.send(self.http.post(self.url.join(path)?).header(CONTENT_TYPE, content_type).body(bytes)).await
    }

    pub(super) async fn post_json<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &serde_json::Value,
    ) -> anyhow::Result<T> {
        self.post(path, "application/json", body.to_string().into_bytes()).await
    }

    /// Deletes what has no answer but that it is gone.
    pub(super) async fn delete(&self, path: &str) -> anyhow::Result<()> {
        self.answer(self.http.delete(self.url.join(path)?)).await.map(drop)
    }

    async fn send<T: DeserializeOwned>(&self, request: reqwest::RequestBuilder) -> anyhow::Result<T> {
        let body = self.answer(request).await?;
        serde_json::from_slice(&body).context("the host's answer is not what this version knows")
    }

    async fn answer(&self, request: reqwest::RequestBuilder) -> anyhow::Result<bytes::Bytes> {
        let response = request.bearer_auth(&self.secret_key).send().await.with_context(|| {
            format!("{} does not answer; is the host running, and is this its address (--url)?", self.url)
        })?;
        let status = response.status();
        let body = response.bytes().await.context("the host's answer was cut")?;
        if status.is_success() {
            return Ok(body);
        }
        match serde_json::from_slice::<ErrorBody>(&body) {
            Ok(ErrorBody { error }) => {
                bail!("the host refused: {} ({}, {status})", error.message.unwrap_or_default(), error.code)
            }
            Err(_) => bail!("{} answered {status}; is it a Syncline host?", self.url),
        }
    }
}
