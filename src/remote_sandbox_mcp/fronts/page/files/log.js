// A job's log as it grows: only the lines on the screen are in the document, so any speed stays smooth.

import { Terminal, paint, pieces } from "./ansi.js";
import { arrange, attribute, h, put, soon, style } from "./dom.js";
import { bytes } from "./format.js";
import { errorLines } from "./log_lines.js";
import { button, copied, icon, toggle } from "./parts.js";
import { t } from "./words.js";

const ROW_PX = 18;
const AROUND = 8;
const NUMBER_COLUMNS = 8;
const WRAP = "remote-sandbox-wrap";
const MOST_MATCHES = 100000;
// Letters that take two columns: East Asian ones and emoji.
const WIDE = /[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6\u{1f300}-\u{1faff}\u{20000}-\u{3fffd}]/u;

export class LogView {
  constructor() {
    this._terminal = new Terminal();
    this._rows = [];
    // How many lines have left the terminal's list, as far as the rows know.
    this._dropped = 0;
    this._nodes = new Map();
    this._isFollowing = true;
    this._seen = 0;
    this._top = 0;
    this._query = null;
    this._matches = [];
    // Where there are matches outside of what is loaded: bytes of the log, before and after it.
    this._outside = { before: [], after: [], isDone: true };
    this._searched = -Infinity;
    this._at = -1;
    // [line, byte] where pieces begin that begin a line.
    this._marks = [];
    // [line, its number in the whole log], where that is known; and what tells errors, where only they are shown.
    this._base = null;
    this._chosen = null;
    this._errors = null;
    this.reached = null;
    this._draw = () => this._render();
    this._build();
    this._sizes = new ResizeObserver(() => this._resized());
    this._sizes.observe(this.scroller);
  }

  // `from` and `to` are bytes of the log.
  write(text, from = null, to = null) {
    const { last } = this._terminal;
    if (from !== null && !last.text) this._marks.push([last.number, from]);
    this.reached = to ?? this.reached;
    this._terminal.write(text);
    soon(this._draw);
  }

  // What comes before the first line; the reader stays where they are.
  prepend(text, from) {
    this._terminal.dropTo(this._marks[0]?.[0] ?? -Infinity);
    this._lay();
    const before = this._rows.length;
    this._follow(false);
    this._terminal.prepend(text);
    this._marks.unshift([this._terminal.lines[0].number, from]);
    this._rows = [];
    this._nodes.clear();
    this._lay();
    style(this._spacer, "height", `${this._rows.length * ROW_PX}px`);
    this._scrollTo(this.scroller.scrollTop + (this._rows.length - before) * ROW_PX);
    this._again(this._matches[this._at]);
  }

  // The byte with which the loaded lines begin; null where that is not known.
  get begin() {
    const first = this._terminal.lines[0].number;
    while (this._marks.length && this._marks[0][0] < first) this._marks.shift();
    return this._marks[0]?.[1] ?? null;
  }

  get firstLine() {
    return this._marks[0]?.[0] ?? this._terminal.lines[0].number;
  }

  // Number the lines: this one is the nth of the whole log.
  count(line, n) {
    this._base = n - line;
    this._nodes.clear();
    soon(this._draw);
  }

  // The line that is written next.
  get nextLine() {
    return this._terminal.last.number;
  }

  toTop() {
    this._follow(false);
    this._scrollTo(0);
  }

  note(text) {
    this._terminal.note(text);
    soon(this._draw);
  }

  clear() {
    this._terminal.clear();
    this._rows = [];
    this._dropped = 0;
    this._marks = [];
    this._base = null;
    this.reached = null;
    this._nodes.clear();
    this._again();
  }

  // Words in place of lines, while there are none.
  say(words) {
    put(this._empty, words);
  }

  end() {
    this._sizes.disconnect();
  }

  get text() {
    return this._terminal.text;
  }

  get words() {
    return this._input.value;
  }

  follow() {
    this._follow(true);
  }

  toggleFollow() {
    this._follow(!this._isFollowing);
  }

  toggleWrap() {
    this._wrapButton.click();
  }

  // The page's own keys, while a log is shown.
  key(name) {
    const found = { f: () => this.toggleFollow(), w: () => this.toggleWrap(), l: () => this._link(), n: () => this._step(1), N: () => this._step(-1) }[name];
    found?.();
    return Boolean(found);
  }

  // Elements

  _build() {
    this._input = h("input.search-input", { type: "search", placeholder: t("Search the log"), "aria-label": t("Search the log"), "data-search": true, autocomplete: "off", spellcheck: "false" });
    this._input.addEventListener("input", () => {
      this._find(this._input.value);
      this.searches(this._input.value);
    });
    this._input.addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      event.preventDefault();
      this._step(event.shiftKey ? -1 : 1);
    });
    this._count = h("span.log-count", { "aria-live": "polite" });
    const previous = h("button.button.small", { type: "button", "aria-label": t("Previous match"), onclick: () => this._step(-1) }, icon("up"));
    const next = h("button.button.small", { type: "button", "aria-label": t("Next match"), onclick: () => this._step(1) }, icon("down"));
    this._isWrapped = localStorage.getItem(WRAP) !== "no";
    this._wrapButton = toggle(t("Wrap"), this._isWrapped, (isOn) => this._wrap(isOn));
    this._followButton = h("button.toggle", { type: "button", "aria-pressed": "true", onclick: () => this.toggleFollow() }, t("Follow"));
    this._lines = h("span.log-lines");
    const errors = toggle(t("Errors only"), false, (isOn) => this._filter(isOn));
    const traceback = button(t("First error"), () => this.traceback());
    const tools = h("div.log-tools", {}, h("label.search", {}, icon("search"), this._input), this._count, previous, next, h("span.spring"), this._lines, errors, traceback, this._wrapButton, this._followButton, button(t("Copy"), () => this.copies()), button(t("Download"), () => this.downloads()));
    this._spacer = h("div.log-space");
    this._window = h("div.log-window");
    this._empty = h("p.log-empty");
    this._spacer.append(this._window);
    this.scroller = h("div.log", { tabindex: "0", role: "region", "aria-label": t("Log") }, this._spacer, this._empty);
    this.scroller.addEventListener("scroll", () => this._scrolled(), { passive: true });
    this.scroller.addEventListener("wheel", (event) => event.deltaY < 0 && this._hold(), { passive: true });
    this.scroller.addEventListener("touchmove", () => this._hold(), { passive: true });
    this.scroller.addEventListener("keydown", (event) => ["PageUp", "ArrowUp", "Home"].includes(event.key) && this._hold());
    this.scroller.addEventListener("copy", (event) => this._copy(event));
    this._new = h("button.log-new", { type: "button", hidden: true, onclick: () => this._follow(true) });
    this._probe = h("span.log-probe", { "aria-hidden": "true" }, "0".repeat(100));
    this.scroller.append(this._probe);
    this.above = h("div.log-edge", { hidden: true });
    this.below = h("div.log-edge", { hidden: true });
    this.node = h("div.log-view", {}, tools, this.above, h("div.log-frame", {}, this.scroller, this._new), this.below);
  }

  // What is done about the whole log, by whoever can ask for it: they are replaced.

  searches() {}

  reach() {}

  copies() {
    return copied(this.text);
  }

  downloads() {}

  traceback() {}

  // Rows: a line, or a stretch of one that is as wide as the screen

  _columns() {
    if (!this._isWrapped) return Infinity;
    const width = this._probe.getBoundingClientRect().width / 100;
    return width ? Math.max(20, Math.floor((this.scroller.clientWidth - 28) / width) - NUMBER_COLUMNS) : 100;
  }

  _resized(isAnew = false) {
    const columns = this._columns();
    if (columns !== this._width || isAnew) {
      this._width = columns;
      this._rows = [];
      this._nodes.clear();
    }
    soon(this._draw);
  }

  _wrap(isOn) {
    this._isWrapped = isOn;
    localStorage.setItem(WRAP, isOn ? "yes" : "no");
    attribute(this.scroller, "data-wide", !isOn);
    this._resized();
  }

  _filter(isOn) {
    this._errors = isOn ? errorLines() : null;
    this._laid = -Infinity;
    this._resized(true);
  }

  // Add the rows of new lines, and drop those of lines that have left; returns how many rows left at the top.
  _lay() {
    const { lines, dropped } = this._terminal;
    let left = 0;
    if (dropped > this._dropped) {
      const first = lines[0].number;
      left = this._rows.findIndex((row) => row.line.number >= first);
      left = left < 0 ? this._rows.length : left;
      this._rows.splice(0, left);
      this._dropped = dropped;
    }
    const end = lines.length - (this._terminal.last.text ? 0 : 1);
    if (this._errors) {
      this._layErrors(lines, end);
      return left;
    }
    // The last line may have changed since: a progress bar writes over itself.
    let from = 0;
    if (this._rows.length) {
      const last = this._rows[this._rows.length - 1].line;
      while (this._rows.length && this._rows[this._rows.length - 1].line === last) this._nodes.delete(this._rows.pop());
      from = last.number - lines[0].number;
    }
    for (let at = Math.max(0, from); at < end; at++) cut(lines[at], this._width, this._rows);
    return left;
  }

  // Of the finished lines, those about errors.
  _layErrors(lines, end) {
    if (!this._rows.length) {
      this._laid = -Infinity;
      this._errors = errorLines();
    }
    for (let at = Math.max(0, this._laid + 1 - lines[0].number); at < end && at < lines.length - 1; at++) {
      if (this._errors(lines[at].text)) cut(lines[at], this._width, this._rows);
      this._laid = lines[at].number;
    }
  }

  _render() {
    if (!this._width) this._width = this._columns();
    const left = this._lay();
    const { scroller } = this;
    attribute(this._empty, "hidden", this._rows.length > 0);
    style(this._spacer, "height", `${this._rows.length * ROW_PX}px`);
    if (this._isFollowing) this._scrollTo(this._rows.length * ROW_PX);
    else if (left) this._scrollTo(scroller.scrollTop - left * ROW_PX);
    const first = Math.max(0, Math.floor(scroller.scrollTop / ROW_PX) - AROUND);
    const last = Math.min(this._rows.length, Math.ceil((scroller.scrollTop + scroller.clientHeight) / ROW_PX) + AROUND);
    this._show(this._rows.slice(first, last), first);
    this._search();
    this._tell();
  }

  _show(rows, first) {
    const nodes = new Map();
    for (const row of rows) nodes.set(row, this._nodes.get(row) || this._node(row));
    this._nodes = nodes;
    style(this._window, "transform", `translateY(${first * ROW_PX}px)`);
    arrange(this._window, [...nodes.values()]);
  }

  _node(row) {
    const { line, from, to } = row;
    const node = h("div.log-line");
    node.row = row;
    if (this._base !== null) node.append(this._number(line, from));
    for (const [text, look, isMarked] of pieces(line, from, to, this._found(line))) {
      const piece = look || isMarked ? document.createElement(isMarked ? "mark" : "span") : null;
      if (look) paint(piece, look);
      if (piece) piece.append(text);
      node.append(piece || text);
    }
    if (line.cut && to === line.text.length) node.append(h("span.note", {}, ` … ${t("this line goes on: {size} not shown", { size: bytes(line.cut) })}`));
    if ((this._matches[this._at] ?? this._chosen) === line.number) node.classList.add("current");
    return node;
  }

  // The number of a line, which leads to it; it is chosen and read aloud with the line, but never copied with it.
  _number(line, from) {
    const number = line.number + this._base;
    const node = h("a.log-number", from ? { "aria-hidden": "true" } : { href: lineAddress(number), tabindex: "-1", "data-n": number, "aria-label": t("Line {n}", { n: number }) });
    node.addEventListener("click", (event) => {
      event.preventDefault();
      this._link(line.number);
    });
    return node;
  }

  // Copy the address of a line: of this one, of the one that was gone to, or of the first one that is seen.
  _link(line = this._matches[this._at] ?? this._chosen ?? this._window.firstElementChild?.row.line.number) {
    if (this._base === null || line === undefined) return;
    history.replaceState(null, "", lineAddress(line + this._base));
    copied(location.href);
  }

  // Following

  _scrollTo(top) {
    const before = this.scroller.scrollTop;
    this.scroller.scrollTop = top;
    this._top = this.scroller.scrollTop;
    this._ours = this._top !== before;
  }

  _scrolled() {
    if (this._ours) {
      this._ours = false;
      soon(this._draw);
      return;
    }
    const { scrollTop, clientHeight, scrollHeight } = this.scroller;
    const isAtEnd = scrollHeight - scrollTop - clientHeight < ROW_PX * 2;
    // Only a reader goes up: a box that becomes smaller, or lines that came meanwhile, leave the end out of sight, too.
    const isUp = scrollTop < this._top;
    this._top = scrollTop;
    if (isAtEnd ? !this._isFollowing : this._isFollowing && isUp) this._follow(isAtEnd);
    soon(this._draw);
  }

  // A reader who scrolls up stays there: with fast output, scroll events cannot be told from our own.
  _hold() {
    const { scrollHeight, clientHeight } = this.scroller;
    if (this._isFollowing && scrollHeight > clientHeight) this._follow(false);
  }

  _follow(isOn) {
    this._isFollowing = isOn;
    this._seen = this._terminal.last.number;
    attribute(this._followButton, "aria-pressed", String(isOn));
    put(this._followButton, isOn ? t("Follow") : t("Paused"));
    soon(this._draw);
  }

  _tell() {
    const { last, lines } = this._terminal;
    const fresh = this._isFollowing ? 0 : last.number - this._seen;
    this._new.hidden = fresh <= 0;
    if (fresh > 0) put(this._new, `↓ ${t("{n} new lines", { n: fresh.toLocaleString("en-US") })}`);
    const count = lines.length - (last.text ? 0 : 1);
    put(this._lines, count ? t("{n} lines", { n: count.toLocaleString("en-US") }) : "");
    this.moved?.();
  }

  // Searching

  _find(words) {
    this._query = words ? new RegExp(words.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"), /[A-Z]/.test(words) ? "g" : "gi") : null;
    this._outside = { before: [], after: [], isDone: true };
    this._again();
    if (this._matches.length) this._step(-1);
  }

  // Search all that is loaded; the line that was gone to stays the current one.
  _again(number = null) {
    this._matches = [];
    this._searched = -Infinity;
    this._at = -1;
    this._nodes.clear();
    this._search();
    this._at = number === null ? -1 : this._matches.indexOf(number);
    soon(this._draw);
  }

  // Matches of the rest of the log, as bytes in order.
  outside(before, after, isDone) {
    this._outside = { before, after, isDone };
    this._search();
  }

  // Go to the match in a line, or to the next one after it.
  choose(number) {
    this._again();
    this._chosen = number;
    const found = this._matches.findIndex((one) => one >= number);
    if (found < 0) this._showLine(number);
    else this._go(found);
  }

  _found(line) {
    if (!this._query) return [];
    return [...line.text.matchAll(this._query)].filter((found) => found[0]).map((found) => [found.index, found.index + found[0].length]);
  }

  // Only lines that are new since the last time; the unfinished one waits.
  _search() {
    if (!this._query) return put(this._count, "");
    const { lines, last } = this._terminal;
    const first = lines[0].number;
    if (this._matches.length && this._matches[0] < first) this._forget(first);
    for (let at = Math.max(0, this._searched - first + 1); at < lines.length; at++) {
      if (lines[at] === last && !last.text) break;
      // Not test(), which would leave behind where the next search begins.
      if (lines[at].text.search(this._query) >= 0 && this._matches.length < MOST_MATCHES) this._matches.push(lines[at].number);
      this._searched = lines[at].number;
    }
    put(this._count, this._counted());
  }

  _counted() {
    const { before, after, isDone } = this._outside;
    const all = before.length + this._matches.length + after.length;
    const n = `${all.toLocaleString("en-US")}${isDone ? "" : " …"}`;
    if (!all) return isDone ? t("no match") : "…";
    const at = before.length + (this._at < 0 ? this._matches.length : this._at + 1);
    return this._matches.length ? t("{at} of {n}", { at: at.toLocaleString("en-US"), n }) : t("{n} elsewhere", { n });
  }

  _forget(first) {
    const gone = this._matches.findIndex((number) => number >= first);
    const count = gone < 0 ? this._matches.length : gone;
    this._matches.splice(0, count);
    this._at = Math.max(-1, this._at - count);
  }

  // To the next match, here or in a part of the log that is loaded for it.
  _step(by) {
    const { before, after } = this._outside;
    const here = this._matches.length;
    const all = before.length + here + after.length;
    if (!all) return;
    // Without a match here, what is loaded lies between the two lists.
    const now = here ? before.length + (this._at < 0 ? (by < 0 ? here : here - 2) : this._at) : before.length - (by < 0 ? 0 : 1);
    const next = (now + by + all) % all;
    if (next < before.length) this.reach(before[next]);
    else if (next >= before.length + here) this.reach(after[next - before.length - here]);
    else this._go(next - before.length);
  }

  _go(at) {
    this._at = at;
    this._showLine(this._matches[at]);
    this._search();
  }

  _showLine(number) {
    this._follow(false);
    this._nodes.clear();
    this._lay();
    const row = this._rows.findIndex((one) => one.line.number === number);
    style(this._spacer, "height", `${this._rows.length * ROW_PX}px`);
    if (row >= 0) this._scrollTo(Math.max(0, row * ROW_PX - this.scroller.clientHeight / 2));
    soon(this._draw);
  }

  // Lines that were broken for the screen are copied whole.
  _copy(event) {
    const chosen = getSelection();
    const rows = [...this._window.children].filter((node) => chosen.containsNode(node, true)).map((node) => node.row);
    if (rows.length < 2) return;
    const whole = rows.map((row, at) => (at && row.from ? "" : at ? "\n" : "") + row.line.text.slice(row.from, row.to)).join("");
    event.clipboardData.setData("text/plain", whole);
    event.preventDefault();
  }
}

function lineAddress(number) {
  return `${location.hash.split("?")[0]}?line=${number}`;
}

// Cut a line into rows of so many columns, and add them.
function cut(line, columns, rows) {
  const { text } = line;
  if (text.length <= columns && !WIDE.test(text)) {
    rows.push({ line, from: 0, to: text.length });
    return;
  }
  let [from, width, at] = [0, 0, 0];
  for (const letter of text) {
    const wide = letter > "\u10ff" && WIDE.test(letter) ? 2 : 1;
    if (width + wide > columns) {
      rows.push({ line, from, to: at });
      [from, width] = [at, 0];
    }
    width += wide;
    at += letter.length;
  }
  rows.push({ line, from, to: text.length });
}
