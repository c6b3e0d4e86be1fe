//! Statements about the metadata of connections.

use serde_json::{Value, json};

use super::support::{Section, body, get, patch, post, with, without};
use crate::support::{Api, Host, TestDatabase};

const BODY: (u16, &str) = (400, "invalid_body");

fn of(ids: Value, metadata: Value) -> Value {
    json!({ "connection_id": ids, "provider_config_key": "open", "metadata": metadata })
}

async fn stored(host: &Api, id: &str) -> Value {
    body(&get(host, &format!("/connections/{id}?provider_config_key=open")).send().await)["metadata"].clone()
}

#[tokio::test]
async fn metadata() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    host.post("/integrations", &json!({ "provider": "unauthenticated", "unique_key": "open" }))
        .await
        .expect(200);
    for id in ["one", "two"] {
        host.connect_as(id, "open", json!({ "kept": { "a": 1 } })).await;
    }
    let mut section = Section::new("Metadata of connections");
    let sent = of(json!("one"), json!({ "plan": "pro", "list": [1, null, { "x": true }] }));
    let answer = post(&host, "/connections/metadata", &sent);
    let answer = section.returns("`POST /connections/metadata`", answer, 201).await;
    section.equal("The response is the body as sent", &body(&answer), sent.clone());
    section.equal("`POST` replaces all metadata", &stored(&host, "one").await, sent["metadata"].clone());
    section.equal(
        "The metadata of other connections stays",
        &stored(&host, "two").await,
        json!({ "kept": { "a": 1 } }),
    );
    let sent = of(json!("two"), json!({ "kept": { "b": 2 }, "new": "x" }));
    let answer = patch(&host, "/connections/metadata", &sent);
    let answer = section.returns("`PATCH /connections/metadata`", answer, 200).await;
    section.equal("The response to `PATCH` is the body as sent", &body(&answer), sent);
    let merged = json!({ "kept": { "b": 2 }, "new": "x" });
    section.equal("`PATCH` replaces members as a whole", &stored(&host, "two").await, merged);
    let request = patch(&host, "/connections/metadata", &of(json!("two"), json!({ "more": 1 })));
    section.returns("`PATCH` with another member", request, 200).await;
    let merged = json!({ "kept": { "b": 2 }, "new": "x", "more": 1 });
    section.equal("`PATCH` keeps the other members", &stored(&host, "two").await, merged);
    for (method, status) in [("POST", 201), ("PATCH", 200)] {
        let both = of(json!(["one", "two"]), json!({ "by": method }));
        let request = host.request(method, "/connections/metadata").json(&both);
        let answer = section.returns(&format!("`{method}` with a list of ids"), request, status).await;
        section.equal(&format!("The response to `{method}` contains the list"), &body(&answer), both);
        for id in ["one", "two"] {
            let statement = format!("`{method}` changes the connection `{id}` of the list");
            section.equal(&statement, &stored(&host, id).await["by"], method);
        }
    }
    for method in ["POST", "PATCH"] {
        invalid(&mut section, &host, method).await;
    }
    older(&mut section, &host).await;
    section.finish();
}

async fn invalid(section: &mut Section, host: &Api, method: &str) {
    let send = |body: &Value| host.request(method, "/connections/metadata").json(body);
    let partly = of(json!(["one", "unknown"]), json!({ "lost": true }));
    let statement = format!("`{method}` with an unknown connection in the list");
    section.rejects(&statement, send(&partly), 404, "unknown_connection").await;
    let statement = format!("`{method}` with an unknown connection changes no connection of the list");
    section.equal(&statement, &stored(host, "one").await["lost"], Value::Null);
    let unknown = with(&of(json!("one"), json!({})), "provider_config_key", "unknown");
    let statement = format!("`{method}` at an unknown integration");
    section.rejects(&statement, send(&unknown), 404, "unknown_integration").await;
    let good = of(json!("one"), json!({}));
    for (what, body, place) in [
        ("without `connection_id`", without(&good, "connection_id"), "connection_id"),
        ("without `provider_config_key`", without(&good, "provider_config_key"), "provider_config_key"),
        ("without `metadata`", without(&good, "metadata"), "metadata"),
        ("with an empty list of ids", of(json!([]), json!({})), "connection_id"),
        ("with a number as id", of(json!(7), json!({})), "connection_id"),
        ("with metadata that is a list", of(json!("one"), json!([])), "metadata"),
        ("with metadata that is null", of(json!("one"), Value::Null), "metadata"),
        ("with metadata above 1 MiB", of(json!("one"), json!({ "a": "x".repeat(1 << 20) })), "metadata"),
        ("with an unknown member", with(&good, "merge", true), "merge"),
    ] {
        section.rejects_at(&format!("`{method}` {what}"), send(&body), BODY, place).await;
    }
}

async fn older(section: &mut Section, host: &Api) {
    let bulk = of(json!("one"), json!({ "a": 1 }));
    section
        .returns("`POST /connection/metadata`, an older name", post(host, "/connection/metadata", &bulk), 201)
        .await;
    section
        .returns(
            "`PATCH /connection/metadata`, an older name",
            patch(host, "/connection/metadata", &bulk),
            200,
        )
        .await;
    let path = "/connection/one/metadata?provider_config_key=open";
    section
        .returns(
            "`POST /connection/{id}/metadata` with only the metadata",
            post(host, path, &json!({ "b": 2 })),
            201,
        )
        .await;
    section.equal("It replaces the metadata", &stored(host, "one").await, json!({ "b": 2 }));
    section
        .returns(
            "`PATCH /connection/{id}/metadata` with only the metadata",
            patch(host, path, &json!({ "c": 3 })),
            200,
        )
        .await;
    section.equal("It merges the metadata", &stored(host, "one").await, json!({ "b": 2, "c": 3 }));
}
