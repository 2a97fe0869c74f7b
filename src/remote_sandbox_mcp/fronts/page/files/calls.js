// Calls: every tool call of every client, and what came of it.

import { LazyList, h, put, replace, soon } from "./dom.js";
import { clock, duration, moment, took } from "./format.js";
import { Older } from "./older.js";
import { copyButton, empty, fits, heading, machineLink, remembered, searchBox, select, toggle } from "./parts.js";
import { t } from "./words.js";

const LONGEST_WHAT = 300;
const ASK_MS = 300;

export function mount(root, { feed }) {
  const chosen = remembered("calls", { search: "", client: "", sandbox: "", tool: "", failed: false });
  const older = new Older(feed, "calls", "/api/calls", () => soon(draw));
  older.filter = () => ({ client: chosen.client, sandbox: chosen.sandbox, tool: chosen.tool, failed: chosen.failed ? 1 : "" });
  older.fits = (row) => isWanted(row, { ...chosen, search: "" });
  let asking = 0;
  // What fits may be older than the newest 200, so the server is asked with the same filter.
  const change = (name) => (value) => {
    chosen[name] = value;
    older.reset();
    clearTimeout(asking);
    if (name !== "search" && value) asking = setTimeout(() => older.load(true), ASK_MS);
    soon(draw);
  };
  const clients = select(t("Client"), t("every client"), chosen.client, change("client"));
  const sandboxes = select(t("Sandbox"), t("every sandbox"), chosen.sandbox, change("sandbox"));
  const tools = select(t("Tool"), t("every tool"), chosen.tool, change("tool"));
  const rows = h("ul.rows.calls", { "aria-label": t("Calls") });
  const nothing = h("div");
  const list = new LazyList(rows, (row) => callRow(row, feed), () => h("li.row"));
  root.append(heading(t("Calls"), searchBox(t("Filter"), chosen.search, change("search")), clients, sandboxes, tools, toggle(t("Only failed"), chosen.failed, change("failed"))), nothing, rows, older.node);

  function draw() {
    const all = older.all();
    clients.update(all.map(([, row]) => row.client));
    sandboxes.update(all.map(([, row]) => row.sandbox));
    tools.update(all.map(([, row]) => row.tool));
    // Those that run have no number yet, and come first.
    const running = [...feed.rows("running")].reverse().map(([id, row]) => [`running ${id}`, row]);
    const shown = [...running, ...all].filter(([, row]) => isWanted(row, chosen));
    list.show(shown);
    older.node.hidden = !all.length;
    if (shown.length) nothing.replaceChildren();
    else if (!feed.has("calls")) replace(nothing, empty(t("Loading …")));
    else if (all.length) replace(nothing, empty(t("Nothing fits the filter")));
    else replace(nothing, empty(t("No calls"), t("Every tool call of every client is listed here once it has ended.")));
  }

  draw();
  const end = feed.listen(["calls", "running"], () => soon(draw));
  const timer = setInterval(() => list.near((card) => card.tick?.()), 1000);
  return () => {
    end();
    clearInterval(timer);
    clearTimeout(asking);
    list.end();
  };
}

// They tell a job's exit code, and not one of their own.
const ABOUT_JOBS = ["stop_background_task", "check_background_task", "wait_background_task"];

function isFailed(row) {
  if (row.outcome === "running" || (row.outcome === "done" && ABOUT_JOBS.includes(row.tool))) return false;
  return row.outcome !== "done" || (row.exit_code !== undefined && row.exit_code !== null && row.exit_code !== 0);
}

function isWanted(row, { search, client, sandbox, tool, failed }) {
  if ((client && row.client !== client) || (sandbox && row.sandbox !== sandbox) || (tool && row.tool !== tool)) return false;
  if (failed && !isFailed(row)) return false;
  return !search || fits(search, row.tool, row.client, row.sandbox, row.outcome, row.result, JSON.stringify(row.arguments || {}));
}

// What a call was about, in one line: its command or path, else its arguments.
function what(row) {
  const given = row.arguments || {};
  const first = given.command ?? given.code ?? given.remote_path ?? given.path ?? given.pattern ?? given.tmux_session;
  const text = typeof first === "string" ? first : Object.entries(given).map(([name, value]) => `${name}=${typeof value === "string" ? value : JSON.stringify(value)}`).join(" ");
  return text.slice(0, LONGEST_WHAT).replace(/\s+/g, " ");
}

function outcome(row) {
  if (row.outcome !== "done") return t(row.outcome).replaceAll("_", " ");
  return row.exit_code === undefined || row.exit_code === null ? t("done") : t("exit {code}", { code: row.exit_code });
}

function callRow(row, feed) {
  const when = moment(row.began ?? row.time);
  const isRunning = row.outcome === "running";
  const time = h("span.call-took", {}, isRunning ? "" : took(row.seconds));
  const tick = () => isRunning && put(time, duration(feed.now() - when));
  tick();
  const head = h("summary.call", { "data-state": isFailed(row) ? "failed" : isRunning ? "running" : "ended" },
    h("time.call-time", { title: new Date(when * 1000).toLocaleString() }, clock(when, feed.now())),
    h("span.call-tool", {}, row.tool),
    h("span.call-what", {}, what(row)),
    h("span.call-client", {}, row.client || "–"),
    h("span.call-sandbox", {}, row.sandbox || "–"),
    h("span.call-outcome", {}, outcome(row)),
    time);
  const node = h("details.call-box", {}, head);
  // The details are made when they are looked at.
  node.addEventListener("toggle", () => node.open && node.childElementCount < 2 && node.append(details(row)));
  return { node, tick, update: () => {} };
}

// A command is copied as it is, and other arguments as JSON.
function copied_({ arguments: given = {} }) {
  return typeof given.command === "string" ? given.command : JSON.stringify(given, null, 1);
}

function details(row) {
  const facts = [
    [t("Client"), [row.client, row.version].filter(Boolean).join(" ")],
    [t("Sandbox"), row.sandbox ? row.sandbox.split(", ").map((name, at) => [at ? ", " : "", machineLink(name)]) : ""],
    [t("Folder"), row.folder],
    [t("Session"), row.session],
    [t("Outcome"), outcome(row)],
    [t("Took"), took(row.seconds)],
  ].filter(([, value]) => value);
  return h("div.call-details", {},
    h("dl.facts", {}, facts.map(([name, value]) => h("div.fact", {}, h("dt", {}, name), h("dd", {}, value)))),
    h("h2", {}, t("Arguments"), " ", copyButton(copied_(row))), h("dl.arguments", {}, Object.entries(row.arguments || {}).map(([name, value]) => h("div.fact", {}, h("dt", {}, name), h("dd.code", {}, typeof value === "string" ? value : JSON.stringify(value, null, 1))))),
    row.result ? [h("h2", {}, t("Result"), " ", copyButton(row.result)), h("pre", { tabindex: "0" }, row.result)] : "");
}
