"""The current run."""

from __future__ import annotations

from dataclasses import dataclass

from ._host import host


@dataclass(frozen=True)
class Info:
    """The identity of a run."""

    id: str
    """The run's UUID."""
    variant: str
    """The sync's variant, `base` unless the run belongs to a further variant."""
    attempt: int
    """1 for the first attempt, and one more for each retry."""


def info() -> Info:
    """Returns the run's id, the sync's variant, and the number of the attempt."""
    return Info(*host().run())


def is_full() -> bool:
    """Returns true if the host deletes the records that this run does not save, so that it must fetch everything.

    This is the case for syncs with `track_deletes`; with `full_every`, only for some of their runs. A full run starts
    without a checkpoint.
    """
    return host().is_full()


def progress(done: int, total: int | None = None) -> None:
    """Reports how much of the work is done. Set `total` if it is known."""
    host().progress(done, total)


def cancelled() -> bool:
    """Returns true if the run should stop. A sync with a checkpoint returns after its next flush."""
    return host().cancelled()


def now_ms() -> int:
    """Returns the time of the host's clock, in milliseconds since 1970."""
    return host().now_ms()
