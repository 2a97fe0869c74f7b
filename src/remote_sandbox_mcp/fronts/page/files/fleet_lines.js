// The fleet in little room: a line of 28 px for each machine, or a table that sorts; and the first steps of a new user.

import { freeGpus, gpuSquares, gpuState, gpusOf, scoreOf, stateOf } from "./cards.js";
import { bar } from "./chart.js";
import { arrange, attribute, h, put, replace } from "./dom.js";
import { disk, percent, ranges, share } from "./format.js";
import { copyButton, machineAddress, machineLink } from "./parts.js";
import { said } from "./saying.js";
import { parts, t } from "./words.js";

function cpuOf(row) {
  const cpu = row.resources?.cpu;
  if (!cpu) return null;
  return Number.isFinite(cpu.used_pct) ? cpu.used_pct / 100 : share(cpu.load_1m, cpu.machine_count ?? cpu.count);
}

function memoryOf(row) {
  const memory = row.resources?.memory;
  return memory ? share(memory.used_mb, memory.total_mb) : null;
}

function usersOf(row) {
  return [...new Set(gpusOf(row).flatMap(({ lease, processes = [] }) => [lease?.user, ...processes.map(({ user }) => user)]).filter(Boolean))];
}

function freeWords(row) {
  const [all, free] = [gpusOf(row).length, freeGpus(row)];
  if (stateOf(row) !== "up") return [t(stateOf(row)), ""];
  return all ? [free.length ? `${free.length}/${all} ${t("free")}` : t("none free"), free.length ? "free" : ""] : ["–", ""];
}

// `running(name)`: how many jobs run on a machine.
export function fleetLine(first, running) {
  const [name, free, who, jobs] = [h("b"), h("span.line-free"), h("span.line-who"), h("span.line-jobs")];
  const [cpu, memory, squares] = [bar(t("CPU")), bar(t("Memory")), gpuSquares(first)];
  const gpus = h("span.squares");
  const node = h("a.fleet-line.row-link", {}, h("span.dot", { "aria-hidden": "true" }), name, cpu.node, memory.node, gpus, free, who, jobs);
  const update = (row) => {
    attribute(node, "href", machineAddress(row.name));
    attribute(node, "data-state", stateOf(row));
    put(name, row.name);
    for (const [one, label, part] of [[cpu, t("CPU"), cpuOf(row)], [memory, t("Memory"), memoryOf(row)]]) {
      one.update(part, part === null ? "" : `${label} ${percent(part)}`);
    }
    squares.update(row);
    // Not a link of its own in a line that is one.
    const states = gpusOf(row).map(gpuState).join();
    if (states !== gpus.shown) replace(gpus, [...squares.node.children].map((square) => square.cloneNode()));
    gpus.shown = states;
    const [words, state] = freeWords(row);
    put(free, words);
    attribute(free, "data-state", state || null);
    put(who, said(row.trouble || "") || usersOf(row).join(", "));
    const count = running(row.name);
    put(jobs, count ? t("{n} jobs", { n: count }) : "");
  };
  update(first);
  return { node, update };
}

// Title, what it is sorted by (numbers: most first), and what is shown.
const COLUMNS = [
  ["Machine", (row) => row.name, (row) => machineLink(row.name)],
  ["State", (row) => stateOf(row), (row) => t(stateOf(row))],
  ["GPUs free", (row) => freeGpus(row).length, (row) => (gpusOf(row).length ? `${freeGpus(row).length}/${gpusOf(row).length}` : "–")],
  ["Which", (row) => freeGpus(row).length, (row) => ranges(freeGpus(row).map(({ index }) => index))],
  ["Use", (row) => mean(gpusOf(row).map(({ util_pct: used }) => used)), (row) => percent(mean(gpusOf(row).map(({ util_pct: used }) => used)) / 100)],
  ["CPU", cpuOf, (row) => percent(cpuOf(row))],
  ["Memory", memoryOf, (row) => percent(memoryOf(row))],
  ["Disk free", (row) => row.resources?.disk?.free_gb, (row) => disk(row.resources?.disk?.free_gb)],
  ["Heat", (row) => Math.max(...heats(row)), (row) => (heats(row).length ? `${Math.round(Math.max(...heats(row)))}°` : "–")],
  ["Idle", scoreOf, (row) => scoreOf(row)?.toFixed(2) ?? "–"],
  ["Users", (row) => usersOf(row).length, (row) => usersOf(row).join(", ")],
  ["Jobs", (row, counts) => counts.get(row.name) || 0, (row, counts) => counts.get(row.name) || ""],
];
const TEXTS = new Set(["Machine", "State", "Which", "Users"]);

function heats(row) {
  return gpusOf(row).map(({ temperature_c: heat }) => heat).filter(Number.isFinite);
}

function mean(numbers) {
  const known = numbers.filter(Number.isFinite);
  return known.length ? known.reduce((sum, one) => sum + one, 0) / known.length : NaN;
}

const names = new Intl.Collator(undefined, { numeric: true });

// `chosen.column`: a title, with a minus where the other end comes first; empty for the order that is given.
export function fleetTable(root, chosen, changed) {
  const heads = COLUMNS.map(([title]) => {
    const sort = () => {
      chosen.column = chosen.column === title ? `-${title}` : chosen.column === `-${title}` ? "" : title;
      changed();
    };
    return h("th", { scope: "col", class: TEXTS.has(title) ? null : "number" }, h("button.sort-button", { type: "button", onclick: sort }, t(title)));
  });
  const body = h("tbody");
  const known = new Map();
  root.append(h("table.plain", {}, h("thead", {}, h("tr", {}, heads)), body));
  return {
    update(rows, jobs) {
      const counts = new Map();
      for (const job of jobs) if ((job.outcome || job.state) === "running") counts.set(job.sandbox, (counts.get(job.sandbox) || 0) + 1);
      const wanted = chosen.column.replace("-", "");
      heads.forEach((head, at) => attribute(head, "aria-sort", COLUMNS[at][0] !== wanted ? null : chosen.column.startsWith("-") !== TEXTS.has(wanted) ? "ascending" : "descending"));
      const column = COLUMNS.find(([title]) => title === wanted);
      const sorted = column ? [...rows].sort((one, other) => order(column[1](one, counts), column[1](other, counts)) * (chosen.column.startsWith("-") ? -1 : 1)) : rows;
      arrange(body, sorted.map((row) => tableRow(known, row, counts)));
    },
  };
}

function order(one, other) {
  if (typeof one === "string") return names.compare(one, other);
  const [first, second] = [one, other].map((value) => (Number.isFinite(value) ? value : -Infinity));
  return second === first ? 0 : second - first;
}

function tableRow(known, row, counts) {
  let line = known.get(row.name);
  if (!line) {
    line = h("tr", {}, COLUMNS.map(([title], at) => h(at ? "td" : "th", { scope: at ? null : "row", class: TEXTS.has(title) ? null : "number" })));
    known.set(row.name, line);
  }
  if (line.row === row && line.count === counts.get(row.name)) return line;
  [line.row, line.count] = [row, counts.get(row.name)];
  attribute(line, "data-state", stateOf(row));
  COLUMNS.forEach(([, , shown], at) => {
    const value = shown(row, counts);
    if (!(value instanceof Node)) put(line.children[at], value);
    else if (!line.children[at].firstChild) line.children[at].append(value);
  });
  return line;
}

// Nothing is configured yet: what to do, each step with what to type.
export function firstSteps() {
  const step = (title, text, code) => h("section.panel.first-step", {}, h("h2", {}, title), h("p", {}, text), h("span.copy-line", {}, h("code", {}, code), copyButton(code)));
  return h("div", {},
    h("p.first-welcome", {}, t("No machine is configured yet. Three steps, and your agents can work on your machines:")),
    h("div.first-steps", {},
      step(t("Find your machines"), t("This looks into ~/.ssh/config, asks what to use, and registers with your clients (Claude Code, Codex, Cursor)."), "remote-sandbox-mcp setup"),
      step(t("See that they answer"), t("Each machine is checked step by step, and what is missing is said. It appears here by itself."), "remote-sandbox-mcp doctor"),
      step(t("Ask your agent"), parts("Say this to it, or anything that you would do there yourself. {calls} shows what it does.", { calls: h("a.name-link", { href: "#/calls" }, t("Calls")) }), t("Which of my machines has a free GPU?"))));
}
