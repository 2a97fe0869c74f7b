// The page: its frame, its views by address, its theme and its language.

import { banner, door } from "./banner.js";
import * as calls from "./calls.js";
import { jobState } from "./cards.js";
import { attribute, h, put, soon } from "./dom.js";
import * as events from "./events.js";
import { feed } from "./feed.js";
import * as files from "./files.js";
import * as fleet from "./fleet.js";
import * as jobs from "./jobs.js";
import { help, listen } from "./keys.js";
import * as machine from "./machine.js";
import { findAnything } from "./palette.js";
import { icon, say } from "./parts.js";
import { learn } from "./saying.js";
import * as sandboxes from "./sandboxes.js";
import { entitle, tellOfEnds } from "./tell.js";
import * as transfers from "./transfers.js";
import * as usage from "./usage.js";
import { current, speak, t } from "./words.js";
import * as workspaces from "./workspaces.js";

const VIEWS = [
  { name: "fleet", key: "f", title: "Fleet", view: fleet },
  { name: "jobs", key: "j", title: "Jobs", view: jobs },
  { name: "sandboxes", key: "s", title: "Sandboxes", view: sandboxes },
  { name: "workspaces", key: "w", title: "Workspaces", view: workspaces },
  { name: "transfers", key: "t", title: "Transfers", view: transfers },
  { name: "events", key: "e", title: "Events", view: events },
  { name: "calls", key: "c", title: "Calls", view: calls },
  { name: "usage", key: "u", title: "Usage", view: usage },
  { name: "files", key: "o", title: "Files", view: files },
];
// Loaded when they are opened.
const job = later(() => import("./job.js"));
const terminal = later(() => import("./terminal.js"));
// Reached by the names of machines; and from a job, or from files.
const MACHINE = { name: "machines", title: "Machine", view: machine };
const INNER = [MACHINE, { name: "terminal", title: "Terminal", view: terminal }];
const THEME = "remote-sandbox-theme";
const THEMES = ["system", "light", "dark"];

function later(load) {
  const mount = (root, given) => {
    let end = null;
    load().then((view) => end || ((end = view.mount(root, given)), given.begun()), (problem) => say(problem.message, true));
    return () => ((end ||= () => {})());
  };
  return { mount };
}

let log = null;
let endView = null;
let endFrame = null;
let shown = "";
let main = null;

// Frame

function frame() {
  endFrame?.();
  document.documentElement.lang = current() === "zh" ? "zh-CN" : "en";
  const links = new Map(VIEWS.map(({ name, title, key }) => [name, h("a.nav-link", { href: `#/${name}`, title: `g ${key}` }, icon(name), h("span.nav-words", {}, t(title)), h("span.nav-count", {}))]));
  const status = h("span.live", { role: "status" });
  const language = h("button.quiet-button", { type: "button", lang: current() === "zh" ? "en" : "zh-CN", title: current() === "zh" ? "English" : "中文", onclick: switchLanguage }, current() === "zh" ? "EN" : "中文");
  const theme = h("button.quiet-button", { type: "button", onclick: () => (switchTheme(), nameTheme(theme)) }, icon("theme"));
  nameTheme(theme);
  const keys = h("button.quiet-button.keys-button", { type: "button", "aria-label": t("Keys"), onclick: () => help(VIEWS) }, "?");
  const leave = h("button.quiet-button.leave-button", { type: "button", "aria-label": t("Leave"), title: t("Leave"), onclick: () => feed.leave() }, icon("leave"));
  const top = banner(feed);
  main = h("main.main", { id: "main" });
  const rail = h("header.rail", {},
    h("div.brand", {}, mark(), h("span.brand-name", {}, "remote-sandbox"), status),
    h("nav.nav", { "aria-label": t("Main") }, [...links.values()]),
    h("div.rail-foot", {}, language, theme, keys, leave));
  document.body.replaceChildren(h("a.skip", { href: "#main", onclick: (event) => (event.preventDefault(), main.querySelector("h1")?.focus()) }, t("Skip to content")), rail, h("div.content", {}, top.node, main), h("div.messages", { id: "messages", role: "status", "aria-live": "polite" }));
  const draw = () => drawFrame(status, links);
  const ends = [feed.listen(["phase", "machines", "jobs", "workspaces", "transfers"], () => soon(draw)), top.end];
  endFrame = () => ends.forEach((end) => end());
  draw();
  route(true);
}

function mark() {
  const node = h("span.mark", { "aria-hidden": "true" });
  for (let at = 0; at < 4; at++) node.append(h("i"));
  return node;
}

const PHASES = { live: "live", starting: "connecting", lost: "offline", refused: "offline", key: "locked" };

function drawFrame(status, links) {
  put(status, t(PHASES[feed.phase]));
  attribute(status, "data-phase", feed.phase);
  attribute(document.body, "data-phase", feed.phase);
  const running = [...feed.rows("jobs").values()].filter((row) => jobState(row) === "running").length;
  const moving = [...feed.rows("transfers").values()].filter((row) => row.status === "running").length;
  const conflicts = [...feed.rows("workspaces").values()].filter((row) => row.conflicts?.length).length;
  count(links.get("jobs"), running);
  count(links.get("transfers"), moving);
  count(links.get("workspaces"), conflicts, "failed");
  if ((feed.phase === "key") !== (shown === "door")) route(true);
}

function count(link, number, state = "") {
  const node = link.querySelector(".nav-count");
  put(node, number || "");
  attribute(node, "data-state", number ? state : null);
}

// Addresses: #/fleet, #/jobs/NAME

function route(isAnew = false) {
  const [, name = "", id = ""] = /^#\/(\w+)(?:\/([^?]*))?/.exec(location.hash) || [];
  const view = [...VIEWS, ...INNER].find((one) => one.name === name) || VIEWS[0];
  const wanted = feed.phase === "key" ? "door" : `${view.name}/${id}`;
  if (wanted === shown && !isAnew) return;
  const isMove = shown && shown !== wanted;
  const begun = () => isMove && main.querySelector("h1")?.focus({ preventScroll: true });
  endView?.();
  endView = null;
  shown = wanted;
  main.replaceChildren();
  if (wanted === "door") main.append(door(feed, () => route()));
  else endView = open(view, decoded(id), begun);
  for (const link of document.querySelectorAll(".nav-link")) attribute(link, "aria-current", link.getAttribute("href") === `#/${view.name === MACHINE.name ? "fleet" : view.name}` ? "page" : null);
  entitle(id ? decoded(id) : t(view.title));
  if (isMove) {
    scrollTo(0, 0);
    begun();
  }
}

function decoded(id) {
  try {
    return decodeURIComponent(id);
  } catch {
    return id;
  }
}

function open({ name, view }, id, begun) {
  const line = Number(/\?line=(\d{1,12})$/.exec(location.hash)?.[1]);
  if (name === "jobs" && id.includes("/")) return job.mount(main, { feed, id, begun, at: line, keys: (found) => (log = found) });
  return view.mount(main, { feed, id, begun });
}

// Theme and language

async function switchLanguage() {
  speak(current() === "zh" ? "en" : "zh");
  await learned();
  frame();
}

// The sentences of the server are many, and loaded where they are read.
async function learned() {
  if (current() === "zh") learn((await import("./sentences.js")).SENTENCES);
}

function theme() {
  const kept = localStorage.getItem(THEME);
  return THEMES.includes(kept) ? kept : "system";
}

function switchTheme() {
  localStorage.setItem(THEME, THEMES[(THEMES.indexOf(theme()) + 1) % THEMES.length]);
  applyTheme();
}

function applyTheme() {
  attribute(document.documentElement, "data-theme", theme() === "system" ? null : theme());
}

function nameTheme(node) {
  const words = { system: t("System"), light: t("Light"), dark: t("Dark") }[theme()];
  attribute(node, "aria-label", `${t("Theme")}: ${words}`);
  attribute(node, "title", words);
}

// Start

// The key comes in the part of the address that is never sent, and leaves it at once.
async function enterByAddress() {
  const key = /^#key=(.+)$/.exec(location.hash)?.[1];
  if (!key) return;
  history.replaceState(null, "", location.pathname);
  try {
    await feed.enter(decoded(key));
  } catch (problem) {
    return problem.message;
  }
}

async function start() {
  applyTheme();
  const problem = await enterByAddress();
  feed.start();
  await learned();
  frame();
  if (problem) say(problem, true);
  window.addEventListener("hashchange", async () => {
    const found = await enterByAddress();
    if (found) say(found, true);
    // What a view writes into its address is no such event; another address of the same view is.
    route(location.hash.includes("?"));
  });
  // Another tab has switched the theme.
  window.addEventListener("storage", (event) => event.key === THEME && applyTheme());
  listen({ views: VIEWS, go: (name) => (location.hash = `#/${name}`), log: () => log });
  tellOfEnds(feed);
  findAnything(feed, () => [
    ...VIEWS.map(({ name, title, key }) => ({ kind: t("Go to"), words: t(title), more: `g ${key}`, go: () => (location.hash = `#/${name}`) })),
    { kind: t("Command"), words: t("Theme"), go: () => (switchTheme(), frame()) },
    { kind: t("Command"), words: current() === "zh" ? "English" : "中文", go: switchLanguage },
    { kind: t("Command"), words: t("Keys"), more: "?", go: () => help(VIEWS) },
    { kind: t("Command"), words: t("Leave"), go: () => feed.leave() },
  ]);
}

start();
