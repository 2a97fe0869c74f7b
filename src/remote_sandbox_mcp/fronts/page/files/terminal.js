// A terminal: a shell in a sandbox, or the window of a job. What is drawn comes from xterm.js, loaded when one is opened.

import { h, put } from "./dom.js";
import { button, heading, icon, say } from "./parts.js";
import { said } from "./saying.js";
import { t } from "./words.js";

const [RESIZE_MS, MOST_TYPED] = [150, 40_000];

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
  let [screen, fit, abort, wire, isGone] = [null, null, null, null, false];
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
    screen.onResize(() => wire?.resize(screen));
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
    abort = new AbortController();
    put(state, t("connecting"));
    try {
      const given = { sandbox, job, rows: screen.rows, columns: screen.cols };
      const answer = await feed.fetch("/api/terminal", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(given), signal: abort.signal });
      await show(answer);
    } catch (problem) {
      if (!isGone) put(state, problem.message);
    }
    wire = null;
    again.hidden = false;
  }

  // The next piece is read when the last one is drawn: a program that prints faster is held up at its own end.
  async function show(answer) {
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let rest = ""; ; ) {
      const { value, done } = await reader.read();
      if (done) return put(state, t("The connection was cut."));
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      for (const part of parts) {
        const [, event, data] = /^event: (\w+)\ndata: (.*)$/s.exec(part) || [];
        if (event === "output") await new Promise((drawn) => screen.write(decoded(JSON.parse(data)), drawn));
        else if (event === "opened") begun(JSON.parse(data).id);
        else if (event === "end") return put(state, said(JSON.parse(data).trouble) || t("It has ended."));
      }
    }
  }

  function begun(id) {
    wire = typing(feed, id);
    put(state, t("connected"));
    screen.focus();
  }

  load().catch((problem) => say(problem.message, true));
  return () => {
    isGone = true;
    abort?.abort();
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

function decoded(text) {
  return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
}

// What is typed goes in its order: one request at a time, with all that was typed meanwhile.
function typing(feed, id) {
  let [waiting, isBusy, resized] = [[], false, null];
  const send = async () => {
    if (isBusy) return;
    isBusy = true;
    try {
      while (waiting.length || resized) {
        if (resized) {
          const size = resized;
          resized = null;
          await feed.post("/api/terminal/size", { id, ...size });
        }
        const now = waiting.splice(0, MOST_TYPED);
        if (now.length) await feed.post("/api/terminal/type", { id, data: btoa(now.map((byte) => String.fromCharCode(byte)).join("")) });
      }
    } catch (problem) {
      waiting = [];
      say(problem.message, true);
    } finally {
      isBusy = false;
    }
  };
  return {
    type: (data) => {
      for (const byte of data) waiting.push(byte);
      send();
    },
    resize: ({ rows, cols }) => {
      resized = { rows, columns: cols };
      send();
    },
  };
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
