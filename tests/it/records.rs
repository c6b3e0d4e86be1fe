//! Reading records: pages, filters, cursors.

use std::collections::BTreeSet;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use sqlx::Connection;

use crate::support::{
    Bundle, HostOptions, METADATA_KEY, Page, SlowProvider, Stage, TestDatabase, cursor_of, delete,
    eventually, ids_of, masked, save, text, without_metadata,
};

fn items(ids: &[&str]) -> Value {
    ids.iter().map(|id| json!({ "id": id })).collect()
}

#[tokio::test]
async fn a_record_has_its_fields_and_its_metadata() {
    let stage = Stage::hostile().await;
    stage.commit(json!([save(&json!([{ "id": "a", "name": "Ada", "count": 3 }]))])).await;
    let page = stage.get_records(&[("model", "Item")]).await.expect(200);
    assert_eq!(page.header("content-type"), Some("application/json"));
    assert_eq!(
        masked(page.json()),
        json!({
            "records": [{
                "id": "a", "name": "Ada", "count": 3,
                METADATA_KEY: {
                    "first_seen_at": "…", "last_modified_at": "…", "last_action": "ADDED",
                    "deleted_at": null, "pruned_at": null, "cursor": "…",
                },
            }],
            "next_cursor": null,
        })
    );
    let metadata = &page.json()["records"][0][METADATA_KEY];
    assert_eq!(metadata["first_seen_at"], metadata["last_modified_at"]);
    let time = text(&metadata["first_seen_at"]);
    assert_eq!(time.len(), "2026-03-01T09:00:00.000Z".len(), "{time} has milliseconds and is in UTC");
    assert!(time.ends_with('Z') && chrono::DateTime::parse_from_rfc3339(time).is_ok(), "{time}");
}

#[tokio::test]
async fn floats_read_by_a_guest_are_saved_as_the_provider_sent_them() {
    let provider = SlowProvider::listen().await;
    let stage = Stage::at_slow_provider(&provider, |bundle| bundle).await;
    // The seed is fixed, so that the values are always the same.
    let mut random = StdRng::seed_from_u64(1);
    let mut sent = vec!["0.09815842978200795".to_owned()];
    sent.extend((1..300).map(|_| format!("{:?}", random.random::<f64>())));
    let listed = sent.iter().enumerate().map(|(id, share)| format!(r#"{{"id":"{id}","share":{share}}}"#));
    let listed = format!("[{}]", listed.collect::<Vec<_>>().join(","));
    let url = json!("/measured");
    let answer = async { provider.next_request().await.answer(&listed).await };
    let (saved, ()) = tokio::join!(stage.action("save-measured", &url), answer);
    saved.expect(200);
    let records = stage.get_records(&[("model", "Item"), ("limit", "500")]).await.expect(200).text();
    let changed: Vec<_> =
        sent.iter().filter(|share| !records.contains(&format!(r#""share":{share},"#))).collect();
    assert!(changed.is_empty(), "{} of {} floats were changed: {changed:?}", changed.len(), sent.len());
}

#[tokio::test]
async fn pages_have_no_gaps_or_overlaps() {
    let stage = Stage::numbers(25).await;
    let mut ids = Vec::new();
    let mut sizes = Vec::new();
    let mut cursor = None;
    loop {
        let mut parameters = vec![("model", "Number"), ("limit", "10")];
        parameters.extend(cursor.as_deref().map(|cursor| ("cursor", cursor)));
        let page = stage.page(&parameters).await;
        sizes.push(page.records.len());
        ids.extend(page.ids().into_iter().map(str::to_owned));
        let Some(next) = page.next_cursor else { break };
        cursor = Some(next);
    }
    assert_eq!(sizes, [10, 10, 5]);
    assert_eq!(ids, (0..25).map(|number| format!("number-{number}")).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_full_last_page_has_no_next_cursor() {
    let stage = Stage::numbers(20).await;
    let first = stage.page(&[("model", "Number"), ("limit", "10")]).await;
    let cursor = first.next_cursor.unwrap();
    let second = stage.page(&[("model", "Number"), ("limit", "10"), ("cursor", &cursor)]).await;
    assert_eq!((second.records.len(), second.next_cursor), (10, None));
}

#[tokio::test]
async fn a_page_has_100_records_by_default_and_500_at_most() {
    let stage = Stage::numbers(510).await;
    for (limit, size) in
        [(None, 100), (Some("1"), 1), (Some("500"), 500), (Some("501"), 500), (Some("10000"), 500)]
    {
        let mut parameters = vec![("model", "Number")];
        parameters.extend(limit.map(|limit| ("limit", limit)));
        let page = stage.page(&parameters).await;
        assert_eq!(page.records.len(), size, "limit {limit:?}");
        assert!(page.next_cursor.is_some(), "limit {limit:?}");
    }
}

#[tokio::test]
async fn an_invalid_limit_is_rejected() {
    let stage = Stage::hostile().await;
    for limit in ["0", "-1", "1.5", "ten", ""] {
        let answer = stage.get_records(&[("model", "Item"), ("limit", limit)]).await;
        assert_eq!(answer.refusal(), (400, "invalid_query_params".to_owned()), "limit `{limit}`");
        assert_eq!(answer.json()["error"]["errors"][0]["path"], json!(["limit"]));
    }
}

#[tokio::test]
async fn records_are_ordered_by_their_last_change() {
    let stage = Stage::hostile().await;
    stage.commit(json!([save(&items(&["a", "b", "c"]))])).await;
    stage.commit(json!([save(&json!([{ "id": "a", "name": "changed" }]))])).await;
    let records = stage.all(&[("model", "Item")]).await;
    assert_eq!(ids_of(&records), ["b", "c", "a"]);
    let times: Vec<_> =
        records.iter().map(|record| record[METADATA_KEY]["last_modified_at"].as_str()).collect();
    assert!(times.is_sorted(), "{times:?}");
}

#[tokio::test]
async fn a_filter_returns_the_union_of_its_values() {
    let stage = Stage::hostile().await;
    stage.commit(json!([save(&items(&["added", "updated", "deleted"]))])).await;
    stage.commit(json!([save(&json!([{ "id": "updated", "count": 1 }])), delete(&["deleted"])])).await;
    let words = ["added", "updated", "deleted"];
    for set in 1..8_usize {
        let named: Vec<_> = (0..3).filter(|bit| set & (1 << bit) != 0).map(|bit| words[bit]).collect();
        let page = stage.page(&[("model", "Item"), ("filter", &named.join(","))]).await;
        assert_eq!(page.ids(), named, "filter {named:?}");
        let by_id = stage
            .page(&[("model", "Item"), ("filter", &named.join(",")), ("ids", "added"), ("ids", "deleted")])
            .await;
        let wanted: Vec<_> = named.iter().filter(|word| **word != "updated").copied().collect();
        assert_eq!(by_id.ids(), wanted, "filter {named:?} among ids");
    }
    assert_eq!(stage.page(&[("model", "Item")]).await.ids(), words);
    let spelled_otherwise = stage.page(&[("model", "Item"), ("filter", "DELETED, Added,added")]).await;
    assert_eq!(spelled_otherwise.ids(), ["added", "deleted"]);
}

#[tokio::test]
async fn an_unknown_filter_value_is_rejected() {
    let stage = Stage::hostile().await;
    for filter in ["changed", "", "added,", "added;deleted"] {
        let answer = stage.get_records(&[("model", "Item"), ("filter", filter)]).await;
        assert_eq!(answer.refusal(), (400, "invalid_query_params".to_owned()), "filter `{filter}`");
    }
}

#[tokio::test]
async fn a_filtered_list_pages_through_all_matches() {
    let stage = Stage::hostile().await;
    let ids: Vec<String> = (0..30).map(|number| format!("{number:02}")).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    stage.commit(json!([save(&items(&ids)), delete(&ids[5..25])])).await;
    let deleted = stage.all(&[("model", "Item"), ("filter", "deleted"), ("limit", "7")]).await;
    assert_eq!(ids_of(&deleted), ids[5..25]);
    assert!(deleted.iter().all(|record| record[METADATA_KEY]["last_action"] == "DELETED"));
}

#[tokio::test]
async fn modified_after_includes_its_own_moment_in_any_offset() {
    let stage = Stage::hostile().await;
    for id in ["1", "2", "3"] {
        stage.commit(json!([save(&items(&[id]))])).await;
    }
    let records = stage.all(&[("model", "Item")]).await;
    let time = text(&records[1][METADATA_KEY]["last_modified_at"]);
    let moment = chrono::DateTime::parse_from_rfc3339(time).unwrap();
    let in_offset = |hours: i32| {
        let offset = chrono::FixedOffset::east_opt(hours * 3600).unwrap();
        moment.with_timezone(&offset).to_rfc3339_opts(chrono::SecondsFormat::Millis, true)
    };
    for spelling in [time.to_owned(), in_offset(2), in_offset(-7), in_offset(2).replace('+', " ")] {
        let page = stage.page(&[("model", "Item"), ("modified_after", &spelling)]).await;
        assert_eq!(page.ids(), ["2", "3"], "modified_after {spelling}");
        let by_id =
            stage.page(&[("model", "Item"), ("modified_after", &spelling), ("ids", "1"), ("ids", "3")]).await;
        assert_eq!(by_id.ids(), ["3"], "modified_after {spelling} among ids");
    }
    let later = stage.page(&[("model", "Item"), ("modified_after", "2999-01-01T00:00:00Z")]).await;
    assert_eq!((later.ids(), later.next_cursor.as_deref()), (vec![], None));
    let earlier = stage.page(&[("model", "Item"), ("modified_after", "1970-01-01T00:00:00Z")]).await;
    assert_eq!(earlier.ids(), ["1", "2", "3"]);
    for nonsense in ["yesterday", "2026-03-01", "1772355600", ""] {
        let answer = stage.get_records(&[("model", "Item"), ("modified_after", nonsense)]).await;
        assert_eq!(answer.refusal(), (400, "invalid_query_params".to_owned()), "modified_after `{nonsense}`");
    }
}

#[tokio::test]
async fn the_ids_parameter_selects_records() {
    let stage = Stage::hostile().await;
    stage.commit(json!([save(&items(&["a", "b,c", "d e", "f"]))])).await;
    let get = async |query: &str| {
        let answer = stage.request("GET", &format!("/records?model=Item&{query}")).send().await;
        Page::read(&answer.expect(200)).ids().iter().map(|id| (*id).to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(get("ids=f&ids=a").await, ["a", "f"], "the order of the parameters does not matter");
    assert_eq!(get("ids=b%2Cc").await, ["b,c"]);
    assert_eq!(get("ids[]=a&ids[]=d+e").await, ["a", "d e"]);
    assert_eq!(get("ids=a&ids=nobody").await, ["a"]);
    assert_eq!(get("ids=nobody").await, [""; 0]);

    let many: Vec<_> = (0..101).map(|number| format!("ids={number}")).collect();
    let answer = stage.request("GET", &format!("/records?model=Item&{}", many.join("&"))).send().await;
    assert_eq!(answer.refusal(), (400, "invalid_query_params".to_owned()));
    assert_eq!(get(&many[..100].join("&")).await, [""; 0]);
}

#[tokio::test]
async fn reading_can_continue_from_any_records_cursor() {
    let stage = Stage::hostile().await;
    stage.commit(json!([save(&items(&["a", "b", "c"]))])).await;
    let records = stage.all(&[("model", "Item")]).await;
    for (index, record) in records.iter().enumerate() {
        let page = stage.page(&[("model", "Item"), ("cursor", cursor_of(record))]).await;
        assert_eq!(page.records, records[index + 1..], "after {}", record["id"]);
        assert_eq!(page.next_cursor, None);
    }
    let first = stage.page(&[("model", "Item"), ("limit", "1")]).await;
    assert_eq!(first.next_cursor.as_deref(), Some(cursor_of(&first.records[0])));
}

#[tokio::test]
async fn a_cursor_that_was_never_issued_is_rejected() {
    let stage = Stage::hostile().await;
    stage.commit(json!([save(&items(&["a", "b"]))])).await;
    let page = stage.page(&[("model", "Item"), ("limit", "1")]).await;
    let cursor = page.next_cursor.unwrap();
    let changed =
        if cursor.starts_with('A') { cursor.replacen('A', "B", 1) } else { format!("A{}", &cursor[1..]) };
    for broken in
        ["", "x", "not a cursor", &cursor[1..], &cursor[..cursor.len() - 1], &changed, &"x".repeat(2000)]
    {
        let answer = stage.get_records(&[("model", "Item"), ("cursor", broken)]).await;
        assert_eq!(answer.refusal(), (400, "invalid_cursor".to_owned()), "cursor `{broken}`");
        let problem = match broken.len() {
            1..=1000 => "is not a cursor that Syncline has issued",
            _ => "is empty or too long",
        };
        assert!(answer.message().contains(problem), "{}", answer.message());
    }
}

#[tokio::test]
async fn a_cursor_of_another_stream_is_rejected() {
    let stage = Stage::hostile().await;
    let other = stage.host.connect_as("customer-2", "hostile", json!({ "steps": 2, "pause_ms": 0 })).await;
    other.wait_until_idle().await;
    stage.commit(json!([save(&items(&["a", "b"]))])).await;
    other.commit(json!([save(&items(&["a", "b"]))])).await;
    let cursor = other.page(&[("model", "Item"), ("limit", "1")]).await.next_cursor.unwrap();
    let elsewhere = stage.get_records(&[("model", "Item"), ("cursor", &cursor)]).await;
    assert_eq!(elsewhere.refusal(), (400, "invalid_cursor".to_owned()), "another connection's");
    assert!(elsewhere.message().contains("another connection, model or variant"), "{}", elsewhere.message());
    let other_model = other.get_records(&[("model", "Step"), ("cursor", &cursor)]).await;
    assert_eq!(other_model.refusal(), (400, "invalid_cursor".to_owned()), "another model's");
}

#[tokio::test]
async fn an_unknown_model_is_not_found_and_one_without_records_is_empty() {
    let stage = Stage::hostile().await;
    let unknown = stage.get_records(&[("model", "Unicorn")]).await;
    assert_eq!(unknown.refusal(), (404, "unknown_model".to_owned()));
    let empty = stage.page(&[("model", "Item")]).await;
    assert_eq!((empty.records, empty.next_cursor), (vec![], None));
    for no_name in ["item", "I", "It em", ""] {
        let answer = stage.get_records(&[("model", no_name)]).await;
        assert_eq!(answer.refusal(), (400, "invalid_query_params".to_owned()), "model `{no_name}`");
    }
}

#[tokio::test]
async fn an_undeclared_model_is_readable_while_records_remain() {
    let stage = Stage::hostile().await;
    let other = stage.host.connect_as("customer-2", "hostile", json!({ "steps": 0 })).await;
    other.wait_until_idle().await;
    let stored = json!({ "model": "Item", "items": r#"[{"id":"a"}]"#, "variant": "extra" });
    stage.action("save-raw", &stored).await.expect(200);
    let mut bundle = Bundle::guest("hostile")
        .replace("[integrations.hostile.syncs.commit-raw]\nruns = \"every 1 hour\"\nmodel = \"Item\"\n", "");
    for action in ["save-raw", "save-measured", "change-raw", "find-raw"] {
        let table = format!("[integrations.hostile.actions.{action}]\nmodels = [");
        bundle = bundle.replace(&format!("{table}\"Item\", \"Step\"]"), &format!("{table}\"Step\"]"));
    }
    stage.host.deploy(&bundle).await;
    let of_variant = |variant| [("model", "Item"), ("variant", variant)];
    assert_eq!(stage.page(&of_variant("extra")).await.ids(), ["a"]);
    assert_eq!(stage.page(&of_variant("base")).await.records, Vec::<Value>::new());
    let unknown = other.get_records(&of_variant("base")).await;
    assert_eq!(unknown.refusal(), (404, "unknown_model".to_owned()));
}

#[tokio::test]
async fn a_trailing_slash_is_ignored() {
    let stage = Stage::hostile().await;
    stage.commit(json!([save(&items(&["a"]))])).await;
    let without = stage.request("GET", "/records?model=Item").send().await.expect(200);
    let with = stage.request("GET", "/records/?model=Item").send().await.expect(200);
    assert_eq!(with.json(), without.json());
}

#[tokio::test]
async fn a_deleted_record_is_a_tombstone_with_its_last_payload() {
    let stage = Stage::hostile().await;
    stage.commit(json!([save(&json!([{ "id": "a", "name": "Ada" }]))])).await;
    let before = stage.all(&[("model", "Item")]).await.remove(0);
    stage.commit(json!([delete(&["a", "never-there"])])).await;
    let after = stage.all(&[("model", "Item")]).await.remove(0);
    assert_eq!(without_metadata(after.clone()), json!({ "id": "a", "name": "Ada" }));
    let (before, after) = (&before[METADATA_KEY], &after[METADATA_KEY]);
    assert_eq!(after["last_action"], "DELETED");
    assert_eq!(after["first_seen_at"], before["first_seen_at"]);
    assert_eq!(after["deleted_at"], after["last_modified_at"]);
    assert_ne!(after["cursor"], before["cursor"]);
    assert_eq!(stage.status("commit-raw").await["recordCount"], json!({ "Item": 0 }));
}

#[tokio::test]
async fn a_returning_record_is_added_and_keeps_its_first_seen_at() {
    let stage = Stage::hostile().await;
    let item = json!([{ "id": "a", "name": "Ada" }]);
    stage.commit(json!([save(&item)])).await;
    let before = stage.all(&[("model", "Item")]).await.remove(0);
    stage.commit(json!([delete(&["a"])])).await;
    let status = stage.commit(json!([save(&item)])).await;
    assert_eq!(status["latestResult"], json!({ "Item": { "added": 1, "updated": 0, "deleted": 0 } }));
    let after = stage.all(&[("model", "Item")]).await.remove(0);
    assert_eq!(after[METADATA_KEY]["last_action"], "ADDED");
    assert_eq!(after[METADATA_KEY]["deleted_at"], Value::Null);
    assert_eq!(after[METADATA_KEY]["first_seen_at"], before[METADATA_KEY]["first_seen_at"]);
}

#[tokio::test]
async fn a_reader_misses_nothing_while_others_write() {
    const WRITERS: usize = 4;
    const BATCHES: usize = 12;
    let stage = Stage::hostile().await;
    let writers = async {
        let write = async |writer: usize| {
            for batch in 0..BATCHES {
                let items: Value =
                    (0..5).map(|number| json!({ "id": format!("{writer}-{batch}-{number}") })).collect();
                stage.save_raw("Item", &items.to_string()).await.expect(200);
            }
        };
        futures_util::future::join_all((0..WRITERS).map(write)).await;
    };
    let reader = async {
        let mut seen: Vec<String> = Vec::new();
        let mut cursor: Option<String> = None;
        eventually("the reader has seen every record", async || {
            let mut parameters = vec![("model", "Item"), ("limit", "7")];
            parameters.extend(cursor.as_deref().map(|cursor| ("cursor", cursor)));
            let page = stage.page(&parameters).await;
            seen.extend(page.ids().into_iter().map(str::to_owned));
            if let Some(last) = page.records.last() {
                cursor = Some(cursor_of(last).to_owned());
            }
            (seen.len() >= WRITERS * BATCHES * 5).then_some(())
        })
        .await;
        seen
    };
    let ((), seen) = futures_util::future::join(writers, reader).await;
    let distinct: BTreeSet<_> = seen.iter().collect();
    assert_eq!(distinct.len(), seen.len(), "an unchanged record is read once");
    assert_eq!(stage.all(&[("model", "Item")]).await.len(), seen.len());
}

#[tokio::test]
async fn writers_waiting_for_a_stream_leave_connections_for_others() {
    let variables = [("SYNCLINE_DATABASE_CONNECTIONS", "8"), ("SYNCLINE_LEASE_SECONDS", "2")];
    let metadata = json!({ "steps": 0, "commits": [{ "changes": [save(&items(&["first"]))] }],
                           "end": "wait-until-cancelled" });
    let db = TestDatabase::create().await;
    let options = HostOptions::new().database(&db);
    let options = variables.iter().fold(options, |options, (name, value)| options.variable(name, value));
    let host = options.spawn().await;
    host.deploy(&Bundle::guest("hostile")).await;
    let connection = host.connect_as("customer-1", "hostile", metadata).await;
    let stage = Stage { connection, host, db };
    eventually("the sync has saved", async || {
        (stage.db.number("SELECT count(*) FROM streams WHERE model = 'Item'").await == 1).then_some(())
    })
    .await;
    let mut other = stage.db.connect().await;
    let mut holding = other.begin().await.expect("the database answers");
    let lock = "SELECT stream_no FROM streams WHERE model = 'Item' FOR NO KEY UPDATE";
    sqlx::query(lock).execute(&mut *holding).await.expect("the stream is not locked");

    let second = items(&["second"]).to_string();
    let writing = futures_util::future::join_all((0..12).map(|_| stage.save_raw("Item", &second)));
    let watching = async {
        let waiting = "SELECT count(*) FROM pg_stat_activity
                       WHERE datname = current_database() AND wait_event_type = 'Lock'";
        eventually("writers wait", async || (stage.db.number(waiting).await >= 5).then_some(())).await;
        let lease = "SELECT max(extract(epoch FROM lease_expires_at) * 1000)::bigint FROM schedules";
        let first = stage.db.number(lease).await;
        eventually("the lease is renewed again and again", async || {
            (stage.db.number(lease).await > first + 3_000).then_some(())
        })
        .await;
        assert_eq!(stage.page(&[("model", "Item")]).await.ids(), ["first"]);
        holding.rollback().await.expect("the lock is released");
    };
    let (answers, ()) = tokio::join!(writing, watching);
    answers.into_iter().for_each(|answer| drop(answer.expect(200)));
    assert_eq!(stage.page(&[("model", "Item")]).await.ids(), ["first", "second"]);
}
