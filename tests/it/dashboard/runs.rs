//! Runs in the dashboard.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{Bundle, Person, Stage, between, eventually, save, text};

const RUNS: &str = "/dashboard/environments/dev/runs";

/// The id of the latest run of a function.
async fn latest_run(stage: &Stage, function: &str) -> String {
    eventually("the run is stored", async || {
        let found = stage.host.get(&format!("/runs?function={function}&limit=1")).await.expect(200).json();
        found["runs"].get(0).map(|run| text(&run["id"]).to_owned())
    })
    .await
}

/// A sync whose last run did not find 80 of its 120 records, and the id of this run.
pub async fn stage_with_held_deletions() -> (Stage, String) {
    let bundle = Bundle::guest("hostile").tracking_deletes("commit-raw");
    let items = |count: usize| {
        let items: Vec<Value> = (0..count).map(|number| json!({ "id": number.to_string() })).collect();
        json!({ "steps": 0, "commits": [{ "changes": [save(&json!(items))] }], "end": "return" })
    };
    let stage = Stage::of(&bundle, items(120)).await;
    stage.connection.set_metadata(items(40)).await;
    assert_eq!(stage.connection.run("commit-raw").await["status"], "ERROR");
    let id = latest_run(&stage, "commit-raw").await;
    (stage, id)
}

#[tokio::test]
async fn runs_are_listed_by_filters_and_pages() {
    let stage = Stage::numbers(3).await;
    stage
        .db
        .execute(
            "INSERT INTO runs (id, environment_pk, integration_pk, connection_pk, schedule_pk, kind, function_name,
                               variant, trigger, attempt, owner, state, started_at, finished_at)
             SELECT gen_random_uuid(), environment_pk, integration_pk, connection_pk, schedule_pk, 'sync', 'older',
                    'base', 'retry', 2, owner, 'error', started_at - number * interval '1 day', finished_at
             FROM runs, generate_series(1, 60) AS number",
        )
        .await;
    let ada = Person::administrator(&stage.host, &stage.db).await;
    let list = async |query: &str| ada.get(&format!("{RUNS}?{query}")).await.expect(200).text();
    let count = |page: &str| page.matches("<tr><td><a href=").count();
    let first = list("").await;
    assert_eq!(count(&first), 50);
    let next = between(&first, "rel=\"next\" href=\"", "\"").replace("&amp;", "&");
    assert_eq!(count(&ada.get(&next).await.expect(200).text()), 11);
    assert_eq!(count(&list("state=success").await), 1);
    assert_eq!(count(&list("state=running").await), 0);
    assert_eq!(count(&list("kind=sync&integration=minimal&connection=customer-1&function=numbers").await), 1);
    assert_eq!(count(&list("state=error&started_before=2020-01-01T00:00").await), 0);
    assert!(list("kind=action").await.contains("No run matches these filters"));
    for malformed in
        ["state=x", "kind=x", "connection=x", "started_after=yesterday", "after=x", "function=a%20b"]
    {
        ada.get(&format!("{RUNS}?{malformed}")).await.expect(400);
    }
}

#[tokio::test]
async fn a_run_shows_its_outcome_usage_and_log() {
    let stage = Stage::numbers(3).await;
    let ada = Person::administrator(&stage.host, &stage.db).await;
    let id = latest_run(&stage, "numbers").await;
    let page = ada.get(&format!("{RUNS}/{id}")).await.expect(200).text();
    for shown in
        ["succeeded", "<td>Number</td><td class=\"number\">3</td>", "<meter", "256.0 MiB", "CPU time", &id]
    {
        assert!(page.contains(shown), "{shown}: {page}");
    }
    assert!(!page.contains("data-live"), "a run that has ended does not change: {page}");
    ada.get(&format!("{RUNS}/00000000-0000-0000-0000-000000000000")).await.expect(404);
    ada.get(&format!("{RUNS}/nonsense")).await.expect(404);
}

#[tokio::test]
async fn a_failed_run_shows_why_and_what_to_do_without_markup() {
    let stage = Stage::hostile().await;
    let markup = "<script>alert(1)</script>";
    let input = json!({ "code": "none", "message": markup });
    stage.connection.action("fail", &input).await.expect(400);
    let id = latest_run(&stage, "fail").await;
    let ada = Person::administrator(&stage.host, &stage.db).await;
    for path in [format!("{RUNS}/{id}"), RUNS.to_owned()] {
        let page = ada.get(&path).await.expect(200).text();
        assert!(page.contains("&lt;script&gt;alert(1)") && !page.contains(markup), "{page}");
    }
    let page = ada.get(&format!("{RUNS}/{id}")).await.expect(200).text();
    assert!(page.contains("What to do:") && page.contains("action_script_runtime_error"), "{page}");
}

#[tokio::test]
async fn a_log_is_paged_from_its_end_and_filtered() {
    let stage = Stage::hostile().await;
    stage.connection.action("log-flood", &Value::Null).await.expect(400);
    let id = latest_run(&stage, "log-flood").await;
    stage
        .db
        .execute(&format!(
            "INSERT INTO run_logs (run_id, line, at, level, message)
             VALUES ('{id}', 2000000, now(), 'warn', '<script>x</script>' || repeat('long', 1000))"
        ))
        .await;
    let ada = Person::administrator(&stage.host, &stage.db).await;
    let get = async |query: &str| ada.get(&format!("{RUNS}/{id}?{query}")).await.expect(200).text();
    let page = get("").await;
    assert!(page.contains("&lt;script&gt;x") && page.contains("3.9 KiB in total"), "{page}");
    assert!(page.len() < 150_000, "{}", page.len());
    let links = between(&page, "href=\"", "\">Older lines").replace("&amp;", "&");
    let (_, older) = links.rsplit_once('?').expect("the link has a query");
    let older = get(older).await;
    assert!(!older.contains("&lt;script&gt;x") && older.contains("First page"), "{older}");
    assert!(!get("level=error").await.contains("&lt;script&gt;x"));
    assert!(get("level=warn&search=LONGLONG").await.contains("&lt;script&gt;x"));
    assert!(get("search=nowhere").await.contains("No line matches"));
}

#[tokio::test]
async fn the_page_of_a_run_in_progress_follows_it() {
    let stage = Stage::hostile().await;
    stage.connection.set_metadata(json!({ "steps": 3_000, "pause_ms": 5 })).await;
    stage.connection.trigger("steps").await;
    let running = "SELECT count(*) FROM runs WHERE function_name = 'steps' AND state = 'running'";
    eventually("the run has begun", async || (stage.db.number(running).await == 1).then_some(())).await;
    let id = latest_run(&stage, "steps").await;
    let ada = Person::administrator(&stage.host, &stage.db).await;
    let page = ada.get(&format!("{RUNS}/{id}")).await.expect(200).text();
    let address = between(&page, "data-live=\"", "\"").replace("&amp;", "&");
    let mut stream = reqwest::Client::new()
        .get(format!("{}{address}", stage.host.base_url()))
        .header("cookie", ada.cookie())
        .send()
        .await
        .expect("the host answers");
    assert_eq!(stream.headers()["content-type"], "text/event-stream");
    let mut received = String::new();
    let parts = async {
        while received.matches("event: part").count() < 2 {
            let chunk = stream.chunk().await.expect("the stream is not interrupted").expect("it goes on");
            received.push_str(&String::from_utf8_lossy(&chunk));
        }
    };
    tokio::time::timeout(Duration::from_secs(30), parts).await.expect("a second part follows the first");
    assert!(received.contains("of 3,000"), "{received}");
    stage.host.delete("/connections/customer-1?provider_config_key=hostile").await.expect(200);
}

#[tokio::test]
async fn held_deletions_are_approved_on_the_page_of_the_run() {
    let (stage, id) = stage_with_held_deletions().await;
    let (page, approve) = (format!("{RUNS}/{id}"), format!("{RUNS}/{id}/approve"));
    let ada = Person::administrator(&stage.host, &stage.db).await;
    let grace = ada.invite(&stage.host, "grace@example.com", "viewer").await;
    let sync = "/dashboard/environments/dev/syncs/hostile/customer%2D1/commit%2Draw/base";
    for path in [page.as_str(), sync] {
        let shown = ada.get(path).await.expect(200).text();
        assert!(shown.contains("80 of 120 records of Item") && shown.contains(&approve), "{shown}");
        assert!(!grace.get(path).await.expect(200).text().contains(&approve));
    }
    grace.submit(&page, &approve, &[]).await.expect(403);
    let held = "/dashboard/environments/dev/syncs?state=held";
    assert!(
        ada.get("/dashboard/environments/dev/overview").await.expect(200).text().contains("syncs?state=held")
    );
    let of_connection = format!("{held}&connection=customer-1");
    for list in [held, &of_connection] {
        assert!(ada.get(list).await.expect(200).text().contains("commit-raw"));
    }
    ada.submit(&page, &approve, &[]).await.expect(303);
    for list in [held, &of_connection] {
        assert!(!ada.get(list).await.expect(200).text().contains("commit-raw"));
    }
    assert_eq!(stage.connection.status("commit-raw").await["recordCount"], json!({ "Item": 40 }));
    assert!(ada.get(&page).await.expect(200).text().contains("deletions approved"));
    ada.submit(&page, &approve, &[]).await.expect(409);
}
