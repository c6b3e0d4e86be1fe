//! Node.js scripts that use vendors' own libraries or a browser.

use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::repository;

/// Runs a script of `tests/node` that uses a browser, with a JSON argument. Fails with the script's output.
pub async fn run_in_browser(script: &str, task: &Value) {
    let output = tokio::process::Command::new("node")
        .arg(repository("tests/node").join(script))
        .arg(task.to_string())
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .expect("Node.js is not installed; `scripts/setup` says what to install");
    let printed = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{printed}");
}

/// Runs a script of `tests/node` with `input`, and returns its output. Both are JSON.
pub fn node(script: &str, input: &Value) -> Value {
    let mut node = Command::new("node")
        .arg(repository("tests/node").join(script))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("Node.js is installed; `scripts/setup` says how");
    let mut stdin = node.stdin.take().expect("it is a pipe");
    stdin.write_all(input.to_string().as_bytes()).expect("Node.js reads it");
    drop(stdin);
    let output = node.wait_with_output().expect("Node.js ends");
    assert!(output.status.success(), "`npm ci` in tests/node installs what it needs");
    serde_json::from_slice(&output.stdout).expect("it writes JSON")
}
