"""A small backend: python3 backend.py connect USER | records CONNECTION | action CONNECTION NAME | listen"""

import os
import sys
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from syncline import SynclineError, create_connect_session, read_records, trigger_action, verify_webhook

INTEGRATION = os.environ.get("INTEGRATION", "stripe")
MODEL = os.environ.get("MODEL", "Customer")
PORT = int(os.environ.get("PORT", "4567"))


def connect(user_id):
    """Prints a link on which the user connects an account."""
    print(create_connect_session({"id": user_id}, INTEGRATION)["connect_link"])


def records(connection_id):
    """Prints the changes since the last call. The cursor is stored in a file; store it in your database instead."""
    file = Path(f"cursor-{connection_id}.txt")
    cursor = file.read_text() if file.exists() else None
    count = 0
    for record in read_records((connection_id, INTEGRATION), MODEL, cursor):
        if count < 3:
            print(record["_service_metadata"]["last_action"], record["id"])
        count += 1
        cursor = record["_service_metadata"]["cursor"]
    if cursor:
        file.write_text(cursor)
    print(f"{count} changes")


def action(connection_id, name):
    """Runs the action `create-customer`."""
    print(trigger_action((connection_id, INTEGRATION), "create-customer", {"name": name}, str(uuid.uuid4())))


def listen():
    """Receives webhooks from Syncline until it is stopped."""
    seen = set()  # Webhooks are delivered at least once. Their ids identify duplicates.

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            try:
                event = verify_webhook(os.environ["WEBHOOK_SIGNING_KEY"], self.headers, body)
            except ValueError as error:
                print(error, file=sys.stderr)
                self.send_response(401)
            else:
                if self.headers["webhook-id"] not in seen:
                    seen.add(self.headers["webhook-id"])
                    results = event.get("responseResults", "")
                    print(event["type"], event["connectionId"], event.get("model", ""), results, flush=True)
                self.send_response(204)
            self.end_headers()

        def log_message(self, *_):
            pass  # Prints nothing but the webhooks.

    print(f"listening on http://127.0.0.1:{PORT}", flush=True)
    ThreadingHTTPServer(("127.0.0.1", PORT), Receiver).serve_forever()


COMMANDS = {"connect": connect, "records": records, "action": action, "listen": listen}

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in COMMANDS:
        sys.exit(__doc__)
    try:
        COMMANDS[sys.argv[1]](*sys.argv[2:])
    except SynclineError as error:
        sys.exit(f"{error.code}: {error}")
    except KeyboardInterrupt:
        pass
