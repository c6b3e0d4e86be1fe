"""The error type of functions: a code for programs, a message for people, and details."""

from __future__ import annotations

from typing import Any


class Error(Exception):
    """The reason why an operation failed.

    A function that raises an `Error` ends its run with it. The caller of an action receives the message and the
    details, so they must not contain secrets.
    """

    def __init__(self, code: str, message: str, details: Any = None) -> None:
        """`code` is a stable identifier in kebab case, such as `customer-is-archived`; `message` is a sentence."""
        super().__init__(code, message, details)
        self.code = code
        self.message = message
        self.details = details

    @classmethod
    def invalid_input(cls, message: str, details: Any = None) -> Error:
        """Creates an error for input of the caller that the function cannot use."""
        return cls("invalid-input", message, details)

    def __str__(self) -> str:
        return self.message
