// Workspaces: local folders that belong to a folder of a machine, and the conflicts between the two sides.
// Below them is what else agents may use of this computer.

import { allowed } from "./allowed.js";
import { LazyList, attribute, h, put, replace, soon } from "./dom.js";
import { diffView } from "./diff.js";
import { filesLink } from "./files.js";
import { bytes, clock, duration, moment } from "./format.js";
import { button, confirmed, doing, done, empty, heading, icon, machineLink, say } from "./parts.js";
import { said } from "./saying.js";
import { t } from "./words.js";

const LOOKS = { "in step": "ended", changed: "pending", conflict: "failed", "in conflict": "failed", unreachable: "unknown" };

export function mount(root, { feed }) {
  const rows = h("ul.rows.cards", { "aria-label": t("Workspaces") });
  const nothing = h("div");
  const list = new LazyList(rows, (row) => workspaceCard(row, feed), () => h("li.cell"));
  const places = allowed(feed);
  root.append(heading(t("Workspaces")), nothing, rows, places.node);

  function draw() {
    const all = [...feed.rows("workspaces")].map(([id, row]) => [id, { id, ...row }]);
    const count = ([, row]) => conflictsOf(row).length;
    list.show(all.sort((one, other) => count(other) - count(one) || String(one[1].folder).localeCompare(String(other[1].folder))));
    if (all.length) nothing.replaceChildren();
    else replace(nothing, feed.has("workspaces") ? empty(t("No workspaces"), t("remote-sandbox-mcp link in a project's folder binds it to a folder of a machine.")) : empty(t("Loading …")));
  }

  draw();
  const end = feed.listen(["workspaces"], () => soon(draw));
  return () => {
    end();
    places.end();
    list.end();
  };
}

function conflictsOf(row) {
  return (row.conflicts || []).map((one) => (typeof one === "string" ? { path: one } : one));
}

function workspaceCard(first, feed) {
  const folder = h("h2.path");
  const remote = h("p.path.remote");
  const state = h("span.state");
  const facts = h("p.quiet");
  const trouble = h("p.trouble");
  const conflicts = h("div.conflicts");
  const places = h("div.places", {}, folder, h("span.swap", { "aria-hidden": "true" }, icon("swap")), remote);
  const node = h("article.panel.workspace", {}, h("header.card-head", {}, places, h("span.spring"), state), facts, trouble, conflicts);
  const known = new Map();
  const card = {
    node,
    update(row) {
      const word = row.state || row.status || "unknown";
      attribute(node, "data-state", LOOKS[word] || "unknown");
      put(folder, row.folder);
      const there = row.remote_folder || row.remote || "";
      replace(remote, machineLink(row.sandbox), ":", h("a", { href: filesLink(row.sandbox, there) }, there));
      const found = conflictsOf(row);
      put(state, found.length ? t("{n} conflicts", { n: found.length }) : t(word));
      put(facts, factsOf(row, feed));
      put(trouble, said(row.problem || row.trouble || ""));
      trouble.hidden = !trouble.textContent;
      showConflicts(conflicts, known, row, found, feed);
    },
  };
  card.update(first);
  return card;
}

function factsOf(row, feed) {
  const passed = moment(typeof row.last_pass === "object" ? row.last_pass?.ts : row.last_pass);
  return [
    row.to_send ? t("{n} to send", { n: row.to_send }) : "",
    row.to_come ? t("{n} to come", { n: row.to_come }) : "",
    passed ? t("last pass {ago} ago", { ago: duration(feed.now() - passed) }) : "",
    row.only_remote ? t("commands run only there") : "",
  ].filter(Boolean).join(" · ");
}

function showConflicts(node, known, row, found, feed) {
  const paths = found.map(({ path }) => path);
  for (const path of known.keys()) if (!paths.includes(path)) known.delete(path);
  for (const one of found) if (!known.has(one.path)) known.set(one.path, conflict(row, one, feed));
  node.hidden = !found.length;
  if (node.shown === paths.join("\n")) return;
  node.shown = paths.join("\n");
  replace(node, h("p.quiet", {}, t("Both sides changed these files. Decide which one stays.")), paths.map((path) => known.get(path)));
}

function conflict(row, { path }, feed) {
  const sides = h("div.sides", { hidden: true });
  const compare = button(t("Compare"), () => toggleSides(feed, compare, sides, row, path));
  attribute(compare, "aria-expanded", "false");
  const mine = button(t("Keep mine"), () => decide(feed, mine, row, path, "keep_local"));
  const theirs = button(t("Keep theirs"), () => decide(feed, theirs, row, path, "keep_remote"));
  return h("div.conflict", {}, h("div.conflict-head", {}, h("code.path", {}, path), h("span.spring"), compare, mine, theirs), sides);
}

async function toggleSides(feed, button, sides, row, path) {
  sides.hidden = !sides.hidden;
  attribute(button, "aria-expanded", String(!sides.hidden));
  put(button, sides.hidden ? t("Compare") : t("Hide"));
  if (sides.hidden) return;
  replace(sides, h("p.quiet", {}, t("Loading …")));
  try {
    const { mine, theirs } = await feed.get("/api/conflict", { workspace: row.id, path });
    const names = [t("Mine (this computer)"), t("Theirs ({sandbox})", { sandbox: row.sandbox })];
    const isBoth = typeof mine.text === "string" && typeof theirs.text === "string";
    const diff = isBoth ? diffView(mine.text, theirs.text, t("Differences of {path}", { path })) : null;
    if (!diff) return replace(sides, side(names[0], mine, theirs, feed), side(names[1], theirs, mine, feed));
    replace(sides, h("div.diff-both", {}, sideHead(`− ${names[0]}`, mine, feed), sideHead(`+ ${names[1]}`, theirs, feed), diff));
  } catch (problem) {
    replace(sides, h("p.trouble", {}, problem.message));
  }
}

// One version; lines that the other one does not have are marked.
function side(title, version = {}, other = {}, feed) {
  const head = sideHead(title, version, feed);
  if (version.missing) return h("div.side", {}, head, h("p.quiet", {}, t("There is no such file on this side: it was deleted.")));
  if (version.problem) return h("div.side", {}, head, h("p.trouble", {}, said(version.problem)));
  const known = new Set(String(other.text ?? "").split("\n"));
  const lines = String(version.text ?? "").split("\n").map((line) => h(known.has(line) ? "span.line" : "span.line.differs", {}, line, "\n"));
  return h("div.side", {}, head, h("pre", { tabindex: "0", role: "region", "aria-label": title }, lines));
}

function sideHead(title, version, feed) {
  const when = moment(version.mtime);
  const facts = [Number.isFinite(version.size) ? bytes(version.size) : "", when ? `${clock(when, feed.now())} (${t("{ago} ago", { ago: duration(feed.now() - when) })})` : ""].filter(Boolean).join(" · ");
  return h("p.side-head", {}, h("b", {}, title), " ", h("span.quiet", {}, facts));
}

async function decide(feed, button, row, path, which) {
  const title = t(which === "keep_local" ? "Keep mine of {path}?" : "Keep theirs of {path}?", { path });
  const yes = t(which === "keep_local" ? "Keep mine" : "Keep theirs");
  if (!(await confirmed({ title, text: t("The other version is overwritten."), yes }))) return;
  const answer = await doing(feed, button, "link_workspace", { local_path: row.folder, [which]: [path] });
  if (answer) say(done(answer));
}
