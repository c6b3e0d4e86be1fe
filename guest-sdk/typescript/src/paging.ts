/** Lists that the provider returns in pages, for all common kinds of paging. */
import { SynclineError } from "./error.ts";
import { send } from "./fetch.ts";
import type { HostRequest } from "./host.ts";
import { ok, unexpected } from "./response.ts";
import * as json from "./json.ts";
import * as log from "./log.ts";
import { isFull } from "./run.ts";

/** Places in a response are JSON pointers: `/data` is the key `data`, and the empty text is the whole response. */
export interface PagingOptions {
  /** The place of the array of items. By default, the response itself is the array. */
  items?: string;
  /** The place of a flag that is `false` on the last page, so that no empty last page is requested. */
  more?: string;
  /**
   * The provider leaves out the place of the cursor, or of `more`, if there is only one page. Otherwise, such a first
   * page is suspicious: a wrong place would end every list after its first page. The function gets a warning in its log
   * or, in a full run, the error `pagination-place-missing`.
   */
  mayLackPlace?: boolean;
  /** The first page: a `page.next` from the checkpoint of an earlier run. `undefined` is the start of the list. */
  start?: string | undefined;
}

/** The items of a page. `next` is the position of the next page, if there is one. */
export type Page<T> = T[] & { readonly next?: string };

type Step =
  | { kind: "link" }
  | { kind: "cursor"; at: string; parameter: string }
  | { kind: "last-id"; parameter: string; id: string }
  | { kind: "offset"; parameter: string }
  | { kind: "page-number"; parameter: string }
  | { kind: "keyset"; at: string; parameter: string; id: string; idParameter: string | undefined };

/** The kind of paging of a list. */
export class Paging {
  readonly step: Step;
  readonly options: PagingOptions;

  private constructor(step: Step, options: PagingOptions) {
    this.step = step;
    this.options = options;
  }

  /** The response's header `Link` contains the next page with `rel="next"`. */
  static link(options: PagingOptions = {}): Paging {
    return new Paging({ kind: "link" }, options);
  }

  /** The response contains a cursor at the place `at`, which is sent as the query parameter `parameter`. */
  static cursor(at: string, parameter: string, options: PagingOptions = {}): Paging {
    return new Paging({ kind: "cursor", at, parameter }, options);
  }

  /** The next page follows the last item's id, which is sent as `parameter`. `id` is its place in an item. */
  static lastId(parameter: string, options: PagingOptions & { id?: string } = {}): Paging {
    return new Paging({ kind: "last-id", parameter, id: options.id ?? "/id" }, options);
  }

  /** The query parameter `parameter` is the number of items to skip. */
  static offset(parameter: string, options: PagingOptions = {}): Paging {
    return new Paging({ kind: "offset", parameter }, options);
  }

  /** The query parameter `parameter` is the page number, from 1 unless `start` sets another one. */
  static pageNumber(parameter: string, options: PagingOptions = {}): Paging {
    return new Paging({ kind: "page-number", parameter }, options);
  }

  /**
   * The list is sorted by the value at the place `at` in each item, such as `/updated_at`. The last item's value is sent
   * as the query parameter `parameter`.
   *
   * With `idParameter`, the last item's id is sent as well, and the provider continues after that item. Without it, the
   * next page begins with the items that have this value, and the items that an earlier page contained are dropped;
   * their ids, at the place `id`, tell them apart. Such a list cannot be read if more items share a value than a page
   * holds: the error is `pagination-loop`.
   */
  static keyset(
    at: string,
    parameter: string,
    options: PagingOptions & { id?: string; idParameter?: string } = {},
  ): Paging {
    const { id = "/id", idParameter } = options;
    return new Paging({ kind: "keyset", at, parameter, id, idParameter }, options);
  }
}

/** Sends the request repeatedly. Ends after a page without a next one, and before an empty page. */
export async function* fetchPages<T>(
  request: HostRequest,
  paging: Paging,
): AsyncGenerator<Page<T>, void, undefined> {
  const list = new List(request, paging);
  if (paging.options.start !== undefined) list.follow(paging.options.start);
  for (;;) {
    const response = await ok(send({ ...list.request }));
    const page = list.read(response, parse(response, await response.text()));
    if (page.length === 0 && page.next === undefined) return;
    if (page.length > 0) yield page as Page<T>;
    if (page.next === undefined) return;
    list.follow(page.next);
  }
}

function parse(response: Response, text: string): unknown {
  try {
    return json.parse(text);
  } catch (error) {
    throw unexpected(response, (error as Error).message);
  }
}

/** A list while it is read. */
class List {
  request: HostRequest;
  readonly #paging: Paging;
  /** The current value of an offset or page number. */
  #position: number;
  #pages = 0;
  readonly #followed = new Set<string>();
  #previous: string | undefined;
  /** Ids of the items that the next page of a keyset may repeat. */
  #seen = new Set<string>();
  #longest = 0;

  constructor(request: HostRequest, paging: Paging) {
    this.request = request;
    this.#paging = paging;
    this.#position = paging.step.kind === "page-number" ? 1 : 0;
  }

  read(response: Response, body: unknown): Page<unknown> {
    const { step, options } = this.#paging;
    const items = find(body, options.items ?? "");
    if (!Array.isArray(items)) {
      throw unexpected(response, `expected an array at \`${options.items ?? ""}\``);
    }
    this.#pages += 1;
    this.#longest = Math.max(this.#longest, items.length);
    this.#refuseSamePage(items);
    const isLast = items.length === 0 || (options.more !== undefined && this.#noMore(body, options.more));
    const next = isLast ? undefined : this.#next(response, body, items);
    if (step.kind !== "keyset" || step.idParameter !== undefined) return pageOf(items, next);
    return this.#withoutRepeated(response, step, items, next);
  }

  #noMore(body: unknown, place: string): boolean {
    const more = find(body, place);
    if (more === undefined) this.#warnAbsent(place);
    return more === false;
  }

  #next(response: Response, body: unknown, items: unknown[]): string | undefined {
    const { step } = this.#paging;
    switch (step.kind) {
      case "link":
        return nextLink(response.headers.get("link"));
      case "cursor": {
        const cursor = textAt(response, body, step.at);
        if (cursor === undefined && find(body, step.at) === undefined) this.#warnAbsent(step.at);
        return cursor;
      }
      case "last-id":
        return this.#ofLast(response, items, step.id);
      case "offset":
        return String(this.#position + items.length);
      case "page-number":
        return String(this.#position + 1);
      case "keyset": {
        const value = this.#ofLast(response, items, step.at);
        return step.idParameter === undefined ? value : JSON.stringify([value, this.#ofLast(response, items, step.id)]);
      }
    }
  }

  #ofLast(response: Response, items: unknown[], place: string): string {
    const value = textAt(response, items.at(-1), place);
    if (value === undefined) throw unexpected(response, `the last item of the page has no \`${place}\``);
    return value;
  }

  /** Changes the request to the next page. */
  follow(next: string): void {
    const { step } = this.#paging;
    const repeats = step.kind === "keyset" && step.idParameter === undefined;
    if (this.#followed.has(next) && !repeats) throw this.#loop(`points to \`${next}\` a second time`);
    this.#followed.add(next);
    switch (step.kind) {
      case "link":
        this.request = { ...this.request, url: next, query: [] };
        return;
      case "offset":
      case "page-number":
        if (!/^\d+$/.test(next)) {
          throw new SynclineError("invalid-paging", `the start of the list must be a number, got \`${next}\``);
        }
        this.#position = Number(next);
        break;
      case "keyset":
        if (step.idParameter !== undefined) {
          const [value, id] = valueAndId(next);
          this.#setQuery(step.parameter, value);
          this.#setQuery(step.idParameter, id);
          return;
        }
    }
    this.#setQuery(step.parameter, next);
  }

  #setQuery(name: string, value: string): void {
    const query = this.request.query.filter(([present]) => present !== name);
    this.request = { ...this.request, query: [...query, [name, value]] };
  }

  /** Removes the items of the pages before. They have the value of the sort field at which this page begins. */
  #withoutRepeated(
    response: Response,
    step: { at: string; id: string },
    items: unknown[],
    next: string | undefined,
  ): Page<unknown> {
    const ids = items.map((item) => {
      const id = textAt(response, item, step.id);
      if (id === undefined) throw unexpected(response, `an item of the page has no \`${step.id}\``);
      return id;
    });
    const fresh = items.filter((_item, index) => !this.#seen.has(ids[index] as string));
    if (fresh.length === 0 && items.length > 0) {
      if (this.#pages > 1 && items.length > 1 && items.length >= this.#longest) {
        const message = `returned a whole page with the same \`${step.at}\`; request longer pages`;
        throw this.#loop(message);
      }
      return pageOf([], undefined);
    }
    const last = next;
    this.#seen = new Set(
      ids.filter((_id, index) => textAt(response, items[index], step.at) === last || this.#seen.has(_id)),
    );
    return pageOf(fresh, next);
  }

  /** A counter never repeats. A provider that ignores it is detected because it returns the same page again. */
  #refuseSamePage(items: unknown[]): void {
    const { kind } = this.#paging.step;
    if ((kind !== "offset" && kind !== "page-number") || items.length === 0) return;
    const page = json.stringify(items);
    if (page === this.#previous) throw this.#loop("returned the same page twice");
    this.#previous = page;
  }

  #warnAbsent(place: string): void {
    if (this.#pages > 1 || this.#paging.options.mayLackPlace) return;
    const target = `${this.request.method} ${this.request.url}`;
    const message =
      `${target} returned nothing at \`${place}\` on the first page, so the list may end too early; correct the place, ` +
      "or set `mayLackPlace` if the provider leaves it out";
    if (isFull()) throw new SynclineError("pagination-place-missing", message);
    log.warn(message);
  }

  #loop(how: string): SynclineError {
    const target = `${this.request.method} ${this.request.url}`;
    const message = `${target} ${how} after ${this.#pages} pages, so the list would never end`;
    return new SynclineError("pagination-loop", message);
  }
}

/** Parses the position of a keyset with an id parameter. */
function valueAndId(position: string): [string, string] {
  let parsed: unknown;
  try {
    parsed = JSON.parse(position);
  } catch {
    parsed = undefined;
  }
  if (Array.isArray(parsed) && parsed.length === 2 && parsed.every((part) => typeof part === "string")) {
    return parsed as [string, string];
  }
  const message = `the start of the list must be a JSON array of the last item's value and id, got \`${position}\``;
  throw new SynclineError("invalid-paging", message);
}

function pageOf(items: unknown[], next: string | undefined): Page<unknown> {
  return next === undefined ? items : Object.assign(items, { next });
}

/** Returns the value at a JSON pointer (RFC 6901). */
export function find(value: unknown, pointer: string): unknown {
  const [first, ...segments] = pointer.split("/");
  if (first !== "") {
    const message = `\`${pointer}\` is not a JSON pointer; a pointer is empty or starts with a slash, as in \`/data\``;
    throw new SynclineError("invalid-paging", message);
  }
  let found: unknown = value;
  for (const segment of segments) {
    const key = segment.replaceAll("~1", "/").replaceAll("~0", "~");
    if (typeof found !== "object" || found === null || !Object.hasOwn(found, key)) return undefined;
    found = (found as Record<string, unknown>)[key];
  }
  return found;
}

function textAt(response: Response, value: unknown, pointer: string): string | undefined {
  const found = find(value, pointer);
  if (found === undefined || found === null || found === "") return undefined;
  if (typeof found === "string") return found;
  if (typeof found === "number" || typeof found === "bigint") return String(found);
  throw unexpected(response, `the value at \`${pointer}\` is neither a string nor a number`);
}

/** Returns the target of the first link with the relation `next` in a header `Link` (RFC 8288). */
export function nextLink(header: string | null): string | undefined {
  // A comma separates links, but it can also occur in a target or in a quoted string.
  for (const [, target, parameters] of (header ?? "").matchAll(/<([^>]*)>((?:"(?:[^"\\]|\\.)*"|[^",])*)/g)) {
    for (const [, relations] of (parameters ?? "").matchAll(/;\s*rel\s*=\s*("(?:[^"\\]|\\.)*"|[^;\s]+)/gi)) {
      if (relations?.replaceAll('"', "").toLowerCase().split(/\s+/).includes("next")) return target;
    }
  }
  return undefined;
}
