// Runs the functions with answers that the authors of Octokit have recorded from GitHub, and with GitHub's own examples
// of webhooks.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { test } from "node:test";
import fixtures from "@octokit/fixtures";
import type { SynclineError } from "@syncline/sdk";
import { Host } from "@syncline/sdk/testing";
import type { GitHubIssue, GitHubRepository } from "../src/github.ts";
import github from "../src/index.ts";
import { project, type Issue, type Repository } from "../src/models.ts";

const REPOSITORY = "octokit-fixture-org/paginate-issues";
const FIRST_PAGE = `GET /repos/${REPOSITORY}/issues?state=all&sort=updated&direction=desc&per_page=100`;

const recorded = fixtures.get("api.github.com/paginate-issues");

/** A host with the recorded pages. The recording has the same id in all issues, so each gets its number as its id. */
function hostWithIssues(first = FIRST_PAGE): Host {
  const host = new Host(project).setMetadata({ repository: REPOSITORY });
  recorded.forEach(({ path, response, headers }, index) => {
    const line = index === 0 ? first : `GET https://api.github.com${path}`;
    const issues = (response as GitHubIssue[]).map((issue) => ({ ...issue, id: issue.number }));
    host.answer(line, issues, { headers });
  });
  return host;
}

test("the first run saves the issues of all pages, and a checkpoint with an overlap", async () => {
  const host = hostWithIssues();
  await host.sync(github, "issues");
  const issues = host.records<Issue>("Issue");
  assert.equal(issues.length, 13);
  assert.equal(host.requests().length, 5);
  assert.equal(issues[0]?.author, "octokit-fixture-user-a");
  assert.deepEqual(host.checkpoint(), { cursor: "2017-10-10T15:55:00.000Z" });
});

test("a later run asks for what has changed since the checkpoint", async () => {
  const cursor = "2017-10-10T15:55:00.000Z";
  const host = hostWithIssues(`${FIRST_PAGE}&since=${cursor}`).setCheckpoint({ cursor });
  await host.sync(github, "issues");
  assert.equal(host.records("Issue").length, 13);
});

test("pull requests are not saved", async () => {
  const [first] = recorded[0]?.response as GitHubIssue[];
  const host = new Host(project).setMetadata({ repository: REPOSITORY });
  host.answer(FIRST_PAGE, [{ ...first, pull_request: {} }]);
  await host.sync(github, "issues");
  assert.equal(host.records("Issue").length, 0);
});

test("a run that should stop keeps what it has read, without a checkpoint", async () => {
  const host = hostWithIssues().cancel();
  await host.sync(github, "issues");
  assert.equal(host.records("Issue").length, 3);
  assert.equal(host.checkpoint(), undefined);
});

test("a connection without a repository gets an error that says what to do", async () => {
  await assert.rejects(new Host(project).sync(github, "issues"), (error: SynclineError) => {
    assert.equal(error.code, "no-repository");
    return /metadata `repository`/.test(error.message);
  });
});

test("all repositories are saved", async () => {
  const repository = fixtures.get("api.github.com/get-repository")[0]?.response as GitHubRepository;
  const host = new Host(project).answer("GET /user/repos?per_page=100", [repository]);
  await host.sync(github, "repositories");
  const [saved] = host.records<Repository>("Repository");
  assert.equal(saved?.full_name, "octokit-fixture-org/hello-world");
  assert.equal(saved?.default_branch, "master");
});

test("an issue is created and returned", async () => {
  const created = fixtures.get("api.github.com/add-labels-to-issue")[0];
  const host = new Host(project).setMetadata({ repository: REPOSITORY });
  host.answer(`POST /repos/${REPOSITORY}/issues`, created?.response, { status: 201 });
  const issue = await host.action<Issue>(github, "create-issue", { title: "Issue without a label", labels: null });
  assert.equal(issue.number, 1);
  assert.deepEqual(JSON.parse(host.requests()[0]?.body ?? ""), { title: "Issue without a label" });
});

test("an error of GitHub reaches the caller", async () => {
  const refused = fixtures.get("api.github.com/errors")[0];
  const host = new Host(project).setMetadata({ repository: REPOSITORY });
  host.answer(`POST /repos/${REPOSITORY}/issues`, refused?.response, { status: 422 });
  await assert.rejects(host.action(github, "create-issue", { title: "" }), (error: SynclineError) => {
    assert.equal(error.code, "provider-http-error");
    assert.equal((error.details as { status: number }).status, 422);
    return true;
  });
});

interface WebhookExamples {
  name: string;
  examples: { action: string; issue: GitHubIssue }[];
}

test("each example of an `issues` webhook saves or deletes its issue", async () => {
  const all = createRequire(import.meta.url)("@octokit/webhooks-examples") as WebhookExamples[];
  const examples = all.find(({ name }) => name === "issues")?.examples ?? [];
  assert.ok(examples.length >= 20);
  for (const body of examples) {
    const host = new Host(project).keep("Issue", { id: body.issue.id });
    await host.webhook(github, "issue-changed", { headers: { "X-GitHub-Event": "issues" }, body });
    const [saved] = host.records<Issue>("Issue");
    const gone = body.action === "deleted" || body.action === "transferred";
    assert.equal(saved?.title, gone ? undefined : body.issue.title, body.action);
  }
});
