/** The objects of GitHub's REST API (https://docs.github.com/en/rest), as far as the functions use them. */
import { connection, SynclineError } from "@syncline/sdk";
import type { Issue, Repository } from "./models.ts";

export interface GitHubIssue {
  id: number;
  number: number;
  title: string;
  body?: string | null;
  state: string;
  user: { login: string } | null;
  /** Some webhooks lack it. */
  labels?: (string | { name?: string | null })[];
  assignees?: { login: string }[] | null;
  comments: number;
  html_url: string;
  created_at: string;
  updated_at: string;
  closed_at: string | null;
  /** Present if the issue is a pull request. */
  pull_request?: unknown;
}

export interface GitHubRepository extends Omit<Repository, "url"> {
  html_url: string;
}

export function toIssue(issue: GitHubIssue): Issue {
  const { id, number, title, body, comments, created_at, updated_at, closed_at } = issue;
  return {
    ...{ id, number, title, body: body ?? null, comments, created_at, updated_at, closed_at },
    state: issue.state === "closed" ? "closed" : "open",
    author: issue.user?.login ?? null,
    labels: (issue.labels ?? []).map((label) => (typeof label === "string" ? label : (label.name ?? ""))),
    assignees: (issue.assignees ?? []).map(({ login }) => login),
    url: issue.html_url,
  };
}

export function toRepository(repository: GitHubRepository): Repository {
  const { id, name, full_name, description, private: isPrivate, archived, default_branch, language } = repository;
  return {
    ...{ id, name, full_name, description: description ?? null, archived, default_branch, language: language ?? null },
    private: isPrivate,
    url: repository.html_url,
    updated_at: repository.updated_at ?? null,
  };
}

/** The path of the connection's repository, which your backend names in the connection's metadata. */
export function repositoryPath(): string {
  const { repository } = connection.metadata<{ repository?: string }>();
  if (/^[\w.-]+\/[\w.-]+$/.test(repository ?? "")) return `/repos/${repository}`;
  throw new SynclineError(
    "no-repository",
    "set the connection's metadata `repository` to the repository's full name, such as `octocat/hello-world`",
  );
}
