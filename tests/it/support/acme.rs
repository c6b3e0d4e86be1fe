//! A fake provider for typed credentials, and catalogue entries that point to it.

use std::fs::{self, File};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use super::host::free_port;
use super::{HostOptions, eventually, repository};

/// The secret that it accepts from an end user, and the one that it accepts from an app.
pub const ACME_PIN: &str = "planted-pin-6021";
pub const ACME_SECRET: &str = "planted-secret-6021";
/// The key of its JSON Web Tokens.
pub const ACME_JWT_KEY: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

pub struct Acme {
    child: Child,
    folder: TempDir,
    port: u16,
}

impl Acme {
    pub async fn start() -> Self {
        let folder = TempDir::new().expect("a temporary folder can be made");
        let log = File::create(folder.path().join("log")).expect("a log can be made");
        let port = free_port();
        let installed = repository(".tools/venv/bin/python");
        let program = if installed.exists() { installed } else { "python3".into() };
        let child = Command::new(program)
            .arg(repository("tests/servers/acme.py"))
            .arg(port.to_string())
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("the file handle can be cloned"))
            .stderr(log)
            .spawn()
            .expect("Python can be started; `scripts/setup` installs what the server needs");
        let acme = Self { child, folder, port };
        eventually("the server listens", async || TcpStream::connect(acme.address()).ok()).await;
        fs::create_dir(acme.providers()).expect("the folder is writable");
        acme
    }

    /// The address in the format of `SYNCLINE_EGRESS_ALLOW`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Adds an entry to the catalogue. `entry` contains everything except the name; `{acme}` is replaced with the
    /// address.
    pub fn add_provider(&self, name: &str, entry: &str) {
        let entry = entry.replace("{acme}", &format!("http://{}", self.address()));
        let head = format!(
            "name = \"{name}\"\ndisplay_name = \"Acme\"\ndocs = \"https://example.com\"\n\
             source = {{ address = \"https://example.com\", checked_at = \"2026-11-21\" }}\n"
        );
        fs::write(self.providers().join(format!("{name}.toml")), head + &entry)
            .expect("the folder is writable");
    }

    /// Options for a host with these entries that can reach the server.
    pub fn configure(&self, options: HostOptions) -> HostOptions {
        options
            .variable("SYNCLINE_PROVIDERS_DIR", &self.providers().display().to_string())
            .variable("SYNCLINE_EGRESS_ALLOW", &self.address())
    }

    /// The requests that the server has answered, one line each: method, path, status.
    pub fn requests(&self) -> Vec<String> {
        let log = fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
        log.lines().map(str::to_owned).collect()
    }

    fn providers(&self) -> Box<Path> {
        self.folder.path().join("providers").into()
    }
}

impl Drop for Acme {
    fn drop(&mut self) {
        let _ended_already = self.child.kill();
        let _was_waited_for = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- log of the fake provider ---\n{}", self.requests().join("\n"));
        }
    }
}
