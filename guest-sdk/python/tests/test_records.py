from __future__ import annotations

from dataclasses import dataclass

import pytest

from syncline_sdk import Error, Writer, checkpoint, connection, env, records, run
from syncline_sdk.testing import Host


@dataclass
class Customer:
    id: str
    name: str | None = None


def test_a_writer_saves_in_batches_and_the_checkpoint_with_the_last_one(host: Host) -> None:
    with Writer("Customer", batch_records=2) as customers:
        customers.save_all(Customer(id) for id in "abc")
        customers.delete("a")
        customers.update({"id": "b", "name": "Ada"})
        customers.cursor("evt_9")
    assert host.records("Customer") == [{"id": "b", "name": "Ada"}, {"id": "c", "name": None}]
    assert [len(commit.changes) for commit in host.commits] == [2, 2, 1]
    assert [commit.checkpoint for commit in host.commits] == [None, None, {"cursor": "evt_9"}]
    assert checkpoint.cursor() == "evt_9"
    assert (customers.counts.added, customers.counts.updated, customers.counts.deleted) == (3, 1, 1)


def test_an_exception_discards_what_is_not_saved(host: Host) -> None:
    with pytest.raises(KeyError), Writer("Customer", batch_records=2) as customers:
        customers.save_all(Customer(id) for id in "abc")
        raise KeyError("boom")
    assert [record["id"] for record in host.records("Customer")] == ["a", "b"]


def test_saving_the_same_record_again_changes_nothing(host: Host) -> None:
    host.keep("Customer", Customer("a", "Ada"))
    customers = Writer("Customer")
    customers.save({"id": "a", "name": "Ada"})
    assert customers.finish().unchanged == 1
    assert records.get("Customer", ["a", "x"], Customer) == [Customer("a", "Ada"), None]


def test_integer_ids_become_texts(host: Host) -> None:
    orders = Writer("Order")
    orders.save({"id": 12345678901234567890})
    orders.finish()
    assert host.records("Order") == [{"id": "12345678901234567890"}]


def test_a_record_that_does_not_match_its_model_fails_the_batch(host: Host) -> None:
    customers = Writer("Customer")
    customers.save({"id": "a"})
    customers.save({"id": "b", "age": "seven"})
    with pytest.raises(Error, match="record 1 with the id `b`: at /age: expected integer, got string") as failed:
        customers.finish()
    assert failed.value.code == "invalid-records"
    assert failed.value.details == [
        {"index": 1, "id": "b", "problems": [{"path": "/age", "problem": "expected integer, got string"}]}
    ]
    assert host.records("Customer") == []


@pytest.mark.parametrize(
    "record", [{"id": ""}, {"id": None}, {"id": 1.5}, {"id": True}, {"name": "x"}, ["a"], {"id": "x" * 256}]
)
def test_a_record_needs_an_id(host: Host, record: object) -> None:
    customers = Writer("Customer")
    customers.save(record)
    with pytest.raises(Error) as failed:
        customers.flush()
    assert failed.value.code == "invalid-records"


def test_values_that_json_cannot_represent_are_refused(host: Host) -> None:
    with pytest.raises(Error) as failed:
        Writer("Customer").save({"id": "a", "x": float("inf")})
    assert failed.value.code == "invalid-records"
    with pytest.raises(Error) as failed:
        Writer("Customer").checkpoint({"at": object()})
    assert failed.value.code == "invalid-checkpoint"


def test_an_unknown_model_is_refused(host: Host) -> None:
    with pytest.raises(Error) as failed, Writer("Custmer") as customers:
        customers.save({"id": "a"})
    assert failed.value.code == "unknown-model"


def test_a_checkpoint_is_read_as_a_type(host: Host) -> None:
    @dataclass
    class Place:
        since: int

    assert checkpoint.get(Place) is None
    host.set_checkpoint({"since": 7})
    assert checkpoint.get(Place) == Place(7)
    host.set_checkpoint({"until": 7})
    with pytest.raises(Error, match="`since` is missing; if its type has changed, reset the sync"):
        checkpoint.get(Place)


def test_the_connection_and_the_run_are_those_of_the_host(host: Host) -> None:
    @dataclass
    class Settings:
        region: str = "us"
        count: int = 0

    assert connection.metadata(Settings) == Settings()
    connection.set_metadata({"region": "eu"})
    connection.update_metadata({"count": 3})
    assert connection.metadata(Settings) == Settings("eu", 3) and host.metadata == {
        "region": "eu",
        "count": 3,
    }
    with pytest.raises(Error) as failed:
        connection.credentials()
    assert failed.value.code == "not-allowed"
    assert host.set_credentials({"token": "t"}) and connection.credentials() == {"token": "t"}
    assert host.set_variable("A", "1") and (env.var("A"), env.var("B")) == ("1", None)
    assert host.set_time(42) and run.now_ms() == 42
    assert not run.cancelled() and host.cancel() and run.cancelled()
    run.progress(1, 3)
    assert host.progress == (1, 3)
    assert (connection.info().config, run.info().attempt) == ({}, 1)
