//! Payloads of models with `encrypt = true`.

use serde_json::{Value, json};

use crate::support::{
    Bundle, EventStream, Host, HostOptions, METADATA_KEY, Stage, TestDatabase, delete, eventually, save,
    text, without_metadata,
};

/// Text that must not be readable in a database.
const PLAINTEXT: &str = "Maria-Musterfrau";
const ITEMS: (&str, &str) = ("model", "Item");
const ENCRYPTED_ROWS: &str = "SELECT count(*) FROM records WHERE payload_ciphertext IS NOT NULL AND payload_key = 1 AND payload IS NULL";
const PLAINTEXT_ROWS: &str = "SELECT count(*) FROM records WHERE payload_ciphertext IS NULL AND payload_key IS NULL AND payload IS NOT NULL";

fn encrypting() -> Bundle {
    Bundle::guest("hostile").replace("[models.Item]\n", "[models.Item]\nencrypt = true\n")
}

fn setting_aside() -> Bundle {
    encrypting().replace("encrypt = true\n", "encrypt = true\non_bad_record = \"set_aside\"\n")
}

async fn stage(bundle: &Bundle) -> Stage {
    Stage::of(bundle, json!({ "steps": 0 })).await
}

fn people() -> Value {
    json!([
        { "id": "a", "name": format!("{PLAINTEXT} \u{1F980}"), "count": 1 },
        { "id": "b", "name": format!("{PLAINTEXT} \"too\""), "big": 9_007_199_254_740_993_u64 },
        { "id": "c", "name": null },
    ])
}

/// Saves with an action, so that the connection's metadata does not contain the records. Returns the counts.
async fn save_all(stage: &Stage, items: &Value) -> Value {
    stage.save_raw("Item", &items.to_string()).await.expect(200).json()
}

fn counts(added: u64, updated: u64, unchanged: u64) -> Value {
    json!({ "added": added, "updated": updated, "deleted": 0, "unchanged": unchanged })
}

async fn items(stage: &Stage) -> Vec<Value> {
    stage.all(&[ITEMS]).await.into_iter().map(without_metadata).collect()
}

async fn assert_not_stored(db: &TestDatabase, text: &str) {
    let tables = db
        .texts(
            "SELECT schemaname || '.' || tablename FROM pg_tables WHERE schemaname = 'public'
             UNION ALL SELECT schemaname || '.' || viewname FROM pg_views WHERE schemaname = 'syncline_views'",
        )
        .await;
    for known in ["public.records", "syncline_views.records"] {
        assert!(tables.contains(&known.to_owned()), "{tables:?}");
    }
    let hex: String = text.bytes().map(|byte| format!("{byte:02x}")).collect();
    for table in tables {
        let rows = format!(
            "SELECT count(*) FROM {table} AS t WHERE t::text LIKE '%{text}%' OR t::text LIKE '%{hex}%'"
        );
        assert_eq!(db.number(&rows).await, 0, "rows of `{table}` with `{text}` in them");
    }
}

#[tokio::test]
async fn encrypted_payloads_are_never_stored_in_plaintext() {
    let stage = stage(&setting_aside()).await;
    let people = people();
    let bad = json!([{ "id": "bad", "count": PLAINTEXT }, { "name": PLAINTEXT }]);
    assert_eq!(save_all(&stage, &people).await, counts(3, 0, 0));
    assert_eq!(save_all(&stage, &bad).await, counts(0, 0, 0));
    assert_not_stored(&stage.db, PLAINTEXT).await;
    assert_eq!(stage.db.number(ENCRYPTED_ROWS).await, 3);
    assert_eq!(stage.db.number("SELECT count(*) FROM dead_letters WHERE payload_key = 1").await, 2);

    assert_eq!(json!(items(&stage).await), people);
    let by_ids = stage.page(&[ITEMS, ("ids", "c"), ("ids", "b")]).await.records;
    assert_eq!(
        by_ids.into_iter().map(without_metadata).collect::<Vec<_>>(),
        [&people[1], &people[2]].map(Value::clone)
    );
    let mut following = EventStream::open(&stage, &[ITEMS]).await;
    for person in people.as_array().unwrap() {
        assert_eq!(&without_metadata(following.next_record().await), person);
    }
    let letters = stage.host.get("/dead-letters").await.expect(200).json();
    let payloads: Vec<_> =
        letters["dead_letters"].as_array().unwrap().iter().map(|letter| &letter["payload"]).collect();
    assert_eq!(payloads, [&bad[0], &bad[1]]);
    let again = Host::spawn(&stage.db).await;
    assert_eq!(
        json!(
            stage
                .connection
                .through(&again)
                .all(&[ITEMS])
                .await
                .into_iter()
                .map(without_metadata)
                .collect::<Vec<_>>()
        ),
        people
    );
}

#[tokio::test]
async fn changes_of_encrypted_records_are_detected_with_keyed_hashes() {
    let stage = stage(&encrypting()).await;
    save_all(&stage, &people()).await;
    let before = stage.all(&[ITEMS]).await;
    assert_eq!(save_all(&stage, &people()).await, counts(0, 0, 3));
    assert_eq!(stage.all(&[ITEMS]).await, before);

    let changed = json!([{ "id": "a", "name": "Erika" }, { "id": "d" }]);
    assert_eq!(save_all(&stage, &changed).await, counts(1, 1, 0));
    let update = json!([{ "id": "a", "count": 7 }]).to_string();
    stage.commit(json!([{ "update": { "model": "Item", "items": update } }, delete(&["c"])])).await;
    let records = items(&stage).await;
    assert!(records.contains(&json!({ "id": "a", "name": "Erika", "count": 7 })), "{records:?}");
    assert!(records.contains(&people()[2]), "a deleted record keeps its last payload: {records:?}");

    let records = stage.all(&[ITEMS]).await;
    let until = json!({ "model": "Item", "until_cursor": records.last().unwrap()[METADATA_KEY]["cursor"] });
    assert_eq!(stage.prune(&until).await.expect(200).json(), json!({ "count": 4, "has_more": false }));
    assert_eq!(stage.db.number(ENCRYPTED_ROWS).await, 0, "a pruned payload is gone");
    assert_eq!(
        save_all(&stage, &json!([{ "id": "b", "name": "new" }, { "id": "d" }])).await,
        counts(0, 1, 1)
    );
}

#[tokio::test]
async fn equal_payloads_have_different_hashes() {
    let stage = stage(&encrypting()).await;
    let other = stage.host.connect_as("another", "hostile", json!({ "steps": 0 })).await;
    let same = json!([{ "id": "a", "name": PLAINTEXT }]).to_string();
    stage.save_raw("Item", &same).await.expect(200);
    other.save_raw("Item", &same).await.expect(200);
    let different = "SELECT count(DISTINCT payload_hash) FROM records WHERE external_id = 'a'";
    assert_eq!(stage.db.number(different).await, 2);
}

#[tokio::test]
async fn a_payload_copied_to_another_row_is_not_served() {
    let stage = stage(&encrypting()).await;
    save_all(&stage, &people()).await;
    stage
        .db
        .execute(
            "UPDATE records SET payload_ciphertext = (SELECT payload_ciphertext FROM records WHERE external_id = 'b')
             WHERE external_id = 'a'",
        )
        .await;
    for path in [&[ITEMS][..], &[ITEMS, ("ids", "a")]] {
        let answer = stage.get_records(path).await;
        assert!(!answer.text().contains(PLAINTEXT), "{}", answer.text());
        assert_eq!(answer.refusal(), (500, "internal_server_error".to_owned()));
    }
    eventually("the log names the record", async || {
        stage.host.log().contains("record `a` of stream").then_some(())
    })
    .await;
    assert_eq!(stage.page(&[ITEMS, ("ids", "b")]).await.ids(), ["b"]);
}

#[tokio::test]
async fn a_payload_copied_from_another_connection_is_not_served() {
    let stage = stage(&encrypting()).await;
    let other = stage.host.connect_as("another", "hostile", json!({ "steps": 0 })).await;
    save_all(&stage, &people()).await;
    other.save_raw("Item", &people().to_string()).await.expect(200);
    stage
        .db
        .execute(
            "UPDATE records AS mine SET payload_ciphertext = theirs.payload_ciphertext FROM records AS theirs
             WHERE mine.external_id = 'a' AND theirs.external_id = 'a' AND mine.connection_pk <> theirs.connection_pk",
        )
        .await;
    for connection in [&*stage, &other] {
        let answer = connection.get_records(&[ITEMS, ("ids", "a")]).await;
        assert_eq!(answer.refusal(), (500, "internal_server_error".to_owned()));
        assert_eq!(connection.page(&[ITEMS, ("ids", "b")]).await.ids(), ["b"]);
    }
}

#[tokio::test]
async fn a_function_reads_encrypted_records_as_they_were_saved() {
    let stage = stage(&encrypting()).await;
    save_all(&stage, &people()).await;
    let find = json!({ "model": "Item", "ids": ["b", "nobody", "a", "c"] });
    let found: Vec<Option<String>> =
        serde_json::from_slice(&stage.action("find-raw", &find).await.expect(200).body).unwrap();
    let people = people();
    let texts = [1, 0, 2].map(|index: usize| Some(people[index].to_string()));
    assert_eq!(found, [&texts[0..1], &[None], &texts[1..]].concat());

    stage
        .db
        .execute(
            "UPDATE records SET payload_ciphertext = (SELECT payload_ciphertext FROM records WHERE external_id = 'b')
             WHERE external_id = 'a'",
        )
        .await;
    let refused = stage.action("find-raw", &find).await;
    assert_eq!(refused.refusal(), (500, "internal_server_error".to_owned()));
    assert!(!refused.text().contains(PLAINTEXT), "{}", refused.text());
}

#[tokio::test]
async fn a_dead_letter_copied_to_another_row_is_not_served() {
    let stage = stage(&setting_aside()).await;
    save_all(&stage, &json!([{ "id": "a", "count": PLAINTEXT }, { "id": "b", "count": PLAINTEXT }])).await;
    stage.host.get("/dead-letters").await.expect(200);
    stage
        .db
        .execute(
            "UPDATE dead_letters SET payload_ciphertext =
                 (SELECT payload_ciphertext FROM dead_letters WHERE external_id = 'b')
             WHERE external_id = 'a'",
        )
        .await;
    let refused = stage.host.get("/dead-letters").await;
    assert_eq!(refused.refusal(), (500, "internal_server_error".to_owned()));
    assert!(!refused.text().contains(PLAINTEXT), "{}", refused.text());
    let id = refused.header("x-request-id").expect("every response has an id");
    let log = stage.host.log();
    let cause = log.lines().find(|line| line.contains("internal error")).expect("the cause is logged");
    assert!(cause.contains(id), "{cause}");
}

#[tokio::test]
async fn replacing_the_data_key_leaves_records_unchanged_and_readable() {
    let stage = stage(&encrypting()).await;
    save_all(&stage, &people()).await;
    let ciphertexts = "SELECT encode(payload_ciphertext, 'hex') FROM records ORDER BY external_id";
    let before = stage.db.texts(ciphertexts).await;
    stage.db.command(&["keys", "rotate-data"]).run();
    assert_eq!(stage.db.number("SELECT sealed_key_version::bigint FROM record_keys").await, 2);
    assert_eq!(stage.db.texts(ciphertexts).await, before);
    let after = Host::spawn(&stage.db).await;
    for host in [&stage.host, &after] {
        assert_eq!(stage.connection.through(host).all(&[ITEMS]).await.len(), 3);
    }
    assert_eq!(save_all(&stage, &people()).await, counts(0, 0, 3));
}

#[tokio::test]
async fn deleting_an_environment_deletes_its_record_key() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    let account = host.with_key(Some(&host.create_key(&db, "account", "account")));
    let made = account.post("/environments", &json!({ "name": "staging" })).await.expect(200).json();
    let key = host.command(&db, &["keys", "create", "staging", "--environment", "staging"]);
    let staging = host.with_key(Some(key.trim()));
    staging.deploy(&encrypting()).await;
    let connection = staging.connect("hostile", json!({ "steps": 0 })).await;
    connection.save_raw("Item", &people().to_string()).await.expect(200);
    let keys = "SELECT count(*) FROM record_keys";
    assert_eq!(db.number(keys).await, 1);
    account.delete(&format!("/environments/{}", text(&made["data"]["id"]))).await.expect(204);
    eventually("the key is deleted", async || (db.number(keys).await == 0).then_some(())).await;
}

#[tokio::test]
async fn enabling_encryption_converts_records_on_their_next_save() {
    let stage = stage(&Bundle::guest("hostile")).await;
    save_all(&stage, &people()).await;
    let before = stage.all(&[ITEMS]).await;
    let until = json!({ "model": "Item", "until_cursor": before[0][METADATA_KEY]["cursor"] });
    stage.prune(&until).await.expect(200);
    let before = stage.all(&[ITEMS]).await;
    for (bundle, stored) in [(encrypting(), ENCRYPTED_ROWS), (Bundle::guest("hostile"), PLAINTEXT_ROWS)] {
        stage.host.deploy(&bundle).await;
        assert_eq!(stage.all(&[ITEMS]).await, before);
        assert_eq!(save_all(&stage, &people()).await, counts(0, 0, 3));
        assert_eq!(stage.db.number(stored).await, 2, "{stored}");
        assert_eq!(stage.all(&[ITEMS]).await, before, "positions and pruned records are unchanged");
    }
    stage.host.deploy(&encrypting()).await;
    assert_eq!(save_all(&stage, &json!([{ "id": "a", "name": "new" }])).await, counts(0, 1, 0));
}

#[tokio::test]
async fn record_keys_are_in_the_control_database_and_payloads_in_the_other() {
    let (control, records) = (TestDatabase::create().await, TestDatabase::create().await);
    let options =
        HostOptions::new().database(&control).variable("SYNCLINE_RECORDS_DATABASE_URL", &records.url());
    let host = options.spawn().await;
    host.deploy(&encrypting()).await;
    let connection = host.connect("hostile", json!({ "steps": 0 })).await;
    connection.save_raw("Item", &people().to_string()).await.expect(200);
    connection.commit(json!([save(&json!([{ "id": "d" }]))])).await;
    let read: Vec<_> = connection.all(&[ITEMS]).await.into_iter().map(without_metadata).collect();
    assert_eq!(json!(read[..3]), people());
    assert_eq!((control.number(ENCRYPTED_ROWS).await, records.number(ENCRYPTED_ROWS).await), (0, 4));
    let keys = "SELECT count(*) FROM record_keys";
    assert_eq!((control.number(keys).await, records.number(keys).await), (1, 0));
    assert_not_stored(&control, PLAINTEXT).await;
    assert_not_stored(&records, PLAINTEXT).await;
}
