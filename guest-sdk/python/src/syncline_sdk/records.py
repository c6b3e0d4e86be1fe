"""The records that the host stores and serves to the backend.

with Writer("Customer") as customers:
    customers.save({"id": "cus_1"})
    customers.delete("cus_0")
    customers.cursor("evt_9")
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, overload

from . import _json
from ._host import Change, Counts, host
from ._typed import Mismatch, read, write
from .error import Error

__all__ = ["Counts", "Writer", "get"]

T = TypeVar("T")

# Maximum number of records, and of characters, that a `Writer` collects for a batch.
BATCH_RECORDS = 1_000
BATCH_CHARACTERS = 1_000_000


@overload
def get(model: str, ids: Sequence[str | int]) -> list[dict[str, Any] | None]: ...


@overload
def get(model: str, ids: Sequence[str | int], expected: type[T]) -> list[T | None]: ...


def get(model: str, ids: Sequence[str | int], expected: Any = dict[str, Any]) -> list[Any]:
    """Returns the stored payloads of these ids, in the same order.

    The result is `None` for an id that has no record, is deleted, or whose payload was pruned.
    """
    found = host().records(model, [str(id) for id in ids])
    try:
        return [None if text is None else read(expected, _json.loads(text)) for text in found]
    except Mismatch as mismatch:
        raise Error("invalid-records", f"could not convert a stored record of `{model}`: {mismatch}") from None


class Writer:
    """Saves, updates and deletes records of one model in batches. Each batch is one transaction.

    Use it in a `with` statement, which saves the remaining changes at the end of the block, or call `finish`. If the
    block raises an exception, the changes since the last batch are not saved. A function that returns without saving
    the changes of a writer fails with `unsaved-changes`. A sync of several models uses a writer for each, and sets the
    checkpoint on the writer that it finishes last.
    """

    def __init__(self, model: str, *, variant: str | None = None, batch_records: int = BATCH_RECORDS) -> None:
        """Creates a writer for a model that `syncline.toml` lists for the function.

        A batch ends at `batch_records` records, or at about 1 MB of text.
        """
        self.counts = Counts()
        """The counts of all batches so far."""
        self._model = model
        self._variant = variant
        self._batch_records = max(batch_records, 1)
        # Adjacent changes of one kind share an entry, in the order of the calls.
        self._pending: list[tuple[Literal["save", "update", "delete"], list[str]]] = []
        self._records = 0
        self._characters = 0
        self._checkpoint: str | None = None

    def save(self, record: Mapping[str, Any] | Any) -> None:
        """Adds a record, or replaces the stored record with the same `id` if it differs."""
        self._add("save", self._text(record))

    def save_all(self, records: Iterable[Mapping[str, Any] | Any]) -> None:
        """Saves each record of a list, such as a page of a response."""
        for record in records:
            self.save(record)

    def update(self, changes: Mapping[str, Any] | Any) -> None:
        """Merges an object into the stored record with the same `id`. An id without a stored record is ignored.

        Objects are merged key by key, and any other value is replaced.
        """
        self._add("update", self._text(changes))

    def delete(self, id: str | int) -> None:
        """Marks a record as deleted. An id without a stored record is ignored."""
        self._add("delete", str(id))

    def checkpoint(self, checkpoint: Mapping[str, Any] | Any) -> None:
        """Sets where the next run resumes, once all changes until now are saved.

        The checkpoint is an object of at most 64 KB. It is saved with the next batch; if several are set before a
        batch, the last one is used.
        """
        try:
            self._set_checkpoint(_json.dumps(write(checkpoint)))
        except (TypeError, ValueError) as problem:
            raise Error("invalid-checkpoint", f"could not write the checkpoint as JSON: {problem}") from None

    def cursor(self, cursor: str) -> None:
        """Sets a checkpoint that consists of one text. Read it with `checkpoint.cursor`."""
        self._set_checkpoint(_json.dumps({"cursor": cursor}))

    def flush(self) -> None:
        """Saves all pending changes now, with the checkpoint if one is set."""
        if not self._pending and self._checkpoint is None:
            return
        counts = host().commit([self._change(kind, texts) for kind, texts in self._pending], self._checkpoint)
        self.counts.added += counts.added
        self.counts.updated += counts.updated
        self.counts.deleted += counts.deleted
        self.counts.unchanged += counts.unchanged
        self._discard()

    def finish(self) -> Counts:
        """Saves the remaining changes, and returns the counts of all of the writer's batches."""
        self.flush()
        return self.counts

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.flush()
        else:
            self._discard()

    def _add(self, kind: Literal["save", "update", "delete"], text: str) -> None:
        if not self._pending or self._pending[-1][0] != kind:
            self._pending.append((kind, []))
        self._pending[-1][1].append(text)
        self._records += 1
        self._characters += len(text) + 1
        self._remember()
        if self._records >= self._batch_records or self._characters >= BATCH_CHARACTERS:
            self.flush()

    def _text(self, record: Any) -> str:
        try:
            return _json.dumps(write(record))
        except (TypeError, ValueError) as problem:
            raise Error("invalid-records", f"could not write a record of `{self._model}` as JSON: {problem}") from None

    def _change(self, kind: Literal["save", "update", "delete"], texts: list[str]) -> Change:
        if kind == "delete":
            return Change(kind, self._model, self._variant, ids=tuple(texts))
        return Change(kind, self._model, self._variant, items=f"[{','.join(texts)}]")

    def _set_checkpoint(self, text: str) -> None:
        self._checkpoint = text
        self._remember()

    def _remember(self) -> None:
        unfinished = _unfinished.get()
        if unfinished is not None:
            unfinished[self] = None

    def _discard(self) -> None:
        self._pending = []
        self._records = self._characters = 0
        self._checkpoint = None
        unfinished = _unfinished.get()
        if unfinished is not None:
            unfinished.pop(self, None)

    def _unsaved(self) -> str:
        """What is not saved yet, such as "2 changes were not saved to `Customer`"."""
        changes = self._records
        lost = "the checkpoint was" if changes == 0 else "1 change was" if changes == 1 else f"{changes} changes were"
        return f"{lost} not saved to `{self._model}`"


# The writers of the current call with changes or a checkpoint that are not saved yet, in the order of their first
# change. A context variable, because tests can call functions in several threads.
_unfinished: ContextVar[dict[Writer, None] | None] = ContextVar("syncline_unfinished", default=None)


@contextmanager
def all_saved() -> Iterator[None]:
    """Raises an `Error` if the block ends without an exception, but writers have changes that are not saved."""
    unfinished: dict[Writer, None] = {}
    token = _unfinished.set(unfinished)
    try:
        yield
    finally:
        _unfinished.reset(token)
    if unfinished:
        lost = ", and ".join(writer._unsaved() for writer in unfinished)
        raise Error(
            "unsaved-changes",
            f"{lost} when the function returned; use each writer in a `with` statement, or call `finish()`, "
            "and do not ignore the error",
        )
