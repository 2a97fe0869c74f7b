"""How much of the code was covered, in per cent, where a run measured it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

_TOTAL = re.compile(r"^TOTAL[ \t]+\d+[ \t]+\d+(?:[ \t]+\d+[ \t]+\d+)?[ \t]+(\d+(?:\.\d+)?)%", re.MULTILINE)
_GO_TOTAL = re.compile(r"^total:\s+\(statements\)\s+([\d.]+)%", re.MULTILINE)
_GO = re.compile(r"(?:^|\t|\")coverage: ([\d.]+)% of statements", re.MULTILINE)
_TABLE = re.compile(r"^All files +\| +([\d.]+) \| +[\d.]+ \| +[\d.]+ \| +([\d.]+) \|", re.MULTILINE)
_TARPAULIN = re.compile(r"^([\d.]+)% coverage, \d+/\d+ lines covered", re.MULTILINE)
_COBERTURA = re.compile(rb"<coverage\b[^<>]*?\bline-rate=\"([\d.]+)\"")


def coverage_in(text: str, files: Mapping[str, bytes]) -> float | None:
    """From the files that the run wrote, else from what it printed; None where neither tells one number."""
    for path, data in files.items():
        found = _in_file(path.rpartition("/")[2], data)
        if found is not None:
            return found
    return _in_text(text)


def _in_text(text: str) -> float | None:
    for pattern in (_TOTAL, _GO_TOTAL, _TABLE, _TARPAULIN):
        if found := pattern.findall(text):
            last = found[-1]
            return _percent(last if isinstance(last, str) else last[-1])
    # Each package tells its own share; of how much is not said, so there is no total of several.
    shares = _GO.findall(text)
    return _percent(shares[0]) if len(shares) == 1 else None


def _in_file(name: str, data: bytes) -> float | None:
    if name == "coverage-summary.json":
        try:
            return _percent(str(json.loads(data)["total"]["lines"]["pct"]))
        except (ValueError, KeyError, TypeError, RecursionError):
            return None
    if name == "lcov.info":
        lines = sum(map(int, re.findall(rb"^LF:(\d{1,9})", data, re.MULTILINE)))
        hit = sum(map(int, re.findall(rb"^LH:(\d{1,9})", data, re.MULTILINE)))
        return round(100 * hit / lines, 2) if lines else None
    if name == "coverage.xml" and (match := _COBERTURA.search(data[:4096])):
        return _percent(match.group(1).decode(), 100)
    return None


def _percent(text: str, factor: float = 1) -> float | None:
    try:
        value = round(float(text) * factor, 2)
    except ValueError:
        return None
    return value if 0 <= value <= 100 else None
