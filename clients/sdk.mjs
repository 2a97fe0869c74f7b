// Calls tools with the TypeScript SDK: node sdk.mjs VERSION(1|2) SERVER.json CALLS.json; prints a JSON line for each call.
// Tools are listed first, so that the SDK checks each structured result against its tool's output schema, and throws.
import { readFileSync } from "node:fs";
const [version, serverFile, callsFile] = process.argv.slice(2);
const server = JSON.parse(readFileSync(serverFile)), calls = JSON.parse(readFileSync(callsFile));
const from = async (...names) => Object.assign({}, ...(await Promise.all(names.map((name) => import(name)))));
const sdk = version === "1"
  ? await from("@modelcontextprotocol/sdk/client/index.js", "@modelcontextprotocol/sdk/client/stdio.js",
      "@modelcontextprotocol/sdk/client/streamableHttp.js")
  : await from("@modelcontextprotocol/client", "@modelcontextprotocol/client/stdio");
const transport = server.url
  ? new sdk.StreamableHTTPClientTransport(new URL(server.url), { requestInit: { headers: server.headers } })
  : new sdk.StdioClientTransport({ command: server.command, args: server.args, env: server.env, stderr: "ignore" });
const client = new sdk.Client({ name: `typescript-sdk-${version}`, version: "1" });
await client.connect(transport);
await client.listTools();
for (const call of calls) {
  let told;
  try {
    const answer = await client.callTool({ name: call.tool, arguments: call.arguments });
    const texts = (answer.content ?? []).filter((part) => part.type === "text").map((part) => part.text);
    told = { tool: call.tool, is_error: Boolean(answer.isError), text: texts.join("\n") };
  } catch (problem) {
    told = { tool: call.tool, thrown: String(problem) };
  }
  console.log(JSON.stringify(told));
}
await client.close();
