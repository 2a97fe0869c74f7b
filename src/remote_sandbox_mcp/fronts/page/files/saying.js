// What the server says, in the reader's language.

import { current, t } from "./words.js";

// Names, numbers and words of others, which stay as they are.
const PLAIN = new Set(["who", "name", "n", "most", "code", "signal", "line", "path", "where", "list", "words", "kind", "host", "at"]);
// The table of sentences.js, once it was loaded.
let ZH = null;

export function learn(sentences) {
  ZH = sentences;
}

const TIME = "\\d+ (?:s|min|h|d)(?: \\d+ (?:min|h))?";
const UNITS = { s: "秒", min: "分", h: "小时", d: "天" };
const END = new RegExp(`^(.*?) ?(succeeded|failed|was stopped|was interrupted|is unknown)(?: with exit code (-?\\d+))?(?: \\((SIG[A-Z0-9]+)\\))?(?: after (${TIME}))?(?:: (.*))?$`, "s");
const LONGEST = 2000;
const known = new Map();
let patterns = null;

// Whether the {gaps} of a sentence fit a text, and which they are. The sentence with the most words of its own is tried first.
function pattern(sentence) {
  const names = [];
  const source = sentence.split(/(\{\w+\})/).map((part) => {
    const name = /^\{(\w+)\}$/.exec(part)?.[1];
    if (!name) return part.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
    names.push(name);
    return name.startsWith("time") ? `(${TIME})` : name === "n" || name === "most" ? "(\\d+)" : "(.+?)";
  });
  return { names, fits: new RegExp(`^${source.join("")}$`, "s"), words: ZH[sentence], own: sentence.replace(/\{\w+\}/g, "").length };
}

export function said(text) {
  if (!ZH || current() !== "zh" || !text || text.length > LONGEST) return text;
  if (!known.has(text)) {
    if (known.size > LONGEST) known.clear();
    known.set(text, inChinese(text) ?? text);
  }
  return known.get(text);
}

// A time as the server says it: 2 h 3 min.
const time = (text) => text.replace(/(\d+) (s|min|h|d)\b/g, (whole, number, unit) => `${number} ${UNITS[unit]}`);

// "train on gpu1"
const place = (text) => text.replace(/^(\S+) on (\S+)$/, "$2 上的 $1");

function inChinese(text) {
  if (Object.hasOwn(ZH, text)) return ZH[text];
  if (/[^.]\.$/.test(text)) return whole(text);
  patterns ??= Object.keys(ZH).filter((sentence) => sentence.includes("{") && !END.test(sentence)).map(pattern).sort((one, other) => other.own - one.own);
  for (const { names, fits, words } of patterns) {
    const found = fits.exec(text);
    if (!found) continue;
    const gaps = Object.fromEntries(names.map((name, at) => [name, name.startsWith("time") ? time(found[at + 1]) : name === "who" ? place(found[at + 1]) : PLAIN.has(name) ? found[at + 1] : said(found[at + 1])]));
    return words.replace(/\{(\w+)\}/g, (whole, name) => gaps[name]);
  }
  return ended(text) ?? joined(text, ". ", "。") ?? joined(text, "; ", "；") ?? about(text) ?? joined(text, ", ", "，") ?? ofIt(text);
}

// "train on gpu1 failed with exit code 3 (SIGKILL) after 5 s: its node failed"
function ended(text) {
  const found = END.exec(text);
  if (!found) return null;
  const [who, verb, code, signal, after, why] = found.slice(1);
  const head = ZH[`{who} ${verb}`].replace("{who}", place(who)).trim();
  const more = [code && t("exit {code}", { code }), signal, after && `用时 ${time(after)}`].filter(Boolean).join("，");
  return `${head}${more ? `（${more}）` : ""}${why ? `：${said(why)}` : ""}`;
}

// A sentence with a full stop.
function whole(text) {
  const told = inChinese(text.slice(0, -1));
  return told && `${told}。`;
}

// "it must be true or false"
function ofIt(text) {
  return text.startsWith("it ") ? `它${said(text.slice(3))}` : null;
}

// "gpu1: the connection was cut"
function about(text) {
  const at = text.indexOf(": ");
  const rest = at < 0 ? "" : said(text.slice(at + 2));
  return at < 0 || rest === text.slice(at + 2) ? null : `${text.slice(0, at)}：${rest}`;
}

// Several sentences; those that are not known stay.
function joined(text, sign, between) {
  const parts = text.split(sign);
  if (parts.length < 2) return null;
  const told = parts.map(said);
  return told.some((part, at) => part !== parts[at]) ? told.join(between) : null;
}
