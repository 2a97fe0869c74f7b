// Rows of a topic with older ones, which are asked for on demand.

import { h, put } from "./dom.js";
import { button, say } from "./parts.js";
import { t } from "./words.js";

const AT_ONCE = 100;
// How many are kept besides those that were asked for.
const MOST_ROWS = 2000;

export class Older {
  // `path` answers {[name]: [row, ...]}, newest first or last.
  constructor(feed, topic, path, changed) {
    this._feed = feed;
    this._topic = topic;
    this._path = path;
    this._changed = changed;
    this._rows = new Map();
    this._most = MOST_ROWS;
    this.filter = () => ({});
    this._button = button(t("Older"), () => this.load());
    this.node = h("div.older", {}, this._button);
  }

  // All that are known, newest first.
  all() {
    const newest = [...this._feed.rows(this._topic)].map(([id, row]) => [Number(row.id ?? id), row]);
    if (this._hasMissedSome(newest)) this._forget();
    for (const [id, row] of newest) this._rows.set(id, row);
    const all = [...this._rows].sort(([one], [other]) => other - one);
    return all.length > this._most ? this._trimmed(all) : all;
  }

  // The server tells only the newest rows. After an absence there may be others between them and those that are known.
  _hasMissedSome(newest) {
    if (!newest.length || !this._rows.size) return false;
    const first = newest.reduce((least, [id]) => Math.min(least, id), Infinity);
    return [...this._rows.keys()].every((id) => id < first);
  }

  // The button asks for those before the oldest known one, and so also for what was forgotten.
  _forget() {
    this._rows.clear();
    this._most = MOST_ROWS;
    this.reset();
  }

  _trimmed(all) {
    const kept = all.slice(0, this._most);
    this._rows = new Map(kept);
    this.reset();
    return kept;
  }

  // `from`: the newest that fit, not those before what is known.
  async load(isFromTop = false) {
    const known = this.all().filter(([, row]) => this.fits(row));
    const before = isFromTop || !known.length ? undefined : known[known.length - 1][0];
    this._button.disabled = true;
    try {
      const found = (await this._feed.get(this._path, { before, limit: AT_ONCE, ...this.filter() }))[this._topic] || [];
      for (const row of found) this._rows.set(Number(row.id), row);
      this._most += found.length;
      put(this._button, found.length < AT_ONCE && !isFromTop ? t("Nothing older") : t("Older"));
      this._changed();
      this._button.disabled = found.length < AT_ONCE && !isFromTop;
    } catch (problem) {
      say(problem.message, true);
      this._button.disabled = false;
    }
  }

  // With another filter there may be older ones again.
  reset() {
    put(this._button, t("Older"));
    this._button.disabled = false;
  }

  fits() {
    return true;
  }
}
