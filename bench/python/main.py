"""The action `echo` of the minimal example, for measuring the cost of the language."""

from typing import Any

from syncline_sdk import action


@action
def echo(input: Any) -> Any:
    """Returns its input."""
    return input
