// Numbers as people read them, with their units in the reader's language.

import { t } from "./words.js";

export function bytes(count) {
  if (!Number.isFinite(count)) return "–";
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let unit = 0;
  let amount = count;
  while (Math.abs(amount) >= 999.5 && unit < units.length - 1) {
    amount /= 1000;
    unit++;
  }
  return `${unit && Math.abs(amount) < 99.95 ? amount.toFixed(1) : Math.round(amount)} ${units[unit]}`;
}

// Memory is counted in powers of two, as nvidia-smi does.
export function gigabytes(megabytes) {
  if (!Number.isFinite(megabytes)) return "–";
  const amount = megabytes / 1024;
  return amount >= 9.95 || amount < 0.05 ? String(Math.round(amount)) : amount.toFixed(1);
}

// Of a disk: 3.4 TB, 250 GB.
export function disk(gb) {
  if (!Number.isFinite(gb)) return "–";
  return gb >= 1000 ? `${(gb / 1000).toFixed(1)} TB` : `${Math.round(gb)} GB`;
}

// The two largest units: 3d 4h, 5h 06m, 7m 08s, 9s.
export function duration(seconds) {
  if (!Number.isFinite(seconds)) return "–";
  const s = Math.max(0, Math.floor(seconds));
  const two = (number) => String(number).padStart(2, "0");
  if (s < 60) return t("{s}s", { s });
  if (s < 3600) return t("{m}m {s}s", { m: Math.floor(s / 60), s: two(s % 60) });
  if (s < 86400) return t("{h}h {m}m", { h: Math.floor(s / 3600), m: two(Math.floor(s / 60) % 60) });
  return t("{d}d {h}h", { d: Math.floor(s / 86400), h: Math.floor(s / 3600) % 24 });
}

export function took(seconds) {
  if (!Number.isFinite(seconds)) return "–";
  if (seconds < 1) return t("{n} ms", { n: Math.round(seconds * 1000) });
  return seconds < 60 ? t("{n} s", { n: seconds.toFixed(1) }) : duration(seconds);
}

export function percent(share) {
  return Number.isFinite(share) ? `${Math.round(share * 100)}%` : "–";
}

export function share(part, whole) {
  return Number.isFinite(part) && whole > 0 ? Math.min(1, Math.max(0, part / whole)) : null;
}

const two = (number) => String(number).padStart(2, "0");

// 14:05:09, and the day where it is not today.
export function clock(seconds, now = Date.now() / 1000) {
  if (!Number.isFinite(seconds)) return "–";
  const when = new Date(seconds * 1000);
  const time = `${two(when.getHours())}:${two(when.getMinutes())}:${two(when.getSeconds())}`;
  return day(seconds) === day(now) ? time : `${two(when.getMonth() + 1)}-${two(when.getDate())} ${time.slice(0, 5)}`;
}

export function day(seconds) {
  const when = new Date(seconds * 1000);
  return `${when.getFullYear()}-${two(when.getMonth() + 1)}-${two(when.getDate())}`;
}

// Epoch seconds of a number or of an ISO text.
export function moment(value) {
  if (Number.isFinite(value)) return value;
  const parsed = Date.parse(value);
  return Number.isFinite(parsed) ? parsed / 1000 : null;
}

// "0, 3-5" of [0, 3, 4, 5].
export function ranges(numbers) {
  const found = [];
  for (const number of [...numbers].sort((one, other) => one - other)) {
    const last = found[found.length - 1];
    if (last && last[1] === number - 1) last[1] = number;
    else found.push([number, number]);
  }
  return found.map(([a, b]) => (a === b ? `${a}` : b === a + 1 ? `${a}, ${b}` : `${a}–${b}`)).join(", ");
}
