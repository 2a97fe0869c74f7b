// Cards inside an MCP client: the result of a tool, drawn as on the page (MCP Apps, 2026-01-26).
import { jobCard, machineCard } from "./cards.js";
import { h, replace } from "./dom.js";
import { learn } from "./saying.js";
import { SENTENCES } from "./sentences.js";
import { t, speak } from "./words.js";

learn(SENTENCES);
const PROTOCOL = "2026-01-26";
const root = document.getElementById("cards");
const asked = new Map();
let lastId = 0;
// The call whose result is shown, so that it can be made again.
const call = { name: "", arguments: {}, isRepeatable: false };

function send(message) {
  // The client's frame has an origin that we cannot know; nothing that is sent is secret.
  parent.postMessage({ jsonrpc: "2.0", ...message }, "*");
}

function ask(method, params) {
  const id = ++lastId;
  send({ id, method, params });
  return new Promise((resolve, reject) => asked.set(id, { resolve, reject }));
}

const HEARD = {
  "ui/notifications/tool-input": (params) => (call.arguments = params.arguments ?? {}),
  "ui/notifications/tool-result": (params) => show(params),
  "ui/notifications/tool-cancelled": () => say(t("The call was cancelled.")),
  "ui/notifications/host-context-changed": (params) => fit(params),
};

addEventListener("message", ({ source, data }) => {
  if (source !== parent || data?.jsonrpc !== "2.0") return;
  if (data.method === undefined) settle(data);
  // Requests that we do not know are answered, too: a client waits for that before it removes the frame.
  else if (data.id !== undefined) send({ id: data.id, result: {} });
  else HEARD[data.method]?.(data.params ?? {});
});

function settle({ id, result, error }) {
  const waiting = asked.get(id);
  asked.delete(id);
  if (error) waiting?.reject(new Error(error.message));
  else waiting?.resolve(result);
}

// The client's theme and language.
function fit(context) {
  if (context.theme) document.documentElement.dataset.theme = context.theme;
  if (context.locale) speak(context.locale.toLowerCase().startsWith("zh") ? "zh" : "en");
  if (context.toolInfo?.tool?.name) call.name = context.toolInfo.tool.name;
}

function show(result) {
  const told = result.structuredContent ?? {};
  const text = (result.content ?? []).map((part) => part.text ?? "").join("\n");
  if (result.isError) return say(text);
  const cards = (told.sandboxes ?? []).map((row) => machineCard(asMachine(row)).node);
  if (told.tmux_session) cards.push(jobCard(asJob(told), Date.now() / 1000).node);
  if (told.log_tail) cards.push(h("pre.tail", { tabIndex: 0, "aria-label": t("Log") }, told.log_tail));
  if (!cards.length) return say(text);
  replace(root, h("div.fleet", {}, cards), call.isRepeatable && again());
}

// The fields of list_sandboxes as the page has them.
function asMachine(row) {
  const { connection_alive: alive, connection_error: trouble, ...rest } = row;
  const state = alive ? "up" : alive === false ? "down" : "unasked";
  return { ...rest, state, trouble, idle_score: row.resources?.idle_score };
}

// Those of check_background_task.
function asJob(row) {
  const state = row.running ? "running" : row.pending ? "pending" : row.exit_code === undefined ? "gone" : "ended";
  return { ...row, state, sandbox: row.sandbox ?? call.arguments.sandbox_name ?? "", trouble: row.error };
}

function say(text) {
  replace(root, h("p.said", {}, text), call.isRepeatable && again());
}

function again() {
  const button = h("button.button.again", { type: "button" }, t("Refresh"));
  button.addEventListener("click", async () => {
    button.disabled = true;
    try {
      show(await ask("tools/call", { name: call.name, arguments: call.arguments }));
    } catch (problem) {
      say(problem.message);
    }
  });
  return button;
}

async function begin() {
  const version = document.documentElement.dataset.version;
  const told = await ask("ui/initialize", {
    appInfo: { name: "remote-sandbox-mcp", version },
    appCapabilities: {},
    protocolVersion: PROTOCOL,
  });
  call.isRepeatable = Boolean(told.hostCapabilities?.serverTools);
  fit(told.hostContext ?? {});
  send({ method: "ui/notifications/initialized", params: {} });
  new ResizeObserver(() => {
    send({ method: "ui/notifications/size-changed", params: { height: Math.ceil(root.getBoundingClientRect().height) } });
  }).observe(root);
}

begin();
