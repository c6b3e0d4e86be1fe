//! Deploying bundles: rejected bundles, plans, and the effects of a deployment.

use std::time::Duration;

use minisign::KeyPair;
use serde_json::{Value, json};
use sqlx::Connection as _;
use syncline_store::deployments::{self, DeploymentState};
use syncline_store::{Databases, Store};
use syncline_types::ids::EnvironmentPk;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::{
    Assembled, Bundle, Host, HostOptions, PostgresProxy, SECRET_KEY, SlowProvider, Stage, TestDatabase,
    eventually, save, text,
};

/// Posts bytes to a host without deployments, and returns the code and message of the error. Checks that nothing has
/// changed.
async fn refused(host: &Host, bytes: Vec<u8>) -> (String, String) {
    for dry_run in [true, false] {
        let answer = host.post_bundle(bytes.clone(), dry_run).await;
        let (status, code) = answer.refusal();
        assert_eq!(status, 400, "{}", answer.text());
        assert_eq!(host.get("/integrations").await.expect(200).json(), json!({ "data": [] }));
        if !dry_run {
            return (code, answer.message());
        }
    }
    unreachable!("the loop ends with a return")
}

#[tokio::test]
async fn an_invalid_bundle_is_rejected_with_the_reason() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    let whole = Bundle::guest("hostile").to_tar();
    for (bytes, reason) in [
        (vec![], "the bundle is truncated"),
        (b"PK\x03\x04 this is a zip".to_vec(), "the bundle"),
        (whole[..whole.len() / 2].to_vec(), "the bundle is truncated"),
        (whole[..whole.len() - 1024].to_vec(), "the bundle is truncated"),
        (whole[..700].to_vec(), "the bundle is truncated"),
    ] {
        let length = bytes.len();
        let (code, message) = refused(&host, bytes).await;
        assert_eq!(code, "invalid_bundle", "{length} bytes");
        assert!(message.contains(reason), "{length} bytes: {message}");
    }
    host.deploy(&Bundle::guest("hostile")).await;
}

#[tokio::test]
async fn a_component_modified_after_bundling_is_rejected() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    let mut bytes = Bundle::guest("hostile").to_tar();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    let (code, message) = refused(&host, bytes).await;
    assert_eq!(code, "invalid_bundle");
    assert!(message.contains("was changed after the bundle was built"), "{message}");
}

#[tokio::test]
async fn an_invalid_component_is_rejected_with_the_reason() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    let hostile = Bundle::guest("hostile");
    let component = hostile.component();
    let mut damaged = component.to_vec();
    damaged[component.len() / 2..].fill(0xff);
    for (bytes, reason) in [
        (&b"#!/bin/sh\n"[..], "it is not WebAssembly"),
        (b"", "it is not WebAssembly"),
        (b"\0asm\x01\0\0\0", "it is a core WebAssembly module, not a component"),
        (b"\0asm\x0d\0\x01\0", "it does not export `syncline:integration/functions`"),
        (&component[..component.len() / 2], "the component could not be compiled"),
        (&component[..9], "the component could not be compiled"),
        (&damaged, "the component could not be compiled"),
    ] {
        let (code, message) = refused(&host, hostile.clone().with_component(bytes).to_tar()).await;
        assert_eq!(code, "invalid_sync_config", "{message}");
        assert!(message.contains(reason), "{message}");
    }
    host.deploy(&hostile).await;
}

#[tokio::test]
async fn a_component_that_exceeds_host_limits_is_rejected_with_the_reason() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    let minimal = Bundle::example("minimal");
    let assembled = || Assembled::new(&[("sync", "numbers"), ("action", "echo")]);
    for (component, reason) in [
        (assembled().table_elements(1_000_000), "which exceeds the limit of 200000"),
        (assembled().memory_pages(10_000), "which exceeds the limit of"),
        (assembled().importing_foreign(), "it has an import that this host does not provide"),
    ] {
        let (code, message) =
            refused(&host, minimal.clone().with_component(&component.component()).to_tar()).await;
        assert_eq!(code, "invalid_sync_config", "{message}");
        assert!(message.contains(reason), "{message}");
    }
    host.deploy(&minimal.with_component(&assembled().component())).await;
}

#[tokio::test]
async fn an_invalid_configuration_is_rejected_with_the_reason() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    let hostile = Bundle::guest("hostile");
    for (bundle, reason) in [
        (hostile.clone().replace("actions.spin]", "actions.spinn]"), "`spinn`"),
        (hostile.clone().replace("syncs.steps]", "syncs.leaps]"), "`leaps`"),
        (hostile.clone().replace("\"unauthenticated\"", "\"unauthentikated\""), "`unauthentikated`"),
        (hostile.clone().replace("model = \"Step\"", "model = \"Stepp\""), "`Stepp`"),
        (hostile.clone().replace("name = \"hostile\"", "nam = \"hostile\""), "`nam`"),
        (hostile.clone().replace("name = \"hostile\"", "name = "), "syncline.toml"),
        (
            hostile
                .clone()
                .replace("code = \"string\"", &format!("code = \"string{}\"", "[]".repeat(100_000))),
            "more than 20 nested lists, objects and `?`",
        ),
        (hostile.clone().replace("model = \"Step\"", "models = []"), "sync `steps` has no `model`"),
    ] {
        let (code, message) = refused(&host, bundle.to_tar()).await;
        assert_eq!(code, "invalid_sync_config", "{message}");
        assert!(message.contains(reason), "{message}");
    }
    host.deploy(&hostile).await;
}

#[tokio::test]
async fn another_provider_for_an_integration_is_rejected_with_the_way_out() {
    let stage = Stage::hostile().await;
    let changed = Bundle::guest("hostile").replace("\"unauthenticated\"", "\"stripe-api-key\"");
    for dry_run in [true, false] {
        let refused = stage.host.post_bundle(changed.to_tar(), dry_run).await;
        assert_eq!(refused.refusal(), (409, "conflicting_deployment".to_owned()));
        let message = refused.message();
        for part in [
            "`hostile`",
            "`unauthenticated`",
            "`stripe-api-key`",
            "rename the integration in the bundle",
            "delete it with its connections",
        ] {
            assert!(message.contains(part), "{part}: {message}");
        }
    }
    let provider =
        async || stage.host.get("/integrations/hostile").await.expect(200).json()["data"]["provider"].clone();
    assert_eq!(provider().await, "unauthenticated");
    // Both ways work.
    stage.host.deploy(&Bundle::guest("hostile").for_integration("second", "stripe-api-key")).await;
    stage.host.delete("/integrations/hostile").await.expect(200);
    stage.host.deploy(&changed).await;
    assert_eq!(provider().await, "stripe-api-key");
}

/// Sends the head of a deployment and half of its bundle, and then nothing more. Waits until the host disconnects.
async fn upload_half(host: &Host, bundle: &[u8]) {
    let mut stream = TcpStream::connect(host.address()).await.expect("the host listens");
    let head = format!(
        "POST /deployments?accept_capabilities=true HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {SECRET_KEY}\r\n\
         Content-Type: application/x-tar\r\nContent-Length: {}\r\n\r\n",
        bundle.len()
    );
    stream.write_all(head.as_bytes()).await.expect("the host reads");
    stream.write_all(&bundle[..bundle.len() / 2]).await.expect("the host reads");
    stream.shutdown().await.expect("the connection is open");
    let mut answer = Vec::new();
    let ended = tokio::time::timeout(Duration::from_secs(60), stream.read_to_end(&mut answer)).await;
    let _may_be_reset = ended.expect("the host disconnects");
    assert!(!answer.starts_with(b"HTTP/1.1 200 "), "{}", String::from_utf8_lossy(&answer));
}

#[tokio::test]
async fn a_refused_deployment_keeps_the_active_version_serving() {
    let with_limit = |cpu: &str| Bundle::guest("hostile").limit("spin", &format!("cpu = \"{cpu}\""));
    let stage = Stage::of(&with_limit("100ms"), json!({ "steps": 0 })).await;
    let host = &stage.host;
    let list = async || host.get("/deployments").await.expect(200).json();
    // The limit in the message shows which version has run.
    let assert_served = async |limit: &str, after: &str| {
        let answer = stage.action("spin", &Value::Null).await;
        assert_eq!(answer.refusal().1, "limit_exceeded", "after {after}");
        assert!(answer.message().contains(limit), "after {after}: {}", answer.message());
    };
    let before = list().await;
    assert_eq!(before["deployments"].as_array().map(Vec::len), Some(1), "{before}");

    let next = with_limit("200ms");
    let whole = next.to_tar();
    let mut altered = whole.clone();
    altered[whole.len() / 2] ^= 1;
    let component = next.component();
    let damaged = next.clone().with_component(&component[..component.len() / 2]);
    let misnamed = next.clone().replace("syncs.steps]", "syncs.leaps]");
    let moved = next.clone().replace("\"unauthenticated\"", "\"stripe-api-key\"");
    for (reason, bytes, status, code) in [
        ("an invalid configuration", misnamed.to_tar(), 400, "invalid_sync_config"),
        ("an altered bundle", altered, 400, "invalid_bundle"),
        ("a truncated bundle", whole[..whole.len() / 2].to_vec(), 400, "invalid_bundle"),
        ("a component that does not compile", damaged.to_tar(), 400, "invalid_sync_config"),
        ("another provider", moved.to_tar(), 409, "conflicting_deployment"),
    ] {
        let refused = host.post_bundle(bytes, false).await;
        assert_eq!(refused.refusal(), (status, code.to_owned()), "{reason}: {}", refused.text());
        assert_eq!(list().await, before, "{reason}");
        assert_served("0.1 s", reason).await;
    }
    upload_half(host, &whole).await;
    assert_eq!(list().await, before);
    assert_served("0.1 s", "half an upload").await;

    let key = KeyPair::generate_unencrypted_keypair().unwrap().pk.to_base64();
    host.command(&stage.db, &["env", "bundle-keys", "add", "release", &key]);
    let unsigned = host.post_bundle(whole, false).await;
    assert_eq!(unsigned.refusal(), (403, "bundle_signature_required".to_owned()));
    assert_eq!(list().await, before);
    assert_served("0.1 s", "a bundle without a signature").await;

    host.command(&stage.db, &["env", "bundle-keys", "remove", "release"]);
    assert_eq!(host.deploy(&next).await["version"], 2);
    assert_served("0.2 s", "a deployment").await;
}

#[tokio::test]
async fn a_plan_lists_the_changes_without_applying_them() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    let hostile = Bundle::guest("hostile");
    let plan = host.post_bundle(hostile.to_tar(), true).await.expect(200).json();
    assert_eq!(host.get("/integrations").await.expect(200).json(), json!({ "data": [] }));
    assert_eq!((&plan["id"], &plan["version"]), (&Value::Null, &Value::Null));
    let changes = plan["changes"].as_array().unwrap();
    assert_eq!(
        changes[0],
        json!({ "change": "add", "kind": "integration", "integration": "hostile", "name": null })
    );
    for (kind, name) in [("sync", "commit-raw"), ("sync", "steps"), ("action", "spin")] {
        let change = json!({ "change": "add", "kind": kind, "integration": "hostile", "name": name });
        assert!(changes.contains(&change), "{change} in {plan}");
    }
    let done = host.deploy(&hostile).await;
    assert_eq!(
        (&done["changes"], &done["digest"], &done["version"]),
        (&plan["changes"], &plan["digest"], &json!(1))
    );
    assert!(done["id"].is_string(), "{done}");
}

#[tokio::test]
async fn a_plan_warns_about_a_changed_field_type() {
    let stage = Stage::hostile().await;
    let changed = Bundle::guest("hostile").replace("count = \"integer?\"", "count = \"string?\"");
    let plan = stage.host.post_bundle(changed.to_tar(), true).await.expect(200).json();
    let warning = text(&plan["warnings"][0]);
    assert!(warning.starts_with("`count` of model `Item` changes from `integer?` to `string?`"), "{plan}");
}

#[tokio::test]
async fn a_plan_lists_and_warns_about_model_changes() {
    let stage = Stage::hostile().await;
    let model = |change: &str, name: &str| json!({ "change": change, "kind": "model", "integration": null, "name": name });
    let step = "[models.Step]\nid = \"string\"";
    for (from, to, changes, warning) in [
        (
            step,
            "[models.Step]\nid = \"string\"\ntotal = \"integer\"",
            vec![model("update", "Step")],
            "`total` of model `Step` is new, and records without it are rejected",
        ),
        (
            step,
            "[models.Step]\nid = \"string\"\nstrict = true",
            vec![model("update", "Step")],
            "model `Step` becomes strict: records with undeclared fields are rejected",
        ),
        (
            step,
            "[models.Step]\nid = \"string\"\nencrypt = true\non_bad_record = \"set_aside\"",
            vec![model("update", "Step")],
            "payloads of model `Step` will be encrypted",
        ),
        (
            "[models.Item]",
            "[models.Extra]\nid = \"string\"\n\n[models.Item]",
            vec![model("add", "Extra")],
            "",
        ),
    ] {
        let changed = Bundle::guest("hostile").replace(from, to);
        let plan = stage.host.post_bundle(changed.to_tar(), true).await.expect(200).json();
        assert_eq!(plan["changes"], json!(changes), "{to}");
        let told = plan["warnings"][0].as_str().unwrap_or_default();
        assert!(told.starts_with(warning) && told.is_empty() == warning.is_empty(), "{to}: {plan}");
    }
    stage
        .host
        .deploy(&Bundle::guest("hostile").replace(step, "[models.Step]\nid = \"string\"\nmore = \"date?\""))
        .await;
    let back = stage.host.deploy(&Bundle::guest("hostile")).await;
    assert_eq!(back["changes"], json!([model("update", "Step")]));
    assert_eq!(back["warnings"], json!(["model `Step` no longer declares `more`"]));
}

#[tokio::test]
async fn a_bundle_without_functions_can_be_deployed() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    let empty = Bundle::guest("hostile").without_functions();
    let first = host.deploy(&empty).await;
    assert_eq!(first["version"], 1, "{first}");
    assert_eq!(host.get("/integrations/hostile").await.expect(200).json()["data"]["unique_key"], "hostile");
    host.deploy(&Bundle::guest("hostile")).await;
    let connection = host.connect("hostile", json!({ "steps": 3, "pause_ms": 0 })).await;
    assert_eq!(connection.all(&[("model", "Step")]).await.len(), 3);
    // The last function can be removed too.
    let last = host.deploy(&empty).await;
    let removed = json!({ "change": "remove", "kind": "sync", "integration": "hostile", "name": "steps" });
    assert!(last["changes"].as_array().unwrap().contains(&removed), "{last}");
    assert!(connection.statuses("*").await.is_empty());
    assert_eq!(connection.all(&[("model", "Step")]).await.len(), 3);
}

#[tokio::test]
async fn an_unreadable_deployment_does_not_block_other_bundles() {
    let stage = Stage::of(&Bundle::guest("hostile"), json!({ "steps": 3, "pause_ms": 0 })).await;
    stage.host.deploy(&Bundle::example("minimal")).await;
    // The state that a version with a higher nesting limit may have left.
    stage
        .db
        .execute(
            r#"UPDATE deployments SET config = jsonb_set(config, '{models,Step}',
                 ('{"object":{"fields":[{"name":"id","type":' || repeat('{"array":', 200) || '"string"'
                  || repeat('}', 200) || '}]}}')::jsonb)
               WHERE bundle_name = 'hostile';
               UPDATE functions SET spec = jsonb_set(spec, '{spec,input}',
                 (repeat('{"array":', 200) || '"string"' || repeat('}', 200))::jsonb)
               WHERE name = 'echo'"#,
        )
        .await;
    // Another host starts, and both continue with the readable deployments.
    let second = Host::spawn(&stage.db).await;
    let told = "version 1 of the bundle `hostile` in environment `dev` cannot be parsed, so its functions do not run";
    assert!(second.log().contains(told), "{}", second.log());
    let told = "the deployed action `echo` of integration `minimal` cannot run";
    assert!(second.log().contains(told), "{}", second.log());
    for host in [&stage.host, &second] {
        host.get("/scripts/config").await.expect(200);
    }
    let numbers = second.connect_as("customer-2", "minimal", json!({ "count": 3 })).await;
    numbers.wait_until_idle().await;
    assert_eq!(numbers.all(&[("model", "Number")]).await.len(), 3);
    second.deploy(&Bundle::example("minimal").at_address("http://127.0.0.1:9")).await;
    let answer = numbers.action("echo", &json!("x")).await.expect(200);
    assert_eq!(answer.json(), json!("x"));
    // No data is lost, and a new deployment makes it usable again.
    assert_eq!(stage.through(&second).all(&[("model", "Step")]).await.len(), 3);
    let schedules = "SELECT count(*) FROM schedules WHERE sync_name IN ('steps', 'commit-raw')";
    assert_eq!(stage.db.number(schedules).await, 2);
    let again = second.deploy(&Bundle::guest("hostile").limit("spin", "cpu = \"1s\"")).await;
    assert_eq!(again["version"], 2, "{again}");
    let warning = "the active version cannot be parsed, so this plan does not show changes of its models";
    assert_eq!(again["warnings"], json!([warning]));
    assert_eq!(stage.through(&second).run("steps").await["status"], "SUCCESS");
}

#[tokio::test]
async fn deploying_the_same_bundle_again_changes_nothing() {
    let stage = Stage::hostile().await;
    let first = stage.status("steps").await;
    let again = stage.host.deploy(&Bundle::guest("hostile")).await;
    assert_eq!(again["changes"], json!([]), "{again}");
    assert_eq!(stage.status("steps").await, first);
    assert_eq!(stage.db.number("SELECT count(*) FROM deployments").await, 1);
}

#[tokio::test]
async fn a_removed_sync_loses_its_schedule_but_keeps_its_records() {
    let stage = Stage::hostile().await;
    stage.set_metadata(json!({ "steps": 3, "pause_ms": 0 })).await;
    stage.run("steps").await;
    let without = Bundle::guest("hostile")
        .replace("[integrations.hostile.syncs.steps]\nruns = \"every 1 hour\"\nmodel = \"Step\"\n", "");
    stage.host.deploy(&without).await;
    let names: Vec<Value> = stage.statuses("*").await.iter().map(|status| status["name"].clone()).collect();
    assert_eq!(names, ["commit-raw"]);
    assert_eq!(stage.control("trigger", "steps").await.refusal(), (404, "unknown_sync".to_owned()));
    assert_eq!(stage.all(&[("model", "Step")]).await.len(), 3);
}

#[tokio::test]
async fn a_newly_deployed_sync_runs_for_existing_connections() {
    let without = Bundle::guest("hostile")
        .replace("[integrations.hostile.syncs.steps]\nruns = \"every 1 hour\"\nmodel = \"Step\"\n", "");
    let stage = Stage::of(&without, json!({ "steps": 3, "pause_ms": 0 })).await;
    stage.host.deploy(&Bundle::guest("hostile")).await;
    stage.wait_for_finish_after("steps", None).await;
    assert_eq!(stage.all(&[("model", "Step")]).await.len(), 3);
}

#[tokio::test]
async fn a_deployment_keeps_checkpoints_and_paused_schedules() {
    let stage = Stage::hostile().await;
    stage.set_metadata(json!({ "steps": 3, "pause_ms": 0 })).await;
    stage.run("steps").await;
    stage.control("pause", "steps").await.expect(200);
    let changed = Bundle::guest("hostile").limit("spin", "cpu = \"1s\"");
    let plan = stage.host.deploy(&changed).await;
    let change = json!([{ "change": "update", "kind": "action", "integration": "hostile", "name": "spin" }]);
    assert_eq!((&plan["changes"], &plan["version"]), (&change, &json!(2)));
    let status = stage.status("steps").await;
    assert_eq!((&status["status"], &status["checkpoint"]), (&json!("PAUSED"), &json!({ "cursor": "3" })));
}

#[tokio::test]
async fn a_new_default_frequency_moves_the_next_run() {
    let stage = Stage::hostile().await;
    let hostile = Bundle::guest("hostile");
    let steps = "runs = \"every 1 hour\"\nmodel = \"Step\"";
    stage.host.deploy(&hostile.replace(steps, "runs = \"every 2 minutes\"\nmodel = \"Step\"")).await;
    let status = stage.status("steps").await;
    assert_eq!(status["frequency"], "every 2 minutes");
    let next = chrono::DateTime::parse_from_rfc3339(text(&status["nextScheduledSyncAt"])).unwrap();
    let seconds = (next.to_utc() - chrono::Utc::now()).num_seconds();
    assert!((60..=180).contains(&seconds), "the next run is in {seconds} s");
}

#[tokio::test]
async fn a_new_default_frequency_spreads_waiting_schedules_and_keeps_due_ones() {
    let stage = Stage::hostile().await;
    stage.wait_until_idle().await;
    // A hundred more variants: one runs, one waits for a permit, and the others are not due yet.
    stage
        .db
        .execute(
            "INSERT INTO schedules (environment_pk, integration_pk, connection_pk, sync_name, variant, state, due_at,
                                    due_reason, awaits_permit, run_id, run_owner, lease_expires_at)
             SELECT environment_pk, integration_pk, connection_pk, sync_name, 'v' || number, 'running',
                    CASE number WHEN 0 THEN NULL WHEN 1 THEN now() ELSE now() + interval '1 hour' END, 'schedule',
                    number = 1, run.id, run.id, CASE number WHEN 0 THEN now() + interval '1 hour' END
             FROM schedules, generate_series(0, 100) AS number
             CROSS JOIN LATERAL (SELECT CASE number WHEN 0 THEN gen_random_uuid() END AS id) AS run
             WHERE sync_name = 'steps'",
        )
        .await;
    let steps = "runs = \"every 1 hour\"\nmodel = \"Step\"";
    let other = "runs = \"every 2 hours\"\nmodel = \"Step\"";
    stage.host.deploy(&Bundle::guest("hostile").replace(steps, other)).await;
    let waits = "sync_name = 'steps' AND due_at BETWEEN now() + interval '115 minutes' AND
                 now() + interval '121 minutes'";
    assert_eq!(stage.db.number(&format!("SELECT count(*) FROM schedules WHERE {waits}")).await, 100);
    let spread =
        format!("SELECT extract(epoch FROM max(due_at) - min(due_at))::bigint FROM schedules WHERE {waits}");
    let seconds = stage.db.number(&spread).await;
    assert!((10..=30).contains(&seconds), "they are spread over {seconds} s");
    let due = "SELECT count(*) FROM schedules WHERE variant = 'v1' AND due_at <= now()";
    assert_eq!(stage.db.number(due).await, 1);
}

#[tokio::test]
async fn two_bundles_can_be_deployed_in_one_environment() {
    let stage = Stage::hostile().await;
    stage.host.deploy(&Bundle::example("minimal")).await;
    let minimal = stage.host.connect_as("customer-2", "minimal", json!({ "count": 3 })).await;
    minimal.wait_until_idle().await;
    assert_eq!(minimal.all(&[("model", "Number")]).await.len(), 3);
    stage.save_raw("Item", r#"[{"id":"a"}]"#).await.expect(200);
    let answer = minimal.action("echo", &json!({ "x": [1, "y", null] })).await.expect(200);
    assert_eq!(answer.json(), json!({ "x": [1, "y", null] }));
}

#[tokio::test]
async fn a_second_host_serves_the_deployments_of_the_first() {
    let first = Bundle::guest("hostile").limit("spin", "cpu = \"100ms\"");
    let stage = Stage::of(&first, json!({ "steps": 0 })).await;
    let second = Host::spawn(&stage.db).await;
    let there = stage.through(&second);
    there.save_raw("Item", r#"[{"id":"a"}]"#).await.expect(200);
    let changed = Bundle::guest("hostile").limit("spin", "cpu = \"200ms\"");
    stage.host.deploy(&changed).await;
    eventually("the deployment is active on the other host", async || {
        let answer = there.action("spin", &Value::Null).await;
        (answer.refusal().1 == "limit_exceeded" && answer.message().contains("0.2 s")).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_sync_that_is_removed_and_redeployed_runs_again() {
    let hostile = Bundle::guest("hostile");
    let steps = "[integrations.hostile.syncs.steps]\nruns = \"every 1 hour\"\nmodel = \"Step\"\n";
    let stage = Stage::of(&hostile, json!({ "steps": 3, "pause_ms": 0 })).await;
    for _ in 0..3 {
        assert_eq!(stage.run("steps").await["status"], "SUCCESS");
    }
    stage.host.deploy(&hostile.clone().replace(steps, "")).await;
    stage.host.deploy(&hostile).await;
    assert_eq!(stage.wait_for_finish_after("steps", None).await["status"], "SUCCESS");
}

#[tokio::test]
async fn a_new_connection_ignores_the_hosts_outdated_deployment_cache() {
    let stage = Stage::hostile().await;
    // The state if another host had activated a deployment that this host has not been notified of.
    stage
        .db
        .execute(
            r#"INSERT INTO functions (deployment_pk, integration_pk, kind, name, spec, component_digest)
               SELECT deployment_pk, integration_pk, kind, 'later', jsonb_set(spec, '{spec,name}', '"later"'),
                      component_digest
               FROM functions WHERE name = 'steps';
               DELETE FROM functions WHERE name = 'steps'"#,
        )
        .await;
    stage.host.connect_as("customer-2", "hostile", json!({ "steps": 0 })).await;
    let of_second = "SELECT sync_name FROM schedules JOIN connections c ON c.pk = connection_pk
                     WHERE connection_id = 'customer-2' ORDER BY sync_name";
    assert_eq!(stage.db.texts(of_second).await, ["commit-raw", "later"]);
    let body = json!({ "provider_config_key": "hostile", "connection_id": "customer-2" });
    let refused = stage.host.post("/sync/steps/variant/second", &body).await;
    assert_eq!(refused.refusal(), (404, "unknown_sync".to_owned()));
}

#[tokio::test]
async fn functions_deployed_through_another_host_are_found_immediately() {
    let stage = Stage::hostile().await;
    let steps = "[integrations.hostile.syncs.steps]\nruns = \"every 1 hour\"\nmodel = \"Step\"\n";
    let less = Bundle::guest("hostile").without_actions().replace(steps, "");
    let mcp = async |message: Value| {
        let request = stage.request("POST", "/mcp").header("Content-Type", "application/json");
        request.bytes(message.to_string()).send().await.expect(200).json()
    };
    let list = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list" });
    let params = json!({ "name": "print", "arguments": { "input": "x" } });
    let call = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
    let variant = json!({ "provider_config_key": "hostile", "connection_id": "customer-1" });
    for asked in ["action", "job", "tools", "tool", "variant", "records"] {
        stage.host.deploy(&less).await;
        stage.db.switch_to_first_versions().await;
        match asked {
            "action" => drop(stage.action("print", &json!("x")).await.expect(200)),
            "job" => drop(stage.trigger_async("print", &json!("x")).await),
            "tools" => {
                let listed = mcp(list.clone()).await;
                assert!(listed.to_string().contains("\"print\""), "{listed}");
            }
            "tool" => assert!(mcp(call.clone()).await["error"].is_null()),
            "variant" => drop(stage.host.post("/sync/steps/variant/second", &variant).await.expect(200)),
            _ => assert!(stage.page(&[("model", "Step")]).await.records.is_empty()),
        }
    }
    // A function that is not deployed at all is still an error.
    assert_eq!(stage.action("dance", &Value::Null).await.refusal(), (404, "unknown_action".to_owned()));
}

#[tokio::test]
async fn a_compilation_does_not_delay_actions_of_another_bundle() {
    let minimal = Bundle::example("minimal");
    let stage = Stage::of(&minimal, json!({ "count": 0 })).await;
    let compiled = TempDir::new().expect("a temporary folder can be made");
    let options = HostOptions::new().database(&stage.db);
    let folder = compiled.path().display().to_string();
    let second = options.variable("SYNCLINE_COMPILED_DIR", &folder).spawn().await;
    let there = stage.through(&second);
    there.action("echo", &json!(1)).await.expect(200);
    stage.host.deploy(&minimal.without_actions()).await;
    eventually("the second host has switched to the deployment", async || {
        (there.action("echo", &json!(1)).await.status == 404).then_some(())
    })
    .await;

    let large = Assembled::new(&[("sync", "commit-raw"), ("sync", "steps")]).idle_functions(1_000);
    let large = Bundle::guest("hostile").without_actions().with_component(&large.component());
    let serving = async {
        let _compiling = second.suspend_compiler().await;
        stage.db.switch_to_first_versions().await;
        let called = tokio::time::timeout(Duration::from_secs(20), there.action("echo", &json!(2))).await;
        called.expect("the action does not wait for the compilation").expect(200);
    };
    let (deployed, ()) = tokio::join!(stage.host.deploy(&large), serving);
    assert_eq!(deployed["version"], 1, "{deployed}");
}

#[tokio::test]
async fn a_connection_created_during_a_deployment_gets_its_syncs() {
    let steps = "[integrations.hostile.syncs.steps]\nruns = \"every 1 hour\"\nmodel = \"Step\"\n";
    let without = Bundle::guest("hostile").replace(steps, "");
    let stage = Stage::of(&without, json!({ "steps": 0 })).await;
    stage.wait_until_idle().await;
    // Its webhook is the last write when a connection is created, and has to wait for the lock.
    stage.db.execute("UPDATE environments SET webhook_url = 'http://127.0.0.1:9/'").await;
    let mut held = stage.db.connect().await;
    let mut tx = held.begin().await.unwrap();
    sqlx::query("LOCK TABLE outbound_webhook_deliveries IN EXCLUSIVE MODE").execute(&mut *tx).await.unwrap();
    let waiting = |locks: &str| {
        format!(
            "SELECT count(*) FROM pg_locks JOIN pg_database d ON d.oid = database
             WHERE datname = current_database() AND NOT granted AND {locks}"
        )
    };
    let connecting = stage.host.connect_as("customer-2", "hostile", json!({ "steps": 0 }));
    let deploying = async {
        let waits = waiting("locktype = 'relation'");
        eventually("the connection is being created", async || {
            (stage.db.number(&waits).await == 1).then_some(())
        })
        .await;
        let full = Bundle::guest("hostile");
        let deployment = stage.host.deploy(&full);
        let going_on = async {
            let waits = waiting("locktype = 'advisory'");
            let active = "SELECT count(*) FROM deployments WHERE state = 'active' AND version = 2";
            eventually("the deployment is active, or waits for the connection", async || {
                (stage.db.number(&waits).await + stage.db.number(active).await > 0).then_some(())
            })
            .await;
            tx.rollback().await.unwrap();
        };
        tokio::join!(deployment, going_on)
    };
    tokio::join!(connecting, deploying);
    let with_steps = "SELECT connection_id FROM schedules JOIN connections c ON c.pk = connection_pk
                      WHERE sync_name = 'steps' ORDER BY connection_id";
    assert_eq!(stage.db.texts(with_steps).await, ["customer-1", "customer-2"]);
}

#[tokio::test]
async fn a_deployment_adds_no_syncs_to_connections_under_validation() {
    let steps = "[integrations.hostile.syncs.steps]\nruns = \"every 1 hour\"\nmodel = \"Step\"\n";
    let stage = Stage::of(&Bundle::guest("hostile").replace(steps, ""), json!({ "steps": 0 })).await;
    stage.host.connect_as("customer-2", "hostile", json!({ "steps": 0 })).await;
    let validating = "UPDATE connections SET validating_since = now() WHERE connection_id = 'customer-2'";
    stage.db.execute(validating).await;
    stage.host.deploy(&Bundle::guest("hostile")).await;
    let with_steps = "SELECT connection_id FROM schedules JOIN connections c ON c.pk = connection_pk
                      WHERE sync_name = 'steps'";
    assert_eq!(stage.db.texts(with_steps).await, ["customer-1"]);
}

#[tokio::test]
async fn removing_a_sync_cancels_its_runs() {
    let stage = Stage::hostile().await;
    stage.set_metadata(json!({ "steps": 2_000, "pause_ms": 10 })).await;
    stage.trigger("steps").await;
    stage.wait_until_running("steps").await;
    let steps = "[integrations.hostile.syncs.steps]\nruns = \"every 1 hour\"\nmodel = \"Step\"\n";
    stage.host.deploy(&Bundle::guest("hostile").replace(steps, "")).await;
    let ends = "SELECT concat_ws(': ', state, error_message) FROM runs WHERE function_name = 'steps'
                ORDER BY started_at DESC LIMIT 1";
    assert_eq!(stage.db.texts(ends).await, ["cancelled: the sync is no longer deployed"]);
    let told = stage.host.get("/runs?function=steps&state=running").await.expect(200).json();
    assert_eq!(told["runs"], json!([]));
}

#[tokio::test]
async fn two_bundles_cannot_save_the_same_model_of_an_integration() {
    let stage = Stage::hostile().await;
    let table = |sync: &str| format!("[integrations.hostile.syncs.{sync}]\nruns = \"every 1 hour\"\n");
    let steps = format!("{}model = \"Step\"\n", table("steps"));
    let items = format!("{}model = \"Item\"\n", table("commit-raw"));
    stage.host.deploy(&Bundle::guest("hostile").replace(&steps, "")).await;
    // Another bundle for the same integration, with only the other sync.
    let config = |model: &str| {
        let mut bundle = Bundle::guest("hostile").replace("name = \"hostile\"", "name = \"second\"");
        bundle =
            bundle.replace(&items, "").replace(&steps, &format!("{}model = \"{model}\"\n", table("steps")));
        bundle.without_actions()
    };
    for dry_run in [true, false] {
        let refused = stage.host.post_bundle(config("Item").to_tar(), dry_run).await;
        assert_eq!(refused.refusal(), (409, "conflicting_deployment".to_owned()));
        let message = refused.message();
        assert!(message.contains("`Item`") && message.contains("`commit-raw`"), "{message}");
    }
    stage.host.deploy(&config("Step")).await;
}

#[tokio::test]
async fn two_bundles_cannot_set_different_base_urls_for_an_integration() {
    const HERE: &str = "http://127.0.0.1:9/api";
    const THERE: &str = "http://127.0.0.1:10/api";
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    let table = |sync: &str, model: &str| {
        format!("[integrations.hostile.syncs.{sync}]\nruns = \"every 1 hour\"\nmodel = \"{model}\"\n")
    };
    let without = |sync: &str, model: &str| Bundle::guest("hostile").replace(&table(sync, model), "");
    let first = without("steps", "Step");
    let second =
        without("commit-raw", "Item").replace("name = \"hostile\"", "name = \"second\"").without_actions();
    let refused = async |bundle: Bundle| {
        for dry_run in [true, false] {
            let refused = host.post_bundle(bundle.to_tar(), dry_run).await;
            assert_eq!(refused.refusal(), (409, "conflicting_deployment".to_owned()));
            for named in
                ["`hostile`", "`second`", "127.0.0.1:9/api", "127.0.0.1:10/api", "without a base_url first"]
            {
                assert!(refused.message().contains(named), "{named}: {}", refused.message());
            }
        }
    };
    host.deploy(&first.clone().at_address(HERE)).await;
    refused(second.clone().at_address(THERE)).await;
    // Another spelling of the same URL, or no URL, is not a conflict.
    host.deploy(&second.clone().at_address("HTTP://127.0.0.1:9/api/")).await;
    refused(first.clone().at_address(THERE)).await;
    host.deploy(&second).await;
    // So one bundle can change its URL, and the other one follows.
    host.deploy(&first.at_address(THERE)).await;
    refused(second.clone().at_address(HERE)).await;
    host.deploy(&second.at_address(THERE)).await;
    let base_urls =
        "SELECT DISTINCT f.spec->>'base_url' FROM functions f JOIN deployments d ON d.pk = deployment_pk
                     WHERE d.state = 'active'";
    assert_eq!(db.texts(base_urls).await, [THERE]);
}

#[tokio::test]
async fn a_new_frequency_applies_after_a_run_in_progress() {
    let stage = Stage::hostile().await;
    stage.wait_until_idle().await;
    let before = stage.status("steps").await["finishedAt"].clone();
    stage.set_metadata(json!({ "steps": 60, "pause_ms": 100 })).await;
    stage.trigger("steps").await;
    stage.wait_until_running("steps").await;
    let steps = "runs = \"every 1 hour\"\nmodel = \"Step\"";
    let other = "runs = \"every 2 hours\"\nmodel = \"Step\"";
    stage.host.deploy(&Bundle::guest("hostile").replace(steps, other)).await;
    assert_eq!(stage.status("steps").await["status"], "RUNNING");
    let status = stage.wait_for_finish_after("steps", before.as_str()).await;
    let next = chrono::DateTime::parse_from_rfc3339(text(&status["nextScheduledSyncAt"])).unwrap();
    let minutes = (next.to_utc() - chrono::Utc::now()).num_minutes();
    assert!((115..=121).contains(&minutes), "the next run is in {minutes} minutes");
}

#[tokio::test]
async fn a_run_in_progress_ends_with_its_version_and_the_next_one_uses_the_new_version() {
    // The versions differ in the address of their provider, so each request shows which version runs.
    let (of_first, of_second) = (SlowProvider::listen().await, SlowProvider::listen().await);
    let allowed = format!("{},{}", of_first.address(), of_second.address());
    let variables = [("SYNCLINE_EGRESS_ALLOW", &*allowed)];
    let stage = Stage::with(&variables, &of_first.bundle(), json!({ "steps": 0 })).await;
    let before = stage.status("commit-raw").await["finishedAt"].clone();
    let commit = json!({ "changes": [save(&json!([{ "id": "a" }]))] });
    stage.set_metadata(json!({ "steps": 0, "fetches": ["/one", "/two"], "commits": [commit] })).await;
    stage.trigger("commit-raw").await;
    let one = of_first.next_request().await;
    assert_eq!(one.path, "/one");

    let deployed = stage.host.deploy(&of_second.bundle()).await;
    assert_eq!(deployed["version"], 2, "{deployed}");
    one.answer("{}").await;
    let two = of_first.next_request().await;
    assert_eq!(two.path, "/two");
    two.answer("{}").await;
    let status = stage.wait_for_finish_after("commit-raw", before.as_str()).await;
    assert_eq!(status["status"], "SUCCESS", "{status}");
    assert_eq!(stage.page(&[("model", "Item")]).await.ids(), ["a"]);
    assert!(of_second.receives_nothing_for(Duration::ZERO).await);

    stage.trigger("commit-raw").await;
    for path in ["/one", "/two"] {
        let request = of_second.next_request().await;
        assert_eq!(request.path, path);
        request.answer("{}").await;
    }
    let status = stage.wait_for_finish_after("commit-raw", status["finishedAt"].as_str()).await;
    assert_eq!(status["status"], "SUCCESS", "{status}");
    assert!(of_first.receives_nothing_for(Duration::ZERO).await);
}

#[tokio::test]
async fn a_host_that_missed_the_deployment_event_still_runs_a_new_sync() {
    let db = TestDatabase::create().await;
    let proxy = PostgresProxy::start(&db).await;
    let asked = HostOptions::new().database(&db).variable("SYNCLINE_MAX_SYNCS", "0").spawn().await;
    let unnotified = HostOptions::new().database_through(&proxy).spawn().await;
    let table = "[integrations.hostile.syncs.steps]\nruns = \"every 1 hour\"\nmodel = \"Step\"\n";
    asked.deploy(&Bundle::guest("hostile").replace(table, "")).await;
    let connection = asked.connect("hostile", json!({ "steps": 3 })).await;
    connection.wait_until_idle().await;
    proxy.drop_notifications();
    // The deployment does not wait for it to compile, because it seems to be dead.
    unnotified.freeze();
    db.execute("UPDATE hosts SET last_heartbeat_at = now() - interval '1 minute'").await;
    let paused = format!("{table}auto_start = false\n");
    asked.deploy(&Bundle::guest("hostile").replace(table, &paused)).await;
    connection.trigger("steps").await;
    unnotified.thaw();
    let status = connection.wait_for_finish_after("steps", None).await;
    assert_eq!((&status["status"], &status["recordCount"]), (&json!("PAUSED"), &json!({ "Step": 3 })));
    assert_eq!(db.texts("SELECT state FROM runs WHERE function_name = 'steps'").await, ["success"]);
}

#[tokio::test]
async fn the_history_lists_deployments_with_their_changes_and_functions() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    host.deploy(&Bundle::example("minimal")).await;
    host.deploy(&Bundle::example("minimal").without_actions()).await;
    let databases = Databases { control: db.url().parse().expect("it is a URL"), records: None };
    let store = Store::open(databases, 4).await.expect("it can be opened");
    let mut conn = store.connect().await.expect("the database answers");
    let environment = EnvironmentPk(db.number("SELECT pk FROM environments").await);
    let history = deployments::list_history(&mut conn, environment, None, None, 10)
        .await
        .expect("the history can be read");
    let states: Vec<_> = history.iter().map(|deployment| (deployment.version, deployment.state)).collect();
    assert_eq!(states, [(2, DeploymentState::Active), (1, DeploymentState::Superseded)]);
    let removed = json!([{ "change": "remove", "kind": "action", "integration": "minimal", "name": "echo" }]);
    assert_eq!(history[0].changes, removed);
    assert!(history.iter().all(|deployment| deployment.activated_at >= Some(deployment.created_at)));
    let pks: Vec<_> = history.iter().map(|deployment| deployment.pk).collect();
    let functions =
        deployments::list_function_names(&mut conn, &pks).await.expect("the functions can be read");
    let names_of = |pk| -> Vec<&str> {
        functions.iter().filter(|of| of.deployment == pk).map(|function| function.name.as_str()).collect()
    };
    assert_eq!((names_of(pks[0]), names_of(pks[1])), (vec!["numbers"], vec!["echo", "numbers"]));
}
