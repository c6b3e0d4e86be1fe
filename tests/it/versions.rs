//! Versions of bundles: rollbacks, accepted capabilities and signatures.

use std::io::Cursor;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use minisign::KeyPair;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{Answer, Bundle, Host, SECRET_KEY, Stage, TestDatabase, text};

const STEPS: &str = "[integrations.hostile.syncs.steps]\nruns = \"every 1 hour\"\nmodel = \"Step\"\n";

/// A bundle that asks for one more capability.
fn with_more_hosts(bundle: Bundle) -> Bundle {
    let table = "[integrations.hostile]";
    bundle.replace(table, &format!("{table}\nallow_hosts = [\"files.example.com\"]"))
}

fn without_steps() -> Bundle {
    Bundle::guest("hostile").replace(STEPS, "")
}

async fn roll_back(host: &Host, query: &str, body: &Value) -> Answer {
    host.request("POST", &format!("/deployments/rollback{query}")).json(body).send().await
}

/// Returns version, state and restored version of each deployment of the bundle, newest first.
async fn versions(host: &Host) -> Vec<(i64, String, Value)> {
    let listed = host.get("/deployments?bundle=hostile").await.expect(200).json();
    assert_eq!(listed["next_cursor"], Value::Null);
    let versions = listed["deployments"].as_array().expect("a list").iter();
    let version = |one: &Value| {
        (
            one["version"].as_i64().expect("a number"),
            text(&one["state"]).to_owned(),
            one["restored_version"].clone(),
        )
    };
    versions.map(version).collect()
}

#[tokio::test]
async fn a_rollback_deploys_an_earlier_version_again() {
    let stage = Stage::of(&Bundle::guest("hostile"), json!({ "steps": 3, "pause_ms": 0 })).await;
    let host = &stage.host;
    let first = host.get("/deployments").await.expect(200).json()["deployments"][0].clone();
    host.deploy(&without_steps()).await;
    assert_eq!(stage.control("trigger", "steps").await.refusal(), (404, "unknown_sync".to_owned()));

    let body = json!({ "bundle": "hostile" });
    let plan = roll_back(host, "?dry_run=true", &body).await.expect(200).json();
    let added = json!({ "change": "add", "kind": "sync", "integration": "hostile", "name": "steps" });
    assert_eq!((&plan["id"], &plan["version"], &plan["changes"]), (&Value::Null, &json!(2), &json!([added])));
    assert_eq!(versions(host).await.len(), 2, "a plan changes nothing");

    let done = roll_back(host, "?accept_capabilities=true", &body).await.expect(200).json();
    assert_eq!((&done["version"], &done["digest"]), (&json!(3), &first["digest"]));
    assert_eq!(stage.wait_for_finish_after("steps", None).await["status"], "SUCCESS");
    assert_eq!(stage.all(&[("model", "Step")]).await.len(), 3);
    let state = |version, state: &str, restored: Value| (version, state.to_owned(), restored);
    assert_eq!(
        versions(host).await,
        [
            state(3, "active", json!(1)),
            state(2, "superseded", Value::Null),
            state(1, "superseded", Value::Null)
        ]
    );

    // Without a version, the one before the active one is restored.
    let back = roll_back(host, "", &body).await.expect(200).json();
    assert_eq!((&back["version"], &back["changes"][0]["change"]), (&json!(4), &json!("remove")));
    assert_eq!(versions(host).await[0], state(4, "active", json!(2)));
    // The active version is left as it is.
    let same = roll_back(host, "", &json!({ "bundle": "hostile", "version": 2 })).await.expect(200).json();
    assert_eq!((&same["id"], &same["version"], &same["changes"]), (&Value::Null, &json!(4), &json!([])));
}

#[tokio::test]
async fn a_rollback_over_a_changed_model_has_a_warning() {
    let stage = Stage::hostile().await;
    let step = "[models.Step]\nid = \"string\"";
    let changed = Bundle::guest("hostile").replace(step, &format!("{step}\ntotal = \"integer?\""));
    stage.host.deploy(&changed).await;
    let body = json!({ "bundle": "hostile", "version": 1 });
    let plan = roll_back(&stage.host, "?dry_run=true", &body).await.expect(200).json();
    assert_eq!(plan["warnings"], json!(["model `Step` no longer declares `total`"]));
}

#[tokio::test]
async fn a_version_that_cannot_be_restored_is_refused_with_the_reason() {
    let stage = Stage::hostile().await;
    let host = &stage.host;
    host.deploy(&without_steps()).await;
    let refused = async |body: Value| {
        let answer = roll_back(host, "", &body).await;
        (answer.refusal(), answer.message())
    };
    let unknown = (404, "unknown_deployment".to_owned());
    let (refusal, message) = refused(json!({ "bundle": "hostile", "version": 9 })).await;
    assert_eq!(refusal, unknown);
    assert_eq!(
        message,
        "the bundle `hostile` has no version 9 in this environment; `syncline versions` lists the versions"
    );
    assert_eq!(refused(json!({ "bundle": "hostle" })).await.0, unknown);
    assert_eq!(refused(json!({ "bundle": "a b" })).await.0, (400, "invalid_body".to_owned()));
    assert_eq!(refused(json!({ "bundle": "hostile", "to": 1 })).await.0, (400, "invalid_body".to_owned()));

    let not_restorable = (409, "deployment_not_restorable".to_owned());
    stage.db.execute("UPDATE deployments SET state = 'failed', activated_at = NULL WHERE version = 1").await;
    let (refusal, message) = refused(json!({ "bundle": "hostile", "version": 1 })).await;
    assert_eq!(refusal, not_restorable);
    assert!(message.starts_with("version 1 of the bundle `hostile` was never active"), "{message}");
    stage
        .db
        .execute("UPDATE deployments SET state = 'superseded', activated_at = now(); DELETE FROM bundles")
        .await;
    let (refusal, message) = refused(json!({ "bundle": "hostile", "version": 1 })).await;
    assert_eq!(refusal, not_restorable);
    assert!(message.contains("by a host that did not store bundles"), "{message}");

    // Another environment has no versions of this bundle.
    host.command(&stage.db, &["env", "create", "other"]);
    let key = host.command(&stage.db, &["keys", "create", "other", "--environment", "other"]);
    let other = host.with_key(Some(key.trim()));
    let answer =
        other.request("POST", "/deployments/rollback").json(&json!({ "bundle": "hostile" })).send().await;
    assert_eq!(answer.refusal(), unknown);
    assert_eq!(other.get("/deployments").await.expect(200).json()["deployments"], json!([]));
}

#[tokio::test]
async fn deployments_are_listed_in_pages() {
    let stage = Stage::hostile().await;
    stage.host.deploy(&without_steps()).await;
    stage.host.deploy(&Bundle::example("minimal")).await;
    let first = stage.host.get("/deployments?limit=2").await.expect(200).json();
    let names = |page: &Value| {
        let listed = page["deployments"].as_array().unwrap().iter();
        listed.map(|one| format!("{} {}", text(&one["bundle"]), one["version"])).collect::<Vec<_>>()
    };
    assert_eq!(names(&first), ["minimal-example 1", "hostile 2"]);
    assert_eq!(first["deployments"][0]["deployed_by"], "SYNCLINE_SECRET_KEY");
    let cursor = text(&first["next_cursor"]);
    let second = stage.host.get(&format!("/deployments?limit=2&cursor={cursor}")).await.expect(200).json();
    assert_eq!((names(&second), &second["next_cursor"]), (vec!["hostile 1".to_owned()], &Value::Null));
    let refused = stage.host.get("/deployments?cursor=AAAA").await.refusal();
    assert_eq!(refused, (400, "invalid_cursor".to_owned()));
}

#[tokio::test]
async fn new_capabilities_must_be_accepted() {
    let stage = Stage::of(&without_steps(), json!({ "steps": 0 })).await;
    let host = &stage.host;
    let more = with_more_hosts(Bundle::guest("hostile")).replace(
        "[integrations.hostile.actions.spin]",
        "[integrations.hostile.actions.spin]\ncredentials = true",
    );
    let plan = host.post_bundle(more.to_tar(), true).await.expect(200).json();
    let capability = |kind: &str, name: &str| json!({ "integration": "hostile", "kind": kind, "name": name });
    let added = json!([capability("credentials", "actions.spin"), capability("host", "files.example.com"),]);
    assert_eq!(plan["new_capabilities"], added);
    assert!(plan["capabilities"].as_array().unwrap().contains(&capability("variable", "*")), "{plan}");
    assert_eq!(text(&plan["sdks"]["."]).split(' ').next(), Some("syncline-sdk"));

    let post = async |query: &str| {
        let request = host.request("POST", &format!("/deployments{query}"));
        request.header("Content-Type", "application/x-tar").bytes(more.to_tar()).send().await
    };
    let refused = post("").await;
    assert_eq!(refused.refusal(), (409, "capabilities_not_accepted".to_owned()));
    assert_eq!(refused.json()["error"]["payload"]["new_capabilities"], added);
    assert!(
        refused.message().contains("the host `files.example.com` of integration `hostile`"),
        "{}",
        refused.message()
    );
    assert_eq!(versions(host).await.len(), 1);
    assert_eq!(post("?accept_capabilities=maybe").await.refusal(), (400, "invalid_query_params".to_owned()));
    post("?accept_capabilities=true").await.expect(200);
    // They are not new any more, and fewer capabilities need no consent.
    let plan = host.post_bundle(more.to_tar(), true).await.expect(200).json();
    assert_eq!(plan["new_capabilities"], json!([]));
    roll_back(host, "", &json!({ "bundle": "hostile" })).await.expect(200);
    // A rollback can ask for more, too.
    let refused = roll_back(host, "", &json!({ "bundle": "hostile" })).await;
    assert_eq!(refused.refusal(), (409, "capabilities_not_accepted".to_owned()));
}

/// Signs bytes as minisign does.
fn sign(keys: &KeyPair, bytes: &[u8]) -> String {
    let signature = minisign::sign(None, &keys.sk, Cursor::new(bytes), Some("a test"), None);
    signature.expect("the key is not encrypted").into_string()
}

async fn deploy_signed(host: &Host, bundle: &[u8], signature: Option<&str>) -> Answer {
    let request = host.request("POST", "/deployments?accept_capabilities=true");
    let request = request.header("Content-Type", "application/x-tar");
    let request = match signature {
        Some(signature) => request.header("Bundle-Signature", &STANDARD.encode(signature)),
        None => request,
    };
    request.bytes(bundle.to_vec()).send().await
}

#[tokio::test]
async fn an_environment_can_require_signed_bundles() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    host.deploy(&without_steps()).await;
    let keys = KeyPair::generate_unencrypted_keypair().unwrap();
    let others = KeyPair::generate_unencrypted_keypair().unwrap();
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("minisign.pub");
    std::fs::write(&file, keys.pk.to_box().unwrap().into_string()).unwrap();
    host.command(&db, &["env", "bundle-keys", "add", "release", file.to_str().unwrap()]);
    let listed = host.command(&db, &["env", "bundle-keys", "list"]);
    assert!(listed.starts_with(&format!("release  {}  added ", keys.pk.to_base64())), "{listed}");

    let bundle = Bundle::guest("hostile").to_tar();
    let required = (403, "bundle_signature_required".to_owned());
    let invalid = (403, "invalid_bundle_signature".to_owned());
    let unsigned = deploy_signed(&host, &bundle, None).await;
    assert_eq!(unsigned.refusal(), required);
    assert_eq!(host.post_bundle(bundle.clone(), true).await.refusal(), required);
    let altered = sign(&keys, b"another bundle");
    let legacy = sign(&keys, &bundle).replace("\nRU", "\nRW");
    for (signature, reason) in [
        (
            &*sign(&others, &bundle),
            "was signed with a key that this environment does not trust; it trusts `release`",
        ),
        (&*altered, "the signature does not belong to this bundle"),
        (&*legacy, "the signature does not belong to this bundle"),
        ("untrusted comment: nonsense", "the signature is not a signature of minisign"),
        ("", "the signature is not a signature of minisign"),
    ] {
        let answer = deploy_signed(&host, &bundle, Some(signature)).await;
        assert_eq!(answer.refusal(), invalid, "{}", answer.message());
        assert!(answer.message().contains(reason), "{}", answer.message());
    }
    assert_eq!(versions(&host).await.len(), 1, "the previous version stays active");
    let done = deploy_signed(&host, &bundle, Some(&sign(&keys, &bundle))).await.expect(200).json();
    assert_eq!((&done["version"], &done["signed_by"]), (&json!(2), &json!("release")));

    // A rollback checks the signature of the earlier version, too.
    let unsigned = roll_back(&host, "", &json!({ "bundle": "hostile", "version": 1 })).await;
    assert_eq!(unsigned.refusal(), required);
    let fewer = without_steps().to_tar();
    deploy_signed(&host, &fewer, Some(&sign(&keys, &fewer))).await.expect(200);
    let query = "?accept_capabilities=true";
    let back =
        roll_back(&host, query, &json!({ "bundle": "hostile", "version": 2 })).await.expect(200).json();
    assert_eq!((&back["version"], &back["signed_by"]), (&json!(4), &json!("release")));

    // Without keys, signatures are not required.
    host.command(&db, &["env", "bundle-keys", "remove", "release"]);
    deploy_signed(&host, &fewer, None).await.expect(200);
    let actions =
        "SELECT action || ' ' || target FROM audit_log WHERE action LIKE 'bundle_key.%' ORDER BY pk";
    assert_eq!(db.texts(actions).await, ["bundle_key.added release", "bundle_key.removed release"]);
}

#[tokio::test]
async fn invalid_bundle_keys_are_refused_with_the_reason() {
    let db = TestDatabase::create().await;
    let key = KeyPair::generate_unencrypted_keypair().unwrap().pk.to_base64();
    let keys = |arguments: &[&str]| db.command(&[&["env", "bundle-keys"], arguments].concat());
    keys(&["add", "release", &key]).run();
    for (arguments, reason) in [
        (&["add", "release", &*key][..], "a bundle key with the name `release` exists"),
        (&["add", "", &key], "the name of a bundle key must consist of 1 to 100 characters"),
        (&["add", "other", "RWQ"], "this is not a public key of minisign"),
        (&["remove", "other"], "there is no bundle key `other`"),
    ] {
        let told = keys(arguments).run_failing();
        assert!(told.contains(reason), "{told}");
    }
}

#[tokio::test]
async fn versions_and_rollbacks_work_from_the_command_line() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("bundle.tar");
    let path = file.to_str().unwrap();
    let access = ["--url", host.base_url(), "--secret-key", SECRET_KEY];
    let command = |arguments: &[&str]| db.command(&[arguments, &access].concat());
    std::fs::write(&file, without_steps().to_tar()).unwrap();
    let told = command(&["deploy", path, "--yes"]).run();
    assert!(told.ends_with("bundle `hostile` version 1 is active\n"), "{told}");

    std::fs::write(&file, with_more_hosts(Bundle::guest("hostile")).to_tar()).unwrap();
    let told = command(&["deploy", path, "--yes"]).run_failing();
    let more = "the bundle asks for capabilities that the active version does not have: hostile: send requests to files.example.com";
    assert!(told.contains(more), "{told}");
    let plan = command(&["deploy", path, "--dry-run"]).run();
    assert!(plan.contains("  + sync hostile/steps\n"), "{plan}");
    assert!(plan.contains("  * hostile: send requests to files.example.com\n"), "{plan}");
    command(&["deploy", path, "--yes", "--accept-capabilities"]).run();

    let told = command(&["rollback", "hostile", "--yes"]).run();
    assert!(told.contains("  - sync hostile/steps\n"), "{told}");
    assert!(told.ends_with("bundle `hostile` version 3 is active\n"), "{told}");
    let listed = command(&["versions", "hostile"]).run();
    let lines: Vec<&str> = listed.lines().collect();
    assert!(lines[0].starts_with("hostile 3  ") && lines[0].ends_with("  restored version 1"), "{listed}");
    assert_eq!(lines.len(), 3, "{listed}");
    let json: Value = serde_json::from_str(&command(&["versions", "--json"]).run()).unwrap();
    assert_eq!(json[0]["restored_version"], 1);
    let told = command(&["rollback", "hostile", "--to", "9"]).run_failing();
    assert!(told.contains("has no version 9"), "{told}");

    // The signature next to the file is sent with it.
    let keys = KeyPair::generate_unencrypted_keypair().unwrap();
    host.command(&db, &["env", "bundle-keys", "add", "release", &keys.pk.to_base64()]);
    let told = command(&["deploy", path, "--yes", "--accept-capabilities"]).run_failing();
    assert!(told.contains("this environment requires signed bundles"), "{told}");
    let signature = sign(&keys, &std::fs::read(&file).unwrap());
    std::fs::write(folder.path().join("bundle.tar.minisig"), signature).unwrap();
    let told = command(&["deploy", path, "--yes", "--accept-capabilities"]).run();
    assert!(told.contains("signed with the key `release`\n"), "{told}");
}

/// Runs `syncline deploy` on a terminal and returns what it printed there.
async fn deploy_on_a_terminal(host: &Host, arguments: &[&str]) -> String {
    const TERMINAL: &str =
        "import os, pty, sys; status = pty.spawn(sys.argv[1:]); sys.exit(os.waitstatus_to_exitcode(status))";
    let mut command = tokio::process::Command::new("python3");
    command.args(["-c", TERMINAL, env!("CARGO_BIN_EXE_syncline"), "deploy"]);
    command.args(arguments).args(["--url", host.base_url(), "--secret-key", SECRET_KEY]);
    command.env("TERM", "xterm").env_remove("NO_COLOR").stdin(std::process::Stdio::null());
    let output = command.output().await.expect("python3 can be started");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{printed}");
    printed
}

#[tokio::test]
async fn deploy_shows_its_progress_on_a_terminal() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("bundle.tar");
    std::fs::write(&file, without_steps().to_tar()).unwrap();
    let path = file.to_str().unwrap();
    let plan = deploy_on_a_terminal(&host, &[path, "--dry-run"]).await;
    assert!(plan.contains("uploading the bundle: 0.0 of "), "{plan}");
    let as_json = deploy_on_a_terminal(&host, &[path, "--yes", "--json"]).await;
    assert!(serde_json::from_str::<Value>(&as_json).is_ok(), "only JSON: {as_json}");
    let to_file =
        db.command(&["deploy", path, "--yes", "--url", host.base_url(), "--secret-key", SECRET_KEY]);
    assert!(!to_file.run().contains("uploading"), "without a terminal");
}
