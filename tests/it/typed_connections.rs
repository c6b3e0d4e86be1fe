//! Connections that end users create by typing credentials: each method with a server that verifies them, and invalid
//! input.

use serde_json::{Value, json};

use crate::support::{
    ACME_JWT_KEY, ACME_PIN, ACME_SECRET, Acme, Answer, Api, Bundle, Host, HostOptions, SHOP_KEY, Shop,
    TestDatabase, query, text,
};

pub const TWO_STEP: &str = r#"
auth_mode = "TWO_STEP"
token_url = "{acme}/token"
token_response = { access_token = "data.token", refresh_token = "data.refresh", expires_in = "data.seconds" }
token_request = { format = "json", body = { "login.pin" = "${credentials.pin}", "login.user" = "${connectionConfig.user}" } }
refresh_request = { url = "{acme}/renew", body = { refresh_token = "${refreshToken}" } }
credentials.pin = { title = "Pin", description = "Yours.", secret = true }
connection_config.user = { title = "User", description = "Who you are.", pattern = "[a-z]+", example = "ada" }
proxy = { base_url = "{acme}", verification = { method = "GET", endpoint = "/me" } }
"#;

pub const SIGNED_TOKEN: &str = r#"
auth_mode = "JWT"
credentials.id = { title = "Key ID", description = "Of the key.", example = "key-1" }
credentials.secret = { title = "Key", description = "Signs.", secret = true }
proxy = { base_url = "{acme}", verification = { method = "GET", endpoint = "/PATH" } }
jwt = { algorithm = "HS256", key = "${credentials.secret}", key_encoding = "hex", header = { kid = "${credentials.id}" }, claims = { aud = "/api/" }, expires_in = 300 }
"#;

const EXCHANGED_JWT: &str = r#"
token_url = "{acme}/assertion"
token_request = { body = { assertion = "${jwt}" } }
token_response = { access_token = "data.token", expires_in = "data.seconds" }
"#;

pub const BILL: &str = r#"
auth_mode = "BILL"
token_url = "{acme}/login"
token_lifetime = 2100
token_response = { access_token = "sessionId" }
token_request = { format = "json", body = { username = "${credentials.username}", password = "${credentials.password}", organizationId = "${credentials.organization_id}", devKey = "${credentials.dev_key}" } }
credentials.username = { title = "User", description = "Yours." }
credentials.password = { title = "Password", description = "Yours.", secret = true }
credentials.organization_id = { title = "Organization", description = "Yours." }
credentials.dev_key = { title = "Key", description = "Yours.", secret = true }
proxy = { base_url = "{acme}", headers = { sessionid = "${accessToken}", devkey = "${credentials.dev_key}" }, verification = { method = "GET", endpoint = "/bill" } }
"#;

pub const TOKEN_BASED: &str = r#"
auth_mode = "TBA"
signature_method = "HMAC-SHA256"
credentials.token_id = { title = "Token", description = "Yours." }
credentials.token_secret = { title = "Secret", description = "Yours.", secret = true }
connection_config.accountId = { title = "Account", description = "Yours.", example = "1234-sb1" }
proxy = { base_url = "{acme}", verification = { method = "GET", endpoint = "/signed?limit=1" } }
"#;

pub const SIGNATURE: &str = r#"
auth_mode = "SIGNATURE"
signature = "WSSE"
credentials.username = { title = "User", description = "Yours." }
credentials.password = { title = "Password", description = "Yours.", secret = true }
proxy = { base_url = "{acme}", verification = { method = "GET", endpoint = "/wsse" } }
"#;

pub const CLIENT_CREDENTIALS: &str = r#"
auth_mode = "OAUTH2_CC"
token_url = "{acme}/grant"
token_request_auth_method = "basic"
credentials.client_id = { title = "Client", description = "Yours." }
credentials.client_secret = { title = "Secret", description = "Yours.", secret = true }
proxy = { base_url = "{acme}", verification = { method = "GET", endpoint = "/me" } }
"#;

/// A host whose integration `hostile` uses an entry for the fake provider.
struct Setup {
    host: Host,
    acme: Acme,
    db: TestDatabase,
}

impl Setup {
    async fn of(entry: &str) -> Self {
        let acme = Acme::start().await;
        acme.add_provider("acme", entry);
        let db = TestDatabase::create().await;
        let host = acme.configure(HostOptions::new().database(&db)).spawn().await;
        let bundle = Bundle::guest("hostile").replace("\"unauthenticated\"", "\"acme\"");
        host.deploy(&bundle).await;
        Self { host, acme, db }
    }

    async fn session(&self) -> String {
        let body = json!({ "end_user": { "id": "u-7" }, "tags": { "plan": "pro" } });
        open(&self.host, "/connect/sessions", body).await
    }

    async fn reconnect_session(&self, connection: &str) -> String {
        let body = json!({ "connection_id": connection, "integration_id": "hostile" });
        open(&self.host, "/connect/sessions/reconnect", body).await
    }

    async fn post(&self, route: &str, session: &str, params: &[(&str, &str)], body: &Value) -> Answer {
        post(&self.host, &format!("{route}/hostile"), session, params, body).await
    }

    async fn shown(&self, connection: &str, more: &str) -> Value {
        let path = format!("/connections/{connection}?provider_config_key=hostile{more}");
        self.host.get(&path).await.expect(200).json()
    }

    /// Sends a request from the guest with the connection's credentials. Returns the status of the response.
    async fn fetch(&self, connection: &str, request: &Value) -> u64 {
        let body = json!({ "action_name": "fetch", "input": request });
        let request = self.host.request("POST", "/action/trigger").header("Connection-Id", connection);
        let answer = request.header("Provider-Config-Key", "hostile").json(&body).send().await.expect(200);
        answer.json()["status"].as_u64().expect("a status")
    }

    /// Connects, checks that wrong credentials are rejected, calls the provider, and reconnects. Returns the
    /// connection's id.
    async fn check_connecting(
        &self,
        route: &str,
        params: &[(&str, &str)],
        good: &Value,
        wrong: &str,
        path: &str,
    ) -> String {
        let session = self.session().await;
        let mut mistaken = good.clone();
        mistaken[wrong] = json!("planted-mistake-77aa");
        let refused = self.post(route, &session, params, &mistaken).await;
        assert_eq!(refused.refusal(), (400, "connection_test_failed".to_owned()), "{}", refused.text());
        assert!(!refused.text().contains("planted"), "{}", refused.text());
        let none = self.host.get("/connections").await.expect(200).json();
        assert_eq!(none["connections"], json!([]));

        let made = self.post(route, &session, params, good).await.expect(200).json();
        let id = text(&made["connectionId"]).to_owned();
        assert_eq!(made, json!({ "connectionId": id, "providerConfigKey": "hostile" }));
        let shown = self.shown(&id, "").await;
        assert_eq!((&shown["end_user"]["id"], &shown["tags"]["plan"]), (&json!("u-7"), &json!("pro")));
        for (name, value) in params {
            assert_eq!(shown["connection_config"][name], *value);
        }
        for _ in 0..2 {
            assert_eq!(self.fetch(&id, &json!({ "url": path })).await, 200);
        }

        let session = self.reconnect_session(&id).await;
        let refused = self.post(route, &session, &[], &mistaken).await;
        assert_eq!(refused.refusal(), (400, "connection_test_failed".to_owned()));
        assert_eq!(
            self.fetch(&id, &json!({ "url": path })).await,
            200,
            "the previous credentials still work"
        );
        let again = self.post(route, &session, &[], good).await.expect(200).json();
        assert_eq!(again["connectionId"], *id);
        let after = self.shown(&id, "").await;
        assert_eq!((&after["id"], &after["connection_config"]), (&shown["id"], &shown["connection_config"]));
        assert_eq!(self.fetch(&id, &json!({ "url": path })).await, 200);
        id
    }

    /// Forces a refresh, and returns the old and the new token.
    async fn refreshed(&self, connection: &str) -> (Value, Value) {
        let before = self.shown(connection, "").await["credentials"]["token"].clone();
        let after = self.shown(connection, "&force_refresh=true").await["credentials"].clone();
        assert!(after["expires_at"].is_string(), "{after}");
        (before, after["token"].clone())
    }

    fn request_count(&self, request: &str) -> usize {
        self.acme.requests().iter().filter(|line| *line == request).count()
    }
}

async fn open(host: &Api, path: &str, body: Value) -> String {
    text(&host.post(path, &body).await.expect(201).json()["data"]["token"]).to_owned()
}

async fn post(host: &Api, path: &str, session: &str, params: &[(&str, &str)], body: &Value) -> Answer {
    let mut parameters = vec![("connect_session_token".to_owned(), session)];
    parameters.extend(params.iter().map(|(name, value)| (format!("params[{name}]"), *value)));
    let parameters: Vec<(&str, &str)> =
        parameters.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    host.with_key(None).post(&format!("{path}?{}", query(&parameters)), body).await
}

#[tokio::test]
async fn two_step_credentials_are_exchanged_and_refreshed() {
    let setup = Setup::of(TWO_STEP).await;
    // Existing clients send this option for every provider.
    let good = json!({ "type": "TWO_STEP", "pin": ACME_PIN, "assertionOption": { "kind": "none" } });
    let id = setup.check_connecting("/auth/two-step", &[("user", "ada")], &good, "pin", "/me").await;
    let (before, after) = setup.refreshed(&id).await;
    assert_ne!(before, after);
    assert_eq!(setup.request_count("POST /renew 200"), 1, "the refresh uses the refresh token");
    assert_eq!(setup.fetch(&id, &json!({ "url": "/me" })).await, 200);
    let shown = setup.shown(&id, "").await["credentials"].clone();
    assert_eq!((&shown["type"], &shown["pin"]), (&json!("TWO_STEP"), &json!(ACME_PIN)));
    assert!(shown.get("refresh_token").is_none());
}

#[tokio::test]
async fn a_jwt_is_signed_and_renewed() {
    let setup = Setup::of(&SIGNED_TOKEN.replace("PATH", "jwt")).await;
    let good = json!({ "type": "JWT", "id": "key-1", "secret": ACME_JWT_KEY });
    let session = setup.session().await;
    let no_key = setup.post("/auth/jwt", &session, &[], &json!({ "id": "key-1", "secret": "planted" })).await;
    assert_eq!(no_key.refusal(), (400, "connection_test_failed".to_owned()));
    assert!(no_key.message().contains("hexadecimal"), "{}", no_key.message());
    let id = setup.check_connecting("/auth/jwt", &[], &good, "id", "/jwt").await;
    // Times in a token have a resolution of seconds.
    tokio::time::sleep(std::time::Duration::from_millis(1100)).await;
    let (before, after) = setup.refreshed(&id).await;
    assert_ne!(before, after);
    assert_eq!(setup.fetch(&id, &json!({ "url": "/jwt" })).await, 200);
}

#[tokio::test]
async fn a_signed_jwt_is_exchanged_for_an_access_token() {
    let setup = Setup::of(&format!("{EXCHANGED_JWT}{}", SIGNED_TOKEN.replace("PATH", "me"))).await;
    let key = "ff".repeat(32);
    let session = setup.session().await;
    let wrong = setup.post("/auth/jwt", &session, &[], &json!({ "id": "key-1", "secret": key })).await;
    assert_eq!(wrong.refusal(), (400, "connection_test_failed".to_owned()));
    assert!(wrong.message().contains("a wrong assertion"), "{}", wrong.message());
    let good = json!({ "id": "key-1", "secret": ACME_JWT_KEY });
    let made = setup.post("/auth/jwt", &session, &[], &good).await.expect(200).json();
    let id = text(&made["connectionId"]);
    assert_eq!(setup.fetch(id, &json!({ "url": "/me" })).await, 200);
    let (before, after) = setup.refreshed(id).await;
    assert_ne!(before, after);
    assert_eq!(setup.fetch(id, &json!({ "url": "/me" })).await, 200);
}

#[tokio::test]
async fn a_bill_login_session_is_sent_with_the_developer_key() {
    let setup = Setup::of(BILL).await;
    let good =
        json!({ "username": "ada", "password": ACME_PIN, "organization_id": "org-1", "dev_key": "dev-1" });
    let id = setup.check_connecting("/auth/bill", &[], &good, "password", "/bill").await;
    let (before, after) = setup.refreshed(&id).await;
    assert_ne!(before, after);
    assert_eq!(setup.fetch(&id, &json!({ "url": "/bill" })).await, 200);
}

#[tokio::test]
async fn token_based_requests_are_signed_over_url_query_and_form() {
    let setup = Setup::of(TOKEN_BASED).await;
    let session = setup.session().await;
    let own = json!({ "token_id": "token-id", "token_secret": ACME_PIN });
    let params = [("accountId", "1234-sb1")];
    let no_client = setup.post("/auth/tba", &session, &params, &own).await;
    assert_eq!(no_client.refusal(), (400, "missing_client_id".to_owned()));
    let good = json!({
        "token_id": "token-id", "token_secret": ACME_PIN,
        "oauth_client_id_override": "consumer", "oauth_client_secret_override": ACME_SECRET,
    });
    let id = setup
        .check_connecting(
            "/auth/tba",
            &params,
            &good,
            "token_secret",
            "/signed?q=a%20b&page%5Bsize%5D=5&q=%C3%BC",
        )
        .await;
    let form = json!({
        "method": "POST", "url": "/signed/orders?expand=a+b", "body": "name=J%C3%BCrg+%26+Co&name=x&a%5Bb%5D=",
        "headers": [["content-type", "application/x-www-form-urlencoded"]],
    });
    assert_eq!(setup.fetch(&id, &form).await, 200);
    let other = json!({ "method": "PUT", "url": "/signed/1", "body": "{\"a\":1}", "headers": [["content-type", "application/json"]] });
    assert_eq!(setup.fetch(&id, &other).await, 200);
}

#[tokio::test]
async fn every_wsse_request_has_a_fresh_signature() {
    let setup = Setup::of(SIGNATURE).await;
    let good = json!({ "type": "SIGNATURE", "username": "ada", "password": ACME_PIN });
    setup.check_connecting("/auth/signature", &[], &good, "password", "/wsse").await;
}

#[tokio::test]
async fn client_credentials_of_an_end_user_obtain_tokens() {
    let setup = Setup::of(CLIENT_CREDENTIALS).await;
    let good = json!({ "client_id": "client-1", "client_secret": ACME_SECRET });
    let id = setup.check_connecting("/oauth2/auth", &[], &good, "client_secret", "/me").await;
    let (before, after) = setup.refreshed(&id).await;
    assert_ne!(before, after);
    assert_eq!(setup.fetch(&id, &json!({ "url": "/me" })).await, 200);
}

#[tokio::test]
async fn api_keys_and_passwords_are_verified_with_the_provider() {
    let shop = Shop::start().await;
    let acme = Acme::start().await;
    let key_entry = r#"
        auth_mode = "API_KEY"
        credentials.apiKey = { title = "Key", description = "Yours.", secret = true, pattern = "sk_.+", example = "sk_1" }
        proxy = { base_url = "SHOP", headers = { authorization = "Bearer ${apiKey}" }, verification = { method = "GET", endpoint = "/v1/customers?limit=1" } }
    "#;
    acme.add_provider("shop-key", &key_entry.replace("SHOP", shop.base_url()));
    let db = TestDatabase::create().await;
    let host = acme.configure(HostOptions::new().database(&db)).allow(&shop).spawn().await;
    host.deploy(&Bundle::example("stripe").at(&shop)).await;
    for (provider, key) in [("shop-key", "by-key"), ("unauthenticated", "open")] {
        host.post("/integrations", &json!({ "provider": provider, "unique_key": key })).await.expect(200);
    }
    let session = open(&host, "/connect/sessions", json!({ "end_user": { "id": "u-7" } })).await;
    let post = async |path: &str, body: Value| post(&host, path, &session, &[], &body).await;

    post("/api-auth/basic/stripe", json!({ "username": SHOP_KEY, "password": "" })).await.expect(200);
    post("/api-auth/api-key/by-key", json!({ "apiKey": format!(" {SHOP_KEY}\n") })).await.expect(200);
    post("/auth/unauthenticated/open", json!({})).await.expect(200);
    let empty = format!("/auth/unauthenticated/open?connect_session_token={session}");
    host.with_key(None)
        .request("POST", &empty)
        .header("Content-Type", "application/json")
        .send()
        .await
        .expect(200);

    let settings = json!({ "webhook_url": "https://example.com/hook" });
    host.request("PATCH", "/environment").json(&settings).send().await.expect(200);
    let refused =
        post("/api-auth/basic/stripe", json!({ "username": "planted-wrong-key", "password": "" })).await;
    assert_eq!(refused.refusal(), (400, "connection_test_failed".to_owned()), "{}", refused.text());
    assert!(!refused.text().contains("planted"), "{}", refused.text());
    let deliveries = db.texts("SELECT body FROM outbound_webhook_deliveries WHERE type = 'auth'").await;
    let [delivery] = deliveries.as_slice() else { panic!("not one delivery: {deliveries:?}") };
    let reported: Value = serde_json::from_str(delivery).expect("the body is JSON");
    assert_eq!(
        (&reported["operation"], &reported["success"]),
        (&json!("creation"), &json!(false)),
        "{reported}"
    );
    assert_eq!(reported["error"]["type"], "connection_test_failed");
    assert_eq!(
        (&reported["providerConfigKey"], &reported["tags"]["end_user_id"]),
        (&json!("stripe"), &json!("u-7"))
    );
    assert!(!delivery.contains("planted"));
    let listed = host.get("/connections").await.expect(200).json();
    assert_eq!(listed["connections"].as_array().map(Vec::len), Some(4));
    let shown = listed["connections"].as_array().into_iter().flatten();
    let by_key =
        shown.filter(|one| one["provider_config_key"] == "by-key").map(|one| text(&one["connection_id"]));
    let path = format!("/connections/{}?provider_config_key=by-key", by_key.collect::<String>());
    let credentials = host.get(&path).await.expect(200).json()["credentials"].clone();
    assert_eq!(credentials, json!({ "type": "API_KEY", "apiKey": SHOP_KEY }));
}

#[tokio::test]
async fn an_unavailable_provider_does_not_reject_credentials() {
    let setup = Setup::of(TWO_STEP).await;
    let session = setup.session().await;
    let params = [("user", "ada")];
    let nonsense = setup.post("/auth/two-step", &session, &params, &json!({ "pin": "html" })).await;
    assert_eq!(nonsense.refusal(), (400, "request_token_external_error".to_owned()));
    assert!(nonsense.message().contains("an HTML page"), "{}", nonsense.message());
    let away = setup.post("/auth/two-step", &session, &params, &json!({ "pin": "away" })).await;
    let made = away.expect(200).json();
    assert!(text(&made["connectionId"]).len() == 36);
}

#[tokio::test]
async fn invalid_input_is_rejected_with_the_field() {
    let setup = Setup::of(TWO_STEP).await;
    let host = &setup.host;
    let create =
        |provider: &'static str, key: &'static str| json!({ "provider": provider, "unique_key": key });
    host.post("/integrations", &create("freshdesk", "desk")).await.expect(200);
    host.post("/integrations", &create("github-pat", "code")).await.expect(200);
    let session = setup.session().await;
    let user = [("user", "ada")];
    let refusal = async |path: &str, params: &[(&str, &str)], body: Value| {
        let answer = post(host, path, &session, params, &body).await;
        assert!(!answer.text().contains("planted"), "{}", answer.text());
        let first = answer.json()["error"]["errors"][0].clone();
        let path = first["path"].as_array().into_iter().flatten().map(text).collect::<Vec<_>>().join(".");
        let (status, code) = answer.refusal();
        (status, code, first["code"].as_str().unwrap_or_default().to_owned(), path)
    };
    let pin = || json!({ "pin": ACME_PIN });
    for (path, params, body, expected) in [
        ("/auth/two-step/nobody", &user[..], pin(), (404, "unknown_integration", "", "")),
        ("/auth/two-step/a%2Fb", &user, pin(), (400, "invalid_uri_params", "invalid_format", "key")),
        ("/auth/jwt/hostile", &user, pin(), (400, "invalid_auth_mode", "", "")),
        ("/api-auth/basic/code", &[], json!({ "username": "a" }), (400, "invalid_auth_mode", "", "")),
        ("/auth/two-step/hostile", &user, json!({}), (400, "invalid_body", "invalid_type", "pin")),
        (
            "/auth/two-step/hostile",
            &user,
            json!({ "pin": " " }),
            (400, "invalid_body", "invalid_type", "pin"),
        ),
        ("/auth/two-step/hostile", &user, json!({ "pin": 7 }), (400, "invalid_body", "invalid_type", "pin")),
        (
            "/auth/two-step/hostile",
            &user,
            json!({ "pin": "p", "planned": "x" }),
            (400, "invalid_body", "unrecognized_keys", "planned"),
        ),
        (
            "/auth/two-step/hostile",
            &user,
            json!({ "type": "JWT", "pin": "p" }),
            (400, "invalid_body", "invalid_value", "type"),
        ),
        ("/auth/two-step/hostile", &user, json!(["planted"]), (400, "invalid_body", "invalid_type", "")),
        ("/auth/two-step/hostile", &[], pin(), (400, "invalid_query_params", "invalid_type", "params.user")),
        (
            "/auth/two-step/hostile",
            &[("user", "planted 1")],
            pin(),
            (400, "invalid_query_params", "invalid_format", "params.user"),
        ),
        (
            "/auth/two-step/hostile",
            &[("user", "ada"), ("host", "evil.example")],
            pin(),
            (400, "invalid_query_params", "unrecognized_keys", "params.host"),
        ),
        (
            "/api-auth/basic/desk",
            &[("subdomain", "evil.com/")],
            json!({ "username": "a" }),
            (400, "invalid_query_params", "invalid_format", "params.subdomain"),
        ),
        (
            "/api-auth/api-key/code",
            &[],
            json!({ "apiKey": "x".repeat(1025) }),
            (400, "invalid_body", "too_big", "apiKey"),
        ),
    ] {
        let (status, code, mistake, place) = refusal(path, params, body).await;
        assert_eq!((status, code.as_str(), mistake.as_str(), place.as_str()), expected, "{path} {params:?}");
    }

    let plain = async |path: &str| host.with_key(None).post(path, &pin()).await.refusal();
    let unknown = format!("nango_connect_session_{}", "0".repeat(64));
    for (query, expected) in [
        (String::new(), (401, "missing_public_key")),
        ("?public_key=1".to_owned(), (401, "deprecated_authentication")),
        ("?connect_session_token=planted".to_owned(), (401, "invalid_connect_session_token_format")),
        (format!("?connect_session_token={unknown}"), (401, "unknown_connect_session_token")),
        (format!("?connect_session_token={session}&connection_id=mine"), (400, "invalid_query_params")),
        (format!("?connect_session_token={session}&colour=red"), (400, "invalid_query_params")),
    ] {
        let (status, code) = plain(&format!("/auth/two-step/hostile{query}")).await;
        assert_eq!((status, code.as_str()), expected, "{query}");
    }
    assert!(
        setup.acme.requests().iter().all(|line| line.starts_with("GET / ")),
        "{:?}",
        setup.acme.requests()
    );
}

#[tokio::test]
async fn a_session_limits_integrations_and_fixes_configuration() {
    let setup = Setup::of(TWO_STEP).await;
    setup
        .host
        .post("/integrations", &json!({ "provider": "unauthenticated", "unique_key": "open" }))
        .await
        .expect(200);
    let settled = json!({ "hostile": { "connection_config": { "user": "grace", "team": "7" } } });
    let body = json!({
        "end_user": { "id": "u" }, "allowed_integrations": ["hostile"], "integrations_config_defaults": settled,
    });
    let session = open(&setup.host, "/connect/sessions", body).await;
    let other = post(&setup.host, "/auth/unauthenticated/open", &session, &[], &json!({})).await;
    assert_eq!(other.refusal(), (400, "integration_not_allowed".to_owned()));
    let pin = json!({ "pin": ACME_PIN });
    let made = setup.post(
        "/auth/two-step",
        &session,
        &[("user", "ada"), ("webhook_url", "https://evil.example")],
        &pin,
    );
    let id = text(&made.await.expect(200).json()["connectionId"]).to_owned();
    assert_eq!(setup.shown(&id, "").await["connection_config"], json!({ "user": "grace", "team": "7" }));

    let session = setup.reconnect_session(&id).await;
    setup.db.execute("DELETE FROM connections").await;
    let gone = setup.post("/auth/two-step", &session, &[], &pin).await;
    assert_eq!(
        gone.refusal(),
        (401, "unknown_connect_session_token".to_owned()),
        "the session was deleted with its connection"
    );
}
