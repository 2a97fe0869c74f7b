// The whole of a log, of which the page has only a part: what is above and below, search, copy and download.

import { Terminal } from "./ansi.js";
import { h, replace } from "./dom.js";
import { bytes } from "./format.js";
import { TRACEBACK } from "./log_lines.js";
import { button, copied, say } from "./parts.js";
import { t } from "./words.js";

// Bytes that are loaded at once, and before a line that was searched for.
const PART = 400_000;
const BEFORE = 64_000;
const TYPING_MS = 250;
const MOST_MATCHES = 100_000;
// A clipboard with more than this stops other programs.
const MOST_COPIED = 32e6;

export class WholeLog {
  // `live` begins to follow the end again.
  constructor(feed, log, sandbox, job, live) {
    this._feed = feed;
    this._log = log;
    this._given = { sandbox, job };
    this._job = job;
    this._live = live;
    this.isLive = true;
    this._size = 0;
    this._found = [];
    this._searched = 0;
    log.moved = () => this._draw();
    log.searches = (words) => this._search(words);
    log.reach = (at) => this._busy(() => this._around(at));
    log.copies = () => this._busy(() => this._copy());
    log.downloads = () => this._busy(() => this._download());
    log.traceback = () => this._busy(() => this._firstTraceback());
  }

  end() {
    clearTimeout(this._typing);
    this._query = null;
  }

  // How far the log goes that is followed.
  grown(size) {
    this._size = Math.max(size ?? 0, this.isLive ? 0 : this._size);
    if (!this.isLive) this._draw();
  }

  async _busy(work) {
    if (this._isBusy) return;
    this._isBusy = true;
    try {
      await work();
    } catch (problem) {
      say(problem.message, true);
    } finally {
      this._isBusy = false;
      this._draw();
    }
  }

  // Above and below

  _draw() {
    const begin = this._log.begin;
    const rest = this.isLive || this._log.reached === null ? 0 : this._size - this._log.reached;
    this._count(begin);
    const key = `${begin > 0 ? bytes(begin) : ""}|${rest > 0 ? bytes(rest) : ""}|${this.isLive}`;
    if (key !== this._shown) {
      this._shown = key;
      edge(this._log.above, begin > 0, t("{size} earlier", { size: bytes(begin) }),
        button(t("Load"), () => this._busy(() => this._earlier()), "small"),
        button(t("From the beginning"), () => this._busy(() => this._first()), "small"));
      edge(this._log.below, !this.isLive, rest > 0 ? t("{size} later", { size: bytes(rest) }) : t("This is a part of the log."),
        rest > 0 ? button(t("Load"), () => this._busy(() => this._later()), "small") : "",
        button(t("To the end"), () => this._toEnd(), "small"));
    }
    this._tell();
  }

  // Ask which line it is that the loaded part begins with.
  async _count(begin) {
    if (begin === null || begin === this._counted) return;
    this._counted = begin;
    const first = this._log.firstLine;
    const line = begin ? (await this._feed.get("/api/log/line", { ...this._given, at: begin }).catch(() => ({}))).line : 1;
    if (this._counted === begin && Number.isFinite(line)) this._log.count(first, line);
  }

  // A line that an address names.
  toLine(number) {
    return this._busy(async () => {
      const { at } = await this._feed.get("/api/log/line", { ...this._given, line: number });
      await this._around(at);
    });
  }

  async _firstTraceback() {
    for (const words of [TRACEBACK, "error"]) {
      for (let at = 0; at !== null; ) {
        const { found, next } = await this._feed.get("/api/log/search", { ...this._given, words, at });
        if (found.length) return this._around(found[0]);
        at = next;
      }
    }
    say(t("There is no error in this log."));
  }

  _part(from, to) {
    return this._feed.get("/api/log/part", { ...this._given, from: Math.max(0, from), to });
  }

  async _earlier() {
    const begin = this._log.begin;
    const { text, from, size } = await this._part(begin - PART, begin);
    this._size = size;
    this._log.prepend(text, from);
  }

  async _later() {
    const found = await this._part(this._log.reached, this._log.reached + PART);
    this._size = found.size;
    this._log.write(found.text, found.from, found.to);
  }

  async _first() {
    const found = await this._part(0, PART);
    this._leave(found);
    this._log.write(found.text, found.from, found.to);
    this._log.toTop();
  }

  // A line that was found, with what is around it.
  async _around(at) {
    const [before, after] = await Promise.all([at ? this._part(at - BEFORE, at) : { text: "" }, this._part(at, at + PART)]);
    this._leave(after);
    if (at) this._log.write(before.text, before.from, before.to);
    const line = this._log.nextLine;
    this._log.write(after.text, after.from, after.to);
    // What says that it is a part takes room from it.
    this._draw();
    this._log.choose(line);
    if (this._log.words) this._go(this._log.words);
  }

  // From the end, which is followed, to a part that stays.
  _leave({ size }) {
    this.isLive = false;
    this._counted = null;
    this._size = size;
    this._live(false);
    this._log.clear();
  }

  _toEnd() {
    this.isLive = true;
    this._counted = null;
    this._log.clear();
    this._log.follow();
    this._live(true);
    this._draw();
  }

  // Search

  _search(words) {
    clearTimeout(this._typing);
    this._found = [];
    this._searched = 0;
    this._query = null;
    if (!words || !(this._log.begin > 0 || !this.isLive)) return;
    this._log.outside([], [], false);
    this._typing = setTimeout(() => this._go(words), TYPING_MS);
  }

  // Ask the server for one part after another; another search ends this one.
  async _go(words) {
    const mine = (this._query = { words });
    try {
      for (let at = this._searched; at !== null && this._found.length < MOST_MATCHES; ) {
        const answer = await this._feed.get("/api/log/search", { ...this._given, words: /[A-Z]/.test(words) ? words : words.toLowerCase(), at });
        if (this._query !== mine) return;
        this._found.push(...answer.found.filter((one) => one >= this._searched));
        at = answer.next;
        this._searched = at ?? answer.size;
        this._tell();
      }
    } catch (problem) {
      say(problem.message, true);
    }
    if (this._query === mine) this._query = null;
    this._tell();
  }

  _tell() {
    if (!this._log.words) return;
    const begin = this._log.begin ?? 0;
    const end = this.isLive ? Infinity : this._log.reached ?? Infinity;
    this._log.outside(this._found.filter((at) => at < begin), this._found.filter((at) => at >= end), !this._query);
  }

  // All of it

  async _text() {
    return (await this._feed.fetch(`/api/log/whole?${new URLSearchParams(this._given)}`)).blob();
  }

  async _copy() {
    if (this.isLive && this._log.begin === 0) return copied(this._log.text);
    if (this._size > MOST_COPIED) return say(t("The log is too long for the clipboard: download it."), true);
    return copied(Terminal.whole(await (await this._text()).text()).text);
  }

  async _download() {
    const link = h("a", { href: URL.createObjectURL(await this._text()), download: `${this._job.replace(/[^\w.-]+/g, "_")}.log` });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
  }
}

function edge(node, isShown, words, ...tools) {
  node.hidden = !isShown;
  if (isShown) replace(node, h("span", {}, words), tools);
}
