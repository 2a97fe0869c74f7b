// Usage: GPU-hours by day, and by user, job or machine.

import { h, replace } from "./dom.js";
import { choice, empty, heading, machineLink, remembered, say } from "./parts.js";
import { t } from "./words.js";

const RANGES = [["7", "7 d"], ["30", "30 d"], ["90", "90 d"]];
const COLOURS = 6;
// Less is 0.0 in a table.
export const LEAST_HOURS = 0.05;

export const hours = (count) => (count >= 100 ? String(Math.round(count)) : count.toFixed(1));

export function mount(root, { feed }) {
  const chosen = remembered("usage", { by: "user", days: "7" });
  const days = h("div.usage-days");
  const sums = h("div.usage-sums");
  const change = (name) => (value) => ((chosen[name] = value), load());
  const tools = [
    choice(t("Grouped by"), [["user", t("User")], ["job", t("Job")], ["machine", t("Machine")]], chosen.by, change("by")),
    choice(t("Range"), RANGES.map(([value, words]) => [value, t(words)]), chosen.days, change("days")),
  ];
  const node = h("div.usage", {});
  root.append(heading(t("Usage"), tools), node);
  replace(node, empty(t("Loading …")));
  let asked = 0;

  async function load() {
    const mine = ++asked;
    try {
      const { usage } = await feed.get("/api/usage", { hours: 24 * Number(chosen.days) });
      if (mine === asked) draw(usage.map((row) => ({ day: row.day, name: row[chosen.by], hours: row.hours })));
    } catch (problem) {
      say(problem.message, true);
    }
  }

  function draw(rows) {
    if (!rows.length) return replace(node, empty(t("No GPU-hours yet"), t("Machines are measured once a minute while they are connected; what their GPUs did is added up here.")));
    const totals = summed(rows, (row) => row.name);
    const rank = new Map([...totals.keys()].map((name, at) => [name, Math.min(at, COLOURS - 1)]));
    const all = [...totals.values()].reduce((sum, one) => sum + one, 0);
    replace(days, h("h2", {}, t("By day")), byDay(rows, rank));
    replace(sums, h("h2", {}, t("{n} GPU-hours", { n: hours(all) })), table([...totals].filter(([, sum]) => sum >= LEAST_HOURS), rank, all, chosen.by));
    replace(node, h("section.panel", {}, days), h("section.panel", {}, sums));
  }

  load();
  const timer = setInterval(load, 60_000);
  return () => clearInterval(timer);
}

export function summed(rows, of) {
  const sums = new Map();
  for (const row of rows) sums.set(of(row), (sums.get(of(row)) || 0) + row.hours);
  return new Map([...sums].sort(([, one], [, other]) => other - one));
}

function nameWords(name, by) {
  return name || (by === "job" ? t("without a lease") : t("unknown"));
}

// A bar for each day, newest first, whose parts are the names in their colours.
function byDay(rows, rank) {
  const days = new Map();
  for (const row of rows) days.set(row.day, [...(days.get(row.day) || []), row]);
  for (const [day, parts] of days) days.set(day, [...summed(parts, ({ name }) => name)].map(([name, hours]) => ({ name, hours })));
  const most = Math.max(...[...days.values()].map((parts) => parts.reduce((sum, { hours }) => sum + hours, 0)), 0.01);
  const lines = [...days].reverse().map(([day, parts]) => {
    const sum = parts.reduce((total, { hours }) => total + hours, 0);
    const sorted = [...parts].sort((one, other) => rank.get(one.name) - rank.get(other.name));
    const bar = h("span.stack", { role: "img", "aria-label": sorted.map((part) => `${part.name || t("unknown")} ${hours(part.hours)}`).join(", ") });
    for (const part of sorted) {
      const piece = h("i", { "data-rank": rank.get(part.name), title: `${part.name || t("unknown")} ${hours(part.hours)}` });
      piece.style.width = `${(100 * part.hours) / most}%`;
      bar.append(piece);
    }
    return h("tr", {}, h("th", { scope: "row" }, day), h("td.wide", {}, bar), h("td.number", {}, hours(sum)));
  });
  const titles = ["Day", "GPUs", "Hours"].map((title) => h(title === "Hours" ? "th.number" : "th", { scope: "col" }, t(title)));
  return h("table.plain", {}, h("thead", {}, h("tr", {}, titles)), h("tbody", {}, lines));
}

function table(sums, rank, all, by) {
  const titles = [{ user: "User", job: "Job", machine: "Machine" }[by], "Share", "Hours"].map((title) => h(title === "Hours" ? "th.number" : "th", { scope: "col" }, t(title)));
  const lines = sums.map(([name, sum]) => {
    const bar = h("i", { "data-rank": rank.get(name) });
    bar.style.width = `${(100 * sum) / (sums[0][1] || 1)}%`;
    const words = by === "machine" ? machineLink(name) : by === "job" && name ? h("a.name-link", { href: `#/jobs?${new URLSearchParams({ search: name })}` }, name) : nameWords(name, by);
    return h("tr", {}, h("th", { scope: "row" }, words), h("td.wide", {}, h("span.stack", { "aria-hidden": "true" }, bar), h("span.quiet", {}, `${Math.round((100 * sum) / (all || 1))}%`)), h("td.number", {}, hours(sum)));
  });
  return h("table.plain", {}, h("thead", {}, h("tr", {}, titles)), h("tbody", {}, lines));
}
