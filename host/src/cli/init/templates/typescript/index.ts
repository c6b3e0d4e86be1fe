/** The @@models@@ of @@Provider@@: a sync that saves what has changed, and an action that reads one. */
import { action, checkpoint, http, integration, Paging, run, sync, Writer } from "@syncline/sdk";
import type { Integrations, @@Model@@, @@Model@@Key } from "./models.ts";

const LIST = "@@list@@";

const @@models@@ = sync("Saves the @@models@@ that have changed since the last run.", async () => {
  const query = @@query@@;
  const writer = new Writer<@@Model@@>("@@Model@@");
  let newest: string | undefined;
  // Newest first: what changes meanwhile moves to a page that was read, and nothing else is skipped.
  for await (const page of http.pages<@@Model@@>(LIST, Paging.link(), { query })) {
    newest ??= page[0]?.updated_at;
    writer.saveAll(page.map(to@@Model@@));
    if (run.cancelled()) return void writer.finish();
  }
  if (newest !== undefined) writer.cursor(newest);
  writer.finish();
});

const read@@Model@@ = action("Reads one @@model@@.", async ({ @@key@@ }: @@Model@@Key) =>
  to@@Model@@(await http.get(`${LIST}/${@@key@@}`).json<@@Model@@>()),
);

/** Leaves out the other fields that the provider returns. */
function to@@Model@@({ @@field_names@@ }: @@Model@@): @@Model@@ {
  return { @@field_names@@ };
}

export default integration<Integrations["@@integration@@"]>({
  syncs: { @@models@@ },
  actions: { "read-@@model@@": read@@Model@@ },
});
