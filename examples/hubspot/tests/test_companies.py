"""Companies against answers that are written by hand after HubSpot's documentation."""

from __future__ import annotations

from typing import Any

import pytest
from syncline_sdk import Error
from syncline_sdk.testing import Host

from companies import companies

LIST = "GET /crm/v3/objects/companies?limit=100&properties=name,domain,industry"


def page(*ids: str, after: str | None = None) -> dict[str, Any]:
    times = {"createdAt": "2026-02-01T09:00:00Z", "updatedAt": "2026-02-01T09:00:00Z", "archived": False}
    results = [{"id": id, "properties": {"name": f"Company {id}", "domain": None}, **times} for id in ids]
    return {"results": results, **({"paging": {"next": {"after": after}}} if after else {})}


def test_every_page_is_saved() -> None:
    with Host() as host:
        host.answer(LIST, 200, page("1", "2", after="NTI1Cg%3D%3D"))
        host.answer(f"{LIST}&after=NTI1Cg%3D%3D", 200, page("3"))
        host.call(companies)
        assert [record["properties"]["name"] for record in host.records("Company")] == [
            "Company 1",
            "Company 2",
            "Company 3",
        ]


def test_a_list_that_starts_again_fails_instead_of_looping() -> None:
    with Host() as host, pytest.raises(Error) as failed:
        host.answer(LIST, 200, page("1", after="a")).answer(f"{LIST}&after=a", 200, page("1", after="a"))
        host.call(companies)
    assert failed.value.code == "pagination-loop"
