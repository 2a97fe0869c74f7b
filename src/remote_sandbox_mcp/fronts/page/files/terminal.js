// A terminal: a shell in a sandbox, or the window of a job. What is drawn comes from xterm.js, loaded when one is opened.

import { h, put } from "./dom.js";
import { button, heading, icon, say } from "./parts.js";
import { said } from "./saying.js";
import { t } from "./words.js";

// So much is sent at once, and before the program has taken it; terminals.py knows that, too.
const [RESIZE_MS, PIECE, MOST_AHEAD] = [150, 32 << 10, 256 << 10];

export function mount(root, { feed, id = "" }) {
  const slash = id.indexOf("/");
  const [sandbox, job] = slash < 0 ? [id, ""] : [id.slice(0, slash), id.slice(slash + 1)];
  const state = h("span.quiet", { role: "status" }, t("Loading …"));
  const again = button(t("Open again"), () => open(), "small");
  const box = h("div.terminal-box", {});
  const back = h("a.back", { href: job ? `#/jobs/${encodeURIComponent(id)}` : "#/fleet", "aria-label": t("Back") }, icon("back"));
  const head = heading(job || sandbox, state, again);
  head.prepend(back);
  root.append(head, h("p.quiet.terminal-hint", {}, t("Ctrl-Shift-Escape leaves the terminal; closing this view ends a shell and detaches from a job.")), box);
  root.classList.add("full");
  let [screen, fit, wire, isGone] = [null, null, null, false];
  const taken = styles();

  async function load() {
    const [{ Terminal }, { FitAddon }] = await Promise.all([import("./vendor/xterm.js"), import("./vendor/addon-fit.js")]);
    if (isGone) return;
    await styled();
    const look = getComputedStyle(box);
    const [background, foreground] = [look.backgroundColor, look.color];
    screen = new Terminal({ fontFamily: look.fontFamily, fontSize: 13, scrollback: 5000, screenReaderMode: true, linkHandler: { activate: (_, text) => say(text) }, minimumContrastRatio: 4.5, theme: { background, foreground, cursor: foreground, selectionBackground: "#7f9ce080" } });
    fit = new FitAddon();
    screen.loadAddon(fit);
    screen.open(box);
    fit.fit();
    screen.attachCustomKeyEventHandler((event) => !(event.ctrlKey && event.shiftKey && event.key === "Escape" && (back.focus(), true)));
    screen.onData((text) => wire?.type(new TextEncoder().encode(text)));
    screen.onBinary((text) => wire?.type(Uint8Array.from(text, (letter) => letter.charCodeAt(0))));
    screen.onResize(() => wire?.say(sizeOf(screen)));
    sizes.observe(box);
    await open();
  }

  let resizing = 0;
  const sizes = new ResizeObserver(() => {
    clearTimeout(resizing);
    resizing = setTimeout(() => fit?.fit(), RESIZE_MS);
  });

  async function open() {
    again.hidden = true;
    put(state, t("connecting"));
    let end = t("The connection was cut.");
    wire = new Wire(feed, { sandbox, job, ...sizeOf(screen) });
    await wire.carry({
      opened: () => (put(state, t("connected")), screen.focus()),
      draw: (data) => new Promise((drawn) => screen.write(data, drawn)),
      end: (trouble) => (end = said(trouble) || t("It has ended.")),
    });
    wire = null;
    if (!isGone) put(state, end);
    again.hidden = false;
  }

  load().catch((problem) => say(problem.message, true));
  return () => {
    isGone = true;
    wire?.close();
    sizes.disconnect();
    clearTimeout(resizing);
    screen?.dispose();
    taken();
    root.classList.remove("full");
  };
}

// The library's own sheet, once.
function styled() {
  if (document.querySelector("link[data-terminal]")) return null;
  const link = h("link", { rel: "stylesheet", href: "vendor/xterm.css", "data-terminal": true });
  return new Promise((done) => {
    link.addEventListener("load", done);
    link.addEventListener("error", done);
    document.head.append(link);
  });
}

function sizeOf({ rows, cols }) {
  return { rows, columns: cols };
}

// Both sides hold what is typed and printed back until the other has taken it: a program that prints faster than the
// page draws is held up at its own end.
class Wire {
  constructor(feed, first) {
    this._waiting = [];
    this._ahead = 0;
    this._socket = feed.socket("/api/terminal", "terminal");
    this._socket.addEventListener("open", () => this.say(first));
  }

  // Until it is closed.
  carry({ opened, draw, end }) {
    const hear = ({ data }) => {
      if (typeof data !== "string") return draw(new Uint8Array(data)).then(() => this.say({ took: data.byteLength }));
      const told = JSON.parse(data);
      if (told.opened) opened();
      if ("end" in told) end(told.end);
      this._ahead -= told.took || 0;
      this._send();
    };
    this._socket.addEventListener("message", hear);
    return new Promise((done) => this._socket.addEventListener("close", done));
  }

  say(value) {
    if (this._socket.readyState === WebSocket.OPEN) this._socket.send(JSON.stringify(value));
  }

  type(data) {
    for (let at = 0; at < data.length; at += PIECE) this._waiting.push(data.subarray(at, at + PIECE));
    this._send();
  }

  _send() {
    while (this._waiting.length && this._ahead + this._waiting[0].length <= MOST_AHEAD && this._socket.readyState === WebSocket.OPEN) {
      this._ahead += this._waiting[0].length;
      this._socket.send(this._waiting.shift());
    }
  }

  close() {
    this._socket.close();
  }
}

// xterm.js writes its styles into <style> and style="", which the page's policy refuses. While a terminal is open, they
// become style sheets and properties, which it allows.
function styles() {
  const make = document.createElement;
  const sheets = new Set();
  document.createElement = function (name, ...rest) {
    // Even an empty <style> is refused.
    const node = make.call(document, name === "style" ? "template" : name, ...rest);
    if (name === "style") {
      const sheet = new CSSStyleSheet();
      sheets.add(sheet);
      document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];
      Object.defineProperty(node, "textContent", { set: (text) => sheet.replaceSync(text), get: () => "" });
    } else if (name === "span") {
      node.setAttribute = (key, value) => (key === "style" ? (node.style.cssText = value) : Element.prototype.setAttribute.call(node, key, value));
    }
    return node;
  };
  return () => {
    document.createElement = make;
    document.adoptedStyleSheets = document.adoptedStyleSheets.filter((sheet) => !sheets.has(sheet));
  };
}
