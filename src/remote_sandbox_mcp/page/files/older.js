// Rows of a topic with older ones, which are asked for on demand.

import { h, put } from "./dom.js";
import { button, say } from "./parts.js";
import { t } from "./words.js";

const AT_ONCE = 100;

export class Older {
  // `path` answers {[name]: [row, ...]}, newest first or last.
  constructor(feed, topic, path, changed) {
    this._feed = feed;
    this._topic = topic;
    this._path = path;
    this._changed = changed;
    this._rows = new Map();
    this.filter = () => ({});
    this._button = button(t("Older"), () => this.load());
    this.node = h("div.older", {}, this._button);
  }

  // All that are known, newest first.
  all() {
    for (const [id, row] of this._feed.rows(this._topic)) this._rows.set(Number(row.id ?? id), row);
    return [...this._rows].sort(([one], [other]) => other - one);
  }

  // `from`: the newest that fit, not those before what is known.
  async load(isFromTop = false) {
    const known = this.all().filter(([, row]) => this.fits(row));
    const before = isFromTop || !known.length ? undefined : known[known.length - 1][0];
    this._button.disabled = true;
    try {
      const found = (await this._feed.get(this._path, { before, limit: AT_ONCE, ...this.filter() }))[this._topic] || [];
      for (const row of found) this._rows.set(Number(row.id), row);
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
