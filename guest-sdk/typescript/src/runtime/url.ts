/** `URL` and `URLSearchParams` for the schemes that functions request. Hosts must be in ASCII. */
import { decodeUtf8, encodeUtf8 } from "./text.ts";

const DEFAULT_PORTS: Record<string, string> = { "http:": "80", "https:": "443", "ws:": "80", "wss:": "443", "ftp:": "21" };

/** Percent-encodes the characters of a set, and all that are not printable ASCII. */
function encode(text: string, set: RegExp): string {
  return text.replace(/[^\x21-\x7e]|["<>]/gu, percent).replace(set, percent);
}

function percent(character: string): string {
  return [...encodeUtf8(character)].map((byte) => `%${byte.toString(16).toUpperCase().padStart(2, "0")}`).join("");
}

const PATH = /[?`{}^]/g;
const QUERY = /'/g;
const FRAGMENT = /`/g;
const USER_INFO = /[/:;=@[\\\]^|`{}?#]/g;

interface Parts {
  protocol: string;
  username: string;
  password: string;
  hostname: string;
  port: string;
  /** Begins with a slash, unless the scheme has no authority. */
  pathname: string;
  search: string;
  hash: string;
}

const FORM = /^([^?#]*)(\?[^#]*)?(#.*)?$/s;

function parse(text: string, base: Parts | undefined): Parts | undefined {
  const input = text.replace(/^[\0-\x20]+|[\0-\x20]+$/g, "").replace(/[\t\n\r]/g, "");
  const scheme = /^[a-z][a-z0-9+.-]*:/i.exec(input)?.[0];
  const protocol = scheme?.toLowerCase() ?? base?.protocol;
  if (protocol === undefined) return undefined;
  const special = protocol in DEFAULT_PORTS;
  const [, before = "", query = "", fragment = ""] = FORM.exec(scheme ? input.slice(scheme.length) : input) ?? [];
  const hierarchy = special ? before.replaceAll("\\", "/") : before;
  const search = query.length > 1 ? encode(query, special ? QUERY : /$^/g) : "";
  const hash = fragment.length > 1 ? encode(fragment, FRAGMENT) : "";
  const isRelative = scheme === undefined || (special && protocol === base?.protocol && !hierarchy.startsWith("/"));
  if (base !== undefined && isRelative && !hierarchy.startsWith("//")) return relative(base, hierarchy, query, search, hash);
  const authority = special ? /^\/*([^/]*)(.*)$/s.exec(hierarchy) : /^\/\/([^/]*)(.*)$/s.exec(hierarchy);
  const none = { username: "", password: "", hostname: "", port: "" };
  if (!authority) return { protocol, ...none, pathname: encode(hierarchy, /$^/g), search, hash };
  const place = parseAuthority(authority[1] as string, protocol);
  if (place === undefined || (special && place.hostname === "")) return undefined;
  return { protocol, ...place, pathname: normalize((authority[2] as string) || (special ? "/" : "")), search, hash };
}

function relative(base: Parts, path: string, query: string, search: string, hash: string): Parts | undefined {
  if (base.hostname === "" && !base.pathname.startsWith("/")) return undefined;
  if (path === "") return { ...base, search: query === "" ? base.search : search, hash };
  const folder = base.pathname.slice(0, base.pathname.lastIndexOf("/") + 1);
  return { ...base, pathname: normalize(path.startsWith("/") ? path : folder + path), search, hash };
}

function parseAuthority(text: string, protocol: string): Pick<Parts, "username" | "password" | "hostname" | "port"> | undefined {
  const at = text.lastIndexOf("@");
  const [user = "", ...password] = at === -1 ? [] : text.slice(0, at).split(":");
  const place = /^(\[[0-9a-f:.]+\]|[^:]*)(?::(\d*))?$/i.exec(text.slice(at + 1));
  if (!place) return undefined;
  const hostname = hostOf(place[1] as string);
  if (hostname === undefined || Number(place[2] ?? 0) > 65_535) return undefined;
  const port = place[2] ? String(Number(place[2])) : "";
  return {
    username: encode(user, USER_INFO),
    password: encode(password.join(":"), USER_INFO),
    hostname,
    port: port === DEFAULT_PORTS[protocol] ? "" : port,
  };
}

function hostOf(text: string): string | undefined {
  let host;
  try {
    host = decodeURIComponent(text).toLowerCase();
  } catch {
    return undefined;
  }
  if (/[^\0-\x7f]/.test(host)) {
    throw new TypeError(`the host \`${text}\` contains characters that are not ASCII; write it as xn--…`);
  }
  return /[\0-\x20"#%/:<>?@\\^`{|}\x7f]/.test(host) && !host.startsWith("[") ? undefined : host;
}

/** Removes `.` and `..` from a path, and encodes it. */
function normalize(path: string): string {
  const segments: string[] = [];
  const all = path.split("/");
  all.forEach((segment, index) => {
    const plain = segment.replaceAll(/%2e/gi, ".");
    const isLast = index === all.length - 1;
    if (plain === "..") {
      if (segments.length > 1) segments.pop();
      if (isLast) segments.push("");
    } else if (plain === ".") {
      if (isLast) segments.push("");
    } else segments.push(encode(segment, PATH));
  });
  return segments.join("/");
}

export class ComponentURL {
  #parts: Parts;
  readonly #params: ComponentURLSearchParams;

  constructor(url: string | URL, base?: string | URL) {
    const parts = parse(String(url), base === undefined ? undefined : parse(String(base), undefined));
    if (parts === undefined || (base !== undefined && parse(String(base), undefined) === undefined)) {
      throw new TypeError(`\`${String(url)}\` is not a valid URL${base === undefined ? "" : ` relative to \`${String(base)}\``}`);
    }
    this.#parts = parts;
    this.#params = new ComponentURLSearchParams(parts.search);
    observe(this.#params, () => {
      const text = this.#params.toString();
      this.#parts.search = text === "" ? "" : `?${text}`;
    });
  }

  static canParse(url: string | URL, base?: string | URL): boolean {
    return ComponentURL.parse(url, base) !== null;
  }

  static parse(url: string | URL, base?: string | URL): ComponentURL | null {
    try {
      return new ComponentURL(url, base);
    } catch {
      return null;
    }
  }

  get href(): string {
    const { protocol, username, password, pathname, search, hash } = this.#parts;
    const user = username === "" && password === "" ? "" : `${username}${password === "" ? "" : `:${password}`}@`;
    const authority = this.host === "" && !(protocol in DEFAULT_PORTS) ? "" : `//${user}${this.host}`;
    return `${protocol}${authority}${pathname}${search}${hash}`;
  }

  set href(href: string) {
    this.#set(new ComponentURL(href).#parts);
  }

  get origin(): string {
    return this.protocol in DEFAULT_PORTS ? `${this.protocol}//${this.host}` : "null";
  }

  get protocol(): string {
    return this.#parts.protocol;
  }

  set protocol(protocol: string) {
    this.#change(`${protocol.replace(/:.*$/s, "")}:`, this.href.slice(this.protocol.length));
  }

  get username(): string {
    return this.#parts.username;
  }

  set username(username: string) {
    this.#parts.username = encode(username, USER_INFO);
  }

  get password(): string {
    return this.#parts.password;
  }

  set password(password: string) {
    this.#parts.password = encode(password, USER_INFO);
  }

  get host(): string {
    return this.port === "" ? this.hostname : `${this.hostname}:${this.port}`;
  }

  set host(host: string) {
    const place = parseAuthority(host, this.protocol);
    if (place) Object.assign(this.#parts, { hostname: place.hostname, port: place.port });
  }

  get hostname(): string {
    return this.#parts.hostname;
  }

  set hostname(hostname: string) {
    this.#parts.hostname = hostOf(hostname) ?? this.hostname;
  }

  get port(): string {
    return this.#parts.port;
  }

  set port(port: string) {
    if (/^\d*$/.test(port)) this.#parts.port = port === DEFAULT_PORTS[this.protocol] ? "" : port;
  }

  get pathname(): string {
    return this.#parts.pathname;
  }

  set pathname(pathname: string) {
    this.#parts.pathname = normalize(pathname.startsWith("/") ? pathname : `/${pathname}`);
  }

  get search(): string {
    return this.#parts.search;
  }

  set search(search: string) {
    const query = search.replace(/^\?/, "").replaceAll("#", "%23");
    this.#set({ ...this.#parts, search: query === "" ? "" : encode(`?${query}`, QUERY) });
  }

  get hash(): string {
    return this.#parts.hash;
  }

  set hash(hash: string) {
    const fragment = hash.replace(/^#/, "");
    this.#parts.hash = fragment === "" ? "" : encode(`#${fragment}`, FRAGMENT);
  }

  get searchParams(): ComponentURLSearchParams {
    return this.#params;
  }

  #change(protocol: string, rest: string): void {
    const changed = parse(protocol + rest, undefined);
    if (changed) this.#set(changed);
  }

  #set(parts: Parts): void {
    this.#parts = parts;
    replace(this.#params, parts.search);
  }

  toString(): string {
    return this.href;
  }

  toJSON(): string {
    return this.href;
  }
}

let observe: (params: ComponentURLSearchParams, changed: () => void) => void;
let replace: (params: ComponentURLSearchParams, search: string) => void;

type Init = string | Iterable<readonly [string, string]> | Record<string, string>;

export class ComponentURLSearchParams {
  #pairs: [string, string][] = [];
  #changed: () => void = () => undefined;

  static {
    observe = (params, changed) => {
      params.#changed = changed;
    };
    replace = (params, search) => {
      params.#pairs = parsePairs(search);
    };
  }

  constructor(init: Init = "") {
    if (typeof init === "string") this.#pairs = parsePairs(init);
    else {
      const pairs = Symbol.iterator in init ? (init as Iterable<readonly [string, string]>) : Object.entries(init);
      for (const [name, value] of pairs) this.#pairs.push([String(name), String(value)]);
    }
  }

  get size(): number {
    return this.#pairs.length;
  }

  append(name: string, value: string): void {
    this.#pairs.push([String(name), String(value)]);
    this.#changed();
  }

  delete(name: string, value?: string): void {
    this.#pairs = this.#pairs.filter((pair) => pair[0] !== name || (value !== undefined && pair[1] !== value));
    this.#changed();
  }

  get(name: string): string | null {
    return this.#pairs.find((pair) => pair[0] === name)?.[1] ?? null;
  }

  getAll(name: string): string[] {
    return this.#pairs.filter((pair) => pair[0] === name).map((pair) => pair[1]);
  }

  has(name: string, value?: string): boolean {
    return this.#pairs.some((pair) => pair[0] === name && (value === undefined || pair[1] === value));
  }

  set(name: string, value: string): void {
    const first = this.#pairs.find((pair) => pair[0] === name);
    if (first === undefined) this.#pairs.push([String(name), String(value)]);
    else {
      first[1] = String(value);
      this.#pairs = this.#pairs.filter((pair) => pair === first || pair[0] !== name);
    }
    this.#changed();
  }

  sort(): void {
    this.#pairs.sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0));
    this.#changed();
  }

  forEach(call: (value: string, name: string, params: this) => void, receiver?: unknown): void {
    for (const [name, value] of this) call.call(receiver, value, name, this);
  }

  *entries(): IterableIterator<[string, string]> {
    for (const [name, value] of this.#pairs) yield [name, value];
  }

  *keys(): IterableIterator<string> {
    for (const [name] of this.#pairs) yield name;
  }

  *values(): IterableIterator<string> {
    for (const [, value] of this.#pairs) yield value;
  }

  [Symbol.iterator](): IterableIterator<[string, string]> {
    return this.entries();
  }

  toString(): string {
    return this.#pairs.map(([name, value]) => `${formEncode(name)}=${formEncode(value)}`).join("&");
  }
}

function parsePairs(search: string): [string, string][] {
  return search
    .replace(/^\?/, "")
    .split("&")
    .filter((pair) => pair !== "")
    .map((pair) => {
      const at = pair.indexOf("=");
      return at === -1 ? [formDecode(pair), ""] : [formDecode(pair.slice(0, at)), formDecode(pair.slice(at + 1))];
    });
}

function formEncode(text: string): string {
  return encodeURIComponent(text.toWellFormed()).replace(/[!'()~]/g, percent).replaceAll("%20", "+");
}

function formDecode(text: string): string {
  const spaced = text.replaceAll("+", " ");
  if (!spaced.includes("%")) return spaced;
  const binary = unescape(encodeURIComponent(spaced.toWellFormed())).replace(/%([0-9a-f]{2})/gi, (_all, hex: string) =>
    String.fromCharCode(parseInt(hex, 16)),
  );
  return decodeUtf8(Uint8Array.from(binary, (character) => character.charCodeAt(0)), false);
}
