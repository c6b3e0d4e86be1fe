"""A client for the four tasks of a backend that uses Syncline. It needs only the standard library; copy what you need."""

import base64
import hashlib
import hmac
import json
import os
import time
import urllib.error
import urllib.parse
import urllib.request

HOST = os.environ.get("SYNCLINE_URL", "http://127.0.0.1:3003")


class SynclineError(Exception):
    """A response of the host with a status of 400 or above. docs/errors.md lists the values of `code`."""

    def __init__(self, status, error):
        super().__init__(error["message"])
        self.status = status
        self.code = error["code"]


def create_connect_session(user, integration):
    """Creates a connect session for the user who is signed in to your product.

    Pass `token` to your frontend, or send the user to `connect_link`. The session expires after 30 minutes.
    """
    body = {"end_user": user, "allowed_integrations": [integration]}
    return _request("POST", "/connect/sessions", body=body)["data"]


def read_records(connection, model, cursor=None):
    """Yields every record after `cursor`, oldest change first. Without a cursor it starts at the first record."""
    while True:
        query = {"model": model, "limit": 100} | ({"cursor": cursor} if cursor else {})
        page = _request("GET", "/records?" + urllib.parse.urlencode(query), headers=_connection_headers(connection))
        yield from page["records"]
        cursor = page["next_cursor"]
        if cursor is None:
            return


def trigger_action(connection, action, input, idempotency_key):
    """Runs an action and returns its output.

    If you repeat a call with the same `idempotency_key`, the host returns the first result instead of running the
    action again.
    """
    headers = _connection_headers(connection) | {"Idempotency-Key": idempotency_key}
    return _request("POST", "/action/trigger", headers=headers, body={"action_name": action, "input": input})


def verify_webhook(signing_key, headers, body):
    """Verifies a webhook from Syncline and returns its parsed body. Raises ValueError if it is not authentic.

    `body` is the raw request body, as bytes: parsing and serializing it again would change it. `signing_key` is the
    environment's webhook signing key, `whsec_…`. The scheme is that of https://www.standardwebhooks.com.
    """
    message_id, timestamp = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    if timestamp.isdecimal() and abs(time.time() - int(timestamp)) <= 300:
        key = base64.b64decode(signing_key.removeprefix("whsec_"))
        signed = f"{message_id}.{timestamp}.".encode() + body
        expected = "v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()
        # While a key is being rotated there are two signatures, and either can match.
        for signature in headers.get("webhook-signature", "").split(" "):
            if hmac.compare_digest(signature.encode(), expected.encode()):
                return json.loads(body)
    raise ValueError("the webhook is not authentic: its signature does not match, or is older than 5 minutes")


def _request(method, path, headers=None, body=None):
    """Sends a request with the environment's secret key, and returns the JSON body of the response."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(HOST + path, data, method=method)
    request.add_header("Authorization", f"Bearer {os.environ['SYNCLINE_SECRET_KEY']}")
    request.add_header("Content-Type", "application/json")
    for name, value in (headers or {}).items():
        request.add_header(name, value)
    try:
        with urllib.request.urlopen(request) as response:
            text = response.read()
    except urllib.error.HTTPError as error:
        raise SynclineError(error.code, json.load(error)["error"]) from None
    return json.loads(text) if text else None


def _connection_headers(connection):
    """The headers that select one connection of one integration."""
    connection_id, integration = connection
    return {"Connection-Id": connection_id, "Provider-Config-Key": integration}
