//! A host crashes or freezes at any step of its work, and another one takes over.
//!
//! A scene has two hosts. The keeper is frozen while the victim reaches the step at which it crashes or freezes. Then
//! the keeper continues alone. A victim that was only frozen resumes when the keeper has finished.

mod requests;

use std::os::unix::process::ExitStatusExt;

use serde_json::json;
use syncline_telemetry::failpoints::Step;

use crate::support::{Connection, Host, HostOptions, Numbers, assert_settled, eventually};

/// What happens to the victim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Dies,
    Freezes,
}

/// Steps in the middle of a run occur several times. At the second time, earlier data exists already.
const SYNC: &[(Step, u32)] = &[
    (Step::SyncClaiming, 1),
    (Step::SyncClaimed, 1),
    (Step::SyncBeginning, 1),
    (Step::SyncBegun, 1),
    (Step::BatchWritten, 2),
    (Step::BatchCommitting, 2),
    (Step::BatchCommitted, 2),
    (Step::SyncCompleting, 1),
    (Step::SyncCompleted, 1),
    (Step::SyncReleasing, 1),
    (Step::SyncReleased, 1),
];
const JOB: &[(Step, u32)] = &[
    (Step::JobQueued, 1),
    (Step::JobClaimed, 1),
    (Step::JobReturned, 1),
    (Step::JobEnding, 1),
    (Step::JobEnded, 1),
];
const DELETION: &[(Step, u32)] =
    &[(Step::ConnectionDeleted, 1), (Step::ConnectionClosed, 1), (Step::ConnectionEmptied, 1)];
const WEBHOOK: &[(Step, u32)] = &[(Step::WebhookClaimed, 1), (Step::WebhookSent, 1)];

const VARIANT: &[(Step, u32)] = &[(Step::VariantRetired, 1), (Step::VariantEmptied, 1)];
const STATISTICS: &[(Step, u32)] = &[(Step::RunsCounting, 1), (Step::RunsCounted, 1)];

#[test]
fn every_step_is_tested() {
    let tested: Vec<Step> = [
        SYNC,
        JOB,
        DELETION,
        WEBHOOK,
        VARIANT,
        STATISTICS,
        requests::APPROVAL,
        requests::REPLAY,
        requests::DEPLOYMENT,
        requests::DIVIDED_REPLAY,
    ]
    .concat()
    .into_iter()
    .map(|(step, _)| step)
    .collect();
    assert_eq!(tested, Step::ALL);
}

struct Scene {
    keeper: Host,
    numbers: Numbers,
}

impl Scene {
    async fn create() -> Self {
        Self::with(Numbers::new().await).await
    }

    async fn with(numbers: Numbers) -> Self {
        let keeper = options(&numbers).spawn().await;
        numbers.set_up(&keeper).await;
        Self { keeper, numbers }
    }

    /// Freezes the keeper and starts a victim, so that only the victim processes what `cause` triggers. Returns the
    /// victim, frozen or dead.
    async fn disturb(&self, step: Step, nth: u32, fate: Fate, cause: impl AsyncFnOnce(&Host)) -> Host {
        let effect = match fate {
            Fate::Dies => "kill",
            Fate::Freezes => "freeze",
        };
        self.keeper.freeze();
        let failpoint = format!("{}:{nth}={effect}", step.name());
        let mut victim = options(&self.numbers).variable("SYNCLINE_FAILPOINT", &failpoint).spawn().await;
        cause(&victim).await;
        match fate {
            Fate::Dies => assert_eq!(victim.wait().await.signal(), Some(9), "{}", step.name()),
            Fate::Freezes => victim.wait_until_frozen().await,
        }
        self.keeper.thaw();
        victim
    }

    /// Lets a frozen victim resume, and waits until it has no work left.
    async fn recover(&self, mut victim: Host, fate: Fate) {
        if fate == Fate::Freezes {
            victim.thaw();
            victim.stop().await;
        }
    }

    async fn count(&self, sql: &str) -> i64 {
        self.numbers.db.number(sql).await
    }

    /// The sum of the counts in both databases, if there are two.
    async fn count_everywhere(&self, sql: &str) -> i64 {
        let mut count = 0;
        for database in self.numbers.databases() {
            count += database.number(sql).await;
        }
        count
    }

    async fn assert_settled(&self) {
        for database in self.numbers.databases() {
            assert_settled(database).await;
        }
    }

    async fn wait_for(&self, what: &str, sql: &str, count: i64) {
        eventually(what, async || (self.count(sql).await == count).then_some(())).await;
    }
}

fn options(numbers: &Numbers) -> HostOptions {
    let options = HostOptions::new().database(&numbers.db);
    let options = match &numbers.records {
        Some(records) => options.variable("SYNCLINE_RECORDS_DATABASE_URL", &records.url()),
        None => options,
    };
    options
        .variable("SYNCLINE_LEASE_SECONDS", "1")
        .variable("SYNCLINE_EGRESS_ALLOW", &numbers.receiver.address())
}

/// Triggers an asynchronous action. The host may crash before it responds.
fn trigger_action(victim: &Host, connection: &Connection, input: &str) {
    let body = json!({ "action_name": "echo", "input": input });
    let request =
        connection.through(victim).request("POST", "/action/trigger").header("X-Async", "true").json(&body);
    tokio::spawn(request.try_send());
}

async fn sync_at_every_step(numbers: Numbers, fate: Fate) {
    let scene = Scene::with(numbers).await;
    let numbers = &scene.numbers;
    for (step, nth) in SYNC {
        let connection = numbers.connect(&scene.keeper, step.name()).await;
        numbers.request_changes(&connection).await;
        let victim =
            scene.disturb(*step, *nth, fate, async |_victim| numbers.make_due(step.name()).await).await;
        numbers.wait_until_changed(step.name()).await;
        scene.recover(victim, fate).await;
        numbers.assert_changed(&connection).await;
    }
    scene.assert_settled().await;
}

#[tokio::test]
async fn a_sync_survives_a_host_that_dies_at_any_step() {
    sync_at_every_step(Numbers::new().await, Fate::Dies).await;
}

#[tokio::test]
async fn a_sync_survives_a_host_that_dies_at_any_step_with_two_databases() {
    sync_at_every_step(Numbers::with_two_databases().await, Fate::Dies).await;
}

#[tokio::test]
async fn a_sync_survives_a_host_that_freezes_at_any_step() {
    sync_at_every_step(Numbers::new().await, Fate::Freezes).await;
}

async fn job_at_every_step(fate: Fate) {
    let scene = Scene::create().await;
    for (step, nth) in JOB {
        let name = step.name();
        let connection = scene.numbers.connect(&scene.keeper, name).await;
        let victim =
            scene.disturb(*step, *nth, fate, async |victim| trigger_action(victim, &connection, name)).await;
        let of = format!("connection_pk = (SELECT pk FROM connections WHERE connection_id = '{name}')");
        let done = format!("SELECT count(*) FROM function_jobs WHERE state = 'success' AND {of}");
        scene.wait_for(&format!("{name}: the job is done"), &done, 1).await;
        scene.recover(victim, fate).await;
        let jobs = scene.numbers.db.texts(&format!("SELECT id::text FROM function_jobs WHERE {of}")).await;
        assert_eq!(jobs.len(), 1, "{name}");
        let result = scene.keeper.get(&format!("/action/{}", jobs[0])).await.expect(200).json();
        assert_eq!(result, json!(name));
        // An attempt that lasted long enough to be shown has its own row.
        let runs = format!("SELECT state FROM runs WHERE kind = 'action' AND state <> 'lost' AND {of}");
        assert_eq!(scene.numbers.db.texts(&runs).await, ["success"], "{name}");
        let reported = eventually(&format!("{name}: the job is reported"), async || {
            let mut webhooks = scene.numbers.receiver.webhooks();
            webhooks.retain(|webhook| webhook.text.contains(&jobs[0]));
            (!webhooks.is_empty()).then_some(webhooks)
        })
        .await;
        assert!(reported.iter().all(|webhook| webhook.id() == reported[0].id()), "{name}: {reported:?}");
    }
    scene.assert_settled().await;
}

#[tokio::test]
async fn an_async_action_survives_a_host_that_dies_at_any_step() {
    job_at_every_step(Fate::Dies).await;
}

#[tokio::test]
async fn an_async_action_survives_a_host_that_freezes_at_any_step() {
    job_at_every_step(Fate::Freezes).await;
}

async fn deletion_at_every_step(numbers: Numbers, fate: Fate) {
    let scene = Scene::with(numbers).await;
    for (step, nth) in DELETION {
        let name = step.name();
        let connection = scene.numbers.connect(&scene.keeper, name).await;
        let pk = scene.count(&format!("SELECT pk FROM connections WHERE connection_id = '{name}'")).await;
        let path = format!("/connections/{name}?provider_config_key=minimal");
        let victim = scene
            .disturb(*step, *nth, fate, async |victim| {
                tokio::spawn(victim.request("DELETE", &path).try_send());
            })
            .await;
        eventually(&format!("{name}: the connection is deleted"), async || {
            (scene.keeper.get(&path).await.status == 404).then_some(())
        })
        .await;
        // Other hosts wait for a minute before they take over a removal. This skips the wait.
        let skip_wait = "UPDATE deleted_connections SET purge_due_at = now(); NOTIFY syncline, 'deletions'";
        scene.numbers.db.execute(skip_wait).await;
        let left = format!(
            "SELECT (SELECT count(*) FROM records WHERE connection_pk = {pk})
                  + (SELECT count(*) FROM streams WHERE connection_pk = {pk})
                  + (SELECT count(*) FROM sync_states WHERE connection_pk = {pk})
                  + (SELECT count(*) FROM schedules WHERE connection_pk = {pk})"
        );
        eventually(&format!("{name}: no data is left"), async || {
            (scene.count_everywhere(&left).await == 0).then_some(())
        })
        .await;
        scene.recover(victim, fate).await;
        assert_eq!(scene.count_everywhere(&left).await, 0, "{name}: no data returns");
        connection.set_metadata(json!({ "count": 3 })).await;
        connection.wait_until_idle().await;
        assert_eq!(
            connection.all(&[("model", "Number")]).await.len(),
            3,
            "{name}: the same id is a new connection"
        );
    }
    scene.assert_settled().await;
}

#[tokio::test]
async fn a_deletion_survives_a_host_that_dies_at_any_step() {
    deletion_at_every_step(Numbers::new().await, Fate::Dies).await;
}

#[tokio::test]
async fn a_deletion_survives_a_host_that_dies_at_any_step_with_two_databases() {
    deletion_at_every_step(Numbers::with_two_databases().await, Fate::Dies).await;
}

#[tokio::test]
async fn a_deletion_survives_a_host_that_freezes_at_any_step() {
    deletion_at_every_step(Numbers::new().await, Fate::Freezes).await;
}

async fn webhook_at_every_step(fate: Fate) {
    const OPEN: &str = "SELECT count(*) FROM outbound_webhook_deliveries WHERE state <> 'delivered'";
    let scene = Scene::create().await;
    for (step, nth) in WEBHOOK {
        let name = step.name();
        let connection = scene.numbers.connect(&scene.keeper, name).await;
        scene.wait_for("the report of the first run is delivered", OPEN, 0).await;
        let before = scene.numbers.receiver.webhooks().len();
        let victim =
            scene.disturb(*step, *nth, fate, async |victim| trigger_action(victim, &connection, name)).await;
        // Other hosts wait before they take over a delivery in progress. This skips the wait.
        let skip_wait =
            "UPDATE outbound_webhook_deliveries SET next_attempt_at = now() WHERE state = 'pending';
                    NOTIFY syncline, 'webhooks'";
        scene.numbers.db.execute(skip_wait).await;
        scene.wait_for(&format!("{name}: the webhook is delivered"), OPEN, 0).await;
        scene.recover(victim, fate).await;
        assert_eq!(scene.count(OPEN).await, 0, "{name}: all deliveries stay delivered");
        let reported = scene.numbers.receiver.webhooks().split_off(before);
        assert!((1..=2).contains(&reported.len()), "{name}: {reported:?}");
        assert!(
            reported
                .iter()
                .all(|webhook| webhook.id() == reported[0].id() && webhook.text == reported[0].text),
            "{name}"
        );
    }
}

#[tokio::test]
async fn a_webhook_is_delivered_if_the_sending_host_dies() {
    webhook_at_every_step(Fate::Dies).await;
}

#[tokio::test]
async fn a_webhook_is_delivered_if_the_sending_host_freezes() {
    webhook_at_every_step(Fate::Freezes).await;
}

async fn variant_at_every_step(fate: Fate) {
    const PATH: &str = "/sync/numbers/variant/second";
    let scene = Scene::create().await;
    for (step, nth) in VARIANT {
        let name = step.name();
        let connection = scene.numbers.connect(&scene.keeper, name).await;
        let body = json!({ "provider_config_key": "minimal", "connection_id": name });
        scene.keeper.post(PATH, &body).await.expect(200);
        connection.wait_until_idle().await;
        let victim = scene
            .disturb(*step, *nth, fate, async |victim| {
                tokio::spawn(victim.request("DELETE", PATH).json(&body).try_send());
            })
            .await;
        for command in ["trigger", "start"] {
            let refused = connection.control(command, "numbers::second").await;
            assert_eq!(refused.refusal(), (404, "unknown_variant".to_owned()), "{name}: {command}");
        }
        // Other hosts wait for a minute before they take over a removal. This skips the wait.
        let skip_wait = "UPDATE schedules SET retired_at = retired_at - interval '1 hour';
                    NOTIFY syncline, 'deletions'";
        scene.numbers.db.execute(skip_wait).await;
        let left = format!(
            "SELECT (SELECT count(*) FROM schedules WHERE connection_pk = c.pk AND variant = 'second')
                  + (SELECT count(*) FROM records r JOIN streams s USING (connection_pk, stream_no)
                     WHERE connection_pk = c.pk AND variant = 'second')
             FROM connections c WHERE connection_id = '{name}'"
        );
        scene.wait_for(&format!("{name}: no data is left"), &left, 0).await;
        scene.recover(victim, fate).await;
        assert_eq!(scene.count(&left).await, 0, "{name}: no data returns");
        scene.keeper.post(PATH, &body).await.expect(200);
        connection.wait_until_idle().await;
        let again = connection.all(&[("model", "Number"), ("variant", "second")]).await;
        assert_eq!(again.len(), 10, "{name}: the variant can be created again");
    }
    scene.assert_settled().await;
}

#[tokio::test]
async fn a_variant_deletion_survives_a_host_that_dies_at_any_step() {
    variant_at_every_step(Fate::Dies).await;
}

#[tokio::test]
async fn a_variant_deletion_survives_a_host_that_freezes_at_any_step() {
    variant_at_every_step(Fate::Freezes).await;
}

async fn statistics_at_every_step(fate: Fate) {
    const ENDED: &str = "SELECT count(*) FROM runs WHERE state <> 'running'";
    const WAITING: &str = "SELECT count(*) FROM ended_runs";
    let scene = Scene::create().await;
    for (step, nth) in STATISTICS {
        let name = step.name();
        let connection = scene.numbers.connect(&scene.keeper, name).await;
        scene.wait_for("all runs are counted", WAITING, 0).await;
        let before = scene.count(ENDED).await;
        let victim =
            scene.disturb(*step, *nth, fate, async |victim| trigger_action(victim, &connection, name)).await;
        scene.wait_for(&format!("{name}: the action has ended"), ENDED, before + 1).await;
        scene.wait_for(&format!("{name}: all runs are counted"), WAITING, 0).await;
        scene.recover(victim, fate).await;
        let counted =
            "SELECT sum(succeeded + failed + cancelled + lost)::bigint FROM run_statistics WHERE hours = 1";
        assert_eq!(scene.count(counted).await, scene.count(ENDED).await, "{name}");
    }
    scene.assert_settled().await;
}

#[tokio::test]
async fn each_run_is_counted_once_if_a_host_dies_while_it_counts() {
    statistics_at_every_step(Fate::Dies).await;
}

#[tokio::test]
async fn each_run_is_counted_once_if_a_host_freezes_while_it_counts() {
    statistics_at_every_step(Fate::Freezes).await;
}
