// Tell me: a notification, and the title of the page, when a job ends that its reader has chosen.

import { jobState, stateWord } from "./cards.js";
import { h } from "./dom.js";
import { icon, say } from "./parts.js";
import { t } from "./words.js";

const KEPT = "remote-sandbox-tell";
const MOST = 200;
const LIVE = ["running", "pending", "unknown"];

let title = "remote-sandbox";
let news = "";

function show() {
  document.title = `${news ? `● ${news} · ` : ""}${title} · remote-sandbox`;
}

export function entitle(words) {
  title = words;
  show();
}

function chosen() {
  try {
    const found = JSON.parse(localStorage.getItem(KEPT));
    return Array.isArray(found) ? found.filter((id) => typeof id === "string") : [];
  } catch {
    return [];
  }
}

function choose(id, isOn) {
  const others = chosen().filter((one) => one !== id);
  localStorage.setItem(KEPT, JSON.stringify(isOn ? [...others, id].slice(-MOST) : others));
}

// A switch for one job, while it runs: {node, update(row)}.
export function tellButton(id) {
  const node = h("button.toggle.tell", { type: "button", "aria-pressed": String(chosen().includes(id)) }, icon("bell"), h("span", {}, t("Tell me")));
  node.title = t("Tell me when this job ends");
  node.addEventListener("click", async () => {
    const isOn = node.getAttribute("aria-pressed") !== "true";
    node.setAttribute("aria-pressed", String(isOn));
    choose(id, isOn);
    if (isOn && globalThis.Notification?.permission === "default") await Notification.requestPermission();
    if (isOn && globalThis.Notification?.permission !== "granted") say(t("This browser shows no notifications of this page; its title says it."));
  });
  return { node, update: (row) => (node.hidden = !row || !LIVE.includes(jobState(row))) };
}

// Look at the jobs that were chosen, on whichever view.
export function tellOfEnds(feed) {
  const ended = () => {
    for (const id of chosen()) {
      const row = feed.rows("jobs").get(id);
      if (!row || LIVE.includes(jobState(row))) continue;
      choose(id, false);
      tell(id, row);
    }
  };
  feed.listen(["jobs"], ended);
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) return;
    news = "";
    show();
  });
}

function tell(id, row) {
  const words = t("{job} on {machine}: {state}", { job: row.tmux_session, machine: row.sandbox, state: stateWord(jobState(row)) });
  say(words, jobState(row) === "failed");
  news = words;
  show();
  if (globalThis.Notification?.permission !== "granted") return;
  const shown = new Notification(words, { body: row.reason || row.command || "", tag: id });
  shown.onclick = () => {
    globalThis.focus();
    location.hash = `#/jobs/${encodeURIComponent(id)}`;
  };
}
