//! A full sync for disturbances: it always has to end with the same records, counts and webhooks.

use serde_json::{Value, json};

use super::{Api, Bundle, Connection, METADATA_KEY, Receiver, TestDatabase, Webhook, eventually, ids_of};

/// Connections to the smallest example with `track_deletes`. Each has saved ten numbers when it is created. Its next
/// run changes eight, adds two and deletes two.
pub struct Numbers {
    pub receiver: Receiver,
    pub db: TestDatabase,
    /// The records database, if it is a separate one.
    pub records: Option<TestDatabase>,
}

impl Numbers {
    pub async fn new() -> Self {
        Self { receiver: Receiver::start().await, db: TestDatabase::create().await, records: None }
    }

    pub async fn with_two_databases() -> Self {
        let (db, records) = (TestDatabase::create_empty().await, TestDatabase::create_empty().await);
        Self { receiver: Receiver::start().await, db, records: Some(records) }
    }

    pub fn databases(&self) -> impl Iterator<Item = &TestDatabase> {
        [&self.db].into_iter().chain(&self.records)
    }

    /// Deploys the example and sets the webhook URL.
    pub async fn set_up(&self, api: &Api) {
        api.deploy(&Bundle::example("minimal").tracking_deletes("numbers")).await;
        let url = self.receiver.url("/hooks");
        self.db
            .execute(&format!("UPDATE environments SET webhook_url = '{url}', on_auth_creation = false"))
            .await;
    }

    pub async fn connect(&self, api: &Api, id: &str) -> Connection {
        let metadata = json!({ "count": 10, "batch": 4, "salt": "first" });
        let connection = api.connect_as(id, "minimal", metadata).await;
        connection.wait_until_idle().await;
        eventually("the first run is reported", async || {
            (!self.successes(&connection).is_empty()).then_some(())
        })
        .await;
        connection
    }

    pub async fn request_changes(&self, connection: &Connection) {
        connection.set_metadata(json!({ "first": 2, "count": 10, "batch": 4, "salt": "second" })).await;
    }

    /// Makes the sync due now, without a request to a host. This also skips the wait of a retry.
    pub async fn make_due(&self, id: &str) {
        let due = format!(
            "UPDATE schedules SET due_at = now() WHERE connection_pk = {} AND run_id IS NULL;
             SELECT pg_notify('syncline', 'due')",
            pk_of(id)
        );
        self.db.execute(&due).await;
    }

    /// Waits until the changes are saved and reported, and no work is left.
    pub async fn wait_until_changed(&self, id: &str) {
        let retries = format!(
            "SELECT count(*) FROM schedules WHERE connection_pk = {} AND run_id IS NULL AND due_reason = 'retry'
                 AND due_at > now()",
            pk_of(id)
        );
        let done = format!(
            "SELECT count(*) FROM schedules WHERE connection_pk = {} AND run_id IS NULL AND unreported_since IS NULL
                 AND due_at > now() + interval '1 minute'",
            pk_of(id)
        );
        eventually(&format!("{id}: the sync has ended"), async || {
            if self.db.number(&retries).await > 0 {
                self.make_due(id).await;
            }
            (self.db.number(&done).await == 1).then_some(())
        })
        .await;
    }

    /// Checks that each change was saved once and reported once.
    pub async fn assert_changed(&self, connection: &Connection) {
        let id = &connection.id;
        let all = connection.all(&[("model", "Number"), ("limit", "5")]).await;
        let (deleted, live): (Vec<Value>, Vec<Value>) =
            all.into_iter().partition(|record| record[METADATA_KEY]["deleted_at"].is_string());
        assert_eq!(sorted_ids(&deleted), ["number-0", "number-1"], "{id}");
        let mut expected: Vec<String> = (2..12).map(|number| format!("number-{number}")).collect();
        expected.sort();
        assert_eq!(sorted_ids(&live), expected, "{id}");
        assert!(live.iter().all(|record| record["salt"] == "second"), "{id}: {live:?}");
        let status = connection.status("numbers").await;
        let seen = (&status["status"], &status["recordCount"]);
        assert_eq!(seen, (&json!("SUCCESS"), &json!({ "Number": 10 })), "{id}");
        let reported = eventually(&format!("{id}: the sync is reported"), async || {
            let reported = self.successes(connection);
            (reported.len() >= 2).then_some(reported)
        })
        .await;
        let mut results: Vec<&Value> = reported.iter().map(|body| &body["responseResults"]).collect();
        results.sort_by_key(|counts| counts["deleted"].as_u64());
        let first = json!({ "added": 10, "updated": 0, "deleted": 0 });
        let second = json!({ "added": 2, "updated": 8, "deleted": 2 });
        assert_eq!(results, [&first, &second], "{id}");
    }

    /// The reported successes of the connection's syncs, each message once.
    fn successes(&self, connection: &Connection) -> Vec<Value> {
        let mut webhooks = self.receiver.webhooks();
        webhooks.retain(|webhook| {
            let body = webhook.body();
            body["connectionId"] == *connection.id && body["type"] == "sync" && body["success"] == true
        });
        webhooks.sort_by(|a, b| a.id().cmp(b.id()));
        for pair in webhooks.windows(2) {
            assert!(
                pair[0].id() != pair[1].id() || pair[0].text == pair[1].text,
                "two messages have the same id"
            );
        }
        webhooks.dedup_by(|a, b| a.id() == b.id());
        webhooks.iter().map(Webhook::body).collect()
    }
}

/// The row number of a connection, as SQL.
fn pk_of(id: &str) -> String {
    format!("(SELECT pk FROM connections WHERE connection_id = '{id}')")
}

fn sorted_ids(records: &[Value]) -> Vec<&str> {
    let mut ids = ids_of(records);
    ids.sort_unstable();
    ids
}
