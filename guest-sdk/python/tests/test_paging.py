from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from syncline_sdk import Error, Paging, http
from syncline_sdk.paging import find, next_link
from syncline_sdk.testing import Host


def ids(paging: Paging, url: str = "/list") -> list[list[Any]]:
    return [[item["id"] for item in page] for page in http.get(url, query={"limit": 2}).pages(paging)]


def items(*ids: Any, **rest: Any) -> dict[str, Any]:
    return {"data": [{"id": id} for id in ids], **rest}


def test_a_link_header_names_the_next_page(host: Host) -> None:
    link = {"link": '</list?page=2>; rel="next", </list?page=9>; rel="last"'}
    host.answer("GET /list?limit=2", 200, [{"id": 1}], headers=link)
    host.answer("GET /list?page=2", 200, [{"id": 2}])
    assert ids(Paging.link()) == [[1], [2]]


def test_a_cursor_is_sent_as_a_parameter(host: Host) -> None:
    host.answer("GET /list?limit=2", 200, items(1, next={"after": 17}))
    host.answer("GET /list?limit=2&after=17", 200, items(2, next={"after": ""}))
    assert ids(Paging.cursor("/next/after", "after", items="/data")) == [[1], [2]]


def test_a_cursor_can_be_sent_in_a_json_body(host: Host) -> None:
    host.answer("POST /search", 200, items(1, next="c")).answer("POST /search", 200, items(2))
    paging = Paging.cursor("/next", "start_cursor", items="/data", in_body=True)
    assert len(list(http.post("/search", json={"size": 1}).pages(paging))) == 2
    assert [request.json() for request in host.requests] == [{"size": 1}, {"size": 1, "start_cursor": "c"}]


def test_the_last_id_is_sent_until_there_are_no_more_items(host: Host) -> None:
    host.answer("GET /list?limit=2", 200, items("a", "b", more=True))
    host.answer("GET /list?limit=2&after=b", 200, items("c", more=False))
    assert ids(Paging.last_id("after", items="/data", more="/more")) == [["a", "b"], ["c"]]
    host.answer("GET /list?limit=2&page=a", 200, items("c"))
    host.answer("GET /list?limit=2&page=c", 200, items())
    assert ids(Paging.last_id("page", id="/id", items="/data").start("a")) == [["c"]]


def order(id: int, time: str) -> dict[str, Any]:
    return {"id": id, "at": {"updated": time}}


def test_a_keyset_with_an_id_parameter_continues_after_the_last_item(host: Host) -> None:
    paging = Paging.keyset("/at/updated", "since", id_parameter="after")
    host.answer("GET /list?limit=2", 200, [order(4, "t1"), order(5, "t2")])
    host.answer("GET /list?limit=2&since=t2&after=5", 200, [order(7, "t2")])
    host.answer("GET /list?limit=2&since=t2&after=7", 200, [])
    pages = list(http.get("/list", query={"limit": 2}).pages(paging))
    assert [len(page) for page in pages] == [2, 1]
    resumed = list(http.get("/list", query={"limit": 2}).pages(paging.start(pages[0].next)))
    assert [item["id"] for page in resumed for item in page] == [7]


def test_a_keyset_returns_items_at_a_boundary_once(host: Host) -> None:
    host.answer("GET /list?limit=2", 200, [order(1, "a"), order(2, "b"), order(3, "c")])
    host.answer("GET /list?limit=2&since=c", 200, [order(3, "c"), order(4, "c")])
    pages = http.get("/list", query={"limit": 2}).pages(Paging.keyset("/at/updated", "since"))
    assert [[item["id"] for item in page] for page in pages] == [[1, 2, 3], [4]]


def test_a_keyset_whose_page_has_a_single_value_is_an_error(host: Host) -> None:
    for query in ("", "&since=a"):
        host.answer(f"GET /list?limit=2{query}", 200, [order(1, "a"), order(2, "a")])
    with pytest.raises(Error) as failed:
        ids(Paging.keyset("/at/updated", "since"))
    assert failed.value.code == "pagination-loop"


def test_offsets_and_page_numbers_count(host: Host) -> None:
    host.answer("GET /list?limit=2", 200, [{"id": 1}, {"id": 2}])
    host.answer("GET /list?limit=2&offset=2", 200, [{"id": 3}])
    host.answer("GET /list?limit=2&offset=3", 200, [])
    assert ids(Paging.offset("offset")) == [[1, 2], [3]]
    host.answer("GET /list?limit=2&page=2", 200, [{"id": 3}])
    host.answer("GET /list?limit=2&page=3", 200, [])
    assert ids(Paging.page_number("page")) == [[1, 2], [3]]


@pytest.mark.parametrize(
    "paging",
    [
        Paging.cursor("/next", "after", items="/data"),
        Paging.offset("skip", items="/data"),
        Paging.last_id("after", items="/data"),
    ],
)
def test_a_list_that_repeats_itself_is_an_error(host: Host, paging: Paging) -> None:
    for query in ("", "&after=1", "&skip=1"):
        host.answer(f"GET /list?limit=2{query}", 200, items(1, next="1"))
    with pytest.raises(Error, match="would never end") as failed:
        ids(paging)
    assert failed.value.code == "pagination-loop"


def test_a_wrong_place_of_the_cursor_is_logged(host: Host) -> None:
    host.answer("GET /list?limit=2", 200, items(1, next=None))
    ids(Paging.cursor("/next", "after", items="/data"))
    assert host.log == []
    ids(Paging.cursor("/nxet", "after", items="/data"))
    assert "has no value at `/nxet`" in host.log[0].message


def test_a_wrong_place_of_the_cursor_fails_a_full_run(host: Host) -> None:
    host.run_fully().answer("GET /list?limit=2", 200, items(1, next=None))
    with pytest.raises(Error) as failed:
        ids(Paging.cursor("/nxet", "after", items="/data"))
    assert failed.value.code == "pagination-place-missing"
    assert ids(Paging.cursor("/nxet", "after", items="/data").may_lack_place()) == [[1]]


def test_a_wrong_place_of_the_items_is_an_error(host: Host) -> None:
    host.answer("GET /list?limit=2", 200, {"data": {"id": 1}})
    for place in ("/data", "/items"):
        with pytest.raises(Error, match=f"expected an array at `{place}`"):
            ids(Paging.link(items=place))
    with pytest.raises(Error, match="`data` is not a JSON pointer"):
        ids(Paging.link(items="data"))


def test_an_item_that_does_not_fit_is_named(host: Host) -> None:
    @dataclass
    class Item:
        id: str
        price: int

    host.answer("GET /list", 200, [{"id": "a", "price": 1}, {"id": "b"}])
    with pytest.raises(Error, match="item 1 with the id `b` of the page: `price` is missing"):
        list(http.get("/list").pages(Paging.link(), Item))


def test_a_position_of_another_paging_is_refused(host: Host) -> None:
    for paging in (Paging.offset("skip"), Paging.keyset("/a", "a", id_parameter="b")):
        with pytest.raises(Error) as failed:
            ids(paging.start("x"))
        assert failed.value.code == "invalid-paging"


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ('<https://a.example/?page=2>; rel="next"', "https://a.example/?page=2"),
        ('</x?a=1,2>; rel=prev, </x?a=3,4> ; title="a, b"; REL = "last Next"', "/x?a=3,4"),
        ('</x>; rel="prev"; title="\\"; rel=next, <y>; rel=next"', None),
        ("<broken; rel=next", None),
        ("", None),
    ],
)
def test_the_next_link_is_found_at_any_position(header: str, expected: str | None) -> None:
    assert next_link([("link", header)]) == expected


def test_json_pointers_reach_every_value() -> None:
    value = {"a": {"b/c": [1, "two"], "~": 3}, "": 4}
    assert [find(value, place) for place in ("", "/a/b~1c/1", "/a/~0", "/", "/a/b~1c/2", "/a/x/y")] == [
        value, "two", 3, 4, None, None,
    ]  # fmt: skip
