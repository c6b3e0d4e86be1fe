//! Statements about webhooks to the client's backend.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::support::{Kind, Section, body, get, post, string};
use crate::support::webhook_scene::hex_hmac;
use crate::support::{
    Api, Bundle, Connection, HostOptions, Receiver, Reply, TestDatabase, Webhook, eventually, open_session,
    save,
};

#[tokio::test]
async fn outbound_webhooks() {
    let (db, receiver) = (TestDatabase::create().await, Receiver::start().await);
    let options = HostOptions::new().database(&db).variable("SYNCLINE_EGRESS_ALLOW", &receiver.address());
    let host = options.variable("SYNCLINE_WEBHOOK_RETRIES", "50ms").spawn().await;
    host.deploy(&Bundle::guest("hostile")).await;
    let urls =
        json!({ "webhook_url": receiver.url("/hooks"), "webhook_url_secondary": receiver.url("/second") });
    host.patch("/environment", &urls).await.expect(200);
    let mut section = Section::new("Outbound webhooks");
    auth(&mut section, &host, &receiver).await;
    sessions(&mut section, &host, &receiver).await;
    signatures(&mut section, &host, &receiver).await;
    let connection = host.connect("hostile", json!({ "steps": 0 })).await;
    syncs(&mut section, &connection, &receiver).await;
    async_actions(&mut section, &connection, &receiver).await;
    switches(&mut section, &host, &connection, &receiver).await;
    deliveries(&mut section, &host, &receiver).await;
    section.finish();
}

/// Waits for a webhook to the primary URL.
async fn wait_for(receiver: &Receiver, matches: impl Fn(&Value) -> bool) -> Webhook {
    eventually("the webhook arrives", async || {
        let webhooks = receiver.webhooks().into_iter();
        webhooks.filter(|webhook| webhook.path == "/hooks").find(|webhook| matches(&webhook.body()))
    })
    .await
}

fn import(id: &str, more: &Value) -> Value {
    let mut import = json!({ "connection_id": id, "provider_config_key": "hostile", "credentials": { "type": "NONE" }, "metadata": { "steps": 0 } });
    for (name, value) in more.as_object().into_iter().flatten() {
        import[name] = value.clone();
    }
    import
}

async fn auth(section: &mut Section, host: &Api, receiver: &Receiver) {
    let user = json!({
        "end_user": { "id": "u-1", "email": "ada@example.com" }, "organization": { "id": "o-1" }, "tags": { "Plan": "pro" },
    });
    host.post("/connections", &import("customer-0", &user)).await.expect(201);
    let webhook =
        wait_for(receiver, |body| body["type"] == "auth" && body["connectionId"] == "customer-0").await;
    let sent = webhook.body();
    let members = [
        ("from", Kind::Text),
        ("type", Kind::Text),
        ("connectionId", Kind::Text),
        ("providerConfigKey", Kind::Text),
        ("authMode", Kind::Text),
        ("provider", Kind::Text),
        ("environment", Kind::Text),
        ("operation", Kind::Text),
        ("success", Kind::Boolean),
        ("tags", Kind::Object),
        ("endUser", Kind::Object),
    ];
    section.only_members("An `auth` webhook", &sent, &members);
    for (member, value) in [
        ("from", "nango"),
        ("connectionId", "customer-0"),
        ("providerConfigKey", "hostile"),
        ("authMode", "NONE"),
        ("provider", "unauthenticated"),
        ("environment", "dev"),
        ("operation", "creation"),
    ] {
        section.equal(&format!("`{member}` of an `auth` webhook is `{value}`"), &sent[member], value);
    }
    section.equal("`success` of a created connection is true", &sent["success"], true);
    section.equal("`tags` contains the connection's tags", &sent["tags"]["plan"], "pro");
    let end_user =
        json!({ "endUserId": "u-1", "endUserEmail": "ada@example.com", "organizationId": "o-1", "tags": {} });
    section.equal("`endUser` contains the end user", &sent["endUser"], end_user);
    host.post("/connections", &import("customer-0", &json!({}))).await.expect(201);
    let webhook = wait_for(receiver, |body| body["operation"] == "override").await;
    section.equal(
        "An import under an existing id sends `override`",
        &webhook.body()["connectionId"],
        "customer-0",
    );
    section.lacks("An `auth` webhook of a connection without end user", &webhook.body(), "endUser");
    let own = json!({ "webhook_url_override": receiver.url("/own") });
    host.post("/connections", &import("customer-9", &own)).await.expect(201);
    let of_own = eventually("the webhook arrives", async || {
        let webhooks = receiver.webhooks().into_iter();
        let of_own: Vec<Webhook> = webhooks
            .filter(|webhook| {
                webhook.body()["connectionId"] == "customer-9" && webhook.body()["type"] == "auth"
            })
            .collect();
        (!of_own.is_empty()).then_some(of_own)
    });
    let paths: Vec<String> = of_own.await.into_iter().map(|webhook| webhook.path).collect();
    section.equal("`webhook_url_override` replaces both URLs", &json!(paths), json!(["/own"]));
}

async fn sessions(section: &mut Section, host: &Api, receiver: &Receiver) {
    let session = json!({ "end_user": { "id": "u-2" }, "tags": { "plan": "free" } });
    let token = open_session(host, "/connect/sessions", session).await;
    let path = format!("/auth/unauthenticated/hostile?connect_session_token={token}");
    let made = host.with_key(None).post(&path, &json!({})).await.expect(200);
    let id = body(&made)["connectionId"].clone();
    let sent = wait_for(receiver, |body| body["connectionId"] == id && body["type"] == "auth").await.body();
    section.equal("A user who connects causes an `auth` webhook", &sent["operation"], "creation");
    let tags = json!({ "end_user_id": "u-2", "plan": "free" });
    section.equal("It includes the session's tags", &sent["tags"], tags);
    section.equal("It includes the session's end user", &sent["endUser"]["endUserId"], "u-2");
}

async fn signatures(section: &mut Section, host: &Api, receiver: &Receiver) {
    let webhook = wait_for(receiver, |body| body["operation"] == "creation").await;
    let key = body(&get(host, "/environment").send().await)["data"]["webhook_signing_keys"][0]["key"].clone();
    let key = string(&key);
    section.equal(
        "The content type is `application/json`",
        &json!(webhook.header("content-type")),
        "application/json",
    );
    let agent = webhook.header("user-agent");
    section.holds("The user agent is `syncline/` and the version", agent.starts_with("syncline/"), &agent);
    let is_equal = webhook.header("x-nango-hmac-sha256") == hex_hmac(&key, &webhook.text);
    section.holds(
        "`X-Nango-Hmac-Sha256` is the HMAC-SHA256 of the body",
        is_equal,
        &webhook.header("x-nango-hmac-sha256"),
    );
    let digest = Sha256::digest(format!("{key}{}", webhook.text));
    let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    let is_equal = webhook.header("x-nango-signature") == digest;
    section.holds(
        "`X-Nango-Signature` is the SHA-256 of key and body",
        is_equal,
        &webhook.header("x-nango-signature"),
    );
    let secret = STANDARD.decode(key.trim_start_matches("whsec_")).unwrap_or_default();
    let mut mac = Hmac::<Sha256>::new_from_slice(&secret).expect("a key of any length");
    mac.update(
        format!("{}.{}.{}", webhook.id(), webhook.header("webhook-timestamp"), webhook.text).as_bytes(),
    );
    let signature = format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()));
    let is_equal = webhook.header("webhook-signature") == signature;
    section.holds(
        "`webhook-signature` signs id, time and body",
        is_equal,
        &webhook.header("webhook-signature"),
    );
    section.holds("`webhook-id` is a UUID", uuid::Uuid::parse_str(webhook.id()).is_ok(), &webhook.id());
    let sorted = serde_json::to_string(&webhook.body()).unwrap_or_default();
    section.holds(
        "The body is JSON with sorted keys and without whitespace",
        webhook.text == sorted,
        &webhook.text,
    );
    let second = eventually("the webhook arrives at the second URL", async || {
        let webhooks = receiver.webhooks().into_iter();
        webhooks.filter(|one| one.path == "/second").find(|one| one.id() == webhook.id())
    })
    .await;
    section.equal("The second URL receives the same body", &second.body(), webhook.body());
}

async fn syncs(section: &mut Section, connection: &Connection, receiver: &Receiver) {
    let of = |body: &Value, sync: &str| {
        body["type"] == "sync" && body["syncName"] == sync && body["connectionId"] == "customer-1"
    };
    let first = wait_for(receiver, |body| of(body, "commit-raw")).await.body();
    section.equal("The first successful run is `INITIAL`", &first["syncType"], "INITIAL");
    let zeros = json!({ "added": 0, "updated": 0, "deleted": 0 });
    section.equal("A run without changes is reported by default", &first["responseResults"], zeros);
    connection.commit(json!([save(&json!([{ "id": "a" }, { "id": "b" }]))])).await;
    let sent = wait_for(receiver, |body| of(body, "commit-raw") && body["responseResults"]["added"] == 2)
        .await
        .body();
    let members = [
        ("from", Kind::Text),
        ("type", Kind::Text),
        ("connectionId", Kind::Text),
        ("providerConfigKey", Kind::Text),
        ("syncName", Kind::Text),
        ("syncVariant", Kind::Text),
        ("model", Kind::Text),
        ("syncType", Kind::Text),
        ("success", Kind::Boolean),
        ("modifiedAfter", Kind::Time),
        ("queryTimeStamp", Kind::Time),
        ("responseResults", Kind::Object),
    ];
    section.only_members("A `sync` webhook of a successful run", &sent, &members);
    for (member, value) in [
        ("from", "nango"),
        ("providerConfigKey", "hostile"),
        ("syncVariant", "base"),
        ("model", "Item"),
        ("syncType", "INCREMENTAL"),
    ] {
        section.equal(&format!("`{member}` of a `sync` webhook is `{value}`"), &sent[member], value);
    }
    section.equal("`success` of a successful run is true", &sent["success"], true);
    section.equal(
        "`queryTimeStamp` equals `modifiedAfter`",
        &sent["queryTimeStamp"],
        sent["modifiedAfter"].clone(),
    );
    let since = string(&sent["modifiedAfter"]);
    let found = connection.all(&[("model", "Item"), ("modified_after", &since)]).await;
    section.equal("`modified_after` with this time returns the changes", &json!(found.len()), 2);
    connection.set_metadata(json!({ "steps": 2, "pause_ms": 0 })).await;
    connection.run("steps").await;
    let sent =
        wait_for(receiver, |body| of(body, "steps") && body["responseResults"]["added"] == 2).await.body();
    let checkpoints = json!({ "from": null, "to": { "cursor": "2" } });
    section.equal("`checkpoints` has the checkpoints before and after", &sent["checkpoints"], checkpoints);
    connection.set_metadata(json!({ "steps": 2, "end": "fail" })).await;
    connection.run("commit-raw").await;
    let failed = wait_for(receiver, |body| body["type"] == "sync" && body["success"] == false).await.body();
    let members = [
        ("syncName", Kind::Text),
        ("model", Kind::Text),
        ("error", Kind::Object),
        ("startedAt", Kind::Time),
        ("failedAt", Kind::Time),
    ];
    section.members("A `sync` webhook of a failed run", &failed, &members);
    section.lacks("A `sync` webhook of a failed run", &failed, "responseResults");
    section.equal("`error.type` is `script_error`", &failed["error"]["type"], "script_error");
    let message = "the metadata asks for a failure";
    let contains = string(&failed["error"]["description"]).contains(message);
    section.holds("`error.description` is the function's message", contains, &failed["error"]["description"]);
    connection.set_metadata(json!({ "steps": 2 })).await;
}

async fn async_actions(section: &mut Section, connection: &Connection, receiver: &Receiver) {
    for (name, action, input) in
        [("succeeds", "print", json!("x")), ("fails", "fail", json!({ "code": "no", "message": "no" }))]
    {
        let path = connection.trigger_async(action, &input).await;
        let sent = wait_for(receiver, |body| body["payload"]["statusUrl"] == path.as_str()).await.body();
        let expected = json!({
            "from": "nango", "type": "async_action", "connectionId": "customer-1", "providerConfigKey": "hostile",
            "payload": { "id": path.trim_start_matches("/action/"), "statusUrl": path },
        });
        section.equal(
            &format!("An asynchronous action that {name} causes an `async_action` webhook"),
            &sent,
            expected,
        );
    }
}

async fn switches(section: &mut Section, host: &Api, connection: &Connection, receiver: &Receiver) {
    let off = json!({ "on_auth_creation": false, "on_sync_completion_always": false, "on_async_action_completion": false });
    host.patch("/environment", &off).await.expect(200);
    host.post("/connections", &import("customer-5", &json!({}))).await.expect(201);
    connection.with_id("customer-5").wait_until_idle().await;
    let path = connection.trigger_async("print", &json!("x")).await;
    connection.result(&path).await.expect(200);
    // `override` has no switch. Its webhook follows those that are switched off.
    host.post("/connections", &import("customer-5", &json!({}))).await.expect(201);
    let sent =
        wait_for(receiver, |body| body["operation"] == "override" && body["connectionId"] == "customer-5")
            .await;
    section.equal(
        "`override` is reported although `on_auth_creation` is false",
        &sent.body()["type"],
        "auth",
    );
    let bodies: Vec<Value> = receiver.webhooks().iter().map(Webhook::body).collect();
    let is_sent = |kind: &str, member: &str, value: &Value| {
        bodies.iter().any(|body| body["type"] == kind && body.pointer(member) == Some(value))
    };
    let of_connection = json!("customer-5");
    let statement = "`on_sync_completion_always: false` hides runs without changes";
    section.holds(statement, !is_sent("sync", "/connectionId", &of_connection), &bodies);
    let statement = "`on_async_action_completion: false` hides asynchronous actions";
    section.holds(statement, !is_sent("async_action", "/payload/statusUrl", &json!(path)), &bodies);
    let is_creation =
        |body: &&Value| body["operation"] == "creation" && body["connectionId"] == of_connection;
    let creation = bodies.iter().find(is_creation);
    section.holds("`on_auth_creation: false` hides new connections", creation.is_none(), &creation);
}

async fn deliveries(section: &mut Section, host: &Api, receiver: &Receiver) {
    receiver.always(Reply::status(500));
    host.patch("/environment", &json!({ "webhook_url_secondary": null })).await.expect(200);
    host.post("/connections", &import("customer-5", &json!({}))).await.expect(201);
    let failed = eventually("the webhook is given up", async || {
        let failed = body(&get(host, "/webhooks/deliveries?state=failed").send().await);
        failed["deliveries"][0]["id"].is_string().then_some(failed)
    })
    .await;
    section.members(
        "`GET /webhooks/deliveries`",
        &failed,
        &[("deliveries", Kind::List), ("next_cursor", Kind::Null)],
    );
    let one = failed["deliveries"][0].clone();
    let members = [
        ("id", Kind::Uuid),
        ("webhook_id", Kind::Uuid),
        ("type", Kind::Text),
        ("state", Kind::Text),
        ("url", Kind::Url),
        ("attempt_count", Kind::Integer),
        ("created_at", Kind::Time),
        ("finished_at", Kind::Time),
    ];
    section.members("A delivery", &one, &members);
    section.equal("A webhook that the receiver rejects is sent again", &one["attempt_count"], 2);
    let path = format!("/webhooks/deliveries/{}", string(&one["id"]));
    let shown = section.returns("`GET /webhooks/deliveries/{id}`", get(host, &path), 200).await;
    section.members(
        "A delivery with details",
        &body(&shown),
        &[("attempts", Kind::List), ("body", Kind::Object)],
    );
    let sent: Vec<Webhook> = receiver
        .webhooks()
        .into_iter()
        .filter(|one_sent| json!(one_sent.id()) == one["webhook_id"])
        .collect();
    section.equal("Every attempt has the same `webhook-id`", &json!(sent.len()), 2);
    receiver.always(Reply::status(200));
    let again = host.request("POST", &format!("{path}/redeliver"));
    section.returns("`POST /webhooks/deliveries/{id}/redeliver`", again, 202).await;
    let all = post(host, "/webhooks/deliveries/redeliver", &json!({ "since": "2020-01-01T00:00:00Z" }));
    let all = section.returns("`POST /webhooks/deliveries/redeliver`", all, 202).await;
    section.members("Its body", &body(&all), &[("count", Kind::Integer)]);
    let unknown = get(host, "/webhooks/deliveries/0198c0de-0000-7000-8000-000000000000");
    section.rejects("`GET` of an unknown delivery", unknown, 404, "unknown_webhook").await;
    let state = get(host, "/webhooks/deliveries?state=lost");
    section.rejects_at("An unknown `state`", state, (400, "invalid_query_params"), "state").await;
}
