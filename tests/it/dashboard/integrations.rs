//! The pages about integrations and the catalogue of providers.

use serde_json::json;

use super::{change, open};
use crate::support::{Host, Person, TestDatabase};

const SCRIPT: &str = "<script>alert('planted')</script>";
const ESCAPED: &str = "&lt;script&gt;alert('planted')&lt;/script&gt;";

async fn stage() -> (TestDatabase, Host, Person) {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    let person = Person::administrator(&host, &db).await;
    (db, host, person)
}

#[tokio::test]
async fn an_integration_is_set_up_changed_and_deleted() {
    let (_db, host, person) = stage().await;
    let empty = open(&person, "integrations").await;
    assert!(empty.contains("There is no integration yet") && empty.contains("curl "), "{empty}");

    let form = open(&person, "providers/stripe-api-key").await;
    assert!(form.contains(r#"name="unique_key" value="stripe-api-key""#), "{form}");
    let fields =
        [("unique_key", "pay: eu"), ("display_name", SCRIPT), ("webhook_secret", "planted-webhook-secret")];
    let (status, page) = change(&person, "providers/stripe-api-key", &fields).await;
    assert_eq!(status, 200, "{page}");
    assert!(
        page.contains(&format!("{}/webhook/", host.base_url())) && page.contains("/pay%3A%20eu"),
        "{page}"
    );
    assert!(page.contains(ESCAPED) && !page.contains(SCRIPT), "{page}");
    let created = host.get("/integrations/pay:%20eu").await.expect(200).json();
    assert_eq!(
        (&created["data"]["display_name"], &created["data"]["forward_webhooks"]),
        (&json!(SCRIPT), &json!(false))
    );

    let (status, page) = change(&person, "providers/stripe-api-key", &[("unique_key", "pay: eu")]).await;
    assert_eq!(status, 400, "{page}");
    assert!(page.contains("Key: another integration has the key `pay: eu`"), "{page}");

    let fields = [("unique_key", "pay"), ("display_name", "Payments"), ("forward_webhooks", "true")];
    let (status, page) = change(&person, "integrations/pay%3A%20eu/edit", &fields).await;
    assert_eq!(status, 200, "{page}");
    let changed = host.get("/integrations/pay").await.expect(200).json();
    assert_eq!(
        (&changed["data"]["display_name"], &changed["data"]["forward_webhooks"]),
        (&json!("Payments"), &json!(true))
    );
    let list = open(&person, "integrations").await;
    assert!(list.contains("Payments") && !list.contains("pay: eu"), "{list}");

    let (status, page) = change(&person, "integrations/pay/delete", &[("confirmation", "play")]).await;
    assert_eq!(status, 400, "{page}");
    let (status, page) = change(&person, "integrations/pay/delete", &[("confirmation", "pay")]).await;
    assert_eq!(status, 200, "{page}");
    assert_eq!(host.get("/integrations/pay").await.status.as_u16(), 404);
    // The page was still open in another tab.
    let (status, _) = change(&person, "integrations/pay/delete", &[("confirmation", "pay")]).await;
    assert_eq!(status, 404);
}

#[tokio::test]
async fn the_credentials_of_an_app_are_replaced_and_its_secrets_never_shown() {
    let (_db, host, person) = stage().await;
    let callback = format!("{}/oauth/callback", host.base_url());
    let form = open(&person, "providers/github").await;
    assert!(form.contains(&callback), "{form}");
    let (status, page) =
        change(&person, "providers/github", &[("unique_key", "code"), ("client_id", "id-1")]).await;
    assert_eq!(status, 400, "{page}");
    assert!(page.contains("Client secret: "), "{page}");

    let fields = [
        ("unique_key", "code"),
        ("client_id", "id-1"),
        ("client_secret", "planted-client-secret"),
        ("scopes", "repo, read:org"),
    ];
    let (status, page) = change(&person, "providers/github", &fields).await;
    assert_eq!(status, 200, "{page}");
    assert!(page.contains(&callback) && !page.contains("planted-client-secret"), "{page}");
    // Without a new secret, the stored one stays.
    let fields = [("client_id", "id-2"), ("scopes", "repo")];
    let (status, page) = change(&person, "integrations/code/credentials/replace", &fields).await;
    assert_eq!(status, 200, "{page}");
    let (status, page) = change(&person, "integrations/code/credentials", &[]).await;
    assert_eq!(status, 200, "{page}");
    assert!(page.contains("id-2") && page.contains("********"), "{page}");
    assert!(!page.contains("planted-client-secret"), "{page}");
    let stored = host.get("/integrations/code?include=credentials").await.expect(200).json();
    assert_eq!(stored["data"]["credentials"]["scopes"], json!("repo"));
}

#[tokio::test]
async fn the_catalogue_is_searched_and_paged() {
    let (_db, _host, person) = stage().await;
    let first = open(&person, "providers").await;
    assert!(first.len() < 150_000, "{} bytes", first.len());
    assert!(first.contains("active-campaign") && first.contains("Next page"), "{first}");
    assert!(!first.contains("template-logos/stripe.svg"));
    let found = open(&person, "providers?search=STRIPE").await;
    assert!(
        found.contains("template-logos/stripe-api-key.svg") && !found.contains("active-campaign"),
        "{found}"
    );
    let found = open(&person, "providers?search=stripe&mode=OAUTH2&category=payment").await;
    assert!(found.contains("template-logos/stripe.svg") && !found.contains("stripe-api-key"), "{found}");
    let nothing = open(&person, "providers?search=%3Cscript%3Ealert('planted')%3C/script%3E%00").await;
    assert!(nothing.contains("No provider matches") && nothing.contains(ESCAPED), "{nothing}");
}

#[tokio::test]
async fn a_viewer_cannot_change_integrations_or_see_credentials() {
    let (_db, host, person) = stage().await;
    host.post("/integrations", &json!({ "provider": "stripe-api-key", "unique_key": "pay" }))
        .await
        .expect(200);
    let viewer = person.invite(&host, "grace@example.com", "viewer").await;
    let page = open(&viewer, "integrations/pay").await;
    for action in ["/edit", "/delete", "/credentials", "connections/connect"] {
        assert!(!page.contains(&format!("{action}\"")), "{action}: {page}");
    }
    for path in [
        "providers/stripe-api-key",
        "integrations/pay/edit",
        "integrations/pay/delete",
        "integrations/pay/credentials",
        "integrations/pay/credentials/replace",
    ] {
        let (status, page) = change(&viewer, path, &[("unique_key", "x"), ("confirmation", "pay")]).await;
        assert_eq!(status, 403, "{path}: {page}");
    }
    host.get("/integrations/pay").await.expect(200);
}
