// Elements, keyed lists and frames. Text from other machines becomes text nodes and nothing else.

const SVG = "http://www.w3.org/2000/svg";

// Characters that hide, reorder or pretend: controls, bidirectional marks, zero-width ones, tags.
const ODD =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|[\u{e0000}-\u{e007f}]|[\u0000-\u007f][\u200c\u200d]|[\u200c\u200d](?=[\u0000-\u007f])/gu;

// Any text with invisible characters shown as signs or escapes; tabs and line breaks stay.
export function visible(value) {
  const text = typeof value === "string" ? value : value === null || value === undefined ? "" : String(value);
  return text.replace(ODD, (found) => (found.length > 1 && found[0] < "\u0080" ? found[0] + shown(found.slice(1)) : shown(found)));
}

function shown(sign) {
  const code = sign.codePointAt(0);
  if (code < 32) return String.fromCharCode(0x2400 + code);
  if (code === 127) return "\u2421";
  return code > 0xffff ? `\\u{${code.toString(16)}}` : `\\u${code.toString(16).padStart(4, "0")}`;
}

// h("div.card.wide", {title: "x", onclick: f, "aria-label": "y"}, child, "text", [more])
export function h(what, given, ...children) {
  const [tag, ...classes] = what.split(".");
  const node = document.createElement(tag || "div");
  if (classes.length) node.className = classes.join(" ");
  for (const [name, value] of Object.entries(given || {})) set(node, name, value);
  append(node, children);
  return node;
}

export function svg(tag, given) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(given || {})) node.setAttribute(name, value);
  return node;
}

const PROPERTIES = new Set(["value", "checked", "disabled", "selected", "open", "hidden", "tabIndex", "htmlFor", "type", "max"]);

export function set(node, name, value) {
  if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
  else if (PROPERTIES.has(name)) node[name] = value;
  else if (value === false || value === null || value === undefined) node.removeAttribute(name);
  else node.setAttribute(name, value === true ? "" : visible(value));
}

export function append(node, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(visible(child)));
  }
  return node;
}

// Change only what differs: writing the same text again still costs a layout.
export function put(node, value) {
  const text = visible(value);
  if (node.textContent !== text) node.textContent = text;
  return node;
}

export function attribute(node, name, value) {
  const text = value === null || value === undefined || value === false ? null : visible(value === true ? "" : value);
  if (node.getAttribute(name) === text) return;
  if (text === null) node.removeAttribute(name);
  else node.setAttribute(name, text);
}

export function style(node, name, value) {
  if (node.style.getPropertyValue(name) !== value) node.style.setProperty(name, value);
}

export function replace(node, ...children) {
  node.replaceChildren();
  return append(node, children);
}

// Give a parent exactly these children in this order, and move as few as possible.
export function arrange(parent, nodes) {
  const wanted = new Set(nodes);
  for (const child of [...parent.children]) if (!wanted.has(child)) child.remove();
  let at = parent.firstElementChild;
  for (const node of nodes) {
    if (node === at) at = at.nextElementSibling;
    else parent.insertBefore(node, at);
  }
}

// Run something whose failure must not keep others from running.
export function attempt(work) {
  try {
    work();
  } catch (problem) {
    console.error(problem);
  }
}

const waiting = new Set();
const LATE_MS = 500;
let frame = 0;
let late = 0;

// Run once in the next frame, however often it is asked for; a tab behind another gets no frames, and runs it later.
export function soon(work) {
  waiting.add(work);
  if (frame) return;
  frame = requestAnimationFrame(flush);
  late = setTimeout(flush, LATE_MS);
}

function flush() {
  cancelAnimationFrame(frame);
  clearTimeout(late);
  const now = [...waiting];
  waiting.clear();
  frame = 0;
  now.forEach(attempt);
}

// A list of any length: a row gets its content when it comes near the screen, and is updated only while it is there.
export class LazyList {
  // `make(row)` gives {node, update(row)}; `shell(id)` gives the element that is always there (its
  // `inside` takes the content, if it has one).
  constructor(root, make, shell = () => h("li.row")) {
    this.root = root;
    this._make = make;
    this._shell = shell;
    this._entries = new Map();
    this._near = new IntersectionObserver((seen) => this._look(seen), { rootMargin: "300px 0px" });
  }

  // `rows`: [[id, row], ...] in their order.
  show(rows) {
    const keep = new Set();
    const nodes = rows.map(([id, row]) => {
      keep.add(id);
      return this._entry(id, row).shell;
    });
    for (const [id, entry] of this._entries) {
      if (keep.has(id)) continue;
      this._near.unobserve(entry.shell);
      this._entries.delete(id);
    }
    arrange(this.root, nodes);
  }

  _entry(id, row) {
    let entry = this._entries.get(id);
    if (!entry) {
      entry = { shell: this._shell(id), row, filled: null, isNear: false };
      entry.shell.entry = entry;
      this._entries.set(id, entry);
      this._near.observe(entry.shell);
    } else if (entry.row !== row) {
      entry.row = row;
      entry.isStale = true;
      if (entry.isNear) attempt(() => this._fill(entry));
    }
    return entry;
  }

  _look(seen) {
    for (const { target, isIntersecting } of seen) {
      target.entry.isNear = isIntersecting;
      if (isIntersecting) attempt(() => this._fill(target.entry));
    }
  }

  _fill(entry) {
    if (!entry.filled) {
      entry.filled = this._make(entry.row);
      (entry.shell.inside || entry.shell).replaceChildren(entry.filled.node);
    } else if (entry.isStale) entry.filled.update(entry.row);
    entry.isStale = false;
  }

  // For what changes by itself, such as clocks and trends: each row near the screen.
  near(work) {
    for (const [id, entry] of this._entries) if (entry.isNear && entry.filled) attempt(() => work(entry.filled, entry.row, id));
  }

  nodeOf(id) {
    return this._entries.get(id)?.shell;
  }

  end() {
    this._near.disconnect();
    this._entries.clear();
  }
}
