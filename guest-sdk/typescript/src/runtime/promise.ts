/**
 * Promises of a component. The engine has no event loop: it does not run jobs of its own promises during a call of the
 * host. This class conforms to ECMAScript, but its jobs are in a queue that the SDK runs. The build converts async
 * functions, so that they use this class as well.
 */

const jobs: (() => void)[] = [];

/** Adds a job that runs after the current one. */
export function enqueue(job: () => void): void {
  jobs.push(job);
}

/** Runs jobs until the queue is empty. */
export function runJobs(): void {
  for (let next = 0; next < jobs.length; next += 1) {
    const job = jobs[next] as () => void;
    if (next >= 1_024) {
      jobs.splice(0, next);
      next = 0;
    }
    job();
  }
  jobs.length = 0;
}

/** Rejected promises without a handler. */
const unhandled = new Set<ComponentPromise<unknown>>();

/** Returns the reasons of the rejections that no code has handled, and forgets them. */
export function takeUnhandled(): unknown[] {
  const reasons = [...unhandled].map((promise) => reasonOf(promise));
  unhandled.clear();
  return reasons;
}

type Resolve<T> = (value: T | PromiseLike<T>) => void;
type Reject = (reason?: unknown) => void;
type Reaction = { resolved: (value: unknown) => void; rejected: (reason: unknown) => void };
interface Capability {
  promise: ComponentPromise<unknown>;
  resolve: Resolve<unknown>;
  reject: Reject;
}
type Constructor = new (executor: (resolve: Resolve<unknown>, reject: Reject) => void) => ComponentPromise<unknown>;

let reasonOf: (promise: ComponentPromise<unknown>) => unknown;

export class ComponentPromise<T> {
  #state: "pending" | "fulfilled" | "rejected" = "pending";
  #value: unknown;
  #reactions: Reaction[] = [];
  #handled = false;

  static {
    reasonOf = (promise) => promise.#value;
  }

  constructor(executor: (resolve: Resolve<T>, reject: Reject) => void) {
    if (typeof executor !== "function") throw new TypeError("Promise resolver is not a function");
    const { resolve, reject } = this.#functions();
    try {
      executor(resolve, reject);
    } catch (error) {
      reject(error);
    }
  }

  static get [Symbol.species](): unknown {
    return this;
  }

  get [Symbol.toStringTag](): string {
    return "Promise";
  }

  #functions(): { resolve: Resolve<T>; reject: Reject } {
    let called = false;
    const reject: Reject = (reason) => {
      if (called) return;
      called = true;
      this.#settle("rejected", reason);
    };
    const resolve: Resolve<T> = (value) => {
      if (called) return;
      called = true;
      this.#resolve(value);
    };
    return { resolve, reject };
  }

  #resolve(value: unknown): void {
    if (value === (this as unknown)) {
      this.#settle("rejected", new TypeError("a promise cannot be resolved with itself"));
      return;
    }
    if ((typeof value !== "object" && typeof value !== "function") || value === null) {
      this.#settle("fulfilled", value);
      return;
    }
    let then: unknown;
    try {
      then = (value as { then?: unknown }).then;
    } catch (error) {
      this.#settle("rejected", error);
      return;
    }
    if (typeof then !== "function") {
      this.#settle("fulfilled", value);
      return;
    }
    enqueue(() => {
      const { resolve, reject } = this.#functions();
      try {
        Reflect.apply(then as (...given: unknown[]) => unknown, value, [resolve, reject]);
      } catch (error) {
        reject(error);
      }
    });
  }

  #settle(state: "fulfilled" | "rejected", value: unknown): void {
    this.#state = state;
    this.#value = value;
    const reactions = this.#reactions;
    this.#reactions = [];
    if (state === "rejected" && !this.#handled) unhandled.add(this as ComponentPromise<unknown>);
    for (const reaction of reactions) this.#react(reaction);
  }

  #react(reaction: Reaction): void {
    const react = this.#state === "fulfilled" ? reaction.resolved : reaction.rejected;
    enqueue(() => react(this.#value));
  }

  then<A = T, B = never>(
    fulfilled?: ((value: T) => A | PromiseLike<A>) | null,
    rejected?: ((reason: unknown) => B | PromiseLike<B>) | null,
  ): ComponentPromise<A | B> {
    const { promise, resolve, reject } = capability(speciesOf(this));
    const handler = (given: unknown, otherwise: (value: unknown) => void) =>
      typeof given !== "function"
        ? otherwise
        : (value: unknown) => {
            let result: unknown;
            try {
              result = (given as (value: unknown) => unknown)(value);
            } catch (error) {
              reject(error);
              return;
            }
            resolve(result);
          };
    const reaction: Reaction = { resolved: handler(fulfilled, resolve), rejected: handler(rejected, reject) };
    if (this.#state === "pending") this.#reactions.push(reaction);
    else this.#react(reaction);
    this.#handled = true;
    unhandled.delete(this as ComponentPromise<unknown>);
    return promise as ComponentPromise<A | B>;
  }

  catch<B = never>(rejected?: ((reason: unknown) => B | PromiseLike<B>) | null): ComponentPromise<T | B> {
    return this.then(undefined, rejected);
  }

  finally(work?: (() => void) | null): ComponentPromise<T> {
    if (typeof work !== "function") return this.then(work as undefined, work as undefined);
    const Class = speciesOf(this);
    return this.then(
      (value) => resolveWith(Class, (work as () => unknown)()).then(() => value) as ComponentPromise<T>,
      (reason) =>
        resolveWith(Class, (work as () => unknown)()).then(() => {
          throw reason;
        }) as ComponentPromise<never>,
    );
  }

  static resolve(value?: unknown): ComponentPromise<unknown> {
    return resolveWith(this as unknown as Constructor, value);
  }

  static reject(reason?: unknown): ComponentPromise<never> {
    const { promise, reject } = capability(this as unknown as Constructor);
    reject(reason);
    return promise as unknown as ComponentPromise<never>;
  }

  static withResolvers(): Capability {
    return capability(this as unknown as Constructor);
  }

  static try(work: (...given: unknown[]) => unknown, ...given: unknown[]): ComponentPromise<unknown> {
    const { promise, resolve, reject } = capability(this as unknown as Constructor);
    try {
      resolve(work(...given));
    } catch (error) {
      reject(error);
    }
    return promise;
  }

  static all(promises: Iterable<unknown>): ComponentPromise<unknown> {
    return combine(this as unknown as Constructor, promises, (results, done) => ({
      empty: (resolve) => resolve(results),
      fulfilled: (index, value, resolve) => {
        results[index] = value;
        if (done()) resolve(results);
      },
    }));
  }

  static allSettled(promises: Iterable<unknown>): ComponentPromise<unknown> {
    return combine(this as unknown as Constructor, promises, (results, done) => ({
      empty: (resolve) => resolve(results),
      fulfilled: (index, value, resolve) => {
        results[index] = { status: "fulfilled", value };
        if (done()) resolve(results);
      },
      rejected: (index, reason, resolve) => {
        results[index] = { status: "rejected", reason };
        if (done()) resolve(results);
      },
    }));
  }

  static any(promises: Iterable<unknown>): ComponentPromise<unknown> {
    const fail = (errors: unknown[], reject: Reject) => reject(new AggregateError(errors, "All promises were rejected"));
    return combine(this as unknown as Constructor, promises, (errors, done) => ({
      empty: (_resolve, reject) => fail(errors, reject),
      fulfilled: (_index, value, resolve) => resolve(value),
      rejected: (index, reason, _resolve, reject) => {
        errors[index] = reason;
        if (done()) fail(errors, reject);
      },
    }));
  }

  static race(promises: Iterable<unknown>): ComponentPromise<unknown> {
    return combine(this as unknown as Constructor, promises, () => ({
      empty: () => undefined,
      fulfilled: (_index, value, resolve) => resolve(value),
    }));
  }
}

function capability(Class: Constructor): Capability {
  let resolve: Resolve<unknown> | undefined;
  let reject: Reject | undefined;
  const promise = new Class((given, other) => {
    resolve = given;
    reject = other;
  });
  return { promise, resolve: resolve as Resolve<unknown>, reject: reject as Reject };
}

function resolveWith(Class: Constructor, value: unknown): ComponentPromise<unknown> {
  if (value instanceof ComponentPromise && value.constructor === Class) return value;
  const { promise, resolve } = capability(Class);
  resolve(value);
  return promise;
}

function speciesOf(promise: object): Constructor {
  const Class = (promise.constructor ?? ComponentPromise) as unknown as { [Symbol.species]?: Constructor };
  return Class[Symbol.species] ?? (ComponentPromise as unknown as Constructor);
}

interface Combination {
  empty(resolve: Resolve<unknown>, reject: Reject): void;
  fulfilled(index: number, value: unknown, resolve: Resolve<unknown>, reject: Reject): void;
  rejected?(index: number, reason: unknown, resolve: Resolve<unknown>, reject: Reject): void;
}

/** Waits for several promises. `done` returns true for the last one. */
function combine(
  Class: Constructor,
  promises: Iterable<unknown>,
  of: (results: unknown[], done: () => boolean) => Combination,
): ComponentPromise<unknown> {
  const { promise, resolve, reject } = capability(Class);
  try {
    let left = 1;
    const done = () => (left -= 1) === 0;
    const combination = of([], done);
    let index = 0;
    for (const member of promises) {
      const at = index;
      index += 1;
      left += 1;
      let settled = false;
      const once = (work: () => void) => {
        if (settled) return;
        settled = true;
        work();
      };
      (Class as unknown as typeof ComponentPromise).resolve(member).then(
        (value) => once(() => combination.fulfilled(at, value, resolve, reject)),
        (reason) => once(() => (combination.rejected ? combination.rejected(at, reason, resolve, reject) : reject(reason))),
      );
    }
    if (done()) combination.empty(resolve, reject);
  } catch (error) {
    reject(error);
  }
  return promise;
}
