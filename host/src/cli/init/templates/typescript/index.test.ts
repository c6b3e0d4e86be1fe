import assert from "node:assert/strict";
import { test } from "node:test";
import { Host } from "@syncline/sdk/testing";
import functions from "../src/index.ts";
import { project, type @@Model@@ } from "../src/models.ts";

test("every page is saved", async () => {
  const host = new Host(project);
  const newest: @@Model@@ = @@second@@;
  const oldest: @@Model@@ = @@first@@;
  host.answer("GET @@list@@@@query_line@@", [newest], { headers: { link: '</next>; rel="next"' } });
  host.answer("GET /next", [oldest]);

  await host.sync(functions, "@@models@@");

  assert.equal(host.records<@@Model@@>("@@Model@@").length, 2);
  assert.deepEqual(host.checkpoint(), { cursor: newest.updated_at });
});
