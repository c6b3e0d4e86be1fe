//! The provider of the main tests: localstripe, a server that speaks Stripe's API.

use std::fs::File;
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use super::host::free_port;
use super::{Answer, Api, eventually, repository};

/// The key of connections to the shop.
pub const SHOP_KEY: &str = "sk_planted_shop_key_7d1f";

pub struct Shop {
    child: Child,
    folder: TempDir,
    port: u16,
    api: Api,
}

impl Shop {
    pub async fn start() -> Self {
        let folder = TempDir::new().expect("a temporary folder can be made");
        let log = File::create(folder.path().join("log")).expect("a log can be made");
        let port = free_port();
        let installed = repository(".tools/venv/bin/localstripe");
        let program = if installed.exists() { installed } else { "localstripe".into() };
        let child = Command::new(program)
            .args(["--from-scratch", "--port", &port.to_string()])
            .current_dir(&folder)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("the file handle can be cloned"))
            .stderr(log)
            .spawn()
            .expect("localstripe is not installed; `scripts/setup` installs it");
        let api = Api::new(format!("http://127.0.0.1:{port}"), Some(SHOP_KEY));
        let shop = Self { child, folder, port, api };
        eventually("the shop listens", async || TcpStream::connect(shop.address()).ok()).await;
        shop
    }

    /// The address in the format of `SYNCLINE_EGRESS_ALLOW`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub fn base_url(&self) -> &str {
        self.api.base_url()
    }

    /// A folder for `SYNCLINE_PROVIDERS_DIR`, whose file of `stripe-api-key` has the shop's address.
    pub fn provider_files(&self) -> TempDir {
        let folder = TempDir::new().expect("a temporary folder can be made");
        let stripe =
            std::fs::read_to_string(repository("host/crates/providers/catalogue/stripe-api-key.toml"));
        let stripe =
            stripe.expect("the catalogue has Stripe").replace("https://api.stripe.com", self.base_url());
        std::fs::write(folder.path().join("stripe-api-key.toml"), stripe).expect("the folder is writable");
        folder
    }

    /// The shop's access log.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    pub async fn create_customer(&self, form: &[(&str, &str)]) -> Value {
        self.post("/v1/customers", form).await
    }

    pub async fn create_customers(&self, count: usize) {
        for number in 0..count {
            self.create_customer(&[("name", &format!("Customer {number}"))]).await;
        }
    }

    pub async fn post(&self, path: &str, form: &[(&str, &str)]) -> Value {
        let request =
            self.api.request("POST", path).header("Content-Type", "application/x-www-form-urlencoded");
        request.bytes(super::client::query(form)).send().await.expect(200).json()
    }

    pub async fn delete(&self, path: &str) {
        self.api.request("DELETE", path).send().await.expect(200);
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.api.get(path).await
    }

    /// All entries of a list in the shop's API.
    pub async fn list(&self, path: &str) -> Vec<Value> {
        let mut listed: Vec<Value> = Vec::new();
        loop {
            let after = listed.last().and_then(|last| last["id"].as_str());
            let after = after.map(|id| format!("&starting_after={id}")).unwrap_or_default();
            let page = self.get(&format!("{path}?limit=50{after}")).await.expect(200).json();
            listed.extend(page["data"].as_array().expect("`data` is a list").iter().cloned());
            if page["has_more"] == false {
                return listed;
            }
        }
    }
}

impl Drop for Shop {
    fn drop(&mut self) {
        let _ended_already = self.child.kill();
        let _was_waited_for = self.child.wait();
    }
}
