"""Hides secrets that we know in what a reader is shown, and finds what looks like a token there."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from ..sandboxes.secret import note_text, state_of_texts, texts_in_use

HIDDEN = "[hidden]"
# A shorter secret is not looked for at all; one shorter than the second is not hidden from readers, who would miss
# ordinary words.
LEAST_SECRET, LEAST_SHOWN = 4, 8

# How well-known tokens begin, and what follows at the least. redact.py makes an expression of this when one is needed.
TOKENS = {
    **dict.fromkeys(("AKIA", "ASIA"), "[0-9A-Z]{12}"),
    **dict.fromkeys(("ghp_", "gho_", "ghs_", "ghu_", "ghr_", "github_pat_"), r"\w{16}"),
    **dict.fromkeys(("glpat-", "glrt-", "gldt-", "pypi-AgE", "nvapi-", "tskey-"), r"[\w-]{16}"),
    # With a digit: there are ordinary names that begin like these.
    **dict.fromkeys(("sk-", "xai-"), r"(?=[\w-]{0,40}[0-9])[\w-]{16}"),
    **dict.fromkeys(("sk_live_", "sk_test_", "rk_live_", "rk_test_", "pk_live_", "pk_test_"), r"\w{10}"),
    **dict.fromkeys(("hf_", "npm_", "gsk_", "ntn_", "r8_", "lin_api_", "whsec_", "shpat_"), "[A-Za-z0-9]{20}"),
    **dict.fromkeys(("dckr_pat_", "dop_v1_", "doo_v1_", "figd_"), r"[\w-]{16}"),
    **dict.fromkeys(("xoxa-", "xoxb-", "xoxe-", "xoxo-", "xoxp-", "xoxr-", "xoxs-", "xapp-"), r"[\w-]{8}"),
    **dict.fromkeys(("AIza", "ATATT3", "AGE-SECRET-KEY-1", "sq0csp-", "sq0atp-"), r"[\w-]{20}"),
    **dict.fromkeys(("ya29.", "hvs.", "eyJ"), r"[\w.-]{16}"),
    "SG.": r"[\w-]{16,40}\.[\w-]{16}",
}
PRIVATE_KEY = " PRIVATE KEY"
LEAST_TOKEN = 16

_names: set[str] = set()
# Variables of sandboxes in use, by the address of what holds them.
_environments: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def watch_variables(environment: Any) -> None:
    """Hide the secrets among the variables in `environment.env`, for as long as it is in use."""
    _environments[id(environment)] = environment
    note_text()


def note_names(*names: str) -> None:
    """Names of machines and users: what is also a name is not hidden, although it is somebody's password."""
    _names.update(names)


def values_in_use() -> tuple[str, ...]:
    """All values that are known to be secret, as they may be written, longest first: one may begin another."""
    return _values((*state_of_texts(), len(_environments)))


def shown(text: str) -> str:
    """The text with [hidden] for each value that is known to be secret."""
    for value in values_in_use():
        if value in text and not _is_plain(value):
            text = text.replace(value, HIDDEN)
    return text


def _is_plain(value: str) -> bool:
    """Whether it could be an ordinary word: somebody's password is "postgres"."""
    return len(value) < LEAST_SHOWN or (len(value) < LEAST_TOKEN and value.isalpha() and value.islower())


def tokens_in(text: str) -> list[str]:
    """Find the beginnings of texts that look like tokens. Few words of ordinary output are long, but for paths."""
    long = " ".join({word for word in text.split() if len(word) >= LEAST_TOKEN and word[0] != "/"})
    if PRIVATE_KEY not in text and not any(beginning in long for beginning in TOKENS):
        return []
    from .redact import find_tokens

    return find_tokens(text)


def each_text(value: Any, change: Callable[[str], str]) -> Any:
    """A value of JSON with each of its texts changed, also those that are names."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, (list, tuple)):
        return [each_text(item, change) for item in value]
    # Numbers first: to ask whether one is a Mapping takes longer than all the rest.
    if isinstance(value, (int, float)) or not isinstance(value, Mapping):
        return value
    return {change(key) if isinstance(key, str) else key: each_text(item, change) for key, item in value.items()}


def texts_of(value: Any) -> list[str]:
    """All texts in a value of JSON, but for names."""
    # Not a generator in a generator: each text of a long list would pass through all of them.
    found: list[str] = []
    _find_texts(value, found)
    return found


def _find_texts(value: Any, found: list[str]) -> None:
    if isinstance(value, str):
        found.append(value)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _find_texts(item, found)
    # Numbers first: to ask whether one is a Mapping takes longer than all the rest.
    elif not isinstance(value, (int, float)) and isinstance(value, Mapping):
        for item in value.values():
            _find_texts(item, found)


@functools.lru_cache(maxsize=1)
def _values(state: tuple[int, ...]) -> tuple[str, ...]:
    texts = texts_in_use()
    environments = [environment.env for it in _environments.valuerefs() if (environment := it())]
    if not texts and not any(environments):
        return ()
    values = {*texts, *(value for env in environments for value in _secrets_among(env))} - _names
    return tuple(sorted({each for text in values for each in spellings(text)}, key=len, reverse=True))


def _secrets_among(variables: Mapping[str, str]) -> list[str]:
    if not variables:
        return []
    from .redact import is_secret_variable

    return [value for name, value in variables.items() if is_secret_variable(name, value)]


def spellings(secret: str) -> list[str]:
    """A secret as it may stand in shell source, in JSON and in an address."""
    import json
    from urllib.parse import quote

    if len(secret) < LEAST_SECRET:
        return []
    safe = secret.encode("utf-8", "surrogatepass")
    found = (secret, secret.replace("'", "'\"'\"'"), secret.replace("'", "'\\''"), json.dumps(secret)[1:-1])
    return [*dict.fromkeys((*found, json.dumps(secret, ensure_ascii=False)[1:-1], quote(safe, safe="")))]
