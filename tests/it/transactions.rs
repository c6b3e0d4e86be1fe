//! Transactions that are cancelled while they begin, as when a client disconnects.

use std::pin::pin;
use std::time::Duration;

use futures_util::poll;
use serde_json::json;
use syncline_store::{Databases, Store};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::support::{Host, SECRET_KEY, TestDatabase};

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
