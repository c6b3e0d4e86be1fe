//! Transactions that are cancelled while they begin, as when a client disconnects.

use std::pin::pin;
use std::time::Duration;

use futures_util::poll;
use serde_json::json;
use syncline_store::{Databases, Store};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::support::{Host, SECRET_KEY, Stage, TestDatabase, eventually};

const ROUNDS: i64 = 20;

#[tokio::test]
async fn a_cancelled_begin_leaves_no_open_transaction() {
    let db = TestDatabase::create().await;
    db.execute("CREATE TABLE noted (name text)").await;
    let databases = Databases { control: db.url().parse().expect("it is a URL"), records: None };
    let store = Store::open(databases, 4).await.expect("it can be opened");
    for _ in 0..ROUNDS {
        // Each is cancelled at once. Some have begun by then.
        drop(poll!(pin!(store.begin())));
        drop(poll!(pin!(store.begin_snapshot())));
        drop(poll!(pin!(store.begin_records())));
        for _ in 0..4 {
            let mut conn = store.connect().await.expect("there is a connection");
            let noted = sqlx::query("INSERT INTO noted VALUES ('once')").execute(&mut *conn).await;
            noted.expect("it is written");
        }
    }
    assert_eq!(db.number("SELECT count(*) FROM noted").await, ROUNDS * 4);
    store.close().await;
}

/// sqlx does not track the responses to a `COPY`, so the next user of the connection could read them.
#[tokio::test]
async fn a_copy_that_is_cancelled_leaves_a_usable_connection() {
    let stage = Stage::hostile().await;
    stage.save_raw("Item", r#"[{"id":"before"}]"#).await.expect(200);
    // A row waits after the host has sent all rows, so the host is cancelled while it waits for the response.
    stage
        .db
        .execute(
            "CREATE FUNCTION wait_for_test() RETURNS trigger LANGUAGE plpgsql AS
                 $$ BEGIN PERFORM pg_advisory_xact_lock_shared(7); RETURN NEW; END $$;
             CREATE TRIGGER wait_for_test BEFORE INSERT ON records FOR EACH ROW EXECUTE FUNCTION wait_for_test()",
        )
        .await;
    let mut locker = stage.db.connect().await;
    for round in 0..5 {
        sqlx::raw_sql("BEGIN; SELECT pg_advisory_xact_lock(7)")
            .execute(&mut locker)
            .await
            .expect("it is locked");
        let record = format!(r#"[{{"id":"cancelled {round}"}}]"#);
        let copying = "SELECT count(*) FROM pg_stat_activity
                       WHERE query LIKE 'COPY%' AND wait_event_type = 'Lock' AND datname = current_database()";
        tokio::select! {
            answer = stage.save_raw("Item", &record) => panic!("it was not locked: {}", answer.text()),
            () = eventually("the records are being copied", async || {
                (stage.db.number(copying).await == 1).then_some(())
            }) => {}
        }
        // The host notices that its client is gone.
        eventually("the run is closed", async || {
            let running = stage.host.get("/runs?state=running").await.expect(200).json();
            running["runs"].as_array().is_some_and(Vec::is_empty).then_some(())
        })
        .await;
        sqlx::raw_sql("ROLLBACK").execute(&mut locker).await.expect("it is unlocked");
        // Every connection of the pool is used.
        let saves = (0..20).map(|number| {
            let record = format!(r#"[{{"id":"after {round} {number}"}}]"#);
            let stage = &stage;
            async move { stage.save_raw("Item", &record).await.expect(200) }
        });
        futures_util::future::join_all(saves).await;
    }
    let records = stage.all(&[("model", "Item")]).await;
    assert_eq!(records.len(), 1 + 5 * 20, "a cancelled batch is not saved");
}

#[tokio::test]
async fn acknowledged_writes_survive_disconnecting_clients() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    let integration = json!({ "provider": "stripe-api-key", "unique_key": "shop" });
    host.post("/integrations", &integration).await.expect(200);
    let connection = json!({
        "provider_config_key": "shop", "connection_id": "c1",
        "credentials": { "type": "BASIC", "username": "planted-key", "password": "" },
    });
    host.post("/connections", &connection).await.expect(201);
    let address = host.base_url().trim_start_matches("http://").to_owned();
    let body = r#"{"tags":{"a":"b"}}"#;
    let request = format!(
        "PATCH /connections/c1?provider_config_key=shop HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {SECRET_KEY}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let hang_up = async {
        for number in 0..200 {
            let mut stream = TcpStream::connect(&address).await.expect("the host listens");
            stream.write_all(request.as_bytes()).await.expect("the host reads");
            tokio::time::sleep(Duration::from_micros(number % 20 * 200)).await;
        }
    };
    let make = async {
        for number in 0..100 {
            let made = json!({ "provider": "stripe-api-key", "unique_key": format!("made-{number}") });
            host.post("/integrations", &made).await.expect(200);
        }
    };
    futures_util::future::join(hang_up, make).await;
    let made = "SELECT count(*) FROM integrations WHERE unique_key LIKE 'made-%'";
    assert_eq!(db.number(made).await, 100);
}
