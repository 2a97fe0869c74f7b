// What stands above every view when something is wrong: no connection, no key, problems of the configuration.

import { h, put, replace } from "./dom.js";
import { duration } from "./format.js";
import { button, say } from "./parts.js";
import { said } from "./saying.js";
import { parts, t } from "./words.js";

// A restart of the hub takes a moment; a banner that only flashes helps no one.
const PATIENCE_MS = 1200;

export function banner(feed) {
  const lost = h("div.banner.lost", { hidden: true, role: "status" });
  const words = h("span");
  lost.append(words, button(t("Try now"), () => feed.retry(), "small"));
  const alone = h("div.banner.alone", { hidden: true, role: "status" });
  const problems = h("details.banner.problems", { hidden: true });
  const node = h("div.banners", {}, lost, alone, problems);
  let since = 0;

  function draw() {
    const isLost = feed.phase === "lost" || feed.phase === "refused";
    if (feed.phase === "live" && !lost.hidden) say(t("Connected again after {time}.", { time: duration((Date.now() - since) / 1000) }));
    if (!isLost) since = 0;
    else if (!since) since = Date.now();
    const shows = isLost && (Date.now() - since > PATIENCE_MS || feed.phase === "refused");
    lost.hidden = !shows;
    if (shows) put(words, lostWords(feed, since));
    document.body.classList.toggle("stale", shows);
    const about = feed.rows("about").get("hub");
    if (about) showAlone(alone, about.without_hub || "");
    showProblems(problems, about?.problems || []);
  }

  const end = feed.listen(["phase", "about"], draw);
  const timer = setInterval(draw, 1000);
  draw();
  return { node, end: () => (end(), clearInterval(timer)) };
}

function lostWords(feed, since) {
  if (feed.phase === "refused") return feed.problem;
  const left = Math.ceil((feed.retryAt - Date.now()) / 1000);
  const first = left > 0 ? t("Connection lost. Trying again in {n} s.", { n: left }) : t("Connection lost. Trying again …");
  const ago = (Date.now() - since) / 1000;
  return ago < 5 ? first : `${first} ${t("What you see is as it was {ago} ago.", { ago: duration(ago) })}`;
}

// One line while the server serves without its hub, and one when the hub is back.
function showAlone(node, why) {
  if (!why && !node.hidden) say(t("The hub serves this page again."));
  node.hidden = !why;
  if (why) put(node, t("Served without the hub until it answers: {why}", { why: said(why) }));
}

function showProblems(node, found) {
  const text = found.join("\n");
  if (node.shown === text) return;
  node.shown = text;
  node.hidden = !found.length;
  replace(node, h("summary", {}, t("{n} problems", { n: found.length })), h("ul", {}, found.map((problem) => h("li", {}, said(problem)))));
}

// The page without a key.
export function door(feed, entered) {
  const input = h("input.input", { type: "password", autocomplete: "off", "aria-label": t("Key"), placeholder: t("Key"), required: true });
  const problem = h("p.trouble", { role: "alert", hidden: true });
  const go = h("button.button.primary", { type: "submit" }, t("Enter"));
  const form = h("form.door-form", {}, input, go);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    go.disabled = true;
    try {
      await feed.enter(input.value.trim());
      entered();
    } catch (found) {
      put(problem, found.message);
      problem.hidden = false;
      input.select();
    } finally {
      go.disabled = false;
    }
  });
  const command = h("code", {}, "remote-sandbox-mcp dashboard");
  return h("section.door", {}, h("div.door-box", {}, h("h1", { tabindex: "-1" }, t("This page needs its key")), h("p", {}, parts("Run {command} in a terminal: it opens this page with the key. Or paste the key here.", { command })), form, problem));
}
