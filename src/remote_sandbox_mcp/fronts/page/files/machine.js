// One machine: its hours and days, its GPUs and who has them, and all that is on it.

import { freeGpus, gpuState, gpusOf, jobState, outcomeWords, progressOf, ranFor, stateOf, stateWord } from "./cards.js";
import { bar } from "./chart.js";
import { attribute, h, put, replace, soon, svg } from "./dom.js";
import { clock, disk, duration, gigabytes, moment, percent, ranges, share } from "./format.js";
import { choice, confirmed, copyButton, doing, icon, remembered, say } from "./parts.js";
import { portLinks, runPanel } from "./sandboxes.js";
import { said } from "./saying.js";
import { LEAST_HOURS, hours, summed } from "./usage.js";
import { t } from "./words.js";

const RANGES = [["1", "1 h"], ["24", "24 h"], ["168", "7 d"], ["720", "30 d"], ["2160", "90 d"]];
const MINUTE_MS = 60_000;
const [WIDTH, HEIGHT] = [600, 110];
const MOST_JOBS = 30;
const MOST_CALLS = 15;

export function mount(root, { feed, id: name }) {
  const chosen = remembered(`machine ${name}`, { range: "24", run: false });
  const say_ = h("span.verdict");
  const where = h("p.quiet");
  const ssh = h("span.tools");
  const head = h("header.view-head", {}, h("a.back", { href: "#/fleet", "aria-label": t("Back to all machines") }, icon("back")), h("div.job-title", {}, h("h1", { tabindex: "-1" }, name), where), h("div.tools", {}, say_, ssh));
  const trouble = h("p.trouble", { hidden: true });
  const curves = ["CPU", "Memory", "GPU"].map((words) => curve(t(words)));
  const range = choice(t("Range"), RANGES.map(([value, words]) => [value, t(words)]), chosen.range, (value) => ((chosen.range = value), load()));
  const parts = { gpus: section(t("GPU")), jobs: section(t("Jobs")), calls: section(t("Calls")), hours: section(t("GPU-hours")), containers: section(t("Sandboxes")), sessions: section(t("Sessions")), ports: section(t("Ports")) };
  // Asked for once more: a machine is no sandbox to try things in.
  const send = async (go, command) => {
    const isMeant = await confirmed({ title: t("Run this on {machine}?", { machine: name }), code: command, yes: t("Run"), isDanger: false });
    return isMeant ? doing(feed, go, "exec_bash", { sandbox_name: name, command }) : null;
  };
  const runs = section(t("Run a command"), runPanel(name, send));
  if (chosen.run) setTimeout(() => runs.node.querySelector("input").focus());
  chosen.run = false;
  const over = section(t("Over time"), range, h("div.curves", {}, curves.map(({ node }) => node)));
  root.append(head, trouble, over.node, h("div.machine-page", {}, parts.gpus.node, parts.jobs.node, runs.node, parts.calls.node, parts.hours.node, parts.containers.node, parts.sessions.node, parts.ports.node));
  let known = null;
  let asked = 0;

  async function load() {
    const mine = ++asked;
    try {
      const found = await feed.get("/api/machine", { name, hours: chosen.range });
      if (mine === asked) known = found;
    } catch (problem) {
      say(problem.message, true);
    }
    soon(draw);
  }

  function draw() {
    const row = feed.rows("machines").get(name);
    trouble.hidden = Boolean(row) || !feed.has("machines");
    if (!trouble.hidden) put(trouble, t("No machine has this name (any more)."));
    if (row) drawRow(row, say_, where, ssh, trouble);
    const end = feed.now();
    const span = 3600 * Number(chosen.range);
    const trend = feed.rows("trends").get(name)?.points || [];
    // The last hour is at hand, point by point; more is asked for.
    const points = chosen.range === "1" ? trend : joined(known?.points || [], trend, span / 240);
    const shown = points.filter(([at]) => at >= end - span);
    curves[0].update(shown.map(([at, cpu]) => [at, [cpu]]), end, span);
    curves[1].update(shown.map(([at, , memory]) => [at, [memory]]), end, span);
    curves[2].update(shown.map(([at, , , gpus]) => [at, gpus || []]), end, span);
    curves[2].node.hidden = !shown.some(([, , , gpus]) => gpus?.length);
    const jobs = [...feed.rows("jobs")].filter(([, job]) => job.sandbox === name);
    const mine = ([, made]) => made.on === name;
    fill(parts.gpus, row ? gpusOf(row) : [], (gpus) => gpuTable(gpus, jobs));
    fill(parts.jobs, jobs.length ? jobLines(jobs, feed.now()) : [], (lines) => jobList(lines, jobs.length, name));
    fill(parts.calls, callsOn(feed, name), (rows) => callList(rows, name, feed.now()));
    fill(parts.hours, known?.usage || [], (rows) => hoursTable(rows, name));
    fill(parts.containers, [...feed.rows("sandboxes")].filter(mine), (made) => list(made, ([key, it]) => [h("a.name-link", { href: "#/sandboxes" }, it.name || key), h("span.quiet", {}, [it.image, t(it.status || "")].filter(Boolean).join(" · "))]));
    fill(parts.sessions, known?.sessions || [], (found) => list(found, (it) => [h("code", {}, it.tmux_session), h("span.quiet", {}, [t(it.status), it.folder, it.used ? clock(moment(it.used), feed.now()) : ""].filter(Boolean).join(" · "))]));
    if (known) portLinks(parts.ports.body, feed, { ports: known.ports }, name);
    parts.ports.node.hidden = !known;
  }

  draw();
  load();
  const ends = [feed.listen(["machines", "jobs", "calls", "sandboxes"], () => soon(draw))];
  const timer = setInterval(() => (document.hidden ? null : load()), MINUTE_MS);
  return () => {
    ends.forEach((end) => end());
    clearInterval(timer);
    asked = -1;
  };
}

function section(title, ...content) {
  const body = h("div.section-body", {}, content);
  return { node: h("section.panel.machine-section", {}, h("h2", {}, title), body), body };
}

// Made anew when it changes; not while the keyboard is in it.
function fill(part, rows, make) {
  part.node.hidden = !rows.length;
  const text = JSON.stringify(rows);
  if (part.text === text || part.body.contains(document.activeElement)) return;
  part.text = text;
  replace(part.body, rows.length ? make(rows) : "");
}

function list(rows, line) {
  return h("ul.plain-list", {}, rows.map((row) => h("li", {}, line(row))));
}

function drawRow(row, verdict, where, ssh, trouble) {
  const state = stateOf(row);
  const [all, free] = [gpusOf(row).length, freeGpus(row)];
  attribute(verdict, "data-state", state === "down" ? "down" : free.length ? "free" : "");
  put(verdict, state !== "up" ? t(state) : all ? t("{free} of {total} free", { free: free.length, total: all }) : "");
  const { cpu, memory, disk: space } = row.resources || {};
  const place = row.host ? `${row.user ? `${row.user}@` : ""}${row.host}` : row.kind;
  put(where, [place, cpu?.count ? t("{n} CPUs", { n: cpu.count }) : "", memory ? `${gigabytes(memory.total_mb)} GB` : "", space ? t("{free} free", { free: disk(space.free_gb) }) : "", free.length ? `${t("GPU")} ${ranges(free.map((gpu) => gpu.index))} ${t("free")}` : ""].filter(Boolean).join(" · "));
  const command = row.host ? ["ssh", row.port && row.port !== 22 ? `-p ${row.port}` : "", `${row.user ? `${row.user}@` : ""}${row.host}`].filter(Boolean).join(" ") : "";
  if (ssh.shown !== command) {
    ssh.shown = command;
    replace(ssh, command ? h("span.copy-line", {}, h("code", {}, command), copyButton(command)) : "");
  }
  put(trouble, said(row.trouble || row.resources?.gpu_error || ""));
  trouble.hidden = !trouble.textContent;
}

// Points that were kept, and those of the last hour that came later, as their mean over each `step`.
function joined(kept, trend, step) {
  const last = kept.length ? kept[kept.length - 1][0] : 0;
  const groups = new Map();
  for (const point of trend) {
    const key = Math.floor(point[0] / step);
    if (point[0] > last) groups.set(key, [...(groups.get(key) || []), point]);
  }
  const mean = (group, of) => meanOf(group.map(of).filter(Number.isFinite));
  const means = [...groups.values()].map((group) => {
    const end = group[group.length - 1];
    return [end[0], mean(group, (point) => point[1]), mean(group, (point) => point[2]), (end[3] || []).map((_, at) => mean(group, (point) => point[3]?.[at]))];
  });
  return [...kept, ...means];
}

// Curves

function curve(words) {
  const now = h("span.curve-now");
  const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", class: "curve", role: "img" });
  const grid = svg("path", { class: "curve-grid", d: `M0 1H${WIDTH}M0 ${HEIGHT / 2}H${WIDTH}M0 ${HEIGHT - 1}H${WIDTH}` });
  const each = svg("path", { class: "curve-each" });
  const area = svg("path", { class: "spark-area" });
  const mean = svg("path", { class: "spark-line" });
  picture.append(grid, area, each, mean);
  const axis = h("div.curve-axis", { "aria-hidden": "true" });
  const node = h("figure.curve-box", {}, h("figcaption", {}, words, now), picture, axis);
  return {
    node,
    // `points`: [[time, [share, ...]], ...]
    update(points, end, span) {
      const width = Math.max(0, ...points.map(([, shares]) => shares.length));
      const lines = Array.from({ length: width }, (_, at) => stretches(points.map(([time, shares]) => [time, shares[at]]), end, span));
      const means = stretches(points.map(([time, shares]) => [time, meanOf(shares)]), end, span);
      attribute(mean, "d", path(means));
      attribute(area, "d", means.map((one) => `M${one[0][0]} ${HEIGHT}L${one.map((point) => point.join(" ")).join("L")}L${one[one.length - 1][0]} ${HEIGHT}Z`).join(""));
      attribute(each, "d", width > 1 ? lines.map(path).join("") : "");
      const known = points.map(([, shares]) => meanOf(shares)).filter(Number.isFinite);
      const sum = known.reduce((total, one) => total + one, 0);
      put(now, known.length ? t("now {now}, mean {mean}", { now: percent(known[known.length - 1]), mean: percent(sum / known.length) }) : t("nothing was measured"));
      attribute(picture, "aria-label", `${words}: ${now.textContent}`);
      const marks = [0, 0.25, 0.5, 0.75, 1].map((part) => mark(end - span * (1 - part), span));
      if (axis.shown !== marks.join()) {
        axis.shown = marks.join();
        replace(axis, marks.map((text) => h("span", {}, text)));
      }
    },
  };
}

function mark(at, span) {
  const when = new Date(at * 1000);
  const two = (number) => String(number).padStart(2, "0");
  const day = `${two(when.getMonth() + 1)}-${two(when.getDate())}`;
  return span > 2 * 86400 ? day : `${two(when.getHours())}:${two(when.getMinutes())}`;
}

function meanOf(shares) {
  const known = shares.filter(Number.isFinite);
  return known.length ? known.reduce((sum, one) => sum + one, 0) / known.length : null;
}

// Lines without a gap; where nothing was measured for long, there is one.
function stretches(points, end, span) {
  const found = [];
  const gap = Math.max(span / 60, 200);
  let last = -Infinity;
  for (const [time, value] of points) {
    if (!Number.isFinite(value)) continue;
    if (time - last > gap) found.push([]);
    last = time;
    found[found.length - 1].push([Math.round(10 * WIDTH * (1 - (end - time) / span)) / 10, Math.round(10 * (HEIGHT - 1 - Math.min(1, Math.max(0, value)) * (HEIGHT - 2))) / 10]);
  }
  for (const one of found) if (one.length === 1) one.push([one[0][0] + 2, one[0][1]]);
  return found;
}

function path(lines) {
  return lines.map((one) => `M${one.map((point) => point.join(" ")).join("L")}`).join("");
}

// Its GPUs, and what is on it

function jobAddress(id) {
  return `#/jobs/${encodeURIComponent(id)}`;
}

// A card's job: the one that has leased it, or whose processes are on it.
function jobOn(gpu, jobs) {
  return jobs.find(([, job]) => (gpu.lease?.job && gpu.lease.job === job.tmux_session) || (jobState(job) === "running" && job.usage?.gpu?.some(({ index }) => index === gpu.index)));
}

function gpuTable(gpus, jobs) {
  const lines = gpus.map((gpu) => {
    const state = gpuState(gpu);
    const memory = bar("");
    const sum = `${gigabytes(gpu.mem_used_mb)} / ${gigabytes(gpu.mem_total_mb)} GB`;
    memory.update(share(gpu.mem_used_mb, gpu.mem_total_mb), sum, `${t("Memory")} ${sum}`);
    const users = [...new Set([gpu.lease?.user, ...(gpu.processes || []).map(({ user }) => user)].filter(Boolean))];
    const job = jobOn(gpu, jobs);
    const who = [users.join(", ") || t(state === "busy" ? "in use" : state), job ? [" · ", h("a.name-link", { href: jobAddress(job[0]) }, job[1].tmux_session)] : gpu.lease?.job ? ` · ${gpu.lease.job}` : ""];
    const until = gpu.lease ? t(gpu.lease.until ? "leased until {time}" : "leased since {time}", { time: clock(moment(gpu.lease.until || gpu.lease.since)) }) : (gpu.processes || []).map(({ name, elapsed }) => [name, elapsed].filter(Boolean).join(" ")).join(", ");
    const cells = [h("td.wide", {}, memory.node), h("td.number", {}, percent(share(gpu.util_pct, 100))), h("td.number", {}, Number.isFinite(gpu.temperature_c) ? `${Math.round(gpu.temperature_c)}°` : "–"), h("td.number.power", {}, Number.isFinite(gpu.power_w) ? `${Math.round(gpu.power_w)} W` : "–"), h("td", {}, h("span.gpu-owner", {}, who), h("span.quiet", {}, until))];
    return h("tr.gpu-row", { "data-state": state }, h("th", { scope: "row" }, gpu.index), cells);
  });
  const titles = ["GPU", "Memory", "Use", "Heat", "Power", "Owner"].map((title) => h(["Use", "Heat"].includes(title) ? "th.number" : title === "Power" ? "th.number.power" : "th", { scope: "col" }, t(title)));
  return h("div.scrolled", {}, h("p.quiet", {}, [...new Set(gpus.map((gpu) => gpu.name))].join(", ")), h("table.plain", {}, h("thead", {}, h("tr", {}, titles)), h("tbody", {}, lines)));
}

const RANK = { running: 0, pending: 1, unknown: 2 };

// What is shown of each job: [id, state, name, words].
function jobLines(jobs, now) {
  const rank = ([, job]) => RANK[jobState(job)] ?? 3;
  const sorted = [...jobs].sort((one, other) => rank(one) - rank(other) || (other[1].began ?? 0) - (one[1].began ?? 0));
  return sorted.slice(0, MOST_JOBS).map(([id, job]) => {
    const state = jobState(job);
    const progress = progressOf(job);
    const more = state in RANK ? [progress ? `${percent(progress.share)} · ${progress.words}` : "", state === "running" ? minutes(ranFor(job, now)) : said(job.queue?.reason || "")] : [outcomeWords(job, now)];
    return [id, state, job.tmux_session, more.filter(Boolean).join(" · ") || job.command || ""];
  });
}

function jobList(lines, count, name) {
  const rows = lines.map(([id, state, job, words]) => h("li", { "data-state": state }, h("a.line-link", { href: jobAddress(id) }, h("span.state", {}, stateWord(state)), h("b", {}, job), h("span.quiet", {}, words))));
  return [h("ul.plain-list", {}, rows), count > lines.length ? h("a.name-link", { href: `#/jobs?${new URLSearchParams({ sandbox: name })}` }, t("All {n} jobs", { n: count })) : ""];
}

// To the minute, so that a list is not made anew each second.
function minutes(seconds) {
  return Number.isFinite(seconds) ? duration(seconds < 3600 ? Math.max(60, Math.floor(seconds / 60) * 60) : seconds).replace(/ 00\D+$/, "") : "";
}

function callsOn(feed, name) {
  const all = [...feed.rows("running").values(), ...[...feed.rows("calls").values()].reverse()];
  return all.filter((row) => String(row.sandbox || "").split(", ").includes(name)).slice(0, MOST_CALLS);
}

function callList(found, name, now) {
  const rows = found.map((row) => {
    const given = row.arguments?.command ?? row.arguments?.remote_path ?? row.arguments?.tmux_session ?? "";
    const isBad = row.outcome !== "done" ? row.outcome !== "running" : Boolean(row.exit_code);
    return h("li", { "data-state": isBad ? "failed" : "ended" }, h("time.quiet", {}, clock(moment(row.began), now)), h("b", {}, row.tool), h("code.quiet", {}, String(given).slice(0, 160)), h("span.quiet", {}, row.client || ""));
  });
  return [h("ul.plain-list.call-lines", {}, rows), h("a.name-link", { href: `#/calls?${new URLSearchParams({ sandbox: name })}` }, t("All calls"))];
}

function hoursTable(rows, name) {
  const sums = summed(rows, ({ user, job }) => `${user}\n${job}`);
  const lines = [...sums].filter(([, sum]) => sum >= LEAST_HOURS).slice(0, 12).map(([key, sum]) => [...key.split("\n"), sum]).map(([user, job, sum]) => h("tr", {}, h("th", { scope: "row" }, user), h("td", {}, job ? h("a.name-link", { href: jobAddress(`${name}/${job}`) }, job) : h("span.quiet", {}, t("without a lease"))), h("td.number", {}, hours(sum))));
  return h("table.plain", {}, h("tbody", {}, lines));
}
