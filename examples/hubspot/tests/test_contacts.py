"""Contacts against answers that are written by hand after HubSpot's documentation."""

from __future__ import annotations

import unittest
from typing import Any

from syncline_sdk import Error
from syncline_sdk.testing import Host

from contacts import OVERLAP_MS, contact_changed, contacts, create_contact

SEARCH = "POST /crm/v3/objects/contacts/search"
NOW = 1_772_000_000_000
URL = "/crm/v3/objects/contacts/7?properties=email,firstname,lastname,company,lifecyclestage"


def contact(id: str, email: str | None = "ada@example.com") -> dict[str, Any]:
    """A contact as HubSpot returns it, with fields that the model does not declare."""
    return {
        "id": id,
        "properties": {"email": email, "firstname": "Ada", "hs_object_id": id, "lastname": None},
        "createdAt": "2026-02-01T09:00:00.000Z",
        "updatedAt": "2026-02-03T10:30:00.123Z",
        "archived": False,
        "url": f"https://app.hubspot.com/contacts/62515/record/0-1/{id}",
    }


def found(*ids: str) -> dict[str, Any]:
    return {"total": len(ids), "results": [contact(id) for id in ids]}


class Contacts(unittest.TestCase):
    def setUp(self) -> None:
        self.host = self.enterContext(Host()).set_time(NOW)

    def filters(self) -> list[list[str]]:
        """The values of the filters of each search."""
        groups = [request.json()["filterGroups"] for request in self.host.requests]
        return [[one["value"] for one in group["filters"]] for [group] in groups]

    def test_a_first_run_saves_all_contacts_in_the_order_of_their_ids(self) -> None:
        self.host.answer(SEARCH, 200, found("1", "2")).answer(SEARCH, 200, found("3")).answer(SEARCH, 200, found())
        self.host.call(contacts)
        self.assertEqual([record["id"] for record in self.host.records("Contact")], ["1", "2", "3"])
        self.assertNotIn("url", self.host.records("Contact")[0], "fields outside of the model are left out")
        self.assertEqual(self.filters(), [["0", "0"], ["0", "2"], ["0", "3"]])
        self.assertEqual(self.host.checkpoint, {"since": NOW - OVERLAP_MS, "until": 0, "after": "0"})

    def test_a_further_run_searches_for_changes_only(self) -> None:
        self.host.set_checkpoint({"since": 5, "until": 0, "after": "0"}).answer(SEARCH, 200, found())
        self.host.call(contacts)
        self.assertEqual(self.filters(), [["5", "0"]])

    def test_an_interrupted_run_is_resumed(self) -> None:
        self.host.answer(SEARCH, 200, found("1")).answer(SEARCH, 200, found("2"))
        self.host.fail(SEARCH, "timeout").answer(SEARCH, 200, found())
        with self.assertRaises(Error):
            self.host.call(contacts)
        self.assertEqual(self.host.checkpoint, {"since": 0, "until": NOW - OVERLAP_MS, "after": "2"})
        self.host.set_time(NOW + 60_000)
        self.host.call(contacts)
        self.assertEqual(self.filters()[-1], ["0", "2"])
        self.assertEqual(self.host.checkpoint["since"], NOW - OVERLAP_MS, "changes during the break are found next")

    def test_a_run_that_is_asked_to_stop_keeps_its_place(self) -> None:
        self.host.cancel().answer(SEARCH, 200, found("1"))
        self.host.call(contacts)
        self.assertIsNone(self.host.checkpoint)
        self.assertEqual(len(self.host.requests), 1)

    def test_a_new_contact_is_created(self) -> None:
        self.host.answer("POST /crm/v3/objects/contacts", 201, contact("9"))
        created = self.host.call(create_contact, {"email": "ada@example.com", "firstname": "Ada"})
        self.assertEqual(created["id"], "9")
        sent = self.host.requests[0].json()
        self.assertEqual(sent, {"properties": {"email": "ada@example.com", "firstname": "Ada"}})
        with self.assertRaisesRegex(Error, "at /email: is missing"):
            self.host.call(create_contact, {"firstname": "Ada"})

    def test_an_error_of_hubspot_reaches_the_caller(self) -> None:
        self.host.answer("POST /crm/v3/objects/contacts", 409, {"message": "Contact already exists"})
        with self.assertRaises(Error) as failed:
            self.host.call(create_contact, {"email": "ada@example.com"})
        self.assertEqual(failed.exception.code, "provider-http-error")
        self.assertIn("Contact already exists", failed.exception.details["body"])

    def test_webhooks_save_and_delete_contacts(self) -> None:
        event = {"objectId": 7, "subscriptionType": "contact.creation", "portalId": 62515}
        self.host.answer(f"GET {URL}", 200, contact("7")).answer(f"GET {URL}", 404, {"status": "error"})
        self.host.call_webhook(contact_changed, event)
        self.assertEqual(len(self.host.records("Contact")), 1)
        self.host.call_webhook(contact_changed, {**event, "subscriptionType": "contact.deletion"})
        self.assertEqual(self.host.records("Contact"), [])
