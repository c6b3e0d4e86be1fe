//! Accounts of the dashboard: the first one, invitations, roles, passwords and sessions.

use crate::support::{Host, PASSWORD, Person, TestDatabase, between};

#[tokio::test]
async fn the_first_account_is_created_with_the_link_that_the_host_prints() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    let log = host.log();
    let token = between(&log, "/dashboard/link?token=", "\n");
    let visitor = Person::signed_out(&host);
    let page = visitor.get(&format!("/dashboard/link?token={token}")).await.expect(200).text();
    assert!(page.contains("Create the first account"), "{page}");
    let fields =
        [("token", &*token), ("name", "Ada"), ("email", "Ada@Example.com"), ("new_password", PASSWORD)];
    visitor.post("/dashboard/link", &fields).await.expect(303);
    // The link works once, and a host with an account prints none.
    visitor.post("/dashboard/link", &fields).await.expect(410);
    let ada = Person::sign_in(&host, "ada@example.com", PASSWORD).await.expect("the password is right");
    let page = ada.get("/dashboard/accounts").await.expect(200).text();
    assert!(page.contains("ada@example.com"), "{page}");
    drop(host);
    let host = Host::spawn(&db).await;
    assert!(!host.log().contains("/dashboard/link"), "{}", host.log());
}

#[tokio::test]
async fn an_invited_colleague_chooses_a_password() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    let ada = Person::administrator(&host, &db).await;
    let grace = ada.invite(&host, "grace@example.com", "viewer").await;
    grace.get("/dashboard/environments").await.expect(200);
    let again = [("name", "Grace"), ("email", "GRACE@example.com"), ("role", "viewer")];
    ada.submit("/dashboard/accounts", "/dashboard/accounts", &again).await.expect(409);
}

#[tokio::test]
async fn a_role_limits_pages_and_actions() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    let ada = Person::administrator(&host, &db).await;
    let viewer = ada.invite(&host, "viewer@example.com", "viewer").await;
    let developer = ada.invite(&host, "developer@example.com", "developer").await;
    for path in ["/dashboard/accounts", "/dashboard/environments/dev/keys"] {
        ada.get(path).await.expect(200);
        developer.get(path).await.expect(403);
        viewer.get(path).await.expect(403);
    }
    developer.get("/dashboard/environments/dev/variables").await.expect(200);
    viewer.get("/dashboard/environments/dev/variables").await.expect(403);
    // A person can send a form that no page shows them.
    for (path, fields) in [
        ("/dashboard/accounts", &[("name", "X"), ("email", "x@example.com"), ("role", "administrator")][..]),
        ("/dashboard/environments", &[("name", "staging")]),
        ("/dashboard/environments/dev/keys", &[("name", "k"), ("preset", "full")]),
        ("/dashboard/environments/dev/variables", &[("name", "A"), ("value", "b")]),
        ("/dashboard/environments/dev/delete", &[]),
    ] {
        viewer.submit("/dashboard/profile", path, fields).await.expect(403);
    }
    // A new role takes effect with the next request.
    let page = ada.get("/dashboard/accounts").await.expect(200).text();
    let row = page.split("<tr>").find(|row| row.contains("developer@example.com")).expect("it is listed");
    let action = between(row, "action=\"", "\"");
    ada.submit("/dashboard/accounts", &action, &[("role", "viewer")]).await.expect(303);
    developer.get("/dashboard/environments/dev/variables").await.expect(403);
}

#[tokio::test]
async fn the_last_administrator_stays() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    let ada = Person::administrator(&host, &db).await;
    let page = ada.get("/dashboard/accounts").await.expect(200).text();
    let role = between(&page, "action=\"/dashboard/accounts/", "/role");
    let base = format!("/dashboard/accounts/{role}");
    ada.submit("/dashboard/accounts", &format!("{base}/role"), &[("role", "viewer")]).await.expect(409);
    ada.submit("/dashboard/accounts", &format!("{base}/delete"), &[]).await.expect(409);
    // A second administrator counts only after choosing a password.
    host.command(&db, &["admin", "create", "grace@example.com"]);
    ada.submit("/dashboard/accounts", &format!("{base}/delete"), &[]).await.expect(409);
    ada.invite(&host, "joan@example.com", "administrator").await;
    ada.submit("/dashboard/accounts", &format!("{base}/delete"), &[]).await.expect(303);
    ada.get("/dashboard/profile").await.expect(303);
}

#[tokio::test]
async fn a_new_password_signs_out_other_browsers() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    let ada = Person::administrator(&host, &db).await;
    let other = Person::sign_in(&host, "ada@example.com", PASSWORD).await.expect("the password is right");
    let change = async |current: &str, new: &str| {
        let fields = [("current_password", current), ("new_password", new)];
        ada.submit("/dashboard/profile", "/dashboard/profile/password", &fields).await
    };
    change("wrong", "a new long password").await.expect(401);
    change(PASSWORD, "short").await.expect(400);
    change(PASSWORD, "a new long password").await.expect(303);
    ada.get("/dashboard/profile").await.expect(200);
    other.get("/dashboard/profile").await.expect(303);
    assert!(Person::sign_in(&host, "ada@example.com", PASSWORD).await.is_err());
}

#[tokio::test]
async fn a_person_can_sign_out_another_browser() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    let ada = Person::administrator(&host, &db).await;
    let other = Person::sign_in(&host, "ada@example.com", PASSWORD).await.expect("the password is right");
    let page = ada.get("/dashboard/profile").await.expect(200).text();
    let session = between(&page, "/dashboard/profile/sessions/", "/end");
    let path = format!("/dashboard/profile/sessions/{session}/end");
    ada.submit("/dashboard/profile", &path, &[]).await.expect(303);
    other.get("/dashboard/profile").await.expect(303);
    ada.submit("/dashboard/profile", &path, &[]).await.expect(404);
}
