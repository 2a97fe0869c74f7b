// Files of a sandbox: its folders, and what is in a file, if that is a picture, a text or a table.

import { h, replace, visible } from "./dom.js";
import { bytes, clock } from "./format.js";
import { button, empty, heading, say, select } from "./parts.js";
import { t } from "./words.js";

const [MOST_TEXT, MOST_PICTURE, MOST_ROWS] = [400_000, 8_000_000, 500];
// What a file is, by its first bytes.
const PICTURES = [["image/png", [0x89, 0x50, 0x4e, 0x47]], ["image/jpeg", [0xff, 0xd8, 0xff]], ["image/gif", [0x47, 0x49, 0x46, 0x38]], ["image/webp", [0x52, 0x49, 0x46, 0x46]]];

export function filesLink(sandbox, path = "") {
  return `#/files/${encodeURIComponent(`${sandbox}/${path}`)}`;
}

export function mount(root, { feed, id = "" }) {
  const slash = id.indexOf("/");
  const [sandbox, path] = slash < 0 ? [id, ""] : [id.slice(0, slash), id.slice(slash + 1)];
  const places = select(t("Sandbox"), t("choose a sandbox"), sandbox, (name) => (location.hash = filesLink(name)));
  const way = h("nav.file-way", { "aria-label": t("Path") });
  const rows = h("ul.rows.files", { "aria-label": t("Files") });
  const note = h("p.quiet");
  const shown = h("section.file-shown", { "aria-live": "polite" });
  const shell = sandbox ? h("a.button", { href: `#/terminal/${encodeURIComponent(sandbox)}` }, t("Shell")) : "";
  const nothing = h("div");
  root.append(heading(t("Files"), places, shell), way, nothing, h("div.file-columns", {}, h("div", {}, rows, note), shown));

  const names = () => places.update([...feed.rows("machines").keys(), ...[...feed.rows("sandboxes").values()].map((row) => row.id)]);
  names();
  const end = feed.listen(["machines", "sandboxes"], names);
  if (sandbox) open();
  else replace(nothing, empty(t("Choose a sandbox"), t("Its files can be looked at and downloaded.")));

  async function open() {
    replace(note, t("Loading …"));
    try {
      const found = await feed.post("/api/folder", { sandbox, path });
      crumbs(found.folder);
      const order = (one, other) => (other.kind === "dir") - (one.kind === "dir") || one.name.localeCompare(other.name, undefined, { numeric: true });
      replace(rows, found.entries.sort(order).map(row));
      replace(note, found.is_cut ? t("Only the first entries are shown.") : found.entries.length ? "" : t("This folder is empty."));
    } catch (problem) {
      replace(note, h("span.trouble", {}, problem.message));
    }
  }

  function crumbs(folder) {
    const parts = folder.split("/").filter(Boolean);
    const links = parts.map((name, at) => [" / ", h("a", { href: filesLink(sandbox, `/${parts.slice(0, at + 1).join("/")}`) }, name)]);
    replace(way, h("a", { href: filesLink(sandbox, "/") }, sandbox), folder.startsWith("/") ? links : ` ${folder}`);
  }

  function row(entry) {
    const what = [h("span.file-name", {}, entry.name, entry.kind === "dir" ? "/" : ""), h("span.quiet", {}, entry.kind === "file" ? bytes(entry.size) : entry.kind === "link" ? t("link") : ""), h("span.quiet", {}, clock(entry.mtime, feed.now()))];
    if (entry.kind === "dir" || entry.kind === "link") return h("li.row", {}, h("a.row-link.file", { href: filesLink(sandbox, entry.path) }, what));
    return h("li.row", {}, h("button.row-link.file", { type: "button", disabled: entry.kind !== "file", onclick: () => look(entry) }, what));
  }

  const fetched = async (entry, most) => {
    const given = { sandbox, path: entry.path, ...(most ? { most } : {}) };
    const answer = await feed.fetch("/api/download", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(given) });
    return answer.blob();
  };

  async function look(entry) {
    const head = [h("h2.path", { tabindex: "-1" }, entry.name), h("p.quiet", {}, `${bytes(entry.size)} · ${clock(entry.mtime, feed.now())}`), h("div.tools", {}, button(t("Download"), (event) => download(event.target, entry)))];
    replace(shown, head, h("p.quiet", {}, t("Loading …")));
    shown.firstElementChild.focus();
    try {
      const start = await fetched(entry, Math.min(MOST_TEXT, Math.max(1, entry.size)));
      const data = new Uint8Array(await start.arrayBuffer());
      const kind = PICTURES.find(([, marks]) => marks.every((mark, at) => data[at] === mark))?.[0];
      if (kind && entry.size > MOST_PICTURE) replace(shown, head, h("p.quiet", {}, t("The picture is too large to be shown.")));
      else if (kind) replace(shown, head, h("img.file-picture", { src: await address(await fetched(entry), kind), alt: entry.name }));
      else replace(shown, head, content(entry, data));
    } catch (problem) {
      replace(shown, head, h("p.trouble", {}, problem.message));
    }
  }

  async function download(button, entry) {
    button.disabled = true;
    try {
      if (entry.size > 512e6) throw new Error(t("It is too large for a browser: fetch it with remote-sandbox-mcp pull."));
      const blob = await fetched(entry);
      if (blob.size !== entry.size) throw new Error(t("The file changed meanwhile; open the folder again."));
      const link = h("a", { href: URL.createObjectURL(blob), download: entry.name });
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
    } catch (problem) {
      say(problem.message, true);
    } finally {
      button.disabled = false;
    }
  }

  return end;
}

// The policy of the page allows pictures of its own and in addresses, and no others.
function address(blob, kind) {
  return new Promise((found, failed) => {
    const reader = new FileReader();
    reader.onload = () => found(reader.result);
    reader.onerror = () => failed(reader.error);
    reader.readAsDataURL(new Blob([blob], { type: kind }));
  });
}

function content(entry, data) {
  let text = "\0";
  try {
    text = new TextDecoder("utf-8", { fatal: true }).decode(data, { stream: data.length < entry.size });
  } catch {
    // Told below.
  }
  if (text.includes("\0")) return h("p.quiet", {}, t("It is not text; download it."));
  const cut = data.length < entry.size ? h("p.quiet", {}, t("Only its beginning is shown.")) : "";
  const comma = /\.csv$/i.test(entry.name) ? "," : /\.tsv$/i.test(entry.name) ? "\t" : "";
  const body = comma ? table(cells(text, comma)) : h("pre.file-text", { tabindex: "0", role: "region", "aria-label": entry.name }, visible(text));
  return [cut, body];
}

// The rows of a table with commas or tabs between its cells, which may be quoted.
export function cells(text, comma) {
  const rows = [[""]];
  let isQuoted = false;
  for (let at = 0; at < text.length && rows.length <= MOST_ROWS; at++) {
    const [letter, row] = [text[at], rows[rows.length - 1]];
    if (isQuoted && letter === '"' && text[at + 1] === '"') row[row.length - 1] += text[at++];
    else if (letter === '"' && (isQuoted || !row[row.length - 1])) isQuoted = !isQuoted;
    else if (isQuoted) row[row.length - 1] += letter;
    else if (letter === comma) row.push("");
    else if (letter === "\n") rows.push([""]);
    else if (letter !== "\r") row[row.length - 1] += letter;
  }
  return rows.filter((row) => row.length > 1 || row[0]).slice(0, MOST_ROWS);
}

function table([titles = [], ...rows]) {
  const head = h("thead", {}, h("tr", {}, titles.slice(0, 100).map((cell) => h("th", { scope: "col" }, cell))));
  return h("div.file-table", { tabindex: "0", role: "region", "aria-label": t("Table") }, h("table", {}, head, h("tbody", {}, rows.map((row) => h("tr", {}, row.slice(0, 100).map((cell) => h("td", {}, cell)))))));
}
