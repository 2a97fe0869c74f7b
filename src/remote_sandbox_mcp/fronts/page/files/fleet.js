// Fleet: which GPU is free, at one glance; then every machine, as a card, a line of 28 px or a row of a table.

import { freeGpus, gpuSquares, gpusOf, jobState, machineCard, scoreOf, stateOf } from "./cards.js";
import { LazyList, arrange, attribute, h, put, replace, soon, style } from "./dom.js";
import { firstSteps, fleetLine, fleetTable } from "./fleet_lines.js";
import { ranges } from "./format.js";
import { choice, empty, fits, heading, machineAddress, remembered, searchBox, toggle } from "./parts.js";
import { hours } from "./usage.js";
import { t } from "./words.js";

// Heights by which a card is placed before it has been drawn.
const HEAD_PX = 170;
const GPU_PX = 27;
const CELL_PX = 8;
const MOST_FREE = 12;
const LONGEST_LIST = 60;
const TABLE_MS = 1000;
// With more machines than this, the map is drawn small.
const MOST_LARGE = 24;
const MOST_USERS = 8;

export function mount(root, { feed }) {
  const chosen = remembered("fleet", { search: "", sort: "idle", onlyFree: false, as: "cards", column: "" });
  const summary = makeSummary();
  const nothing = h("div");
  const body = h("div");
  let shownAs = "";
  let list = null;
  let table = null;
  const sizes = new ResizeObserver((seen) => seen.forEach(({ target }) => span(target.parentElement, target.offsetHeight)));
  const cards = (grid) => new LazyList(
    grid,
    (row) => {
      const card = machineCard(row, feed.rows("trends").get(row.name));
      sizes.observe(card.node);
      return card;
    },
    (id) => shell(id, feed.rows("machines").get(id)),
  );
  const running = (name) => [...feed.rows("jobs").values()].filter((job) => job.sandbox === name && jobState(job) === "running").length;
  // The list or table of this way of showing them.
  const prepare = () => {
    if (shownAs === chosen.as) return;
    shownAs = chosen.as;
    list?.end();
    list = table = null;
    const label = { "aria-label": t("Fleet") };
    const root = h(shownAs === "cards" ? "ul.grid" : shownAs === "lines" ? "ul.lines" : "div.fleet-table", shownAs === "table" ? { ...label, role: "region", tabindex: "0" } : label);
    if (shownAs === "cards") list = cards(root);
    else if (shownAs === "lines") list = new LazyList(root, (row) => fleetLine(row, running), (id) => h("li.cell", { id: `machine-${id}` }));
    else table = fleetTable(root, chosen, () => soon(draw));
    body.replaceChildren(root);
  };
  const change = (name) => (value) => ((chosen[name] = value), soon(draw));
  const tools = [
    searchBox(t("Filter"), chosen.search, change("search")),
    choice(t("Sort"), [["idle", t("Idle first")], ["name", t("By name")]], chosen.sort, change("sort")),
    toggle(t("Only with a free GPU"), chosen.onlyFree, change("onlyFree")),
    choice(t("Shown as"), [["cards", t("Cards")], ["lines", t("Lines")], ["table", t("Table")]], chosen.as, change("as")),
  ];
  root.append(heading(t("Fleet"), tools), summary.node, nothing, body);

  function draw() {
    const machines = [...feed.rows("machines").values()];
    const jobs = [...feed.rows("jobs").values()];
    prepare();
    summary.update(machines, jobs, feed.rows("usage"));
    summary.node.hidden = !machines.length;
    const shown = machines.filter((row) => isWanted(row, chosen)).sort(chosen.sort === "idle" ? byIdle : byName);
    if (list) list.show(shown.map((row) => [row.name, row]));
    else table.update(shown, jobs);
    body.hidden = !shown.length;
    if (shown.length) nothing.replaceChildren();
    else if (!feed.has("machines")) replace(nothing, empty(t("Loading …")));
    else if (machines.length) replace(nothing, empty(t("Nothing fits the filter")));
    else if (!nothing.querySelector(".first-steps")) replace(nothing, firstSteps());
  }

  function drawTrends() {
    if (shownAs !== "cards") return;
    const trends = feed.rows("trends");
    list.near((card, row) => {
      const trend = trends.get(row.name);
      if (card.drawn === trend) return;
      card.drawn = trend;
      card.trend(trend);
    });
  }

  draw();
  // All rows of a table are compared and laid out together: that is done once a second, and not for each machine.
  let due = 0;
  const changed = () => {
    if (shownAs !== "table") return soon(draw);
    due ||= setTimeout(() => ((due = 0), soon(draw)), TABLE_MS);
  };
  const ends = [feed.listen(["machines", "jobs"], changed), feed.listen(["trends"], () => soon(drawTrends))];
  return () => {
    ends.forEach((end) => end());
    clearTimeout(due);
    list?.end();
    sizes.disconnect();
  };
}

function shell(id, row) {
  const node = h("li.cell", { id: `machine-${id}` });
  span(node, HEAD_PX + GPU_PX * gpusOf(row).length);
  return node;
}

// A card takes as many thin lines of the grid as it is high, so that cards close up without holes.
function span(node, height) {
  if (node) style(node, "grid-row-end", `span ${Math.ceil((height + 16) / CELL_PX)}`);
}

function isWanted(row, { search, onlyFree }) {
  if (onlyFree && !freeGpus(row).length) return false;
  const users = gpusOf(row).flatMap((gpu) => (gpu.processes || []).map((process) => process.user));
  return fits(search, row.name, row.host, row.kind, row.user, stateOf(row), ...gpusOf(row).map((gpu) => gpu.name), ...users);
}

const RANK = { up: 0, asking: 0, down: 1, unasked: 2 };

const names = new Intl.Collator(undefined, { numeric: true });

function byName(one, other) {
  return names.compare(one.name, other.name);
}

// In steps, so that cards do not change places with every small change.
function byIdle(one, other) {
  const step = (row) => Math.round((scoreOf(row) ?? 0) * 10);
  return RANK[stateOf(one)] - RANK[stateOf(other)] || freeGpus(other).length - freeGpus(one).length || step(other) - step(one) || byName(one, other);
}

// The names of more than fit on a line would hide the machines below.
function few(text) {
  return text.length > LONGEST_LIST ? `${text.slice(0, LONGEST_LIST).replace(/[^,]*$/, "")} …` : text;
}

// The strip above: how many GPUs are free, which ones, and all of them as squares.
function makeSummary() {
  const figures = { gpus: figure(t("GPUs free")), machines: figure(t("machines up")), jobs: figure(t("jobs running")) };
  const free = h("p.free-now");
  const map = h("div.map", { role: "group", "aria-label": t("Every GPU, by machine") });
  const used = h("p.used-today");
  const groups = new Map();
  const node = h("section.summary", { "aria-live": "off" }, h("div.figures", {}, figures.gpus.node, figures.machines.node, figures.jobs.node), map, free, used);
  return {
    node,
    update(machines, jobs, usage) {
      const sorted = [...machines].sort(byName);
      const all = sorted.reduce((sum, row) => sum + gpusOf(row).length, 0);
      const open = sorted.reduce((sum, row) => sum + freeGpus(row).length, 0);
      figures.gpus.update(open, all, open ? "free" : "");
      const asked = sorted.filter((row) => stateOf(row) !== "unasked");
      const up = asked.filter((row) => stateOf(row) !== "down").length;
      figures.machines.update(up, asked.length, up < asked.length ? "down" : "");
      figures.jobs.update(jobs.filter((job) => jobState(job) === "running").length, null);
      figures.gpus.node.hidden = !all;
      map.classList.toggle("dense", sorted.length > MOST_LARGE);
      squares(map, groups, sorted);
      usedNow(used, [...usage.values()]);
      whichFree(free, sorted, all);
    },
  };
}

function figure(words) {
  const number = h("span.figure-number");
  const whole = h("span.figure-whole");
  const node = h("p.figure", {}, number, h("span.figure-words", {}, whole, " ", words));
  return {
    node,
    update(count, total, state) {
      put(number, count);
      put(whole, total === null ? "" : t("of {n}", { n: total }));
      attribute(node, "data-state", state || null);
    },
  };
}

function squares(map, groups, machines) {
  const nodes = [];
  for (const row of machines) {
    if (!gpusOf(row).length) continue;
    let group = groups.get(row.name);
    if (!group) {
      group = gpuSquares(row);
      group.node.href = machineAddress(row.name);
      group.whole = h("div.map-machine", {}, h("span.map-name", { "aria-hidden": "true" }, row.name), group.node);
      groups.set(row.name, group);
    } else if (group.row !== row) group.update(row);
    group.row = row;
    nodes.push(group.whole);
  }
  map.hidden = !nodes.length;
  arrange(map, nodes);
}

function goTo(name) {
  const cell = document.getElementById(`machine-${name}`);
  cell?.scrollIntoView({ block: "center", behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
  cell?.classList.add("pointed");
  setTimeout(() => cell?.classList.remove("pointed"), 1600);
}

// GPU-hours of today and of a week, by user.
function usedNow(node, rows) {
  const found = rows.filter(({ week }) => week >= 0.05).sort((one, other) => other.today - one.today || other.week - one.week).slice(0, MOST_USERS);
  const text = found.map(({ user, today, week }) => `${user} ${today} ${week}`).join();
  if (node.shown === text) return;
  node.shown = text;
  replace(node, found.length ? [h("a.name-link", { href: "#/usage" }, t("GPU-hours today (7 d)")), found.map(({ user, today, week }) => h("span", {}, h("b", {}, user), ` ${hours(today)} (${hours(week)})`))] : "");
}

function whichFree(node, machines, all) {
  const found = machines.map((row) => [row.name, freeGpus(row).map((gpu) => gpu.index)]).filter(([, free]) => free.length);
  found.sort((one, other) => other[1].length - one[1].length);
  const words = found.map(([name, free]) => `${name} ${free}`).join(";") + all;
  if (node.shown === words) return;
  node.shown = words;
  if (!found.length) replace(node, all ? t("No GPU is free.") : "");
  else {
    const chips = found.slice(0, MOST_FREE).map(([name, free]) => h("button.free-chip", { type: "button", onclick: () => goTo(name) }, h("b", {}, name), " ", t("GPU"), " ", few(ranges(free))));
    replace(node, h("span.free-title", {}, t("Free now")), chips, found.length > MOST_FREE ? h("span.quiet", {}, t("and {n} more", { n: found.length - MOST_FREE })) : "");
  }
}
