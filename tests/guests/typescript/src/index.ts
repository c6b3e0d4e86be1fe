// Functions that tests of every language call.
import { action, checkpoint, http, integration, ok, Paging, run, sync, Writer } from "@syncline/sdk";

interface Request {
  method?: string | null;
  url: string;
  headers?: Record<string, string> | null;
  body?: string | null;
}

/** With the ordinary `fetch`. */
const fetchUrl = action("Sends the request from its input and returns the response.", async (request: Request) => {
  const { method, url, headers, body } = request;
  const response = await fetch(url, { method: method ?? "GET", headers: headers ?? {}, body: body ?? null });
  return { status: response.status, headers: Object.fromEntries(response.headers), body: await response.text() };
});

const fail = action("Crashes.", async (message: string) => {
  await ok(fetch("/before"));
  console.log(`about to fail with ${message}`);
  throw new TypeError(message);
});

const refuse = action("Ends with the provider's error.", async () => {
  await ok(fetch("/refuse?403"));
});

const loseChanges = action("Returns without saving a change.", async () => {
  new Writer("Item").delete(1);
});

const items = sync("Saves a list.", async () => {
  const writer = new Writer<{ id: number; name: string }>("Item");
  const paging = Paging.cursor("/next", "after", { items: "/items", start: checkpoint.cursor() });
  for await (const page of http.pages<{ id: number; name: string }>("/list", paging)) {
    writer.saveAll(page);
    if (page.next !== undefined) writer.cursor(page.next);
  }
  console.info(`full: ${run.isFull()}`);
  writer.finish();
});

export default integration({ syncs: { items }, actions: { fetch: fetchUrl, fail, refuse, "lose-changes": loseChanges } });
