// Follows records with a published client of server-sent events, and prints every event as a line of JSON.
// A line on standard input is the URL of the host to use for later connections.
import { createInterface } from "node:readline";
import { EventSource } from "eventsource";

const { FOLLOW_URL, FOLLOW_KEY, FOLLOW_CONNECTION, FOLLOW_INTEGRATION } = process.env;
let host = new URL(FOLLOW_URL).origin;
createInterface({ input: process.stdin }).on("line", (line) => { host = line; });

const print = (event) => console.log(JSON.stringify({ at: Date.now(), ...event }));
const source = new EventSource(FOLLOW_URL, {
  fetch: (url, init) => {
    const { pathname, search } = new URL(url);
    const headers = {
      ...init.headers,
      Authorization: `Bearer ${FOLLOW_KEY}`,
      "Connection-Id": FOLLOW_CONNECTION,
      "Provider-Config-Key": FOLLOW_INTEGRATION,
    };
    return fetch(host + pathname + search, { ...init, headers });
  },
});
source.addEventListener("open", () => print({ type: "open" }));
for (const type of ["message", "caught-up"]) {
  source.addEventListener(type, ({ data, lastEventId }) => print({ type, id: lastEventId, data: JSON.parse(data) }));
}
source.addEventListener("error", ({ code }) => print({ type: "error", code }));
