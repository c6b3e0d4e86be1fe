// The globals of components, compared with those of Node.js.
import assert from "node:assert/strict";
import { test } from "node:test";
import { createConsole, format } from "../src/runtime/console.ts";
import * as events from "../src/runtime/events.ts";
import { ComponentHeaders, ComponentRequest, ComponentResponse } from "../src/runtime/fetch-types.ts";
import { ComponentPromise, runJobs, takeUnhandled } from "../src/runtime/promise.ts";
import { originalStack, type SourceMap } from "../src/runtime/source-map.ts";
import { structuredClone as cloned } from "../src/runtime/structured-clone.ts";
import { ComponentTextDecoder, ComponentTextEncoder } from "../src/runtime/text.ts";
import { ComponentURL, ComponentURLSearchParams } from "../src/runtime/url.ts";

type PromiseClass = typeof Promise;

/** Settles promises in many ways, and records the order. */
async function exercise(Class: PromiseClass, finish: () => Promise<void> | void): Promise<unknown[]> {
  const order: unknown[] = [];
  const note = (name: string) => (value: unknown) => void order.push([name, value instanceof Error ? value.message : value]);
  const both = (name: string, promise: Promise<unknown>) => void promise.then(note(`${name} ok`), note(`${name} error`));
  const later = Class.resolve(1);
  both("value", later);
  both("promise", new Class((resolve) => resolve(later)));
  both("thenable", Class.resolve({ then: (resolve: (value: number) => void) => resolve(2) }));
  both("thrown", new Class(() => { throw new Error("a"); }));
  both("rejected", Class.reject("b"));
  both("caught", Class.reject("c").catch((reason) => `${reason}!`));
  both("finally", Class.resolve(3).finally(() => 4));
  both("finally throws", Class.resolve(3).finally(() => { throw new Error("d"); }));
  both("all", Class.all([1, Class.resolve(2), { then: (resolve: (value: number) => void) => resolve(3) }]));
  both("all of none", Class.all([]));
  both("all with error", Class.all([1, Class.reject("e")]));
  both("settled", Class.allSettled([1, Class.reject("f")]));
  both("any", Class.any([Class.reject("g"), Class.resolve(5)]));
  both("any fails", Class.any([Class.reject("h")]).catch((error: AggregateError) => error.errors));
  both("race", Class.race([new Class(() => undefined), Class.resolve(6), Class.reject("i")]));
  both("twice", new Class((resolve, reject) => { resolve(7); reject(8); }));
  both("chain", Class.resolve().then(() => Class.resolve(9)).then((value) => value + 1));
  both("itself", (() => { const own: Promise<unknown> = Class.resolve().then(() => own); return own; })().catch((error) => error.constructor.name));
  await finish();
  return order;
}

test("promises settle in the same order as those of Node.js", async () => {
  const expected = await exercise(Promise, () => new Promise((resolve) => setTimeout(resolve, 10)));
  assert.equal(expected.length, 18);
  assert.deepEqual(await exercise(ComponentPromise as unknown as PromiseClass, runJobs), expected);
});

test("rejections without a handler are reported once", () => {
  void ComponentPromise.reject("nobody");
  ComponentPromise.reject("handled").catch(() => undefined);
  runJobs();
  assert.deepEqual([takeUnhandled(), takeUnhandled()], [["nobody"], undefined]);
});

test("many jobs are run", () => {
  let promise = ComponentPromise.resolve(0) as ComponentPromise<number>;
  for (let step = 0; step < 10_000; step += 1) promise = promise.then((value) => value + 1);
  let result = 0;
  promise.then((value) => (result = value));
  runJobs();
  assert.equal(result, 10_000);
});

test("requests that wait at the same time are sent together, and timers run in order", () => {
  let time = 0;
  const sent: unknown[][] = [];
  const outside: events.Outside<string, string> = {
    send: (requests) => {
      sent.push(requests);
      return requests.map((request) => (request === "bad" ? { failure: "no" } : { ok: request.toUpperCase() }));
    },
    sleep: (milliseconds) => void (time += milliseconds),
  };
  events.setClock(() => time);
  const order: unknown[] = [];
  const global = globalThis.Promise;
  globalThis.Promise = ComponentPromise as unknown as PromiseConstructor;
  try {
    events.startTimer(() => order.push(["late", time]), 20, false);
    events.startTimer(() => order.push(["early", time]), 10, false);
    const stopped = events.startTimer(() => order.push("stopped"), 5, false);
    events.stopTimer(stopped);
    const pending = ["a", "b", "bad"].map((name) => events.queueRequest<string, string>(name));
    Promise.allSettled(pending).then((results) => order.push(results.map((result) => Object.values(result)[1])));
    assert.equal(events.runUntil(() => order.length === 3, outside, () => undefined), true);
    assert.equal(events.runUntil(() => false, outside, () => undefined), false);
  } finally {
    globalThis.Promise = global;
  }
  assert.deepEqual(sent, [["a", "b", "bad"]]);
  assert.deepEqual(order, [["A", "B", "no"], ["early", 10], ["late", 20]]);
});

test("text is encoded and decoded like in Node.js", () => {
  for (const text of ["", "abc", "é€😀", "a\ud800b", "x".repeat(20_000) + "ü"]) {
    const bytes = new TextEncoder().encode(text);
    assert.deepEqual([...new ComponentTextEncoder().encode(text)], [...bytes]);
    assert.equal(new ComponentTextDecoder().decode(bytes), new TextDecoder().decode(bytes));
  }
  for (const bytes of [[0xff], [0xc3], [0xe2, 0x82], [0xed, 0xa0, 0x80], [0xf0, 0x9f, 0x98, 0x41], [0xc0, 0x80], [0xef, 0xbb, 0xbf, 0x61]]) {
    const array = Uint8Array.from(bytes);
    assert.equal(new ComponentTextDecoder().decode(array), new TextDecoder().decode(array), String(bytes));
  }
  assert.throws(() => new ComponentTextDecoder("utf-8", { fatal: true }).decode(Uint8Array.of(0xff)), TypeError);
  const decoder = new ComponentTextDecoder();
  const parts = [...new TextEncoder().encode("a€😀")].map((byte) => decoder.decode(Uint8Array.of(byte), { stream: true }));
  assert.equal(parts.join("") + decoder.decode(), "a€😀");
});

test("URLs are parsed like in Node.js", () => {
  const show = (url: URL | ComponentURL) =>
    ["href", "origin", "protocol", "username", "password", "host", "hostname", "port", "pathname", "search", "hash"].map(
      (part) => url[part as "href"],
    );
  for (const [url, base] of [
    ["https://api.example.com"],
    ["HTTPS://User:p%40ss@Api.Example.com:443/a/./b/../c?x=1 2&y='z'#f g"],
    ["http://localhost:8080/a?b"],
    ["https:\\\\example.com\\a\\b"],
    ["/v1/x?y#z", "https://example.com/a/b?c#d"],
    ["../x", "https://example.com/a/b/c"],
    ["x/%2E%2e/y z/é?q=é", "https://example.com/a/b"],
    ["?q=1", "https://example.com/a?b#c"],
    ["#h", "https://example.com/a?b"],
    ["", "https://example.com/a?b#c"],
    ["//other.example/p", "https://example.com/a"],
    ["http://[::1]:3000/"],
    ["mailto:a@example.com"],
    ["urn:syncline:x?y#z"],
    ["https://example.com/a\tb\n"],
    ["https://example.com:0080/"],
    ["https://example.com/a/.."],
    ["https://example.com/{a}`b`|cd\"<e>"],
  ] as [string, string?][]) {
    assert.deepEqual(show(new ComponentURL(url, base)), show(new URL(url, base)), `${url} ${base ?? ""}`);
  }
  for (const url of ["", "/a", "https://", "https://a b/", "https://a:99999/", "nothing"]) {
    assert.throws(() => new ComponentURL(url), TypeError, url);
    assert.equal(ComponentURL.canParse(url), URL.canParse(url));
  }
  for (const Class of [URL, ComponentURL]) {
    const url = new Class("https://example.com/a?x=1");
    url.searchParams.append("y", "a&b");
    url.pathname = "b c";
    url.hash = "h";
    url.port = "8443";
    assert.equal(url.href, "https://example.com:8443/b%20c?x=1&y=a%26b#h");
    url.search = "?z=3";
    assert.equal(url.searchParams.get("z"), "3");
  }
});

test("URLSearchParams works like in Node.js", () => {
  for (const init of ["?a=1&b=2&a=3", "x=%zz&y=%e2%82%ac+ü&=&z", { k: "v w" }, [["a", "~!'()*"]]]) {
    const [ours, theirs] = [new ComponentURLSearchParams(init as string), new URLSearchParams(init as string)];
    assert.deepEqual([[...ours], ours.toString(), ours.getAll("a")], [[...theirs], theirs.toString(), theirs.getAll("a")]);
    for (const params of [ours, theirs]) {
      params.set("a", "9");
      params.delete("b");
      params.append("c", "1");
      params.sort();
    }
    assert.equal(ours.toString(), theirs.toString());
  }
});

test("Headers, Request and Response work like in Node.js", async () => {
  const headers = new ComponentHeaders([["Set-Cookie", "a"], ["X-B", " 1 "], ["set-cookie", "b"], ["x-b", "2"]]);
  assert.deepEqual([...headers], [["set-cookie", "a"], ["set-cookie", "b"], ["x-b", "1, 2"]]);
  assert.throws(() => headers.set("a b", "c"), TypeError);
  assert.throws(() => headers.set("a", "b\nc"), TypeError);
  const response = new ComponentResponse('{"a":1}', { status: 201, headers: { "x-a": "b" } });
  assert.deepEqual([response.ok, response.status, response.headers.get("content-type")], [true, 201, "text/plain;charset=UTF-8"]);
  const copy = response.clone();
  assert.deepEqual(await response.json(), { a: 1 });
  await assert.rejects(response.text(), TypeError);
  assert.equal(await copy.text(), '{"a":1}');
  assert.throws(() => copy.body, /no streams/);
  assert.deepEqual(await ComponentResponse.json([1]).json(), [1]);
  const request = new ComponentRequest("https://example.com", { method: "post", body: "x" });
  assert.deepEqual([request.method, await new ComponentRequest(request).text()], ["POST", "x"]);
});

test("structuredClone copies nested values and cycles", () => {
  const value: Record<string, unknown> = { date: new Date(0), map: new Map([[{ a: 1 }, new Set([2])]]), bytes: Uint8Array.of(1, 2) };
  value.self = value;
  assert.deepEqual(cloned(value), value);
  assert.notEqual(cloned(value).map, value.map);
  assert.throws(() => cloned(() => 1), DOMException);
});

test("console writes lines with levels", () => {
  const lines: unknown[] = [];
  const console = createConsole((level, message) => lines.push([level, message])) as Console;
  console.log("a %s is %d%%", "b", 1.5, { c: [1n] });
  console.error("no");
  const cycle: { self?: unknown } = {};
  cycle.self = cycle;
  assert.deepEqual(lines, [["info", 'a b is 1% {"c":["1n"]}'], ["error", "no"]]);
  assert.equal(format([cycle, new Map([[1, 2]]), undefined]), '{"self":"[circular]"} [[1,2]] undefined');
});

test("a stack shows the places in the sources", () => {
  // Line 2, columns 1 and 5, come from a.ts:3:1 and node_modules/b/c.js:1:1.
  const map: SourceMap = { sources: ["src/a.ts", "node_modules/b/c.js"], mappings: ";AAEA,IAAC" };
  map.mappings = ";AAEA,ICFA";
  const stack = "    at inner (componentize-qjs:user.js:2:6)\n    at next (native)\n    at outer (componentize-qjs:user.js:2:2)\n";
  assert.deepEqual(originalStack(map, stack), {
    frames: ["at inner (node_modules/b/c.js:1:1)", "at outer (src/a.ts:3:1)"],
    place: "src/a.ts:3:1",
  });
});
