import assert from "node:assert/strict";
import { test } from "node:test";
import {
  action,
  checkpoint,
  connection,
  env,
  integration,
  lifecycle,
  log,
  records,
  run,
  sync,
  SynclineError,
  webhook,
  Writer,
} from "@syncline/sdk";
import { Host } from "@syncline/sdk/testing";
import { project, type Customer, type Everything, type Integrations } from "./generated/models.ts";

const everything: Everything = {
  id: 7,
  text: "a",
  amount: 1.5,
  open: true,
  day: "2026-03-01",
  at: "2026-03-01T09:00:00Z",
  anything: null,
  state: "it's",
  customer: { id: "cus_1" },
  address: { street: "Main Street" },
  tags: [],
  matrix: [[1]],
  lines: [{ sku: "a", quantity: 1 }],
  gaps: [null, "a"],
  states: ["on"],
  "strange-name": "x",
};

const createCustomer = action(
  "Creates a customer.",
  async (input: Integrations["shop"]["actions"]["create-customer"]["input"]): Promise<Customer> => ({
    id: "cus_1",
    email: input.email,
  }),
);

/** An integration whose sync is the given function. */
function shop(run: () => unknown = () => undefined, names: () => unknown = () => []) {
  return integration<Integrations["shop"]>({
    syncs: { everything: sync("All things", run) },
    actions: { "create-customer": createCustomer, names: action(async () => names() as string[]) },
    webhooks: {
      "customer-changed": webhook<Customer>("Saves a customer.", async ({ headers, body }) => {
        const customers = new Writer<Customer>("Customer");
        customers.save({ ...body, email: headers["x-email"] ?? null });
        customers.finish();
      }),
    },
    lifecycle: {
      "connection-validating": lifecycle(async (event) => {
        throw SynclineError.invalidInput(`rejected in ${event}`);
      }),
    },
  });
}

/** Runs the sync of `shop`. */
async function syncing(run: () => unknown, prepare: (host: Host) => void = () => undefined): Promise<Host> {
  const host = new Host(project, "shop");
  prepare(host);
  await host.sync(shop(run), "everything");
  return host;
}

const fails = (code: string, message?: RegExp) => (error: unknown) => {
  assert.ok(error instanceof SynclineError, String(error));
  assert.equal(error.code, code);
  if (message) assert.match(error.message, message);
  return true;
};

test("describe lists the functions with their descriptions and the SDK", () => {
  const described = JSON.parse(shop().describe());
  assert.deepEqual(described.sdk, { name: "@syncline/sdk", version: "0.1.0" });
  assert.deepEqual(described.functions[0], { kind: "sync", name: "everything", description: "All things" });
  const kinds = described.functions.map(({ kind, name }: { kind: string; name: string }) => `${kind} ${name}`);
  assert.deepEqual(kinds.slice(1), [
    "action create-customer",
    "action names",
    "webhook customer-changed",
    "lifecycle connection-validating",
  ]);
});

test("a function under the wrong kind is rejected with its name", () => {
  const wrong = { syncs: { issues: action(async () => 1) } } as never;
  assert.throws(() => integration(wrong), /`syncs\.issues` must be created with `sync\(\)`, but it is created with `action\(\)`/);
});

test("an unknown function is a failure", async () => {
  await assert.rejects(shop().invoke("sync", "orders", undefined), fails("unknown-function", /no sync `orders`/));
});

test("an action checks its input and output against the models", async () => {
  const host = new Host(project, "shop");
  assert.deepEqual(await host.action(shop(), "create-customer", { email: "a@example.com" }), {
    id: "cus_1",
    email: "a@example.com",
  });
  const wrong = host.action(shop(), "create-customer", { email: 42 });
  await assert.rejects(wrong, fails("invalid_action_input", /at \/email/));
  await assert.rejects(host.action(shop(undefined, () => [1]), "names"), fails("invalid_action_output", /at \/0/));
});

test("a webhook function receives headers in lower case and the body", async () => {
  const host = new Host(project, "shop");
  await host.webhook(shop(), "customer-changed", { headers: { "X-Email": "a@example.com" }, body: { id: "cus_9" } });
  assert.deepEqual(host.records("Customer"), [{ id: "cus_9", email: "a@example.com" }]);
});

test("a lifecycle function receives its event and can reject the connection", async () => {
  const rejected = new Host(project, "shop").lifecycle(shop(), "connection-validating");
  await assert.rejects(rejected, fails("invalid-input", /rejected in connection-validating/));
});

test("a writer saves, updates and deletes in the order of the calls, and counts", async () => {
  const host = await syncing(
    () => {
      const writer = new Writer<Everything>("Everything");
      writer.saveAll([everything, { ...everything, id: 8 }]);
      writer.update({ id: 8, address: { zip: "10115" } });
      writer.update({ id: 99, text: "ignored" });
      writer.delete(7);
      writer.checkpoint({ page: 3 });
      assert.deepEqual(writer.finish(), { added: 2, updated: 1, deleted: 1, unchanged: 0 });
    },
  );
  assert.deepEqual(host.records<Everything>("Everything").map(({ id, address }) => [id, address]), [
    [8, { street: "Main Street", zip: "10115" }],
  ]);
  assert.deepEqual(host.checkpoint(), { page: 3 });
  assert.equal(host.commits().length, 1);
});

test("a writer commits a batch when it is full", async () => {
  const host = await syncing(() => {
    const writer = new Writer<Everything>("Everything", { batchRecords: 2 });
    for (let id = 1; id <= 5; id += 1) writer.save({ ...everything, id });
    writer.finish();
  });
  assert.deepEqual(host.commits().map(({ changes }) => changes.length), [2, 2, 1]);
});

test("a function that loses changes fails", async () => {
  const forgets = () => new Writer<Everything>("Everything").save(everything);
  await assert.rejects(syncing(forgets), fails("unsaved-changes", /^1 change was not saved to `Everything` .*call `finish/));
  await assert.rejects(syncing(async () => forgets()), fails("unsaved-changes"), "an async function");
  const own = syncing(() => {
    forgets();
    throw new SynclineError("other", "another error");
  });
  await assert.rejects(own, fails("other"), "its own error is more important");
  await syncing(() => undefined);
});

test("every writer without `finish` is named with its number of changes", async () => {
  const forgets = () => {
    const things = new Writer<Everything>("Everything", { batchRecords: 2 });
    things.saveAll([everything, { ...everything, id: 8 }]);
    things.cursor("8");
    const entries = new Writer("Audit-Entry");
    entries.delete(1);
    entries.delete(2);
  };
  const lost = /^the checkpoint was not saved to `Everything`, and 2 changes were not saved to `Audit-Entry` when/;
  await assert.rejects(syncing(forgets), fails("unsaved-changes", lost));
});

test("a function that ends with a rejected batch fails, even if it ignores the error", async () => {
  const ignores = () => {
    const writer = new Writer("Everything");
    writer.save({ id: 1 });
    try {
      writer.finish();
    } catch {
      return;
    }
  };
  await assert.rejects(syncing(ignores), fails("unsaved-changes", /^1 change was not saved/));
});

test("records that do not match their model are rejected with index, path and problem", async () => {
  const wrong = { ...everything, address: { street: 5 } };
  const rejected = syncing(() => {
    const writer = new Writer("Everything");
    writer.saveAll([everything as never, wrong]);
    writer.finish();
  });
  await assert.rejects(rejected, (error: SynclineError) => {
    assert.equal(error.code, "invalid-records");
    const [details] = error.details as { index: number; path: string }[];
    assert.equal(details?.index, 1);
    assert.equal(details?.path, "/address/street");
    return true;
  });
});

test("every kind of type is checked", async () => {
  for (const [field, value] of Object.entries({
    id: 1.5,
    amount: "1",
    day: "1 March",
    at: "2026-03-01",
    state: "shut",
    customer: {},
    matrix: [["a"]],
    lines: [{ sku: "a" }],
    gaps: [1],
    parent: {},
    detail: { reason: 1 },
  })) {
    const rejected = syncing(() => {
      const writer = new Writer("Everything");
      writer.save({ ...everything, [field]: value });
      writer.finish();
    });
    await assert.rejects(rejected, fails("invalid-records"), field);
  }
});

test("a model with set_aside keeps bad records as dead letters", async () => {
  const host = await syncing(() => {
    const entries = new Writer("Audit-Entry");
    entries.saveAll([{ id: "1", kind: "a" }, { id: "2", kind: "a", more: true }]);
    entries.finish();
  });
  assert.equal(host.records("Audit-Entry").length, 1);
  assert.equal(host.deadLetters("Audit-Entry")[0]?.id, "2");
});

test("a model that the function does not list is rejected", async () => {
  const rejected = syncing(() => {
    const writer = new Writer("Customer");
    writer.save({ id: "1" });
    writer.finish();
  });
  await assert.rejects(rejected, fails("unknown-model", /it lists `Everything`, `Audit-Entry`/));
});

test("integers beyond 2^53 keep their digits", async () => {
  const host = await syncing(() => {
    const writer = new Writer("Everything");
    writer.save({ ...everything, id: 12345678901234567890n });
    writer.saveJson(JSON.stringify({ ...everything, amount: 0 }).replace('"amount":0', '"amount":1.10'));
    writer.finish();
  });
  assert.deepEqual(host.records("Everything").map(({ id }) => id), [12345678901234567890n, 7]);
});

test("stored records, checkpoint, metadata, variables and the run can be read", async () => {
  const seen: unknown[] = [];
  const host = await syncing(
    async () => {
      seen.push(records.get("Everything", [1, 2]), checkpoint.get(), checkpoint.cursor());
      connection.updateMetadata({ b: 2 });
      seen.push(connection.metadata(), connection.info().config, env.get("REGION"), env.all());
      seen.push(run.info().attempt, run.cancelled());
      assert.throws(() => connection.credentials(), fails("not-allowed"));
      run.progress(1, 2);
      log.info("hello", { a: 1 });
    },
    (host) => {
      host.keep("Everything", { id: 1 }).setCheckpoint({ cursor: "c" }).setMetadata({ a: 1 });
      host.setConnectionConfig({ subdomain: "x" }).setVariable("REGION", "eu").cancel();
    },
  );
  assert.deepEqual(seen, [
    [{ id: 1 }, undefined],
    { cursor: "c" },
    "c",
    { a: 1, b: 2 },
    { subdomain: "x" },
    "eu",
    { REGION: "eu" },
    1,
    true,
  ]);
  assert.deepEqual(host.log(), [{ level: "info", message: "hello", fields: { a: 1 } }]);
  assert.deepEqual(host.progress(), { done: 1, total: 2 });
  assert.deepEqual(host.metadata(), { a: 1, b: 2 });
});

test("a call outside of a function says what to do", () => {
  assert.throws(() => run.info(), fails("no-host", /in a unit test, run the function with a `Host`/));
});
