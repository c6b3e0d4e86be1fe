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
    let account = account_of(&ada, "developer@example.com").await;
    ada.submit("/dashboard/accounts", &format!("{account}/role"), &[("role", "viewer")]).await.expect(303);
    developer.get("/dashboard/environments/dev/variables").await.expect(403);
}

#[tokio::test]
async fn only_administrators_change_accounts() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    let ada = Person::administrator(&host, &db).await;
    let viewer = ada.invite(&host, "viewer@example.com", "viewer").await;
    let developer = ada.invite(&host, "developer@example.com", "developer").await;
    let accounts = "SELECT email || ' ' || role FROM accounts ORDER BY email";
    let before = db.texts(accounts).await;
    let links = "SELECT count(*) FROM audit_log WHERE action = 'account.password_link_created'";
    for email in ["ada@example.com", "viewer@example.com", "developer@example.com"] {
        let account = account_of(&ada, email).await;
        // No page shows these forms to them.
        for person in [&viewer, &developer] {
            for (command, fields) in
                [("role", &[("role", "administrator")][..]), ("link", &[]), ("delete", &[])]
            {
                let path = format!("{account}/{command}");
                person.submit("/dashboard/profile", &path, fields).await.expect(403);
            }
        }
    }
    assert_eq!(db.texts(accounts).await, before);
    assert_eq!(db.number(links).await, 0);
}

/// The path of the forms about an account.
async fn account_of(administrator: &Person, email: &str) -> String {
    let page = administrator.get("/dashboard/accounts").await.expect(200).text();
    let role = format!("Role of {email}");
    let row = page.split("<tr>").find(|row| row.contains(&role)).expect("the account is listed");
    between(row, "action=\"", "/role\"")
}

#[tokio::test]
async fn changes_of_accounts_have_entries_in_the_audit_log() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    let ada = Person::administrator(&host, &db).await;
    let grace = ada.invite(&host, "grace@example.com", "viewer").await;
    let account = account_of(&ada, "grace@example.com").await;
    let change = async |command: &str, fields: &[(&str, &str)], status: u16| {
        ada.submit("/dashboard/accounts", &format!("{account}/{command}"), fields).await.expect(status);
    };
    change("role", &[("role", "developer")], 303).await;
    change("link", &[], 200).await;
    let fields = [("current_password", PASSWORD), ("new_password", "a new long password")];
    grace.submit("/dashboard/profile", "/dashboard/profile/password", &fields).await.expect(303);
    Person::sign_in(&host, "grace@example.com", PASSWORD).await.expect_err("the password is wrong");
    Person::sign_in(&host, "grace@example.com", "a new long password").await.expect("it is right");
    grace.submit("/dashboard/profile", "/dashboard/sign-out", &[]).await.expect(303);
    change("delete", &[], 303).await;
    let author = "CASE actor_kind WHEN 'account' THEN actor_name ELSE actor_kind END";
    let entries = db
        .texts(&format!(
            "SELECT {author} || ': ' || action || ' ' || target FROM audit_log WHERE action LIKE 'account.%' ORDER BY pk"
        ))
        .await;
    assert_eq!(
        entries,
        [
            "command_line: account.created ada@example.com",
            "ada@example.com: account.password_changed ada@example.com",
            "ada@example.com: account.signed_in ada@example.com",
            "ada@example.com: account.created grace@example.com",
            "grace@example.com: account.password_changed grace@example.com",
            "grace@example.com: account.signed_in grace@example.com",
            "ada@example.com: account.role_changed grace@example.com",
            "ada@example.com: account.password_link_created grace@example.com",
            "grace@example.com: account.password_changed grace@example.com",
            "grace@example.com: account.signed_in grace@example.com",
            "grace@example.com: account.signed_out grace@example.com",
            "ada@example.com: account.deleted grace@example.com",
        ]
    );
    let roles = "SELECT (details->>'from') || ' ' || (details->>'to') FROM audit_log \
                 WHERE action = 'account.role_changed'";
    assert_eq!(db.texts(roles).await, ["viewer developer"]);
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
