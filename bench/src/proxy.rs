//! Measures the throughput of the proxy. The baseline is nginx in front of the same server.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;
use tokio::process::{Child, Command};

use crate::Bench;
use crate::bare::BareServer;
use crate::host::{Host, free_address};
use crate::http;
use crate::load::{Requests, describe, over};
use crate::report::{Report, Target};
use crate::stage::{CONNECTION, INTEGRATION};

const LONGEST_START: Duration = Duration::from_secs(10);
const LONGEST_STOP: Duration = Duration::from_secs(5);
/// The key that both the proxy and nginx add.
const PROVIDER_KEY: &str = "only-for-benchmarks";

const SHORT: &str = "1 kB";

pub async fn measure(bench: &Bench) -> Result<Report> {
    let mut report = Report::new("proxy", "GET of bodies from memory, with an added key".to_owned());
    for (what, page_bytes) in [(SHORT, 1_000), ("100 kB", 100_000)] {
        let server = BareServer::start(page_bytes).await?;
        let folder = tempfile::tempdir_in(&bench.results)?;
        let nginx = Nginx::start(folder.path(), &server.url).await?;
        let name = format!("bench_proxy_{page_bytes}");
        let database = bench.server.create_database(&name).await?;
        let variables = provider(folder.path(), &server.url)?;
        let mut host = Host::start_with(bench, &database, &variables).await?;
        connect(&host).await?;

        let request = |url: &str, target: &str| Requests {
            url: url.to_owned(),
            integration: INTEGRATION,
            method: "GET",
            targets: vec![target.to_owned()],
            body: None,
            headers: Vec::new(),
        };
        let proxied = request(&host.url, "/proxy/page");
        let by_nginx = request(&nginx.url, "/page");
        let direct = request(&server.url, "/page");
        for connections in [1, 16, 64] {
            let over = over(connections);
            let (mut ours, mut theirs, mut bare) = (Vec::new(), Vec::new(), Vec::new());
            for _ in 0..bench.scale.rounds {
                ours.push(proxied.load(bench, connections).await?);
                theirs.push(by_nginx.load(bench, connections).await?);
                bare.push(direct.load(bench, connections).await?);
            }
            describe(report.row(format!("/proxy, {what}, {over}")), &ours);
            describe(report.row(format!("nginx, {what}, {over}")), &theirs);
            describe(report.row(format!("the server itself, {what}, {over}")), &bare);
            let ours: Vec<f64> = ours.iter().map(|load| load.per_second).collect();
            let theirs: Vec<f64> = theirs.iter().map(|load| load.per_second).collect();
            let is_measure = connections > 1 && what == SHORT;
            let target = if is_measure { Target::AtLeast(0.7) } else { Target::None };
            report.ratio(format!("requests/s of nginx, {what}, {over}"), &ours, &theirs, target);
        }
        host.stop().await?;
        bench.server.drop_database(&name).await?;
    }
    Ok(report)
}

/// Writes a provider file for the server, and returns the variables that make a host use it.
fn provider(folder: &Path, url: &str) -> Result<[(&'static str, String); 2]> {
    let file = format!(
        r#"
        name = "{INTEGRATION}"
        display_name = "The benchmark's own"
        auth_mode = "API_KEY"
        docs = "https://example.com"
        [source]
        address = "https://example.com"
        checked_at = "2026-01-01"
        [credentials.apiKey]
        title = "Key"
        description = "Any."
        [proxy]
        base_url = "{url}"
        [proxy.headers]
        x-api-key = "${{apiKey}}"
        "#
    );
    let providers = folder.join("providers");
    std::fs::create_dir_all(&providers)?;
    std::fs::write(providers.join(format!("{INTEGRATION}.toml")), file)?;
    let address = url.trim_start_matches("http://").to_owned();
    Ok([("SYNCLINE_PROVIDERS_DIR", providers.display().to_string()), ("SYNCLINE_EGRESS_ALLOW", address)])
}

async fn connect(host: &Host) -> Result<()> {
    host.post("/integrations", &json!({ "provider": INTEGRATION, "unique_key": INTEGRATION })).await?;
    let connection = json!({
        "provider_config_key": INTEGRATION,
        "connection_id": CONNECTION,
        "credentials": { "type": "API_KEY", "apiKey": PROVIDER_KEY },
    });
    host.post("/connections", &connection).await?;
    Ok(())
}

/// nginx as a plain reverse proxy with kept connections. It stops when this is dropped.
struct Nginx {
    url: String,
    arguments: [String; 4],
    process: Child,
}

impl Drop for Nginx {
    /// Its workers outlive a killed master process, so nginx is asked to stop first and gets time to stop its
    /// workers.
    fn drop(&mut self) {
        let stopped = std::process::Command::new("nginx").args(&self.arguments).args(["-s", "stop"]).status();
        let asked = Instant::now();
        while matches!(self.process.try_wait(), Ok(None)) && asked.elapsed() < LONGEST_STOP {
            std::thread::sleep(Duration::from_millis(10));
        }
        if !stopped.is_ok_and(|status| status.success()) {
            eprintln!("could not stop nginx");
        }
    }
}

impl Nginx {
    async fn start(folder: &Path, upstream: &str) -> Result<Self> {
        let listen = free_address()?;
        let address = upstream.trim_start_matches("http://");
        let folder = folder.display();
        let config = format!(
            r#"
            daemon off;
            user root; # If it is started by root: its files are in a folder of this user.
            worker_processes auto;
            pid {folder}/nginx.pid;
            error_log {folder}/nginx.log;
            events {{ worker_connections 1024; }}
            http {{
                access_log off;
                # A whole answer fits: nothing goes to disk.
                proxy_buffers 16 16k;
                client_body_temp_path {folder}/body;
                proxy_temp_path {folder}/proxy;
                fastcgi_temp_path {folder}/fastcgi;
                uwsgi_temp_path {folder}/uwsgi;
                scgi_temp_path {folder}/scgi;
                keepalive_requests 1000000000;
                upstream server {{ server {address}; keepalive 128; keepalive_requests 1000000000; }}
                server {{
                    listen {listen};
                    location / {{
                        proxy_pass http://server;
                        proxy_http_version 1.1;
                        proxy_set_header Connection "";
                        proxy_set_header X-Api-Key "{PROVIDER_KEY}";
                    }}
                }}
            }}
            "#
        );
        let path = format!("{folder}/nginx.conf");
        std::fs::write(&path, config)?;
        let arguments = ["-e".to_owned(), format!("{folder}/nginx.log"), "-c".to_owned(), path];
        let mut process = Command::new("nginx")
            .args(&arguments)
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .context("could not start nginx")?;
        let url = format!("http://{listen}");
        let started = Instant::now();
        while http::send(hyper::Method::GET, &format!("{url}/page"), &[], "").await.is_err() {
            if let Some(status) = process.try_wait()? {
                bail!("nginx exited with {status}");
            }
            ensure!(started.elapsed() < LONGEST_START, "nginx did not accept connections in time");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(Self { url, arguments, process })
    }
}
