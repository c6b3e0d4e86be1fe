"""Write functions of Syncline integrations in Python.

    from syncline_sdk import Paging, Writer, action, http, sync

    @sync
    def customers() -> None:
        \"\"\"Saves all customers.\"\"\"
        paging = Paging.last_id("starting_after", items="/data", more="/has_more")
        with Writer("Customer") as customers:
            for page in http.get("/v1/customers", query={"limit": 100}).pages(paging, Customer):
                customers.save_all(page)

`syncline.toml` lists the same functions in kebab case, with their schedules and models. Outside of a component, the
functions run against a fake host for unit tests: see `syncline_sdk.testing`.
"""

from . import checkpoint, connection, env, http, log, records, run
from .error import Error
from .functions import Webhook, action, lifecycle, sync, webhook
from .paging import Page, Paging
from .records import Counts, Writer

__version__ = "0.1.0"

__all__ = [
    "Counts",
    "Error",
    "Page",
    "Paging",
    "Webhook",
    "Writer",
    "action",
    "checkpoint",
    "connection",
    "env",
    "http",
    "lifecycle",
    "log",
    "records",
    "run",
    "sync",
    "webhook",
]
