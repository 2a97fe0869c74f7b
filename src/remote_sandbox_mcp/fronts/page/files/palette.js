// Ctrl-K: one box that finds machines, jobs, sandboxes, calls and what can be done.

import { jobState, stateOf, stateWord } from "./cards.js";
import { h, replace, soon } from "./dom.js";
import { fits, machineAddress } from "./parts.js";
import { t } from "./words.js";

const MOST = 40;
const MOST_OF_A_KIND = 15;

export function findAnything(feed, commands) {
  document.addEventListener("keydown", (event) => {
    if (!(event.ctrlKey || event.metaKey) || event.altKey || event.shiftKey || event.key.toLowerCase() !== "k") return;
    event.preventDefault();
    if (!document.querySelector("dialog[open]") && feed.phase !== "key") open(feed, commands);
  });
}

function go(address) {
  return () => (location.hash = address);
}

// Everything that can be found: {kind, words, more, go}.
function all(feed, commands) {
  const machines = [...feed.rows("machines").values()].map((row) => ({ kind: t("Machine"), words: row.name, more: [row.host, t(stateOf(row))].filter(Boolean).join(" · "), go: go(machineAddress(row.name)) }));
  const jobs = [...feed.rows("jobs")].map(([id, row]) => ({ kind: t("Job"), words: row.tmux_session, more: `${row.sandbox} · ${stateWord(jobState(row))} · ${row.command || ""}`, go: go(`#/jobs/${encodeURIComponent(id)}`) }));
  const sandboxes = [...feed.rows("sandboxes")].map(([id, row]) => ({ kind: t("Sandbox"), words: row.name || id, more: row.on || row.kind, go: go("#/sandboxes") }));
  const runs = machines.map(({ words }) => ({ kind: t("Command"), words: t("Run a command on {machine}", { machine: words }), go: go(`${machineAddress(words)}?run=1`) }));
  const calls = [...feed.rows("calls").values()].reverse().map((row) => {
    const given = row.arguments?.command ?? row.arguments?.remote_path ?? row.arguments?.tmux_session ?? "";
    return { kind: t("Call"), words: `${row.tool} ${given}`.slice(0, 160), more: [row.client, row.sandbox].filter(Boolean).join(" · "), go: go(`#/calls?${new URLSearchParams({ search: String(given || row.tool).slice(0, 80) })}`) };
  });
  return [...machines, ...jobs, ...sandboxes, ...commands(), ...runs, ...calls];
}

// Those that have all words; names that begin with them first. No kind pushes the others out.
function best(items, words) {
  const wanted = words.trim().toLowerCase();
  const found = items.filter((item) => fits(wanted, item.kind, item.words, item.more || ""));
  const rank = (item) => (!wanted ? 0 : item.words.toLowerCase().startsWith(wanted) ? 0 : item.words.toLowerCase().includes(wanted) ? 1 : 2);
  const counts = new Map();
  const few = found.map((item, at) => [rank(item), at, item]).sort(([one, first], [other, second]) => one - other || first - second).filter(([, , { kind }]) => {
    counts.set(kind, (counts.get(kind) || 0) + 1);
    return counts.get(kind) <= (wanted ? MOST_OF_A_KIND : 6);
  });
  return few.slice(0, MOST).map(([, , item]) => item);
}

function open(feed, commands) {
  const input = h("input.input.palette-input", { type: "text", role: "combobox", "aria-expanded": "true", "aria-controls": "palette-list", "aria-autocomplete": "list", "aria-label": t("Find machines, jobs, calls and commands"), placeholder: t("Find machines, jobs, calls and commands"), autocomplete: "off", spellcheck: "false" });
  const list = h("ul.palette-list", { id: "palette-list", role: "listbox", "aria-label": t("Found") });
  const nothing = h("p.quiet.palette-nothing", { role: "status" });
  const dialog = h("dialog.dialog.palette", { "aria-label": t("Find machines, jobs, calls and commands") }, input, list, nothing);
  let found = [];
  let at = 0;
  const choose = (next) => {
    at = Math.max(0, Math.min(found.length - 1, next));
    [...list.children].forEach((node, number) => node.setAttribute("aria-selected", String(number === at)));
    list.children[at]?.scrollIntoView({ block: "nearest" });
    if (found.length) input.setAttribute("aria-activedescendant", `palette-${at}`);
    else input.removeAttribute("aria-activedescendant");
  };
  const take = (item) => {
    dialog.close();
    item?.go();
  };
  const draw = (kept) => {
    found = best(all(feed, commands), input.value);
    replace(list, found.map((item, number) => h("li.palette-item", { id: `palette-${number}`, role: "option", "aria-selected": "false", onclick: () => take(item) }, h("span.palette-kind", {}, item.kind), h("span.palette-words", {}, item.words), h("span.palette-more", {}, item.more || ""))));
    list.hidden = !found.length;
    replace(nothing, found.length ? "" : t("Nothing fits the filter"));
    choose(kept ? found.findIndex((item) => item.kind === kept.kind && item.words === kept.words) : 0);
  };
  // What becomes known while the box is open is found, too; what was chosen stays chosen.
  const again = () => draw(found[at]);
  const end = feed.listen(["machines", "jobs", "sandboxes", "calls"], () => soon(again));
  input.addEventListener("input", () => draw());
  input.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 8, PageUp: -8 }[event.key];
    if (step) choose(at + step);
    else if (event.key === "Enter") take(found[at]);
    else return;
    event.preventDefault();
  });
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  dialog.addEventListener("close", () => {
    end();
    dialog.remove();
  });
  document.body.append(dialog);
  draw();
  dialog.showModal();
  input.focus();
}
