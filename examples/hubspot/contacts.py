"""Contacts: an incremental sync, a webhook function, and an action."""

from dataclasses import dataclass, fields
from typing import Any

from syncline_sdk import Webhook, Writer, action, checkpoint, http, run, sync, webhook

from models import Contact, ContactProperties, NewContact

PROPERTIES = [field.name for field in fields(ContactProperties)]
# HubSpot's search finds changes a few seconds late. Saving a contact twice does no harm.
OVERLAP_MS = 5 * 60 * 1000


@dataclass
class Place:
    """The checkpoint: where a run stopped in the list of contacts that have changed since `since`."""

    since: int = 0
    until: int = 0
    after: str = "0"


@sync
def contacts() -> None:
    """Saves the contacts that have changed since the last run."""
    place = checkpoint.get(Place) or Place()
    place.until = place.until or run.now_ms() - OVERLAP_MS
    with Writer("Contact") as contacts:
        while (page := search(place)) and not run.cancelled():
            contacts.save_all(page)
            place.after = page[-1].id
            contacts.checkpoint(place)
            contacts.flush()
        if not page:
            contacts.checkpoint(Place(since=place.until))


def search(place: Place) -> list[Contact]:
    """Returns the next contacts in the order of their ids, because a page number reaches only 10,000 results."""
    filters = [
        {"propertyName": "lastmodifieddate", "operator": "GTE", "value": str(place.since)},
        {"propertyName": "hs_object_id", "operator": "GT", "value": place.after},
    ]
    sorts = [{"propertyName": "hs_object_id", "direction": "ASCENDING"}]
    query = {"filterGroups": [{"filters": filters}], "sorts": sorts, "properties": PROPERTIES, "limit": 200}
    answer = http.post("/crm/v3/objects/contacts/search", json=query, retries=3).send_ok()
    return answer.json(SearchResult).results


@dataclass
class SearchResult:
    """The answer of a search."""

    results: list[Contact]


@action
def create_contact(new: NewContact) -> Contact:
    """Creates a contact."""
    properties = {name: value for name, value in vars(new).items() if value is not None}
    return http.post("/crm/v3/objects/contacts", json={"properties": properties}).send_ok().json(Contact)


@webhook
def contact_changed(call: Webhook[dict[str, Any]]) -> None:
    """Saves or deletes a contact when HubSpot reports a change."""
    id = str(call.body["objectId"])
    with Writer("Contact") as contacts:
        answer = http.get(f"/crm/v3/objects/contacts/{id}", query={"properties": ",".join(PROPERTIES)}).send()
        if answer.status == 404:
            contacts.delete(id)
        else:
            contacts.save(answer.ok().json(Contact))
