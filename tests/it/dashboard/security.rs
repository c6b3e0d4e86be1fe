//! What strangers and other sites cannot do with the dashboard.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::{Host, PASSWORD, Person, TestDatabase};

#[tokio::test]
async fn a_page_needs_a_session_and_returns_to_itself_after_sign_in() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    let stranger = Person::signed_out(&host);
    let answer = stranger.get("/dashboard/environments/dev/runs?status=failed").await.expect(303);
    let place = answer.header("location").expect("it redirects").to_owned();
    assert!(place.starts_with("/dashboard/sign-in?return_to="), "{place}");
    let page = stranger.get(&place).await.expect(200).text();
    assert!(page.contains("value=\"/dashboard/environments/dev/runs?status=failed\""), "{page}");
    stranger.post("/dashboard/environments", &[("name", "staging")]).await.expect(401);
}

#[tokio::test]
async fn repeated_wrong_passwords_lock_the_address_for_a_growing_time() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    Person::administrator(&host, &db).await;
    // An address without an account is treated in the same way.
    for email in ["ada@example.com", "nobody@example.com"] {
        let mut messages = Vec::new();
        for _ in 0..5 {
            let refused = Person::sign_in(&host, email, "wrong password").await.expect_err("it is wrong");
            messages.push(refused.expect(401).text().contains("email address or the password is wrong"));
        }
        assert_eq!(messages, [true; 5], "{email}");
        let locked = Person::sign_in(&host, email, PASSWORD).await.expect_err("the address is locked");
        assert!(locked.expect(429).text().contains("try again in"), "{email}");
    }
    // Only failures after the lock count again, and each one doubles the time.
    let wait =
        "SELECT extract(epoch FROM locked_until - last_failure_at)::bigint FROM sign_in_failures LIMIT 1";
    assert_eq!(db.number(wait).await, 30);
    db.execute("UPDATE sign_in_failures SET locked_until = now()").await;
    Person::sign_in(&host, "ada@example.com", "wrong password").await.expect_err("it is wrong").expect(401);
    let longest =
        "SELECT max(extract(epoch FROM locked_until - last_failure_at))::bigint FROM sign_in_failures";
    assert_eq!(db.number(longest).await, 60);
    db.execute("UPDATE sign_in_failures SET locked_until = now()").await;
    assert!(Person::sign_in(&host, "ada@example.com", PASSWORD).await.is_ok());
}

#[tokio::test]
async fn a_stolen_cookie_is_worthless_after_the_owner_signed_out() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    let ada = Person::administrator(&host, &db).await;
    let stolen = ada.cookie().to_owned();
    assert!(!db.texts("SELECT encode(token_hash, 'hex') FROM account_sessions").await[0].is_empty());
    ada.submit("/dashboard/profile", "/dashboard/sign-out", &[]).await.expect(303);
    let used = host.with_key(None).request("GET", "/dashboard/profile").header("cookie", &stolen);
    used.send().await.expect(200).text().contains("Sign in").then_some(()).expect("the sign-in page");
}

#[tokio::test]
async fn forms_of_other_sites_and_forms_without_the_token_are_rejected() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    let ada = Person::administrator(&host, &db).await;
    ada.post("/dashboard/environments", &[("name", "staging")]).await.expect(403);
    ada.post("/dashboard/environments", &[("name", "staging"), ("form_token", "x")]).await.expect(403);
    for (name, value) in [("sec-fetch-site", "cross-site"), ("origin", "https://evil.example")] {
        for path in ["/dashboard/environments", "/dashboard/sign-in"] {
            let request = host.with_key(None).request("POST", path).header(name, value);
            let request = request.header("cookie", ada.cookie()).header("x-dashboard-script", "1");
            let answer = request.bytes("name=staging").send().await.expect(403);
            assert_eq!(answer.json()["code"], "cross_site_request", "{path}");
        }
    }
    let page = ada.get("/dashboard/environments").await.expect(200).text();
    assert!(!page.contains("/dashboard/environments/staging/"), "{page}");
}

#[tokio::test]
async fn pages_have_strict_security_headers() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    let ada = Person::administrator(&host, &db).await;
    for path in ["/dashboard/profile", "/dashboard/sign-in", "/dashboard/unknown"] {
        let answer = ada.get(path).await;
        let policy = answer.header("content-security-policy").expect("there is a policy");
        assert!(policy.starts_with("default-src 'none'; script-src 'self'; style-src 'self';"), "{policy}");
        assert!(policy.contains("frame-ancestors 'none'"), "{policy}");
        assert_eq!(answer.header("cache-control"), Some("no-store"), "{path}");
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"), "{path}");
    }
    ada.get("/dashboard/unknown").await.expect(404);
}

#[tokio::test]
async fn a_lost_database_is_shown_and_the_dashboard_recovers() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    let ada = Person::administrator(&host, &db).await;
    db.refuse_connections().await;
    let page = ada.get("/dashboard/environments").await.expect(503);
    assert!(page.text().contains("The database does not respond"), "{}", page.text());
    assert_eq!(page.header("refresh"), Some("5"));
    let ready: Value = host.with_key(None).get("/ready").await.expect(503).json();
    assert_eq!(ready["result"], "no database");
    db.accept_connections().await;
    let began = Instant::now();
    while ada.get("/dashboard/environments").await.status.as_u16() != 200 {
        assert!(began.elapsed() < Duration::from_secs(60), "the dashboard did not recover");
    }
}
