"""Makes the documentation as a site, in build/site: python scripts/documentation.py (or `make docs`).

The pages of docs/ in the order of NAVIGATION, and reference pages that are made here from the program itself. English
and Chinese are two sites with one look; both work from a disk, and ask no other host for anything.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import reference

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build"
SITE = BUILD / "site"
MKDOCS = ROOT / ".publish/bin/mkdocs"
# Sections and their pages; those of REFERENCE and COPIED are not in docs/.
NAVIGATION: dict[str, tuple[str, ...]] = {
    "Start": ("index", "start", "setup", "clients", "moving-over", "troubleshooting"),
    "Use": (
        *("jobs", "gpus", "workspaces", "sandboxes", "python", "sessions", "resume", "watchdog", "waking"),
        *("dashboard", "terminal", "cookbook", "examples"),
    ),
    "Machines": ("doors", "second-factor", "slurm", "docker", "teams", "extensions", "frameworks"),
    "Reference": (
        "tools",
        "tool-parameters",
        "commands",
        "configuration",
        "keys",
        "errors",
        "python-api",
        "python-reference",
    ),
    "Inside": (
        *("architecture", "walks", "protocol", "hub", "security", "threats", "reliability", "benchmarks", "promises"),
        *("contributing", "changelog"),
    ),
    "About": ("comparison", "why-not-on-the-server", "upgrading", "privacy"),
}
CHINESE_SECTIONS = {"Start": "开始", "Use": "使用", "About": "关于"}
# Pages that are elsewhere in the repository.
COPIED = {
    "README.md": "index",
    "README.zh-CN.md": "index",
    "CHANGELOG.md": "changelog",
    "CONTRIBUTING.md": "contributing",
    "examples/README.md": "examples",
    "examples/README.zh-CN.md": "examples",
}
SHIM = "https://unpkg.com/iframe-worker/shim"
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#\s]*)(#[^)\s]*)?\)")


def main() -> int:
    shutil.rmtree(BUILD / "docs", ignore_errors=True)
    shutil.rmtree(SITE, ignore_errors=True)
    english, chinese = prepare(BUILD / "docs/en", ""), prepare(BUILD / "docs/zh", ".zh-CN")
    for name, text in reference.pages().items():
        (english / f"{name}.md").write_text(text, encoding="utf-8")
    for folder, language, place in ((english, "en", SITE), (chinese, "zh", SITE / "zh")):
        config = BUILD / f"mkdocs.{language}.yml"
        config.write_text(configuration(folder, language, place), encoding="utf-8")
        words = [MKDOCS, "build", "--quiet", "--config-file", config]
        env = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
        done = subprocess.run([*words, *(["--strict"] if language == "en" else [])], env=env, check=False)
        if done.returncode:
            return done.returncode
        keep_to_this_site(place)
    write_for_models(english)
    print(f"the site is in {SITE.relative_to(ROOT)}; open {(SITE / 'index.html').relative_to(ROOT)}")
    return 0


def prepare(folder: Path, language: str) -> Path:
    """The pages of a language in a folder of their own, with links that lead to pages of the site."""
    folder.mkdir(parents=True)
    for page in pages(language):
        text = page.read_text(encoding="utf-8")
        here = page.relative_to(ROOT)
        text = LINK.sub(lambda found, here=here: relinked(found, here, language), text)
        (folder / f"{target(here)}.md").write_text(text, encoding="utf-8")
    for picture in [*(ROOT / "docs").glob("*.png"), *(ROOT / "docs").glob("*.svg")]:
        shutil.copy(picture, folder / picture.name)
    return folder


def pages(language: str) -> Iterator[Path]:
    """The files of a language, those of the top folder first."""
    for name in COPIED:
        if name.endswith(".zh-CN.md") == bool(language):
            yield ROOT / name
    for page in sorted((ROOT / "docs").glob("*.md")):
        if page.name.endswith(".zh-CN.md") == bool(language):
            yield page


def target(page: Path) -> str:
    """The name of a page in the site."""
    return COPIED.get(str(page)) or page.name.removesuffix(".md").removesuffix(".zh-CN")


def relinked(found: re.Match[str], here: Path, language: str) -> str:
    """A link as it is in the site; one to a file that is no page becomes its words."""
    mark, words, to, part = found[1], found[2], found[3], found[4] or ""
    if not to or "://" in to:
        return found[0]
    file = (ROOT / here.parent / to).resolve()
    if file.suffix in (".png", ".svg"):
        return f"{mark}[{words}]({file.name})"
    if not file.is_file() or not file.is_relative_to(ROOT):
        return words
    page = file.relative_to(ROOT)
    if str(page) not in COPIED and (page.parent != Path("docs") or page.suffix != ".md"):
        return words
    name = target(page)
    if page.name.endswith(".zh-CN.md") == bool(language):
        return f"[{words}]({name}.md{part})"
    # The other language is another site, and places in its pages have other names.
    return f"[{words}]({'../' if language else 'zh/'}{name}.html)"


def configuration(folder: Path, language: str, place: Path) -> str:
    """What MkDocs is told, for one language."""
    lines = [
        "site_name: remote-sandbox-mcp",
        f"docs_dir: {folder}",
        f"site_dir: {place}",
        "use_directory_urls: false",
        "theme:",
        "  name: material",
        f"  language: {language}",
        "  font: false",
        "  icon: {logo: material/server-network}",
        "  features: [navigation.sections, navigation.top, content.code.copy, search.suggest, search.highlight]",
        "  palette:",
        *palette("default", "weather-night", "slate"),
        *palette("slate", "weather-sunny", "default"),
        "plugins: [search, offline]",
        "markdown_extensions:",
        # Titles in Chinese name their places, too, as they do on code hosts.
        "  - toc:",
        "      permalink: true",
        "      slugify: !!python/object/apply:pymdownx.slugs.slugify {kwds: {case: lower}}",
        "  - tables",
        "  - pymdownx.highlight",
        "  - pymdownx.superfences",
        "extra:",
        "  generator: false",
        "  alternate:",
        f"    - {{name: English, link: {'.' if language == 'en' else '..'}/index.html, lang: en}}",
        f"    - {{name: 中文, link: {'zh' if language == 'en' else '.'}/index.html, lang: zh}}",
        "validation: {links: {anchors: warn}, nav: {omitted_files: warn}}",
        "nav:",
    ]
    return "\n".join([*lines, *navigation(folder, language)]) + "\n"


def keep_to_this_site(place: Path) -> None:
    """The program with which a page on a disk can search comes from this site, and not from another host."""
    shutil.copy(ROOT / "packaging/site/iframe-worker.js", place / "assets/javascripts")
    for page in place.rglob("*.html"):
        if place == SITE and page.is_relative_to(SITE / "zh"):
            continue
        text = page.read_text(encoding="utf-8")
        page.write_text(text.replace(SHIM, "assets/javascripts/iframe-worker.js"), encoding="utf-8")


def palette(scheme: str, icon: str, other: str) -> list[str]:
    media = "dark" if scheme == "slate" else "light"
    return [
        f'    - {{media: "(prefers-color-scheme: {media})", scheme: {scheme}, primary: indigo, '
        f"toggle: {{icon: material/{icon}, name: {other}}}}}"
    ]


def navigation(folder: Path, language: str) -> Iterator[str]:
    for section, names in NAVIGATION.items():
        there = [name for name in names if (folder / f"{name}.md").exists()]
        if there:
            yield f"  - {CHINESE_SECTIONS.get(section, section) if language == 'zh' else section}:"
            yield from (f"      - {name}.md" for name in there)


def write_for_models(folder: Path) -> None:
    """llms.txt, a list of the pages with a sentence each, and llms-full.txt, all of them."""
    parts, all_of_it = (
        ["# remote-sandbox-mcp\n\n> " + beginning((folder / "index.md").read_text(encoding="utf-8")) + "\n"],
        [],
    )
    for section, names in NAVIGATION.items():
        parts.append(f"\n## {section}\n\n")
        for name in names:
            text = (folder / f"{name}.md").read_text(encoding="utf-8")
            title = text.partition("\n")[0].lstrip("# ")
            parts.append(f"- [{title}]({name}.html): {beginning(text)}\n")
            all_of_it.append(text.strip() + "\n")
    (SITE / "llms.txt").write_text("".join(parts), encoding="utf-8")
    (SITE / "llms-full.txt").write_text("\n\n".join(all_of_it), encoding="utf-8")


def beginning(text: str) -> str:
    """The first sentence of a page, without its links."""
    paragraphs = (part for part in text.split("\n\n")[1:] if not part.startswith(("#", "```", "|", "!", "[", "-", "<")))
    plain = LINK.sub(lambda found: found[2], " ".join(next(paragraphs, "").split()))
    return re.split(r"(?<=[.:]) ", plain)[0]


if __name__ == "__main__":
    sys.exit(main())
