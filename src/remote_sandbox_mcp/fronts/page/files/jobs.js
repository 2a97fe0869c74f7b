// Jobs: what runs, how far it is, and what came of the rest.

import { endedAt, jobCard, jobState } from "./cards.js";
import { LazyList, attribute, h, put, replace, soon } from "./dom.js";
import { GROUPS, ORDERS, stopAll } from "./job_order.js";
import { button, choice, confirmed, empty, fits, heading, machineLink, remembered, searchBox, select, toggle } from "./parts.js";
import { t } from "./words.js";

const STATES = ["all", "running", "pending", "failed", "gone", "ended"];
// When the list was left last: what has failed since is news.
const VISIT = "remote-sandbox-jobs-seen";

export function jobLink(id) {
  return `#/jobs/${encodeURIComponent(id)}`;
}

export function mount(root, { feed }) {
  const chosen = remembered("jobs", { search: "", state: "all", sandbox: "", order: "State", isUp: false, group: "", isNews: false });
  const change = (name) => (value) => ((chosen[name] = value), soon(draw));
  const states = choice(t("State"), STATES.map((state) => [state, t(state)]), chosen.state, change("state"));
  const machines = select(t("Machine"), t("every machine"), chosen.sandbox, change("sandbox"));
  const rows = h("ul.rows.jobs", { "aria-label": t("Jobs") });
  const titles = h("div.job.titles", { role: "group", "aria-label": t("Order") }, Object.keys(ORDERS).map((title) => h("button.title", { type: "button", onclick: () => order(title) }, t(title))));
  const groups = select(t("Group by"), t("no groups"), chosen.group, change("group"));
  groups.update(Object.keys(GROUPS), t);
  const visit = Number(localStorage.getItem(VISIT)) || Infinity;
  const news = toggle(t("new failures"), chosen.isNews, change("isNews"));
  const stop = button(t("Stop"), () => stopShown(), "small.danger");
  const nothing = h("div");
  const leftOut = h("p.quiet.left-out", { hidden: true });
  const list = new LazyList(
    rows,
    (row) => {
      if (row.group !== undefined) return groupRow(row);
      const card = jobCard(row, feed.now(), machineLink(row.sandbox));
      return { node: card.node, tick: card.tick, update: (row) => card.update(row, feed.now()) };
    },
    shell,
  );
  root.append(heading(t("Jobs"), searchBox(t("Filter"), chosen.search, change("search")), machines, groups), h("div.job-bar", {}, states, news, stop), titles, rows, nothing, leftOut);

  let running = [];
  function order(title) {
    chosen.isUp = chosen.order === title && !chosen.isUp;
    chosen.order = title;
    soon(draw);
  }

  async function stopShown() {
    const jobs = running;
    const text = t("All of their processes are ended; each job gets 10 seconds to finish.");
    if (await confirmed({ title: t("Stop {n} jobs?", { n: jobs.length }), text, code: jobs.map((row) => `${row.tmux_session}  ${row.sandbox}`).join("\n"), yes: t("Stop") })) await stopAll(feed, stop, jobs);
  }

  function draw() {
    const all = [...feed.rows("jobs")];
    const counts = {};
    for (const [, row] of all) counts[shelfOf(row)] = (counts[shelfOf(row)] || 0) + 1;
    STATES.forEach((state, at) => states.say(at, `${t(state)} ${state === "all" ? all.length : counts[state] || 0}`));
    machines.update(all.map(([, row]) => row.sandbox));
    const isNew = (row) => shelfOf(row) === "failed" && (endedAt(row) ?? 0) > visit;
    const fresh = all.filter(([, row]) => isNew(row)).length;
    news.hidden = !fresh && !chosen.isNews;
    put(news, t("{n} failed since your last visit", { n: fresh }));
    const way = chosen.isUp ? -1 : 1;
    // An address may say anything.
    const by = Object.hasOwn(ORDERS, chosen.order) ? ORDERS[chosen.order] : ORDERS.State;
    const shown = all.filter(([, row]) => isWanted(row, chosen) && (!chosen.isNews || isNew(row))).sort(([, one], [, other]) => way * by(one, other) || ORDERS.State(one, other));
    running = shown.map(([, row]) => row).filter((row) => ["running", "pending"].includes(jobState(row)));
    const isSome = Boolean(chosen.search || chosen.sandbox || chosen.state !== "all");
    stop.hidden = running.length < 2 || !isSome;
    put(stop, t("Stop these {n}", { n: running.length }));
    [...titles.children].forEach((title, at) => attribute(title, "data-order", Object.keys(ORDERS)[at] === chosen.order ? (chosen.isUp ? "up" : "down") : null));
    [...titles.children].forEach((title) => attribute(title, "aria-pressed", String(title.hasAttribute("data-order"))));
    list.show(Object.hasOwn(GROUPS, chosen.group) ? grouped(shown, GROUPS[chosen.group]) : shown);
    titles.hidden = !shown.length;
    // The server tells only the newest of those that have ended.
    const count = feed.rows("about").get("hub")?.jobs_left_out;
    leftOut.hidden = !(Number.isFinite(count) && count > 0);
    if (!leftOut.hidden) put(leftOut, t("{n} older jobs that have ended are not shown.", { n: count }));
    if (shown.length) nothing.replaceChildren();
    else if (!feed.has("jobs")) replace(nothing, empty(t("Loading …")));
    else if (all.length) replace(nothing, empty(t("Nothing fits the filter")));
    else replace(nothing, empty(t("No jobs yet"), t("What an agent starts in the background appears here, and stays after it has ended.")));
  }

  draw();
  const end = feed.listen(["jobs", "about"], () => soon(draw));
  const clock = setInterval(() => list.near((card) => card.tick(feed.now())), 1000);
  const leave = () => localStorage.setItem(VISIT, String(feed.now()));
  addEventListener("pagehide", leave);
  return () => {
    leave();
    removeEventListener("pagehide", leave);
    end();
    clearInterval(clock);
    list.end();
  };
}

// A link lies below the whole row, so that it is reached by Tab and opens in a tab of its own; the machine's lies above.
function shell(id) {
  if (id.startsWith("\n")) return h("li.job-group");
  const link = h("a.row-link", { href: jobLink(id), "aria-label": id.slice(id.indexOf("/") + 1) });
  const inside = h("div.row-inside");
  // What has a title is above that link, too.
  const node = h("li.row", { onclick: (event) => event.target.closest("a") || link.click() }, link, inside);
  return Object.assign(node, { inside });
}

// Under which of the buttons above a job is found.
function shelfOf(row) {
  const state = jobState(row);
  return state === "stopped" ? "ended" : state;
}

function isWanted(row, { search, state, sandbox }) {
  if (state !== "all" && shelfOf(row) !== state) return false;
  if (sandbox && row.sandbox !== sandbox) return false;
  return fits(search, row.tmux_session, row.command, row.sandbox, row.queue?.partition);
}

// The rows of each group below a row of its own, in the order of their first ones.
function grouped(rows, of) {
  const groups = new Map();
  for (const row of rows) groups.set(of(row[1]), [...(groups.get(of(row[1])) || []), row]);
  return [...groups].flatMap(([name, found]) => [[`\n${name}`, { group: name, n: found.length }], ...found]);
}

function groupRow(first) {
  const name = h("span");
  const count = h("span.quiet");
  const update = ({ group, n }) => (put(name, t(group)), put(count, t("{n} jobs", { n })));
  update(first);
  return { node: h("h2.job-group-name", {}, name, " ", count), update, tick: () => {} };
}
