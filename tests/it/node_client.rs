//! Every method of the published Node client, unmodified, against a host.

use std::process::Command;

use serde_json::json;

use crate::support::{SECRET_KEY, Stage, repository};

#[tokio::test(flavor = "multi_thread")]
async fn every_method_of_the_published_client_works() {
    let stage = Stage::numbers(10).await;
    stage.host.put("/environment-variables/COLOUR", &json!({ "value": "green" })).await.expect(204);
    let output = Command::new("node")
        .arg("client_check.mjs")
        .current_dir(repository("tests/node"))
        .env("CHECK_HOST", stage.host.base_url())
        .env("CHECK_KEY", SECRET_KEY)
        .output()
        .expect("Node.js is not installed; `scripts/setup` says how to get it");
    let printed = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&printed));
}
