from __future__ import annotations

import unittest
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NotRequired, TypedDict

import pytest

from syncline_sdk import Error, Webhook, Writer, action, connection, functions, lifecycle, sync, webhook
from syncline_sdk.testing import ConfigError, Host
from tests.conftest import CONFIG


@dataclass
class Greeting:
    greeting: str


class Name(TypedDict):
    name: str
    title: NotRequired[str]


class CustomerEvent(TypedDict):
    id: str


def greet(name: Name) -> Greeting:
    """Greets someone.

    Politely.
    """
    return Greeting(f"Hello, {name.get('title', '')}{name['name']}!")


def test_functions_are_named_and_described() -> None:
    def create_customer() -> None: ...

    action(greet)
    action(create_customer)
    sync(name="every-order")(create_customer)
    lifecycle("connection-created")(create_customer)
    assert [(found.kind, found.name, found.description) for found in functions.functions()] == [
        ("action", "greet", "Greets someone."),
        ("action", "create-customer", ""),
        ("sync", "every-order", ""),
        ("lifecycle", "connection-created", ""),
    ]


def test_an_action_converts_and_validates_input_and_output(host: Host) -> None:
    action(greet)
    assert host.call(greet, {"name": "Ada", "title": "Dr. "}) == {"greeting": "Hello, Dr. Ada!"}
    with pytest.raises(Error, match="at /name: expected string, got integer") as failed:
        host.call(greet, {"name": 7})
    assert failed.value.code == "invalid-input"


def test_an_output_that_does_not_match_its_type_is_refused(host: Host) -> None:
    @action(name="greet")
    def wrong(name: Name) -> Any:
        return {"greeting": 7}

    with pytest.raises(Error, match="at /greeting: expected string") as failed:
        host.call(wrong, {"name": "Ada"})
    assert failed.value.code == "invalid-output"


def test_an_input_of_the_wrong_type_is_refused_without_models() -> None:
    action(greet)
    found = functions.find("action", "greet")
    assert found is not None
    for text, problem in [
        (None, "requires an input"),
        ("{}", "`name` is missing"),
        ('{"name":1}', "at /name: expected string"),
    ]:
        with pytest.raises(Error, match=problem) as failed:
            found.invoke(text)
        assert failed.value.code == "invalid-input"


def test_none_is_no_output_unless_the_annotation_says_so() -> None:
    @action
    def nothing() -> None: ...

    @action
    def maybe() -> Greeting | None:
        return None

    @sync
    def customers() -> int:
        return 7

    outputs = [found.invoke(None) for found in functions.functions()]
    assert outputs == [None, "null", None]


def test_numbers_are_exact(host: Host) -> None:
    @action
    def read_secret(value: Any) -> Any:
        return value

    numbers = [12345678901234567890123, 0.1, 1e300, -0.0, 5e-324]
    assert repr(host.call(read_secret, numbers)) == repr(numbers)


def test_a_webhook_function_gets_headers_and_a_typed_body(host: Host) -> None:
    @webhook
    def customer_changed(call: Webhook[CustomerEvent]) -> None:
        with Writer("Customer") as customers:
            customers.save({"id": call.body["id"], "name": call.headers["x-name"]})

    host.call_webhook(customer_changed, {"id": "1"}, {"X-Name": "Ada"})
    assert host.records("Customer") == [{"id": "1", "name": "Ada"}]
    with pytest.raises(Error, match="at /body: `id` is missing"):
        host.call_webhook(customer_changed, {})


def test_functions_have_only_the_rights_of_their_table(host: Host) -> None:
    host.set_credentials({"token": "t"})

    @action
    def read_secret(value: Any) -> Any:
        return connection.credentials()

    @sync
    def customers() -> None:
        with Writer("Order") as orders:
            orders.save({"id": 1})

    @action(name="greet")
    def steal(name: Any) -> Any:
        return connection.credentials()

    @webhook
    def customer_changed(call: Webhook[Any]) -> None:
        with Writer("Customer") as customers:
            customers.checkpoint({"a": 1})

    assert host.call(read_secret) == {"token": "t"}
    calls: list[tuple[Callable[[], Any], str]] = [
        (lambda: host.call(customers), "unknown-model"),
        (lambda: host.call(steal, {"name": "x"}), "not-allowed"),
        (lambda: host.call_webhook(customer_changed, {}), "invalid-checkpoint"),
    ]
    for call, code in calls:
        with pytest.raises(Error) as failed:
            call()
        assert failed.value.code == code


def test_a_function_that_loses_changes_fails(host: Host) -> None:
    fails = False

    @sync
    def customers() -> None:
        Writer("Customer").save({"id": "a"})
        if fails:
            raise Error("other", "another error")

    @sync(name="nothing")
    def nothing() -> None: ...

    with pytest.raises(Error, match="^1 change was not saved to `Customer` .* `with` statement") as failed:
        host.call(customers)
    assert failed.value.code == "unsaved-changes"
    fails = True
    with pytest.raises(Error) as failed:
        host.call(customers)
    assert failed.value.code == "other", "its own error is more important"
    found = functions.find("sync", "nothing")
    assert found is not None and found.invoke(None) is None, "the next call starts anew"


def test_every_writer_without_finish_is_named_with_its_number_of_changes(host: Host) -> None:
    kept: list[Writer] = []

    @sync
    def customers() -> None:
        # References that outlive the function make no difference.
        kept.extend([Writer("Customer"), Writer("Customer"), Writer("Order")])
        saved, moved, lost = kept
        saved.save({"id": "a"})
        saved.finish()
        moved.cursor("evt_9")
        lost.delete(1)
        lost.delete(2)

    problem = "^the checkpoint was not saved to `Customer`, and 2 changes were not saved to `Order` when"
    with pytest.raises(Error, match=problem) as failed:
        host.call(customers)
    assert failed.value.code == "unsaved-changes"
    assert host.records("Customer") == [{"id": "a"}]


def test_a_function_that_ends_with_a_rejected_batch_fails(host: Host) -> None:
    @sync
    def customers() -> None:
        try:
            with Writer("Customer") as customers:
                customers.save({"name": "no id"})
        except Error:
            pass

    with pytest.raises(Error, match="^1 change was not saved to `Customer`") as failed:
        host.call(customers)
    assert failed.value.code == "unsaved-changes"


def test_changes_that_an_exception_discards_are_not_lost(host: Host) -> None:
    @sync
    def customers() -> None:
        try:
            with Writer("Customer") as customers:
                customers.save({"id": "a"})
                raise KeyError("boom")
        except KeyError:
            pass

    host.call(customers)
    assert host.records("Customer") == []


def test_a_function_without_a_table_is_named(host: Host) -> None:
    @sync
    def orders() -> None: ...

    with pytest.raises(ConfigError, match="there is no sync `orders`; add its table"):
        host.call(orders)


def test_wrong_declarations_name_the_line() -> None:
    async def waits() -> None: ...

    def two(a: int, b: int) -> None: ...

    def none() -> None: ...

    wrong: list[tuple[Callable[[Any], Any], Any, str]] = [
        (action, waits, "is `async`"),
        (action, two, "has the parameters `a`, `b`; functions of this kind have one parameter"),
        (sync, two, "has the parameters `a`, `b`; functions of this kind have no parameters"),
        (webhook, none, "has no parameter"),
    ]
    for declare, function, problem in wrong:
        with pytest.raises(TypeError, match=problem) as failed:
            declare(function)
        assert f"test_functions.py:{function.__code__.co_firstlineno}: `{function.__name__}`" in str(failed.value)
    with pytest.raises(ValueError, match="`created` is not an event"):
        lifecycle("created")  # type: ignore[arg-type]


def test_a_function_without_a_host_says_how_to_create_one() -> None:
    with pytest.raises(RuntimeError, match="create a `syncline_sdk.testing.Host`"):
        connection.info()


class WithUnittest(unittest.TestCase):
    """The fake host needs no pytest."""

    def setUp(self) -> None:
        self.host = self.enterContext(Host(CONFIG))

    def test_a_request_without_a_response_is_named(self) -> None:
        from syncline_sdk import http

        self.host.answer("GET /known", 200)
        with self.assertRaisesRegex(AssertionError, "no response for `GET /unknown`"):
            http.get("/unknown").send()
