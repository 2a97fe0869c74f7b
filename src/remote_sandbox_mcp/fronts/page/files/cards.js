// Machines and jobs as they are shown: each function makes a node from a row, and an update for the next row.
// Free of page state, so that they work inside other pages.

import { bar, spark } from "./chart.js";
import { arrange, attribute, h, put, replace } from "./dom.js";
import { clock, disk, duration, gigabytes, percent, ranges, share } from "./format.js";
import { said } from "./saying.js";
import { t } from "./words.js";

// Decisions

const HOT_C = 85;
// Characters of a reason in the row of a job.
const LONGEST_REASON = 40;

// "free", "busy", "unknown" or "held": full of somebody's model that does not compute now. The server decides.
export function gpuState(gpu) {
  return ["free", "held", "busy"].includes(gpu.state) ? gpu.state : "unknown";
}

export function gpusOf(machine) {
  return machine.resources?.gpu || [];
}

export function freeGpus(machine) {
  return gpusOf(machine).filter((gpu) => gpuState(gpu) === "free");
}

export function scoreOf(machine) {
  return machine.idle_score ?? machine.resources?.idle_score ?? null;
}

export function stateOf(machine) {
  return machine.state || (machine.connection_alive === false ? "down" : machine.resources ? "up" : "unasked");
}

// idle_score as a plain word.
export function scoreWord(machine) {
  const score = scoreOf(machine);
  if (score === null) return "";
  const all = gpusOf(machine).length;
  if (!all && !machine.resources?.cluster && score >= 0.3) return t("idle, no GPU");
  // An idle machine without GPUs has a score of 0.5.
  const part = all ? freeGpus(machine).length / all : machine.resources?.cluster ? score : 2 * score;
  if (part >= 0.85) return t("free");
  if (part >= 0.5) return t("mostly free");
  return part >= (all ? 0.01 : 0.3) ? t("partly free") : t("busy");
}

// How far a job is: {share, words}; null where that cannot be told. The server reads it from the job's checkpoint.
export function progressOf(job) {
  return job.checkpoint?.progress ?? null;
}

// A job's outcome, which the server decides, in the words of this page's colours and filters.
const LOOKS = { succeeded: "ended", interrupted: "gone" };

export function jobState(job) {
  return LOOKS[job.outcome] || job.outcome || job.state || job.status || "unknown";
}

// The word of a state for a reader.
const WORDS = { ended: "succeeded", gone: "interrupted" };

export const stateWord = (state) => t(WORDS[state] || state);

// How a job ended, in one line: state, exit code, why, and whether it is resumed.
export function outcomeWords(job, now) {
  const words = stateWord(jobState(job));
  const code = job.exit_code === undefined || job.exit_code === null ? "" : t("exit {code}", { code: job.exit_code });
  const end = [code, job.signal].filter(Boolean).join(", ");
  const again = job.resume_ts ? t("attempt {n} of {most} in {time}", { n: job.resume_attempt, most: job.max_resume_attempts, time: duration(Math.max(0, job.resume_ts - now)) }) : "";
  return [`${words}${end ? ` (${end})` : ""}`, said(job.reason), again].filter(Boolean).join(" · ");
}

export function ranFor(job, now) {
  const began = job.began ?? job.started_ts;
  const told = job.running_s ?? job.seconds;
  const state = job.state || job.status;
  if ((state === "running" || state === "pending") && began) return now - began;
  return told ?? null;
}

// Machines

export function machineCard(row, trend) {
  const parts = {
    name: h("a.name-link", {}),
    where: h("span.machine-where"),
    verdict: h("span.verdict"),
    score: h("span.score", { title: t("How free a machine is: 1 is all GPUs free, 0 is busy") }),
    trouble: h("p.trouble"),
    meters: h("div.meters"),
    cards: h("p.gpu-kind"),
    gpus: h("ul.gpus"),
    processes: h("details.processes"),
    cluster: h("div.cluster"),
    foot: h("p.machine-foot"),
  };
  const meters = { cpu: meter(t("CPU")), memory: meter(t("Memory")), disk: meter(t("Disk")) };
  parts.meters.append(meters.cpu.node, meters.memory.node, meters.disk.node);
  const head = h("header.machine-head", {}, h("span.dot", { "aria-hidden": "true" }), h("div.machine-title", {}, h("h2.machine-name", {}, parts.name), parts.where), h("div.machine-say", {}, parts.verdict, parts.score));
  const node = h("article.machine", {}, head, parts.trouble, parts.meters, parts.cards, parts.gpus, parts.processes, parts.cluster, parts.foot);
  const gpus = [];
  const card = {
    node,
    update(row) {
      attribute(node, "data-state", stateOf(row));
      head_(parts, row);
      meters_(parts, meters, row);
      gpuRows(parts, gpus, row);
      processes_(parts.processes, row);
      cluster_(parts.cluster, row);
      foot_(parts, row);
    },
    trend(trend) {
      const points = trend?.points || [];
      meters.cpu.trend(points.map((point) => [point[0], point[1]]));
      meters.memory.trend(points.map((point) => [point[0], point[2]]));
      gpus.forEach((gpu, at) => gpu.trend(points.map((point) => [point[0], point[3]?.[at]])));
    },
  };
  card.update(row);
  card.trend(trend);
  return card;
}

function head_(parts, row) {
  put(parts.name, row.name);
  attribute(parts.name, "href", `#/machines/${encodeURIComponent(row.name)}`);
  const place = row.host ? `${row.user ? `${row.user}@` : ""}${row.host}${row.port && row.port !== 22 ? `:${row.port}` : ""}` : "";
  const folders = row.writable;
  const walls = folders === "nothing" ? t("read-only") : folders ? t("only {folders} writable", { folders }) : "";
  put(parts.where, [place, row.kind === "ssh" ? "" : row.kind, walls].filter(Boolean).join(" · "));
  const state = stateOf(row);
  const [all, free] = [gpusOf(row).length, freeGpus(row).length];
  if (state === "down" || state === "unasked") verdict(parts, state, t(state));
  else if (all) verdict(parts, free ? "free" : "busy", free === all ? t("all free") : free ? t("{free} of {total} free", { free, total: all }) : t("none free"));
  else verdict(parts, "", state === "asking" && !row.resources ? t("asking …") : "");
  const score = state === "down" ? null : scoreOf(row);
  put(parts.score, score === null ? "" : scoreWord(row));
}

function verdict(parts, state, words) {
  attribute(parts.verdict, "data-state", state);
  put(parts.verdict, words);
}

function meters_(parts, meters, row) {
  const { cpu, memory, disk: space } = row.resources || {};
  parts.meters.hidden = !cpu && !memory && !space;
  if (cpu) meters.cpu.update(cpuShare(cpu), t("load {load} on {n} CPUs", { load: cpu.load_1m.toFixed(1), n: cpu.machine_count ?? cpu.count }));
  if (memory) meters.memory.update(share(memory.used_mb, memory.total_mb), t("{used} of {total} GB", { used: gigabytes(memory.used_mb), total: gigabytes(memory.total_mb) }));
  if (space) meters.disk.update(Number.isFinite(space.used_pct) ? space.used_pct / 100 : null, t("{free} free", { free: disk(space.free_gb) }));
}

// The use or, where a machine does not say it, the load on each CPU.
function cpuShare({ used_pct: used, load_1m: load, machine_count: all, count }) {
  return Number.isFinite(used) ? share(used, 100) : share(load, all ?? count);
}

// A share with its word and, where it is known, its last hour.
function meter(label) {
  const value = h("span.meter-value");
  const detail = h("span.meter-detail");
  const line = spark();
  const fill = bar(label);
  const node = h("div.meter", {}, h("span.meter-label", {}, label), value, h("div.meter-picture", {}, line.node), fill.node, detail);
  return {
    node,
    update(part, words) {
      put(value, percent(part));
      put(detail, words);
      fill.update(part, "", `${label} ${percent(part)}`);
      attribute(node, "data-level", part >= 0.95 ? "full" : part >= 0.85 ? "high" : null);
    },
    trend: (points) => line.update(points),
  };
}

function gpuRows(parts, gpus, row) {
  const found = gpusOf(row);
  parts.gpus.hidden = parts.cards.hidden = !found.length;
  while (gpus.length < found.length) gpus.push(gpuRow());
  gpus.length = found.length;
  found.forEach((gpu, at) => gpus[at].update(gpu));
  arrange(parts.gpus, gpus.map((gpu) => gpu.node));
  put(parts.cards, found.length ? kinds(found) : "");
}

// "8 × NVIDIA H200, 141 GB"
function kinds(gpus) {
  const counts = new Map();
  for (const gpu of gpus) {
    const kind = `${(gpu.name || t("GPU")).replace(/^NVIDIA /, "")}, ${gigabytes(gpu.mem_total_mb)} GB`;
    counts.set(kind, (counts.get(kind) || 0) + 1);
  }
  return [...counts].map(([kind, count]) => `${count} × ${kind}`).join(" · ");
}

function gpuRow() {
  const index = h("span.gpu-index");
  const memory = bar("");
  const use = h("span.gpu-use");
  const heat = h("span.gpu-heat");
  const power = h("span.gpu-power");
  const who = h("span.gpu-who");
  const line = spark();
  const node = h("li.gpu", {}, index, memory.node, h("span.gpu-line", {}, line.node), use, heat, power, who);
  return {
    node,
    update(gpu) {
      const state = gpuState(gpu);
      const sum = `${gigabytes(gpu.mem_used_mb)} / ${gigabytes(gpu.mem_total_mb)}`;
      attribute(node, "data-state", state);
      put(index, gpu.index);
      memory.update(share(gpu.mem_used_mb, gpu.mem_total_mb), sum, `${t("GPU {n}", { n: gpu.index })}, ${t("Memory")} ${sum} GB`);
      put(use, Number.isFinite(gpu.util_pct) ? `${Math.round(gpu.util_pct)}%` : "–");
      put(heat, Number.isFinite(gpu.temperature_c) ? `${Math.round(gpu.temperature_c)}°` : "");
      attribute(heat, "data-level", gpu.temperature_c >= HOT_C ? "high" : null);
      put(power, Number.isFinite(gpu.power_w) ? `${Math.round(gpu.power_w)} W` : "");
      put(who, holders(gpu, state));
      attribute(node, "title", gpuTitle(gpu, state));
    },
    trend: (points) => line.update(points),
  };
}

function holders(gpu, state) {
  if (state === "free" || state === "unknown") return t(state);
  const users = [...new Set((gpu.processes || []).map((process) => process.user).filter(Boolean))];
  const first = gpu.processes?.[0];
  const words = [users.join(", "), users.length < 2 ? first?.name : ""].filter(Boolean).join(" · ");
  const { lease } = gpu;
  // Whose it is and for what, in a few letters; the rest is in its title.
  const owner = lease?.job ? `${lease.user} · ${lease.job}` : leased(gpu);
  return [owner, lease && users.every((user) => user === lease.user) ? "" : words].filter(Boolean).join(" · ") || t(state === "held" ? "held" : "in use");
}

// Who has leased it, by which job.
function leased({ lease }) {
  if (!lease) return "";
  return lease.job ? t("leased by {name} ({list})", { name: lease.user, list: lease.job }) : t("leased by {name}", { name: lease.user });
}

function gpuTitle(gpu, state) {
  const lines = [`${t("GPU {n}", { n: gpu.index })}: ${gpu.name || ""} (${t(state === "held" ? "held, not computing" : state)})`];
  if (gpu.lease) lines.push([leased(gpu), gpu.lease.until ? t("by plan until {at}", { at: clock(Date.parse(gpu.lease.until) / 1000) }) : ""].filter(Boolean).join(", "));
  for (const process of gpu.processes || [])
    lines.push([process.user, process.name, process.pid, Number.isFinite(process.mem_mb) ? `${gigabytes(process.mem_mb)} GB` : "", process.elapsed].filter(Boolean).join("  "));
  if (gpu.more_processes) lines.push(t("and {n} more", { n: gpu.more_processes }));
  return lines.join("\n");
}

// Every process on a GPU, for those who want to know.
function processes_(node, row) {
  const found = gpusOf(row).flatMap((gpu) => (gpu.processes || []).map((process) => [gpu.index, process]));
  const text = JSON.stringify(found);
  if (node.shown === text) return;
  node.shown = text;
  node.hidden = !found.length;
  const rows = found.map(([index, { user, name, pid, mem_mb: used, elapsed }]) =>
    h("tr", {}, [t("GPU {n}", { n: index }), [user, name].filter(Boolean).join(" · "), pid, Number.isFinite(used) ? `${gigabytes(used)} GB` : "", elapsed].map((cell) => h("td", {}, cell ?? ""))));
  replace(node, h("summary", {}, t("{n} processes", { n: found.length })), h("table", {}, h("tbody", {}, rows)));
}

function cluster_(node, row) {
  const cluster = row.resources?.cluster;
  node.hidden = !cluster;
  const text = cluster ? JSON.stringify(cluster) : "";
  // Partitions change seldom: made anew when they do.
  if (node.shown === text) return;
  node.shown = text;
  if (cluster) replace(node, partitions(cluster.partitions || []), mine(cluster), (cluster.problems || []).map((problem) => h("p.trouble", {}, said(problem))));
}

function partitions(rows) {
  const titles = ["partition", "nodes idle", "GPUs idle", "CPUs idle", "waiting", "limit"].map((title) => h("th", { scope: "col" }, t(title)));
  return h("table.partitions", {}, h("thead", {}, h("tr", {}, titles)), h("tbody", {}, rows.map(partition)));
}

function partition(row) {
  const nodes = row.nodes || {};
  const all = ["idle", "mixed", "allocated", "down"].reduce((sum, name) => sum + (nodes[name] || 0), 0);
  const isFree = (row.gpus || []).some((gpus) => gpus.idle > 0);
  const gpus = (row.gpus || []).map((kind) => `${kind.type || t("GPU")} ${kind.idle}/${kind.total}`).join(", ");
  const name = [row.name, row.default ? h("span.tag", {}, t("default")) : "", row.state ? h("span.tag", {}, row.state) : ""];
  const cells = [`${nodes.idle || 0}/${all}`, gpus || "–", row.cpus ? `${row.cpus.idle}/${row.cpus.total}` : "–", row.waiting_jobs || 0, row.time_limit ? timeLimit(row.time_limit) : "–"];
  return h("tr", { "data-state": isFree ? "free" : "busy" }, h("th", { scope: "row" }, name), cells.map((cell) => h("td", {}, cell)));
}

// Slurm's 2-00:00:00 as 2d, 04:00:00 as 4h; words such as infinite stay.
export function timeLimit(text) {
  const found = /^(?:(\d+)-)?(\d+):(\d+):(\d+)$/.exec(text);
  if (!found) return text;
  const [days, hours, minutes] = found.slice(1).map((part) => Number(part || 0));
  return [[days, "{n}d"], [hours, "{n}h"], [minutes, "{n}m"]].filter(([n]) => n).map(([n, unit]) => t(unit, { n })).join(" ") || text;
}

function mine(cluster) {
  const count = (jobs) => Object.values(jobs || {}).reduce((sum, number) => sum + number, 0);
  const { running, pending } = cluster.my_jobs || {};
  const oldest = cluster.oldest_pending;
  const words = t("Yours: {running} running, {pending} pending", { running: count(running), pending: count(pending) });
  return h("p.machine-note", {}, words, oldest ? ` (${oldest.job}: ${oldest.reason})` : "");
}

function foot_(parts, row) {
  const state = stateOf(row);
  const trouble = row.trouble || row.connection_error || row.resources?.error || "";
  put(parts.trouble, said(trouble) || (state === "unasked" ? t("Not asked: only a pattern of the configuration offers this host.") : ""));
  attribute(parts.trouble, "data-quiet", state === "unasked");
  parts.trouble.hidden = !parts.trouble.textContent;
  const notes = [row.resources?.gpu_error, ...(row.resources?.problems || [])].filter(Boolean);
  if (row.resources?.measured_on) notes.unshift(t("measured on {where}", { where: row.resources.measured_on }));
  put(parts.foot, notes.map(said).join(" · "));
  parts.foot.hidden = !notes.length;
}

// Every GPU of a machine as a small square: the whole fleet at one glance.
export function gpuSquares(row) {
  const node = h("a.squares", {});
  const update = (row) => {
    const gpus = gpusOf(row);
    const free = freeGpus(row).map((gpu) => gpu.index);
    attribute(node, "data-machine", stateOf(row));
    while (node.childElementCount > gpus.length) node.lastElementChild.remove();
    while (node.childElementCount < gpus.length) node.append(h("i.square"));
    gpus.forEach((gpu, at) => attribute(node.children[at], "data-state", gpuState(gpu)));
    const words = free.length ? `${row.name}: ${t("{free} of {total} free", { free: free.length, total: gpus.length })} (${ranges(free)})` : `${row.name}: ${t("none free")}`;
    attribute(node, "aria-label", words);
    attribute(node, "title", words);
  };
  update(row);
  return { node, update };
}

// Jobs

// `machine` shows its name: a link, or as here text alone.
export function jobCard(row, now, machine = h("span")) {
  const parts = {
    state: h("span.state"),
    name: h("span.job-name"),
    command: h("span.job-command"),
    machine: h("span.job-machine", {}, machine),
    time: h("span.job-time"),
    progress: bar(t("Progress")),
    left: h("span.job-left"),
    exit: h("span.job-exit"),
    restarts: h("span.job-restarts"),
  };
  const node = h("div.job", {}, parts.state, h("span.job-what", {}, parts.name, parts.command), parts.machine, parts.time, h("span.job-progress", {}, parts.progress.node, parts.left), parts.exit, parts.restarts);
  const card = {
    node,
    row,
    update(row, now) {
      card.row = row;
      const state = jobState(row);
      attribute(node, "data-state", state);
      put(parts.state, stateWord(state));
      put(parts.name, row.tmux_session);
      const waits = reasonOf(row);
      const why = row.error_line || (waits.length > LONGEST_REASON ? waits : "");
      put(parts.command, said(row.trouble) || why || row.command || "");
      attribute(parts.command, "data-why", Boolean(row.error_line && !row.trouble));
      attribute(parts.command, "title", why ? row.command : null);
      put(machine, row.sandbox);
      progress_(parts.progress, row);
      put(parts.exit, row.exit_code === undefined || row.exit_code === null ? "" : row.signal || t("exit {code}", { code: row.exit_code }));
      put(parts.restarts, restarts(row));
      card.tick(now);
    },
    // Run times go on by themselves.
    tick(now) {
      const ended = endedAt(card.row);
      const ran = duration(ranFor(card.row, now) ?? NaN);
      put(parts.time, waitsFor(card.row) || (ended ? t("{ago} ago", { ago: rough(now - ended) }) : ran));
      attribute(parts.time, "title", ended ? t("ran for {time}", { time: ran }) : null);
      put(parts.left, etaWords(card.row, now));
    },
  };
  card.update(row, now);
  return card;
}

// When a job has ended; null where nobody knows.
export function endedAt(row) {
  return row.state !== "running" && row.began && Number.isFinite(row.running_s) ? row.began + row.running_s : null;
}

// How long a running job still takes, if its log or its checkpoint tells.
export function etaWords(row, now) {
  const left = Math.max(0, row.eta_ts - now);
  return row.eta_ts && jobState(row) === "running" ? t("{time} left", { time: left < 3600 ? rough(left) : duration(left) }) : "";
}

// The largest unit alone.
function rough(seconds) {
  const [size, unit] = [[86400, "{n}d"], [3600, "{n}h"], [60, "{n}m"]].find(([size]) => seconds >= size) || [];
  return unit ? t(unit, { n: Math.floor(seconds / size) }) : duration(seconds);
}

function reasonOf(row) {
  return jobState(row) === "pending" && row.queue?.reason ? said(row.queue.reason) : "";
}

// Why a job is pending, if that fits; one that waits for GPUs has a sentence for each machine, in place of its command.
function waitsFor(row) {
  const why = reasonOf(row);
  return why.length > LONGEST_REASON ? "" : why;
}

function progress_(bar, row) {
  const found = progressOf(row);
  bar.node.hidden = !found;
  if (found) bar.update(found.share, found.words, found.words);
}

function restarts(row) {
  const { resume_attempts: tried, max_resume_attempts: most, auto_resume: resumes } = row.watch || {};
  const queued = row.queue?.restarts;
  if (tried) return `↻ ${tried}/${most}`;
  if (queued) return `↻ ${queued}`;
  return resumes ? `↻ 0/${most}` : "";
}
