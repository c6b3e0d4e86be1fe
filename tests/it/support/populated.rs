//! An environment with an object of every kind, for tests that are generated from the OpenAPI document.

use serde_json::{Value, json};

use super::operations::{Operation, Values};
use super::webhook_scene::{self, SECRET, hex_hmac, push, signed};
use super::{Api, Bundle, Connection, Receiver, eventually, save, text};

/// Text in the objects of the environment.
pub const PLANTED: &str = "planted-in-this-environment";

/// The objects of an environment.
pub struct Populated {
    pub api: Api,
    pub connection: Connection,
    pub run: String,
    pub dead_letter: String,
    pub delivery: String,
    pub webhook: String,
    pub job: String,
    pub session_token: String,
    pub environment: String,
    pub cursor: String,
}

impl Populated {
    /// Creates the objects in the environment of the client's key. The host must be allowed to reach the receiver.
    pub async fn create(api: Api, receiver: &Receiver) -> Self {
        api.patch("/environment", &json!({ "webhook_url": receiver.url("/hooks") })).await.expect(200);
        let environment = text(&api.get("/environment").await.expect(200).json()["data"]["id"]).to_owned();
        let setting_aside = ("[models.Item]\n", "[models.Item]\non_bad_record = \"set_aside\"\n");
        api.deploy(&Bundle::guest("hostile").replace(setting_aside.0, setting_aside.1)).await;
        api.deploy(&Bundle::guest("webhooks")).await;
        api.patch("/integrations/hostile", &json!({ "display_name": PLANTED })).await.expect(200);
        api.put("/environment-variables/NAME", &json!({ "value": PLANTED })).await.expect(204);

        let connection = api.connect("hostile", json!({ "steps": 0, "note": PLANTED })).await;
        let items = json!([{ "id": "good", "name": PLANTED }, { "id": "bad", "count": PLANTED }]);
        connection.commit(json!([save(&items)])).await;
        let variant = json!({ "provider_config_key": "hostile", "connection_id": connection.id });
        api.post("/sync/steps/variant/extra", &variant).await.expect(200);
        let job = connection.trigger_async("log-fields", &json!(PLANTED)).await;
        connection.result(&job).await.expect(200);

        webhook_scene::set_secret(&api, "webhooks", SECRET).await;
        let of_webhooks =
            webhook_scene::connect(&api, "customer-2", json!({ "repository": "acme/shop" })).await;
        let url = webhook_scene::webhook_path(&api, "webhooks").await;
        let body = push(PLANTED).to_string();
        let signature = format!("sha256={}", hex_hmac(SECRET, &body));
        signed(&api, &url, "push", "delivery-1", &body, &signature).send().await.expect(200);
        of_webhooks.wait_until_idle().await;

        let session = json!({ "tags": { "end_user_id": "7" }, "allowed_integrations": ["hostile"] });
        let session = api.post("/connect/sessions", &session).await.expect(201).json();
        let records = connection.all(&[("model", "Item")]).await;
        Self {
            run: first_id(&api, "/runs?function=commit-raw", "runs").await,
            dead_letter: first_id(&api, "/dead-letters", "dead_letters").await,
            delivery: first_id(&api, "/webhooks/deliveries?state=delivered", "deliveries").await,
            webhook: first_id(&api, "/webhooks/received?state=processed", "webhooks").await,
            job: job.trim_start_matches("/action/").to_owned(),
            session_token: text(&session["data"]["token"]).to_owned(),
            cursor: super::cursor_of(&records[0]).to_owned(),
            environment,
            connection,
            api,
        }
    }

    /// The values of an operation's parameters that name these objects.
    pub fn values(&self, operation: &Operation) -> Values {
        let connection = &self.connection.id;
        let id = match operation.path.split('/').nth(1).unwrap_or_default() {
            "action" => &self.job,
            "runs" => &self.run,
            "dead-letters" => &self.dead_letter,
            "environments" => &self.environment,
            _ if operation.path.starts_with("/webhooks/deliveries") => &self.delivery,
            _ => &self.webhook,
        };
        let name = match operation.path.split('/').nth(1).unwrap_or_default() {
            "environment-variables" => "NAME",
            "integrations" => "log-fields",
            _ => "steps",
        };
        Values::from([
            ("Connection-Id", connection.clone()),
            ("connection_id", connection.clone()),
            ("Provider-Config-Key", "hostile".to_owned()),
            ("provider_config_key", "hostile".to_owned()),
            ("unique_key", "hostile".to_owned()),
            ("key", "hostile".to_owned()),
            ("id", id.clone()),
            ("name", name.to_owned()),
            ("variant", "extra".to_owned()),
            ("model", "Item".to_owned()),
            ("syncs", "*".to_owned()),
            ("wait", "0".to_owned()),
            ("environment_uuid", self.environment.clone()),
            ("connect_session_token", self.session_token.clone()),
            ("provider", "unauthenticated".to_owned()),
        ])
    }

    /// The example of an operation's body, about these objects.
    pub fn body(&self, operation: &Operation) -> Option<Value> {
        let (_, example) = operation.body()?;
        let mut body = example.clone();
        let members = body.as_object_mut().into_iter().flatten();
        for (member, value) in members {
            let own = match member.as_str() {
                "provider_config_key" | "integration_id" => json!("hostile"),
                "connection_id" if value.is_array() => json!([self.connection.id]),
                "connection_id" => json!(self.connection.id),
                "allowed_integrations" => json!(["hostile"]),
                "syncs" => json!(["steps"]),
                "sync_name" => json!("steps"),
                "model" => json!("Item"),
                "until_cursor" => json!(self.cursor),
                "action_name" => json!("log-fields"),
                "input" => json!(PLANTED),
                "environment_id" => json!(self.environment),
                "credentials" => json!({ "type": "NONE" }),
                "token" => json!(self.session_token),
                _ => continue,
            };
            *value = own;
        }
        Some(body)
    }

    /// Ids that no other environment may return.
    pub fn secrets(&self) -> [&str; 7] {
        [PLANTED, &self.run, &self.dead_letter, &self.delivery, &self.webhook, &self.job, &self.cursor]
    }
}

async fn first_id(api: &Api, path: &str, list: &str) -> String {
    eventually(&format!("{path} has an entry"), async || {
        let found = api.get(path).await.expect(200).json();
        found[list][0]["id"].as_str().map(str::to_owned)
    })
    .await
}
