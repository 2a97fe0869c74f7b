// Jobs: what runs, how far it is, and what came of the rest.

import { jobCard, jobState } from "./cards.js";
import { LazyList, h, put, replace, soon } from "./dom.js";
import { choice, empty, fits, heading, remembered, searchBox, select } from "./parts.js";
import { t } from "./words.js";

const STATES = ["all", "running", "pending", "failed", "gone", "ended"];
const RANK = { running: 0, pending: 1, unknown: 2 };

export function jobLink(id) {
  return `#/jobs/${encodeURIComponent(id)}`;
}

export function mount(root, { feed }) {
  const chosen = remembered("jobs", { search: "", state: "all", sandbox: "" });
  const change = (name) => (value) => ((chosen[name] = value), soon(draw));
  const states = choice(t("State"), STATES.map((state) => [state, t(state)]), chosen.state, change("state"));
  const machines = select(t("Machine"), t("every machine"), chosen.sandbox, change("sandbox"));
  const rows = h("ul.rows.jobs", { "aria-label": t("Jobs") });
  const titles = h("div.job.titles", { "aria-hidden": "true" }, ["State", "Job", "Machine", "Time", "Progress", "Exit", "Restarts"].map((title) => h("span", {}, t(title))));
  const nothing = h("div");
  const leftOut = h("p.quiet.left-out", { hidden: true });
  const list = new LazyList(
    rows,
    (row) => {
      const card = jobCard(row, feed.now());
      return { node: card.node, tick: card.tick, update: (row) => card.update(row, feed.now()) };
    },
    shell,
  );
  root.append(heading(t("Jobs"), searchBox(t("Filter"), chosen.search, change("search")), machines), states, titles, rows, nothing, leftOut);

  function draw() {
    const all = [...feed.rows("jobs")];
    const counts = {};
    for (const [, row] of all) counts[shelfOf(row)] = (counts[shelfOf(row)] || 0) + 1;
    STATES.forEach((state, at) => states.say(at, `${t(state)} ${state === "all" ? all.length : counts[state] || 0}`));
    machines.update(all.map(([, row]) => row.sandbox));
    const shown = all.filter(([, row]) => isWanted(row, chosen)).sort(newestFirst);
    list.show(shown);
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
  return () => {
    end();
    clearInterval(clock);
    list.end();
  };
}

// The row is a link, so that it is reached by Tab and opens in a tab of its own.
function shell(id) {
  const link = h("a.row-link", { href: jobLink(id) });
  const node = h("li.row", {}, link);
  node.inside = link;
  return node;
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

function newestFirst([, one], [, other]) {
  const rank = (row) => RANK[jobState(row)] ?? 3;
  return rank(one) - rank(other) || (other.began ?? other.started_ts ?? 0) - (one.began ?? one.started_ts ?? 0);
}
