//! Other authorization flows with redirects: OAuth 1, and the installation of an app.

use serde_json::{Value, json};

use crate::support::{Answer, Api, Browser, Host, PythonServer, TestDatabase, free_port, repository, text};

const KEY: &str = "desk";

async fn integrate(host: &Api, provider: &str, credentials: Value) {
    let body = json!({ "provider": provider, "unique_key": KEY, "credentials": credentials });
    host.post("/integrations", &body).await.expect(200);
}

/// The address at which a browser starts the authorization.
async fn start(host: &Api) -> String {
    let session = host.post("/connect/sessions", &json!({ "tags": {} })).await.expect(201).json();
    let token = text(&session["data"]["token"]);
    format!("{}/oauth/connect/{KEY}?connect_session_token={token}", host.base_url())
}

async fn only_connection(host: &Api) -> Value {
    let listed = host.get("/connections").await.expect(200).json();
    assert_eq!(listed["connections"].as_array().expect("a list").len(), 1, "{listed}");
    let id = text(&listed["connections"][0]["connection_id"]);
    host.get(&format!("/connections/{id}?provider_config_key={KEY}")).await.expect(200).json()
}

#[track_caller]
fn expect_failure(answer: &Answer, code: &str) {
    let page = answer.clone().expect(400).text();
    assert!(page.contains(&format!("data-code=\"{code}\"")), "no `{code}` in {page}");
}

async fn oauth1_host(method: &str) -> (Host, PythonServer, TestDatabase) {
    let (db, server) = (TestDatabase::create().await, PythonServer::start("oauth1.py", &[]).await);
    server.write_entry(
        "test-oauth1",
        &format!(
            "auth_mode = \"OAUTH1\"\nsignature_method = \"{method}\"\nrequest_url = \"BASE/request_token\"\n\
             authorization_url = \"BASE/authorize\"\ntoken_url = \"BASE/access_token\"\n\
             [proxy]\nbase_url = \"BASE\"\nverification = {{ method = \"GET\", endpoint = \"/me\" }}"
        ),
    );
    let host = server.host_options(&db).spawn().await;
    let app = json!({
        "type": "OAUTH1", "client_id": "consumer", "client_secret": "planted-consumer-secret",
    });
    integrate(&host, "test-oauth1", app).await;
    (host, server, db)
}

#[tokio::test]
async fn oauth_1_connects_with_every_signature_method() {
    for method in ["HMAC-SHA1", "HMAC-SHA256", "PLAINTEXT"] {
        let (host, _server, _db) = oauth1_host(method).await;
        let mut browser = Browser::new();
        let back = browser.visit(&start(&host).await).await;
        back.answer.expect(200);
        let credentials = only_connection(&host).await["credentials"].clone();
        assert_eq!(credentials["type"], "OAUTH1", "{method}");
        assert_eq!(credentials["oauth_token"], credentials["raw"]["oauth_token"], "{method}");
        assert!(!text(&credentials["oauth_token_secret"]).is_empty(), "{method}");
        expect_failure(&browser.visit(back.url.as_str()).await.answer, "state_err");
        assert!(!host.log().contains("planted"), "a secret is in the log: {}", host.log());
    }
}

#[tokio::test]
async fn oauth_1_rejects_invalid_callbacks_and_credentials() {
    let (host, _server, _db) = oauth1_host("HMAC-SHA1").await;
    let denied = format!("{}&authorization_params[deny]=yes", start(&host).await);
    expect_failure(&Browser::new().visit(&denied).await.answer, "access_denied");

    let mut browser = Browser::new();
    let callback = format!("{}/oauth/callback", host.base_url());
    let mut leave = async || browser.visit_until(&start(&host).await, &callback).await.url;
    let elsewhere = leave().await;
    expect_failure(&Browser::new().visit(elsewhere.as_str()).await.answer, "state_cookie_err");
    let other_token = leave().await.as_str().replace("oauth_token=", "oauth_token=x");
    let other_verifier = leave().await.as_str().replace("oauth_verifier=", "oauth_verifier=x");
    expect_failure(&browser.visit(&other_token).await.answer, "state_err");
    expect_failure(&browser.visit(&other_verifier).await.answer, "token_err");

    let app =
        json!({ "credentials": { "type": "OAUTH1", "client_id": "consumer", "client_secret": "wrong" } });
    let changed = host.request("PATCH", &format!("/integrations/{KEY}")).json(&app).send().await;
    changed.expect(200);
    expect_failure(&Browser::new().visit(&start(&host).await).await.answer, "token_err");
    let listed = host.get("/connections").await.expect(200).json();
    assert_eq!(listed, json!({ "connections": [] }));
}

/// A host whose integration is an app. `page` is one of the provider's pages.
async fn app_host(mode: &str, page: &str, key: &str) -> (Host, PythonServer, TestDatabase) {
    // The provider redirects browsers to this address of the host.
    let (db, port) = (TestDatabase::create().await, free_port());
    let public_key = repository("tests/keys/rsa_public.pem");
    let host_url = format!("http://127.0.0.1:{port}");
    let server =
        PythonServer::start("apps.py", &[public_key.to_str().expect("a plain path"), &host_url]).await;
    let urls = match mode {
        "APP" => {
            "token_url = \"BASE/app/installations/${connectionConfig.installation_id}/access_tokens\"\n\
                  token_response = { access_token = \"token\" }"
        }
        _ => {
            "authorization_url = \"BASE/authorize\"\ntoken_url = \"BASE/login/oauth/access_token\"\n\
              installations_url = \"BASE/user/installations\"\n\
              refresh_url = \"BASE/app/installations/${connectionConfig.installation_id}/access_tokens\""
        }
    };
    server.write_entry(
        "test-app",
        &format!(
            "auth_mode = \"{mode}\"\n{urls}\n\
             [connection_config.installation_id]\ntitle = \"Installation\"\ndescription = \"Its id.\"\n\
             pattern = '\\d+'\nautomated = true\nfrom_redirect = \"installation_id\"\n\
             [proxy]\nbase_url = \"BASE\"\n\
             verification = {{ method = \"GET\", endpoint = \"/installation/repositories\" }}"
        ),
    );
    let listen = format!("127.0.0.1:{port}");
    let host = server.host_options(&db).listen(&listen).spawn().await;
    let mut app = json!({
        "type": mode, "app_id": "4242", "app_link": format!("{}/apps/{page}", server.base_url()),
        "private_key": std::fs::read_to_string(repository(key)).expect("the key file exists"),
    });
    if mode == "CUSTOM" {
        app["client_id"] = "client".into();
        app["client_secret"] = "planted-client-secret".into();
    }
    integrate(&host, "test-app", app).await;
    (host, server, db)
}

#[tokio::test]
async fn an_installed_app_is_connected_and_its_token_refreshed() {
    let (host, server, _db) = app_host("APP", "plain", "tests/keys/rsa_pkcs1.pem").await;
    let mut browser = Browser::new();
    let back = browser.visit(&start(&host).await).await;
    back.answer.expect(200);
    let connection = only_connection(&host).await;
    assert_eq!(connection["connection_config"], json!({ "installation_id": "77" }));
    let token = |connection: &Value| text(&connection["credentials"]["access_token"]).to_owned();
    assert!(token(&connection).starts_with("installation-"), "{connection}");
    assert_eq!(connection["credentials"]["type"], "APP");
    let id = text(&connection["connection_id"]);
    let forced = format!("/connections/{id}?provider_config_key={KEY}&force_refresh=true");
    assert_ne!(token(&host.get(&forced).await.expect(200).json()), token(&connection));
    assert!(connection["credentials"].get("jwtToken").is_none(), "the token is created only on request");
    let signed = forced.replace("force_refresh", "refresh_github_app_jwt_token");
    let signed = host.get(&signed).await.expect(200).json();
    let signed = Api::new(server.base_url(), signed["credentials"]["jwtToken"].as_str());
    // The provider accepts this request only from the app itself.
    signed.post("/app/installations/77/access_tokens", &json!({})).await.expect(201);
    expect_failure(&browser.visit(back.url.as_str()).await.answer, "state_err");
}

#[tokio::test]
async fn an_installation_with_consent_also_has_the_users_token() {
    let (host, _server, _db) = app_host("CUSTOM", "consent", "tests/keys/rsa_pkcs8.pem").await;
    Browser::new().visit(&start(&host).await).await.answer.expect(200);
    let credentials = only_connection(&host).await["credentials"].clone();
    assert_eq!(credentials["type"], "CUSTOM");
    assert_eq!(credentials["user"]["access_token"], "user-token");
    assert!(text(&credentials["app"]["access_token"]).starts_with("installation-"), "{credentials}");
}

#[tokio::test]
async fn an_installation_that_the_user_cannot_access_is_rejected() {
    let (host, _server, db) = app_host("CUSTOM", "consent", "tests/keys/rsa_pkcs8.pem").await;
    let callback = format!("{}/oauth/callback", host.base_url());
    let mut browser = Browser::new();
    let mut leave = async || browser.visit_until(&start(&host).await, &callback).await.url.to_string();
    let (forged, unknown) = (leave().await, leave().await);
    assert!(forged.contains("installation_id=77"), "{forged}");
    for (forged, other) in [(forged, "78"), (unknown, "077")] {
        let forged = forged.replace("installation_id=77", &format!("installation_id={other}"));
        expect_failure(&browser.visit(&forged).await.answer, "connection_validation_failed");
    }
    assert_eq!(db.number("SELECT count(*) FROM connections").await, 0);
}

#[tokio::test]
async fn callback_parameters_are_verified_with_the_provider() {
    let (db, port) = (TestDatabase::create().await, free_port());
    let public_key = repository("tests/keys/rsa_public.pem");
    let host_url = format!("http://127.0.0.1:{port}");
    let server =
        PythonServer::start("apps.py", &[public_key.to_str().expect("a plain path"), &host_url]).await;
    server.write_entry(
        "test-company",
        "auth_mode = \"OAUTH2\"\nauthorization_url = \"BASE/authorize\"\n\
         token_url = \"BASE/login/oauth/access_token\"\n\
         [connection_config.realmId]\ntitle = \"Company\"\ndescription = \"Its id.\"\n\
         pattern = '\\d+'\nautomated = true\nfrom_redirect = \"realmId\"\n\
         [proxy]\nbase_url = \"BASE\"\n\
         verification = { method = \"GET\", endpoint = \"/company/${connectionConfig.realmId}\" }",
    );
    let host = server.host_options(&db).listen(&format!("127.0.0.1:{port}")).spawn().await;
    let app = json!({ "type": "OAUTH2", "client_id": "client", "client_secret": "planted-client-secret" });
    integrate(&host, "test-company", app).await;
    let callback = format!("{host_url}/oauth/callback");
    let mut browser = Browser::new();
    // Another user's company, one that the provider cannot confirm now, and a missing one.
    for forged in ["realmId=8", "realmId=9", ""] {
        let back = browser.visit_until(&start(&host).await, &callback).await.url.to_string();
        assert!(back.contains("realmId=7"), "{back}");
        let page = browser.visit(&back.replace("realmId=7", forged)).await.answer;
        expect_failure(&page, "connection_validation_failed");
        assert_eq!(page.text().contains("could not confirm that"), forged == "realmId=9", "{}", page.text());
    }
    assert_eq!(db.number("SELECT count(*) FROM connections").await, 0);
    browser.visit(&start(&host).await).await.answer.expect(200);
    assert_eq!(only_connection(&host).await["connection_config"], json!({ "realmId": "7" }));
}

#[tokio::test]
async fn a_failed_installation_is_reported() {
    let (host, _server, _db) = app_host("APP", "owned", "tests/keys/rsa_pkcs1.pem").await;
    expect_failure(&Browser::new().visit(&start(&host).await).await.answer, "callback_err");
    let (host, _server, _db) = app_host("APP", "plain", "tests/keys/app.pem").await;
    let page = Browser::new().visit(&start(&host).await).await.answer;
    expect_failure(&page, "token_err");
    assert!(page.text().contains("could not be decoded"), "{}", page.text());
}
