//! Syncs in the dashboard.

use serde_json::json;

use crate::support::{Bundle, Host, Person, Stage, TestDatabase, between, eventually, save};

const SYNCS: &str = "/dashboard/environments/dev/syncs";
const SYNC: &str = "/dashboard/environments/dev/syncs/minimal/customer%2D1/numbers/base";

#[tokio::test]
async fn a_new_environment_shows_how_to_get_a_sync() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    let ada = Person::administrator(&host, &db).await;
    let page = ada.get(SYNCS).await.expect(200).text();
    assert!(page.contains("There is no sync yet") && page.contains("syncline deploy"), "{page}");
}

#[tokio::test]
async fn syncs_are_listed_by_filters_and_pages() {
    let stage = Stage::numbers(3).await;
    for number in 2..=60 {
        stage.host.connect_as(&format!("customer-{number}"), "minimal", json!({ "count": 1 })).await;
    }
    let ada = Person::administrator(&stage.host, &stage.db).await;
    let list = async |query: &str| ada.get(&format!("{SYNCS}?{query}")).await.expect(200).text();
    let count = |page: &str| page.matches("/numbers/base\">").count();
    let first = list("").await;
    assert_eq!(count(&first), 50);
    let next = between(&first, "rel=\"next\" href=\"", "\"").replace("&amp;", "&");
    let second = ada.get(&next).await.expect(200).text();
    assert_eq!(count(&second), 10);
    assert!(second.contains("customer-1<") && !second.contains("customer-60<"), "the newest are first");

    stage.connection.control("pause", "numbers").await.expect(200);
    assert_eq!(count(&list("state=paused").await), 1);
    assert_eq!(count(&list("state=failing").await), 0);
    assert_eq!(count(&list("connection=customer-7&integration=minimal").await), 1);
    assert_eq!(count(&list("connection=customer-7&state=paused").await), 0);
    assert!(list("sync=others").await.contains("No sync matches these filters"));
    ada.get(&format!("{SYNCS}?integration=others")).await.expect(404);
    ada.get(&format!("{SYNCS}?after=x")).await.expect(400);
}

#[tokio::test]
async fn a_sync_is_paused_started_and_run() {
    let stage = Stage::numbers(3).await;
    let ada = Person::administrator(&stage.host, &stage.db).await;
    let page = ada.get(SYNC).await.expect(200).text();
    for shown in ["succeeded", "Number: 3", "class=\"timeline\"", "3 added"] {
        assert!(page.contains(shown), "{shown}: {page}");
    }
    let submit = async |command: &str| ada.submit(SYNC, &format!("{SYNC}/{command}"), &[]).await.expect(303);
    submit("pause").await;
    assert_eq!(stage.connection.status("numbers").await["status"], "PAUSED");
    submit("start").await;
    let runs = async |expected: i64| {
        eventually("the run has ended", async || {
            (stage.db.number("SELECT count(*) FROM runs WHERE state = 'success'").await == expected)
                .then_some(())
        })
        .await;
    };
    runs(2).await;
    submit("run").await;
    runs(3).await;
    submit("run-in-full").await;
    runs(4).await;
    let added = "SELECT (counts->'Number'->>'added')::bigint FROM runs ORDER BY started_at DESC LIMIT 1";
    assert_eq!(stage.db.number(added).await, 0, "a full run keeps the records");
    submit("empty-and-run").await;
    runs(5).await;
    assert_eq!(stage.db.number(added).await, 3, "the records were deleted first");
}

#[tokio::test]
async fn the_frequency_of_one_connection_is_changed_and_restored() {
    let stage = Stage::numbers(1).await;
    let ada = Person::administrator(&stage.host, &stage.db).await;
    let before = stage.connection.status("numbers").await["frequency"].clone();
    let change = format!("{SYNC}/frequency");
    ada.submit(SYNC, &change, &[("frequency", "every 2 hours")]).await.expect(303);
    assert_eq!(stage.connection.status("numbers").await["frequency"], "every 2 hours");
    let page = ada.get(SYNC).await.expect(200).text();
    assert!(page.contains("changed for this connection"), "{page}");
    let refused = ada.submit(SYNC, &change, &[("frequency", "every 1 second")]).await.expect(400).text();
    assert!(refused.contains("too frequent"), "{refused}");
    ada.submit(SYNC, &format!("{SYNC}/reset-frequency"), &[]).await.expect(303);
    assert_eq!(stage.connection.status("numbers").await["frequency"], before);
}

#[tokio::test]
async fn a_recorded_run_is_downloaded_from_its_page() {
    let stage = Stage::numbers(1).await;
    let ada = Person::administrator(&stage.host, &stage.db).await;
    let record = format!("{SYNC}/recording");
    ada.submit(SYNC, &record, &[("runs", "sometimes")]).await.expect(400);
    ada.submit(SYNC, &record, &[("runs", "every_run")]).await.expect(303);
    let page = ada.get(SYNC).await.expect(200).text();
    assert!(page.contains("value=\"every_run\" selected"), "{page}");
    stage.connection.run("numbers").await;
    let runs = stage.host.get("/runs?limit=1").await.expect(200).json();
    let run = format!("/dashboard/environments/dev/runs/{}", runs["runs"][0]["id"].as_str().expect("a run"));
    let page = ada.get(&run).await.expect(200).text();
    assert!(page.contains("Download"), "{page}");
    let recording = ada.get(&format!("{run}/recording")).await.expect(200).json();
    assert_eq!(recording["function"], "numbers");
    ada.submit(SYNC, &record, &[("runs", "")]).await.expect(303);
    stage.connection.run("numbers").await;
    let runs = stage.host.get("/runs?limit=1").await.expect(200).json();
    let run = format!("/dashboard/environments/dev/runs/{}", runs["runs"][0]["id"].as_str().expect("a run"));
    assert!(!ada.get(&run).await.expect(200).text().contains("Download"));
    ada.get(&format!("{run}/recording")).await.expect(404);
}

#[tokio::test]
async fn variants_are_created_and_deleted() {
    let stage = Stage::numbers(1).await;
    let ada = Person::administrator(&stage.host, &stage.db).await;
    let create = format!("{SYNC}/create-variant");
    let variant = SYNC.replace("/base", "/europe");
    ada.submit(SYNC, &create, &[("variant", "europe")]).await.expect(303);
    ada.submit(SYNC, &create, &[("variant", "europe")]).await.expect(409);
    ada.submit(SYNC, &create, &[("variant", "base")]).await.expect(400);
    ada.submit(SYNC, &create, &[("variant", "a b")]).await.expect(400);
    assert!(ada.get(&variant).await.expect(200).text().contains("numbers · europe"));
    ada.submit(SYNC, &format!("{SYNC}/delete-variant"), &[]).await.expect(400);
    ada.submit(SYNC, &format!("{variant}/delete-variant"), &[]).await.expect(303);
    ada.get(&variant).await.expect(404);
    ada.submit(SYNC, &format!("{variant}/delete-variant"), &[]).await.expect(404);
}

#[tokio::test]
async fn a_viewer_sees_syncs_and_changes_none() {
    let stage = Stage::numbers(1).await;
    let ada = Person::administrator(&stage.host, &stage.db).await;
    let grace = ada.invite(&stage.host, "grace@example.com", "viewer").await;
    let page = grace.get(SYNC).await.expect(200).text();
    assert!(!page.contains("Run now") && !page.contains("Delete the records"), "{page}");
    for command in [
        "start",
        "pause",
        "run",
        "run-in-full",
        "empty-and-run",
        "frequency",
        "reset-frequency",
        "recording",
        "create-variant",
        "delete-variant",
    ] {
        grace.submit(SYNC, &format!("{SYNC}/{command}"), &[]).await.expect(403);
    }
}

#[tokio::test]
async fn a_sync_that_was_deleted_while_its_page_was_open_is_not_found() {
    let stage = Stage::numbers(1).await;
    let ada = Person::administrator(&stage.host, &stage.db).await;
    ada.get(SYNC).await.expect(200);
    stage.host.delete("/connections/customer-1?provider_config_key=minimal").await.expect(200);
    ada.get(SYNC).await.expect(404);
    ada.submit(SYNCS, &format!("{SYNC}/pause"), &[]).await.expect(404);
    ada.submit(SYNCS, &format!("{SYNC}/frequency"), &[("frequency", "every hour")]).await.expect(404);
}

#[tokio::test]
async fn a_checkpoint_is_escaped_and_cut() {
    let stage = Stage::of(&Bundle::guest("hostile"), json!({ "steps": 0 })).await;
    stage.commit(json!([save(&json!([{ "id": "one" }]))])).await;
    let long = format!("<script>{}", "x".repeat(100_000));
    let checkpoint = json!({ "place": long }).to_string().replace('\'', "''");
    stage.db.execute(&format!("UPDATE sync_states SET checkpoint = '{checkpoint}'")).await;
    let ada = Person::administrator(&stage.host, &stage.db).await;
    let page = ada
        .get(&SYNC.replace("minimal", "hostile").replace("numbers", "commit%2Draw"))
        .await
        .expect(200)
        .text();
    assert!(page.contains("&lt;script&gt;xxx") && page.contains("97.7 KiB in total"), "{page}");
    assert!(!page.contains("<script>x") && page.len() < 60_000, "{}", page.len());
}
