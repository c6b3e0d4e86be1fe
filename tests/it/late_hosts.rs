//! Hosts that resume late, while their successor is in the middle of the same work. A late host changes no row, and its
//! successor finishes as if it were alone.

use std::time::Duration;

use serde_json::json;
use syncline_telemetry::failpoints::Step;

use crate::support::{
    Bundle, Connection, Host, HostOptions, Numbers, TestDatabase, assert_settled, eventually,
};

const ID: &str = "customer-1";
/// A host with this lease renews it so rarely that only the rows in the database can stop it.
const LONG_LEASE: &str = "3600";
/// Tables that both hosts write.
const TABLES: [&str; 6] = [
    "schedules",
    "sync_states",
    "streams",
    "runs",
    "outbound_webhook_deliveries",
    "outbound_webhook_attempts",
];

/// Two frozen hosts that both believe that they own the same work.
struct Overlap {
    numbers: Numbers,
    connection: Connection,
    late: Host,
    successor: Host,
}

impl Overlap {
    /// Freezes a host at a step of the run that changes the numbers, or of its webhook. Then freezes the host that
    /// takes over, at another step.
    async fn create((late_at, lease_seconds): (Step, &str), successor_at: Step) -> Self {
        let numbers = Numbers::new().await;
        let mut first = options(&numbers).spawn().await;
        numbers.set_up(&first).await;
        let connection = numbers.connect(&first, ID).await;
        numbers.request_changes(&connection).await;
        first.stop().await;

        let late = options(&numbers)
            .variable("SYNCLINE_LEASE_SECONDS", lease_seconds)
            .variable("SYNCLINE_FAILPOINT", &freeze_at(late_at))
            .spawn()
            .await;
        numbers.make_due(ID).await;
        late.wait_until_frozen().await;

        let successor = options(&numbers)
            .variable("SYNCLINE_LEASE_SECONDS", "6")
            .variable("SYNCLINE_FAILPOINT", &freeze_at(successor_at))
            .spawn()
            .await;
        let expire =
            "UPDATE schedules SET lease_expires_at = now() - interval '1 second' WHERE run_id IS NOT NULL;
                    UPDATE outbound_webhook_deliveries SET next_attempt_at = now() WHERE state = 'pending'";
        numbers.db.execute(expire).await;
        successor.wait_until_frozen().await;
        // Keeps the successor's lease valid, however long this takes.
        let stays =
            "UPDATE schedules SET lease_expires_at = now() + interval '1 hour' WHERE run_id IS NOT NULL";
        numbers.db.execute(stays).await;
        Self { numbers, connection, late, successor }
    }

    /// Lets the late host continue, and then the successor.
    async fn resume(mut self) -> Numbers {
        let before = self.rows().await;
        self.late.thaw();
        // After a graceful stop, the host has finished all its pending work.
        self.late.stop().await;
        assert_eq!(self.rows().await, before, "the late host changes nothing");
        let log = self.late.log();
        let failed = ["could not store the result of a webhook attempt", "could not write the end of"]
            .iter()
            .any(|failure| log.contains(failure));
        assert!(!failed, "the late host noticed its loss without a database error: {log}");
        self.successor.thaw();
        self.numbers.wait_until_changed(ID).await;
        self.numbers.assert_changed(&self.connection.through(&self.successor)).await;
        assert_settled(&self.numbers.db).await;
        self.numbers
    }

    async fn rows(&self) -> Vec<String> {
        let mut rows = Vec::new();
        for table in TABLES {
            let whole = format!("SELECT '{table}: ' || to_jsonb(t)::text FROM {table} t ORDER BY 1");
            rows.extend(self.numbers.db.texts(&whole).await);
        }
        rows
    }
}

fn options(numbers: &Numbers) -> HostOptions {
    HostOptions::new().database(&numbers.db).variable("SYNCLINE_EGRESS_ALLOW", &numbers.receiver.address())
}

fn freeze_at(step: Step) -> String {
    format!("{}:1=freeze", step.name())
}

async fn states_of_runs(numbers: &Numbers) -> Vec<String> {
    numbers.db.texts("SELECT state FROM runs ORDER BY started_at").await
}

#[tokio::test]
async fn a_late_start_does_not_replace_the_successors_fencing_token() {
    let overlap = Overlap::create((Step::SyncClaimed, LONG_LEASE), Step::BatchCommitted).await;
    let numbers = overlap.resume().await;
    assert_eq!(states_of_runs(&numbers).await, ["success", "lost", "success"]);
}

#[tokio::test]
async fn a_late_completion_changes_nothing() {
    let overlap = Overlap::create((Step::SyncCompleted, LONG_LEASE), Step::BatchCommitted).await;
    let numbers = overlap.resume().await;
    assert_eq!(states_of_runs(&numbers).await, ["success", "lost", "success"]);
}

#[tokio::test]
async fn a_late_renewal_does_not_extend_the_successors_lease() {
    let overlap = Overlap::create((Step::BatchCommitted, "1"), Step::BatchCommitted).await;
    let numbers = overlap.resume().await;
    assert_eq!(states_of_runs(&numbers).await, ["success", "lost", "success"]);
}

#[tokio::test]
async fn a_late_webhook_result_is_ignored() {
    let overlap = Overlap::create((Step::WebhookSent, LONG_LEASE), Step::WebhookClaimed).await;
    let numbers = overlap.resume().await;
    let open = "SELECT count(*) FROM outbound_webhook_deliveries WHERE state <> 'delivered'";
    eventually("the webhook is delivered", async || (numbers.db.number(open).await == 0).then_some(())).await;
    let attempts = "SELECT coalesce(status::text, error) FROM outbound_webhook_attempts a
                    JOIN outbound_webhook_deliveries d ON d.pk = a.delivery_pk WHERE d.attempts > 1 ORDER BY number";
    let lost = "the host stopped before the receiver's answer was noted";
    assert_eq!(numbers.db.texts(attempts).await, [lost, "200"]);
}

#[tokio::test]
async fn the_first_host_to_return_takes_over_nothing_during_the_grace_period() {
    let db = TestDatabase::create().await;
    let lease = Duration::from_secs(6);
    let options = || HostOptions::new().database(&db).variable("SYNCLINE_LEASE_SECONDS", "6");
    let first = options()
        .variable("SYNCLINE_MAX_SYNCS", "0")
        .variable("SYNCLINE_MAX_ASYNC_ACTIONS", "0")
        .spawn()
        .await;
    let second = options().spawn().await;
    first.deploy(&Bundle::guest("hostile")).await;
    // It writes rarely, so that it is not frozen within a transaction.
    let connection =
        first.connect_as("customer-1", "hostile", json!({ "steps": 5, "pause_ms": 2_000 })).await;
    let result = connection.trigger_async("sleep", &json!(10_000)).await;
    let held = "SELECT (SELECT count(*) FROM schedules WHERE sync_name = 'steps' AND run_id IS NOT NULL)
                     + (SELECT count(*) FROM function_jobs WHERE state = 'running')";
    eventually("the sync and the action are running", async || (db.number(held).await == 2).then_some(()))
        .await;
    // Simulates an unavailable database.
    first.freeze();
    second.freeze();
    // Long enough for both hosts to notice the outage.
    tokio::time::sleep(lease).await;
    let expired =
        "SELECT (SELECT count(*) FROM schedules WHERE sync_name = 'steps' AND lease_expires_at < now())
                     + (SELECT count(*) FROM function_jobs WHERE lease_expires_at < now())";
    eventually("both leases have expired", async || (db.number(expired).await == 2).then_some(())).await;
    first.thaw();
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    second.thaw();
    connection.result(&result).await.expect(200);
    eventually("the sync has succeeded", async || {
        (connection.status("steps").await["status"] == "SUCCESS").then_some(())
    })
    .await;
    let lost = "SELECT (SELECT count(*) FROM runs WHERE state = 'lost')
                     + (SELECT coalesce(sum(losses), 0) FROM function_jobs)";
    assert_eq!(db.number(lost).await, 0);
}
