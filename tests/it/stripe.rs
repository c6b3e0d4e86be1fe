//! The main use case with the real example and a server that speaks Stripe's API: customers and invoices as records,
//! and an action.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::support::{METADATA_KEY, Shop, Stage, masked, text, without_metadata};

/// The fields of the model `Customer`, taken from the shop's response.
fn customer(of_shop: &Value) -> Value {
    let fields = ["id", "created", "email", "name", "phone", "description", "metadata"];
    let mut customer: Value =
        fields.iter().map(|field| ((*field).to_owned(), of_shop[field].clone())).collect();
    let address = &of_shop["address"];
    let parts = ["line1", "line2", "postal_code", "city", "state", "country"];
    customer["address"] = match address {
        Value::Null => Value::Null,
        _ => parts.iter().map(|part| ((*part).to_owned(), address[part].clone())).collect(),
    };
    customer
}

fn invoice(of_shop: &Value) -> Value {
    let fields = [
        "id",
        "created",
        "customer",
        "customer_email",
        "description",
        "status",
        "currency",
        "subtotal",
        "total",
        "amount_due",
        "amount_paid",
    ];
    fields.iter().map(|field| ((*field).to_owned(), of_shop[field].clone())).collect()
}

fn by_id(objects: impl IntoIterator<Item = Value>) -> BTreeMap<String, Value> {
    objects.into_iter().map(|object| (text(&object["id"]).to_owned(), object)).collect()
}

/// The payloads of live records, by id.
async fn live(stage: &Stage, model: &str) -> BTreeMap<String, Value> {
    let records = stage.all(&[("model", model), ("filter", "added,updated")]).await;
    by_id(records.into_iter().map(without_metadata))
}

/// Creates a customer with a monthly subscription, and therefore an invoice.
async fn subscribe(shop: &Shop, name: &str) {
    let customer = shop.create_customer(&[("name", name)]).await;
    let id = text(&customer["id"]);
    let card = [
        ("source[object]", "card"),
        ("source[number]", "4242424242424242"),
        ("source[exp_month]", "12"),
        ("source[exp_year]", "2099"),
        ("source[cvc]", "123"),
    ];
    shop.post(&format!("/v1/customers/{id}/sources"), &card).await;
    shop.post("/v1/subscriptions", &[("customer", id), ("items[0][plan]", "pro")]).await;
}

async fn create_plan(shop: &Shop) {
    let plan =
        [("id", "pro"), ("name", "Pro"), ("amount", "500"), ("currency", "eur"), ("interval", "month")];
    shop.post("/v1/plans", &plan).await;
}

#[tokio::test]
async fn a_first_sync_saves_all_customers_of_the_shop() {
    let shop = Shop::start().await;
    shop.create_customers(120).await;
    shop.create_customer(&[
        ("name", "Ada \"Lovelace\" 🎩"),
        ("email", "ada@example.com"),
        ("phone", "+44 20 7946 0000"),
        ("address[city]", "London"),
        ("address[line1]", "12 St James's Square"),
        ("metadata[plan]", "pro"),
    ])
    .await;
    let stage = Stage::stripe(&shop).await;

    let at_the_shop = shop.list("/v1/customers").await;
    assert_eq!(at_the_shop.len(), 121);
    assert_eq!(live(&stage, "Customer").await, by_id(at_the_shop.iter().map(customer)));
    let first = stage.page(&[("model", "Customer"), ("limit", "1")]).await.records.remove(0);
    assert_eq!(
        masked(first[METADATA_KEY].clone()),
        json!({
            "first_seen_at": "…", "last_modified_at": "…", "last_action": "ADDED",
            "deleted_at": null, "pruned_at": null, "cursor": "…",
        })
    );
}

#[tokio::test]
async fn changes_at_the_shop_are_applied_to_the_records() {
    let shop = Shop::start().await;
    let [kept, changed, removed] = ["kept", "changed", "removed"].map(|name| [("name", name)]);
    let (kept, changed, removed) = (
        shop.create_customer(&kept).await,
        shop.create_customer(&changed).await,
        shop.create_customer(&removed).await,
    );
    let stage = Stage::stripe(&shop).await;
    let before = by_id(stage.all(&[("model", "Customer")]).await);

    let id_of = |customer: &Value| text(&customer["id"]).to_owned();
    let (kept, changed, removed) = (id_of(&kept), id_of(&changed), id_of(&removed));
    shop.post(&format!("/v1/customers/{changed}"), &[("email", "new@example.com")]).await;
    shop.delete(&format!("/v1/customers/{removed}")).await;
    let added = id_of(&shop.create_customer(&[("name", "added")]).await);
    let status = stage.run("customers").await;

    assert_eq!(status["latestResult"], json!({ "Customer": { "added": 1, "updated": 1, "deleted": 1 } }));
    assert_eq!(status["recordCount"], json!({ "Customer": 3 }));
    assert_eq!(live(&stage, "Customer").await, by_id(shop.list("/v1/customers").await.iter().map(customer)));
    let after = by_id(stage.all(&[("model", "Customer")]).await);
    assert_eq!(after[&kept], before[&kept], "an unchanged customer is not rewritten");
    let last_action = |id: &str| text(&after[id][METADATA_KEY]["last_action"]);
    assert_eq!([&added, &changed, &removed].map(|id| last_action(id)), ["ADDED", "UPDATED", "DELETED"]);
    assert_eq!(after[&changed]["email"], "new@example.com");
    assert_eq!(
        after[&changed][METADATA_KEY]["first_seen_at"],
        before[&changed][METADATA_KEY]["first_seen_at"]
    );
    assert_eq!(after[&removed]["name"], "removed", "a tombstone keeps the last payload");

    let again = stage.run("customers").await;
    assert_eq!(again["latestResult"], json!({ "Customer": { "added": 0, "updated": 0, "deleted": 0 } }));
    assert_eq!(by_id(stage.all(&[("model", "Customer")]).await), after);
}

#[tokio::test]
async fn invoices_are_fetched_once_and_then_followed_by_events() {
    let shop = Shop::start().await;
    create_plan(&shop).await;
    subscribe(&shop, "first").await;
    let stage = Stage::stripe(&shop).await;
    let fetched = |shop: &Shop, path: &str| shop.log().lines().filter(|line| line.contains(path)).count();
    assert_eq!(live(&stage, "Invoice").await, by_id(shop.list("/v1/invoices").await.iter().map(invoice)));
    let checkpoint = stage.status("invoices").await["checkpoint"].clone();
    assert!(checkpoint["cursor"].is_string(), "{checkpoint}");

    let listed_before = fetched(&shop, "GET /v1/invoices?limit=100 ");
    subscribe(&shop, "second").await;
    let status = stage.run("invoices").await;
    assert_eq!(status["latestResult"], json!({ "Invoice": { "added": 1, "updated": 0, "deleted": 0 } }));
    assert_eq!(fetched(&shop, "GET /v1/invoices?limit=100 "), listed_before, "the list is not fetched again");
    assert_eq!(fetched(&shop, "GET /v1/events?limit=100&created"), 1);
    assert_eq!(live(&stage, "Invoice").await, by_id(shop.list("/v1/invoices").await.iter().map(invoice)));
}

#[tokio::test]
async fn an_action_returns_the_shops_response() {
    let shop = Shop::start().await;
    let stage = Stage::stripe(&shop).await;
    let new = json!({ "name": "Grace", "email": "grace@example.com", "address": { "city": "New York" } });
    let answer = stage.action("create-customer", &new).await.expect(200);
    assert_eq!(answer.header("content-type"), Some("application/json"));
    let at_the_shop = shop.list("/v1/customers").await;
    assert_eq!(at_the_shop.len(), 1);
    assert_eq!(answer.json(), customer(&at_the_shop[0]));
    assert_eq!(at_the_shop[0]["email"], "grace@example.com");
}

#[tokio::test]
async fn an_input_that_does_not_match_its_model_is_rejected_with_its_path() {
    let shop = Shop::start().await;
    let stage = Stage::stripe(&shop).await;
    let answer = stage.action("create-customer", &json!({ "address": { "city": 7 } })).await;
    assert_eq!(answer.refusal(), (400, "invalid_action_input".to_owned()));
    assert_eq!(answer.json()["error"]["errors"][0]["path"], json!(["address", "city"]));
    assert!(
        answer.message().contains("at /address/city: expected string or null, got integer"),
        "{}",
        answer.message()
    );
    assert_eq!(shop.list("/v1/customers").await, [] as [Value; 0], "the function did not run");
}

#[tokio::test]
async fn an_unhandled_provider_error_is_a_failed_dependency() {
    let shop = Shop::start().await;
    let stage = Stage::stripe(&shop).await;
    let body = json!({
        "connection_id": stage.id, "provider_config_key": "stripe",
        "credentials": { "type": "BASIC", "username": "no-key-of-the-shop", "password": "" },
    });
    stage.host.post("/connections", &body).await.expect(201);
    let answer = stage.action("create-customer", &json!({ "name": "Grace" })).await;
    assert_eq!(answer.refusal(), (424, "script_http_error".to_owned()));
    let error = &answer.json()["error"];
    let upstream = &error["upstream"];
    assert_eq!(upstream["status"], 401, "{upstream}");
    let headers: Vec<&str> = upstream["headers"].as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(headers, ["content-type"]);
    assert_eq!(error["payload"], upstream["body"]);
    assert!(upstream["body"].to_string().contains("Unauthorized"), "{upstream}");
}

#[tokio::test]
async fn a_sync_status_has_every_field_that_clients_read() {
    let shop = Shop::start().await;
    shop.create_customers(2).await;
    let stage = Stage::stripe(&shop).await;
    let status = stage.status("customers").await;
    assert_eq!(
        masked(status.clone()),
        json!({
            "id": "…", "connection_id": "customer-1", "name": "customers", "variant": "base",
            "type": "INCREMENTAL", "status": "SUCCESS", "frequency": "every 5 minutes",
            "finishedAt": "…", "nextScheduledSyncAt": "…",
            "latestResult": { "Customer": { "added": 2, "updated": 0, "deleted": 0 } },
            "latestExecutionStatus": "SUCCESS",
            "recordCount": { "Customer": 2 },
            "checkpoint": null,
        })
    );
    let time = |name: &str| chrono::DateTime::parse_from_rfc3339(text(&status[name])).unwrap();
    let seconds = (time("nextScheduledSyncAt") - time("finishedAt")).num_seconds();
    assert!(
        (270..=345).contains(&seconds),
        "the next run is {seconds} s after the last, expected 5 minutes with jitter"
    );
}
