// Speaks the Model Context Protocol with a published client, and prints the responses as one JSON list.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

const { MCP_URL, MCP_KEY, MCP_CONNECTION, MCP_INTEGRATION, MCP_CALLS } = process.env;
const transport = new StreamableHTTPClientTransport(new URL(MCP_URL), {
  requestInit: {
    headers: {
      Authorization: `Bearer ${MCP_KEY}`,
      "Connection-Id": MCP_CONNECTION,
      "Provider-Config-Key": MCP_INTEGRATION,
    },
  },
});
const client = new Client({ name: "check", version: "1.0.0" });
await client.connect(transport);
await client.ping();
const answers = [{
  server: client.getServerVersion(),
  capabilities: client.getServerCapabilities(),
  instructions: client.getInstructions(),
}];
for (const { tool, arguments: given } of JSON.parse(MCP_CALLS)) {
  try {
    answers.push(tool ? await client.callTool({ name: tool, arguments: given }) : await client.listTools());
  } catch ({ code, message }) {
    answers.push({ error: { code, message } });
  }
}
await client.close();
console.log(JSON.stringify(answers));
