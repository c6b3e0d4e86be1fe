//! Records on a Citus cluster. `make test-citus` runs these tests, and others with their records on the cluster.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, PgConnection};
use syncline_store::{Databases, Store, stalled};

use crate::support::{
    Bundle, ClusterDatabase, Connection, Host, HostOptions, METADATA_KEY, RECORD_TABLES, Stage, TestDatabase,
    assert_settled, eventually, ids_of, save,
};

/// A control database and an empty database on the cluster.
async fn undistributed() -> TestDatabase {
    TestDatabase::create_control().await.with_records(ClusterDatabase::create_empty().await)
}

fn records_of(db: &TestDatabase) -> &ClusterDatabase {
    db.cluster().expect("the database has a records database on the cluster")
}

async fn distributed_tables(db: &TestDatabase) -> Vec<String> {
    records_of(db).texts("SELECT logicalrelid::text FROM pg_dist_partition ORDER BY 1").await
}

#[tokio::test]
async fn only_a_separate_records_database_on_citus_can_be_distributed() {
    let db = TestDatabase::create_control().await;
    let refusal = db.command(&["records", "distribute", "--yes"]).run_failing();
    assert!(refusal.contains("set SYNCLINE_RECORDS_DATABASE_URL"), "{refusal}");
    let records = TestDatabase::create_control().await;
    let arguments = ["records", "distribute", "--yes", "--records-database-url", &records.url()];
    let refusal = db.command(&arguments).run_failing();
    assert!(refusal.contains("does not have the extension `citus`"), "{refusal}");
}

#[tokio::test]
#[ignore = "needs a Citus cluster; run `make test-citus`"]
async fn distributing_keeps_all_records_and_can_be_repeated() {
    let db = undistributed().await;
    let mut host = Host::spawn(&db).await;
    host.deploy(&Bundle::guest("hostile")).await;
    let connection = host.connect("hostile", json!({ "steps": 3 })).await;
    connection.wait_until_idle().await;
    connection.commit(json!([save(&json!([{ "id": "a", "name": "Ada" }, { "id": "b" }]))])).await;
    let before = connection.all(&[("model", "Item")]).await;

    let plan = db.command(&["records", "distribute", "--dry-run", "--shards", "4"]).run();
    assert!(plan.contains("make `records` one table instead of 16 partitions"), "{plan}");
    assert!(plan.contains("by `connection_pk` in 4 shards"), "{plan}");
    let refusal = db.command(&["records", "distribute", "--yes"]).run_failing();
    assert!(refusal.contains("stop all hosts"), "{refusal}");
    assert_eq!(distributed_tables(&db).await, Vec::<String>::new());
    host.stop().await;
    let done = db.command(&["records", "distribute", "--yes", "--shards", "4"]).run();
    assert!(done.contains("2 shards of `records`"), "{done}");

    let mut tables = RECORD_TABLES.map(str::to_owned);
    tables.sort();
    assert_eq!(distributed_tables(&db).await, tables);
    let local = "SELECT logicalrelid::text FROM pg_dist_partition WHERE pg_relation_size(logicalrelid) > 0";
    assert_eq!(records_of(&db).texts(local).await, Vec::<String>::new(), "the coordinator keeps no rows");
    for url in records_of(&db).worker_urls() {
        let mut worker = connect(&url, "psql").await;
        let setting: String = sqlx::query_scalar("SHOW enable_seqscan").fetch_one(&mut worker).await.unwrap();
        assert_eq!(setting, "off", "the planner's settings reach each worker");
    }
    let indexes = "SELECT indexname::text FROM pg_indexes WHERE tablename = 'records' ORDER BY 1";
    assert_eq!(
        records_of(&db).texts(indexes).await,
        ["records_by_action", "records_pkey", "records_position"]
    );

    let host = Host::spawn(&db).await;
    let again = db.command(&["records", "distribute"]).run();
    assert!(again.contains("all tables are distributed already, in 4 shards"), "{again}");
    let connection = connection.through(&host);
    assert_eq!(connection.all(&[("model", "Item")]).await, before);
    connection.commit(json!([save(&json!([{ "id": "c" }]))])).await;
    assert_eq!(ids_of(&connection.all(&[("model", "Item")]).await), ["a", "b", "c"]);
    let of_view = "SELECT id FROM syncline_views.records WHERE model = 'Item' ORDER BY position";
    assert_eq!(records_of(&db).texts(of_view).await, ["a", "b", "c"]);
    assert_settled(&db).await;
}

#[tokio::test]
#[ignore = "needs a Citus cluster; run `make test-citus`"]
async fn writers_that_begin_streams_of_a_connection_at_once_all_succeed() {
    let stage = Stage::hostile().await;
    for round in 0..5 {
        let connection =
            stage.host.connect_as(&format!("writer-{round}"), "hostile", json!({ "steps": 0 })).await;
        connection.wait_until_idle().await;
        let saves = (0..12).map(|number| {
            // Both streams are to get the next number of the connection.
            let (model, item) = match number % 2 {
                0 => ("Item", json!({ "id": format!("item-{number}") })),
                _ => ("Step", json!({ "id": format!("step-{number}"), "run": "" })),
            };
            let connection = connection.through(&stage.host);
            async move { connection.save_raw(model, &json!([item]).to_string()).await }
        });
        for answer in futures_util::future::join_all(saves).await {
            answer.expect(200);
        }
        for model in ["Item", "Step"] {
            assert_eq!(connection.all(&[("model", model)]).await.len(), 6);
        }
    }
}

async fn connect(url: &str, name: &str) -> PgConnection {
    let options: PgConnectOptions = url.parse().expect("it is a URL");
    options.application_name(name).connect().await.expect("the database answers")
}

async fn execute(conn: &mut PgConnection, sql: &str) {
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(conn).await.expect(sql);
}

#[tokio::test]
#[ignore = "needs a Citus cluster; run `make test-citus`"]
async fn only_an_unresponsive_host_that_blocks_others_is_ended() {
    const PATIENCE: Duration = Duration::from_millis(500);
    const WRITE: &str = "UPDATE streams SET sync_name = sync_name WHERE connection_pk = 7 AND stream_no = 1";

    let db = TestDatabase::create().await;
    let url = records_of(&db).url();
    let databases = Databases {
        control: db.url().parse().expect("it is a URL"),
        records: Some(url.parse().expect("it is a URL")),
    };
    let store = Store::open(databases, 4).await.expect("it can be opened");
    assert!(store.is_on_citus());
    let create =
        "INSERT INTO streams (connection_pk, stream_no, model, variant) VALUES (7, 1, 'Item', 'base')";
    db.execute(create).await;

    for (what, is_stalled) in
        [("a worker executes its statement", false), ("it owes the rows of a COPY", true)]
    {
        let mut holder = connect(&url, "syncline").await;
        execute(&mut holder, "BEGIN").await;
        execute(&mut holder, WRITE).await;
        let blocked_url = url.clone();
        let holding = async {
            if is_stalled {
                let columns = "connection_pk, stream_no, generation, part, positions";
                let copy = format!("COPY seen_positions ({columns}) FROM STDIN");
                let copy = holder.copy_in_raw(&copy).await.expect("the copy begins");
                tokio::time::sleep(PATIENCE * 5).await;
                assert!(copy.finish().await.is_err(), "{what}: the session was ended");
            } else {
                let wait = "SELECT pg_sleep(2.5) FROM streams WHERE connection_pk = 7";
                execute(&mut holder, wait).await;
                execute(&mut holder, "COMMIT").await;
            }
        };
        let blocked = async move {
            let mut other = connect(&blocked_url, "syncline").await;
            execute(&mut other, WRITE).await;
        };
        let looking = async {
            tokio::time::sleep(PATIENCE * 3).await;
            let mut conn = store.connect_records().await.expect("a connection is free");
            stalled::end_stalled_on_citus(&mut conn, PATIENCE).await.expect("the statement is executed")
        };
        let ((), (), ended) = tokio::join!(holding, blocked, looking);
        assert_eq!(ended, i64::from(is_stalled), "{what}");
    }
    store.close().await;
}

const STEPS: usize = 150;

/// The steps that the sync of a connection has saved.
async fn steps(connection: &Connection) -> Vec<Value> {
    connection.all(&[("model", "Step"), ("limit", "500")]).await
}

/// The port of the worker with the rows of each connection, by connection id.
async fn ports_by_connection(db: &TestDatabase) -> BTreeMap<String, String> {
    let mut ports = BTreeMap::new();
    for id in db.texts("SELECT connection_id FROM connections").await {
        let pk = db.number(&format!("SELECT pk FROM connections WHERE connection_id = '{id}'")).await;
        let port = format!(
            "SELECT nodeport::text FROM citus_shards
             WHERE shardid = get_shard_id_for_distribution_column('streams', {pk}::bigint)"
        );
        ports.insert(id, records_of(db).texts(&port).await.remove(0));
    }
    ports
}

/// Kills a worker, which starts again after `seconds`.
async fn kill_worker(url: &str, seconds: u32) {
    // The server executes the command in its data directory, where `postmaster.opts` contains its command line.
    let restart = format!(
        "kill -KILL $(head -n 1 postmaster.pid); sleep {seconds}; \
         for try in $(seq 100); do eval \"$(cat postmaster.opts)\" && break; sleep 0.3; done"
    );
    let kill = format!("setsid sh -c '{restart}' </dev/null >/dev/null 2>&1 &").replace('\'', "''");
    let mut worker = connect(url, "test").await;
    // The answer may be lost.
    let _killed =
        sqlx::raw_sql(AssertSqlSafe(format!("COPY (SELECT) TO PROGRAM '{kill}'"))).execute(&mut worker).await;
}

/// Runs alone, because the other tests use the same workers.
#[tokio::test]
#[ignore = "needs a Citus cluster; run `make test-citus`"]
async fn a_worker_that_is_killed_and_returns_loses_nothing() {
    let db = TestDatabase::create().await;
    let host = HostOptions::new().database(&db).variable("SYNCLINE_LEASE_SECONDS", "1").spawn().await;
    host.deploy(&Bundle::guest("hostile")).await;
    let mut connections = BTreeMap::new();
    for number in 0..6 {
        let id = format!("customer-{number}");
        let metadata = json!({ "steps": STEPS, "pause_ms": 25 });
        connections.insert(id.clone(), host.connect_as(&id, "hostile", metadata).await);
    }
    let ports = ports_by_connection(&db).await;
    let lost_port = ports.values().next().expect("there are connections");
    let lost_worker = records_of(&db).worker_urls().into_iter();
    let lost_worker = lost_worker.into_iter().find(|url| url.contains(&format!(":{lost_port}/")));
    let healthy =
        connections.iter().find(|(id, _)| ports[*id] != *lost_port).expect("both workers are used").1;
    let affected =
        connections.iter().find(|(id, _)| ports[*id] == *lost_port).expect("both workers are used").1;
    eventually("the syncs have saved steps", async || {
        (steps(healthy).await.len() >= 10 && steps(affected).await.len() >= 10).then_some(())
    })
    .await;

    let read = ids_of(&steps(affected).await).into_iter().map(str::to_owned).collect::<Vec<_>>();
    kill_worker(&lost_worker.expect("the worker is in the cluster"), 6).await;
    eventually("records of the lost worker are unavailable", async || {
        affected.get_records(&[("model", "Step")]).await.status.is_server_error().then_some(())
    })
    .await;
    let saved = steps(healthy).await.len();
    eventually("a sync on the other worker continues", async || {
        (steps(healthy).await.len() > saved).then_some(())
    })
    .await;
    healthy.status("steps").await;
    let still_down = affected.get_records(&[("model", "Step")]).await;
    assert!(still_down.status.is_server_error(), "the worker is still down: {}", still_down.status);

    eventually("the worker has returned", async || {
        (affected.get_records(&[("model", "Step")]).await.status == 200).then_some(())
    })
    .await;
    let kept = steps(affected).await;
    assert_eq!(ids_of(&kept)[..read.len()], read, "records that were read are still there");
    for (id, connection) in &connections {
        eventually("the sync has succeeded", async || {
            // A failed run would otherwise wait for its retry.
            db.execute("UPDATE schedules SET due_at = now() WHERE due_reason = 'retry' AND run_id IS NULL")
                .await;
            (connection.status("steps").await["status"] == "SUCCESS").then_some(())
        })
        .await;
        let records = steps(connection).await;
        assert_eq!(
            ids_of(&records),
            (0..STEPS).map(|step| format!("step-{step}")).collect::<Vec<_>>(),
            "{id}"
        );
        let added = records.iter().all(|record| record[METADATA_KEY]["last_action"] == "ADDED");
        assert!(added, "{id}: a step that is saved twice becomes an update");
    }
    assert_settled(&db).await;
}
