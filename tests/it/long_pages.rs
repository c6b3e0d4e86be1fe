//! Pages of long items: they end at a number of bytes, and the next page continues.

use serde_json::{Value, json};

use crate::support::{Bundle, Page, SECRET_KEY, Stage, eventually, query, text};

const PAGE_BYTES: usize = 100_000;

async fn stage(bundle: Bundle) -> Stage {
    let setting = ("SYNCLINE_MAX_PAGE_BYTES", PAGE_BYTES.to_string());
    Stage::with(&[(setting.0, &setting.1)], &bundle, json!({ "steps": 0 })).await
}

/// Items of 30 kB with the ids from `a` on. The item `d` is longer than a page.
fn long_items() -> Vec<Value> {
    let item = |id: char| json!({ "id": id, "name": "x".repeat(if id == 'd' { 150_000 } else { 30_000 }) });
    ('a'..='j').map(item).collect()
}

/// Follows the cursors of a list to its end. Returns the ids of each page.
async fn follow(stage: &Stage, path: &str, parameters: &[(&str, &str)]) -> Vec<String> {
    let mut pages = Vec::new();
    let mut cursor = String::new();
    loop {
        let mut parameters = parameters.to_vec();
        if !cursor.is_empty() {
            parameters.push(("cursor", &cursor));
        }
        let answer = stage.request("GET", &format!("{path}?{}", query(&parameters))).send().await.expect(200);
        let page = Page::read(&answer);
        if page.records.is_empty() {
            return pages;
        }
        assert!(answer.body.len() < PAGE_BYTES || page.records.len() == 1, "{} bytes", answer.body.len());
        pages.push(page.ids().concat());
        let Some(next) = page.next_cursor else { return pages };
        cursor = next;
    }
}

#[tokio::test]
async fn a_page_of_long_records_ends_early_and_the_next_page_continues() {
    let stage = stage(Bundle::guest("hostile")).await;
    stage.save_raw("Item", &json!(long_items()).to_string()).await.expect(200);
    let whole = ["abc", "d", "efg", "hij"];
    for parameters in [&[][..], &[("filter", "added")], &[("modified_after", "2020-01-01T00:00:00Z")]] {
        let parameters = [&[("model", "Item"), ("limit", "500")], parameters].concat();
        assert_eq!(follow(&stage, "/records", &parameters).await, whole, "{parameters:?}");
    }
    let ids: Vec<_> = ["j", "d", "b", "a", "e", "f"].map(|id| ("ids", id)).into();
    let named = [&[("model", "Item")], &ids[..]].concat();
    assert_eq!(follow(&stage, "/records", &named).await, ["ab", "d", "efj"]);
    let changes = [("model", "Item"), ("wait", "0"), ("limit", "500")];
    assert_eq!(follow(&stage, "/records/changes", &changes).await, whole);

    let renamed: Vec<Value> = long_items()
        .into_iter()
        .map(|mut item| {
            item["count"] = json!(1);
            item
        })
        .collect();
    stage.save_raw("Item", &json!(renamed).to_string()).await.expect(200);
    let updated = [("model", "Item"), ("filter", "updated,deleted"), ("limit", "500")];
    assert_eq!(follow(&stage, "/records", &updated).await, whole);
    // The limit in records still applies.
    let few = [("model", "Item"), ("limit", "2")];
    assert_eq!(follow(&stage, "/records", &few).await, ["ab", "c", "d", "ef", "gh", "ij"]);
}

#[tokio::test]
async fn a_page_of_long_records_takes_little_memory() {
    const RECORDS: usize = 40;
    let stage = Stage::hostile().await;
    for id in 0..RECORDS {
        let item = json!([{ "id": id.to_string(), "name": "x".repeat(5 << 20) }]);
        stage.save_raw("Item", &item.to_string()).await.expect(200);
    }
    let before = stage.host.peak_memory_mb();
    let page = stage.page(&[("model", "Item"), ("limit", "500")]).await;
    assert_eq!(page.records.len(), 3, "three records of 5 MB have less than 16 MiB");
    let taken = stage.host.peak_memory_mb() - before;
    assert!(taken < 100, "the host used {taken} MB for a page");
}

#[tokio::test]
async fn a_long_page_of_connections_is_sent_in_parts() {
    let stage = stage(Bundle::guest("hostile")).await;
    let mut ids = vec![stage.id.clone()];
    for number in 0..12 {
        let id = format!("long-{number}");
        let metadata = json!({ "steps": 0, "text": "x".repeat(30_000) });
        stage.host.connect_as(&id, "hostile", metadata).await;
        ids.push(id);
    }
    ids.reverse();
    let list = async |parameters: &str| -> Vec<String> {
        let page = stage.host.get(&format!("/connections{parameters}")).await.expect(200).json();
        let listed = page["connections"].as_array().expect("a list");
        listed.iter().map(|connection| text(&connection["connection_id"]).to_owned()).collect()
    };
    assert_eq!(list("").await, ids);
    assert_eq!(list("?limit=7").await, ids[..7]);
    assert_eq!(list("?limit=7&page=1").await, ids[7..]);
    assert_eq!(list("?search=long&limit=4&page=2").await, ids[8..12]);
}

#[tokio::test]
async fn a_page_of_connections_takes_little_memory() {
    const CONNECTIONS: usize = 100;
    let stage = Stage::hostile().await;
    stage.db.execute(&format!(
        "INSERT INTO connections (id, environment_pk, integration_pk, connection_id, sealed_credentials, metadata)
         SELECT gen_random_uuid(), environment_pk, integration_pk, 'long-' || number, sealed_credentials,
                jsonb_build_object('text', repeat('x', 1000000))
         FROM connections, generate_series(1, {CONNECTIONS}) AS number"
    )).await;
    let before = stage.host.peak_memory_mb();
    let page = stage.host.get("/connections").await.expect(200).json();
    assert_eq!(page["connections"].as_array().expect("a list").len(), CONNECTIONS + 1);
    let taken = stage.host.peak_memory_mb() - before;
    assert!(taken < 120, "the host used {taken} MB for a list of 100 MB");
}

#[tokio::test]
async fn a_page_of_long_dead_letters_ends_early_and_the_next_page_continues() {
    let bundle =
        Bundle::guest("hostile").replace("[models.Item]\n", "[models.Item]\non_bad_record = \"set_aside\"\n");
    let stage = stage(bundle).await;
    let mut items = long_items();
    items.iter_mut().for_each(|item| item["count"] = json!("seven"));
    stage.save_raw("Item", &json!(items).to_string()).await.expect(200);
    for scope in [&[][..], &[("provider_config_key", "hostile"), ("connection_id", &*stage.id)]] {
        let mut pages = Vec::new();
        let mut cursor = String::new();
        loop {
            let mut parameters = scope.to_vec();
            if !cursor.is_empty() {
                parameters.push(("cursor", &cursor));
            }
            let page =
                stage.host.get(&format!("/dead-letters?{}", query(&parameters))).await.expect(200).json();
            let letters = page["dead_letters"].as_array().expect("a list");
            pages.push(letters.iter().map(|letter| text(&letter["record_id"])).collect::<String>());
            let Some(next) = page["next_cursor"].as_str() else { break };
            cursor = next.to_owned();
        }
        assert_eq!(pages, ["abc", "d", "efg", "hij"], "{scope:?}");
    }
    // The command reads as many pages as it needs.
    let host = ["--url", stage.host.base_url(), "--secret-key", SECRET_KEY];
    let listed =
        stage.host.command(&stage.db, &[&["dead-letters", "list", "--limit", "6"], &host[..]].concat());
    assert_eq!(listed.matches("at /count").count(), 6, "{listed}");
}

#[tokio::test]
async fn a_page_of_long_log_lines_ends_early_and_the_next_page_continues() {
    let stage = stage(Bundle::guest("hostile")).await;
    let refused = stage.connection.action("log-flood", &Value::Null).await;
    assert_eq!(refused.refusal(), (400, "limit_exceeded".to_owned()));
    let run = eventually("the run is stored", async || {
        stage
            .db
            .texts("SELECT id::text FROM runs WHERE function_name = 'log-flood' AND state = 'error'")
            .await
            .pop()
    })
    .await;
    let stored = stage.db.number("SELECT count(*) FROM run_logs").await;
    let mut lines = Vec::new();
    let mut pages = 0;
    let mut cursor = "-1".to_owned();
    loop {
        let answer =
            stage.host.get(&format!("/runs/{run}/logs?limit=1000&cursor={cursor}")).await.expect(200);
        // The metadata of a line does not count.
        assert!(answer.body.len() < 2 * PAGE_BYTES, "{} bytes", answer.body.len());
        let page = answer.json();
        lines
            .extend(page["logs"].as_array().expect("a list").iter().filter_map(|line| line["line"].as_i64()));
        pages += 1;
        let Some(next) = page["next_cursor"].as_str() else { break };
        cursor = next.to_owned();
    }
    assert!(pages > 5, "{pages} pages");
    assert!(lines.iter().copied().eq(0..stored), "{stored} lines: {lines:?}");
}
