/** The records that the host stores and serves. */
import { calling, SynclineError } from "./error.ts";
import { host, type Change } from "./host.ts";
import * as json from "./json.ts";

/** The id of a record: an integer, or a string of 1 to 255 bytes. Ids are stored as strings. */
export type Id = string | number | bigint;

/** The number of records that the batches of a writer have added, updated, deleted and left unchanged. */
export interface Counts {
  added: number;
  updated: number;
  deleted: number;
  unchanged: number;
}

/** Reads stored records. */
export const records = {
  /**
   * Returns the stored payloads of these ids, in the same order. The result is `undefined` for an id that has no
   * record, is deleted, or whose payload was pruned.
   */
  get<T extends object = Record<string, unknown>>(model: string, ids: readonly Id[]): (T | undefined)[] {
    const kept = calling(() => host().records.get(model, ids.map(String)));
    return kept.map((text) => (text == null ? undefined : json.parse<T>(text)));
  },
};

const BATCH_RECORDS = 1_000;
const BATCH_CHARACTERS = 1_000_000;

type Pending = { tag: "save" | "update"; items: string[] } | { tag: "delete"; ids: string[] };

/** Writers of the current run with changes or a checkpoint that are not saved yet. */
const unfinished = new Set<Writer<never>>();

/**
 * Saves, updates and deletes records of one model in batches. Each batch is one transaction. No method needs `await`.
 *
 * Changes are saved by `finish`, so end with it. Otherwise, the run fails with `unsaved-changes`. A sync of several
 * models uses a writer for each, and sets the checkpoint on the writer that it finishes last.
 */
export class Writer<T extends object = Record<string, unknown>> {
  readonly #model: string;
  readonly #variant: string | undefined;
  readonly #batchRecords: number;
  /** In the order of the calls. Adjacent changes of one kind share an entry. */
  #pending: Pending[] = [];
  #pendingRecords = 0;
  #pendingCharacters = 0;
  #checkpoint: string | undefined;
  readonly #counts: Counts = { added: 0, updated: 0, deleted: 0, unchanged: 0 };

  /**
   * Creates a writer for a model that `syncline.toml` lists for the function. A sync always writes to its own variant.
   * A batch has 1,000 records by default, and also ends at about 1 MB.
   */
  constructor(model: string, options: { variant?: string; batchRecords?: number } = {}) {
    this.#model = model;
    this.#variant = options.variant;
    this.#batchRecords = Math.max(1, options.batchRecords ?? BATCH_RECORDS);
  }

  /** Adds a record, or replaces the stored record with the same `id` if it differs. */
  save(record: T): void {
    this.#append("save", this.#serialize(record));
  }

  /** Saves each record of a list, such as a page of a response. */
  saveAll(records: Iterable<T>): void {
    for (const record of records) this.save(record);
  }

  /** Saves a record that is JSON text already, and preserves the notation of its numbers. */
  saveJson(record: string): void {
    this.#append("save", record);
  }

  /**
   * Merges an object into the stored record with the same `id`: objects are merged key by key, and any other value is
   * replaced. An id without a stored record is ignored.
   */
  update(changes: DeepPartial<T> & { id: Id }): void {
    this.#append("update", this.#serialize(changes));
  }

  /** Marks a record as deleted. An id without a stored record is ignored. */
  delete(id: Id): void {
    const text = String(id);
    const last = this.#pending.at(-1);
    if (last?.tag === "delete") last.ids.push(text);
    else this.#pending.push({ tag: "delete", ids: [text] });
    this.#added(text.length);
  }

  /**
   * Sets where the next run resumes, once all changes until now are saved: an object of at most 64 KB as JSON. It is
   * saved with the next batch. If several are set before a batch, the last one is used. `null` clears the checkpoint.
   */
  checkpoint(checkpoint: object | null): void {
    this.#checkpoint = json.stringify(checkpoint);
    unfinished.add(this as unknown as Writer<never>);
  }

  /** Like `checkpoint`, for a checkpoint that consists of one text. Read it with `checkpoint.cursor`. */
  cursor(cursor: string): void {
    this.checkpoint({ cursor });
  }

  /** Saves all pending changes now, with the checkpoint if there is one. */
  flush(): void {
    if (this.#pending.length === 0 && this.#checkpoint === undefined) return;
    const changes = this.#pending.map((pending) => this.#change(pending));
    const counts = calling(() => host().records.commit(changes, this.#checkpoint));
    this.#counts.added += Number(counts.added);
    this.#counts.updated += Number(counts.updated);
    this.#counts.deleted += Number(counts.deleted);
    this.#counts.unchanged += Number(counts.unchanged);
    this.#pending = [];
    this.#pendingRecords = 0;
    this.#pendingCharacters = 0;
    this.#checkpoint = undefined;
    unfinished.delete(this as unknown as Writer<never>);
  }

  /** Saves the remaining changes, and returns the counts of all of the writer's batches. */
  finish(): Counts {
    this.flush();
    return { ...this.#counts };
  }

  #serialize(record: object): string {
    try {
      return json.stringify(record);
    } catch (error) {
      const problem = `could not serialize a record of \`${this.#model}\` as JSON: ${(error as Error).message}`;
      throw new SynclineError("invalid-records", problem, undefined, { cause: error });
    }
  }

  #append(tag: "save" | "update", item: string): void {
    const last = this.#pending.at(-1);
    if (last?.tag === tag) last.items.push(item);
    else this.#pending.push({ tag, items: [item] });
    this.#added(item.length);
  }

  #added(characters: number): void {
    unfinished.add(this as unknown as Writer<never>);
    this.#pendingRecords += 1;
    this.#pendingCharacters += characters;
    if (this.#pendingRecords >= this.#batchRecords || this.#pendingCharacters >= BATCH_CHARACTERS) this.flush();
  }

  #change(pending: Pending): Change {
    const target = { model: this.#model, ...(this.#variant === undefined ? {} : { variant: this.#variant }) };
    if (pending.tag === "delete") return { tag: "delete", val: { ...target, ids: pending.ids } };
    return { tag: pending.tag, val: { ...target, items: `[${pending.items.join(",")}]` } };
  }

  /** The model and the number of unsaved changes. */
  get pending(): { model: string; changes: number } {
    return { model: this.#model, changes: this.#pendingRecords };
  }
}

type DeepPartial<T> = T extends readonly unknown[] ? T : T extends object ? { [K in keyof T]?: DeepPartial<T[K]> } : T;

/** Returns and forgets the error for changes that the writers of a run have not saved. */
export function takeUnsaved(): SynclineError | undefined {
  if (unfinished.size === 0) return undefined;
  const lost = [...unfinished].map(({ pending: { model, changes } }) => {
    const what = changes === 0 ? "the checkpoint was" : changes === 1 ? "1 change was" : `${changes} changes were`;
    return `${what} not saved to \`${model}\``;
  });
  unfinished.clear();
  const next = "call `finish()` on each writer, and do not ignore its error";
  return new SynclineError("unsaved-changes", `${lost.join(", and ")} when the function returned; ${next}`);
}
