//! The audit log in the dashboard.

use serde_json::{Value, json};

use super::links;
use crate::support::{Host, Person, TestDatabase, text};

const LOG: &str = "/dashboard/audit-log";
const VARIABLES: &str = "/dashboard/environments/dev/variables";

/// Sets variables with these names, each of which adds an entry.
async fn set_variables(person: &Person, names: impl IntoIterator<Item = String>) {
    for name in names {
        person.submit(VARIABLES, VARIABLES, &[("name", &*name), ("value", "planted")]).await.expect(303);
    }
}

#[tokio::test]
async fn the_audit_log_shows_and_exports_who_changed_what() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    let ada = Person::administrator(&host, &db).await;
    set_variables(&ada, ["FIRST".to_owned(), "SECOND".to_owned()]).await;
    host.post("/integrations", &json!({ "provider": "unauthenticated", "unique_key": "plain" }))
        .await
        .expect(200);
    let page = ada.get(LOG).await.expect(200).text();
    for shown in ["environment_variable.set", "integration.created", "ada@example.com", "FIRST", "plain"] {
        assert!(page.contains(shown), "{shown} in {page}");
    }
    assert!(!page.contains("planted"), "{page}");

    let export = async |filter: &str| -> Vec<Value> {
        let answer = ada.get(&format!("{LOG}/export?{filter}")).await.expect(200);
        assert!(answer.header("content-disposition").is_some_and(|text| text.contains("attachment")));
        answer.text().lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect()
    };
    let set = export("action=environment_variable.set&environment=dev&target=").await;
    assert_eq!(
        set.iter().map(|entry| text(&entry["target"]["name"])).collect::<Vec<_>>(),
        ["SECOND", "FIRST"]
    );
    assert_eq!(set[0]["actor"]["name"], "ada@example.com");
    let through_api =
        host.with_key(Some(&account_key(&ada).await)).get("/audit-log/export").await.expect(200);
    let newest: Value =
        serde_json::from_str(through_api.text().lines().nth(1).expect("entries")).expect("JSON");
    assert_eq!(newest["target"]["name"], "plain");
    assert_eq!(export("action=integration.created").await, [newest], "both exports have the same form");

    for (filter, count) in [
        (format!("actor={}", text(&set[0]["actor"]["id"])), None),
        ("action=environment_variable.set".to_owned(), Some(2)),
        ("target=FIRST".to_owned(), Some(1)),
        ("environment=none".to_owned(), Some(0)),
        ("after=2999-01-01T00:00".to_owned(), Some(0)),
        ("before=2020-01-01T00:00".to_owned(), Some(0)),
    ] {
        let page = ada.get(&format!("{LOG}?{filter}")).await.expect(200).text();
        let rows = page.matches("<tr>").count().saturating_sub(1);
        assert!(count.is_none_or(|count| rows == count), "{filter}: {rows} rows");
    }
    for bad in ["action=odd", "after=odd", "behind=odd"] {
        ada.get(&format!("{LOG}?{bad}")).await.expect(400);
    }
}

/// A secret key that may read the audit log.
async fn account_key(ada: &Person) -> String {
    let keys = "/dashboard/environments/dev/keys";
    let page = ada.submit(keys, keys, &[("name", "auditor"), ("preset", "account")]).await.expect(200).text();
    let key = page.split_once("data-copy=\"sk_").and_then(|(_, rest)| rest.split_once('"'));
    format!("sk_{}", key.expect("the key is shown").0)
}

#[tokio::test]
async fn the_audit_log_is_paged() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    let ada = Person::administrator(&host, &db).await;
    set_variables(&ada, (0..51).map(|number| format!("V{number:02}"))).await;
    let filtered = format!("{LOG}?action=environment_variable.set");
    let first = ada.get(&filtered).await.expect(200).text();
    assert!(first.contains("V50") && first.contains("V01") && !first.contains("V00"), "{first}");
    let links = links(&first, LOG);
    let next = links.iter().find(|link| link.contains("behind=")).expect("there is a next page");
    let second = ada.get(next).await.expect(200).text();
    assert!(second.contains("V00") && !second.contains("V01"), "{second}");
}

#[tokio::test]
async fn only_administrators_read_the_audit_log() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    let ada = Person::administrator(&host, &db).await;
    for role in ["viewer", "developer"] {
        let person = ada.invite(&host, &format!("{role}@example.com"), role).await;
        person.get(LOG).await.expect(403);
        person.get(&format!("{LOG}/export")).await.expect(403);
    }
}
