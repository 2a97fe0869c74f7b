// Transfers: what moves in the background, how fast, and how long it still takes.

import { bar } from "./chart.js";
import { LazyList, attribute, h, put, replace, soon } from "./dom.js";
import { bytes, clock, duration, share } from "./format.js";
import { button, confirmed, doing, done, empty, heading, machineLink, say } from "./parts.js";
import { said } from "./saying.js";
import { t } from "./words.js";

const LOOKS = { running: "running", queued: "pending", completed: "ended", done: "ended", failed: "failed", cancelled: "gone", canceled: "gone", interrupted: "gone" };

const LIVE = ["running", "queued"];
const DIRECTIONS = { up: "to a machine", down: "to this computer", between: "between machines" };

export function mount(root, { feed }) {
  const rows = h("ul.rows.cards", { "aria-label": t("Transfers") });
  const nothing = h("div");
  const list = new LazyList(rows, (row) => transferCard(row, feed), () => h("li.cell"));
  root.append(heading(t("Transfers")), nothing, rows);

  function draw() {
    const all = [...feed.rows("transfers")].map(([id, row]) => [id, row.task_id ? row : { task_id: id, ...row }]);
    const rank = (row) => ["running", "queued"].indexOf(row.status) >>> 0;
    list.show(all.sort(([, one], [, other]) => rank(one) - rank(other) || began(other) - began(one)));
    if (all.length) nothing.replaceChildren();
    else replace(nothing, feed.has("transfers") ? empty(t("No transfers"), t("Large syncs that go on in the background appear here.")) : empty(t("Loading …")));
  }

  draw();
  const end = feed.listen(["transfers"], () => soon(draw));
  return () => {
    end();
    list.end();
  };
}

function began(row) {
  return row.began ?? row.started_ts ?? 0;
}

// The names differ between a list and a single answer.
function headway(row) {
  const found = row.progress || {};
  return {
    files: found.files ?? found.files_done,
    filesTotal: found.files_total,
    bytes: found.bytes ?? found.bytes_done,
    bytesTotal: found.bytes_total,
    rate: found.rate_bps ?? found.bytes_per_s,
    left: found.left_s,
    path: found.path,
    phase: found.phase,
  };
}

// A place on a machine begins with its name.
function place(text, isFar) {
  const [, name, path] = /^([^:/]+)(:.*)$/s.exec(isFar ? text : "") || [];
  return name ? [machineLink(name), path] : text;
}

function transferCard(first, feed) {
  let row = first;
  const places = h("h2.path");
  const state = h("span.state");
  const progress = bar(t("Progress"));
  const facts = h("p.transfer-facts");
  const path = h("p.quiet.path.current-path");
  const trouble = h("p.trouble");
  const stop = button(t("Cancel"), () => cancel(feed, stop, row), "danger-quiet");
  const node = h("article.panel.transfer", {}, h("header.card-head", {}, places, h("span.spring"), state, stop), progress.node, facts, path, trouble);
  const card = {
    node,
    update(next) {
      row = next;
      attribute(node, "data-state", LOOKS[row.status] || "unknown");
      replace(places, place(row.from ?? row.source, row.direction !== "up"), h("span.arrow", {}, " → "), place(row.to ?? row.target, row.direction !== "down"));
      put(state, t(row.status));
      const isLive = LIVE.includes(row.status);
      stop.hidden = !isLive;
      const now = headway(row);
      const part = share(now.bytes, now.bytesTotal);
      progress.node.hidden = !isLive;
      progress.update(part, part === null ? t(now.phase || "") : `${bytes(now.bytes)} / ${bytes(now.bytesTotal)}`);
      put(facts, words(now, row, feed));
      put(path, isLive ? now.path || "" : "");
      put(trouble, said(row.error || ""));
      trouble.hidden = !row.error;
    },
  };
  card.update(first);
  return card;
}

function words(now, row, feed) {
  const isLive = LIVE.includes(row.status);
  const result = row.result || {};
  const done = result.uploaded_files ?? result.downloaded_files;
  return [
    t(DIRECTIONS[row.direction] || ""),
    now.filesTotal ? t("{done} of {total} files", { done: (now.files || 0).toLocaleString("en-US"), total: now.filesTotal.toLocaleString("en-US") }) : "",
    isLive && now.rate ? t("{size}/s", { size: bytes(now.rate) }) : "",
    isLive && Number.isFinite(now.left) ? t("{time} left", { time: duration(now.left) }) : "",
    done !== undefined ? t("{n} files", { n: done.toLocaleString("en-US") }) : "",
    result.bytes !== undefined ? bytes(result.bytes) : "",
    began(row) ? t("began {time}", { time: clock(began(row), feed.now()) }) : "",
  ].filter(Boolean).join(" · ");
}

async function cancel(feed, button, row) {
  const text = t("What has arrived stays; the same sync later goes on from there.");
  if (!(await confirmed({ title: t("Cancel this transfer?"), text, yes: t("Cancel transfer"), no: t("Keep it") }))) return;
  const answer = await doing(feed, button, "cancel_file_transfer_task", { task_id: row.task_id });
  if (answer) say(done(answer));
}
