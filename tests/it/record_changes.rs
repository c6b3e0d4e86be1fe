//! `GET /records/changes`: following records as they change.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::support::{
    Answer, Connection, EventStream, Follower, Host, HostOptions, Page, Stage, TestDatabase, cursor_of,
    delete, eventually, query, save, text,
};

const ITEMS: (&str, &str) = ("model", "Item");

async fn save_items(connection: &Connection, ids: &[&str]) {
    let items: Value = ids.iter().map(|id| json!({ "id": id })).collect();
    connection.save_raw("Item", &items.to_string()).await.expect(200);
}

async fn changes(connection: &Connection, parameters: &[(&str, &str)]) -> Answer {
    connection.request("GET", &format!("/records/changes?{}", query(parameters))).send().await
}

async fn stage_with(name: &str, value: &str) -> Stage {
    let db = TestDatabase::create().await;
    let host = HostOptions::new().database(&db).variable(name, value).spawn().await;
    Stage::at(host, db).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_published_client_continues_at_another_host() {
    let mut stage = Stage::hostile().await;
    let other = Host::spawn(&stage.db).await;
    let writer = stage.connection.through(&other);
    // No record of the model exists when the reader starts.
    let mut reader = Follower::start(&stage.host, &stage.connection);
    let caught_up = reader.next_of("caught-up").await;
    assert_eq!(caught_up["data"], json!({ "cursor": null }));

    save_items(&writer, &["a", "b", "c"]).await;
    reader.expect_records(&["a", "b", "c"]).await;
    save_items(&stage.connection, &["d"]).await;
    reader.expect_records(&["d"]).await;

    reader.move_to(&other);
    stage.host.kill();
    save_items(&writer, &["e", "f"]).await;
    reader.next_of("error").await;
    reader.expect_records(&["e", "f"]).await;
    save_items(&writer, &["g"]).await;
    reader.expect_records(&["g"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_receives_a_commit_of_any_host_within_a_second() {
    let stage = Stage::hostile().await;
    let other = Host::spawn(&stage.db).await;
    let mut reader = Follower::start(&stage.host, &stage.connection);
    reader.next_of("caught-up").await;
    for (place, writer) in [
        ("the same host", stage.connection.through(&stage.host)),
        ("another host", stage.connection.through(&other)),
    ] {
        let mut waits = Vec::new();
        for number in 0..15 {
            let id = format!("{place}-{number}");
            save_items(&writer, &[&id]).await;
            let committed_at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as i64;
            waits.push(reader.expect_records(&[&id]).await[0] - committed_at);
        }
        waits.sort_unstable();
        let (median, longest) = (waits[waits.len() / 2], waits[waits.len() - 1]);
        eprintln!("written at {place}: received after {median} ms (median), {longest} ms at most");
        // A host without notifications would poll every five seconds.
        assert!(longest < 1_000, "{place}: {waits:?}");
    }
}

#[tokio::test]
async fn a_long_poll_waits_for_a_page() {
    let stage = Stage::hostile().await;
    let nothing = changes(&stage, &[ITEMS, ("wait", "0")]).await.expect(200);
    assert_eq!(nothing.json(), json!({ "records": [], "next_cursor": null }));
    let (page, ()) = tokio::join!(changes(&stage, &[ITEMS, ("wait", "30")]), async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        save_items(&stage, &["a", "b", "c"]).await;
    });
    let page = Page::read(&page.expect(200));
    assert_eq!(page.ids(), ["a", "b", "c"]);
    let cursor = page.next_cursor.expect("there is always a cursor");
    assert_eq!(cursor, cursor_of(&page.records[2]));

    let began = Instant::now();
    let quiet = changes(&stage, &[ITEMS, ("wait", "1"), ("cursor", &cursor)]).await.expect(200);
    assert!(began.elapsed() >= Duration::from_secs(1));
    assert_eq!(quiet.json(), json!({ "records": [], "next_cursor": cursor }));

    let request =
        stage.request("GET", "/records/changes?model=Item&limit=2").header("Accept", "application/json");
    let first = Page::read(&request.send().await.expect(200));
    assert_eq!(first.ids(), ["a", "b"]);
    let next = first.next_cursor.unwrap();
    let last_event = stage.request("GET", "/records/changes?model=Item&wait=0&cursor=behind-the-header");
    let second = Page::read(&last_event.header("Last-Event-ID", &next).send().await.expect(200));
    assert_eq!(second.ids(), ["c"]);
}

#[tokio::test]
async fn a_cursor_advances_past_filtered_records() {
    let stage = Stage::hostile().await;
    save_items(&stage, &["a", "b"]).await;
    let page = changes(&stage, &[ITEMS, ("wait", "0"), ("filter", "deleted")]).await.expect(200);
    let page = Page::read(&page);
    assert_eq!(page.ids(), [""; 0]);
    let last = stage.page(&[ITEMS]).await.records.remove(1);
    assert_eq!(page.next_cursor.as_deref(), Some(cursor_of(&last)));
    stage.commit(json!([delete(&["a"]), save(&json!([{ "id": "c" }]))])).await;
    let cursor = page.next_cursor.unwrap();
    let page = changes(&stage, &[ITEMS, ("wait", "0"), ("filter", "deleted"), ("cursor", &cursor)]).await;
    assert_eq!(Page::read(&page.expect(200)).ids(), ["a"]);
}

#[tokio::test]
async fn records_are_streamed_exactly_as_they_were_sent() {
    let stage = Stage::hostile().await;
    // Line breaks between tokens, which must not appear within an event's line, and a number beyond double precision.
    let items = "[{\"id\":\r\n\"a\",\n\t\"extra\": [1,\r2],\n\"name\": \"two\\nlines\", \"big\": 12345678901234567890123}]";
    stage.save_raw("Item", items).await.expect(200);
    let mut events = EventStream::open(&stage, &[ITEMS]).await;
    let block = events.next().await.unwrap();
    assert!(block.contains("12345678901234567890123"), "{block}");
    let mut again = EventStream::open(&stage, &[ITEMS]).await;
    let mut of_page = stage.page(&[ITEMS]).await.records;
    assert_eq!(again.next_record().await, of_page.remove(0));
}

#[tokio::test]
async fn a_missed_notification_is_recovered_and_idle_streams_have_heartbeats() {
    let stage = Stage::hostile().await;
    save_items(&stage, &["a"]).await;
    let mut events = EventStream::open(&stage, &[ITEMS]).await;
    assert_eq!(events.catch_up().await, ["a"]);
    // Simulates a host that dies between its commit and its notification.
    stage
        .db
        .execute(
            "UPDATE records SET position = position + 1, last_action = 1;
             UPDATE streams SET last_position = last_position + 1",
        )
        .await;
    assert_eq!(events.next_record().await["id"], "a");
    let block = events.next().await.unwrap();
    assert_eq!(block, ": no changes");
}

#[tokio::test]
async fn a_stream_ends_when_its_key_is_revoked() {
    let stage = Stage::hostile().await;
    let key = stage.host.create_key(&stage.db, "reader", "read-only");
    let reader = stage.connection.through(&stage.host.with_key(Some(&key)));
    let mut events = EventStream::open(&reader, &[ITEMS]).await;
    events.catch_up().await;
    let began = Instant::now();
    stage.host.command(&stage.db, &["keys", "revoke", "reader"]);
    events.wait_for_end().await;
    assert!(began.elapsed() < Duration::from_secs(8), "the stream ended before the next heartbeat");
    assert_eq!(changes(&reader, &[ITEMS]).await.refusal(), (401, "unknown_account".to_owned()));
}

#[tokio::test]
async fn a_stream_ends_when_its_connection_is_deleted() {
    let stage = Stage::hostile().await;
    let other = Host::spawn(&stage.db).await;
    let mut here = EventStream::open(&stage.connection, &[ITEMS]).await;
    let mut there = EventStream::open(&stage.connection.through(&other), &[ITEMS]).await;
    here.catch_up().await;
    there.catch_up().await;
    let began = Instant::now();
    stage.host.delete("/connections/customer-1?provider_config_key=hostile").await.expect(200);
    here.wait_for_end().await;
    there.wait_for_end().await;
    assert!(began.elapsed() < Duration::from_secs(8), "the streams ended before the next heartbeat");
    assert_eq!(changes(&stage, &[ITEMS]).await.refusal(), (404, "unknown_connection".to_owned()));
}

#[tokio::test]
async fn a_host_that_stops_ends_its_streams() {
    let mut stage = Stage::hostile().await;
    let mut events = EventStream::open(&stage.connection, &[ITEMS]).await;
    events.catch_up().await;
    let waiting = stage.connection.through(&stage.host);
    let waiting = tokio::spawn(async move { changes(&waiting, &[ITEMS, ("wait", "60")]).await });
    tokio::time::sleep(Duration::from_millis(200)).await;
    let began = Instant::now();
    stage.host.request_stop();
    events.wait_for_end().await;
    assert_eq!(waiting.await.unwrap().expect(200).json(), json!({ "records": [], "next_cursor": null }));
    stage.host.wait_until_stopped().await;
    assert!(began.elapsed() < Duration::from_secs(9), "the host stopped before its timeout");
}

#[tokio::test]
async fn readers_beyond_the_limit_are_rejected() {
    let stage = stage_with("SYNCLINE_MAX_CHANGE_READERS", "2").await;
    let first = EventStream::open(&stage, &[ITEMS]).await;
    let _second = EventStream::open(&stage, &[ITEMS]).await;
    let refused = changes(&stage, &[ITEMS, ("wait", "0")]).await;
    assert_eq!(refused.refusal(), (429, "too_many_readers".to_owned()));
    assert_eq!(refused.header("retry-after"), Some("5"));
    drop(first);
    eventually("the permit is free again", async || {
        (changes(&stage, &[ITEMS, ("wait", "0")]).await.status == 200).then_some(())
    })
    .await;
}

#[tokio::test]
async fn idle_readers_hold_no_database_connection_and_share_one_listener() {
    let stage = stage_with("SYNCLINE_DATABASE_CONNECTIONS", "4").await;
    let mut readers = Vec::new();
    for _ in 0..60 {
        let mut events = EventStream::open(&stage, &[ITEMS]).await;
        events.catch_up().await;
        readers.push(events);
    }
    let ours = "FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'syncline'";
    assert!(stage.db.number(&format!("SELECT count(*) {ours}")).await <= 4);
    assert_eq!(stage.db.number(&format!("SELECT count(*) {ours} AND query ILIKE 'LISTEN%'")).await, 1);
    save_items(&stage, &["a"]).await;
    for events in &mut readers {
        assert_eq!(events.next_record().await["id"], "a");
    }
}

#[tokio::test]
async fn readers_that_do_not_read_use_little_memory() {
    const READERS: usize = 16;
    let stage = Stage::hostile().await;
    let name = "x".repeat(500_000);
    for number in 0..10 {
        let items: Value =
            (0..6).map(|part| json!({ "id": format!("{number}-{part}"), "name": name })).collect();
        stage.save_raw("Item", &items.to_string()).await.expect(200);
    }
    let before = stage.host.peak_memory_mb();
    let mut readers = Vec::new();
    for _ in 0..READERS {
        readers.push(EventStream::open(&stage, &[ITEMS]).await);
    }
    // A reader that does read gets all 30 MB meanwhile.
    assert_eq!(EventStream::open(&stage, &[ITEMS]).await.catch_up().await.len(), 60);
    let grown = stage.host.peak_memory_mb() - before;
    assert!(grown < 200, "{READERS} readers used {grown} MB of the 480 MB that wait for them");
}

#[tokio::test]
async fn invalid_requests_are_rejected_with_the_reason() {
    let stage = Stage::hostile().await;
    save_items(&stage, &["a"]).await;
    stage.commit(json!([save(&json!([{ "id": "b" }]))])).await;
    for (parameters, named) in [
        (&[][..], "model"),
        (&[ITEMS, ("wait", "61")], "wait"),
        (&[ITEMS, ("wait", "-1")], "wait"),
        (&[ITEMS, ("wait", "soon")], "wait"),
        (&[ITEMS, ("limit", "5")], "limit"),
        (&[ITEMS, ("wait", "0"), ("limit", "0")], "limit"),
        (&[ITEMS, ("filter", "changed")], "filter"),
        (&[ITEMS, ("modified_after", "2026-03-01T09:00:00Z")], "modified_after"),
        (&[("model", "no name")], "model"),
    ] {
        let answer = changes(&stage, parameters).await;
        assert_eq!(answer.refusal(), (400, "invalid_query_params".to_owned()), "{parameters:?}");
        let path = &answer.json()["error"]["errors"][0]["path"];
        assert_eq!(path.get(0).map_or("", text), named, "{parameters:?}: {}", answer.text());
    }
    let events =
        stage.request("GET", "/records/changes?model=Item&wait=5").header("Accept", "text/event-stream");
    assert_eq!(events.send().await.refusal(), (400, "invalid_query_params".to_owned()));
    for (parameters, refusal) in [
        (&[("model", "Unicorn")][..], (404, "unknown_model")),
        (&[ITEMS, ("cursor", "")], (400, "invalid_cursor")),
        (&[ITEMS, ("cursor", "nonsense")], (400, "invalid_cursor")),
    ] {
        let answer = changes(&stage, parameters).await;
        assert_eq!(answer.refusal(), (refusal.0, refusal.1.to_owned()), "{parameters:?}");
    }
    let broken = stage.request("GET", "/records/changes?model=Item").header("Last-Event-ID", "7");
    assert_eq!(broken.send().await.refusal(), (400, "invalid_cursor".to_owned()));
    let missing = stage.with_id("nobody");
    assert_eq!(changes(&missing, &[ITEMS]).await.refusal(), (404, "unknown_connection".to_owned()));
    let create = ["keys", "create", "proxy", "--scopes", "environment:proxy"];
    let key = stage.host.command(&stage.db, &create).trim().to_owned();
    let proxy_only = stage.connection.through(&stage.host.with_key(Some(&key)));
    assert_eq!(changes(&proxy_only, &[ITEMS]).await.refusal(), (403, "forbidden".to_owned()));
    // A cursor of an existing stream, used for a model without records.
    let own = stage.page(&[ITEMS]).await.records.remove(0);
    let elsewhere = changes(&stage, &[("model", "Step"), ("cursor", cursor_of(&own))]).await;
    assert_eq!(elsewhere.refusal(), (400, "invalid_cursor".to_owned()));
    let page = stage.get_records(&[("model", "Step"), ("cursor", cursor_of(&own))]).await;
    assert_eq!(page.refusal(), (400, "invalid_cursor".to_owned()));
}
