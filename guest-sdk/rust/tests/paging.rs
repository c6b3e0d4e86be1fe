//! Every kind of paging reads each item once and ends, whatever the provider returns.

use serde::Deserialize;
use serde_json::json;
use syncline_sdk::testing::Host;
use syncline_sdk::{Error, Paging, Result, http};

#[derive(Debug, Deserialize)]
struct Item {
    id: u32,
}

fn ids(paging: Paging) -> Result<Vec<u32>> {
    let mut ids = Vec::new();
    for page in http::get("/items").query("limit", 2).pages::<Item>(paging) {
        ids.extend(page?.iter().map(|item| item.id));
    }
    Ok(ids)
}

fn items(ids: &[u32]) -> Vec<serde_json::Value> {
    ids.iter().map(|id| json!({ "id": id })).collect()
}

fn is_loop(error: &Error) -> bool {
    error.code() == "pagination-loop" && error.message().contains("GET /items")
}

#[test]
fn links_are_followed_unchanged() {
    let host = Host::new();
    let body = |ids| serde_json::to_vec(&items(ids)).unwrap();
    let next = [("Link", r#"<https://api.example/items?token=a%3D>; rel="next""#)];
    host.answer_with("GET /items?limit=2", 200, &next, &body(&[1, 2]));
    host.answer_with("GET https://api.example/items?token=a%3D", 200, &[], &body(&[3]));
    assert_eq!(ids(Paging::link()).unwrap(), [1, 2, 3]);
}

#[test]
fn a_link_to_itself_is_an_error() {
    let host = Host::new();
    let next = [("Link", r#"</items?page=2>; rel="next""#)];
    let body = serde_json::to_vec(&items(&[1])).unwrap();
    host.answer_with("GET /items?limit=2", 200, &next, &body);
    host.answer_with("GET /items?page=2", 200, &next, &body);
    let error = ids(Paging::link()).unwrap_err();
    assert_eq!(error.code(), "pagination-loop");
    assert!(error.message().contains("`/items?page=2` a second time"), "{error}");
}

#[test]
fn a_cursor_ends_with_null_nothing_or_an_empty_page() {
    for end in [
        json!({ "items": items(&[3]), "next": null }),
        json!({ "items": items(&[3]) }),
        json!({ "items": [], "next": 9 }),
    ] {
        let host = Host::new();
        host.answer("GET /items?limit=2", 200, &json!({ "items": items(&[1, 2]), "next": 7 }));
        host.answer("GET /items?limit=2&after=7", 200, &end);
        let found = ids(Paging::cursor("/next", "after").items("/items")).unwrap();
        assert_eq!(found.len(), 2 + end["items"].as_array().unwrap().len(), "{end}");
    }
}

#[test]
fn cursors_that_form_a_loop_are_an_error() {
    let host = Host::new();
    host.answer("GET /items?limit=2", 200, &json!({ "items": items(&[1]), "next": "a" }));
    host.answer("GET /items?limit=2&after=a", 200, &json!({ "items": items(&[2]), "next": "b" }));
    host.answer("GET /items?limit=2&after=b", 200, &json!({ "items": items(&[3]), "next": "a" }));
    assert!(is_loop(&ids(Paging::cursor("/next", "after").items("/items")).unwrap_err()));
    assert_eq!(host.requests().len(), 3);
}

#[test]
fn a_deleted_last_id_does_not_cause_a_loop() {
    let host = Host::new();
    host.answer("GET /items?limit=2", 200, &items(&[1, 2]));
    // The provider no longer has object 2 and starts again at the top.
    host.answer("GET /items?limit=2&after=2", 200, &items(&[1, 2]));
    assert!(is_loop(&ids(Paging::last_id("after")).unwrap_err()));
}

#[test]
fn more_false_saves_a_request() {
    let host = Host::new();
    host.answer("GET /items?limit=2", 200, &json!({ "data": items(&[1, 2]), "has_more": true }));
    host.answer("GET /items?limit=2&after=2", 200, &json!({ "data": items(&[3]), "has_more": false }));
    assert_eq!(ids(Paging::last_id("after").items("/data").more("/has_more")).unwrap(), [1, 2, 3]);
    assert_eq!(host.requests().len(), 2);
}

#[test]
fn offsets_count_items_and_page_numbers_count_pages() {
    let host = Host::new();
    host.answer("GET /items?limit=2", 200, &items(&[1, 2]));
    host.answer("GET /items?limit=2&offset=2", 200, &items(&[3]));
    host.answer("GET /items?limit=2&offset=3", 200, &items(&[]));
    host.answer("GET /items?limit=2&page=2", 200, &items(&[3]));
    host.answer("GET /items?limit=2&page=3", 200, &items(&[]));
    assert_eq!(ids(Paging::offset("offset")).unwrap(), [1, 2, 3]);
    assert_eq!(ids(Paging::page_number("page")).unwrap(), [1, 2, 3]);
}

#[test]
fn a_provider_that_ignores_the_offset_is_an_error() {
    let host = Host::new();
    host.answer("GET /items?limit=2", 200, &items(&[1, 2]));
    host.answer("GET /items?limit=2&offset=2", 200, &items(&[1, 2]));
    assert!(is_loop(&ids(Paging::offset("offset")).unwrap_err()));
}

#[test]
fn a_list_can_start_at_the_next_page_of_an_earlier_one() {
    let host = Host::new();
    for paging in [Paging::last_id("after"), Paging::offset("after"), Paging::page_number("after")] {
        host.answer("GET /items?limit=2", 200, &items(&[1, 2]));
        host.answer("GET /items?limit=2&after=2", 200, &items(&[3]));
        host.answer("GET /items?limit=2&after=3", 200, &items(&[]));
        let first =
            http::get("/items").query("limit", 2).pages::<Item>(paging.clone()).next().unwrap().unwrap();
        assert_eq!(first.next.as_deref(), Some("2"));
        assert_eq!(ids(paging.start(first.next)).unwrap(), [3]);
    }
}

#[test]
fn an_error_ends_the_list_and_contains_its_place() {
    let host = Host::new();
    host.answer("GET /items?limit=2", 200, &json!([{ "id": 1 }, { "id": "two" }]));
    let mut pages = http::get("/items").query("limit", 2).pages::<Item>(Paging::link());
    let error = pages.next().unwrap().unwrap_err();
    assert_eq!(error.code(), "unexpected-response");
    assert!(error.message().contains("item 1 of the page"), "{error}");
    assert!(pages.next().is_none());

    let error = ids(Paging::link().items("/data")).unwrap_err();
    assert!(error.message().contains("expected an array at `/data`"), "{error}");
    let error = ids(Paging::offset("offset").start(Some("x".to_owned()))).unwrap_err();
    assert_eq!(error.code(), "invalid-paging");
}

#[test]
fn a_keyset_returns_items_at_a_boundary_once() {
    let host = Host::new();
    let changed = |key: &str, at: u32| json!({ "key": key, "changed": format!("2026-01-0{at}"), "id": at });
    let page = |items: &[serde_json::Value]| json!({ "data": items });
    host.answer("GET /items?limit=2", 200, &page(&[changed("a", 1), changed("b", 2)]));
    host.answer(
        "GET /items?limit=2&since=2026-01-02",
        200,
        &page(&[changed("b", 2), changed("c", 2), changed("d", 3)]),
    );
    host.answer("GET /items?limit=2&since=2026-01-03", 200, &page(&[changed("d", 3)]));
    let paging = Paging::keyset("/changed", "since").id("/key").items("/data");
    let request = http::get("/items").query("limit", 2);
    let keys: Vec<String> = request
        .pages::<serde_json::Value>(paging)
        .flat_map(|page| page.unwrap())
        .map(|item| item["key"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(keys, ["a", "b", "c", "d"]);
}

fn at(id: u32, at: &str) -> serde_json::Value {
    json!({ "id": id, "at": at })
}

#[test]
fn a_keyset_with_an_id_parameter_continues_after_the_last_item() {
    let paging = || Paging::keyset("/at", "since").id_parameter("after_id");
    let host = Host::new();
    host.answer("GET /items?limit=2", 200, &json!([at(1, "a"), at(2, "a")]));
    host.answer("GET /items?limit=2&since=a&after_id=2", 200, &json!([at(3, "b")]));
    host.answer("GET /items?limit=2&since=b&after_id=3", 200, &json!([]));
    assert_eq!(ids(paging()).unwrap(), [1, 2, 3]);
    assert_eq!(ids(paging().start(Some(r#"["a","2"]"#.to_owned()))).unwrap(), [3]);
    let error = ids(paging().start(Some("a".to_owned()))).unwrap_err();
    assert_eq!(error.code(), "invalid-paging");
}

#[test]
fn a_keyset_ends_with_a_page_of_repeated_items() {
    let host = Host::new();
    host.answer("GET /items?limit=2", 200, &json!([at(1, "a"), at(2, "b"), at(3, "c")]));
    host.answer("GET /items?limit=2&since=c", 200, &json!([at(3, "c"), at(4, "c")]));
    assert_eq!(ids(Paging::keyset("/at", "since")).unwrap(), [1, 2, 3, 4]);
}

#[test]
fn a_keyset_whose_page_has_a_single_value_is_an_error() {
    let host = Host::new();
    host.answer("GET /items?limit=2", 200, &json!([at(1, "a"), at(2, "a")]));
    host.answer("GET /items?limit=2&since=a", 200, &json!([at(1, "a"), at(2, "a")]));
    assert!(is_loop(&ids(Paging::keyset("/at", "since")).unwrap_err()));
}

#[test]
fn another_id_field_can_be_the_last_id() {
    let host = Host::new();
    host.answer("GET /items?limit=2", 200, &json!([{ "id": 1, "key": "x" }]));
    host.answer("GET /items?limit=2&after=x", 200, &json!([]));
    assert_eq!(ids(Paging::last_id("after").id("/key")).unwrap(), [1]);
}

#[test]
fn a_first_page_without_the_place_of_the_cursor_is_reported() {
    let paging = || Paging::cursor("/nxet", "after").items("/items").more("/moer");
    let host = Host::new();
    host.answer("GET /items?limit=2", 200, &json!({ "items": items(&[1, 2]), "next": 7 }));
    assert_eq!(ids(paging()).unwrap(), [1, 2]);
    let warnings: Vec<String> = host.log().iter().map(|line| line.message.clone()).collect();
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(warnings[0].contains("`/nxet`") && warnings[1].contains("`/moer`"), "{warnings:?}");

    host.run_fully();
    let error = ids(paging()).unwrap_err();
    assert_eq!(error.code(), "pagination-place-missing");
    assert_eq!(ids(paging().may_lack_place()).unwrap(), [1, 2]);
    drop(host);
    let host = Host::new();
    host.run_fully().answer("GET /items?limit=2", 200, &json!({ "items": [] }));
    assert!(ids(paging()).unwrap().is_empty(), "an empty list has no next page");
}

#[derive(Debug, Deserialize)]
struct Tagged {
    #[expect(dead_code, reason = "it is never read")]
    tags: Vec<String>,
}

#[test]
fn an_unusable_item_is_named_with_its_id() {
    let host = Host::new();
    host.answer("GET /items?limit=2", 200, &json!([{ "id": 1, "tags": [] }, { "id": 2, "tags": ["a", 7] }]));
    let error =
        http::get("/items").query("limit", 2).pages::<Tagged>(Paging::link()).next().unwrap().unwrap_err();
    assert!(error.message().contains("item 1 of the page (id `2`): at `tags[1]`"), "{error}");
    let error = http::get("/items").query("limit", 2).send_ok().unwrap().json::<Vec<Tagged>>().unwrap_err();
    assert!(error.message().contains("at `[1].tags[1]`"), "{error}");
}
