"""Companies: a full sync with deletion tracking, because HubSpot's lists leave out deleted companies."""

from dataclasses import fields

from syncline_sdk import Paging, Writer, http, sync

from models import Company, CompanyProperties

PROPERTIES = ",".join(field.name for field in fields(CompanyProperties))


@sync
def companies() -> None:
    """Saves all companies."""
    paging = Paging.cursor("/paging/next/after", "after", items="/results").may_lack_place()
    request = http.get("/crm/v3/objects/companies", query={"limit": 100, "properties": PROPERTIES})
    with Writer("Company") as companies:
        for page in request.pages(paging, Company):
            companies.save_all(page)
