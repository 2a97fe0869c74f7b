// Small pictures of one number: the last hour as a line, a share as a bar.

import { attribute, h, style, svg } from "./dom.js";

const WIDTH = 120;
const HEIGHT = 24;
const COLUMNS = 60;
const HOUR_S = 3600;

// A sparkline of [[time, share], ...]; times without a value stay empty.
export function spark() {
  const node = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", class: "spark", "aria-hidden": "true" });
  const area = svg("path", { class: "spark-area" });
  const line = svg("path", { class: "spark-line" });
  node.append(area, line);
  return {
    node,
    update(points) {
      const stretches = drawn(points);
      attribute(line, "d", stretches.map((stretch) => `M${stretch.map(([x, y]) => `${x} ${y}`).join("L")}`).join(""));
      attribute(area, "d", stretches.map(closed).join(""));
    },
  };
}

function closed(stretch) {
  const first = stretch[0][0];
  const last = stretch[stretch.length - 1][0];
  return `M${first} ${HEIGHT}L${stretch.map(([x, y]) => `${x} ${y}`).join("L")}L${last} ${HEIGHT}Z`;
}

// The mean of each minute, as stretches of points without a gap.
function drawn(points) {
  if (!points.length) return [];
  const end = points[points.length - 1][0];
  const sums = new Float64Array(COLUMNS);
  const counts = new Uint16Array(COLUMNS);
  for (const [time, share] of points) {
    const column = Math.floor(COLUMNS - 1e-6 - ((end - time) / HOUR_S) * COLUMNS);
    if (share === null || share === undefined || column < 0) continue;
    sums[column] += share;
    counts[column]++;
  }
  return stretches(sums, counts);
}

function stretches(sums, counts) {
  const found = [];
  let open = null;
  for (let column = 0; column < COLUMNS; column++) {
    if (!counts[column]) {
      open = null;
      continue;
    }
    if (!open) found.push((open = []));
    const height = Math.min(1, Math.max(0, sums[column] / counts[column]));
    open.push([Math.round((column * 10 * WIDTH) / (COLUMNS - 1)) / 10, Math.round((HEIGHT - 1 - height * (HEIGHT - 2)) * 10) / 10]);
  }
  // One point alone would be no line.
  for (const stretch of found) if (stretch.length === 1) stretch.unshift([Math.max(0, stretch[0][0] - 2), stretch[0][1]]);
  return found;
}

// A bar that is filled from 0 to 1; without a share it is empty.
export function bar(label) {
  const fill = h("span.fill");
  const text = h("span.bar-text");
  const node = h("span.bar", { role: "img", "aria-label": label }, fill, text);
  return {
    node,
    update(share, words, said) {
      style(fill, "width", `${Math.round((share || 0) * 1000) / 10}%`);
      if (text.textContent !== words) text.textContent = words;
      attribute(node, "aria-label", said || words || label);
    },
  };
}
