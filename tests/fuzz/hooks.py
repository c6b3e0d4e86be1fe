"""Values and checks that are particular to this API, for schemathesis."""

import json
import os

import schemathesis
from hypothesis import strategies as st

VALUES = json.loads(os.environ["SYNCLINE_FUZZ_VALUES"])

# Formats of which random texts would all be refused.
URLS = ["https://example.com/hooks", "http://example.com:8080/a?b=c"]
for name, values in {
    "uri": URLS,
    "uri-or-empty": ["", *URLS],
    "base-url": ["https://eu.example.com/v1", "http://example.com:8080"],
    "frequency": ["every 10 minutes", "every half hour", "0 6 * * *", "1h"],
    "cursor": [VALUES["cursor"]],
    "session-token": [VALUES["session_token"]],
}.items():
    schemathesis.openapi.format(name, st.sampled_from(values))


@schemathesis.hook
def before_load_schema(context, raw_schema):
    """Removes the examples of parameters. They name objects that do not exist on this host, and schemathesis would send
    them instead of the values in `schemathesis.toml`."""
    for item in raw_schema["paths"].values():
        for operation in item.values():
            for parameter in operation.get("parameters", []):
                parameter.pop("example", None)


@schemathesis.serializer("application/x-tar")
def serialize_bundle(ctx, value):
    return value if isinstance(value, bytes) else str(value).encode()


# Codes of requests that have the wrong form. Other codes depend on the objects that exist.
FORM = {"invalid_body", "invalid_json", "invalid_query_params", "invalid_headers", "invalid_uri_params"}
# The provider decides which credentials and answers are valid.
OF_PROVIDER = ("credentials", "connection_config", "params")
# Operations of whose requests a part depends on the provider, on the clock or on another part.
EXCEPTIONS = {
    "note_telemetry": {"timestamp"},
    "trigger_syncs": {"provider_config_key", "opts"},
    "update_connection": {"organization"},
    "create_session": {"end_user", "tags"},
    "follow_records": {"wait", "limit"},
    "list_dead_letters": {"provider_config_key"},
    "list_runs": {"provider_config_key"},
    "list_deliveries": {"provider_config_key", "connection_id"},
}


@schemathesis.check
def accepts_what_the_document_allows(ctx, response, case):
    """A request that matches its schemas is not refused because of its form."""
    if case.meta is None or not case.meta.generation.mode.is_positive or response.status_code != 400:
        return
    try:
        error = response.json()["error"]
    except ValueError:
        return
    operation = case.operation.definition.raw.get("operationId", "")
    if error["code"] not in FORM or operation.startswith("connect_"):
        return
    exempt = EXCEPTIONS.get(operation, set())
    wrong = [
        one
        for one in error.get("errors", [])
        if one["code"] != "custom" and not (one["path"] and (one["path"][0] in exempt or one["path"][0] in OF_PROVIDER))
    ]
    if wrong or "errors" not in error:
        raise AssertionError(f"{operation} refuses a request that the document allows: {wrong or error['message']}")
