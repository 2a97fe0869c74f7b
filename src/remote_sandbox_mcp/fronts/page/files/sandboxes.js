// Sandboxes that end by themselves: making one, running a command in it, its ports, its end.

import { LazyList, attribute, h, put, replace, soon } from "./dom.js";
import { duration, moment, took } from "./format.js";
import { button, choice, confirmed, copyButton, doing, done, empty, heading, machineLink, say } from "./parts.js";
import { said } from "./saying.js";
import { t } from "./words.js";

const LIVES = [600, 3600, 4 * 3600, 24 * 3600];

export function mount(root, { feed }) {
  const form = makeForm(feed);
  const rows = h("ul.rows.cards", { "aria-label": t("Sandboxes") });
  const nothing = h("div");
  const open = button(t("New sandbox"), () => form.toggle(), "primary");
  const list = new LazyList(rows, (row) => sandboxCard(row, feed), () => h("li.cell"));
  root.append(heading(t("Sandboxes"), open), form.node, nothing, rows);

  function draw() {
    const all = [...feed.rows("sandboxes")];
    list.show(all.sort(([, one], [, other]) => (moment(other.created_at) || 0) - (moment(one.created_at) || 0)));
    if (all.length) nothing.replaceChildren();
    else replace(nothing, feed.has("sandboxes") ? empty(t("No sandboxes"), t("A disposable place to try something. It ends by itself.")) : empty(t("Loading …")));
  }

  draw();
  const end = feed.listen(["sandboxes"], () => soon(draw));
  const clock = setInterval(() => list.near((card) => card.tick()), 1000);
  return () => {
    end();
    clearInterval(clock);
    list.end();
  };
}

// Making one

function makeForm(feed) {
  const node = h("form.panel.form", { hidden: true, "aria-label": t("New sandbox") });
  let isFilled = false;
  return {
    node,
    async toggle() {
      node.hidden = !node.hidden;
      if (node.hidden) return;
      if (!isFilled) {
        isFilled = true;
        await fill(node, feed);
      }
      node.querySelector("input, select")?.focus();
    },
  };
}

async function fill(node, feed) {
  let choices = {};
  try {
    choices = await feed.get("/api/choices");
  } catch (problem) {
    say(problem.message, true);
  }
  const places = placesOf(choices);
  const given = { life: choices.timeout_s || LIVES[0], network: "" };
  const where = h("select.select", {}, places.map((place, at) => h("option", { value: at }, placeWords(place))));
  const name = h("input.input", { placeholder: t("optional"), autocomplete: "off", maxlength: "60" });
  const image = h("input.input", { autocomplete: "off" });
  const gpus = h("input.input", { inputmode: "numeric", placeholder: t("optional"), autocomplete: "off" });
  const [imageField, gpuField] = [field(t("Image"), image), field(t("GPUs"), gpus)];
  const lives = [...new Set([given.life, ...LIVES])].sort((one, other) => one - other);
  const adapt = () => {
    const place = places[where.value] || places[0];
    attribute(image, "placeholder", place.default_image || t("as configured"));
    imageField.hidden = Boolean(place.is_queue);
    gpuField.hidden = !place.has_cards && !place.is_queue;
  };
  where.addEventListener("change", adapt);
  adapt();
  const create = h("button.button.primary", { type: "submit" }, t("Create"));
  // Stays beside what has to be changed.
  const trouble = h("p.trouble", { role: "alert", hidden: true });
  const tell = (problem) => {
    put(trouble, problem);
    trouble.hidden = !problem;
  };
  node.addEventListener("submit", async (event) => {
    event.preventDefault();
    const place = places[where.value] || places[0];
    const order = { name: name.value.trim(), on: place.on ?? "", timeout: given.life };
    if (!imageField.hidden) order.image = image.value.trim();
    if (!gpuField.hidden && gpus.value.trim()) order.gpu = gpus.value.trim();
    if (given.network) order.network = given.network === "on";
    for (const [key, value] of Object.entries(order)) if (value === "") delete order[key];
    tell("");
    put(create, t("Creating …"));
    const answer = await doing(feed, create, "create_sandbox", order, tell);
    put(create, t("Create"));
    if (!answer) return;
    say(done(answer));
    name.value = "";
    node.hidden = true;
  });
  replace(
    node,
    choices.problem ? h("p.trouble", {}, said(choices.problem)) : "",
    h("div.fields", {}, field(t("Where"), where), field(t("Name"), name), imageField, gpuField),
    h("div.fields", {},
      group(t("Lives for"), choice(t("Lives for"), lives.map((life) => [life, lifeWords(life)]), given.life, (life) => (given.life = life))),
      group(t("Network"), choice(t("Network"), [["", t("as configured")], ["off", t("off")], ["on", t("on")]], "", (value) => (given.network = value))),
    ),
    h("div.form-end", {}, trouble, create),
  );
}

// The default first; where none is told, the server decides.
function placesOf({ providers = [] }) {
  const sorted = [...providers].sort((one, other) => Number(Boolean(other.is_default)) - Number(Boolean(one.is_default)));
  return sorted.length ? sorted : [{ on: "", provider: t("as configured") }];
}

function placeWords({ provider, on }) {
  if (provider === "embedded") return t("this computer");
  const kind = kindWords(provider);
  return on && on !== provider ? `${on} · ${kind}` : kind;
}

// A provider of a machine is called by its kind and the machine, as docker:gpu1.
function kindWords(kind) {
  return String(kind || "").split(":")[0];
}

function lifeWords(seconds) {
  return seconds < 3600 ? t("{n} min", { n: Math.round(seconds / 60) }) : t("{n} h", { n: Math.round(seconds / 360) / 10 });
}

function field(words, input) {
  return h("label.field", {}, h("span.field-name", {}, words), input);
}

function group(words, node) {
  return h("div.field", {}, h("span.field-name", { "aria-hidden": "true" }, words), node);
}

// One of them

function sandboxCard(first, feed) {
  let row = first;
  const id = () => row.id || row.sandbox_id;
  const name = h("h2");
  const state = h("span.state");
  const left = h("span.left");
  const facts = h("p.quiet");
  const ports = h("div.ports");
  const run = runPanel(row.name || id(), (go, command) => doing(feed, go, "run_command", { sandbox_id: id(), command }));
  const remove = button(t("Delete"), () => deleteIt(feed, remove, row, id()), "danger-quiet");
  const node = h("article.panel.sandbox", {}, h("header.card-head", {}, name, state, h("span.spring"), left, remove), facts, ports, run);
  const copy = copyButton(id);
  name.after(copy);
  const card = {
    node,
    update(next) {
      row = next;
      attribute(node, "data-state", stateOf(row));
      put(name, row.name || id());
      put(state, t(row.status || ""));
      put(facts, [row.name ? id() : "", row.kind, row.image, row.host, said(row.reason)].filter(Boolean).join(" · "));
      if (row.on) facts.append(" · ", machineLink(row.on));
      portLinks(ports, feed, row, id());
      card.tick();
    },
    tick() {
      const end = moment(row.expires_at);
      const rest = end === null ? null : end - feed.now();
      put(left, rest === null ? t("no end") : rest > 0 ? t("ends in {time}", { time: duration(rest) }) : t("over"));
      attribute(left, "data-level", rest !== null && rest < 60 ? "high" : null);
    },
  };
  card.update(first);
  return card;
}

function stateOf(row) {
  const status = String(row.status || "").toLowerCase();
  if (status.includes("run")) return "running";
  return status.includes("pend") || status.includes("paus") ? "pending" : status.includes("fail") ? "failed" : "ended";
}

// Only addresses of this computer become links.
function isNear(url) {
  try {
    const { protocol, hostname } = new URL(url);
    return /^https?:$/.test(protocol) && ["127.0.0.1", "localhost"].includes(hostname);
  } catch {
    return false;
  }
}

function isPort(text) {
  return /^\s*\d{1,5}\s*$/.test(text) && Number(text) >= 1 && Number(text) <= 65535;
}

export function portLinks(node, feed, row, id) {
  const text = JSON.stringify(row.ports || []);
  if (node.shown === text) return;
  node.shown = text;
  const links = (row.ports || []).map(({ port, url, status }) => isNear(url)
    ? h("a.port", { href: url, target: "_blank", rel: "noopener noreferrer" }, h("b", {}, port), " ", url)
    : h("span.port", {}, h("b", {}, port), " ", url || status || ""));
  const number = h("input.input.short", { inputmode: "numeric", placeholder: t("Port"), "aria-label": t("Open a port"), maxlength: "5" });
  const open = h("button.button.small", { type: "submit" }, t("Open"));
  const form = h("form.inline", {}, number, open);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (!isPort(number.value)) return say(t("A port is a number from 1 to 65535."), true);
    const answer = await doing(feed, open, "forward_port", { sandbox_id: id, port: Number(number.value) });
    if (!answer) return;
    const opened = answer.structured || {};
    say([done(answer), ...(opened.notes || [])].join("; "));
    if (isNear(opened.url)) form.before(h("a.port", { href: opened.url, target: "_blank", rel: "noopener noreferrer" }, h("b", {}, number.value), " ", opened.url));
    number.value = "";
  });
  replace(node, links, form);
}

// `send(button, command)` gives what came of it, or null.
export function runPanel(name, send) {
  const input = h("input.input.code", { placeholder: t("Run a command"), "aria-label": t("Command for {name}", { name }), autocomplete: "off", spellcheck: "false", autocapitalize: "off" });
  const go = h("button.button", { type: "submit" }, t("Run"));
  const output = h("div.output", { hidden: true, "aria-live": "polite" });
  const form = h("form.inline.run", {}, h("span.prompt", { "aria-hidden": "true" }, "$"), input, go);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (!input.value.trim()) return;
    put(go, t("Running …"));
    output.hidden = false;
    const answer = await send(go, input.value);
    put(go, t("Run"));
    if (answer) showOutput(output, input.value, answer);
    output.hidden = !output.childElementCount;
    input.select();
  });
  return h("div.run-box", {}, form, output);
}

function showOutput(node, command, { text, structured }) {
  const { exit_code: code, stdout = "", stderr = "", duration: seconds } = structured || {};
  const end = code === undefined ? text.split("\n")[0] : [t("exit {code}", { code }), Number.isFinite(seconds) ? took(seconds) : ""].filter(Boolean).join(" · ");
  replace(node, h("p.output-head", { "data-state": code === 0 ? "ended" : "failed" }, h("code", {}, `$ ${command}`), h("span", {}, end)), stdout ? h("pre", { tabindex: "0" }, stdout) : "", stderr ? h("pre.stderr", { tabindex: "0" }, stderr) : "");
}

async function deleteIt(feed, button, row, id) {
  if (!(await confirmed({ title: t("Delete {name}?", { name: row.name || id }), text: t("Everything in it is lost."), yes: t("Delete") }))) return;
  const answer = await doing(feed, button, "delete_sandbox", { sandbox_id: id });
  if (answer) say(done(answer));
}
