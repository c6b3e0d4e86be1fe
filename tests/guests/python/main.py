"""Functions that tests of every language call."""

import urllib.error
import urllib.request
from typing import Any

from syncline_sdk import Paging, Writer, action, checkpoint, http, run, sync, wasi_http


@action
def fetch(request: dict[str, Any]) -> dict[str, Any]:
    """Sends the request from its input and returns the response, with the ordinary `urllib`."""
    body = request.get("body")
    sent = urllib.request.Request(
        request["url"],
        method=request.get("method") or "GET",
        headers=request.get("headers") or {},
        data=None if body is None else body.encode(),
    )
    try:
        response = urllib.request.urlopen(sent)
    except urllib.error.HTTPError as error:
        response = error
    return {"status": response.status, "headers": dict(response.headers), "body": response.read().decode()}


@action
def fail(message: str) -> None:
    """Crashes."""
    http.get("/before").send_ok()
    print(f"about to fail with {message}")
    raise TypeError(message)


@action
def refuse() -> None:
    """Ends with the provider's error."""
    http.get("/refuse?403").send_ok()


@action
def lose_changes() -> None:
    """Returns without saving a change."""
    Writer("Item").delete(1)


@sync
def items() -> None:
    """Saves a list."""
    paging = Paging.cursor("/next", "after", items="/items").start(checkpoint.cursor())
    with Writer("Item") as items:
        for page in http.get("/list").pages(paging):
            items.save_all(page)
            if page.next is not None:
                items.cursor(page.next)
    print(f"full: {str(run.is_full()).lower()}")


@action
def fetch_wasi(url: str) -> dict[str, Any]:
    """Sends a request through `wasi:http`."""
    response = wasi_http.open("GET", url)
    return {"status": response.status, "body": response.read().decode()}
