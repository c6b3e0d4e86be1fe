//! A server in `tests/servers`, written in Python.

use std::fs::File;
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use super::host::free_port;
use super::{HostOptions, TestDatabase, eventually, repository};

pub struct PythonServer {
    child: Child,
    folder: TempDir,
    port: u16,
}

impl PythonServer {
    /// Runs a script of `tests/servers`. Its own arguments follow the port.
    pub async fn start(script: &str, arguments: &[&str]) -> Self {
        let folder = TempDir::new().expect("a temporary folder can be made");
        let log = File::create(folder.path().join("log")).expect("a log can be made");
        let port = free_port();
        let installed = repository(".tools/venv/bin/python");
        let program = if installed.exists() { installed } else { "python3".into() };
        let child = Command::new(program)
            .arg(repository("tests/servers").join(script))
            .arg(port.to_string())
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("the file handle can be cloned"))
            .stderr(log)
            .spawn()
            .expect("Python is not installed; `scripts/setup` installs it");
        let server = Self { child, folder, port };
        eventually("the server listens", async || TcpStream::connect(server.address()).ok()).await;
        server
    }

    /// The address in the format of `SYNCLINE_EGRESS_ALLOW`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub fn base_url(&self) -> String {
        format!("http://{}", self.address())
    }

    /// Adds a catalogue entry. Hosts read it when they start.
    pub fn write_entry(&self, slug: &str, lines: &str) {
        let source = r#"{ address = "https://example.com", checked_at = "2026-11-21" }"#;
        let entry = format!(
            "name = \"{slug}\"\ndisplay_name = \"Test\"\ndocs = \"https://example.com\"\nsource = {source}\n{}",
            lines.replace("BASE", &self.base_url())
        );
        let folder = self.folder.path().join("providers");
        std::fs::create_dir_all(&folder).expect("a folder can be made");
        std::fs::write(folder.join(format!("{slug}.toml")), entry).expect("a file can be written");
    }

    /// Options for a host that knows the entries and can reach the server.
    pub fn host_options(&self, db: &TestDatabase) -> HostOptions {
        let folder = self.folder.path().join("providers");
        let folder = folder.to_str().expect("temporary folders have plain names");
        HostOptions::new()
            .database(db)
            .variable("SYNCLINE_PROVIDERS_DIR", folder)
            .variable("SYNCLINE_EGRESS_ALLOW", &self.address())
    }
}

impl Drop for PythonServer {
    fn drop(&mut self) {
        let _ended_already = self.child.kill();
        let _was_waited_for = self.child.wait();
        if std::thread::panicking() {
            let log = std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
            eprintln!("--- log of the server ---\n{log}--- end of the server's log ---");
        }
    }
}
