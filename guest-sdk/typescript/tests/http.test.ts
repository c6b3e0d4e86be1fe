import assert from "node:assert/strict";
import { test } from "node:test";
import { http, integration, json, ok, Paging, sync, SynclineError, type PagingOptions } from "@syncline/sdk";
import { Host } from "@syncline/sdk/testing";
import { project } from "./generated/models.ts";

/** Runs a function with a fake host. */
async function running(run: () => unknown, prepare: (host: Host) => void): Promise<Host> {
  const host = new Host(project, "files");
  prepare(host);
  await host.sync(integration({ syncs: { invoices: sync(run) } }), "invoices");
  return host;
}

test("requests have a query, headers and bodies", async () => {
  const host = await running(
    async () => {
      assert.deepEqual(await http.get("/a", { query: { x: 1, list: ["a", "b"], no: undefined } }).json(), { a: 1 });
      await http.post("/b", { json: { n: 1n << 64n }, headers: { "x-y": "z" } });
      await http.put("/c", { form: { address: { city: "Köln" }, items: ["a", { b: true }], no: null } });
      await http.delete("/d");
    },
    (host) => {
      host.answer("GET /a?x=1&list=a&list=b", { a: 1 });
      for (const line of ["POST /b", "PUT /c", "DELETE /d"]) host.answer(line, "", { status: 204 });
    },
  );
  const [, post, put] = host.requests();
  assert.deepEqual(post, {
    line: "POST /b",
    headers: { "x-y": "z", "content-type": "application/json" },
    body: '{"n":18446744073709551616}',
  });
  assert.equal(put?.body, "address%5Bcity%5D=K%C3%B6ln&items%5B0%5D=a&items%5B1%5D%5Bb%5D=true");
});

test("a status of 400 or above is a provider-http-error with status, headers and body", async () => {
  await running(
    async () => {
      const response = await http.get("/a");
      assert.equal(response.status, 404);
      for (const failing of [http.get("/a").json(), ok(fetch("/a"))]) {
        await assert.rejects(failing, (error: SynclineError) => {
          assert.equal(error.code, "provider-http-error");
          assert.equal(error.message, "GET /a returned status 404");
          const headers = { "content-type": "application/json", "x-a": "b" };
          assert.deepEqual(error.details, { status: 404, headers, body: '{"message":"no"}' });
          return true;
        });
      }
    },
    (host) => host.answer("GET /a", { message: "no" }, { status: 404, headers: { "x-a": "b", "set-cookie": "secret" } }),
  );
});

test("a body that is not JSON names the request", async () => {
  const failing = running(() => http.get("/a").json(), (host) => host.answer("GET /a", "<html>"));
  await assert.rejects(failing, (error: SynclineError) => {
    assert.equal(error.code, "unexpected-response");
    return /^GET \/a returned an unexpected body: /.test(error.message);
  });
});

test("the ordinary fetch goes to the host", async () => {
  const host = await running(
    async () => {
      const response = await fetch(new Request("https://api.example.com/a?b=c", { method: "POST", body: "hi" }));
      assert.deepEqual([response.status, response.url, await response.json()], [201, "https://api.example.com/a?b=c", [1]]);
      await fetch("/form", { method: "POST", body: new URLSearchParams({ a: "1 2" }) });
    },
    (host) => host.answer("POST https://api.example.com/a?b=c", [1], { status: 201 }).answer("POST /form", ""),
  );
  assert.equal(host.requests()[0]?.body, "hi");
  assert.match(host.requests()[1]?.headers["content-type"] ?? "", /^application\/x-www-form-urlencoded/);
});

type Item = { id: number; at?: string };

async function pagesOf(paging: Paging, prepare: (host: Host) => void): Promise<{ ids: number[][]; next: (string | undefined)[]; host: Host }> {
  const ids: number[][] = [];
  const next: (string | undefined)[] = [];
  const host = await running(async () => {
    for await (const page of http.pages<Item>("/l", paging, { query: { limit: 2 } })) {
      ids.push(page.map(({ id }) => id));
      next.push(page.next);
    }
  }, prepare);
  return { ids, next, host };
}

const items = (...ids: number[]) => ids.map((id) => ({ id }));

test("link paging follows the header", async () => {
  const { ids } = await pagesOf(Paging.link(), (host) => {
    const link = '<https://a.example/l?page=1,2>; title="x, y"; rel="prev", <https://a.example/l?page=2>; rel="last next"';
    host.answer("GET /l?limit=2", items(1, 2), { headers: { Link: link } });
    host.answer("GET https://a.example/l?page=2", items(3));
  });
  assert.deepEqual(ids, [[1, 2], [3]]);
});

test("cursor paging sends the cursor, and can start at one", async () => {
  const options: PagingOptions = { items: "/data" };
  const prepare = (host: Host) => {
    host.answer("GET /l?limit=2", { data: items(1), meta: { next: "b" } });
    host.answer("GET /l?limit=2&after=b", { data: items(2), meta: { next: null } });
  };
  const { ids, next } = await pagesOf(Paging.cursor("/meta/next", "after", options), prepare);
  assert.deepEqual([ids, next], [[[1], [2]], ["b", undefined]]);
  const later = await pagesOf(Paging.cursor("/meta/next", "after", { ...options, start: "b" }), prepare);
  assert.deepEqual(later.ids, [[2]]);
});

test("a place that is absent on the first page is reported in the log", async () => {
  const { host } = await pagesOf(Paging.cursor("/meta/nxt", "after", { items: "/data" }), (host) =>
    host.answer("GET /l?limit=2", { data: items(1), meta: { next: "b" } }),
  );
  assert.match(host.log()[0]?.message ?? "", /nothing at `\/meta\/nxt` on the first page/);
});

test("a place that is absent on the first page fails a full run", async () => {
  const place = (mayLackPlace: boolean) =>
    pagesOf(Paging.cursor("/meta/nxt", "after", { items: "/data", mayLackPlace }), (host) =>
      host.runFully().answer("GET /l?limit=2", { data: items(1), meta: { next: "b" } }),
    );
  await assert.rejects(place(false), { code: "pagination-place-missing" });
  assert.deepEqual((await place(true)).ids, [[1]]);
});

test("last id, offset and page number", async () => {
  const lastId = await pagesOf(Paging.lastId("after", { items: "/data", more: "/more" }), (host) => {
    host.answer("GET /l?limit=2", { data: items(1, 2), more: true });
    host.answer("GET /l?limit=2&after=2", { data: items(3), more: false });
  });
  assert.deepEqual(lastId.ids, [[1, 2], [3]]);
  const offset = await pagesOf(Paging.offset("skip"), (host) => {
    host.answer("GET /l?limit=2", items(1, 2)).answer("GET /l?limit=2&skip=2", items(3)).answer("GET /l?limit=2&skip=3", []);
  });
  assert.deepEqual(offset.ids, [[1, 2], [3]]);
  const number = await pagesOf(Paging.pageNumber("page", { start: "2" }), (host) => {
    host.answer("GET /l?limit=2&page=2", items(3)).answer("GET /l?limit=2&page=3", []);
  });
  assert.deepEqual(number.ids, [[3]]);
});

test("keyset paging with an id parameter continues after the last item", async () => {
  const { ids } = await pagesOf(Paging.keyset("/at", "since", { idParameter: "after_id" }), (host) => {
    host.answer("GET /l?limit=2", [{ id: 1, at: "a" }, { id: 2, at: "a" }]);
    host.answer("GET /l?limit=2&since=a&after_id=2", [{ id: 3, at: "b" }]);
    host.answer("GET /l?limit=2&since=b&after_id=3", []);
  });
  assert.deepEqual(ids, [[1, 2], [3]]);
});

test("keyset paging without an id parameter removes repeated items", async () => {
  const { ids } = await pagesOf(Paging.keyset("/at", "since"), (host) => {
    host.answer("GET /l?limit=2", [{ id: 1, at: "a" }, { id: 2, at: "b" }]);
    host.answer("GET /l?limit=2&since=b", [{ id: 2, at: "b" }, { id: 3, at: "c" }]);
    host.answer("GET /l?limit=2&since=c", [{ id: 3, at: "c" }]);
  });
  assert.deepEqual(ids, [[1, 2], [3]]);
});

test("a keyset with an id parameter refuses a position of another kind", async () => {
  const paging = Paging.keyset("/at", "since", { idParameter: "after_id", start: "a" });
  await assert.rejects(pagesOf(paging, () => {}), (error: SynclineError) => error.code === "invalid-paging");
});

test("keyset paging ends with a page of repeated items", async () => {
  const { ids } = await pagesOf(Paging.keyset("/at", "since"), (host) => {
    host.answer("GET /l?limit=2", [{ id: 1, at: "a" }, { id: 2, at: "b" }, { id: 3, at: "c" }]);
    host.answer("GET /l?limit=2&since=c", [{ id: 3, at: "c" }, { id: 4, at: "c" }]);
  });
  assert.deepEqual(ids, [[1, 2, 3], [4]]);
});

test("keyset paging fails if a whole page has one value", async () => {
  const stuck = pagesOf(Paging.keyset("/at", "since"), (host) => {
    host.answer("GET /l?limit=2", [{ id: 1, at: "a" }, { id: 2, at: "a" }]);
    host.answer("GET /l?limit=2&since=a", [{ id: 1, at: "a" }, { id: 2, at: "a" }]);
  });
  await assert.rejects(stuck, (error: SynclineError) => error.code === "pagination-loop");
});

test("a list that never ends is a pagination-loop", async () => {
  const loops: [Paging, (host: Host) => void][] = [
    [Paging.cursor("/next", "after", { items: "/data" }), (host) => {
      host.answer("GET /l?limit=2", { data: items(1), next: "b" });
      host.answer("GET /l?limit=2&after=b", { data: items(2), next: "b" });
    }],
    [Paging.pageNumber("page"), (host) => {
      host.answer("GET /l?limit=2", items(1)).answer("GET /l?limit=2&page=2", items(1));
    }],
  ];
  for (const [paging, prepare] of loops) {
    await assert.rejects(pagesOf(paging, prepare), (error: SynclineError) => error.code === "pagination-loop");
  }
});

test("JSON keeps integers beyond 2^53 and all other values", () => {
  for (const text of [
    '{"a":12345678901234567890,"b":-98765432109876543210,"c":[1e3,0.5,9007199254740991]}',
    '"\\u0000#12345678901234567890"',
    '["\\u0000#1","\\\\u0000#12345678901234567890",12345678901234567890]',
  ]) {
    const written = json.stringify(json.parse(text));
    assert.equal(written, text.replace("1e3", "1000"));
  }
  assert.deepEqual(json.parse("[12345678901234567890]"), [12345678901234567890n]);
  assert.equal(json.stringify(undefined), "null");
});
