// What agents may use of this computer: projects of connected clients, the configuration, and what a person allows here.

import { h, put, replace } from "./dom.js";
import { duration } from "./format.js";
import { button, choice, say } from "./parts.js";
import { t } from "./words.js";

// Others may allow and take back, too: a form of a client, or the command line.
const LOOK_MS = 5000;
const TIMES = [[3600, "1 h"], [8 * 3600, "8 h"], [null, "always"]];
const USUAL_S = 8 * 3600;

export function allowed(feed) {
  const rows = h("ul.allowances", { "aria-label": t("Allowed folders") });
  const form = makeForm(feed, look);
  const open = button(t("Allow a folder"), () => form.toggle());
  const node = h("section.allowed", { "aria-labelledby": "allowed-title" },
    h("header.card-head", {}, h("h2", { id: "allowed-title" }, t("Folders that agents may use")), h("span.spring"), open),
    h("p.quiet", {}, t("Agents may use these places of this computer, and workspaces. Keys and programs in them stay closed.")),
    form.node, rows);
  let shown = "";
  let isOver = false;

  async function look() {
    if (document.hidden || feed.phase === "key") return;
    try {
      const found = await feed.get("/api/allowed");
      if (!isOver) draw(found);
    } catch (problem) {
      if (!isOver && !shown) replace(rows, h("li.trouble", {}, problem.message));
    }
  }

  function draw(found) {
    // A button keeps the focus as long as nothing changes.
    const text = JSON.stringify(found);
    if (text !== shown) {
      shown = text;
      replace(rows, listed(found, feed, look));
    }
    for (const left of rows.querySelectorAll("[data-until]")) put(left, t("{time} left", { time: duration(left.dataset.until - feed.now()) }));
  }

  look();
  const clock = setInterval(look, LOOK_MS);
  return {
    node,
    end() {
      isOver = true;
      clearInterval(clock);
    },
  };
}

function listed({ projects = [], configured = [], allowed = [] }, feed, look) {
  const rows = [
    ...allowed.map((one) => row(one, saidBy(one), left(one), takeBack(feed, one, look))),
    ...projects.map((one) => one.is_project
      ? row({ ...one, writing: true }, t("project of {client}", { client: one.client || t("a client") }))
      : row(one, t("{client} was started here, but this is no project", { client: one.client || t("A client") }))),
    ...configured.map((one) => row(one, t("{key} in config.toml", { key: one.key }))),
  ];
  return rows.length ? rows : h("li.quiet", {}, t("None: no client is connected, and nothing was allowed."));
}

function row({ path, writing }, why, ...more) {
  const use = writing === undefined ? t("nothing") : writing ? t("read and write") : t("read");
  return h("li.allowance", {}, h("code.path", {}, path), h("span.use", {}, use), h("span.quiet.why", {}, why), more);
}

const WHERE = new Map([["command line", "by the command line"], ["form", "in a form"], ["page", "on this page"]]);

function saidBy({ by, session }) {
  const where = t("allowed {where}", { where: t(WHERE.get(by) || by) });
  return session ? `${where}, ${t("for one session")}` : where;
}

function left({ until }) {
  return until === null ? h("span.left", {}, t("always")) : h("span.left", { "data-until": until });
}

function takeBack(feed, { path }, look) {
  const node = button(t("Take back"), async () => {
    const answer = await sent(feed, node, "/api/disallow", { path }, (problem) => say(problem, true));
    if (answer) say(answer.still || t("Taken back: {path}", { path }), Boolean(answer.still));
    look();
  }, "small");
  node.setAttribute("aria-label", t("Take back {path}", { path }));
  return node;
}

function makeForm(feed, look) {
  const given = { writing: true, for_s: USUAL_S };
  const path = h("input.input.code", { placeholder: "~/projects/results", "aria-label": t("Folder or file"), autocomplete: "off", spellcheck: "false", autocapitalize: "off", required: true });
  const go = h("button.button.primary", { type: "submit" }, t("Allow"));
  const trouble = h("p.trouble", { role: "alert", hidden: true });
  const tell = (problem) => {
    put(trouble, problem);
    trouble.hidden = !problem;
  };
  const uses = [[true, t("read and write")], [false, t("read")]];
  const node = h("form.panel.form", { hidden: true, "aria-label": t("Allow a folder") },
    h("div.fields", {},
      h("label.field.wide", {}, h("span.field-name", {}, t("Folder or file")), path),
      group(t("Agents may"), choice(t("Agents may"), uses, given.writing, (value) => (given.writing = value))),
      group(t("For"), choice(t("For"), TIMES.map(([time, words]) => [time, t(words)]), given.for_s, (value) => (given.for_s = value)))),
    h("div.form-end", {}, trouble, go));
  node.addEventListener("submit", async (event) => {
    event.preventDefault();
    tell("");
    const answer = await sent(feed, go, "/api/allow", { path: path.value, ...given }, tell);
    if (!answer) return;
    say([t("Allowed: {path}", { path: answer.allowed.path }), ...answer.warnings].join(". "), answer.warnings.length > 0);
    path.value = "";
    node.hidden = true;
    look();
  });
  return {
    node,
    toggle() {
      node.hidden = !node.hidden;
      if (!node.hidden) path.focus();
    },
  };
}

function group(words, node) {
  return h("div.field", {}, h("span.field-name", { "aria-hidden": "true" }, words), node);
}

// Send while a button is busy; a failure is told, and null comes back.
async function sent(feed, button, path, value, tell) {
  button.disabled = true;
  try {
    return await feed.post(path, value);
  } catch (problem) {
    tell(problem.message || t("It did not work"));
    return null;
  } finally {
    button.disabled = false;
  }
}
