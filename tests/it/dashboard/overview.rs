//! The first page of an environment in the dashboard.

use serde_json::json;

use crate::support::{Host, Person, Stage, TestDatabase, eventually};

const OVERVIEW: &str = "/dashboard/environments/dev/overview";

#[tokio::test]
async fn a_new_environment_shows_the_first_steps() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    let ada = Person::administrator(&host, &db).await;
    let page = ada.get(OVERVIEW).await.expect(200).text();
    for shown in
        ["1. Create a secret key", "2. Deploy a function", "3. Connect an account", "/connect/sessions"]
    {
        assert!(page.contains(shown), "{shown}: {page}");
    }
}

#[tokio::test]
async fn ended_runs_appear_in_figures_charts_and_the_table() {
    let stage = Stage::hostile().await;
    for message in ["one", "two"] {
        let input = json!({ "code": "none", "message": message });
        stage.connection.action("fail", &input).await.expect(400);
    }
    let ada = Person::administrator(&stage.host, &stage.db).await;
    let page = eventually("the runs are counted", async || {
        let page = ada.get(OVERVIEW).await.expect(200).text();
        page.contains("2 failed").then_some(page)
    })
    .await;
    assert_eq!(page.matches("<svg").count(), 4, "{page}");
    assert!(page.contains("runs?state=error&amp;integration=hostile"), "{page}");
    for range in ["day", "week", "month"] {
        let page = ada.get(&format!("{OVERVIEW}?range={range}&integration=hostile")).await.expect(200).text();
        assert!(page.contains("2 failed"), "{range}: {page}");
    }
    ada.get(&format!("{OVERVIEW}?integration=others")).await.expect(404);
}

#[tokio::test]
async fn what_needs_attention_links_to_its_list() {
    let stage = Stage::hostile().await;
    let ada = Person::administrator(&stage.host, &stage.db).await;
    let page = ada.get(OVERVIEW).await.expect(200).text();
    assert!(page.contains("Nothing: no failing connections"), "{page}");
    stage.connection.set_metadata(json!({ "steps": 0, "commits": [], "end": "fail" })).await;
    assert_eq!(stage.connection.run("commit-raw").await["status"], "ERROR");
    let page = ada.get(OVERVIEW).await.expect(200).text();
    assert!(page.contains("syncs?state=failing") && page.contains("failing syncs"), "{page}");
    let list = ada.get("/dashboard/environments/dev/syncs?state=failing").await.expect(200).text();
    assert!(list.contains("/commit%2Draw/base\">"), "{list}");
}
