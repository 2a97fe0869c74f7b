// The keyboard: g and a letter goes to a view, / searches, j and k move, ? tells.

import { h } from "./dom.js";
import { t } from "./words.js";

const SOON_MS = 1200;
// What j and k go through: rows, and the headings of cards.
const ROWS = "main .row-link, main summary.call, main .event-job:not([hidden]), main .cell h2, main .cell .name-link, main .line-link";

export function listen({ views, go, log }) {
  let since = -Infinity;
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape") return escape(event);
    if (isTyping(event.target) || document.querySelector("dialog[open]")) return;
    // By when the keys were pressed: a busy page may hear of them late.
    const isAfterG = event.timeStamp - since < SOON_MS;
    since = -Infinity;
    if (isAfterG && views.some(({ key }) => key === event.key)) go(views.find(({ key }) => key === event.key).name);
    else if (event.key === "g") since = event.timeStamp;
    else if (event.key === "/") focus(document.querySelector("main [data-search]"));
    else if (event.key === "?") help(views);
    else if (event.key === "j" || event.key === "k") step(event.key === "j" ? 1 : -1);
    else if (!log()?.key(event.key)) return;
    event.preventDefault();
  });
}

function isTyping(target) {
  return target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName);
}

function focus(node) {
  node?.focus();
  node?.select?.();
}

// Leaves a search box (and clears it), else goes back from a single job.
function escape(event) {
  const { target } = event;
  if (document.querySelector("dialog[open]")) return;
  if (target.matches?.("[data-search]")) {
    if (target.value) {
      target.value = "";
      target.dispatchEvent(new Event("input"));
    } else target.blur();
  } else if (isTyping(target)) target.blur();
  else document.querySelector("main a.back")?.click();
}

function step(by) {
  const rows = [...document.querySelectorAll(ROWS)].filter((row) => row.checkVisibility?.() ?? true);
  const at = rows.indexOf(document.activeElement);
  const next = rows[at < 0 ? 0 : Math.max(0, Math.min(rows.length - 1, at + by))];
  // A heading is reached by these keys, and by Tab only if it is a link.
  if (next && next.tabIndex < 0) next.tabIndex = -1;
  next?.focus();
  next?.scrollIntoView({ block: "nearest" });
}

export function help(views) {
  const rows = [
    ...views.map(({ key, title }) => [["g", key], t("Go to {view}", { view: t(title) })]),
    [["Ctrl", "K"], t("Find machines, jobs, calls and commands")],
    [["/"], t("Search this view")],
    [["j", "k"], t("Next and previous row")],
    [["f", "w", "n"], t("In a log: follow or pause, wrap, next match")],
    [["l"], t("In a log: copy the address of a line")],
    [["Esc"], t("Close a dialog, clear the search, go back")],
    [["?"], t("Show these keys")],
  ];
  const list = h("dl.keys", {}, rows.map(([keys, words]) => h("div", {}, h("dt", {}, keys.map((key) => h("kbd", {}, key))), h("dd", {}, words))));
  const dialog = h("dialog.dialog", { "aria-labelledby": "keys-title" }, h("form.dialog-form", { method: "dialog" }, h("h2", { id: "keys-title" }, t("Keys")), list, h("div.dialog-buttons", {}, h("button.button", { type: "submit", autofocus: true }, t("Close")))));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}
