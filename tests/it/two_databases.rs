//! A separate records database.

use std::process::{Command, ExitStatus};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{
    Bundle, Connection, Host, HostOptions, METADATA_KEY, PostgresProxy, RECORD_TABLES, TestDatabase, delete,
    eventually, ids_of, repository, save,
};

const CONTROL_TABLES: [&str; 6] =
    ["environments", "integrations", "connections", "schedules", "runs", "hosts"];

struct Pair {
    control: TestDatabase,
    records: TestDatabase,
}

impl Pair {
    async fn create() -> Self {
        Self { control: TestDatabase::create_empty().await, records: TestDatabase::create_empty().await }
    }

    fn options(&self) -> HostOptions {
        options(&self.control, &self.records).variable("SYNCLINE_LEASE_SECONDS", "1")
    }

    async fn spawn(&self) -> Host {
        self.options().spawn().await
    }

    /// Checks that neither database has rows in the tables of the other.
    async fn assert_apart(&self) {
        for (database, tables) in [(&self.control, RECORD_TABLES), (&self.records, CONTROL_TABLES)] {
            for table in tables {
                let rows = database.number(&format!("SELECT count(*) FROM {table}")).await;
                assert_eq!(rows, 0, "rows in `{table}` of the other database");
            }
        }
    }
}

fn options(control: &TestDatabase, records: &TestDatabase) -> HostOptions {
    HostOptions::new().database(control).variable("SYNCLINE_RECORDS_DATABASE_URL", &records.url())
}

async fn items(connection: &Connection, variant: &str) -> Vec<Value> {
    connection.all(&[("model", "Item"), ("variant", variant)]).await
}

#[tokio::test]
async fn records_are_in_one_database_and_everything_else_in_the_other() {
    let pair = Pair::create().await;
    let host = pair.spawn().await;
    let bundle = Bundle::guest("hostile")
        .tracking_deletes("commit-raw")
        .replace("[models.Item]\n", "[models.Item]\non_bad_record = \"set_aside\"\n");
    host.deploy(&bundle).await;
    let connection = host.connect("hostile", json!({ "steps": 2 })).await;
    connection.wait_until_idle().await;
    let batch = json!([{ "id": "a" }, { "id": "b" }, { "id": "c" }, { "id": "bad", "count": "x" }]);
    connection.commit(json!([save(&batch)])).await;
    connection
        .commit(json!([save(&json!([{ "id": "a" }, { "id": "b", "name": "new" }])), delete(&["c"])]))
        .await;
    let records = items(&connection, "base").await;
    assert_eq!(ids_of(&records), ["a", "b", "c"]);
    let until = json!({ "model": "Item", "until_cursor": records[0][METADATA_KEY]["cursor"] });
    let pruned = connection.prune(&until).await.expect(200).json();
    assert_eq!(pruned, json!({ "count": 1, "has_more": false }));

    let body = json!({ "provider_config_key": "hostile", "connection_id": connection.id });
    let variant = "/sync/commit-raw/variant/second";
    // A fencing token of the records database would be far lower than those of the runs.
    pair.control.execute("SELECT setval('run_fences', 1000000)").await;
    for _ in 0..2 {
        host.post(variant, &body).await.expect(200);
        eventually("the variant has saved", async || {
            (items(&connection, "second").await.len() == 2).then_some(())
        })
        .await;
        host.request("DELETE", variant).json(&body).send().await.expect(200);
        assert_eq!(items(&connection, "second").await, Vec::<Value>::new());
    }
    pair.assert_apart().await;

    let path = format!("/connections/{}?provider_config_key=hostile", connection.id);
    host.request("DELETE", &path).send().await.expect(200);
    eventually("nothing is left of the connection", async || {
        let rows = "SELECT (SELECT count(*) FROM records) + (SELECT count(*) FROM streams)
                  + (SELECT count(*) FROM sync_states) + (SELECT count(*) FROM dead_letters)";
        (pair.records.number(rows).await == 0).then_some(())
    })
    .await;
    assert_eq!(pair.control.number("SELECT count(*) FROM closed_connections").await, 0);
}

#[tokio::test]
async fn a_killed_hosts_sync_resumes_from_the_records_database() {
    const STEPS: usize = 60;
    let pair = Pair::create().await;
    let mut host = pair.spawn().await;
    host.deploy(&Bundle::guest("hostile")).await;
    let connection = host.connect("hostile", json!({ "steps": STEPS, "pause_ms": 50 })).await;
    let steps = async |connection: &Connection| connection.all(&[("model", "Step")]).await;
    eventually("some steps are saved", async || (steps(&connection).await.len() >= 10).then_some(())).await;
    host.kill();
    let host = pair.spawn().await;
    let connection = connection.through(&host);
    eventually("the sync has succeeded", async || {
        (connection.status("steps").await["status"] == "SUCCESS").then_some(())
    })
    .await;
    let records = steps(&connection).await;
    assert_eq!(ids_of(&records), (0..STEPS).map(|step| format!("step-{step}")).collect::<Vec<_>>());
    assert!(
        records.iter().all(|record| record[METADATA_KEY]["last_action"] == "ADDED"),
        "no record was saved twice"
    );
    pair.assert_apart().await;
}

#[tokio::test]
async fn databases_that_do_not_belong_together_are_rejected() {
    let (pair, stranger) = (Pair::create().await, Pair::create().await);
    drop(pair.spawn().await);
    let whole = TestDatabase::create().await;
    drop(Host::spawn(&whole).await);
    let nowhere = "postgres://127.0.0.1:1/nowhere";
    for (what, options, reason) in [
        (
            "no records",
            HostOptions::new().database(&pair.control),
            "has a separate records database: set SYNCLINE_RECORDS_DATABASE_URL",
        ),
        ("only records", HostOptions::new().database(&pair.records), "is a records database"),
        ("swapped", options(&pair.records, &pair.control), "is a records database"),
        ("a new one", options(&pair.control, &stranger.records), "is not the records database of"),
        ("a whole one for records", options(&stranger.control, &whole), "is not the records database of"),
        ("a whole one with more", options(&whole, &stranger.records), "contains the records itself"),
        ("one twice", options(&pair.control, &pair.control), "are the same database"),
        (
            "a wrong URL",
            HostOptions::new().database(&pair.control).variable("SYNCLINE_RECORDS_DATABASE_URL", "no URL"),
            "SYNCLINE_RECORDS_DATABASE_URL is not a Postgres URL",
        ),
        (
            "another kind of server",
            HostOptions::new()
                .database(&pair.control)
                .variable("SYNCLINE_RECORDS_DATABASE_URL", "mysql://127.0.0.1/records"),
            "SYNCLINE_RECORDS_DATABASE_URL is not a Postgres URL",
        ),
        (
            "no URL of the rest",
            HostOptions::new().variable("SYNCLINE_RECORDS_DATABASE_URL", nowhere),
            "SYNCLINE_RECORDS_DATABASE_URL is set without DATABASE_URL",
        ),
    ] {
        let (status, log) = options.spawn_and_wait().await;
        assert!(!status.success(), "{what}");
        assert!(log.contains(reason), "{what}: {log}");
    }
    pair.spawn().await;
}

#[tokio::test]
async fn a_run_keeps_its_lease_while_the_records_database_is_unavailable() {
    let pair = Pair::create().await;
    let proxy = PostgresProxy::start(&pair.records).await;
    let host = HostOptions::new()
        .database(&pair.control)
        .variable("SYNCLINE_RECORDS_DATABASE_URL", proxy.url())
        .variable("SYNCLINE_LEASE_SECONDS", "2")
        .spawn()
        .await;
    host.deploy(&Bundle::guest("hostile")).await;
    let connection =
        host.connect_as("customer-1", "hostile", json!({ "steps": 2, "pause_ms": 20_000 })).await;
    eventually("the sync has saved a step", async || {
        (connection.all(&[("model", "Step")]).await.len() == 1).then_some(())
    })
    .await;
    proxy.close();
    let held = "SELECT count(*) FROM schedules WHERE sync_name = 'steps' AND lease_expires_at > now()";
    for _ in 0..12 {
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(pair.control.number(held).await, 1);
    }
}

#[tokio::test]
async fn webhook_times_use_the_clock_of_the_records_database() {
    let pair = Pair::create().await;
    let mut first = pair.spawn().await;
    first.stop().await;
    pair.records.shift_clock(-2).await;
    let host = pair.spawn().await;
    host.deploy(&Bundle::guest("hostile")).await;
    pair.control.execute("UPDATE environments SET webhook_url = 'http://127.0.0.1:9/'").await;
    let connection = host.connect("hostile", json!({ "steps": 3 })).await;
    connection.wait_until_idle().await;
    connection.set_metadata(json!({ "steps": 5 })).await;
    connection.run("steps").await;
    let times = "SELECT body::json ->> 'modifiedAfter' FROM outbound_webhook_deliveries
                 WHERE body::json ->> 'syncName' = 'steps' ORDER BY pk";
    let mut found = Vec::new();
    for since in pair.control.texts(times).await {
        found.push(connection.all(&[("model", "Step"), ("modified_after", &since)]).await.len());
    }
    assert_eq!(found, [5, 2], "each run's `modifiedAfter` finds its records");
}

/// Moves the records with the documented commands for operators.
fn move_records(from: &TestDatabase, to: &TestDatabase) -> ExitStatus {
    let manual = std::fs::read_to_string(repository("docs/how-to/separate-records-database.md"))
        .expect("it is in the repository");
    let (_, section) = manual.split_once("**Moving**").expect("the page explains how to move records");
    let block = section.lines().skip_while(|line| !line.starts_with("    "));
    let commands: Vec<_> = block.take_while(|line| line.starts_with("    ")).collect();
    let with_programs = "source \"$COMMON\"; PATH=\"$(postgres_bin):$PATH\"\n";
    let folder = TempDir::new().expect("a temporary folder can be made");
    Command::new("bash")
        .args(["-c", &(with_programs.to_owned() + &commands.join("\n"))])
        .current_dir(&folder)
        .env("COMMON", repository("scripts/common.sh"))
        .env("DATABASE_URL", from.url())
        .env("RECORDS_URL", to.url())
        .status()
        .expect("bash is installed")
}

#[tokio::test]
async fn records_are_moved_completely_or_not_at_all() {
    let pair = Pair::create().await;
    let mut host = Host::spawn(&pair.control).await;
    host.deploy(&Bundle::guest("hostile")).await;
    let connection = host.connect("hostile", json!({ "steps": 2 })).await;
    connection.wait_until_idle().await;
    connection.commit(json!([save(&json!([{ "id": "a" }, { "id": "b" }]))])).await;
    let before = items(&connection, "base").await;
    assert_eq!(ids_of(&before), ["a", "b"]);
    host.stop().await;
    let rows = "SELECT count(*) FROM records";
    let stored = pair.control.number(rows).await;

    // The target has no tables yet, so the load fails.
    assert!(!move_records(&pair.control, &pair.records).success());
    assert_eq!(pair.control.number(rows).await, stored);
    Host::spawn(&pair.records).await.stop().await;
    assert!(move_records(&pair.control, &pair.records).success());

    let (status, log) = HostOptions::new().database(&pair.control).spawn_and_wait().await;
    assert!(!status.success(), "the host rejects a control database without records");
    assert!(log.contains("set SYNCLINE_RECORDS_DATABASE_URL"), "{log}");
    let host = pair.spawn().await;
    let connection = connection.through(&host);
    assert_eq!(items(&connection, "base").await, before);
    connection.commit(json!([save(&json!([{ "id": "c" }]))])).await;
    assert_eq!(ids_of(&items(&connection, "base").await), ["a", "b", "c"]);
    assert_eq!(pair.control.number(rows).await, 0);
}
