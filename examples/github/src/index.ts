import { action, checkpoint, http, integration, Paging, run, sync, webhook, Writer } from "@syncline/sdk";
import { repositoryPath, toIssue, toRepository, type GitHubIssue, type GitHubRepository } from "./github.ts";
import type { Integrations, Issue, NewIssue, Repository } from "./models.ts";

/** Changes that GitHub lists late are found again within this time. */
const OVERLAP_MS = 5 * 60_000;

const issues = sync("Saves the issues that have changed since the last run.", async () => {
  const since = checkpoint.cursor();
  // Newest first: an issue that changes during the run moves to a page that was read, and no other issue is skipped.
  const query = { state: "all", sort: "updated", direction: "desc", per_page: 100, since };
  const writer = new Writer<Issue>("Issue");
  let newest: string | undefined;
  for await (const page of http.pages<GitHubIssue>(`${repositoryPath()}/issues`, Paging.link(), { query })) {
    newest ??= page[0]?.updated_at;
    // GitHub lists pull requests as issues.
    writer.saveAll(page.filter((issue) => issue.pull_request === undefined).map(toIssue));
    if (run.cancelled()) return void writer.flush();
  }
  if (newest !== undefined) writer.cursor(new Date(Date.parse(newest) - OVERLAP_MS).toISOString());
  writer.finish();
});

const repositories = sync("Saves all repositories of the account.", async () => {
  const writer = new Writer<Repository>("Repository");
  for await (const page of http.pages<GitHubRepository>("/user/repos", Paging.link(), { query: { per_page: 100 } })) {
    writer.saveAll(page.map(toRepository));
  }
  writer.finish();
});

const createIssue = action("Creates an issue in the connection's repository.", async (issue: NewIssue) => {
  const { title, body, labels, assignees } = issue;
  const json = { title, body: body ?? undefined, labels: labels ?? undefined, assignees: assignees ?? undefined };
  return toIssue(await http.post(`${repositoryPath()}/issues`, { json }).json<GitHubIssue>());
});

const issueChanged = webhook("Saves or deletes an issue when GitHub reports a change.", async ({
  body,
}: {
  body: { action: string; issue: GitHubIssue };
}) => {
  const writer = new Writer<Issue>("Issue");
  if (body.action === "deleted" || body.action === "transferred") writer.delete(body.issue.id);
  else writer.save(toIssue(body.issue));
  writer.finish();
});

export default integration<Integrations["github"]>({
  syncs: { issues, repositories },
  actions: { "create-issue": createIssue },
  webhooks: { "issue-changed": issueChanged },
});
