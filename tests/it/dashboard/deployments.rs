//! Deployments in the dashboard.

use serde_json::json;

use crate::support::{Bundle, Host, Person, Stage, TestDatabase, between};

const DEPLOYMENTS: &str = "/dashboard/environments/dev/deployments";

#[tokio::test]
async fn a_new_environment_shows_how_to_deploy() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    let ada = Person::administrator(&host, &db).await;
    let page = ada.get(DEPLOYMENTS).await.expect(200).text();
    assert!(page.contains("Nothing is deployed yet") && page.contains("\nsyncline deploy"), "{page}");
}

#[tokio::test]
async fn the_history_shows_what_each_deployment_changed() {
    let stage = Stage::numbers(1).await;
    stage.host.deploy(&Bundle::example("minimal").tracking_deletes("numbers")).await;
    let ada = Person::administrator(&stage.host, &stage.db).await;
    let page = ada.get(DEPLOYMENTS).await.expect(200).text();
    for shown in
        ["version 1 ", "version 2 ", "replaced", "active", "added: sync", "changed: sync", "minimal/numbers"]
    {
        assert!(page.contains(shown), "{shown}: {page}");
    }
    // The name of the secret key with which the bundles were deployed.
    assert_eq!(page.matches(" by SYNCLINE_SECRET_KEY").count(), 2, "{page}");
    // The active function, with its model and a link to its runs.
    assert!(page.contains("<div>Number</div>"), "{page}");
    assert!(page.contains("runs?integration=minimal&amp;kind=sync&amp;function=numbers"), "{page}");
    let other = ada.get(&format!("{DEPLOYMENTS}?integration=other")).await.expect(200).text();
    assert!(!other.contains("<div>Number</div>"), "{other}");
}

#[tokio::test]
async fn an_earlier_version_can_be_restored_after_its_plan_was_shown() {
    let stage = Stage::numbers(1).await;
    stage.host.deploy(&Bundle::example("minimal").without_actions()).await;
    let ada = Person::administrator(&stage.host, &stage.db).await;
    let page = ada.get(DEPLOYMENTS).await.expect(200).text();
    let address = between(&page, "<a class=\"button\" href=\"", "\"");
    assert_eq!(address, format!("{DEPLOYMENTS}/minimal%2Dexample/1/restore"));
    let plan = ada.get(&address).await.expect(200).text();
    assert!(plan.contains("added: action <code>minimal/echo</code>"), "{plan}");
    assert_eq!(stage.db.number("SELECT count(*) FROM deployments").await, 2);

    ada.submit(&address, &address, &[]).await.expect(303);
    let page = ada.get(DEPLOYMENTS).await.expect(200).text();
    assert!(page.contains(", restores version 1"), "{page}");
    ada.get(&format!("{DEPLOYMENTS}/minimal-example/9/restore")).await.expect(404);
    ada.get(&format!("{DEPLOYMENTS}/minimal-example/x/restore")).await.expect(404);
    // A person who can only read sees no button and cannot restore.
    let bob = ada.invite(&stage.host, "bob@example.com", "viewer").await;
    assert!(!bob.get(DEPLOYMENTS).await.expect(200).text().contains("/restore"));
    bob.get(&address).await.expect(403);
    bob.submit(DEPLOYMENTS, &address, &[]).await.expect(403);
}

#[tokio::test]
async fn a_long_history_is_paged_and_escaped() {
    let stage = Stage::numbers(1).await;
    let change = json!([{ "change": "add", "kind": "model", "integration": null, "name": "<script>x" }]);
    stage
        .db
        .execute(&format!(
            "INSERT INTO deployments (id, environment_pk, bundle_name, version, digest, state, config, changes, deployed_by)
             SELECT gen_random_uuid(), environment_pk, bundle_name, number, digest, 'failed', config, '{change}',
                    deployed_by
             FROM deployments, generate_series(2, 15) AS number"
        ))
        .await;
    let ada = Person::administrator(&stage.host, &stage.db).await;
    let first = ada.get(DEPLOYMENTS).await.expect(200).text();
    assert!(first.contains("&lt;script&gt;x") && !first.contains("<script>x"), "{first}");
    assert_eq!(first.matches("<h3>").count(), 10);
    let next = between(&first, "rel=\"next\" href=\"", "\"");
    let second = ada.get(&next).await.expect(200).text();
    assert_eq!(second.matches("<h3>").count(), 5);
    assert!(second.contains("version 1 ") && second.contains("First page"), "{second}");
    ada.get(&format!("{DEPLOYMENTS}?before=x")).await.expect(400);
}
