//! The audit log: every change and every read of credentials has one entry with its author.

use serde_json::{Value, json};
use sqlx::Connection as _;

use crate::support::{
    Answer, Api, Bundle, Echo, Host, HostOptions, KEY, OAuthScene, Person, Request, SECRET_KEY, SHOP_KEY,
    Shop, Stage, TestDatabase, eventually, query, text,
};

const PLANTED: &str = "planted-secret-of-the-audit-log-77d0";

/// A client that may read the audit log.
fn auditor(host: &Host, db: &TestDatabase) -> Api {
    host.with_key(Some(&host.create_key(db, "auditor", "account")))
}

async fn entries(auditor: &Api, parameters: &[(&str, &str)]) -> Vec<Value> {
    let listed = auditor.get(&format!("/audit-log?{}", query(parameters))).await.expect(200).json();
    listed["entries"].as_array().expect("`entries` is a list").clone()
}

/// Actions and targets of the entries with this request id, oldest first.
async fn of_request(db: &TestDatabase, id: &str) -> Vec<String> {
    let entry = "action || ' ' || target_kind || ' ' || target";
    db.texts(&format!("SELECT {entry} FROM audit_log WHERE request_id = '{id}' ORDER BY pk")).await
}

async fn count(db: &TestDatabase) -> i64 {
    db.number("SELECT count(*) FROM audit_log").await
}

/// Sends changes, each with its own request id, and checks the entries of each.
struct Changes<'a> {
    db: &'a TestDatabase,
    made: u32,
}

impl Changes<'_> {
    async fn make(&mut self, request: Request, status: u16, expected: &[&str]) -> Answer {
        self.made += 1;
        let id = format!("change-{}", self.made);
        let answer = request.header("X-Request-Id", &id).send().await.expect(status);
        assert_eq!(of_request(self.db, &id).await, expected, "entries of {}", answer.request);
        answer
    }
}

#[tokio::test]
async fn every_change_has_one_entry_with_its_author_target_and_request() {
    let stage = Stage::hostile().await;
    let (host, db) = (&stage.host, &stage.db);
    let account = auditor(host, db);
    let mut changes = Changes { db, made: 0 };
    let post = |path: &str, body: Value| host.request("POST", path).json(&body);
    let patch = |path: &str, body: Value| host.request("PATCH", path).json(&body);

    let integration = json!({ "provider": "unauthenticated", "unique_key": "open" });
    changes.make(post("/integrations", integration), 200, &["integration.created integration open"]).await;
    let named = json!({ "display_name": "Open" });
    changes.make(patch("/integrations/open", named), 200, &["integration.updated integration open"]).await;

    let import = json!({
        "provider_config_key": "open", "connection_id": "c1", "credentials": { "type": "NONE" },
    });
    // The response contains the credentials.
    let read = "credentials.read connection open/c1";
    let created = ["connection.created connection open/c1", read];
    changes.make(post("/connections", import.clone()), 201, &created).await;
    let replaced = ["connection.replaced connection open/c1", read];
    changes.make(post("/connections", import), 201, &replaced).await;
    let connection = "/connections/c1?provider_config_key=open";
    let updated = ["connection.updated connection open/c1"];
    changes.make(patch(connection, json!({ "tags": { "plan": "pro" } })), 200, &updated).await;
    let metadata = json!({ "provider_config_key": "open", "connection_id": "c1", "metadata": {} });
    let changed = ["connection.metadata_changed connection open/c1"];
    changes.make(post("/connections/metadata", metadata), 201, &changed).await;
    let deleted = ["connection.deleted connection open/c1"];
    changes.make(host.request("DELETE", connection), 200, &deleted).await;
    let deleted = ["integration.deleted integration open"];
    changes.make(host.request("DELETE", "/integrations/open"), 200, &deleted).await;

    let variable = "/environment-variables/NAME";
    let put = host.request("PUT", variable).json(&json!({ "value": "value" }));
    changes.make(put, 204, &["environment_variable.set environment_variable NAME"]).await;
    let deleted = ["environment_variable.deleted environment_variable NAME"];
    changes.make(host.request("DELETE", variable), 204, &deleted).await;
    changes.make(host.request("DELETE", variable), 204, &[]).await;

    // The response contains the signing keys.
    let settings = ["environment.settings_changed environment dev", "credentials.read environment dev"];
    changes.make(patch("/environment", json!({ "connect_ui_title": "Acme" })), 200, &settings).await;
    let rotated = ["signing_key.rotated environment dev"];
    changes.make(post("/environment/webhook-signing-key/rotate", json!({})), 200, &rotated).await;

    let create = account.request("POST", "/environments").json(&json!({ "name": "staging" }));
    let staging = changes.make(create, 200, &["environment.created environment staging"]).await.json();
    let staging = text(&staging["data"]["id"]).to_owned();
    let key = json!({ "environment_id": staging, "display_name": "backend" });
    let create = account.request("POST", "/environment/api-keys").json(&key).header("X-Request-Id", "key");
    let key = text(&create.send().await.expect(200).json()["data"]["id"]).to_owned();
    assert_eq!(of_request(db, "key").await, [format!("api_key.created api_key {key}")]);
    let revoke = json!({ "environment_id": staging, "key_id": key });
    let revoke = account.request("DELETE", "/environment/api-keys").json(&revoke);
    changes.make(revoke, 200, &[&format!("api_key.revoked api_key {key}")]).await;
    let delete = account.request("DELETE", &format!("/environments/{staging}"));
    changes.make(delete, 204, &["environment.deleted environment staging"]).await;

    let sync = json!({
        "provider_config_key": "hostile", "connection_id": "customer-1", "syncs": ["steps"],
    });
    for (command, action) in [("trigger", "triggered"), ("pause", "paused"), ("start", "started")] {
        let expected = format!("sync.{action} connection hostile/customer-1");
        changes.make(post(&format!("/sync/{command}"), sync.clone()), 200, &[&expected]).await;
    }
    let frequency = json!({
        "provider_config_key": "hostile", "connection_id": "customer-1", "sync_name": "steps",
        "frequency": "every 3 hours",
    });
    let set = || host.request("PUT", "/sync/update-connection-frequency").json(&frequency);
    changes.make(set(), 200, &["sync.frequency_changed connection hostile/customer-1"]).await;
    changes.make(set(), 200, &[]).await;
    let mut recorded = json!({
        "provider_config_key": "hostile", "connection_id": "customer-1", "sync_name": "steps",
        "runs": "every_run",
    });
    let record = |order: &Value| host.request("PUT", "/sync/recording").json(order);
    let changed = ["sync.recording_changed connection hostile/customer-1"];
    changes.make(record(&recorded), 200, &changed).await;
    changes.make(record(&recorded), 200, &[]).await;
    recorded["runs"] = Value::Null;
    changes.make(record(&recorded), 200, &changed).await;
    let of_connection = json!({ "provider_config_key": "hostile", "connection_id": "customer-1" });
    let variant = "/sync/steps/variant/second";
    let created = ["sync_variant.created connection hostile/customer-1"];
    changes.make(post(variant, of_connection.clone()), 200, &created).await;
    let delete = host.request("DELETE", variant).json(&of_connection);
    changes.make(delete, 200, &["sync_variant.deleted connection hostile/customer-1"]).await;

    let bundle = Bundle::guest("hostile").replace("[models.Item]\n", "[models.Item]\nstrict = true\n");
    let deploy = || host.request("POST", "/deployments").header("Content-Type", "application/x-tar");
    let name = text(&host.deploy(&bundle).await["bundle"]).to_owned();
    let again = Bundle::guest("hostile");
    let expected = format!("deployment.activated deployment {name}");
    changes.make(deploy().bytes(again.to_tar()), 200, &[&expected]).await;
    changes.make(deploy().bytes(again.to_tar()), 200, &[]).await;

    // Each entry names the key, the environment and the address.
    let found = entries(&account, &[("target", "open/c1"), ("action", "connection.deleted")]).await;
    assert_eq!(found.len(), 1, "{found:?}");
    let key = "SELECT id::text FROM api_keys WHERE name = 'SYNCLINE_SECRET_KEY'";
    assert_eq!(
        found[0],
        json!({
            "id": found[0]["id"], "at": found[0]["at"], "environment": "dev",
            "actor": { "kind": "api_key", "id": db.texts(key).await[0], "name": "SYNCLINE_SECRET_KEY" },
            "action": "connection.deleted", "target": { "kind": "connection", "name": "open/c1" },
            "details": {}, "address": "127.0.0.1", "request_id": "change-7",
        })
    );
}

#[tokio::test]
async fn a_change_that_fails_has_no_entry() {
    let stage = Stage::hostile().await;
    let (host, db) = (&stage.host, &stage.db);
    let account = auditor(host, db);
    let before = count(db).await;
    let integration = json!({ "provider": "unauthenticated", "unique_key": "hostile" });
    host.post("/integrations", &integration).await.expect(409);
    account.post("/environments", &json!({ "name": "dev" })).await.expect(409);
    host.patch("/integrations/unknown", &json!({ "display_name": "x" })).await.expect(404);
    host.delete("/connections/unknown?provider_config_key=hostile").await.expect(404);
    host.delete("/integrations/unknown").await.expect(404);
    host.post("/environment/webhook-signing-key/rotate", &json!({})).await.expect(200);
    host.post("/environment/webhook-signing-key/rotate", &json!({})).await.expect(409);
    assert_eq!(count(db).await, before + 1, "only the first rotation succeeded");

    // An import writes its entry before the webhook, which this trigger prevents.
    db.execute(
        "UPDATE environments SET webhook_url = 'http://127.0.0.1:9/hook';
         CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'refused'; END $$;
         CREATE TRIGGER refuse BEFORE INSERT ON outbound_webhook_deliveries
             FOR EACH ROW EXECUTE FUNCTION refuse()",
    )
    .await;
    let import = json!({
        "provider_config_key": "hostile", "connection_id": "c2", "credentials": { "type": "NONE" },
    });
    host.post("/connections", &import).await.expect(500);
    assert_eq!(db.number("SELECT count(*) FROM connections WHERE connection_id = 'c2'").await, 0);
    assert_eq!(count(db).await, before + 1);
}

#[tokio::test]
async fn a_change_fails_if_its_entry_cannot_be_written() {
    let stage = Stage::hostile().await;
    let host = &stage.host;
    host.put("/environment-variables/KEPT", &json!({ "value": "value" })).await.expect(204);
    stage.db.execute("ALTER TABLE audit_log RENAME TO hidden").await;
    host.put("/environment-variables/NAME", &json!({ "value": "value" })).await.expect(500);
    host.get("/environment-variables").await.expect(500);
    host.get("/connections/customer-1?provider_config_key=hostile").await.expect(500);
    host.delete("/connections/customer-1?provider_config_key=hostile").await.expect(500);
    stage.db.execute("ALTER TABLE hidden RENAME TO audit_log").await;
    let variables = host.get("/environment-variables").await.expect(200).json();
    assert_eq!(variables, json!([{ "name": "KEPT", "value": "value" }]));
    host.get("/connections/customer-1?provider_config_key=hostile").await.expect(200);
}

#[tokio::test]
async fn reads_of_credentials_are_recorded_and_reads_without_credentials_are_not() {
    let shop = Shop::start().await;
    let stage = Stage::stripe(&shop).await;
    let (host, db) = (&stage.host, &stage.db);
    host.put("/environment-variables/PIN", &json!({ "value": PLANTED })).await.expect(204);
    let app = json!({
        "provider": "github", "unique_key": "github",
        "credentials": { "type": "OAUTH2", "client_id": "app", "client_secret": PLANTED },
    });
    host.post("/integrations", &app).await.expect(200);
    let reader = host.with_key(Some(&host.create_key(db, "reader", "read-only")));
    let before = count(db).await;
    let connection = "/connections/customer-1?provider_config_key=stripe";
    reader.get(connection).await.expect(200);
    reader.get("/connections").await.expect(200);
    host.get("/integrations/github").await.expect(200);
    host.get("/integrations").await.expect(200);
    stage.request("GET", "/proxy/v1/customers").send().await;
    stage.run("customers").await;
    let runs = "SELECT count(*) FROM audit_log WHERE action = 'sync.triggered'";
    assert_eq!(count(db).await - before, db.number(runs).await, "the proxy and runs write none");

    let before = count(db).await;
    for (path, expected) in [
        (connection, "connection stripe/customer-1"),
        ("/integrations/github?include=credentials", "integration github"),
        ("/environment-variables", "environment dev"),
        ("/environment", "environment dev"),
    ] {
        host.request("GET", path).header("X-Request-Id", path).send().await.expect(200);
        assert_eq!(of_request(db, path).await, [format!("credentials.read {expected}")], "{path}");
    }
    assert_eq!(count(db).await, before + 4);
    let details = "SELECT details::text FROM audit_log WHERE request_id = '/environment-variables'";
    assert_eq!(db.texts(details).await, [r#"{"environment_variables": ["PIN"]}"#]);
    assert_eq!(db.tables_with(PLANTED).await, [""; 0]);
    for secret in [SECRET_KEY, SHOP_KEY, "whsec_"] {
        let found = format!("SELECT count(*) FROM audit_log AS t WHERE t::text LIKE '%{secret}%'");
        assert_eq!(db.number(&found).await, 0, "{secret}");
    }
}

/// A secret key that can import connections, and not read their credentials.
fn importing_key(host: &Host, db: &TestDatabase) -> String {
    let key = host.command(db, &["keys", "create", "importer", "--scopes", "environment:connections:create"]);
    key.trim().to_owned()
}

#[tokio::test]
async fn an_import_is_a_read_only_if_its_response_contains_the_credentials() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    host.post("/integrations", &json!({ "provider": "stripe-api-key", "unique_key": "pay" }))
        .await
        .expect(200);
    let importer = host.with_key(Some(&importing_key(&host, &db)));
    for (client, id, reads) in [(&importer, "unread", false), (&*host, "read", true)] {
        let import = json!({
            "provider_config_key": "pay", "connection_id": id,
            "credentials": { "type": "BASIC", "username": PLANTED, "password": "" },
        });
        let request = client.request("POST", "/connections").json(&import).header("X-Request-Id", id);
        let answer = request.send().await.expect(201);
        assert_eq!(answer.text().contains(PLANTED), reads, "{}", answer.text());
        let (created, read) = (
            format!("connection.created connection pay/{id}"),
            format!("credentials.read connection pay/{id}"),
        );
        let expected = if reads { vec![created, read] } else { vec![created] };
        assert_eq!(of_request(&db, id).await, expected);
    }
    assert_eq!(db.tables_with(PLANTED).await, [""; 0]);
}

/// Refreshes the credentials of a new connection with the API and in the dashboard. Returns the statuses and the
/// entries about reads of credentials.
async fn force_refreshes(token_path: &str) -> ([u16; 2], Vec<String>) {
    let entry = Echo::OAUTH2.replace("{server}/token", &format!("{{server}}{token_path}"));
    let echo = Echo::start(&entry, Bundle::guest("hostile")).await;
    echo.set_app(PLANTED).await;
    let person = Person::administrator(&echo.host, &echo.db).await;
    let importer = importing_key(&echo.host, &echo.db);
    let import = json!({
        "provider_config_key": "hostile", "connection_id": "customer-1", "metadata": { "steps": 0 },
        "credentials": { "type": "OAUTH2", "access_token": "a", "refresh_token": "r" },
    });
    echo.host.with_key(Some(&importer)).post("/connections", &import).await.expect(201);
    let path = "/connections/customer-1?provider_config_key=hostile&force_refresh=true";
    let by_client = echo.host.get(path).await.status.as_u16();
    let page = "/dashboard/environments/dev/connections/hostile/customer%2D1";
    let by_person = person.submit(page, &format!("{page}/refresh"), &[]).await.status.as_u16();
    let reads =
        "SELECT actor_kind || ' ' || target FROM audit_log WHERE action = 'credentials.read' ORDER BY pk";
    ([by_client, by_person], echo.db.texts(reads).await)
}

#[tokio::test]
async fn a_forced_refresh_is_a_read_if_it_succeeds() {
    let read = ["api_key hostile/customer-1", "account hostile/customer-1"].map(str::to_owned);
    assert_eq!(force_refreshes("/token").await, ([200, 303], read.to_vec()));
    // No credentials are returned, so there is nothing to record.
    assert_eq!(force_refreshes("/token-refusal").await, ([400, 424], Vec::new()));
}

#[tokio::test]
async fn a_connection_of_an_end_user_names_the_session() {
    let scene = OAuthScene::create().await;
    let id = scene.connect_account().await;
    let author =
        "SELECT actor_kind || ' ' || actor_name || ' ' || (actor_id = s.id::text) || ' ' || host(address)
                  FROM audit_log, connect_sessions s WHERE action = 'connection.created'";
    assert_eq!(scene.db.texts(author).await, ["connect_session u-1 true 127.0.0.1"]);
    assert_eq!(scene.db.audited("connection.created").await, [format!("connection {KEY}/{id}")]);
}

#[tokio::test]
async fn commands_name_the_user_of_the_operating_system_and_first_keys_the_host() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    let by_host = "SELECT action FROM audit_log WHERE actor_kind = 'host' ORDER BY pk";
    assert_eq!(db.texts(by_host).await, ["environment.created", "api_key.created"]);

    host.command(&db, &["env", "create", "other"]);
    host.command(&db, &["env", "set", "connect_ui_title=Acme", "-e", "other"]);
    host.command(&db, &["env", "rotate-signing-key", "-e", "other"]);
    host.command(&db, &["env", "show", "-e", "other"]);
    host.command(&db, &["env", "show", "--secrets", "-e", "other"]);
    db.command(&["env", "vars", "set", "NAME", "-e", "other"]).input(PLANTED).run();
    host.command(&db, &["env", "vars", "list", "-e", "other"]);
    host.command(&db, &["env", "vars", "list", "--values", "-e", "other"]);
    host.command(&db, &["env", "vars", "unset", "NAME", "-e", "other"]);
    host.command(&db, &["keys", "create", "backend", "-e", "other"]);
    host.command(&db, &["keys", "revoke", "backend", "-e", "other"]);
    host.command(&db, &["keys", "rotate-data", "-e", "other"]);
    host.command(&db, &["env", "delete", "other", "--yes"]);
    let user = std::process::Command::new("id").arg("-un").output().expect("the system has the program");
    let user = String::from_utf8(user.stdout).expect("it is text").trim().to_owned();
    let by_user = format!(
        "SELECT action FROM audit_log
         WHERE actor_kind = 'command_line' AND actor_id = '{user}' AND environment_name = 'other' ORDER BY pk"
    );
    assert_eq!(
        db.texts(&by_user).await,
        [
            "environment.created",
            "environment.settings_changed",
            "signing_key.rotated",
            "credentials.read",
            "environment_variable.set",
            "credentials.read",
            "environment_variable.deleted",
            "api_key.created",
            "api_key.revoked",
            "data_key.rotated",
            "environment.deleted",
        ]
    );
    assert_eq!(db.number("SELECT count(*) FROM audit_log").await, 2 + 11);
    assert_eq!(db.tables_with(PLANTED).await, [""; 0]);
}

#[tokio::test]
async fn postgres_refuses_to_change_and_to_delete_entries() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    host.put("/environment-variables/NAME", &json!({ "value": "value" })).await.expect(204);
    let before = count(&db).await;
    for statement in [
        "UPDATE audit_log SET actor_name = 'somebody else'",
        "DELETE FROM audit_log",
        "TRUNCATE audit_log",
        // Even retention cannot delete what happened today.
        "SET LOCAL syncline.audit_log_retention = 'on'; DELETE FROM audit_log",
    ] {
        let mut conn = db.connect().await;
        let mut tx = conn.begin().await.unwrap();
        let refused = sqlx::raw_sql(statement).execute(&mut *tx).await.unwrap_err().to_string();
        assert!(refused.contains("the audit log is append-only"), "{statement}: {refused}");
    }
    assert_eq!(count(&db).await, before);
}

/// Adds entries of the given age.
async fn add_old(db: &TestDatabase, number: u32, days: u32) {
    db.execute(&format!(
        "INSERT INTO audit_log (at, actor_kind, actor_id, action, target_kind, target)
         SELECT now() - interval '{days} days', 'host', 'host', 'sync.paused', 'connection', 'old/' || n
         FROM generate_series(1, {number}) AS n"
    ))
    .await;
}

#[tokio::test]
async fn old_entries_are_deleted_after_the_configured_time() {
    let db = TestDatabase::create().await;
    add_old(&db, 2_500, 366).await;
    add_old(&db, 7, 364).await;
    let mut host = Host::spawn(&db).await;
    let old = "SELECT count(*) FROM audit_log WHERE target LIKE 'old/%'";
    let left = async |expected: i64| {
        eventually("old entries are deleted", async || (db.number(old).await == expected).then_some(()))
            .await;
    };
    left(7).await;
    host.stop().await;
    add_old(&db, 3, 29).await;
    let _host =
        HostOptions::new().database(&db).variable("SYNCLINE_AUDIT_RETENTION_DAYS", "30").spawn().await;
    left(3).await;
}

#[tokio::test]
async fn the_list_is_paged_filtered_and_exported() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    let account = auditor(&host, &db);
    for number in 0..25 {
        let path = format!("/environment-variables/NAME_{number}");
        host.put(&path, &json!({ "value": "value" })).await.expect(204);
    }
    let all = entries(&account, &[("limit", "500")]).await;
    assert_eq!(all[0]["target"]["name"], "NAME_24", "newest first");
    let mut paged = Vec::new();
    let mut cursor: Option<String> = None;
    loop {
        let mut parameters = vec![("limit", "10")];
        parameters.extend(cursor.as_deref().map(|cursor| ("cursor", cursor)));
        let page = account.get(&format!("/audit-log?{}", query(&parameters))).await.expect(200).json();
        paged.extend(page["entries"].as_array().unwrap().clone());
        // Entries that are added meanwhile change nothing on later pages.
        host.put("/environment-variables/LATER", &json!({ "value": "value" })).await.expect(204);
        match page["next_cursor"].as_str() {
            Some(next) => cursor = Some(next.to_owned()),
            None => break,
        }
    }
    assert_eq!(paged, all);

    let of = async |parameters: &[(&str, &str)]| entries(&account, parameters).await.len();
    let key = text(&all[0]["actor"]["id"]);
    assert_eq!(of(&[("target", "NAME_3")]).await, 1);
    assert_eq!(of(&[("actor", key), ("target", "NAME_3"), ("environment", "dev")]).await, 1);
    assert_eq!(of(&[("actor", "host")]).await, 2);
    assert_eq!(of(&[("action", "environment.created")]).await, 1);
    assert_eq!(of(&[("environment", "unknown")]).await, 0);
    let at = text(&all[10]["at"]);
    let (newer, older) = (of(&[("after", at)]).await, of(&[("before", at)]).await);
    assert_eq!(newer + older, count(&db).await as usize);
    let wrong = account.get("/audit-log?action=nothing").await;
    assert_eq!(wrong.refusal(), (400, "invalid_query_params".to_owned()));
    let foreign = account.get("/audit-log?cursor=AAAA").await;
    assert_eq!(foreign.refusal(), (400, "invalid_cursor".to_owned()));

    // More than one page of the export.
    add_old(&db, 1_200, 2).await;
    let exported = account.get("/audit-log/export").await.expect(200);
    assert_eq!(exported.header("content-type"), Some("application/x-ndjson"));
    let exported = exported.text();
    let lines: Vec<Value> = exported.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len() as i64, count(&db).await);
    let mut ids: Vec<_> = lines.iter().map(|entry| text(&entry["id"])).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), lines.len(), "no entry is exported twice");
    let some = account.get("/audit-log/export?action=environment.created").await.expect(200).text();
    assert_eq!(some.lines().count(), 1, "{some}");

    let run = |arguments: &[&str]| {
        let key = host.create_key(&db, &uuid::Uuid::new_v4().to_string(), "account");
        let to_host = ["--url", host.base_url(), "--secret-key", &*key];
        host.command(&db, &[&["audit"], arguments, &to_host].concat())
    };
    let listed = run(&["list", "--target", "NAME_3"]);
    assert!(listed.contains("environment_variable.set  environment_variable NAME_3"), "{listed}");
    assert_eq!(run(&["export", "--action", "sync.paused"]).lines().count(), 1_200);
}

#[tokio::test]
async fn only_keys_with_the_scope_read_the_audit_log() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    for path in ["/audit-log", "/audit-log/export"] {
        assert_eq!(host.get(path).await.refusal(), (403, "forbidden".to_owned()), "{path}");
        host.with_key(None).get(path).await.expect(401);
        auditor(&host, &db).get(path).await.expect(200);
        host.command(&db, &["keys", "revoke", "auditor"]);
    }
}
