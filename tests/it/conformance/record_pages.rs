//! Statements about the parameters of `GET /records`.

use serde_json::{Value, json};

use super::support::{Section, body, get, string};
use crate::support::{Answer, Bundle, METADATA_KEY, Request, Stage, delete, query, save};

const QUERY: (u16, &str) = (400, "invalid_query_params");

#[tokio::test]
async fn pages_of_records() {
    let stage = Stage::hostile().await;
    stage.commit(json!([save(&json!([{ "id": "a" }, { "id": "b" }, { "id": "c" }, { "id": "d,e" }]))])).await;
    stage.commit(json!([save(&json!([{ "id": "b", "name": "changed" }]))])).await;
    stage.commit(json!([delete(&["c"])])).await;
    let mut section = Section::new("Pages of records");
    order_and_filters(&mut section, &stage).await;
    times(&mut section, &stage).await;
    cursors(&mut section, &stage).await;
    selection(&mut section, &stage).await;
    targets(&mut section, &stage).await;
    sizes(&mut section, &stage).await;
    section.finish();
}

fn list(stage: &Stage, parameters: &[(&str, &str)]) -> Request {
    let parameters = [&[("model", "Item")], parameters].concat();
    stage.request("GET", &format!("/records?{}", query(&parameters)))
}

fn ids(answer: &Answer) -> Value {
    let records = body(answer)["records"].clone();
    records.as_array().into_iter().flatten().map(|record| record["id"].clone()).collect()
}

async fn order_and_filters(section: &mut Section, stage: &Stage) {
    let all = section.returns("`GET /records` without filters", list(stage, &[]), 200).await;
    let order = json!(["a", "d,e", "b", "c"]);
    section.equal("Records are in the order of their last change, deleted ones included", &ids(&all), order);
    let times: Vec<String> = body(&all)["records"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|record| string(&record[METADATA_KEY]["last_modified_at"]))
        .collect();
    section.holds("`last_modified_at` ascends", times.is_sorted(), &times);
    for (filter, expected) in [
        ("added", json!(["a", "d,e"])),
        ("updated", json!(["b"])),
        ("deleted", json!(["c"])),
        ("added,updated", json!(["a", "d,e", "b"])),
        ("added,deleted", json!(["a", "d,e", "c"])),
        ("updated,deleted", json!(["b", "c"])),
        ("added,updated,deleted", json!(["a", "d,e", "b", "c"])),
        ("DELETED", json!(["c"])),
        ("updated,updated", json!(["b"])),
    ] {
        let statement = format!("`filter={filter}` returns exactly the matching records");
        section.equal(&statement, &ids(&list(stage, &[("filter", filter)]).send().await), expected);
    }
    for filter in ["changed", "", "added,", "added;updated"] {
        let request = list(stage, &[("filter", filter)]);
        section.rejects_at(&format!("`filter={filter}`"), request, QUERY, "filter").await;
    }
}

async fn times(section: &mut Section, stage: &Stage) {
    let all = body(&list(stage, &[]).send().await)["records"].clone();
    let middle = string(&all[2][METADATA_KEY]["last_modified_at"]);
    let found = ids(&list(stage, &[("modified_after", &middle)]).send().await);
    section.equal("`modified_after` includes its own moment", &found, json!(["b", "c"]));
    let moment = chrono::DateTime::parse_from_rfc3339(&middle).unwrap_or_default();
    for hours in [2, -7] {
        let offset = chrono::FixedOffset::east_opt(hours * 3600).expect("a real offset");
        let text = moment.with_timezone(&offset).to_rfc3339_opts(chrono::SecondsFormat::Millis, true);
        let found = ids(&list(stage, &[("modified_after", &text)]).send().await);
        section.equal(&format!("`modified_after` can have the offset {hours} h"), &found, json!(["b", "c"]));
    }
    for (statement, time, count) in [
        ("`modified_after` in the future returns no records", "2999-01-01T00:00:00Z", 0),
        ("`modified_after` has no maximum age", "1970-01-01T00:00:00Z", 4),
        ("`modified_after` can have a fraction of a second", "2020-01-01T00:00:00.123456Z", 4),
    ] {
        let found = ids(&list(stage, &[("modified_after", time)]).send().await);
        section.equal(statement, &json!(found.as_array().map(Vec::len)), count);
    }
    let older = ids(&list(stage, &[("delta", &middle)]).send().await);
    section.equal("`delta` is an older name of `modified_after`", &older, json!(["b", "c"]));
    for time in ["yesterday", "2026-03-01", "1772355600", ""] {
        let request = list(stage, &[("modified_after", time)]);
        section.rejects_at(&format!("`modified_after={time}`"), request, QUERY, "modified_after").await;
    }
}

async fn cursors(section: &mut Section, stage: &Stage) {
    let first = section.returns("A page with `limit=3`", list(stage, &[("limit", "3")]), 200).await;
    section.equal("A page has at most `limit` records", &json!(ids(&first).as_array().map(Vec::len)), 3);
    let next = string(&body(&first)["next_cursor"]);
    let last = &body(&first)["records"][2][METADATA_KEY]["cursor"];
    section.equal("`next_cursor` is the cursor of the last record", last, next.as_str());
    let second = list(stage, &[("limit", "3"), ("cursor", &next)]);
    let second = section.returns("The next page", second, 200).await;
    section.equal("The next page continues after the cursor", &ids(&second), json!(["c"]));
    section.equal("`next_cursor` of the last page is null", &body(&second)["next_cursor"], Value::Null);
    let exact = body(&list(stage, &[("limit", "4")]).send().await);
    section.equal("`next_cursor` of a full last page is null", &exact["next_cursor"], Value::Null);
    let of_record = string(&body(&first)["records"][0][METADATA_KEY]["cursor"]);
    let found = ids(&list(stage, &[("cursor", &of_record)]).send().await);
    section.equal("A record's own cursor can be used", &found, json!(["d,e", "b", "c"]));
    let filtered = ids(&list(stage, &[("cursor", &of_record), ("filter", "deleted")]).send().await);
    section.equal("A cursor can be combined with a filter", &filtered, json!(["c"]));
    for (name, cursor) in [
        ("An empty cursor", ""),
        ("A cursor that was not issued", "nonsense"),
        ("A cursor that was cut off", &next[1..]),
    ] {
        section.rejects(name, list(stage, &[("cursor", cursor)]), 400, "invalid_cursor").await;
    }
    let long = "x".repeat(1_001);
    section
        .rejects("A cursor of 1,001 characters", list(stage, &[("cursor", &long)]), 400, "invalid_cursor")
        .await;
    let other = stage.host.connect_as("customer-2", "hostile", json!({ "steps": 0 })).await;
    other.wait_until_idle().await;
    other.commit(json!([save(&json!([{ "id": "a" }]))])).await;
    let of_other =
        string(&body(&other.get_records(&[("model", "Item")]).await)["records"][0][METADATA_KEY]["cursor"]);
    let request = list(stage, &[("cursor", &of_other)]);
    section.rejects("A cursor of another connection", request, 400, "invalid_cursor").await;
    let request = stage.request("GET", &format!("/records?model=Step&cursor={next}"));
    section.rejects("A cursor of another model", request, 400, "invalid_cursor").await;
    let request = list(stage, &[("cursor", &next), ("variant", "second")]);
    section.rejects("A cursor of another variant", request, 400, "invalid_cursor").await;
}

async fn selection(section: &mut Section, stage: &Stage) {
    let find =
        async |query: &str| ids(&stage.request("GET", &format!("/records?model=Item&{query}")).send().await);
    for (statement, query, expected) in [
        ("`ids` selects a record", "ids=a", json!(["a"])),
        ("`ids` can be repeated", "ids=b&ids=a", json!(["a", "b"])),
        ("`ids[]` can be repeated", "ids[]=b&ids[]=a", json!(["a", "b"])),
        ("An id can contain a comma", "ids=d%2Ce", json!(["d,e"])),
        ("Unknown ids are ignored", "ids=a&ids=unknown", json!(["a"])),
        ("Only unknown ids return an empty list", "ids=unknown", json!([])),
        ("`ids` can be combined with a filter", "ids=a&ids=b&filter=updated", json!(["b"])),
        ("`variant=base` is the default variant", "variant=base&ids=a", json!(["a"])),
        ("A variant without records is empty", "variant=second", json!([])),
    ] {
        section.equal(statement, &find(query).await, expected);
    }
    let many = |count: usize| (0..count).map(|number| format!("ids={number}")).collect::<Vec<_>>().join("&");
    let request = stage.request("GET", &format!("/records?model=Item&{}", many(101)));
    section.rejects_at("A request with 101 ids", request, QUERY, "ids").await;
    section.equal("A request with 100 ids is accepted", &find(&many(100)).await, json!([]));
    let long = list(stage, &[("ids", &"x".repeat(257))]);
    section.rejects_at("An id of 257 characters", long, QUERY, "ids").await;
    section.rejects_at("An empty id", list(stage, &[("ids", "")]), QUERY, "ids").await;
    let variant = list(stage, &[("variant", "no name")]);
    section.rejects_at("A malformed variant", variant, QUERY, "variant").await;
}

async fn targets(section: &mut Section, stage: &Stage) {
    let path = |query: &str| stage.request("GET", &format!("/records{query}"));
    section.returns("`GET /records/?…` with a slash", path("/?model=Item"), 200).await;
    section.rejects_at("A request without `model`", path(""), QUERY, "model").await;
    for model in ["item", "I", "It%20em", ""] {
        let request = path(&format!("?model={model}"));
        section.rejects_at(&format!("`model={model}`"), request, QUERY, "model").await;
    }
    section.rejects("A model that no function declares", path("?model=Unicorn"), 404, "unknown_model").await;
    let empty = section.returns("A declared model without records", path("?model=Step"), 200).await;
    section.equal("It has no records", &body(&empty), json!({ "records": [], "next_cursor": null }));
    section.rejects_at("An unknown parameter", path("?model=Item&modell=x"), QUERY, "modell").await;
    section.rejects_at("A repeated `model`", path("?model=Item&model=Item"), QUERY, "model").await;
    let host = &stage.host;
    let bare = || get(host, "/records?model=Item");
    let headers = (400, "invalid_headers");
    section.rejects_at("A request without both headers", bare(), headers, "connection-id").await;
    let lacking = bare().header("Connection-Id", "customer-1");
    section
        .rejects_at("A request without `Provider-Config-Key`", lacking, headers, "provider-config-key")
        .await;
    let lacking = bare().header("Provider-Config-Key", "hostile");
    section.rejects_at("A request without `Connection-Id`", lacking, headers, "connection-id").await;
    let malformed = bare().header("Connection-Id", "customer-1").header("Provider-Config-Key", "a/b");
    section.rejects_at("A malformed `Provider-Config-Key`", malformed, headers, "provider-config-key").await;
    let both = get(host, "/records");
    section.rejects("A request whose query and headers are invalid", both, 400, "invalid_query_params").await;
    let unknown = bare().header("Connection-Id", "unknown").header("Provider-Config-Key", "hostile");
    section.rejects("An unknown connection", unknown, 404, "unknown_connection").await;
    let unknown = bare().header("Connection-Id", "customer-1").header("Provider-Config-Key", "unknown");
    section.rejects("An unknown integration", unknown, 404, "unknown_integration").await;
}

async fn sizes(section: &mut Section, stage: &Stage) {
    for limit in ["0", "-1", "1.5", "ten", ""] {
        let request = list(stage, &[("limit", limit)]);
        section.rejects_at(&format!("`limit={limit}`"), request, QUERY, "limit").await;
    }
    stage.host.deploy(&Bundle::example("minimal")).await;
    let metadata = json!({ "count": 501, "batch": 501, "size_bytes": 0 });
    let numbers = stage.host.connect("minimal", metadata).await;
    for (statement, limit, count) in [
        ("A page has 100 records by default", None, 100),
        ("`limit=1` returns one record", Some("1"), 1),
        ("`limit=500` returns 500 records", Some("500"), 500),
        ("A larger `limit` is served as 500", Some("10000"), 500),
    ] {
        let mut parameters = vec![("model", "Number")];
        parameters.extend(limit.map(|limit| ("limit", limit)));
        let page = body(&numbers.get_records(&parameters).await);
        section.equal(statement, &json!(page["records"].as_array().map(Vec::len)), count);
    }
}
