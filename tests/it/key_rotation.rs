//! Replacing encryption keys and data keys while hosts serve requests, and the constraints of the database.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection as _};

use crate::support::{Api, ENCRYPTION_KEY, Host, HostOptions, TestDatabase, eventually};

fn credentials(connection: &str) -> Value {
    json!({ "type": "BASIC", "username": format!("user of {connection}"), "password": "" })
}

async fn import(api: &Api, connection: &str) {
    let body = json!({
        "connection_id": connection, "provider_config_key": "pay", "credentials": credentials(connection),
    });
    api.post("/connections", &body).await.expect(201);
}

/// Creates an integration with the given number of connections, and a variable.
async fn create_connections(api: &Api, connections: usize) {
    api.post("/integrations", &json!({ "provider": "stripe-api-key", "unique_key": "pay" }))
        .await
        .expect(200);
    for number in 0..connections {
        import(api, &format!("c{number}")).await;
    }
    api.put("/environment-variables/NAME", &json!({ "value": "of the environment" })).await.expect(204);
}

/// Checks that a connection and the variables can be read as they were stored.
async fn check(api: &Api, connection: &str) {
    let path = format!("/connections/{connection}?provider_config_key=pay");
    let shown = api.get(&path).await.expect(200).json();
    assert_eq!(shown["credentials"], credentials(connection));
    let variables = api.get("/environment-variables").await.expect(200).json();
    assert_eq!(variables, json!([{ "name": "NAME", "value": "of the environment" }]));
}

/// Reads and writes through a host until it is stopped. Returns the number of rounds.
async fn work(api: Api, name: &'static str, connections: usize, stop: Arc<AtomicBool>) -> usize {
    let mut rounds = 0;
    while !stop.load(Ordering::Relaxed) {
        check(&api, &format!("c{}", rounds % connections)).await;
        import(&api, &format!("{name}{rounds}")).await;
        check(&api, &format!("{name}{rounds}")).await;
        rounds += 1;
    }
    rounds
}

const OLD_VALUES: &str = "SELECT (SELECT count(*) FROM connections WHERE sealed_credentials_version < 2)
    + (SELECT count(*) FROM environment_variables WHERE sealed_value_version < 2)
    + (SELECT count(*) FROM outbound_webhook_signing_keys WHERE sealed_key_version < 2)";
const VERSIONS: &str = "SELECT string_agg(version::text, ',' ORDER BY version) FROM data_key_versions";

#[tokio::test(flavor = "multi_thread")]
async fn a_data_key_is_rotated_while_two_hosts_read_and_write() {
    let db = TestDatabase::create().await;
    let hosts = [Host::spawn(&db).await, Host::spawn(&db).await];
    create_connections(&hosts[0], 250).await;
    let signing_keys = hosts[0].get("/environment").await.expect(200).json()["data"].clone();
    let ciphertexts = "SELECT encode(sealed_credentials, 'hex') FROM connections WHERE connection_id = 'c7'";
    let before = db.texts(ciphertexts).await;
    let stop = Arc::new(AtomicBool::new(false));
    let workers = [
        tokio::spawn(work((*hosts[0]).clone(), "first", 250, Arc::clone(&stop))),
        tokio::spawn(work((*hosts[1]).clone(), "second", 250, Arc::clone(&stop))),
    ];
    for version in 2..=3 {
        let mut rotation = db.command(&["keys", "rotate-data"]).spawn();
        let status = eventually("the data key is replaced", async || rotation.try_wait().unwrap()).await;
        assert!(status.success(), "{}", std::io::read_to_string(rotation.stderr.take().unwrap()).unwrap());
        assert_eq!(db.texts(VERSIONS).await, [version.to_string()], "the previous version is deleted");
    }
    stop.store(true, Ordering::Relaxed);
    for worker in workers {
        assert!(worker.await.expect("every read and write succeeded") > 1);
    }
    assert_eq!(db.number(OLD_VALUES).await, 0);
    assert_ne!(db.texts(ciphertexts).await, before);
    let after = Host::spawn(&db).await;
    for api in [&*hosts[0], &*hosts[1], &*after] {
        check(api, "c249").await;
        assert_eq!(api.get("/environment").await.expect(200).json()["data"], signing_keys);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_rotation_is_harmless_and_can_be_continued() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    create_connections(&host, 30).await;
    // A locked row stops the command in the middle.
    let mut holder = db.connect().await;
    let mut held = holder.begin().await.unwrap();
    sqlx::query("SELECT pk FROM connections WHERE connection_id = 'c15' FOR UPDATE")
        .fetch_one(&mut *held)
        .await
        .unwrap();
    let mut rotation = db.command(&["keys", "rotate-data"]).spawn();
    eventually("the command is in the middle", async || {
        let done = "SELECT count(*) FROM connections WHERE sealed_credentials_version = 2";
        let waits = "SELECT count(*) FROM pg_locks WHERE NOT granted";
        (db.number(done).await > 0 && db.number(waits).await > 0).then_some(())
    })
    .await;
    rotation.kill().unwrap();
    rotation.wait().unwrap();
    held.rollback().await.unwrap();
    assert!(db.number(OLD_VALUES).await > 0);
    assert_eq!(db.texts(VERSIONS).await, ["1,2"], "both versions are kept while they are needed");
    let second = Host::spawn(&db).await;
    for number in 0..30 {
        check(&host, &format!("c{number}")).await;
        check(&second, &format!("c{number}")).await;
    }
    db.command(&["keys", "rotate-data"]).run();
    assert_eq!(db.texts(VERSIONS).await, ["2"]);
    assert_eq!(db.number(OLD_VALUES).await, 0);
    check(&host, "c15").await;
    check(&second, "c15").await;
}

#[tokio::test]
async fn an_encryption_key_is_replaced_without_downtime() {
    let db = TestDatabase::create().await;
    let new = format!("new:{}", STANDARD.encode([9; 32]));
    let start = async |keys: &str| {
        HostOptions::new().database(&db).variable("SYNCLINE_ENCRYPTION_KEY", keys).spawn().await
    };
    let mut old = start(ENCRYPTION_KEY).await;
    create_connections(&old, 3).await;
    let both = format!("{new},{ENCRYPTION_KEY}");
    let refused = db.command(&["keys", "rotate-encryption"]).encryption_key(&both).run_failing();
    assert!(refused.contains("hosts without the encryption key `new`: 1;"), "{refused}");

    let host = start(&both).await;
    check(&host, "c1").await;
    old.stop().await;
    let rotated = db.command(&["keys", "rotate-encryption"]).encryption_key(&both).run();
    assert!(rotated.starts_with("encrypted 1 data keys again"), "{rotated}");
    let rotated = db.command(&["keys", "rotate-encryption"]).encryption_key(&both).run();
    assert!(rotated.starts_with("encrypted 0 data keys again"), "the command can be repeated: {rotated}");
    let audited =
        "SELECT environment_name || ' ' || details::text FROM audit_log WHERE action = 'data_key.rewrapped'";
    assert_eq!(db.texts(audited).await, [r#"dev {"version": 1, "encryption_key": "new"}"#]);
    check(&host, "c1").await;

    let only_new = start(&new).await;
    check(&only_new, "c2").await;
    import(&only_new, "late").await;
    check(&host, "late").await;
    let (status, log) = HostOptions::new().database(&db).spawn_and_wait().await;
    assert!(!status.success());
    assert!(log.contains("this database needs the encryption key `new`"), "{log}");
}

#[tokio::test]
async fn encrypted_values_moved_to_another_place_are_rejected() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    create_connections(&host, 3).await;
    db.execute(
        "UPDATE connections c SET sealed_credentials = o.sealed_credentials FROM connections o
         WHERE (c.connection_id, o.connection_id) IN (('c0', 'c1'), ('c1', 'c0'))",
    )
    .await;
    db.execute(
        "UPDATE connections SET sealed_credentials = (SELECT sealed_value FROM environment_variables)
         WHERE connection_id = 'c2'",
    )
    .await;
    for connection in ["c0", "c1", "c2"] {
        let answer = host.get(&format!("/connections/{connection}?provider_config_key=pay")).await;
        assert_eq!(answer.status, 500, "{}", answer.text());
        assert!(!answer.text().contains("user of"), "{}", answer.text());
    }
    // A value that cannot be decrypted is reported and left unchanged, and its key is kept.
    let refused = db.command(&["keys", "rotate-data"]).run_failing();
    assert!(refused.contains("3 stored secrets of environment `dev` cannot be decrypted"), "{refused}");
    assert!(refused.contains("connections.sealed_credentials of "), "{refused}");
    assert_eq!(db.texts(VERSIONS).await, ["1,2"]);
    let variables = host.get("/environment-variables").await.expect(200).json();
    assert_eq!(variables[0]["value"], "of the environment");
}

#[tokio::test]
async fn the_database_rejects_missing_data_keys() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    create_connections(&host, 1).await;
    let mut conn = db.connect().await;
    for sql in [
        "DELETE FROM data_key_versions",
        "UPDATE connections SET sealed_credentials = '\\x0200000009' || substr(sealed_credentials, 6)",
    ] {
        let error = sqlx::query(AssertSqlSafe(sql)).execute(&mut conn).await.expect_err(sql);
        let error = error.into_database_error().expect("the database refuses it");
        assert!(error.is_foreign_key_violation(), "{error}");
    }
    check(&host, "c0").await;
}

/// Values in a column that rotation does not know would be lost together with their key.
#[tokio::test]
async fn every_encrypted_column_is_registered_for_rotation() {
    let db = TestDatabase::create().await;
    let _host = Host::spawn(&db).await;
    let undeclared = "SELECT table_name || '.' || column_name FROM information_schema.columns c
        WHERE table_schema = 'public' AND data_type = 'bytea' AND column_name LIKE 'sealed%'
          AND NOT EXISTS (SELECT FROM sealed_columns s
                          WHERE s.table_name = c.table_name AND s.column_name = c.column_name)";
    let none: [String; 0] = [];
    assert_eq!(
        db.texts(undeclared).await,
        none,
        "every encrypted column needs a call of `declare_sealed` in its migration"
    );
}
