"""The tour of `scripts/demo`: customers, a deployment, a connection, syncs, records, an action.

Prints each command before running it, and its output afterwards. Checks every result, and ends with an error at the
first unexpected one.
"""

import base64
import json
import os
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

SYNCLINE_URL = os.environ["SYNCLINE_URL"]
SYNCLINE_SECRET_KEY = os.environ["SYNCLINE_SECRET_KEY"]
STRIPE_URL = os.environ["STRIPE_URL"]
STRIPE_KEY = "sk_test_demo"

CUSTOMERS = 1200
PATIENCE_SECONDS = 120
STARTED_AT = time.monotonic()

ON_TERMINAL = sys.stdout.isatty()
HAS_COLORS = ON_TERMINAL and not os.environ.get("NO_COLOR")
BOLD, DIM, GREEN, PLAIN = ("\033[1m", "\033[2m", "\033[32m", "\033[0m") if HAS_COLORS else ("",) * 4


def main():
    step(f"putting {CUSTOMERS} customers into localstripe")
    create_customers()

    step("deploying the integration")
    show('"$SYNCLINE" deploy --bundle examples/stripe/build/bundle.tar --yes')

    step("connecting an account")
    connect()

    step("waiting for the first sync, which starts automatically")
    wait_for_run(after=None, counts={"added": CUSTOMERS, "updated": 0, "deleted": 0})

    step("reading the records")
    cursor = read_records()

    step("at localstripe: changing 5 customers, deleting 3, adding 2; then syncing again")
    last_run = customers_sync()["finishedAt"]
    change_customers()
    trigger()
    wait_for_run(after=last_run, counts={"added": 2, "updated": 5, "deleted": 3})

    step("reading the changes since the cursor of the last record")
    read_changes(cursor)

    step("running an action")
    create_customer()

    step(f"the tour took {time.monotonic() - STARTED_AT:.0f} s")


def create_customers():
    def create(number):
        stripe("POST", "customers", name=f"Customer {number}", email=f"customer{number}@example.com")

    with ThreadPoolExecutor(8) as pool:
        for done, _ in enumerate(pool.map(create, range(1, CUSTOMERS + 1)), start=1):
            if done % (CUSTOMERS // (100 if ON_TERMINAL else 4)) == 0:
                progress(f"{done} of {CUSTOMERS}")
    end_progress()
    expect("customers that localstripe lists", len(stripe_customers()), CUSTOMERS)


def connect():
    connection = show("""
        curl -sS "$SYNCLINE_URL/connections" \\
            -H "Authorization: Bearer $SYNCLINE_SECRET_KEY" -H "Content-Type: application/json" \\
            -d '{
                "connection_id": "ada", "provider_config_key": "stripe",
                "credentials": {"type": "BASIC", "username": "sk_test_demo", "password": ""}
            }'
    """)
    expect("id of the connection", connection.get("connection_id"), "ada")


def read_records():
    """Reads all records, checks them, and returns the cursor of the last one."""
    first_page = show("""
        curl -sS "$SYNCLINE_URL/records?model=Customer&limit=2" \\
            -H "Authorization: Bearer $SYNCLINE_SECRET_KEY" \\
            -H "Connection-Id: ada" -H "Provider-Config-Key: stripe"
    """)
    expect("records of that page", len(first_page["records"]), 2)
    records = all_records()
    expect("records of all pages", len(records), CUSTOMERS)
    expect_same_customers(records)
    return records[-1]["_service_metadata"]["cursor"]


def change_customers():
    customers = stripe_customers()
    for customer in customers[:5]:
        stripe("POST", f"customers/{customer['id']}", description="Changed by the demo")
    for customer in customers[5:8]:
        stripe("DELETE", f"customers/{customer['id']}")
    for name in ["Grace Hopper", "Katherine Johnson"]:
        stripe("POST", "customers", name=name)
    expect("customers that localstripe lists", len(stripe_customers()), CUSTOMERS - 1)


def trigger():
    show("""
        curl -sS "$SYNCLINE_URL/sync/trigger" \\
            -H "Authorization: Bearer $SYNCLINE_SECRET_KEY" -H "Content-Type: application/json" \\
            -d '{"provider_config_key": "stripe", "connection_id": "ada", "syncs": ["customers"]}'
    """)


def read_changes(cursor):
    """Checks that exactly the changed records follow the cursor."""
    print(f"{DIM}$ export CURSOR={cursor}{PLAIN}")
    os.environ["CURSOR"] = cursor
    expect("records after the cursor", len(all_records(cursor=cursor)), 10)
    for filter, action, count in [("added", "ADDED", 2), ("updated", "UPDATED", 5), ("deleted", "DELETED", 3)]:
        page = show(f"""
            curl -sS "$SYNCLINE_URL/records?model=Customer&cursor=$CURSOR&filter={filter}&limit=1" \\
                -H "Authorization: Bearer $SYNCLINE_SECRET_KEY" \\
                -H "Connection-Id: ada" -H "Provider-Config-Key: stripe"
        """)
        expect("last action of that record", page["records"][0]["_service_metadata"]["last_action"], action)
        records = all_records(cursor=cursor, filter=filter)
        expect(f"records with `{filter}`", len(records), count)
    expect_same_customers(all_records(filter="added,updated"))


def create_customer():
    customer = show("""
        curl -sS "$SYNCLINE_URL/action/trigger" \\
            -H "Authorization: Bearer $SYNCLINE_SECRET_KEY" -H "Content-Type: application/json" \\
            -H "Connection-Id: ada" -H "Provider-Config-Key: stripe" \\
            -d '{"action_name": "create-customer", "input": {"name": "Ada Lovelace"}}'
    """)
    at_stripe = stripe("GET", f"customers/{customer['id']}")
    expect(f"name of {customer['id']} at localstripe", at_stripe["name"], "Ada Lovelace")


def wait_for_run(after, counts):
    """Waits until a run other than the one that finished at `after` has finished, and checks its counts."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    shown = None
    while time.monotonic() < deadline:
        sync = customers_sync()
        records = sync["recordCount"]["Customer"]
        if records != shown:
            shown = records
            progress(f"{records} records")
        if sync["status"] == "ERROR":
            fail(f"the sync failed: {json.dumps(sync)}")
        if sync["status"] == "SUCCESS" and sync.get("finishedAt", after) != after:
            end_progress()
            expect("changes of the run", sync["latestResult"]["Customer"], counts)
            return
        time.sleep(0.1)
    fail(f"the sync did not finish within {PATIENCE_SECONDS} s: {json.dumps(customers_sync())}")


def customers_sync():
    query = urlencode({"provider_config_key": "stripe", "connection_id": "ada", "syncs": "customers"})
    return syncline(f"sync/status?{query}")["syncs"][0]


def all_records(**query):
    """Returns the records of all pages, after `cursor` if it is given."""
    records = []
    while True:
        page = syncline("records?" + urlencode({"model": "Customer", "limit": 500} | query))
        records += page["records"]
        if page["next_cursor"] is None:
            return records
        query["cursor"] = page["next_cursor"]


def stripe_customers():
    return stripe("GET", f"customers?limit={2 * CUSTOMERS}")["data"]


def expect_same_customers(records):
    """Checks that the records have the same ids and values as the provider's customers."""
    fields = ["id", "created", "email", "name", "phone", "description", "address", "metadata"]
    ours, theirs = (
        {row["id"]: {field: row[field] for field in fields} for row in rows}
        for rows in (records, stripe_customers())
    )
    differing = [id for id in ours.keys() | theirs.keys() if ours.get(id) != theirs.get(id)]
    expect("records that differ from localstripe's customers", len(differing), 0)


def syncline(path):
    headers = {
        "Authorization": f"Bearer {SYNCLINE_SECRET_KEY}",
        "Connection-Id": "ada",
        "Provider-Config-Key": "stripe",
    }
    return answer(Request(f"{SYNCLINE_URL}/{path}", headers=headers))


def stripe(method, path, **form):
    credentials = base64.b64encode(f"{STRIPE_KEY}:".encode()).decode()
    headers = {"Authorization": f"Basic {credentials}"}
    body = urlencode(form).encode() if form else None
    return answer(Request(f"{STRIPE_URL}/v1/{path}", body, headers, method=method))


def answer(request):
    try:
        with urlopen(request, timeout=PATIENCE_SECONDS) as response:
            return json.load(response)
    except HTTPError as error:
        fail(f"{request.method or 'GET'} {request.full_url}: {error.code} {error.read().decode()}")
    except OSError as error:
        fail(f"{request.full_url}: {error}")


def show(command):
    """Prints a command, runs it, prints its output, and returns the output if it is JSON."""
    command = textwrap.dedent(command).strip()
    print(f"{DIM}$ {command}{PLAIN}", flush=True)
    done = subprocess.run(["bash", "-c", command], stdout=subprocess.PIPE, text=True)
    try:
        shown = json.loads(done.stdout)
        print(json.dumps(shown, indent=2, ensure_ascii=False))
    except ValueError:
        shown = None
        print(done.stdout, end="")
    if done.returncode != 0:
        fail(f"the command ended with {done.returncode}")
    if isinstance(shown, dict) and "error" in shown:
        fail("the host returned an error")
    return shown


def expect(what, seen, wanted):
    if seen != wanted:
        fail(f"{what}: got {in_words(seen)}, expected {in_words(wanted)}")
    print(f"{GREEN}✓{PLAIN} {what}: {in_words(seen)}")


def in_words(value):
    if isinstance(value, dict):
        return ", ".join(f"{value[word]} {word}" for word in sorted(value))
    return str(value)


def fail(problem):
    end_progress()
    sys.exit(f"error: {problem}\nsee the logs of the host (.demo/host.log) and of localstripe (.demo/stripe.log)")


def step(title):
    print(f"{BOLD}==> {title}{PLAIN}", flush=True)


def progress(text):
    """Prints the progress, on a terminal in a line that is overwritten."""
    if ON_TERMINAL:
        print(f"\r\033[K  {text}", end="", flush=True)
    else:
        print(f"  {text}", flush=True)


def end_progress():
    if ON_TERMINAL:
        print("\r\033[K", end="", flush=True)


try:
    main()
except KeyboardInterrupt:
    sys.exit(130)
