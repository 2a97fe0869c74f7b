// Events: what became of watched jobs, as a timeline.

import { LazyList, attribute, h, put, replace, soon } from "./dom.js";
import { clock, day } from "./format.js";
import { jobLink } from "./jobs.js";
import { Older } from "./older.js";
import { empty, fits, heading, machineAddress, machineLink, remembered, searchBox, select } from "./parts.js";
import { said } from "./saying.js";
import { t } from "./words.js";

const LOOKS = {
  succeeded: "ended", failed: "failed", stopped: "gone", completed: "ended", running_restored: "running", resume_started: "running", interrupted: "gone",
  ssh_unreachable: "unknown", resume_failed: "failed", config_missing: "failed", exhausted: "failed",
  gpu_idle: "gone", silent: "gone", lease_over: "gone",
};

export function mount(root, { feed }) {
  const chosen = remembered("events", { search: "", kind: "", sandbox: "" });
  const change = (name) => (value) => ((chosen[name] = value), soon(draw));
  const kinds = select(t("Kind"), t("every kind"), chosen.kind, change("kind"));
  const machines = select(t("Machine"), t("every machine"), chosen.sandbox, change("sandbox"));
  const rows = h("ul.rows.timeline", { "aria-label": t("Events") });
  const nothing = h("div");
  const list = new LazyList(rows, eventRow, () => h("li.row"));
  const older = new Older(feed, "events", "/api/events", () => soon(draw));
  root.append(heading(t("Events"), searchBox(t("Filter"), chosen.search, change("search")), kinds, machines), nothing, rows, older.node);

  function draw() {
    const all = older.all();
    kinds.update(all.map(([, row]) => row.event_type), kindWord);
    machines.update(all.map(([, row]) => row.sandbox));
    const shown = all.filter(([, row]) => (!chosen.kind || row.event_type === chosen.kind) && (!chosen.sandbox || row.sandbox === chosen.sandbox) && fits(chosen.search, row.summary, row.tmux_session, row.sandbox, row.event_type));
    list.show(withDays(shown, feed.now()));
    older.node.hidden = !all.length;
    if (shown.length) nothing.replaceChildren();
    else if (!feed.has("events")) replace(nothing, empty(t("Loading …")));
    else if (all.length) replace(nothing, empty(t("Nothing fits the filter")));
    else replace(nothing, empty(t("No events"), t("When a watched job ends, is interrupted or resumed, it is told here.")));
  }

  draw();
  const end = feed.listen(["events"], () => soon(draw));
  return () => {
    end();
    list.end();
  };
}

// A line with the date before the first event of each day. Those lines are kept, so that they are not made anew.
const days = new Map();

function withDays(events, now) {
  const found = [];
  let last = "";
  for (const [id, row] of events) {
    const today = day(row.created_ts);
    if (today !== last) {
      const words = today === day(now) ? t("Today") : today === day(now - 86400) ? t("Yesterday") : today;
      if (days.get(today)?.day !== words) days.set(today, { day: words });
      found.push([`day ${today}`, days.get(today)]);
    }
    last = today;
    found.push([id, row]);
  }
  return found;
}

function kindWord(kind) {
  return t(kind).replaceAll("_", " ");
}

function eventRow(first) {
  if (first.day) {
    const node = h("h2.day", {}, first.day);
    return { node, update: (row) => put(node, row.day) };
  }
  const time = h("time.event-time");
  const kind = h("span.state");
  const job = h("a.event-job");
  const machine = machineLink("");
  const summary = h("p.event-summary");
  const node = h("div.event", {}, time, h("span.event-mark", { "aria-hidden": "true" }), h("div.event-body", {}, h("p.event-head", {}, kind, job, machine), summary));
  const update = (row) => {
    attribute(node, "data-state", LOOKS[row.outcome || row.event_type] || "unknown");
    const when = new Date(row.created_ts * 1000);
    put(time, clock(row.created_ts, row.created_ts).slice(0, 5));
    attribute(time, "title", when.toLocaleString());
    put(kind, kindWord(row.outcome || row.event_type));
    job.hidden = !row.tmux_session;
    if (row.tmux_session) {
      job.href = jobLink(`${row.sandbox}/${row.tmux_session}`);
      put(job, row.tmux_session);
    }
    machine.hidden = !row.sandbox;
    machine.href = machineAddress(row.sandbox);
    put(machine, row.sandbox);
    put(summary, said(row.summary));
  };
  update(first);
  return { node, update };
}
