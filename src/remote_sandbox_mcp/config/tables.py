"""Tables of keys and values: what is right in them is taken, what is not is told."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .problems import Fault, Tell, quoted
from .readers import Reader

Labels = Callable[[str], str]


def read_table(
    raw: Mapping[str, Any], known: Mapping[str, Reader], where: str, tell: Tell, labels: Labels = str
) -> tuple[dict[str, Any], list[str]]:
    """The values that are right, and what is wrong with the others; unknown keys are told and passed over."""
    values: dict[str, Any] = {}
    faults: list[str] = []
    for key, value in raw.items():
        if key not in known:
            tell_unknown(key, known, where, tell)
        elif value is not None and value != "":
            try:
                values[key] = known[key](value)
            except Fault as fault:
                faults.append(f"{labels(key)} {fault}")
    return values, faults


def tell_unknown(key: str, known: Iterable[str], where: str, tell: Tell) -> None:
    import difflib

    near = difflib.get_close_matches(key[:60], list(known), 1, 0.5)
    hint = f"the nearest right key is {quoted(near[0])}" if near else f"the keys are {', '.join(sorted(known))}"
    tell(f"{where}: the unknown key {quoted(key)} is passed over; {hint}.")


def checked(
    document: Mapping[str, Any], key: str, known: Mapping[str, Reader], file: str, tell: Tell
) -> dict[str, Any]:
    """A table of settings: a bad one is told and passed over, the others hold."""
    where = f"{file} [{key}]"
    values, faults = read_table(table(document, key, file, tell), known, where, tell)
    for fault in faults:
        tell(f"{where}: {fault}, so it is passed over.")
    return values


def table(document: Mapping[str, Any], key: str, file: str, tell: Tell) -> Mapping[str, Any]:
    """The table of that name, empty where there is none."""
    found = document.get(key, {})
    if isinstance(found, Mapping):
        return found
    example = f"[{key}.NAME]" if key in {"machines", "hooks", "registries"} else f"[{key}]"
    tell(f"{file}: {key} is passed over: it must be a table, written as {example}.")
    return {}


def take_variables(
    variables: Mapping[str, Iterable[str]], known: Mapping[str, Reader], environ: Mapping[str, str], tell: Tell
) -> tuple[dict[str, Any], dict[str, str]]:
    """What environment variables say, under the keys that they stand for, and which variable said it.

    Of several for one key the first that is set counts.
    """
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for key, names in variables.items():
        if variable := next((name for name in names if environ.get(name, "").strip()), ""):
            try:
                values[key] = known[key](environ[variable].strip())
                origins[key] = variable
            except Fault as fault:
                tell(f"{variable} is passed over: it {fault}.")
    return values, origins
