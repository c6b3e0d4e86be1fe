//! A host dies or freezes while it handles a request that changes several things: the approval of held deletions, the
//! replay of a dead letter, and the switch of a deployment.

use serde_json::{Value, json};

use super::{Fate, Scene};
use syncline_telemetry::failpoints::Step;

use crate::support::{Bundle, Connection, Host, METADATA_KEY, Numbers, Webhook, eventually, text};

pub(super) const APPROVAL: &[(Step, u32)] = &[
    (Step::ApprovalBegun, 1),
    (Step::ApprovalDeleting, 1),
    (Step::ApprovalDeleted, 1),
    (Step::ApprovalEnding, 1),
    (Step::ApprovalEnded, 1),
];
pub(super) const REPLAY: &[(Step, u32)] = &[(Step::LetterReplaying, 1), (Step::LetterReplayed, 1)];
pub(super) const DEPLOYMENT: &[(Step, u32)] =
    &[(Step::DeploymentStaged, 1), (Step::DeploymentSwitching, 1), (Step::DeploymentSwitched, 1)];
/// With two databases, there is another step between the two commits.
pub(super) const DIVIDED_REPLAY: &[(Step, u32)] = &[(Step::RecordsCommitted, 1)];

const SAVED: usize = 120;
const LEFT: usize = 40;

/// Metadata that makes the hostile guest save the given number of items.
fn items(count: usize) -> Value {
    let items: Vec<Value> = (0..count).map(|number| json!({ "id": number.to_string() })).collect();
    let change = json!({ "save": { "model": "Item", "items": json!(items).to_string() } });
    json!({ "steps": 0, "commits": [{ "changes": [change] }] })
}

async fn live(connection: &Connection) -> Vec<Value> {
    let mut records = connection.all(&[("model", "Item"), ("limit", "500")]).await;
    records.retain(|record| record[METADATA_KEY]["deleted_at"].is_null());
    records
}

/// Creates a connection whose last run has held the deletion of two thirds of its records. Returns that run's id, too.
async fn hold(scene: &Scene, id: &str) -> (Connection, String) {
    let connection = scene.keeper.connect_as(id, "hostile", items(SAVED)).await;
    connection.wait_until_idle().await;
    connection.set_metadata(items(LEFT)).await;
    assert_eq!(connection.run("commit-raw").await["status"], "ERROR");
    let path = format!("/runs?function=commit-raw&limit=1&provider_config_key=hostile&connection_id={id}");
    let found = scene.keeper.get(&path).await.expect(200).json();
    let run = text(&found["runs"][0]["id"]).to_owned();
    (connection, run)
}

/// Stops a host at a step of an approval.
async fn interrupt_approval(scene: &Scene, run: &str, step: Step, nth: u32, fate: Fate) -> Host {
    let path = format!("/runs/{run}/approve");
    scene
        .disturb(step, nth, fate, async |victim| {
            tokio::spawn(victim.request("POST", &path).try_send());
        })
        .await
}

/// Waits until another host has finished the approval, and checks that the deletions were applied and reported once.
async fn assert_approved(scene: &Scene, connection: &Connection, run: &str) {
    // Other hosts wait for a minute before they finish an approval. This skips the wait.
    let skip_wait = "UPDATE approvals_in_progress SET claimed_at = claimed_at - interval '1 hour'";
    scene.numbers.db.execute(skip_wait).await;
    scene
        .wait_for(
            &format!("{}: no approval is in progress", connection.id),
            "SELECT count(*) FROM approvals_in_progress",
            0,
        )
        .await;
    assert_applied(scene, connection, run).await;
}

async fn assert_applied(scene: &Scene, connection: &Connection, run: &str) {
    let id = &connection.id;
    let approved = scene.keeper.get(&format!("/runs/{run}")).await.expect(200).json();
    assert_eq!(approved["state"], "success", "{id}: {approved}");
    let deleted = SAVED - LEFT;
    assert_eq!(approved["counts"]["Item"]["deleted"], deleted, "{id}");
    assert_eq!(live(connection).await.len(), LEFT, "{id}");
    let mut audited = scene.numbers.db.audited("run.approved").await;
    audited.retain(|target| target.contains(run));
    assert_eq!(audited.len(), 1, "{id}: the approval has one entry in the audit log");
    let of_connection = |webhook: &Webhook| {
        let body = webhook.body();
        body["connectionId"] == *connection.id && body["responseResults"]["deleted"] == deleted
    };
    let reported = eventually(&format!("{id}: the deletions are reported"), async || {
        let mut webhooks = scene.numbers.receiver.webhooks();
        webhooks.retain(of_connection);
        (!webhooks.is_empty()).then_some(webhooks)
    })
    .await;
    assert!(reported.iter().all(|webhook| webhook.id() == reported[0].id()), "{id}: {reported:?}");
    let body = reported[0].body();
    let since = [("model", "Item"), ("modified_after", text(&body["modifiedAfter"])), ("limit", "500")];
    let found = connection.all(&since).await;
    assert_eq!(found.len(), deleted, "{id}: the reported records can be read by their time");
}

async fn approval_at_every_step(numbers: Numbers, fate: Fate) {
    let scene = Scene::with(numbers).await;
    scene.keeper.deploy(&Bundle::guest("hostile").tracking_deletes("commit-raw")).await;
    for (step, nth) in APPROVAL {
        let (connection, run) = hold(&scene, step.name()).await;
        let victim = interrupt_approval(&scene, &run, *step, *nth, fate).await;
        if fate == Fate::Freezes {
            // The client repeats its request.
            eventually(&format!("{}: the run is approved", step.name()), async || {
                let answer = scene.keeper.request("POST", &format!("/runs/{run}/approve")).send().await;
                (answer.status == 200 || answer.status == 409).then_some(())
            })
            .await;
        }
        assert_approved(&scene, &connection, &run).await;
        scene.recover(victim, fate).await;
        assert_applied(&scene, &connection, &run).await;
    }
    scene.assert_settled().await;
}

#[tokio::test]
async fn an_approval_survives_a_host_that_dies_at_any_step() {
    approval_at_every_step(Numbers::new().await, Fate::Dies).await;
}

#[tokio::test]
async fn an_approval_survives_a_host_that_freezes_at_any_step() {
    approval_at_every_step(Numbers::new().await, Fate::Freezes).await;
}

#[tokio::test]
async fn an_approval_survives_a_host_that_dies_at_any_step_with_two_databases() {
    approval_at_every_step(Numbers::with_two_databases().await, Fate::Dies).await;
}

#[tokio::test]
async fn an_interrupted_approval_is_reported_after_a_later_run_too() {
    let scene = Scene::create().await;
    scene.keeper.deploy(&Bundle::guest("hostile").tracking_deletes("commit-raw")).await;
    let (connection, run) = hold(&scene, "later").await;
    let victim = interrupt_approval(&scene, &run, Step::ApprovalDeleted, 1, Fate::Dies).await;
    assert_eq!(connection.run("commit-raw").await["status"], "SUCCESS");
    assert_approved(&scene, &connection, &run).await;
    scene.recover(victim, Fate::Dies).await;
}

async fn replay_at_every_step(numbers: Numbers, steps: &[(Step, u32)], fate: Fate) {
    let scene = Scene::with(numbers).await;
    let bundle =
        Bundle::guest("hostile").replace("[models.Item]\n", "[models.Item]\non_bad_record = \"set_aside\"\n");
    scene.keeper.deploy(&bundle).await;
    let mut letters = Vec::new();
    for (step, _) in steps {
        let connection = scene.keeper.connect_as(step.name(), "hostile", json!({ "steps": 0 })).await;
        connection.wait_until_idle().await;
        connection.save_raw("Item", r#"[{"id":"a","count":"x"}]"#).await.expect(200);
        let found = scene
            .keeper
            .get(&format!("/dead-letters?provider_config_key=hostile&connection_id={}", connection.id))
            .await;
        let found = found.expect(200).json();
        letters.push((connection, text(&found["dead_letters"][0]["id"]).to_owned()));
    }
    scene.keeper.deploy(&bundle.replace("count = \"integer?\"", "count = \"json?\"")).await;
    for ((step, nth), (connection, letter)) in steps.iter().zip(&letters) {
        let name = step.name();
        let path = format!("/dead-letters/{letter}/replay");
        let victim = scene
            .disturb(*step, *nth, fate, async |victim| {
                tokio::spawn(victim.request("POST", &path).json(&json!({})).try_send());
            })
            .await;
        // The client repeats its request. Before the commit, nothing has changed.
        let repeated = scene.keeper.post(&path, &json!({})).await;
        match step {
            Step::LetterReplaying => assert_eq!(repeated.expect(200).json(), json!({ "outcome": "added" })),
            _ => assert_eq!(repeated.refusal(), (404, "unknown_dead_letter".to_owned()), "{name}"),
        }
        scene.recover(victim, fate).await;
        let saved = connection.all(&[("model", "Item")]).await;
        assert_eq!(saved.len(), 1, "{name}: {saved:?}");
        assert_eq!(
            (&saved[0]["count"], &saved[0][METADATA_KEY]["last_action"]),
            (&json!("x"), &json!("ADDED"))
        );
        let left = scene
            .keeper
            .get(&format!("/dead-letters?connection_id={name}&provider_config_key=hostile"))
            .await;
        assert_eq!(left.expect(200).json()["dead_letters"], json!([]), "{name}");
        let mut audited = scene.numbers.db.audited("dead_letter.replayed").await;
        audited.retain(|target| target.contains(letter));
        // No transaction spans two databases, so the entry is lost with the host between the two commits.
        assert_eq!(audited.len(), usize::from(*step != Step::RecordsCommitted), "{name}");
    }
    scene.assert_settled().await;
}

#[tokio::test]
async fn a_replay_of_a_dead_letter_survives_a_host_that_dies_at_any_step() {
    replay_at_every_step(Numbers::new().await, REPLAY, Fate::Dies).await;
}

#[tokio::test]
async fn a_replay_of_a_dead_letter_survives_a_host_that_freezes_at_any_step() {
    replay_at_every_step(Numbers::new().await, REPLAY, Fate::Freezes).await;
}

#[tokio::test]
async fn a_replay_of_a_dead_letter_survives_a_host_that_dies_between_two_databases() {
    let steps = [REPLAY, DIVIDED_REPLAY].concat();
    replay_at_every_step(Numbers::with_two_databases().await, &steps, Fate::Dies).await;
}

async fn deployment_at_every_step(fate: Fate) {
    const ACTIVE: &str = "SELECT count(*) FROM deployments WHERE state = 'active'";
    let scene = Scene::create().await;
    let numbers = &scene.numbers;
    for (index, (step, nth)) in DEPLOYMENT.iter().enumerate() {
        let name = step.name();
        let connection = numbers.connect(&scene.keeper, name).await;
        let hours = index + 2;
        let bundle = Bundle::example("minimal")
            .tracking_deletes("numbers")
            .replace("every 1 hour", &format!("every {hours} hours"));
        let tar = bundle.to_tar();
        let victim = scene
            .disturb(*step, *nth, fate, async |victim| {
                let bundle = tar.clone();
                let request =
                    victim.request("POST", "/deployments").header("Content-Type", "application/x-tar");
                tokio::spawn(request.bytes(bundle).try_send());
            })
            .await;
        // The client repeats its request. A host that does not respond is ignored soon.
        scene.keeper.deploy(&bundle).await;
        scene.recover(victim, fate).await;
        assert_eq!(scene.count(ACTIVE).await, 1, "{name}");
        let status = connection.status("numbers").await;
        assert_eq!(status["frequency"], json!(format!("every {hours} hours")), "{name}");
        let deployed = scene.keeper.deploy(&bundle).await;
        assert_eq!(deployed["changes"], json!([]), "{name}: the bundle is active");
        // The new version runs on the host that has taken over.
        numbers.request_changes(&connection).await;
        numbers.make_due(name).await;
        numbers.wait_until_changed(name).await;
        numbers.assert_changed(&connection).await;
    }
    scene.assert_settled().await;
}

#[tokio::test]
async fn a_deployment_survives_a_host_that_dies_at_any_step() {
    deployment_at_every_step(Fate::Dies).await;
}

#[tokio::test]
async fn a_deployment_survives_a_host_that_freezes_at_any_step() {
    deployment_at_every_step(Fate::Freezes).await;
}
