//! Synchronous actions.

use futures_util::future::join_all;
use serde_json::json;

use crate::support::{Bundle, Host, HostOptions, SlowProvider, Stage, TestDatabase};

#[tokio::test]
async fn an_action_returns_its_output_byte_for_byte() {
    let stage = Stage::numbers(0).await;
    for input in
        ["{ \"b\": 1.50,\n \"a\": [12345678901234567890123, \"\\u00fc\"] }", "\"\"", "0", "[]", "null"]
    {
        let body = format!("{{\"action_name\": \"echo\", \"input\": {input}}}");
        let request = stage.request("POST", "/action/trigger").header("Content-Type", "application/json");
        let answer = request.bytes(body).send().await.expect(200);
        assert_eq!(answer.text(), input);
        assert_eq!(answer.header("content-type"), Some("application/json"));
    }
    let hostile = Stage::hostile().await;
    let nothing = hostile.action("print", &json!("x")).await.expect(200);
    assert_eq!(
        (nothing.text(), nothing.header("content-type")),
        (String::new(), None),
        "the function returned nothing"
    );
}

#[tokio::test]
async fn an_output_that_does_not_match_its_model_is_rejected_with_its_path() {
    let typed = Bundle::example("minimal")
        .replace("[integrations.minimal]\n", "[models.Order]\nlines = \"Line[]\"\n\n[models.Line]\ncount = \"integer\"\n\n[integrations.minimal]\n")
        .replace("output = \"json\"", "output = \"Order\"");
    let stage = Stage::of(&typed, json!({ "count": 0 })).await;
    let good = json!({ "lines": [{ "count": 1 }], "further": true });
    assert_eq!(stage.action("echo", &good).await.expect(200).json(), good);
    let answer = stage.action("echo", &json!({ "lines": [{ "count": 1 }, { "count": "two" }] })).await;
    assert_eq!(answer.refusal(), (400, "invalid_action_output".to_owned()));
    assert_eq!(
        answer.json()["error"]["errors"][0]["path"],
        json!(["lines", "1", "count"]),
        "{}",
        answer.text()
    );
    assert!(!answer.text().contains("two"), "the error names types, but no values: {}", answer.text());
}

#[tokio::test]
async fn a_provider_error_includes_its_body_but_only_selected_headers() {
    let stage = Stage::hostile().await;
    let headers = json!({
        "content-type": "application/problem+json", "X-RateLimit-Remaining": "0", "x-request-id": "of-the-provider",
        "server": "shop",
    });
    let expected_headers =
        json!({ "content-type": "application/problem+json", "X-RateLimit-Remaining": "0" });
    for (body, read, payload) in [
        (json!("Unauthorized"), json!("Unauthorized"), json!("Unauthorized")),
        (json!("17"), json!("17"), json!("17")),
        (json!("{\"code\": 7}"), json!({ "code": 7 }), json!({ "code": 7 })),
        (json!("{\"payload\": [1], \"more\": 2}"), json!({ "payload": [1], "more": 2 }), json!([1])),
        (json!("[{\"cut\": "), json!("[{\"cut\": "), json!("[{\"cut\": ")),
        (json!({ "code": 8 }), json!({ "code": 8 }), json!({ "code": 8 })),
    ] {
        let details = json!({ "status": 401, "headers": headers, "body": body });
        let failure = json!({ "code": "provider-http-error", "message": "it said 401", "details": details });
        let answer = stage.action("fail", &failure).await;
        assert_eq!(answer.refusal(), (424, "script_http_error".to_owned()));
        let error = &answer.json()["error"];
        assert_eq!(error["upstream"], json!({ "status": 401, "headers": expected_headers, "body": read }));
        assert_eq!(error["payload"], payload);
    }
}

#[tokio::test]
async fn sixty_actions_of_one_connection_run_concurrently() {
    const CALLS: usize = 60;
    let db = TestDatabase::create().await;
    let provider = SlowProvider::listen().await;
    let host =
        HostOptions::new().database(&db).variable("SYNCLINE_EGRESS_ALLOW", &provider.address()).spawn().await;
    host.deploy(&provider.bundle()).await;
    let connection = host.connect_as("ada", "hostile", json!({ "steps": 0 })).await;
    let input = json!({ "url": "/slow" });
    let (answers, ()) =
        tokio::join!(join_all((0..CALLS).map(|_| connection.action("fetch", &input))), async {
            // No request is answered before all have arrived.
            let mut waiting = Vec::new();
            for _ in 0..CALLS {
                waiting.push(provider.next_request().await);
            }
            for pending in waiting {
                pending.answer("done").await;
            }
        });
    for answer in answers {
        assert_eq!(answer.expect(200).json()["body"], "done");
    }
}

#[tokio::test]
async fn compiled_components_are_reused_after_a_restart() {
    let mut stage = Stage::numbers(0).await;
    stage.host.stop().await;
    let compiled = |host: &Host| host.log().matches("compiled a component").count();
    let host = HostOptions::new().database(&stage.db).spawn().await;
    stage.connection.through(&host).action("echo", &json!(1)).await.expect(200);
    assert_eq!(compiled(&host), 0, "the host reuses the compiled component");
    // Without stored components, the host compiles and logs it.
    let empty = tempfile::TempDir::new().expect("a temporary folder can be made");
    let folder = empty.path().display().to_string();
    let options = HostOptions::new().database(&stage.db).variable("SYNCLINE_COMPILED_DIR", &folder);
    assert_eq!(compiled(&options.spawn().await), 1);
}
