// Curves of a job: its numbers over its steps or over time, beside those of another job.

import { attribute, h, put, replace, svg } from "./dom.js";
import { duration } from "./format.js";
import { choice, select } from "./parts.js";
import { t } from "./words.js";

const TRENDS = { falling: "falling", rising: "rising", flat: "flat", nan: "nan" };
const [WIDTH, HEIGHT, AGAIN_MS] = [600, 160, 5000];

export function curvesPanel(feed, sandbox, job) {
  const chosen = { name: "", x: "step", other: "" };
  let [mine, theirs] = [null, null];
  let [timer, isEnded] = [0, false];
  const names = select(t("Curve"), "", "", (name) => ((chosen.name = name), draw()));
  const others = select(t("Compare with"), t("compare with …"), "", (name) => ((chosen.other = name), ask()));
  const axis = choice(t("Axis"), [["step", t("steps")], ["time", t("time")]], "step", (x) => ((chosen.x = x), draw()));
  const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" });
  const paths = ["one", "other"].map((name) => svg("path", { class: `curve-${name}` }));
  picture.append(svg("path", { class: "curve-grid", d: `M0 .5H${WIDTH}M0 ${HEIGHT / 2}H${WIDTH}M0 ${HEIGHT - 0.5}H${WIDTH}` }), ...paths);
  const [top, bottom, left, right, legend] = ["top", "bottom", "left", "right", "legend"].map((name) => h(`span.curve-${name}`));
  const node = h("section.job-curves", { hidden: true, "aria-label": t("Curves") }, h("div.curve-tools", {}, names, others, axis, legend), h("div.curve-field", {}, picture, top, bottom, left, right));

  const fetched = (place, name) => feed.get("/api/curves", { sandbox: place, job: name }).catch(() => null);

  async function ask() {
    clearTimeout(timer);
    const [place, ...rest] = chosen.other.split("/");
    const found = await Promise.all([mine?.is_over ? mine : fetched(sandbox, job), chosen.other ? fetched(place, rest.join("/")) : null]);
    if (isEnded) return;
    [mine, theirs] = [found[0] ?? mine, found[1]];
    draw();
    // A tab that nobody sees asks for nothing.
    const again = () => (document.hidden ? (timer = setTimeout(again, AGAIN_MS)) : ask());
    // What has no curves, such as a command, is asked seldom.
    if (!mine?.is_over || (theirs && !theirs.is_over)) timer = setTimeout(again, mine ? AGAIN_MS : 10 * AGAIN_MS);
  }

  function draw() {
    const all = Object.keys(mine?.curves || {}).sort((one, other) => other.endsWith("loss") - one.endsWith("loss") || one.length - other.length);
    node.hidden = !all.length;
    if (!all.length) return;
    names.update(all);
    others.update([...feed.rows("jobs").keys()].filter((id) => id !== `${sandbox}/${job}`));
    const name = all.includes(chosen.name) ? chosen.name : all[0];
    names.value = name;
    const sets = [mine.curves[name], theirs?.curves?.[name] || []].map((points) => located(points, chosen.x));
    const frame = bounds(sets.flat());
    sets.forEach((points, at) => attribute(paths[at], "d", frame ? line(points, frame) : ""));
    const say = [[top, frame?.y1], [bottom, frame?.y0]].map(([place, value]) => put(place, number(value)));
    put(left, frame ? (chosen.x === "step" ? number(frame.x0) : "0s") : t("the lines of this log have no time"));
    put(right, frame ? (chosen.x === "step" ? number(frame.x1) : duration(frame.x1)) : "");
    const told = mine.metrics?.[name];
    const words = [[theirs ? job : name, mine], ...(theirs ? [[chosen.other.replace(`${sandbox}/`, ""), theirs]] : [])].map(([label, { metrics }], at) => h(`span.curve-name.${at ? "other" : "one"}`, {}, `${label} ${number(metrics?.[name]?.last)}`));
    replace(legend, words, told?.trend ? h("span.quiet", {}, `${t(TRENDS[told.trend])} · ${t("min {n}", { n: number(told.min) })}`) : "");
    attribute(picture, "aria-label", `${name}: ${number(told?.last)}, ${t("min {n}", { n: number(told?.min) })}${told?.trend ? `, ${t(TRENDS[told.trend])}` : ""}; ${say[1].textContent} – ${say[0].textContent}`);
  }

  ask();
  return { node, end: () => ((isEnded = true), clearTimeout(timer)) };
}

// [[x, y], ...] over steps, or over seconds since the first line that says when it was written.
function located(points, x) {
  if (x === "step") return points.map(([step, value]) => [step, value]);
  const timed = points.filter(([, , time]) => time !== null);
  return timed.map(([, value, time]) => [time - timed[0][2], value]);
}

function bounds(points) {
  if (!points.length) return null;
  const frame = { x0: Infinity, x1: -Infinity, y0: Infinity, y1: -Infinity };
  for (const [x, y] of points) Object.assign(frame, { x0: Math.min(frame.x0, x), x1: Math.max(frame.x1, x), y0: Math.min(frame.y0, y), y1: Math.max(frame.y1, y) });
  return frame;
}

function line(points, { x0, x1, y0, y1 }) {
  const place = ([x, y]) => `${(((x - x0) / (x1 - x0 || 1)) * WIDTH).toFixed(1)} ${(HEIGHT - 4 - ((y - y0) / (y1 - y0 || 1)) * (HEIGHT - 8)).toFixed(1)}`;
  // One point alone would be no line.
  return points.length ? `M${(points.length > 1 ? points : [points[0], points[0]]).map(place).join("L")}` : "";
}

export function number(value) {
  if (!Number.isFinite(value)) return "nan";
  const size = Math.abs(value);
  return size && (size < 1e-3 || size >= 1e6) ? value.toExponential(2) : String(Number(value.toPrecision(5)));
}
