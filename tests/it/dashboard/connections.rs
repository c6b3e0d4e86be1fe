//! The pages about connections.

use serde_json::{Value, json};

use super::{change, in_environment, open};
use crate::support::{Host, Person, TestDatabase, between};

const SCRIPT: &str = "<script>alert('planted')</script>";

/// A host with the integration `pay`.
async fn stage() -> (TestDatabase, Host, Person) {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    host.post("/integrations", &json!({ "provider": "stripe-api-key", "unique_key": "pay" }))
        .await
        .expect(200);
    let person = Person::administrator(&host, &db).await;
    (db, host, person)
}

/// Imports a connection with these additional members.
async fn import(host: &Host, id: &str, more: Value) {
    let mut body = json!({
        "connection_id": id, "provider_config_key": "pay",
        "credentials": { "type": "BASIC", "username": "planted-provider-key", "password": "" },
    });
    body.as_object_mut().expect("it is an object").extend(more.as_object().cloned().unwrap_or_default());
    host.post("/connections", &body).await.expect(201);
}

#[tokio::test]
async fn connections_are_listed_in_pages_and_filtered() {
    let (db, host, person) = stage().await;
    let empty = open(&person, "connections").await;
    assert!(
        empty.contains("There is no connection yet") && empty.contains("Connect a test account"),
        "{empty}"
    );
    for number in 0..60 {
        let plan = if number == 7 { "pro" } else { "free" };
        import(&host, &format!("user-{number:02}"), json!({ "tags": { "plan": plan } })).await;
    }
    let first = open(&person, "connections").await;
    let has = |page: &str, id: &str| page.contains(&format!("{id}</a>"));
    assert!(has(&first, "user-59") && has(&first, "user-10") && !has(&first, "user-09"), "newest first");
    assert!(!first.contains("First page"));
    let next = between(&first, "rel=\"next\" href=\"", "\"").replace("&amp;", "&");
    let second = person.get(&next).await.expect(200).text();
    assert!(has(&second, "user-09") && has(&second, "user-00") && !has(&second, "user-10"), "{second}");
    assert!(second.contains("First page") && !second.contains("Next page"), "{second}");

    let tagged = open(&person, "connections?tag=Plan%3Dpro").await;
    assert!(has(&tagged, "user-07") && !has(&tagged, "user-08"), "{tagged}");
    let found = open(&person, "connections?search=ER-42&integration=pay").await;
    assert!(has(&found, "user-42") && !has(&found, "user-43"), "{found}");
    let nothing = open(&person, "connections?integration=other").await;
    assert!(nothing.contains("No connection matches"), "{nothing}");

    for (id, kind, subject) in [("user-03", "auth", ""), ("user-04", "sync", "orders::base")] {
        db.execute(&format!(
            "INSERT INTO connection_errors (environment_pk, connection_pk, type, subject, log_id, code, message) \
             SELECT environment_pk, pk, '{kind}', '{subject}', gen_random_uuid(), 'invalid_credentials', '{SCRIPT_SQL}' \
             FROM connections WHERE connection_id = '{id}'"
        ))
        .await;
    }
    for (errors, shown, hidden) in [
        ("any", &["user-03", "user-04"][..], "user-05"),
        ("auth", &["user-03"], "user-04"),
        ("sync", &["user-04"], "user-03"),
    ] {
        let page = open(&person, &format!("connections?errors={errors}")).await;
        assert!(shown.iter().all(|id| has(&page, id)) && !has(&page, hidden), "{errors}: {page}");
    }
    let failing = open(&person, "connections/pay/user-04").await;
    assert!(failing.contains("a sync failed") && failing.contains("orders"), "{failing}");
    assert!(failing.contains("&lt;script&gt;") && !failing.contains(SCRIPT), "{failing}");
    let integration = open(&person, "integrations/pay").await;
    assert!(integration.contains("2 with errors"), "{integration}");
    for malformed in ["behind=1", "behind=a.b", "tag=plan"] {
        assert_eq!(person.get(&in_environment(&format!("connections?{malformed}"))).await.status, 400);
    }
}

/// [`SCRIPT`] in an SQL text.
const SCRIPT_SQL: &str = "<script>alert(''planted'')</script>";

#[tokio::test]
async fn the_page_of_a_connection_shows_credentials_only_on_request() {
    let (db, host, person) = stage().await;
    let user = json!({
        "end_user": { "id": "7", "display_name": SCRIPT }, "metadata": { "note": SCRIPT },
        "tags": { "plan": "pro", "remark": SCRIPT },
    });
    import(&host, "a/b+c \"d\"", user).await;
    let list = open(&person, "connections").await;
    assert!(list.contains("<div>remark=&lt;script&gt;alert") && !list.contains(SCRIPT), "{list}");
    let path = "connections/pay/a%2Fb%2Bc%20%22d%22";
    let page = open(&person, path).await;
    for shown in ["<dt>remark</dt><dd>&lt;script&gt;alert", "<dt>Name</dt><dd>&lt;script&gt;alert", "plan"] {
        assert!(page.contains(shown) && !page.contains(SCRIPT), "{shown}: {page}");
    }
    assert!(!page.contains("planted-provider-key"), "{page}");
    let fetched = "SELECT count(*) FROM connections WHERE last_fetched_at IS NOT NULL";
    assert_eq!(db.number(fetched).await, 0, "the page is not a request for credentials");

    let (status, page) = change(&person, &format!("{path}/credentials"), &[]).await;
    assert_eq!(status, 200, "{page}");
    assert!(page.contains("planted-provider-key"), "{page}");
    assert_eq!(db.number(fetched).await, 1);
    let (status, page) = change(&person, &format!("{path}/refresh"), &[]).await;
    assert_eq!(status, 200, "{page}");

    let (status, page) = change(&person, &format!("{path}/delete"), &[]).await;
    assert_eq!(status, 200, "{page}");
    let (status, page) = change(&person, &format!("{path}/delete"), &[]).await;
    assert_eq!(status, 404, "{page}");
    assert!(page.contains("has no connection"), "{page}");
}

#[tokio::test]
async fn the_metadata_form_does_not_overwrite_a_change_that_was_not_seen() {
    let (_db, host, person) = stage().await;
    import(&host, "user-1", json!({ "metadata": { "region": "eu" } })).await;
    let path = "connections/pay/user-1";
    let page = open(&person, path).await;
    let edited = between(&page, "name=\"edited\" value=\"", "\"");
    let metadata = format!("{path}/metadata");
    for bad in ["{", "[]", "{\"a\": \"\\u0000\"}"] {
        let (status, page) = change(&person, &metadata, &[("edited", &edited), ("metadata", bad)]).await;
        assert_eq!(status, 400, "{bad}: {page}");
    }
    let fields = [("edited", edited.as_str()), ("metadata", "{\"region\": \"us\"}")];
    let (status, page) = change(&person, &metadata, &fields).await;
    assert_eq!(status, 200, "{page}");
    let read = async || {
        let query = "/connections/user-1?provider_config_key=pay";
        host.get(query).await.expect(200).json()["metadata"].clone()
    };
    assert_eq!(read().await, json!({ "region": "us" }));
    let (status, page) = change(&person, &metadata, &fields).await;
    assert_eq!(status, 400, "{page}");
    assert!(page.contains("it was changed since you opened this page"), "{page}");
    assert_eq!(read().await, json!({ "region": "us" }));
}

#[tokio::test]
async fn a_test_account_is_connected_in_the_connect_ui() {
    let (db, host, person) = stage().await;
    import(&host, "user-1", json!({})).await;
    for (path, fields) in [
        ("connections/connect", &[][..]),
        ("connections/connect", &[("integration", "pay")]),
        ("connections/pay/user-1/reconnect", &[]),
    ] {
        let answer = person.submit("/dashboard/profile", &in_environment(path), fields).await.expect(303);
        let link = format!("{}/connect/?session_token=nango_connect_session_", host.base_url());
        assert!(answer.header("location").is_some_and(|to| to.starts_with(&link)), "{path}: {answer:?}");
    }
    let users = db.texts("SELECT end_user->>'id' FROM connect_sessions WHERE end_user IS NOT NULL").await;
    assert_eq!(users, ["test-ada@example.com", "test-ada@example.com"]);
    let (status, page) = change(&person, "connections/connect", &[("integration", "other")]).await;
    assert_eq!(status, 404, "{page}");
}

#[tokio::test]
async fn a_viewer_cannot_change_connections_or_see_credentials() {
    let (_db, host, person) = stage().await;
    import(&host, "user-1", json!({})).await;
    let viewer = person.invite(&host, "grace@example.com", "viewer").await;
    let page = open(&viewer, "connections/pay/user-1").await;
    for action in ["credentials", "refresh", "metadata", "delete", "reconnect"] {
        assert!(!page.contains(&format!("user%2D1/{action}\"")), "{action}: {page}");
        let (status, page) =
            change(&viewer, &format!("connections/pay/user-1/{action}"), &[("metadata", "{}")]).await;
        assert_eq!(status, 403, "{action}: {page}");
    }
    let (status, page) = change(&viewer, "connections/connect", &[]).await;
    assert_eq!(status, 403, "{page}");
}
