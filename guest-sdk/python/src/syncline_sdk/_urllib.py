"""Lets `urllib.request` send its requests through the host, because a component has no sockets."""

from __future__ import annotations

import email.message
import io
import urllib.request
import urllib.response
from collections.abc import Iterable
from typing import Any
from urllib.error import URLError

from ._host import WireRequest, host
from .error import Error


class Handler(urllib.request.BaseHandler):
    """Opens `http` and `https` URLs. The host adds credentials, follows redirects, and retries safe methods."""

    def http_open(self, request: urllib.request.Request) -> urllib.response.addinfourl:
        timeout = getattr(request, "timeout", None)
        wire = WireRequest(
            request.get_method(),
            request.full_url.partition("#")[0],
            (),
            tuple(request.header_items()),
            _body(request.data),
            None,
            round(timeout * 1000) if isinstance(timeout, (int, float)) else None,
        )
        try:
            answer = host().send(wire)
        except Error as error:
            raise URLError(error) from error
        headers = email.message.Message()
        for name, value in answer.headers:
            headers[name] = value
        response = urllib.response.addinfourl(io.BytesIO(answer.body), headers, request.full_url, answer.status)
        response.msg = ""  # type: ignore[attr-defined]
        return response

    https_open = http_open

    def http_request(self, request: urllib.request.Request) -> urllib.request.Request:
        if request.data is not None and not request.has_header("Content-type"):
            request.add_unredirected_header("Content-type", "application/x-www-form-urlencoded")
        return request

    https_request = http_request


def install() -> None:
    """Makes `urllib.request.urlopen` send its requests through the host."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        Handler(),
        urllib.request.UnknownHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
    ):
        opener.add_handler(handler)
    urllib.request.install_opener(opener)


def _body(data: Any) -> bytes | None:
    if data is None or isinstance(data, bytes):
        return data
    if hasattr(data, "read"):
        content: bytes = data.read()
        return content
    if isinstance(data, Iterable):
        return b"".join(data)
    return bytes(data)
