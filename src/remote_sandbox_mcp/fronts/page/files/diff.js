// Two versions of a text as one, line by line, with what is around each change.

import { h } from "./dom.js";
import { button } from "./parts.js";
import { t } from "./words.js";

const [CONTEXT, MOST_CHANGES, MOST_LINES] = [3, 1500, 4000];

// [[" ", "-" or "+", line], ...] by the shortest way from one to the other (Myers); null where they have little in common.
export function changes(one, other) {
  let begin = 0;
  while (begin < one.length && begin < other.length && one[begin] === other[begin]) begin++;
  let end = 0;
  while (end < one.length - begin && end < other.length - begin && one[one.length - 1 - end] === other[other.length - 1 - end]) end++;
  const [from, to] = [one.slice(begin, one.length - end), other.slice(begin, other.length - end)];
  const middle = shortest(from, to);
  const same = (line) => [" ", line];
  return middle && [...one.slice(0, begin).map(same), ...middle, ...one.slice(one.length - end).map(same)];
}

function shortest(one, other) {
  const most = Math.min(one.length + other.length, MOST_CHANGES);
  let reached = new Int32Array(2 * most + 3);
  const trail = [];
  for (let d = 0; d <= most; d++) {
    trail.push(reached.slice(most + 1 - d - 1, most + 1 + d + 2));
    for (let k = -d; k <= d; k += 2) {
      const at = most + 1 + k;
      let x = k === -d || (k !== d && reached[at - 1] < reached[at + 1]) ? reached[at + 1] : reached[at - 1] + 1;
      while (x < one.length && x - k < other.length && one[x] === other[x - k]) x++;
      reached[at] = x;
      if (x >= one.length && x - k >= other.length) return walked(one, other, trail, d);
    }
  }
  return null;
}

function walked(one, other, trail, last) {
  const found = [];
  let [x, y] = [one.length, other.length];
  for (let d = last; d >= 0; d--) {
    const reached = (k) => trail[d][d + 1 + k];
    const k = x - y;
    const before = k === -d || (k !== d && reached(k - 1) < reached(k + 1)) ? k + 1 : k - 1;
    const [px, py] = d ? [reached(before), reached(before) - before] : [0, 0];
    while (x > px && y > py) {
      found.push([" ", one[--x]]);
      y--;
    }
    if (d) found.push(x > px ? ["-", one[--x]] : ["+", other[--y]]);
  }
  return found.reverse();
}

// The changes as a node; what is alike and far from any change is folded.
export function diffView(mine, theirs, label) {
  const all = changes(String(mine).split("\n"), String(theirs).split("\n"));
  if (!all || all.length > MOST_LINES) return null;
  const near = new Uint8Array(all.length);
  all.forEach(([mark], at) => mark !== " " && near.fill(1, Math.max(0, at - CONTEXT), at + CONTEXT + 1));
  const node = h("pre.diff", { tabindex: "0", role: "region", "aria-label": label });
  let [left, right, folded] = [0, 0, []];
  const unfold = () => {
    const lines = folded;
    folded = [];
    if (!lines.length) return;
    const more = button(t("{n} lines alike", { n: lines.length }), () => more.replaceWith(...lines), "small");
    node.append(more);
  };
  all.forEach(([mark, line], at) => {
    const numbers = `${mark === "+" ? "" : ++left}`.padStart(5) + `${mark === "-" ? "" : ++right}`.padStart(5);
    const row = h("span.diff-line", { "data-mark": mark === " " ? null : mark }, h("span.diff-number", { "aria-hidden": "true" }, numbers), ` ${mark} `, line, "\n");
    if (!near[at]) return folded.push(row);
    unfold();
    node.append(row);
  });
  unfold();
  return node;
}
