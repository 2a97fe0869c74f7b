// Starting a job once more, as it was or changed; and the order and the groups of the list of jobs.

import { endedAt, jobState, progressOf, ranFor } from "./cards.js";
import { h } from "./dom.js";
import { button, doing, done, say } from "./parts.js";
import { t } from "./words.js";

// A command that is longer, or in which something is hidden, is not known whole here.
const LONGEST = 2000;

export function canRepeat({ command = "" }) {
  return Boolean(command) && command.length < LONGEST && !command.includes("[hidden]");
}

// A name that no job has: train, train-2, train-3.
export function nextName(name, taken) {
  const base = name.replace(/-\d{1,3}$/, "");
  let number = 2;
  while (taken.has(`${base}-${number}`)) number++;
  return `${base}-${number}`;
}

// Ask for a job like this one. The command is the reader's own now, whatever it was.
export function repeat(feed, row, isChanged) {
  const taken = new Set([...feed.rows("jobs").values()].map((one) => one.tmux_session));
  const field = (label, node) => h("label.field", {}, h("span", {}, label), node);
  const name = h("input.input", { value: nextName(row.tmux_session, taken), autocomplete: "off", spellcheck: "false" });
  const machine = h("select.select", {}, [...new Set([row.sandbox, ...feed.rows("machines").keys()])].map((one) => h("option", { value: one }, one)));
  const folder = h("input.input", { value: row.cwd || "", autocomplete: "off", spellcheck: "false" });
  const command = h("textarea.input.code", { rows: "6", spellcheck: "false", value: canRepeat(row) ? row.command : "" });
  for (const node of [machine, folder, command]) node.disabled = !isChanged;
  const start = h("button.button.primary", { type: "submit" }, t("Start"));
  const close = button(t("Cancel"), () => dialog.close());
  const form = h("form.dialog-form", {}, h("h2", { id: "repeat-title" }, isChanged ? t("Clone {job}", { job: row.tmux_session }) : t("Run {job} again?", { job: row.tmux_session })), field(t("Name"), name), field(t("Machine"), machine), field(t("Folder"), folder), field(t("Command"), command), h("div.dialog-buttons", {}, close, start));
  const dialog = h("dialog.dialog.wide", { "aria-labelledby": "repeat-title" }, form);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const given = { command: command.value, session_name: name.value, sandbox_name: machine.value, cwd: folder.value };
    const answer = await doing(feed, start, "exec_bash_background", given);
    if (!answer) return;
    say(done(answer));
    dialog.close();
    location.hash = `#/jobs/${encodeURIComponent(`${answer.structured.sandbox}/${answer.structured.tmux_session}`)}`;
  });
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

// Stop all of these, each by a call of its own; tells how many were.
export async function stopAll(feed, button, jobs) {
  let count = 0;
  for (const { tmux_session: job, sandbox } of jobs)
    if (await doing(feed, button, "stop_background_task", { tmux_session: job, sandbox_name: sandbox })) count++;
  say(t("{n} of {all} jobs were stopped", { n: count, all: jobs.length }));
}

const began = (row) => row.began ?? row.started_ts ?? 0;

const RANK = { running: 0, pending: 1, unknown: 2 };
const rank = (row) => RANK[jobState(row)] ?? 3;
const names = new Intl.Collator(undefined, { numeric: true });
const text = (value) => (one, other) => names.compare(value(one), value(other));

// The columns of the list, by which it can be ordered.
export const ORDERS = {
  State: (one, other) => rank(one) - rank(other) || (endedAt(other) ?? began(other)) - (endedAt(one) ?? began(one)),
  Job: text((row) => row.tmux_session),
  Machine: text((row) => row.sandbox),
  Time: (one, other) => (ranFor(other, Date.now() / 1000) ?? -1) - (ranFor(one, Date.now() / 1000) ?? -1),
  Progress: (one, other) => (progressOf(other)?.share ?? -1) - (progressOf(one)?.share ?? -1),
  Exit: (one, other) => (other.exit_code ?? -1) - (one.exit_code ?? -1),
  Restarts: (one, other) => (other.watch?.resume_attempts ?? -1) - (one.watch?.resume_attempts ?? -1),
};

// What a job is grouped by: its machine, its state, or its name without the number at its end, as a sweep has them.
export const GROUPS = {
  "by machine": (row) => row.sandbox,
  "by state": (row) => jobState(row),
  "by name": (row) => row.tmux_session.replace(/[-_.]?\d+$/, "") || row.tmux_session,
};
