from __future__ import annotations

from dataclasses import dataclass

import pytest

from syncline_sdk import Error, http
from syncline_sdk.testing import Host


@dataclass
class Customer:
    id: str
    age: int | None = None


def test_a_response_is_converted_to_a_dataclass(host: Host) -> None:
    host.answer("GET /customers/1?expand=tax&deep=true", 200, {"id": "1", "age": 7, "extra": None})
    query = {"expand": "tax", "deep": True, "absent": None}
    assert http.get("/customers/1", query=query).send_ok().json(Customer) == Customer("1", 7)


def test_a_response_of_another_type_names_the_place(host: Host) -> None:
    host.answer("GET /customers/1", 200, [{"id": "1"}, {"id": 2}])
    with pytest.raises(
        Error, match="GET /customers/1 returned an unexpected body: at /1/id: expected string"
    ) as failed:
        http.get("/customers/1").send_ok().json(list[Customer])
    assert failed.value.code == "unexpected-response"


@pytest.mark.parametrize("body", [b"", b"{", b"NaN", b"\xff", b"[1,]"])
def test_a_body_that_is_not_json_is_an_unexpected_response(host: Host, body: bytes) -> None:
    host.answer("GET /x", 200, body)
    with pytest.raises(Error) as failed:
        http.get("/x").send().json()
    assert failed.value.code == "unexpected-response"


def test_an_error_status_becomes_an_error_without_cookies(host: Host) -> None:
    host.answer("GET /x", 404, b"\xffgone" + b"x" * 20_000, headers={"X-Id": "7", "Set-Cookie": "secret"})
    response = http.get("/x").send()
    assert (response.status, response.header("x-ID"), response.header("none")) == (404, "7", None)
    with pytest.raises(Error, match="GET /x returned status 404") as failed:
        response.ok()
    assert failed.value.code == "provider-http-error"
    assert failed.value.details["status"] == 404
    assert failed.value.details["headers"] == {"x-id": "7"}
    assert failed.value.details["body"].startswith("\ufffdgone")
    assert len(failed.value.details["body"]) == 10_000


def test_bodies_are_written_as_json_or_as_a_form(host: Host) -> None:
    host.answer("POST /x", 200, {})
    http.post("/x", json={"n": 12345678901234567890, "f": 0.1, "t": "é"}).send_ok()
    http.post("/x", form={"a": "b +&c", "yes": True, "no": None, "o": {"l": [1, {"x": "é"}]}}).send_ok()
    http.post("/x", json=1, headers={"Content-Type": "application/merge-patch+json"}).send_ok()
    http.post("/x", body="text", headers={"Content-Type": "text/plain"}).send_ok()
    json, form, patch, text = host.requests
    assert (json.body.decode(), json.headers) == (
        '{"n":12345678901234567890,"f":0.1,"t":"é"}',
        {"content-type": "application/json"},
    )
    assert form.body == b"a=b+%2B%26c&yes=true&o%5Bl%5D%5B0%5D=1&o%5Bl%5D%5B1%5D%5Bx%5D=%C3%A9"
    assert patch.headers == {"Content-Type": "application/merge-patch+json"}
    assert (text.body, text.headers) == (b"text", {"Content-Type": "text/plain"})


@pytest.mark.parametrize("body", [{"json": float("nan")}, {"json": {1, 2}}, {"form": [1]}, {"json": {}, "body": b""}])
def test_a_body_that_cannot_be_written_is_an_invalid_request(host: Host, body: dict[str, object]) -> None:
    with pytest.raises(Error) as failed:
        http.post("/x", **body)
    assert failed.value.code == "invalid-request"
    assert "POST /x" in failed.value.message


def test_several_requests_return_responses_and_errors_in_order(host: Host) -> None:
    host.answer("GET /1", 200, 1).fail("GET /2", "timeout").answer("GET /3", 500, 3)
    first, second, third = http.send_all(http.get(f"/{n}") for n in (1, 2, 3))
    assert isinstance(first, http.Response) and first.json() == 1
    assert isinstance(second, Error) and second.code == "timeout"
    assert isinstance(third, http.Response) and third.status == 500
