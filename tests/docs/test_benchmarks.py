"""The page of benchmarks: every subject has a title, curves become whole pictures, and the page shows those it has."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from bench.__main__ import SUBJECTS
from bench.curves import SCHEMES, drawn
from bench.document import TITLES, page, plots

from tests.support.doc_pages import ROOT


def row(at: float, against: str, baseline: float, group: str = "") -> dict[str, object]:
    detail = {"at": at, "axis": "files & folders", "who": "ours", "group": group}
    return {
        "subject": "copies", "name": f"{at} `files`", "ours": at / 3 + 0.01, "unit": "s", "baseline": baseline,
        "against": against, "ratio": (at / 3 + 0.01) / baseline, "detail": detail,
    }  # fmt: skip


ROWS = [row(at, who, 0.5, group) for group in ("0 ms", "20 ms") for at in (1, 10, 100) for who in ("rsync", "scp")]
ROWS.append({**row(1, "rsync", 0.1), "subject": "fair", "detail": {}})
RUN = {
    "rows": ROWS, "host": {"cores": 2, "kernel": "6.1", "python": "3.11"}, "load_before": 0.1, "load_after": 1.0,
    "date": "2026-11-19", "commit": "abc", "peer": "", "failures": [], "remarks": [], "busy_before": {"copies": 0.5},
}  # fmt: skip


def test_every_subject_has_a_title() -> None:
    assert {*SUBJECTS} == {*TITLES}


def test_rows_with_a_place_become_curves_and_ours_is_the_thick_one() -> None:
    (plot,) = plots(ROWS).values()
    assert [(curve.name, curve.colour, curve.dash) for curve in plot.curves] == [
        ("ours, 0 ms", 0, 0),
        ("ours, 20 ms", 1, 0),
        ("rsync, 0 ms", 0, 1),
        ("scp, 0 ms", 0, 2),
        ("rsync, 20 ms", 1, 1),
        ("scp, 20 ms", 1, 2),
    ]
    for scheme in SCHEMES.values():
        picture = ElementTree.fromstring(drawn(plot, scheme))
        lines = picture.findall("{http://www.w3.org/2000/svg}polyline")
        assert [len(line.attrib["points"].split()) for line in lines] == [3] * 6
        assert "files & folders" in "".join(picture.itertext())


def test_the_page_keeps_rows_in_which_we_are_behind_and_says_what_disturbed() -> None:
    text = page([RUN])
    assert "in 9 of them we are behind" in text
    assert "Other work used this machine right before copies." in text
    assert text.index("## Copies") < text.index("## One client beside a busy one")
    assert len(re.findall(r"^\| [\d.]+ `files`", text, re.M)) == len(ROWS)


def test_of_several_runs_the_last_counts_for_a_subject() -> None:
    later = RUN | {"date": "2026-11-20", "commit": "def", "rows": [row(5, "rsync", 9.0)]}
    text = page([RUN, later])
    assert "| date | 2026-11-19 | 2026-11-20 |" in text
    assert "| rows | 1; in 1 of them we are behind | 1; in 0 of them we are behind |" in text
    assert "Measured on 2026-11-20, at commit `def`." in text
    assert len(re.findall(r"^\| [\d.]+ `files`", text, re.M)) == 2


def test_the_pictures_of_the_page_are_there() -> None:
    text = (ROOT / "docs/benchmarks.md").read_text(encoding="utf-8")
    shown = {*re.findall(r'(?:src|srcset)="(.+?)"', text)}
    assert shown == {file.name for file in (ROOT / "docs").glob("benchmarks-*.svg")}
    assert len(shown) >= 10
