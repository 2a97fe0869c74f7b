// What several views are built of: search boxes, choices, switches, dialogs, short messages.

import { append, h, put, replace, svg } from "./dom.js";
import { said } from "./saying.js";
import { t } from "./words.js";

const ICONS = {
  fleet: "M3 4h14v5H3zM3 11h14v5H3zM6 6.5h.01M6 13.5h.01",
  jobs: "M4 5l4 5-4 5M10 15h6",
  sandboxes: "M10 3l6.5 3.5v7L10 17l-6.5-3.5v-7zM3.5 6.5L10 10l6.5-3.5M10 10v7",
  workspaces: "M3 6h5l2 2h7v8H3zM3 6V4h5",
  transfers: "M6 16V5M3 8l3-3 3 3M14 4v11M11 12l3 3 3-3",
  events: "M3 10h4l2-6 3 12 2-6h3",
  calls: "M4 4h12v9H9l-4 3v-3H4z",
  search: "M9 4a5 5 0 100 10A5 5 0 009 4zM13 13l4 4",
  files: "M5 3h7l4 4v10H5zM12 3v4h4M8 11h5M8 14h5",
  theme: "M10 3a7 7 0 100 14zM10 3a7 7 0 010 14",
  leave: "M12 4H5v12h7M9 10h8M14 7l3 3-3 3",
  back: "M12 4l-6 6 6 6",
  up: "M5 12l5-5 5 5",
  down: "M5 8l5 5 5-5",
  copy: "M7 7h9v9H7zM4 13V4h9",
  usage: "M4 16V9M8 16V4M12 16v-5M16 16V7",
  bell: "M5 14h10l-1.5-2V9a3.5 3.5 0 00-7 0v3zM9 16h2",
  swap: "M4 7h11l-3-3M16 13H5l3 3",
};

export function icon(name) {
  const node = svg("svg", { viewBox: "0 0 20 20", class: "icon", "aria-hidden": "true" });
  node.append(svg("path", { d: ICONS[name] }));
  return node;
}

export function button(words, onclick, look = "") {
  return h(`button.button${look ? `.${look}` : ""}`, { type: "button", onclick }, words);
}

// The box that the key / goes to.
export function searchBox(words, value, change) {
  const input = h("input.search-input", { type: "search", placeholder: words, "aria-label": words, "data-search": true, value, autocomplete: "off", spellcheck: "false" });
  input.addEventListener("input", () => change(input.value));
  return h("label.search", {}, icon("search"), input);
}

// One of a few: [[value, words], ...].
export function choice(label, options, value, change) {
  const node = h("div.choice", { role: "group", "aria-label": label });
  const buttons = options.map(([one, words]) => {
    const made = h("button.choice-button", { type: "button", "aria-pressed": String(one === value) }, words);
    made.addEventListener("click", () => {
      buttons.forEach((other) => other.setAttribute("aria-pressed", String(other === made)));
      change(one);
    });
    return made;
  });
  append(node, buttons);
  node.say = (at, words) => put(buttons[at], words);
  return node;
}

// One of many; `update` gives it other options, and keeps what is chosen.
export function select(label, all, value, change) {
  const node = h("select.select", { "aria-label": label });
  node.addEventListener("change", () => change(node.value));
  let shown = null;
  node.update = (options, words = (one) => one) => {
    const known = [...new Set([...options, ...(value ? [value] : [])])].filter(Boolean).sort();
    if (known.join("\n") === shown) return;
    shown = known.join("\n");
    const chosen = node.value || value;
    replace(node, all ? h("option", { value: "" }, all) : "", known.map((one) => h("option", { value: one }, words(one))));
    node.value = chosen;
  };
  node.update([]);
  return node;
}

export function toggle(words, isOn, change) {
  const node = h("button.toggle", { type: "button", "aria-pressed": String(isOn) }, words);
  node.addEventListener("click", () => {
    const next = node.getAttribute("aria-pressed") !== "true";
    node.setAttribute("aria-pressed", String(next));
    change(next);
  });
  return node;
}

export function empty(title, text) {
  return h("div.empty", {}, h("p.empty-title", {}, title), text ? h("p.empty-text", {}, text) : "");
}

// A view's first line: title, figures, tools.
export function heading(title, ...tools) {
  return h("header.view-head", {}, h("h1", { tabindex: "-1" }, title), h("div.tools", {}, tools));
}

// Ask before something that cannot be undone; true means yes.
export function confirmed({ title, text, code, yes, no = t("Cancel"), isDanger = true }) {
  return new Promise((answer) => {
    const agree = h(`button.button.${isDanger ? "danger" : "primary"}`, { value: "yes", type: "submit" }, yes);
    const form = h("form.dialog-form", { method: "dialog" }, h("h2", { id: "dialog-title" }, title), text ? h("p", {}, text) : "", code ? h("pre.dialog-code", { tabindex: "0" }, code) : "", h("div.dialog-buttons", {}, h("button.button", { value: "no", type: "submit", autofocus: true }, no), agree));
    const dialog = h("dialog.dialog", { "aria-labelledby": "dialog-title" }, form);
    dialog.addEventListener("close", () => {
      dialog.remove();
      answer(dialog.returnValue === "yes");
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

// Long enough to read a sentence twice, and to try what it says.
const LONG_MS = 30_000;
const SHORT_MS = 3500;

// A short message at the edge; also read aloud.
export function say(text, isProblem = false) {
  const node = h(`div.message${isProblem ? ".problem" : ""}`, {}, said(text));
  const close = h("button.message-close", { type: "button", "aria-label": t("Close"), onclick: () => node.remove() }, "×");
  node.append(close);
  const place = document.getElementById("messages");
  place.append(node);
  while (place.childElementCount > 4) place.firstElementChild.remove();
  setTimeout(() => node.remove(), isProblem ? LONG_MS : SHORT_MS);
}

// Call a tool while a button is busy; its failure is told, and null comes back.
export async function doing(feed, button, tool, given, tell = (problem) => say(problem, true)) {
  button.disabled = true;
  try {
    const answer = await feed.call(tool, given);
    if (!answer.is_error) return answer;
    tell(answer.text || t("It did not work"));
  } catch (problem) {
    tell(problem.message || t("It did not work"));
  } finally {
    button.disabled = false;
  }
  return null;
}

// What came of a call: the first line of its text; the rest is for agents.
export function done({ text }) {
  return text.split("\n")[0];
}

export async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    say(t("Copied"));
  } catch (problem) {
    say(problem.message, true);
  }
}

// Whether any of these texts has all words of the search in it.
export function fits(search, ...texts) {
  const all = texts.join("\n").toLowerCase();
  return search.toLowerCase().split(/\s+/).every((word) => all.includes(word));
}

// What was chosen in a view stays until the page is closed, and is in its address: #/jobs?state=failed
const kept = new Map();

export function remembered(view, first) {
  if (!kept.has(view)) kept.set(view, { ...first });
  const chosen = kept.get(view);
  const said = new URLSearchParams(location.hash.split("?")[1] || "");
  // An address that says something says all.
  if (said.size) for (const [name, usual] of Object.entries(first)) chosen[name] = !said.has(name) ? usual : typeof usual === "boolean" ? said.get(name) === "1" : said.get(name);
  const write = () => history.replaceState(null, "", withQuery(location.hash || `#/${view}`, chosen, first));
  write();
  return new Proxy(chosen, { set: (all, name, value) => ((all[name] = value), write(), true) });
}

function withQuery(hash, chosen, first) {
  const said = new URLSearchParams();
  for (const [name, usual] of Object.entries(first)) if (chosen[name] !== usual) said.set(name, chosen[name] === true ? "1" : chosen[name]);
  return hash.split("?")[0] + (said.size ? `?${said}` : "");
}

export function copyButton(text, label = t("Copy")) {
  return h("button.copy-button", { type: "button", "aria-label": label, title: label, onclick: (event) => (event.preventDefault(), copied(typeof text === "function" ? text() : text)) }, icon("copy"));
}

export function machineAddress(name) {
  return `#/machines/${encodeURIComponent(name)}`;
}

// A machine's name as a link to its page.
export function machineLink(name) {
  return h("a.name-link", { href: machineAddress(name) }, name);
}
