/** The current run. */
import { host } from "./host.ts";

export interface Info {
  /** The run's UUID. An asynchronous action has the same id in every attempt. */
  id: string;
  /** The sync's variant, which is `base` by default. */
  variant: string;
  /** 1 for the first attempt, and one more for each retry. */
  attempt: number;
}

export function info(): Info {
  return host().run.get();
}

/**
 * Returns true if the host deletes the records that this run does not save, so that the function must fetch everything.
 * This is the case for syncs with `track_deletes`; with `full_every`, only for some of their runs. A full run starts
 * without a checkpoint.
 */
export function isFull(): boolean {
  return host().run.isFull();
}

/** Reports how much of the work is done. Set `total` if it is known. */
export function progress(done: number, total?: number): void {
  host().run.progress(done, total);
}

/** Returns true if the run should stop. A function that saves as it proceeds can return after its next commit. */
export function cancelled(): boolean {
  return host().run.cancelled();
}

/** Returns the time of the host's clock. */
export function now(): Date {
  return new Date(Number(host().run.now()));
}
