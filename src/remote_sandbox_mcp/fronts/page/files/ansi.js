// What a terminal would show of a job's output: lines with styled runs. Colours stay, all other sequences are dropped.

import { visible } from "./dom.js";

export const MOST_LINES = 20000;
const SPARE_LINES = 2000;
// Characters that are kept of one line, of all lines, and of a sequence that does not end.
export const LONGEST_LINE = 8000;
const MOST_CHARS = 24e6;
const LONGEST_SEQUENCE = 2000;
// Runs that are kept of one line: what follows them is plain. One takes about as much memory as so many characters.
const MOST_RUNS = 500;
const RUN_CHARS = 40;

// Text up to the next sign that means something; "odd" ones are shown by `visible`.
const STOP = /[\n\r\b\t\u001b\u009b]/g;
// CSI, OSC and other strings, and the escapes of two or three characters.
const SEQUENCE =
  /(?:\u001b\[|\u009b)([0-?]*)([ -/]*)([@-~])|\u001b[\]PX^_][^\u0007\u001b]*(?:\u0007|\u001b\\)|\u001b[ -/]+[0-~]|\u001b[0-Z\\`-~]/y;
const PLAIN = Object.freeze({});
const NOTE = Object.freeze({ note: true });

export class Line {
  constructor(number) {
    this.number = number;
    this.text = "";
    // [[from, to, style], ...] in order, without overlap; what is in no run is plain.
    this.runs = null;
    this.cut = 0;
  }

  // What it takes in memory, in characters.
  get weight() {
    return this.text.length + (this.runs ? RUN_CHARS * this.runs.length : 0);
  }
}

export class Terminal {
  constructor() {
    this.clear();
  }

  // All lines of a text, however many there are.
  static whole(text) {
    const made = new Terminal();
    made._most = made._mostChars = Infinity;
    made.write(text);
    return made;
  }

  clear() {
    this.lines = [new Line(1)];
    this._most = MOST_LINES;
    this._mostChars = MOST_CHARS;
    // How many lines have left at the top.
    this.dropped = 0;
    // The weight of all lines.
    this._chars = 0;
    this._style = PLAIN;
    this._column = 0;
    this._rest = "";
  }

  get last() {
    return this.lines[this.lines.length - 1];
  }

  write(text) {
    const all = this._rest + text;
    this._rest = "";
    let at = 0;
    while (at < all.length) {
      STOP.lastIndex = at;
      const stop = STOP.exec(all);
      const to = stop ? stop.index : all.length;
      if (to > at) this._print(all, at, to);
      if (!stop) break;
      at = this._sign(all, to);
      if (at < 0) break;
    }
    this._trim();
  }

  // Lines before the first. What a reader has asked for is kept, so that there is room for as many more.
  prepend(text) {
    const { lines, _chars: chars } = Terminal.whole(text);
    if (!lines[lines.length - 1].text) lines.pop();
    const first = this.lines[0].number;
    lines.forEach((line, at) => (line.number = first - lines.length + at));
    this.lines = lines.concat(this.lines);
    this._chars += chars;
    this._most += lines.length;
    this._mostChars += chars;
  }

  // Let go of the lines before this one.
  dropTo(number) {
    if (number > this.lines[0].number) this._drop(number - this.lines[0].number);
  }

  get text() {
    return this.lines.map((line) => line.text).join("\n").replace(/\n$/, "");
  }

  // A line of our own between those of the job.
  note(text) {
    if (this.last.text) this._newLine();
    this._overwrite(text, NOTE);
    this._newLine();
  }

  _sign(all, at) {
    const sign = all[at];
    if (sign === "\n") this._newLine();
    else if (sign === "\r") this._column = 0;
    else if (sign === "\b") this._column = Math.max(0, this._column - 1);
    else if (sign === "\t") this._print("        ", 0, 8 - (this._column % 8));
    else return this._sequence(all, at);
    return at + 1;
  }

  _sequence(all, at) {
    SEQUENCE.lastIndex = at;
    const found = SEQUENCE.exec(all);
    if (found) {
      if (found[3] === "m" && !found[2]) this._style = styled(this._style, found[1]);
      else if (found[3] === "K") this._erase(found[1]);
      return SEQUENCE.lastIndex;
    }
    if (all.length - at < LONGEST_SEQUENCE && isUnfinished(all, at)) {
      this._rest = all.slice(at);
      return -1;
    }
    return at + 1;
  }

  _print(all, from, to) {
    const line = this.last;
    const room = LONGEST_LINE - this._column;
    if (to - from > room) {
      line.cut += to - from - Math.max(0, room);
      to = from + Math.max(0, room);
    }
    if (to > from) this._overwrite(visible(all.slice(from, to)), this._style);
  }

  _overwrite(text, style) {
    const line = this.last;
    const from = this._column;
    const end = from + text.length;
    const before = line.weight;
    // In the common case the text goes on at the end of its line.
    if (from === line.text.length) line.text += text;
    else line.text = line.text.slice(0, from).padEnd(from) + text + line.text.slice(end);
    if (style !== PLAIN || line.runs) lay((line.runs ??= []), from, end, style);
    if (line.runs?.length > MOST_RUNS) line.runs.length = MOST_RUNS;
    this._chars += line.weight - before;
    this._column = end;
  }

  _erase(parameter) {
    const line = this.last;
    const from = parameter === "" || parameter === "0" ? this._column : 0;
    if (parameter === "1") return;
    const before = line.weight;
    line.text = line.text.slice(0, from);
    if (line.runs) line.runs = line.runs.filter((run) => run[0] < from).map(([a, b, style]) => [a, Math.min(b, from), style]);
    this._chars += line.weight - before;
  }

  _newLine() {
    this.lines.push(new Line(this.last.number + 1));
    this._column = 0;
  }

  _trim() {
    const over = this.lines.length - this._most;
    // Seldom, because it moves the whole list.
    if (over > SPARE_LINES) this._drop(over);
    if (this._chars > this._mostChars) this._drop(Math.ceil(this.lines.length / 4));
  }

  _drop(count) {
    for (const line of this.lines.splice(0, count)) this._chars -= line.weight;
    this.dropped += count;
  }
}

// Whether the sequence at the end of the text may go on in the next piece.
function isUnfinished(all, at) {
  const rest = all.slice(at);
  return /^(?:\u001b|(?:\u001b\[|\u009b)[0-?]*[ -/]*|\u001b[\]PX^_][^\u0007\u001b]*\u001b?|\u001b[ -/]+)$/.test(rest);
}

// Lay a new run over others. Only those that it touches are looked at: a job may write over a line without end.
function lay(runs, from, to, style) {
  let first = firstAfter(runs, from);
  let end = first;
  while (end < runs.length && runs[end][0] < to) end++;
  // Neighbours may have the same style.
  if (first > 0 && runs[first - 1][1] === from) first--;
  if (end < runs.length && runs[end][0] === to) end++;
  const parts = [];
  if (first < end && runs[first][0] < from) join(parts, runs[first][0], from, runs[first][2]);
  if (style !== PLAIN) join(parts, from, to, style);
  if (first < end && runs[end - 1][1] > to) join(parts, to, runs[end - 1][1], runs[end - 1][2]);
  runs.splice(first, end - first, ...parts);
}

function join(runs, from, to, style) {
  const last = runs[runs.length - 1];
  if (last && last[1] === from && last[2] === style) last[1] = to;
  else runs.push([from, to, style]);
}

// Where the first run is that ends after this column.
function firstAfter(runs, column) {
  let [low, high] = [0, runs.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (runs[middle][1] > column) high = middle;
    else low = middle + 1;
  }
  return low;
}

const FLAGS = { 1: "bold", 2: "dim", 3: "italic", 4: "underline", 7: "inverse", 9: "strike" };
const OFF = { 22: ["bold", "dim"], 23: ["italic"], 24: ["underline"], 27: ["inverse"], 29: ["strike"], 39: ["ink"], 49: ["paper"] };

// The style after one SGR sequence, such as 1;31 or 38;5;208 or 38:2::255:100:0.
export function styled(style, parameters) {
  const codes = parameters.split(/[;:]/).map(Number);
  let next = { ...style };
  for (let at = 0; at < codes.length; at++) {
    const code = codes[at] || 0;
    if (code === 0) next = {};
    else if (FLAGS[code]) next[FLAGS[code]] = true;
    else if (OFF[code]) for (const name of OFF[code]) delete next[name];
    else if (code === 38 || code === 48) at = extended(next, code === 38 ? "ink" : "paper", codes, at, parameters);
    else if (code >= 30 && code <= 37) next.ink = code - 30;
    else if (code >= 90 && code <= 97) next.ink = code - 82;
    else if (code >= 40 && code <= 47) next.paper = code - 40;
    else if (code >= 100 && code <= 107) next.paper = code - 92;
  }
  return Object.keys(next).length ? shared(next) : PLAIN;
}

// Equal styles are one object, so that runs of the same look are one run.
const STYLES = new Map();
const MOST_STYLES = 1000;

function shared(style) {
  const key = [...Object.values(FLAGS), "ink", "paper"].map((name) => style[name] ?? "").join();
  if (!STYLES.has(key)) {
    // A job can make up millions of colours.
    if (STYLES.size >= MOST_STYLES) STYLES.clear();
    STYLES.set(key, Object.freeze(style));
  }
  return STYLES.get(key);
}

function extended(next, where, codes, at, parameters) {
  if (codes[at + 1] === 5) {
    next[where] = indexed(codes[at + 2]);
    return at + 2;
  }
  if (codes[at + 1] !== 2) return at;
  // With colons, a colour space (mostly empty) may stand before the three.
  const first = parameters.includes(":") && codes.length - at >= 6 ? at + 3 : at + 2;
  next[where] = rgb(codes[first], codes[first + 1], codes[first + 2]);
  return first + 2;
}

// 0 to 15 are the theme's own colours; 16 to 231 a cube; 232 to 255 greys.
function indexed(code) {
  if (!(code >= 0 && code <= 255)) return 7;
  if (code < 16) return code;
  if (code > 231) return rgb(8 + 10 * (code - 232), 8 + 10 * (code - 232), 8 + 10 * (code - 232));
  const step = (part) => (part ? 55 + 40 * part : 0);
  const cube = code - 16;
  return rgb(step(Math.floor(cube / 36)), step(Math.floor(cube / 6) % 6), step(cube % 6));
}

function rgb(...parts) {
  return `rgb(${parts.map((part) => Math.max(0, Math.min(255, part | 0))).join(" ")})`;
}

// A style's look on an element: classes for the theme's colours, CSSOM for all others.
export function paint(node, style) {
  const { ink, paper } = style.inverse ? { ink: style.paper ?? "paper", paper: style.ink ?? "ink" } : style;
  const names = ["bold", "dim", "italic", "underline", "strike", "note"].filter((name) => style[name]);
  if (typeof ink === "number" || ink === "paper") names.push(`ink-${ink}`);
  else if (ink) node.style.color = ink;
  if (typeof paper === "number" || paper === "ink") names.push(`paper-${paper}`);
  else if (paper) node.style.backgroundColor = paper;
  if (names.length) node.className = names.join(" ");
  return node;
}

// The pieces of a line between two columns: [[text, style or null, isMarked], ...].
export function pieces(line, from, to, marks = []) {
  const within = (spans) => spans.filter(([a, b]) => a < to && b > from);
  const runs = within(line.runs || []);
  const shown = within(marks);
  const edges = new Set([from, to]);
  for (const [a, b] of [...runs, ...shown]) for (const edge of [a, b]) if (edge > from && edge < to) edges.add(edge);
  const sorted = [...edges].sort((one, other) => one - other);
  const found = [];
  // Both are in order, so that each is walked through once.
  let [run, mark] = [0, 0];
  for (let at = 0; at + 1 < sorted.length; at++) {
    const start = sorted[at];
    while (run < runs.length && runs[run][1] <= start) run++;
    while (mark < shown.length && shown[mark][1] <= start) mark++;
    found.push([line.text.slice(start, sorted[at + 1]), runs[run]?.[0] <= start ? runs[run][2] : null, shown[mark]?.[0] <= start]);
  }
  return found;
}
