/** What promises of a component can wait for: requests and timers. */
import { runJobs } from "./promise.ts";

/** What the event loop needs from the host. */
export interface Outside<Request, Response> {
  /** Sends requests concurrently. */
  send(requests: Request[]): ({ ok: Response } | { failure: unknown })[];
  sleep(milliseconds: number): void;
}

interface PendingRequest {
  request: unknown;
  resolve(response: unknown): void;
  reject(failure: unknown): void;
}

interface Timer {
  id: number;
  due: number;
  every: number | undefined;
  call(): void;
}

let requests: PendingRequest[] = [];
let timers: Timer[] = [];
let lastTimer = 0;
let now = (): number => 0;

/** Sets the clock, before a function is called. Milliseconds, with any start. */
export function setClock(clock: () => number): void {
  now = clock;
}

/** Queues a request. All requests that are queued when no job is left are sent concurrently. */
export function queueRequest<Request, Response>(request: Request): Promise<Response> {
  return new Promise((resolve, reject) => requests.push({ request, resolve: resolve as never, reject }));
}

export function startTimer(call: () => void, delay: number, repeats: boolean): number {
  const milliseconds = Math.max(0, Number(delay) || 0);
  lastTimer += 1;
  timers.push({ id: lastTimer, due: now() + milliseconds, every: repeats ? milliseconds : undefined, call });
  return lastTimer;
}

export function stopTimer(id: unknown): void {
  timers = timers.filter((timer) => timer.id !== id);
}

/**
 * Runs jobs, requests and timers until `finished`. Returns false if nothing is left that could finish it. Calls
 * `collect` after each request.
 */
export function runUntil<Request, Response>(
  finished: () => boolean,
  outside: Outside<Request, Response>,
  collect: () => void,
): boolean {
  for (;;) {
    runJobs();
    if (finished()) return true;
    if (requests.length > 0) {
      sendRequests(outside);
      collect();
    }
    else if (timers.length > 0) runNextTimer(outside);
    else return false;
  }
}

/** Forgets the requests and timers that the last call has left, and returns the number of requests. */
export function clear(): number {
  const left = requests.length;
  requests = [];
  timers = [];
  return left;
}

function sendRequests<Request, Response>(outside: Outside<Request, Response>): void {
  const sent = requests;
  requests = [];
  const answers = outside.send(sent.map(({ request }) => request as Request));
  sent.forEach(({ resolve, reject }, index) => {
    const answer = answers[index];
    if (answer === undefined) reject(new Error("the host returned fewer responses than requests"));
    else if ("ok" in answer) resolve(answer.ok);
    else reject(answer.failure);
  });
}

function runNextTimer(outside: { sleep(milliseconds: number): void }): void {
  const next = timers.reduce((first, timer) => (timer.due < first.due ? timer : first));
  const wait = next.due - now();
  if (wait > 0) outside.sleep(wait);
  if (next.every === undefined) stopTimer(next.id);
  else next.due = now() + next.every;
  next.call();
}
