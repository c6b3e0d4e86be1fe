"""The @@models@@ of @@Provider@@: a sync that saves what has changed, and an action that reads one."""

from syncline_sdk import Paging, Writer, action, checkpoint, http, run, sync

from models import @@Model@@, @@Model@@Key

LIST = "@@list@@"


@sync
def @@models@@() -> None:
    """Saves the @@models@@ that have changed since the last run."""
    query = @@query@@
    newest = None
    with Writer("@@Model@@") as writer:
        # Newest first: what changes meanwhile moves to a page that was read, and nothing else is skipped.
        for page in http.get(LIST, query=query).pages(Paging.link(), @@Model@@):
            newest = newest or page[0].updated_at
            writer.save_all(page)
            if run.cancelled():
                return
        if newest:
            writer.cursor(newest)


@action
def read_@@model@@(wanted: @@Model@@Key) -> @@Model@@:
    """Reads one @@model@@."""
    return http.get(f"{LIST}/{wanted.@@key@@}").send_ok().json(@@Model@@)
