/** Answers of GitHub's API, which the authors of Octokit have recorded. */
declare module "@octokit/fixtures" {
  interface Exchange {
    method: string;
    path: string;
    status: number;
    response: unknown;
    headers: Record<string, string>;
  }
  const fixtures: { get(name: string): Exchange[] };
  export default fixtures;
}
