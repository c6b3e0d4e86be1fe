//! The HTTP server that does nothing. It uses the same library, runtime and build as the host.

use std::process::Stdio;

use anyhow::{Context, Result};
use axum::Router;
use axum::http::header;
use axum::routing::{get, post};
use bytes::Bytes;
use clap::Args;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpListener;
use tokio::process::{Child, Command};

const JSON: [(header::HeaderName, &str); 1] = [(header::CONTENT_TYPE, "application/json")];

#[derive(Args)]
pub struct Bare {
    /// Length of the response to `GET /page`, in bytes.
    #[arg(long, default_value_t = 0)]
    page_bytes: usize,
}

impl Bare {
    /// Prints its URL when it listens, and serves until it is killed.
    pub async fn serve(self) -> Result<()> {
        let page = Bytes::from(vec![b'.'; self.page_bytes]);
        let router = Router::new()
            .route("/page", get(move || std::future::ready((JSON, page.clone()))))
            .route("/echo", post(async |body: Bytes| (JSON, body)));
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        println!("http://{}", listener.local_addr()?);
        axum::serve(listener, router).await?;
        Ok(())
    }
}

/// Such a server in a separate process, which is killed when this is dropped.
pub struct BareServer {
    pub url: String,
    _process: Child,
}

impl BareServer {
    pub async fn start(page_bytes: usize) -> Result<Self> {
        let mut process = Command::new(std::env::current_exe()?)
            .args(["bare", "--page-bytes", &page_bytes.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let output = process.stdout.take().context("the bare server has no output")?;
        let url =
            BufReader::new(output).lines().next_line().await?.context("the bare server did not start")?;
        Ok(Self { url, _process: process })
    }
}
