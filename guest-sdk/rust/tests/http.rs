//! The content of requests, and the errors that are created from responses.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Value, json};
use syncline_sdk::http;
use syncline_sdk::testing::Host;

#[derive(Serialize)]
struct NewCustomer {
    email: &'static str,
    phone: Option<&'static str>,
}

#[test]
fn a_form_is_sent_with_its_content_type() {
    let host = Host::new();
    host.answer("POST /v1/customers", 200, &json!({}));
    http::post("/v1/customers")
        .form(&NewCustomer { email: "a b@example.com", phone: None })
        .send_ok()
        .unwrap();
    let request = &host.requests()[0];
    assert_eq!(request.body, "email=a+b%40example.com");
    let content_type = ("content-type".to_owned(), "application/x-www-form-urlencoded".to_owned());
    assert_eq!(request.headers, [content_type]);
}

#[test]
fn a_status_error_contains_the_response_but_no_cookies() {
    let host = Host::new();
    let headers = [("X-Id", "1"), ("Set-Cookie", "session=secret"), ("X-Id", "2")];
    host.answer_with("GET /x?a=1", 402, &headers, b"no money");
    let response = http::get("/x").query("a", 1).send().unwrap();
    assert_eq!((response.status(), response.header("X-ID")), (402, Some("1")));
    let error = response.error_for_status().unwrap_err();
    assert_eq!(error.code(), "provider-http-error");
    assert_eq!(error.message(), "GET /x returned status 402");
    let details: Value = serde_json::from_str(error.details().unwrap()).unwrap();
    assert_eq!(details, json!({ "status": 402, "headers": { "x-id": "1, 2" }, "body": "no money" }));
}

#[test]
fn a_long_body_is_truncated_only_in_errors() {
    let host = Host::new();
    let long = json!({ "mistakes": "x".repeat(20_000) });
    host.answer("GET /x", 422, &long).answer("GET /x", 422, &long);
    let kept: Value = http::get("/x").send().unwrap().json().unwrap();
    assert_eq!(kept, long);
    let error = http::get("/x").send_ok().unwrap_err();
    let details: Value = serde_json::from_str(error.details().unwrap()).unwrap();
    assert_eq!(details["body"].as_str().unwrap().len(), 10_000);
}

#[test]
fn a_body_that_cannot_be_serialized_fails_on_send() {
    let host = Host::new();
    host.answer("GET /a", 200, &json!(1)).answer("GET /b", 200, &json!(2));
    let broken = http::post("/broken").json(&BTreeMap::from([(vec![1], 2)]));
    let answers = http::send_all([http::get("/a"), broken, http::get("/b")]);
    let values: Vec<_> = answers
        .into_iter()
        .map(|answer| {
            answer.and_then(|response| response.json::<u32>()).map_err(|error| error.code().to_owned())
        })
        .collect();
    assert_eq!(values, [Ok(1), Err("invalid-request".to_owned()), Ok(2)]);
    assert_eq!(host.requests().len(), 2);
}

#[test]
fn a_deserialization_error_contains_the_request() {
    let host = Host::new();
    host.answer("GET /x", 200, &json!({ "id": 1 }));
    let error = http::get("/x").send().unwrap().json::<Vec<u32>>().unwrap_err();
    assert_eq!(error.code(), "unexpected-response");
    assert!(error.message().starts_with("GET /x returned an unexpected body: invalid type"), "{error}");
}

#[test]
fn a_content_type_replaces_the_one_of_the_body() {
    let host = Host::new();
    host.answer("POST /a", 200, &json!({}));
    let body = json!({ "a": 1 });
    http::post("/a").header("Content-Type", "application/vnd.api+json").json(&body).send().unwrap();
    http::post("/a").json(&body).header("content-type", "application/merge-patch+json").send().unwrap();
    http::post("/a").json(&body).send().unwrap();
    let sent = host.requests().into_iter().map(|request| {
        let types = request.headers.into_iter().filter(|(name, _)| name.eq_ignore_ascii_case("content-type"));
        types.map(|(_, value)| value).collect::<Vec<_>>()
    });
    let expected = [["application/vnd.api+json"], ["application/merge-patch+json"], ["application/json"]];
    assert_eq!(sent.collect::<Vec<_>>(), expected);
}
