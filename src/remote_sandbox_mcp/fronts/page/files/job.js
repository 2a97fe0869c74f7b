// One job: its facts, its log, and what can be done to it.

import { etaWords, jobState, outcomeWords, progressOf, ranFor, stateWord } from "./cards.js";
import { bar } from "./chart.js";
import { attempt, attribute, h, put, replace, soon } from "./dom.js";
import { Refused } from "./feed.js";
import { curvesPanel } from "./curves.js";
import { bytes, clock, duration, gigabytes } from "./format.js";
import { canRepeat, repeat } from "./job_order.js";
import { LogView } from "./log.js";
import { button, confirmed, doing, done, icon, machineLink, say } from "./parts.js";
import { said } from "./saying.js";
import { tellButton } from "./tell.js";
import { WholeLog } from "./whole.js";
import { t } from "./words.js";

const BEGINS = { running: true, pending: true };

export function mount(root, { feed, id, keys, at = 0 }) {
  // The job as it was told last, by the list of jobs or by its log. The list is the server's: a row that is added here
  // would stay in it for ever.
  let listed = feed.rows("jobs").get(id);
  let row = listed;
  const slash = id.indexOf("/");
  const [sandbox, job] = [id.slice(0, slash), id.slice(slash + 1)];
  const tell = tellButton(id);
  const state = h("span.state");
  const time = h("span.job-clock");
  const progress = bar(t("Progress"));
  const facts = h("dl.facts");
  const stop = button(t("Stop"), () => stopJob(feed, stop, sandbox, job), "danger");
  const resume = button(t("Resume"), () => resumeJob(feed, resume, sandbox, job, row), "primary");
  const first = button(t("Start first"), () => raiseJob(feed, first, sandbox, job));
  const again = button(t("Run again"), () => repeat(feed, row, false));
  const clone = button(t("Clone"), () => repeat(feed, row, true));
  const enter = h("a.button", { href: `#/terminal/${encodeURIComponent(id)}` }, t("Terminal"));
  const left = h("span.quiet");
  const head = h("header.view-head.job-head", {}, h("a.back", { href: "#/jobs", "aria-label": t("Back to jobs") }, icon("back")), h("div.job-title", {}, h("h1", { tabindex: "-1" }, job), h("p.quiet", {}, machineLink(sandbox))), h("div.tools", {}, state, time, left, tell.node, enter, again, clone, first, resume, stop));
  const details = h("details.facts-box", { open: innerWidth > 700 }, h("summary", {}, t("Command")), progress.node, facts);
  const log = new LogView();
  const curves = curvesPanel(feed, sandbox, job);
  root.append(head, details, curves.node, log.node);
  root.classList.add("full");
  keys(log);

  function draw() {
    const found = feed.rows("jobs").get(id);
    if (found && found !== listed) row = listed = found;
    const now = row ? jobState(row) : "unknown";
    attribute(head, "data-state", now);
    put(state, stateWord(now));
    stop.hidden = !BEGINS[now];
    // A cluster has an order of its own.
    first.hidden = now !== "pending" || Boolean(row.queue?.job);
    enter.hidden = now !== "running";
    again.hidden = clone.hidden = !row || row.kind === "command" || Boolean(BEGINS[now]);
    again.disabled = Boolean(row) && !canRepeat(row);
    tell.update(row);
    resume.hidden = !row?.can_resume || Boolean(BEGINS[now]);
    // What has ended well needs nothing more.
    resume.classList.toggle("primary", now !== "ended");
    const reached = row && progressOf(row);
    progress.node.hidden = !reached;
    if (reached) progress.update(reached.share, reached.words, reached.words);
    tick();
    // It was resumed after its log had come to an end.
    if (BEGINS[now]) line.again();
  }

  function tick() {
    const seconds = row ? ranFor(row, feed.now()) : null;
    put(time, seconds === null ? "" : duration(seconds));
    put(left, row ? etaWords(row, feed.now()) : "");
    showFacts(facts, row, feed);
  }

  log.say(t("Loading …"));
  const line = follow(feed, log, sandbox, job, at, (found) => {
    // The log does not know of a watch, and so not whether the job can be resumed.
    row = { ...row, ...found, can_resume: Boolean(row?.can_resume) };
    soon(draw);
  });
  // A row that cannot be drawn must not keep the view from being ended, which closes the log's stream.
  attempt(draw);
  const end = feed.listen(["jobs"], () => soon(draw));
  const timer = setInterval(tick, 1000);
  return () => {
    end();
    clearInterval(timer);
    line.end();
    curves.end();
    log.end();
    keys(null);
    root.classList.remove("full");
  };
}

// Write what the job prints into the log; after a cut, and after an end, go on where it was. While a part of the log is
// read that is not its end, what is new is only counted.
function follow(feed, log, sandbox, job, begin, changed) {
  let at = null;
  let line = null;
  const hear = (event, data) => {
    log.say(t("The job has printed nothing yet."));
    if (event === "text") {
      whole.grown(data.to);
      if (whole.isLive) at = written(log, data, at);
    } else changed(data);
    if (event === "end") close();
  };
  // Also while it is tried again: a machine that does not answer may stay so for hours.
  const tell = (phase, problem) => {
    if (problem instanceof Refused && problem.status !== 401) log.say(t("The log cannot be read: {why}", { why: problem.message }));
  };
  const close = () => {
    line?.close();
    line = null;
  };
  const again = () => {
    line ??= feed.stream(`/api/log?${new URLSearchParams({ sandbox, job })}`, hear, tell);
  };
  const whole = new WholeLog(feed, log, sandbox, job, (isLive) => {
    if (!isLive) return;
    at = null;
    close();
    again();
  });
  if (begin) whole.toLine(begin);
  again();
  const end = () => {
    close();
    whole.end();
  };
  return { end, again };
}

function written(log, { text, from, to, skipped }, at) {
  if (skipped) log.note(t("{size} skipped: the job prints faster than they can be shown", { size: bytes(skipped) }));
  if (at === null || from === at || !Number.isFinite(from)) log.write(text, from, to);
  else if (from > at) {
    if (!skipped) log.note(t("the log goes on here after a gap"));
    log.write(text, from, to);
  } else if (to > at) rest(log, text, at, from, to);
  else if (to < at) {
    // A shorter file than before: it was begun anew.
    log.clear();
    log.write(text, from, to);
  }
  return to ?? at;
}

// Write what follows the byte `at`; where bytes cannot be counted in the text, all of it in a fresh log.
function rest(log, text, at, from, to) {
  const all = new TextEncoder().encode(text);
  if (all.length === to - from) return log.write(new TextDecoder().decode(all.slice(at - from)), at, to);
  log.clear();
  log.write(text, from, to);
}

async function stopJob(feed, button, sandbox, job) {
  const text = t("All of its processes on {sandbox} are ended; it gets 10 seconds to finish.", { sandbox });
  if (!(await confirmed({ title: t("Stop {job}?", { job }), text, yes: t("Stop") }))) return;
  const answer = await doing(feed, button, "stop_background_task", { tmux_session: job, sandbox_name: sandbox });
  if (answer) say(done(answer));
}

async function raiseJob(feed, button, sandbox, job) {
  const answer = await doing(feed, button, "raise_background_task", { tmux_session: job, sandbox_name: sandbox });
  if (answer) say(t("{job} starts before all others that wait", { job }));
}

async function resumeJob(feed, button, sandbox, job, row) {
  const text = t("This runs on {sandbox}:", { sandbox });
  const code = row?.watch?.resume_command || row?.command || "";
  if (!(await confirmed({ title: t("Resume {job}?", { job }), text, code, yes: t("Resume"), isDanger: false }))) return;
  const answer = await doing(feed, button, "resume_background_task", { tmux_session: job, sandbox_name: sandbox });
  if (answer) say(done(answer));
}

function showFacts(node, row, feed) {
  const found = row ? pairs(row, feed.now()) : [["", t("This job is not known here (any more).")]];
  const text = JSON.stringify(found.map(([, ...value]) => value));
  if (node.shown !== text) {
    node.shown = text;
    replace(node, found.map(([name, value, isCode]) => h("div.fact", {}, h("dt", {}, name), h(isCode ? "dd.code" : "dd", {}, value))));
  }
  // A name may tell the time; what somebody has marked in a value stays.
  found.forEach(([name], at) => put(node.children[at].firstElementChild, name));
}

function pairs(row, now) {
  const { queue, watch, checkpoint } = row;
  const shown = checkpoint && (checkpoint.value !== undefined ? JSON.stringify(checkpoint.value) : checkpoint.text || checkpoint.error);
  const isLive = BEGINS[jobState(row)];
  const found = [
    [t("Command"), row.command, true],
    // One box says how it ended, and no other says anything about it.
    [t("Outcome"), isLive || row.trouble ? "" : outcomeWords(row, now)],
    [t("Trouble"), said(row.trouble)],
    [t("Began"), Number.isFinite(row.began ?? row.started_ts) ? clock(row.began ?? row.started_ts, now) : ""],
    [t("Queue"), queue ? [queue.job, queue.partition, queue.nodes, said(queue.reason)].filter(Boolean).join(" · ") : ""],
    [t("Checkpoint"), shown, true],
    [t("Uses"), row.usage ? usageWords(row.usage) : ""],
    [t("Watch"), watch ? watchWords(watch, isLive) : ""],
    [watch?.checked ? t("Last check, {ago} ago", { ago: duration(now - watch.checked) }) : "", isLive && watch?.checked ? said(watch.last_summary) : ""],
    [t("Log file"), row.log_file, true],
  ];
  return found.filter(([, value]) => value !== undefined && value !== null && value !== "");
}

function usageWords({ processes, memory_mb: memory, gpu = [] }) {
  const cards = gpu.map(({ index, mem_mb: used }) => `${t("GPU {n}", { n: index })}: ${gigabytes(used)} GB`);
  return [t("{n} processes", { n: processes }), bytes(memory * 1e6), ...cards].join(" · ");
}

function watchWords(watch, isLive) {
  const words = isLive ? [t(watch.status)] : [];
  if (watch.auto_resume && isLive) words.push(t("resumes by itself"));
  if (watch.resume_attempts) words.push(t("resumed {n} of {most} times", { n: watch.resume_attempts, most: watch.max_resume_attempts }));
  return words.join(" · ");
}
