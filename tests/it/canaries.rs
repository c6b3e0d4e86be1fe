//! Unique secrets in every place that takes one, and a search for them in everything that a host shows, stores and logs.

use std::collections::{BTreeSet, VecDeque};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tempfile::TempDir;
use uuid::Uuid;

use crate::support::webhook_scene::{hex_hmac, signed, webhook_path};
use crate::support::{
    Answer, Bundle, Connection, ENCRYPTION_KEY, Host, HostOptions, PASSWORD, Person, ProviderServer,
    REFRESHED_TOKEN, Receiver, SECRET_KEY, TestDatabase, eventually, query, repository, text,
};

/// Each auth mode: the key of its integration, and its catalogue entry. `{server}` is a provider that returns what it
/// was sent, in responses and in errors.
const ENTRIES: [(&str, &str); 12] = [
    (
        "api-key",
        r#"
        auth_mode = "API_KEY"
        credentials.apiKey = { title = "Key", description = "Yours.", secret = true }
        proxy = { base_url = "{server}", headers = { x-api-key = "${apiKey}" } }
        "#,
    ),
    (
        "basic",
        r#"
        auth_mode = "BASIC"
        credentials.username = { title = "User", description = "Yours." }
        credentials.password = { title = "Password", description = "Yours.", secret = true }
        proxy = { base_url = "{server}" }
        "#,
    ),
    (
        "oauth2",
        r#"
        auth_mode = "OAUTH2"
        authorization_url = "{server}/authorize"
        token_url = "{server}/token-refusal"
        proxy = { base_url = "{server}" }
        "#,
    ),
    (
        "client-credentials",
        r#"
        auth_mode = "OAUTH2_CC"
        token_url = "{server}/token-refusal"
        credentials.client_id = { title = "Client", description = "Yours." }
        credentials.client_secret = { title = "Secret", description = "Yours.", secret = true }
        proxy = { base_url = "{server}" }
        "#,
    ),
    (
        "oauth1",
        r#"
        auth_mode = "OAUTH1"
        signature_method = "PLAINTEXT"
        request_url = "{server}/token-refusal"
        authorization_url = "{server}/authorize"
        token_url = "{server}/token-refusal"
        proxy = { base_url = "{server}" }
        "#,
    ),
    (
        "token-based",
        r#"
        auth_mode = "TBA"
        signature_method = "HMAC-SHA256"
        credentials.token_id = { title = "Token", description = "Yours." }
        credentials.token_secret = { title = "Secret", description = "Yours.", secret = true }
        connection_config.accountId = { title = "Account", description = "Yours.", example = "1234-sb1" }
        proxy = { base_url = "{server}" }
        "#,
    ),
    (
        "app",
        r#"
        auth_mode = "APP"
        token_url = "{server}/token"
        connection_config.installation_id = { title = "Installation", description = "Its id.", pattern = '\d+', automated = true, from_redirect = "installation_id", example = "77" }
        proxy = { base_url = "{server}" }
        "#,
    ),
    (
        "custom",
        r#"
        auth_mode = "CUSTOM"
        authorization_url = "{server}/authorize"
        token_url = "{server}/token-refusal"
        refresh_url = "{server}/token"
        installations_url = "{server}/installations"
        token_response = { access_token = "access_token" }
        connection_config.installation_id = { title = "Installation", description = "Its id.", pattern = '\d+', automated = true, from_redirect = "installation_id", example = "77" }
        proxy = { base_url = "{server}" }
        "#,
    ),
    (
        "jwt",
        r#"
        auth_mode = "JWT"
        credentials.id = { title = "Key ID", description = "Of the key.", example = "key-1" }
        credentials.secret = { title = "Key", description = "Signs.", secret = true }
        jwt = { algorithm = "HS256", key = "${credentials.secret}", header = { kid = "${credentials.id}" }, claims = { aud = "/api/" }, expires_in = 300 }
        proxy = { base_url = "{server}" }
        "#,
    ),
    (
        "two-step",
        r#"
        auth_mode = "TWO_STEP"
        token_url = "{server}/token"
        token_request = { format = "json", body = { pin = "${credentials.pin}" } }
        token_response = { access_token = "access_token" }
        refresh_request = { url = "{server}/token-refusal", body = { pin = "${credentials.pin}" } }
        credentials.pin = { title = "Pin", description = "Yours.", secret = true }
        proxy = { base_url = "{server}" }
        "#,
    ),
    (
        "bill",
        r#"
        auth_mode = "BILL"
        token_url = "{server}/token"
        token_lifetime = 2100
        token_response = { access_token = "access_token" }
        token_request = { format = "json", body = { username = "${credentials.username}", password = "${credentials.password}", organizationId = "${credentials.organization_id}", devKey = "${credentials.dev_key}" } }
        credentials.username = { title = "User", description = "Yours." }
        credentials.password = { title = "Password", description = "Yours.", secret = true }
        credentials.organization_id = { title = "Organization", description = "Yours." }
        credentials.dev_key = { title = "Key", description = "Yours.", secret = true }
        proxy = { base_url = "{server}", headers = { sessionid = "${accessToken}", devkey = "${credentials.dev_key}" } }
        "#,
    ),
    (
        "signature",
        r#"
        auth_mode = "SIGNATURE"
        signature = "WSSE"
        credentials.username = { title = "User", description = "Yours." }
        credentials.password = { title = "Password", description = "Yours.", secret = true }
        proxy = { base_url = "{server}" }
        "#,
    ),
];

/// The planted secrets, and what the host has put out so far.
struct Search {
    /// What each secret is, and the secret.
    secrets: Vec<(String, String)>,
    /// Where each text was found, and the text.
    outputs: Vec<(String, String)>,
}

impl Search {
    /// Returns a new secret that occurs nowhere else.
    fn plant(&mut self, what: &str) -> String {
        let secret = format!("planted{}", Uuid::new_v4().simple());
        self.secrets.push((what.to_owned(), secret.clone()));
        secret
    }

    /// Adds a secret that the host has generated.
    fn add_secret(&mut self, what: &str, secret: &str) {
        assert!(secret.len() >= 16, "{what}");
        self.secrets.push((what.to_owned(), secret.to_owned()));
    }

    fn add(&mut self, place: impl Into<String>, text: impl Into<String>) {
        self.outputs.push((place.into(), text.into()));
    }

    fn add_answer(&mut self, answer: &Answer) {
        let headers = format!("{:?}", answer.headers);
        self.add(answer.request.clone(), headers + &answer.text());
    }

    /// Returns every place that contains a secret, as text, in hexadecimal or in Base64.
    fn found(&self) -> Vec<String> {
        let mut found = BTreeSet::new();
        for (what, secret) in &self.secrets {
            let hex: String = secret.bytes().map(|byte| format!("{byte:02x}")).collect();
            // The last digits of Base64 depend on what follows.
            let base64 = STANDARD.encode(secret);
            let base64 = &base64[..secret.len() / 3 * 4];
            for (place, text) in &self.outputs {
                if let Some(form) = [secret, &hex, base64].into_iter().find(|form| text.contains(*form)) {
                    let at = text.find(form).unwrap_or_default();
                    let around = text.floor_char_boundary(at.saturating_sub(120))..at;
                    found.insert(format!("{what} in {place}, after: {}", &text[around]));
                }
            }
        }
        found.into_iter().collect()
    }
}

/// A host whose catalogue has an entry for each auth mode, at a provider that returns what it was sent.
struct Scene {
    server: ProviderServer,
    receiver: Receiver,
    host: Host,
    db: TestDatabase,
    _folder: TempDir,
}

impl Scene {
    async fn create(search: &mut Search) -> Self {
        let (server, receiver) = (ProviderServer::start().await, Receiver::start().await);
        let folder = TempDir::new().expect("a temporary folder can be made");
        for (key, entry) in ENTRIES {
            let head = format!(
                "name = \"echo-{key}\"\ndisplay_name = \"Echo\"\ndocs = \"https://example.com\"\n\
                 source = {{ address = \"https://example.com\", checked_at = \"2026-01-01\" }}\n"
            );
            let entry = entry.replace("{server}", &server.base_url());
            std::fs::write(folder.path().join(format!("echo-{key}.toml")), head + &entry)
                .expect("the folder is writable");
        }
        let db = TestDatabase::create().await;
        let host = HostOptions::new()
            .database(&db)
            .variable("PGPASSWORD", &search.plant("the password of the database"))
            .variable("RUST_LOG", "debug")
            .variable("SYNCLINE_PROVIDERS_DIR", &folder.path().display().to_string())
            .variable("SYNCLINE_EGRESS_ALLOW", &format!("{},{}", server.address, receiver.address()))
            .spawn()
            .await;
        search.add_secret("the secret key", SECRET_KEY);
        search.add_secret("the encryption key", ENCRYPTION_KEY.split_once(':').expect("an id and a key").1);
        search.add_secret("the token of a refresh", REFRESHED_TOKEN);
        let webhooks = json!({ "webhook_url": receiver.url("/hooks") });
        search.add_answer(&host.patch("/environment", &webhooks).await.expect(200));
        Self { server, receiver, host, db, _folder: folder }
    }

    /// Deploys functions for an auth mode, sets the integration's secrets, and connects an account.
    async fn connect(&self, search: &mut Search, mode: &str) -> Connection {
        let table = "actions.tell-credentials]";
        let bundle = Bundle::guest("hostile")
            .for_integration(mode, &format!("echo-{mode}"))
            .replace(table, &format!("{table}\ncredentials = true"));
        let mut secret = |what: &str| search.plant(&format!("{what} of {mode}"));
        let (app_id, app_link) = ("4242", "https://example.com/app");
        let key = || std::fs::read_to_string(repository("tests/keys/rsa_pkcs8.pem")).expect("the key exists");
        let client = json!({ "client_id": "client-1", "client_secret": secret("client_secret") });
        let oauth = json!({ "client_id": "client-1", "client_secret": client["client_secret"],
                            "webhook_secret": secret("webhook_secret") });
        let installed = json!({ "app_id": app_id, "app_link": app_link, "private_key": key() });
        let join = |parts: &[&Value], auth_mode: &str| {
            let members = parts.iter().flat_map(|part| part.as_object().expect("an object").clone());
            let mut all: Value = members.collect::<serde_json::Map<_, _>>().into();
            all["type"] = json!(auth_mode);
            all
        };
        let app = match mode {
            "oauth2" => Some(join(&[&oauth], "OAUTH2")),
            "oauth1" => Some(join(&[&oauth], "OAUTH1")),
            "token-based" => Some(join(&[&oauth], "TBA")),
            "app" => Some(join(&[&installed], "APP")),
            "custom" => Some(join(&[&client, &installed], "CUSTOM")),
            _ => None,
        };
        let own_client = json!({ "client_id": "own", "client_secret": secret("own client_secret") });
        let credentials = match mode {
            "api-key" => json!({ "type": "API_KEY", "apiKey": secret("apiKey") }),
            "basic" => {
                json!({ "type": "BASIC", "username": secret("username"), "password": secret("password") })
            }
            "oauth2" => json!({
                "type": "OAUTH2", "access_token": secret("access_token"),
                "refresh_token": secret("refresh_token"), "config_override": own_client,
            }),
            "client-credentials" => json!({
                "type": "OAUTH2_CC", "token": secret("token"), "client_id": "own",
                "client_secret": secret("own client_secret"),
                "client_private_key": secret("client_private_key"),
            }),
            "oauth1" => json!({
                "type": "OAUTH1", "oauth_token": secret("oauth_token"),
                "oauth_token_secret": secret("oauth_token_secret"),
            }),
            "token-based" => json!({
                "type": "TBA", "token_id": secret("token_id"), "token_secret": secret("token_secret"),
                "config_override": own_client,
            }),
            "app" => json!({ "type": "APP", "app_id": app_id, "installation_id": "77" }),
            "custom" => json!({ "type": "CUSTOM", "app_id": app_id, "installation_id": "77" }),
            "jwt" => json!({ "id": "key-1", "secret": secret("secret") }),
            "two-step" => json!({ "pin": secret("pin") }),
            "bill" => json!({
                "username": "ada", "password": secret("password"), "organization_id": "org-1",
                "dev_key": secret("dev_key"),
            }),
            "signature" => json!({ "username": "ada", "password": secret("password") }),
            other => panic!("{other}"),
        };
        let settings = json!({
            "custom": { "webhook_secret": secret("custom.webhook_secret") },
            "integration_config": { "tenant": secret("integration_config") },
        });
        if let Some(line) = key().lines().nth(3) {
            search.add_secret("the private key of the app", line);
        }
        let mut integration = json!({ "provider": format!("echo-{mode}"), "unique_key": mode });
        if let Some(app) = &app {
            integration["credentials"] = app.clone();
        }
        let host = &self.host;
        search.add_answer(&host.post("/integrations", &integration).await.expect(200));
        search.add_answer(&host.patch(&format!("/integrations/{mode}"), &settings).await.expect(200));
        search.add("the plan of a deployment", host.deploy(&bundle).await.to_string());
        let connection = Connection::unknown(host, mode);
        let session = json!({ "end_user": { "id": mode }, "allowed_integrations": [mode] });
        let session = host.post("/connect/sessions", &session).await.expect(201).json();
        let session = text(&session["data"]["token"]).to_owned();
        search.add_secret("a session token", session.trim_start_matches("nango_connect_session_"));
        let browser = host.with_key(Some(&session));
        search.add_answer(&browser.get("/connect/session").await.expect(200));
        search.add_answer(&browser.get("/integrations").await.expect(200));
        let connection = match mode {
            "jwt" | "two-step" | "bill" | "signature" => {
                let session = query(&[("connect_session_token", &*session)]);
                let path = format!("/auth/{mode}/{mode}?{session}");
                let made = host.with_key(None).post(&path, &credentials).await.expect(200);
                search.outputs.push((format!("POST /auth/{mode}"), made.text()));
                connection.with_id(text(&made.json()["connectionId"]))
            }
            _ => {
                let mut body = json!({
                    "connection_id": "customer-1", "provider_config_key": mode, "credentials": credentials,
                });
                if mode == "token-based" {
                    body["connection_config"] = json!({ "accountId": "1234-sb1" });
                }
                // The response shows the credentials.
                host.post("/connections", &body).await.expect(201);
                connection.with_id("customer-1")
            }
        };
        connection.merge_metadata(json!({ "steps": 0 })).await;
        connection.wait_until_idle().await;
        connection
    }

    /// Makes everything that uses the credentials fail with what the provider returns.
    async fn use_connection(&self, search: &mut Search, connection: &Connection) {
        let mode = &connection.integration;
        for urls in [json!(["/refuse?403"]), json!(["/echo"])] {
            search.add_answer(&connection.action("tell-answers", &urls).await);
            let later = connection.trigger_async("tell-answers", &urls).await;
            search.add_answer(&connection.result(&later).await);
        }
        let key = [("Idempotency-Key", "once")];
        search.add_answer(&connection.action_with(&key, "tell-answers", &json!(["/refuse?403"])).await);
        search.add_answer(&connection.action("tell-credentials", &json!(true)).await);
        // The caller gets what the function says about variables. Its run and its log are masked.
        connection.action("tell-env", &Value::Null).await.expect(400);
        connection.merge_metadata(json!({ "fetches": ["/refuse?403"] })).await;
        let record = json!({
            "provider_config_key": mode, "connection_id": connection.id, "sync_name": "commit-raw", "runs": "every_run",
        });
        self.host.put("/sync/recording", &record).await.expect(200);
        assert_eq!(connection.run("commit-raw").await["status"], "ERROR", "{mode}");
        let failed = format!("/runs?provider_config_key={mode}&function=commit-raw&state=error&limit=1");
        let failed = self.host.get(&failed).await.expect(200).json();
        let recording = format!("/runs/{}/recording", text(&failed["runs"][0]["id"]));
        search.add_answer(&self.host.get(&recording).await.expect(200));
        // The response is the provider's.
        connection.request("GET", "/proxy/refuse?403").send().await;
        let call = json!({
            "jsonrpc": "2.0", "id": 1, "method": "tools/call",
            "params": { "name": "tell-answers", "arguments": { "input": ["/refuse?403"] } },
        });
        search.add_answer(&connection.request("POST", "/mcp").json(&call).send().await);

        let show = format!("/connections/{}?provider_config_key={mode}", connection.id);
        for more in ["&refresh_github_app_jwt_token=true", "&force_refresh=true&refresh_token=true"] {
            let answer = self.host.get(&format!("{show}{more}")).await;
            if answer.status == 200 {
                // The response shows the credentials: tokens that the host has obtained are secrets too.
                let credentials = answer.json()["credentials"].clone();
                for part in [&credentials, &credentials["app"]] {
                    for name in ["access_token", "token", "jwtToken"] {
                        if let Some(token) = part[name].as_str().filter(|token| *token != REFRESHED_TOKEN) {
                            search.add_secret(&format!("the {name} of {mode}"), token);
                        }
                    }
                }
            } else {
                search.add_answer(&answer);
            }
        }
        for included in ["webhook", "credentials"] {
            let path = format!("/integrations/{mode}?include={included}");
            search.add_answer(&self.host.get(&path).await.expect(200));
        }
    }

    /// Sends secrets in requests that the host rejects.
    async fn send_mistakes(&self, search: &mut Search) {
        let host = &self.host;
        let wrong = search.plant("a mistake");
        let import = |credentials: Value| json!({ "connection_id": "x", "provider_config_key": "api-key", "credentials": credentials });
        for body in [
            import(json!(wrong)),
            import(json!({ "type": "API_KEY", "apiKey": [wrong] })),
            import(json!({ "type": "API_KEY", "apiKey": wrong, "more": wrong })),
            import(json!({ "type": wrong, "apiKey": wrong })),
            json!({ "credentials": { "apiKey": wrong } }),
        ] {
            search.add_answer(&host.post("/connections", &body).await.expect(400));
        }
        let broken = format!("{{\"credentials\": {{\"apiKey\": \"{wrong}\", ");
        search.add_answer(&host.request("POST", "/connections").bytes(broken).send().await.expect(400));
        for credentials in
            [json!(wrong), json!({ "type": "OAUTH2", "client_id": 7, "client_secret": [wrong] })]
        {
            let body = json!({ "credentials": credentials });
            search.add_answer(&host.patch("/integrations/oauth2", &body).await.expect(400));
        }
        let variable = json!({ "value": wrong, "more": wrong });
        search.add_answer(&host.put("/environment-variables/PIN", &variable).await.expect(400));
        search.add_answer(&host.with_key(Some(&wrong)).get("/integrations").await.expect(401));
        let session = query(&[("connect_session_token", &*wrong)]);
        let typed = json!({ "pin": wrong });
        let path = format!("/auth/two-step/two-step?{session}");
        search.add_answer(&host.with_key(None).post(&path, &typed).await.expect(401));
        let hook = webhook_path(host, "webhooks").await;
        let body = json!({ "zen": "x" }).to_string();
        for signature in [hex_hmac(&wrong, &body), wrong.clone()] {
            let sent = signed(host, &hook, "push", "d1", &body, &format!("sha256={signature}"));
            search.add_answer(&sent.send().await.expect(401));
        }
    }

    /// Everything that the API lists.
    async fn read_api(&self, search: &mut Search) {
        let host = &self.host;
        for path in [
            "/connections",
            "/integrations",
            "/runs?limit=500",
            "/webhooks/deliveries?limit=100",
            "/webhooks/received?limit=100",
            "/dead-letters",
            "/providers/echo-oauth2",
            "/scripts/config",
            "/metrics",
            "/ready",
            "/health",
        ] {
            search.add_answer(&host.get(path).await.expect(200));
        }
        let auditor = host.create_key(&self.db, "auditor", "account");
        let auditor = host.with_key(Some(&auditor));
        search.add_answer(&auditor.get("/audit-log?limit=500").await.expect(200));
        search.add_answer(&auditor.get("/audit-log/export").await.expect(200));
        for (list, member, parts) in [
            ("/runs?limit=500", "runs", &["", "/logs?limit=1000"][..]),
            ("/webhooks/deliveries?limit=100", "deliveries", &[""]),
            ("/webhooks/received?limit=100", "webhooks", &[""]),
        ] {
            let listed = host.get(list).await.expect(200).json();
            let base = list.split('?').next().unwrap_or_default();
            let all =
                listed[member].as_array().unwrap_or_else(|| panic!("{list} has no `{member}`: {listed}"));
            for part in all.iter().flat_map(|one| parts.iter().map(move |part| (one, part))) {
                let path = format!("{base}/{}{}", text(&part.0["id"]), part.1);
                search.add_answer(&host.get(&path).await.expect(200));
            }
        }
    }

    /// Every page of the dashboard that links lead to.
    async fn read_dashboard(&self, search: &mut Search) {
        let person = Person::administrator(&self.host, &self.db).await;
        search.add_secret("the password of an account", PASSWORD);
        let session = person.cookie().split_once('=').expect("a name and a value").1.to_owned();
        search.add_secret("a session of the dashboard", &session);
        let start = "/dashboard/environments/dev/overview".to_owned();
        let (mut seen, mut open) = (BTreeSet::from([start.clone()]), VecDeque::from([start]));
        while let Some(path) = open.pop_front() {
            let answer = person.get(&path).await;
            search.add_answer(&answer);
            let page = answer.text();
            for link in page.split("href=\"").skip(1).filter_map(|rest| rest.split_once('"')) {
                let link = link.0.replace("&amp;", "&");
                let link = link.split('#').next().unwrap_or_default().to_owned();
                let is_page = link.starts_with("/dashboard") && !link.contains("/assets/");
                if is_page && seen.len() < 400 && seen.insert(link.clone()) {
                    open.push_back(link);
                }
            }
        }
        for part in
            ["connections/", "integrations/", "runs/", "outbound-webhooks/", "settings", "audit-log", "keys"]
        {
            assert!(seen.iter().any(|path| path.contains(part)), "no page of {part}: {seen:?}");
        }
    }
}

#[tokio::test]
async fn no_secret_appears_where_it_does_not_belong() {
    let mut search = Search { secrets: Vec::new(), outputs: Vec::new() };
    let mut scene = Scene::create(&mut search).await;
    let variable = json!({ "value": search.plant("a variable") });
    search.add_answer(&scene.host.put("/environment-variables/SHOP_PIN", &variable).await.expect(204));
    let rotated = scene.host.post("/environment/webhook-signing-key/rotate", &Value::Null).await.expect(200);
    let key = text(&rotated.json()["data"]["webhook_signing_key"]).to_owned();
    search.add_secret("the signing key", key.trim_start_matches("whsec_"));
    let key = scene.host.create_key(&scene.db, "backend", "full");
    search.add_secret("a secret key", &key);

    scene.host.deploy(&Bundle::guest("webhooks")).await;
    let secret = search.plant("the secret of inbound webhooks");
    let settings = json!({ "custom": { "webhook_secret": secret } });
    search.add_answer(&scene.host.patch("/integrations/webhooks", &settings).await.expect(200));
    let hook = webhook_path(&scene.host, "webhooks").await;
    let body = json!({ "ref": "main", "repository": { "full_name": "acme/shop" } }).to_string();
    let signature = format!("sha256={}", hex_hmac(&secret, &body));
    search.add_answer(&signed(&scene.host, &hook, "push", "d0", &body, &signature).send().await.expect(200));

    for (mode, _) in ENTRIES {
        let connection = scene.connect(&mut search, mode).await;
        scene.use_connection(&mut search, &connection).await;
    }
    scene.send_mistakes(&mut search).await;
    eventually("all runs are stored", async || {
        (scene.db.number("SELECT count(*) FROM runs WHERE state = 'running'").await == 0).then_some(())
    })
    .await;
    scene.read_api(&mut search).await;
    scene.read_dashboard(&mut search).await;
    let sent = json!(scene.server.seen.requests()).to_string();
    let is_sent = |what: &str| {
        let secret = search.secrets.iter().find(|(name, _)| name == what).expect("it was planted");
        sent.contains(&secret.1)
    };
    assert!(is_sent("apiKey of api-key") && is_sent("dev_key of bill"), "the provider received the secrets");
    for webhook in scene.receiver.webhooks() {
        search.add("a webhook to the backend", format!("{:?}{}", webhook.headers, webhook.text));
    }
    scene.host.stop().await;
    for (line, text) in scene.host.log().lines().enumerate() {
        search.add(format!("line {line} of the log"), text);
    }
    for (table, rows) in scene.db.dump().await {
        search.add(format!("the table {table}"), rows);
    }
    assert_eq!(search.found(), Vec::<String>::new());
}
