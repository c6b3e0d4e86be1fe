//! Traces: the spans that a collector receives if the standard variables name one.

use serde_json::{Value, json};

use crate::support::{
    Api, Bundle, Host, HostOptions, PythonServer, SECRET_KEY, SHOP_KEY, Shop, TestDatabase, eventually,
    free_port, text,
};

const VARIABLE: &str = "planted-variable-of-the-traces-77b2";

/// A host that exports traces to this endpoint without delay.
fn traced(db: &TestDatabase, endpoint: &str) -> HostOptions {
    HostOptions::new()
        .database(db)
        .variable("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        .variable("OTEL_BSP_SCHEDULE_DELAY", "100")
}

async fn spans(collector: &PythonServer) -> Vec<Value> {
    let received = Api::new(collector.base_url(), None).get("/spans").await.expect(200).json();
    received.as_array().expect("the collector returns a list").clone()
}

fn named<'s>(spans: &'s [Value], name: &str) -> Option<&'s Value> {
    spans.iter().map(|received| &received["span"]).find(|span| span["name"] == name)
}

fn attribute<'s>(span: &'s Value, name: &str) -> Option<&'s Value> {
    span["attributes"]
        .as_array()?
        .iter()
        .find(|attribute| attribute["key"] == name)
        .map(|found| &found["value"])
}

#[tokio::test]
async fn a_request_its_run_and_its_provider_calls_are_one_trace() {
    let (db, shop) = (TestDatabase::create().await, Shop::start().await);
    let collector = PythonServer::start("collector.py", &[]).await;
    let host = traced(&db, &collector.base_url()).allow(&shop).spawn().await;
    host.deploy(&Bundle::example("stripe").at(&shop)).await;
    host.put("/environment-variables/TOKEN", &json!({ "value": VARIABLE })).await.expect(204);
    let connection = host.connect_to(&shop).await;
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let input = json!({ "email": "a@example.com" });
    let body = json!({ "action_name": "create-customer", "input": input });
    let request = connection.request("POST", "/action/trigger").json(&body);
    request.header("traceparent", &format!("00-{trace}-00f067aa0ba902b7-01")).send().await.expect(200);
    let received = eventually("the whole trace has arrived", async || {
        let received = spans(&collector).await;
        let of_trace: Vec<Value> =
            received.iter().filter(|received| received["span"]["traceId"] == trace).cloned().collect();
        named(&of_trace, "POST /action/trigger").is_some().then_some(of_trace)
    })
    .await;
    let request = named(&received, "POST /action/trigger").unwrap();
    assert_eq!(request["parentSpanId"], "00f067aa0ba902b7");
    assert_eq!(request["kind"], "SPAN_KIND_SERVER");
    let run = named(&received, "action create-customer").expect("the trace contains the run");
    assert_eq!(run["parentSpanId"], request["spanId"]);
    let sent = named(&received, "provider request").expect("the trace contains the provider request");
    assert_eq!((&sent["parentSpanId"], &sent["kind"]), (&run["spanId"], &json!("SPAN_KIND_CLIENT")));
    assert_eq!(attribute(sent, "http.response.status_code"), Some(&json!({ "intValue": "200" })));

    let all = eventually("the spans of a sync and its commit have arrived", async || {
        let received = spans(&collector).await;
        (named(&received, "sync customers").is_some() && named(&received, "commit").is_some())
            .then_some(received)
    })
    .await;
    let sync = named(&all, "sync customers").unwrap();
    let commit = named(&all, "commit").unwrap();
    assert_eq!(commit["traceId"].as_str().map(str::len), sync["traceId"].as_str().map(str::len));
    assert!(attribute(sync, "run.id").is_some(), "{sync}");
    let service = json!({ "key": "service.name", "value": { "stringValue": "syncline" } });
    assert!(all[0]["resource"]["attributes"].as_array().unwrap().contains(&service), "{}", all[0]);
    let everything = json!(all).to_string();
    for secret in [SECRET_KEY, SHOP_KEY, VARIABLE, "planted"] {
        assert!(!everything.contains(secret), "{secret} is in {everything}");
    }
    assert_eq!(text(&request["traceId"]), trace);
}

#[tokio::test]
async fn remaining_spans_are_sent_on_shutdown() {
    let (db, collector) = (TestDatabase::create().await, PythonServer::start("collector.py", &[]).await);
    let mut host = traced(&db, &collector.base_url())
        .variable("OTEL_BSP_SCHEDULE_DELAY", "3600000")
        .variable("OTEL_SERVICE_NAME", "of-the-tests")
        .spawn()
        .await;
    host.get("/environment").await.expect(200);
    host.stop().await;
    let received = spans(&collector).await;
    assert!(named(&received, "GET /environment").is_some(), "{received:?}");
    let service = json!({ "key": "service.name", "value": { "stringValue": "of-the-tests" } });
    assert!(received[0]["resource"]["attributes"].as_array().unwrap().contains(&service), "{}", received[0]);
}

#[tokio::test]
async fn an_unavailable_collector_does_not_affect_requests() {
    let db = TestDatabase::create().await;
    let mut host = traced(&db, &format!("http://127.0.0.1:{}", free_port())).spawn().await;
    for _ in 0..20 {
        host.get("/environment").await.expect(200);
    }
    eventually("it is told", async || host.log().contains("the trace collector").then_some(())).await;
    host.stop().await;
}

#[tokio::test]
async fn no_spans_are_sent_without_a_configured_collector() {
    let (db, collector) = (TestDatabase::create().await, PythonServer::start("collector.py", &[]).await);
    let mut host = traced(&db, &collector.base_url()).variable("OTEL_TRACES_EXPORTER", "none").spawn().await;
    host.get("/environment").await.expect(200);
    host.stop().await;
    assert_eq!(spans(&collector).await, [Value::Null; 0]);
    let mut host = Host::spawn(&db).await;
    let traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    host.request("GET", "/environment").header("traceparent", traceparent).send().await.expect(200);
    host.stop().await;
}
