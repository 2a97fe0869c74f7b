// Everything that is asked of the server: entering, streams that connect again by themselves, rows by topic, calls.

import { said } from "./saying.js";

const TOKEN = "remote-sandbox-token";
// Without a byte for so long a line is dead: the server writes at least every 10 s.
const SILENT_MS = 25000;
// A page that is not looked at lets its lines go: machines are not asked for no reader, and a browser has six lines.
const UNSEEN_MS = 60000;
const FIRST_WAIT_MS = 400;
const LONGEST_WAIT_MS = 10000;
// A trend is drawn over the last hour; a machine is asked every four seconds.
const TREND_S = 3600;
// Points of the last minutes are kept as they come, earlier ones at this distance: a minute is a column of a sparkline.
const FRESH_S = 300;
const APART_S = 15;
const MOST_POINTS = 1000;

export class Refused extends Error {
  constructor(status, sentence) {
    super(said(sentence));
    this.status = status;
  }
}

// The events of a response, one after another: {event, data}.
async function* events(response, heard) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    heard();
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const event = read(part);
      if (event) yield event;
    }
  }
}

function read(part) {
  let event = "message";
  const data = [];
  for (const line of part.split(/\r?\n/)) {
    if (line.startsWith("event:")) event = line.slice(6).trim();
    else if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
  }
  return data.length ? { event, data: JSON.parse(data.join("\n")) } : null;
}

// A line of events that connects again until it is closed.
class Stream {
  constructor(feed, path, hear, tell) {
    this._feed = feed;
    this._path = path;
    this._hear = hear;
    this._tell = tell;
    this._failures = 0;
    this._heard = 0;
    this.isClosed = false;
    this._silence = setInterval(() => this._check(), 5000);
    this._go();
  }

  close() {
    this.isClosed = true;
    clearInterval(this._silence);
    this._abort?.abort();
    this._wake?.();
  }

  // Connect at once, if there is no living line. While an attempt is under way, its failure is followed by another: it
  // may have been made before the key was given.
  nudge() {
    if (Date.now() - this._heard > 12000) this._abort?.abort();
    this._failures = 0;
    this._isResting = false;
    this._isNudged = true;
    this._wake?.();
  }

  // Let the line go until the next nudge.
  rest() {
    this._isResting = true;
    this._isNudged = false;
    this._abort?.abort();
  }

  _check() {
    if (this._abort && Date.now() - this._heard > SILENT_MS) this._abort.abort();
  }

  async _go() {
    while (!this.isClosed) {
      // Asked before each attempt: rest() may have come during the pause after a failure.
      if (this._isResting) {
        await this._pause(null);
        continue;
      }
      let problem = null;
      this._isNudged = false;
      try {
        await this._once();
      } catch (found) {
        problem = found;
      }
      this._abort = null;
      if (this.isClosed) return;
      if (this._isResting) continue;
      if (problem instanceof Refused && problem.status !== 429 && problem.status < 500) {
        this._tell("refused", problem);
        await this._pause(null);
      } else await this._retry(problem);
    }
  }

  async _retry(problem) {
    const wait = Math.min(LONGEST_WAIT_MS, FIRST_WAIT_MS * 2 ** this._failures++) * (0.75 + Math.random() / 2);
    this._tell("lost", problem, Date.now() + wait);
    await this._pause(wait);
  }

  _pause(ms) {
    if (this._isNudged) return Promise.resolve();
    return new Promise((done) => {
      const timer = ms === null ? 0 : setTimeout(done, ms);
      this._wake = () => {
        clearTimeout(timer);
        done();
      };
    });
  }

  async _once() {
    this._abort = new AbortController();
    this._heard = Date.now();
    const response = await this._feed.fetch(this._path, { signal: this._abort.signal });
    this._tell("live");
    for await (const { event, data } of events(response, () => (this._heard = Date.now()))) {
      this._failures = 0;
      this._hear(event, data);
      if (this.isClosed) return;
    }
  }
}

export class Feed {
  constructor(base = "/ui") {
    this._base = base;
    this._topics = new Map();
    this._listeners = new Map();
    this._streams = new Set();
    this.phase = "starting";
    this.problem = "";
    this.retryAt = 0;
    this._ahead = 0;
  }

  // Rows

  rows(topic) {
    let rows = this._topics.get(topic);
    if (!rows) this._topics.set(topic, (rows = new Map()));
    return rows;
  }

  // Whether the first, whole message of a topic has come.
  has(topic) {
    return Boolean(this._topics.get(topic)?.isWhole);
  }

  // `hear()` after each change of one of these topics ("phase": the connection); returns how to end that.
  listen(topics, hear) {
    for (const topic of topics) {
      if (!this._listeners.has(topic)) this._listeners.set(topic, new Set());
      this._listeners.get(topic).add(hear);
    }
    return () => topics.forEach((topic) => this._listeners.get(topic).delete(hear));
  }

  // The server's clock, in seconds.
  now() {
    return Date.now() / 1000 + this._ahead;
  }

  _changed(topic) {
    for (const hear of this._listeners.get(topic) || []) hear(topic);
  }

  _hear(event, change) {
    if (event !== "change") return;
    const { topic, whole, put = {}, gone = [] } = change;
    const rows = this.rows(topic);
    if (whole) rows.clear();
    rows.isWhole = true;
    for (const [id, row] of Object.entries(put)) rows.set(id, topic === "trends" ? grown(rows.get(id), row) : row);
    for (const id of gone) rows.delete(String(id));
    const told = topic === "about" && rows.get("hub")?.now;
    if (told) this._ahead = told - Date.now() / 1000;
    this._changed(topic);
  }

  // Connection

  start() {
    document.addEventListener("visibilitychange", () => this._seen());
    window.addEventListener("online", () => this.retry());
    // After a sleep, and when a page comes back from the browser's cache.
    window.addEventListener("pageshow", () => this.retry());
    document.addEventListener("resume", () => this.retry());
    // Another tab has entered, or left.
    window.addEventListener("storage", (event) => event.key === TOKEN && (event.newValue ? this.retry() : this._lock()));
    if (!localStorage.getItem(TOKEN)) this._tell("refused", new Refused(401, ""));
    this._main = this.stream("/api/stream", (event, data) => this._hear(event, data), (...told) => this._tell(...told));
    // A tab that is opened in the background is told nothing of that.
    if (document.hidden) this._seen();
  }

  stream(path, hear, tell) {
    const stream = new Stream(this, path, hear, tell);
    this._streams.add(stream);
    return { close: () => (stream.close(), this._streams.delete(stream)), nudge: () => stream.nudge() };
  }

  // Not in a hidden tab, whose lines would stay open: it connects when it is shown again.
  retry() {
    if (document.hidden) return;
    for (const stream of this._streams) stream.nudge();
  }

  _seen() {
    clearTimeout(this._unseen);
    this.retry();
    if (document.hidden) this._unseen = setTimeout(() => this._streams.forEach((stream) => stream.rest()), UNSEEN_MS);
  }

  // The key is needed again. A stream may live on without it, and would not connect anew when the key is given.
  _lock(problem = new Refused(401, "")) {
    this._streams.forEach((stream) => stream.rest());
    this._tell("refused", problem);
  }

  _tell(phase, problem, retryAt = 0) {
    this.phase = phase === "refused" ? (problem.status === 401 ? "key" : "refused") : phase;
    this.problem = problem instanceof Refused ? problem.message : "";
    this.retryAt = retryAt;
    this._changed("phase");
  }

  // Requests

  async fetch(path, options = {}) {
    const headers = { "X-Page-Token": localStorage.getItem(TOKEN) || "", ...options.headers };
    const response = await fetch(this._base + path, { ...options, headers, credentials: "same-origin", cache: "no-store" });
    if (response.ok) return response;
    throw new Refused(response.status, await sentence(response));
  }

  async get(path, parameters = {}) {
    const given = Object.entries(parameters).filter(([, value]) => value !== "" && value !== undefined && value !== null);
    return this._asked(() => this.fetch(`${path}?${new URLSearchParams(given)}`));
  }

  // A WebSocket has no headers of its own: the token is a word beside the one that both speak.
  socket(path, word) {
    const words = [word, `token.${localStorage.getItem(TOKEN) || ""}`];
    return Object.assign(new WebSocket(`${location.origin.replace("http", "ws")}${this._base}${path}`, words), { binaryType: "arraybuffer" });
  }

  // Call a tool. Returns {is_error, text, structured}.
  call(tool, given) {
    return this.post("/api/call", { tool, arguments: given });
  }

  post(path, value) {
    return this._asked(() => this._post(path, value));
  }

  _post(path, value) {
    return this.fetch(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(value) });
  }

  async _asked(ask) {
    try {
      return await (await ask()).json();
    } catch (problem) {
      if (problem instanceof Refused && problem.status === 401) this._lock(problem);
      throw problem;
    }
  }

  async enter(key) {
    const { token } = await (await this._post("/enter", { key })).json();
    localStorage.setItem(TOKEN, token);
    this.retry();
  }

  async leave() {
    try {
      await this._post("/leave", {});
    } finally {
      localStorage.removeItem(TOKEN);
      this._lock();
    }
  }
}

async function sentence(response) {
  try {
    return String((await response.json()).error || response.statusText);
  } catch {
    return response.statusText || String(response.status);
  }
}

// A trend with its new points, of an hour, and thinned: of a hundred machines it would be the most that a page keeps.
function grown(known, row) {
  if (!row.add) return row;
  const points = [...(known?.points || []), ...row.add];
  const end = points.length ? points[points.length - 1][0] : 0;
  let last = -Infinity;
  const isKept = ([time]) => time > end - TREND_S && (time > end - FRESH_S || time - last >= APART_S);
  return { points: points.filter((point) => isKept(point) && ((last = point[0]), true)).slice(-MOST_POINTS) };
}

export const feed = new Feed();
