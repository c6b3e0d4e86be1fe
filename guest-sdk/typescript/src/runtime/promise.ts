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

/** Returns the reasons of the rejections that no code has handled, if there are any, and forgets them. */
export function takeUnhandled(): unknown[] | undefined {
  if (unhandled.size === 0) return undefined;
  const reasons = [...unhandled].map((promise) => promise[VALUE]);
  unhandled.clear();
  return reasons;
}

type Resolve<T> = (value: T | PromiseLike<T>) => void;
type Reject = (reason?: unknown) => void;
type Executor = (resolve: Resolve<never>, reject: Reject) => void;
interface Capability {
  promise: ComponentPromise<unknown>;
  resolve: Resolve<unknown>;
  reject: Reject;
}
type Constructor = new (executor: Executor) => ComponentPromise<unknown>;

/** What happens when a promise settles: a handler runs, and its result settles another promise. */
interface Reaction {
  fulfilled: unknown;
  rejected: unknown;
  /** A promise of this class, or the functions that settle a promise of another one. */
  derived: ComponentPromise<unknown> | Capability;
}

// Symbols, because the engine is slower with private fields, and every `await` needs several promises.
const STATE = Symbol("state");
const VALUE = Symbol("value");
const REACTIONS = Symbol("reactions");
const HANDLED = Symbol("handled");
const [PENDING, FULFILLED, REJECTED] = [0, 1, 2];

/** Creates a promise that the caller settles. */
const settledByCaller: Executor = () => undefined;

function resolve(promise: ComponentPromise<unknown>, value: unknown): void {
  if ((typeof value !== "object" && typeof value !== "function") || value === null) {
    settle(promise, FULFILLED, value);
    return;
  }
  if (value === promise) {
    settle(promise, REJECTED, new TypeError("a promise cannot be resolved with itself"));
    return;
  }
  let then: unknown;
  try {
    then = (value as { then?: unknown }).then;
  } catch (error) {
    settle(promise, REJECTED, error);
    return;
  }
  if (typeof then !== "function") {
    settle(promise, FULFILLED, value);
    return;
  }
  enqueue(() => run(promise, then as Executor, value));
}

function settle(promise: ComponentPromise<unknown>, state: number, value: unknown): void {
  const reactions = promise[REACTIONS];
  promise[STATE] = state;
  promise[VALUE] = value;
  promise[REACTIONS] = undefined;
  if (state === REJECTED && !promise[HANDLED]) unhandled.add(promise);
  if (reactions) for (const reaction of reactions) enqueue(() => react(reaction, state, value));
}

function react({ fulfilled, rejected, derived }: Reaction, state: number, value: unknown): void {
  const handler = state === FULFILLED ? fulfilled : rejected;
  let result = value;
  let resolves = state === FULFILLED;
  if (typeof handler === "function") {
    try {
      result = handler(value);
      resolves = true;
    } catch (error) {
      result = error;
      resolves = false;
    }
  }
  if (!(derived instanceof ComponentPromise)) (resolves ? derived.resolve : derived.reject)(result);
  else if (resolves) resolve(derived, result);
  else settle(derived, REJECTED, result);
}

/** Calls an executor or a method `then` with functions of which only the first call has an effect. */
function run(promise: ComponentPromise<unknown>, executor: Executor, receiver?: unknown): void {
  let called = false;
  const reject: Reject = (reason) => {
    if (called) return;
    called = true;
    settle(promise, REJECTED, reason);
  };
  const fulfill: Resolve<never> = (value) => {
    if (called) return;
    called = true;
    resolve(promise, value);
  };
  try {
    if (receiver === undefined) executor(fulfill, reject);
    else Reflect.apply(executor, receiver, [fulfill, reject]);
  } catch (error) {
    reject(error);
  }
}

export class ComponentPromise<T> {
  declare [STATE]: number;
  declare [VALUE]: unknown;
  declare [REACTIONS]: Reaction[] | undefined;
  declare [HANDLED]: boolean;

  constructor(executor: (resolve: Resolve<T>, reject: Reject) => void) {
    if (typeof executor !== "function") throw new TypeError("Promise resolver is not a function");
    this[STATE] = PENDING as number;
    this[VALUE] = undefined;
    this[REACTIONS] = undefined;
    this[HANDLED] = false;
    if (executor !== settledByCaller) run(this as ComponentPromise<unknown>, executor as Executor);
  }

  static get [Symbol.species](): unknown {
    return this;
  }

  get [Symbol.toStringTag](): string {
    return "Promise";
  }

  then<A = T, B = never>(
    fulfilled?: ((value: T) => A | PromiseLike<A>) | null,
    rejected?: ((reason: unknown) => B | PromiseLike<B>) | null,
  ): ComponentPromise<A | B> {
    const Class = this.constructor === ComponentPromise ? undefined : speciesOf(this);
    const derived = Class ? capability(Class) : new ComponentPromise<unknown>(settledByCaller);
    const reaction: Reaction = { fulfilled, rejected, derived };
    const state = this[STATE];
    if (state === PENDING) (this[REACTIONS] ??= []).push(reaction);
    else {
      const value = this[VALUE];
      enqueue(() => react(reaction, state, value));
      if (state === REJECTED) unhandled.delete(this as ComponentPromise<unknown>);
    }
    this[HANDLED] = true;
    return (derived instanceof ComponentPromise ? derived : derived.promise) as ComponentPromise<A | B>;
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
    if (value instanceof ComponentPromise && value.constructor === this) return value;
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
    resolve = given as Resolve<unknown>;
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
