//! CLI commands that work on a test's database.

use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::{ENCRYPTION_KEY, TestDatabase};

/// A command under construction.
pub struct Syncline {
    command: Command,
    input: String,
}

impl TestDatabase {
    pub fn command(&self, arguments: &[&str]) -> Syncline {
        let mut command = Command::new(env!("CARGO_BIN_EXE_syncline"));
        command
            .args(arguments)
            .env("DATABASE_URL", self.url())
            .envs(self.records_url().map(|url| ("SYNCLINE_RECORDS_DATABASE_URL", url)))
            .env("SYNCLINE_ENCRYPTION_KEY", ENCRYPTION_KEY)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        Syncline { command, input: String::new() }
    }
}

impl Syncline {
    /// The command's standard input.
    pub fn input(mut self, text: &str) -> Self {
        text.clone_into(&mut self.input);
        self
    }

    pub fn encryption_key(mut self, keys: &str) -> Self {
        self.command.env("SYNCLINE_ENCRYPTION_KEY", keys);
        self
    }

    /// Removes the key from the environment. The command may find one in this folder.
    pub fn data_dir(mut self, path: &Path) -> Self {
        self.command.env_remove("SYNCLINE_ENCRYPTION_KEY").env("SYNCLINE_DATA_DIR", path);
        self
    }

    /// Starts the command and does not wait.
    pub fn spawn(mut self) -> Child {
        let mut child = self.command.spawn().expect("the built program can be started");
        let mut input = child.stdin.take().expect("standard input is piped");
        // The command may not read its input.
        let _written = input.write_all(self.input.as_bytes());
        child
    }

    /// Runs the command, which must succeed, and returns its output.
    #[track_caller]
    pub fn run(self) -> String {
        let output = self.spawn().wait_with_output().expect("the process is our child");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("the output is text")
    }

    /// Runs the command, which must fail, and returns its standard error.
    #[track_caller]
    pub fn run_failing(self) -> String {
        let output = self.spawn().wait_with_output().expect("the process is our child");
        assert!(!output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        String::from_utf8_lossy(&output.stderr).into_owned()
    }
}
