"""Hides secrets in texts and arguments before they are kept: by value, by name, and by their usual shapes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from .shown import HIDDEN, LEAST_SECRET, LEAST_SHOWN, PRIVATE_KEY, TOKENS

# A shorter secret is looked for only as a word of its own: "test" must not be found in "pytest".
LEAST_INSIDE = 8
# How much of a text is looked at. What is kept is shorter, so that a secret at this border is never seen in part.
MOST_READ = 20_000
SEAM = 2_000
LONGEST_TEXT, LONGEST_ARGUMENTS = 1_000, 4_000
MOST_ITEMS, DEEPEST = 20, 4

# Arguments that hold the content of a file, or what is typed into a program: only their size is kept.
CONTENTS = frozenset({"content", "old_text", "new_text", "text", "input"})
# All that is below these names is hidden: variables of a sandbox, and addresses whose path is often their key.
HIDDEN_BELOW = frozenset({"env", "webhook_url"})

# Names of secrets. Those of the first kind count inside of a longer name, too (DB_PASSWORD_2); the others on their own.
_STRONG = (
    r"password|passwd|passphrase|passcode|secret|credential|token(?!iz)|authorization|cookie"
    r"|(?:api|access|private|secret|auth|signing|encryption|account|license)[_-]?key|(?:store|key)pass(?![a-z])"
)
_WEAK = (
    r"(?<![A-Za-z])(?:pass|auth|otp)(?![A-Za-z])|(?<=[_-])(?:pwd|key)(?![A-Za-z])|(?<=[?&])key(?==)"
    r"|(?<![A-Za-z])pwd(?=[ \t]{0,3}=[ \t]{0,3}[\"'])|(?<=[a-z]_)auth(?==)|(?<=[A-Z]_)AUTH(?==)"
)
_NAME = re.compile(rf"(?:{_STRONG})[A-Za-z0-9_-]{{0,40}}|{_WEAK}", re.IGNORECASE)
_STRONG_NAME = re.compile(_STRONG, re.IGNORECASE)
_WHOLE_NAMES = frozenset({"key", "keys", "pass", "pwd", "auth", "otp", "pin"})
# Options that name where a secret is, instead of the secret.
_PLACES = re.compile(r"[_-](?:stdin|file|path|dir|env|sock|host|port|url|user|name|type)\Z", re.IGNORECASE)
_PATH = re.compile(r"(?:~|\.{0,2}/[a-z][\w.-]*)/[\w./-]*\Z|/[\w.-]+\Z")
_SEPARATOR = re.compile(r"([\\\"'\])]{0,4})([ \t]{0,3})(=>|:=|={1,3}|<<<|:)([ \t]{0,3})")
# Between an option and its value: blanks, a continued line, or the comma of a list of words.
_GAP = re.compile(r"[\\\"']{0,3}(?:,\s{0,8}|(?:\s|\\\n){1,8})")
# Between a quoted name and its value in a call.
_COMMA = re.compile(r"[\"'],[ \t]{0,3}(?=[\"'])")
_SET = re.compile(r"(?:\.\w{1,40})?([ \t]{1,4}set)?[ \t]{1,4}(?=[^\s-])")
_SCHEME = re.compile(r"(?:Bearer|Basic|Token|ApiKey)\s{1,4}", re.IGNORECASE)
_BEFORE = re.compile(r"[A-Za-z0-9_.-]{0,60}\Z")

# Keys that are known by how they begin.
_SHAPES = re.compile("|".join(rf"\b(?:{re.escape(beginning)}){rest}" for beginning, rest in TOKENS.items()))
_REST = re.compile(r"[\w.-]*")
# A long word of letters and digits in no order, as hashes and random keys are.
_RANDOM = re.compile(r"(?<![A-Za-z0-9])[A-Za-z0-9]{16,}")
LEAST_RANDOM = 20
_DIGITS = re.compile(r"[0-9]+")
_BEARER = re.compile(r"\bBearer[ \t]{1,4}(?=\S)", re.IGNORECASE)
_URL = re.compile(r"\b([A-Za-z][A-Za-z0-9+]{1,20})://")
_URL_STOP = re.compile(r"[\s\"'<>`]")
_WEBHOOK = re.compile(r"\b(?:hooks\.slack\.com|discord(?:app)?\.com/api/webhooks|open\.feishu\.cn/open-apis/bot)/")
_PEM = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_PEM_END = re.compile(r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_PEM_LINE = re.compile(r"[A-Za-z0-9+/=]{1,64}[A-Za-z0-9+/=]{0,16}\r?\Z")
# Options and words of well-known programs whose next word is, or ends with, a password.
_BEFORE_PASSWORD = re.compile(
    r"\slogin\s{1,4}\S{1,60}\s{1,4}password\s{1,4}|\bpass:(?=\S)|\s/p:(?=\S)|--from-literal[= ][^\s=]{1,60}="
    r"|\b(?:wandb|vault|huggingface-cli|hf[ \t]auth)[ \t]login(?:[ \t]{1,4}-\S{1,60}){0,6}[ \t]{1,4}(?=[^\s-])"
    r"|\bhtpasswd[ \t](?:-\w{1,9}[ \t]{1,4}){1,4}\S{1,60}[ \t]{1,4}\S{1,60}[ \t]{1,4}"
    r"|\bmc[ \t]alias[ \t]set(?:[ \t]{1,4}[^\s-]\S{0,60}){3}[ \t]{1,4}"
    r"|\b(?:wpa_passphrase|net[ \t]user|http-basic\.\S{1,60})[ \t]{1,4}\S{1,60}[ \t]{1,4}"
    r"|\b(?:add-)?authtoken[ \t]{1,4}(?=[^\s-])|\bsqlplus[ \t](?:-\w{1,9}[ \t]{1,4}){0,4}[^\s/]{1,60}/"
    r"|\blftp\b[^\n]{0,60}\s-u[ \t]{0,3}[^\s,]{1,60},"
)
_USER = re.compile(r"(?<!\S)(?:-u|-U|--user|--proxy-user)(?:=|[ \t]{0,3})([\"']?)[^\s:\"'@/%]{1,60}[:%](?=[^\s/])")
# Options of one letter whose value is a password, and the programs for which that is so.
_LETTERS = {
    "a": r"redis-cli|valkey-cli|redis-benchmark",
    "b": r"curl",
    "k": r"openssl",
    "N": r"ssh-keygen",
    "P": r"zip|unzip|zipcloak|mosquitto_\w{3,5}|ssh-keygen|sqlcmd|bcp",
    "p": r"sshpass|mysql\w{0,10}|mariadb\w{0,10}|mongo\w{0,10}|twine|useradd|usermod|7z[a-z]?|rar|unrar|influx"
    r"|(?:docker|podman|nerdctl|oc|helm|skopeo|buildah|az|ibmcloud|cf)[ \t]{1,4}(?:registry[ \t]{1,4})?login",
    "w": r"ldap\w{2,10}",
}
_WITH_LETTER = [
    (re.compile(rf"\b(?:{programs})(?![\w.-])"), re.compile(rf"[ \t]-{letter}[ \t]{{0,4}}(?=[^\s-])"))
    for letter, programs in _LETTERS.items()
]
# Verbs after which a name and its value are two words: config set api_token abc.
VERB_CHARS = 120
_VERB = re.compile(r"\b(?:set|setenv|add|config|configure|modify|create|connect|auth|token|login)\b")
# A string in a call: login("abc"), login(key="abc").
_LOGIN_CALL = re.compile(r"\blogin\([^()\"'\n]{0,40}(?=[\"'])")
# Programs that read a password from their standard input.
_EATER = re.compile(
    r"\bsudo[ \t](?:-\w{1,9}[ \t]{1,4}){0,4}-[A-Za-z]{0,4}S\b|\bsudo\b[^\n|;&]{0,40}--stdin\b|--password-stdin\b"
    r"|--with-token\b|\bchpasswd\b|\bpasswd[ \t]{1,4}--stdin\b|\bkinit\b|\bcryptsetup\b|\bwandb[ \t]login\b"
)
# A file whose name says what is in it.
_SECRET_FILE = re.compile(
    r">{1,2}[ \t]{0,3}[^\s;&|<>]{0,60}(?:token|secret|passw|credential|netrc|pgpass|api_?key|\.env)"
)
_HERE = re.compile(r"<<-?[ \t]{0,3}[\\\"']?([A-Za-z_][\w.-]{0,60})")
_ECHO = re.compile(r"\b(?:echo|printf)[ \t]{1,4}")
_ESCAPED = re.compile(r"\\[nrt]")
_ENDS_OUTER = frozenset(" \t\r\n;&|),}]")


def is_secret_name(name: str) -> bool:
    """Whether the value of an argument with this name is to be hidden."""
    return name.lower() in _WHOLE_NAMES or bool(_NAME.search(name))


def is_secret_variable(name: str, value: str) -> bool:
    """Whether the value of a variable is a secret: by its name, or because it holds a token or a password."""
    if len(value) < LEAST_SHOWN or _PATH.match(value):
        return False
    is_named = is_secret_name(name) and not _PLACES.search(name)
    return is_named or bool(_SHAPES.search(value)) or any(_in_urls(value))


def without_secrets(text: str, hidden: Iterable[str] = ()) -> str:
    """The text with [hidden] for each secret: those in `known`, and what looks like one."""
    for secret in hidden:
        text = _without(text, secret)
    text = without_tokens(text)
    lowered = text.lower()
    for hints, spans in _RULES:
        # Each rule costs much more than a look for the words without which it finds nothing.
        if any(hint in lowered for hint in hints):
            text = _hide(text, spans(text))
            if _ESCAPED.search(text):
                # Lines of a string in a program's source, or in JSON.
                text = _hide(text, spans(_ESCAPED.sub(" \n", text)))
    return _hide(text, _random_words(text))


def shorten_safely(text: str, hidden: Iterable[str] = (), most: int = LONGEST_TEXT) -> str:
    """The beginning of a text without secrets; one that is cut off at its end is not shown in part."""
    shown = without_secrets(text[:MOST_READ], hidden)
    if len(text) > MOST_READ:
        shown = shown[:-SEAM]
    return shown if len(shown) <= most and len(text) <= MOST_READ else f"{shown[:most]}…"


def end_safely(text: str, hidden: Iterable[str] = (), most: int = LONGEST_TEXT) -> str:
    """The end of a text without secrets; one that is cut off at its beginning is not shown in part."""
    read = min(MOST_READ, most + SEAM)
    if len(text) <= read:
        return without_secrets(text, hidden)[-most:]
    return without_secrets(text[-read:], hidden)[SEAM:][-most:]


def first_line(text: str, hidden: Iterable[str] = (), most: int = 300) -> str:
    """The first line of a result."""
    return shorten_safely(text[: MOST_READ + 1].partition("\n")[0], hidden, most)


def hide_in(value: Any, hidden: Iterable[str] = ()) -> Any:
    """A value of JSON without secrets: its texts as above, and all that has the name of a secret."""
    secrets = tuple(hidden)
    if isinstance(value, str):
        return shorten_safely(value, secrets, MOST_READ)
    if isinstance(value, Mapping):
        return {_label(name, secrets): _named(str(name), item, secrets) for name, item in value.items()}
    return [hide_in(item, secrets) for item in value] if isinstance(value, (list, tuple)) else value


def _named(name: str, value: Any, hidden: tuple[str, ...]) -> Any:
    is_hidden = isinstance(value, str) and value and is_secret_name(name)
    return HIDDEN if is_hidden else hide_in(value, hidden)


# Arguments of a call


def shown_arguments(
    arguments: Mapping[str, Any], hidden: Iterable[str] = (), takes: Collection[str] | None = None
) -> dict[str, Any]:
    """The arguments of a call as they may be kept: without secrets and contents of files, and short.

    `takes`: those that the tool has. Of another only the size is kept: it may be the content of a file.
    """
    secrets = tuple(hidden)
    if takes is not None:
        arguments = {name: value if name in takes else _size(value) for name, value in arguments.items()}
    for most in (LONGEST_TEXT, LONGEST_TEXT // 5, LONGEST_TEXT // 20):
        shown = _shown("", arguments, secrets, most, DEEPEST)
        if len(json.dumps(shown)) <= LONGEST_ARGUMENTS:
            return dict(shown)
    return {"left_out": f"{len(arguments)} arguments, too long to be kept"}


def _size(value: Any) -> Any:
    return value if value is None or isinstance(value, (bool, int, float)) else f"({len(str(value))} characters)"


def _shown(name: str, value: Any, hidden: tuple[str, ...], most: int, deep: int) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if name in HIDDEN_BELOW or is_secret_name(name):
        return dict.fromkeys((_label(key, hidden) for key in value), HIDDEN) if isinstance(value, Mapping) else HIDDEN
    if isinstance(value, str):
        return f"({len(value)} characters)" if name in CONTENTS else shorten_safely(value, hidden, most)
    if isinstance(value, (int, float)):
        return value
    if not deep or not isinstance(value, (Mapping, list, tuple)):
        return "…"
    return _parts(name, value, hidden, most, deep - 1)


def _parts(name: str, value: Any, hidden: tuple[str, ...], most: int, deep: int) -> Any:
    left = len(value) - MOST_ITEMS
    if isinstance(value, Mapping):
        kept = [*value.items()][:MOST_ITEMS]
        shown = {_label(key, hidden): _shown(str(key), item, hidden, most, deep) for key, item in kept}
        return shown | ({"…": f"and {left} more"} if left > 0 else {})
    listed = [_shown(name, item, hidden, most, deep) for item in value[:MOST_ITEMS]]
    return [*listed, f"and {left} more"] if left > 0 else listed


def _label(key: object, hidden: tuple[str, ...]) -> str:
    return shorten_safely(str(key), hidden, 80)


# Which tool did what, in one line

_TELLING = (
    *("command", "remote_path", "tmux_session", "session_name", "task_id", "path", "paths", "files", "image"),
    *("port", "watch_id", "sandbox_id", "sandbox_name"),
)


def summary_of(arguments: Mapping[str, Any]) -> str:
    """Summarize a call by its kept arguments."""
    if "local_path" in arguments and "remote_path" in arguments:
        return f"{arguments['local_path']}, {arguments['remote_path']}"
    value = next((arguments[name] for name in _TELLING if arguments.get(name)), "")
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


# By value


def _without(text: str, secret: str) -> str:
    if len(secret) < LEAST_SECRET or secret not in text:
        return text
    if len(secret) >= LEAST_INSIDE:
        return text.replace(secret, HIDDEN)
    return _hide(text, _as_word(text, secret))


def _as_word(text: str, secret: str) -> Iterator[tuple[int, int]]:
    at = text.find(secret)
    while at >= 0:
        end = at + len(secret)
        is_inside = text[at - 1 : at].isalnum() and secret[0].isalnum()
        if not is_inside and not (text[end : end + 1].isalnum() and secret[-1].isalnum()):
            yield at, end
        at = text.find(secret, at + 1)


# By shape


def find_tokens(text: str) -> list[str]:
    """Find the beginnings of all texts that look like a token or a private key."""
    begun = (next(it for it in TOKENS if found[0].startswith(it)) for found in _SHAPES.finditer(text))
    keys = ["a private key"] if _PEM.search(text) else []
    return [*dict.fromkeys(f"{it}…" for it in begun), *keys]


def without_tokens(text: str) -> str:
    """The text with [hidden] for all that looks like a token or a private key, whatever is around it."""
    if PRIVATE_KEY in text:
        text = _hide(text, _private_keys(text))
    if any(beginning in text for beginning in TOKENS):
        text = _hide(text, _tokens(text))
    return _hide(text, ((found.end(), _word_end(text, found.end())) for found in _BEARER.finditer(text)))


def _tokens(text: str) -> Iterator[tuple[int, int]]:
    end = 0
    for found in _SHAPES.finditer(text):
        if found.start() >= end and (rest := _REST.match(text, found.end())):
            # A sentence may end with it.
            end = found.end() + len(rest[0].rstrip("."))
            yield found.start(), end


def _private_keys(text: str) -> Iterator[tuple[int, int]]:
    at = 0
    if (over := _PEM_END.search(text)) and not _PEM.search(text, 0, over.start()):
        # Its beginning was cut off.
        at = over.end()
        yield _start_of_key(text, over.start()), at
    while begun := _PEM.search(text, at):
        over = _PEM_END.search(text, begun.end())
        at = over.end() if over else len(text)
        yield begun.start(), at


def _start_of_key(text: str, at: int) -> int:
    """Return where the lines of a key begin that end at `at`."""
    while at > 0:
        line = text.rfind("\n", 0, at - 1) + 1
        if not _PEM_LINE.match(text, line, at - 1):
            return at
        at = line
    return at


def _random_words(text: str) -> Iterator[tuple[int, int]]:
    """Long words of letters and digits in no order."""
    for found in _RANDOM.finditer(text):
        word = found[0]
        is_mixed = not (word.islower() or word.isupper())
        if (is_mixed or len(word) >= LEAST_RANDOM) and len(_DIGITS.findall(word)) > 1:
            yield found.span()


def _in_urls(text: str) -> Iterator[tuple[int, int]]:
    """Find the part before the @ of an address: all of it on the web, else the password."""
    word_end = 0
    for found in _URL.finditer(text):
        # Once for each word, which may hold many addresses.
        if found.end() >= word_end:
            stop = _URL_STOP.search(text, found.end())
            word_end = stop.start() if stop else len(text)
        end = _end_of_authority(text, found.end(), word_end)
        at = text.rfind("@", found.end(), end)
        start = found.end() if found[1].lower() in ("http", "https") else text.find(":", found.end(), end) + 1
        if at > start > 0:
            yield start, at
    for found in _WEBHOOK.finditer(text):
        yield found.end(), _word_end(text, found.end())


def _end_of_authority(text: str, at: int, end: int) -> int:
    """Return where the host ends: at a slash, but for one of a password that is followed by an @ in the same word."""
    slash = text.find("/", at, end)
    if slash < 0:
        return end
    at_sign = text.rfind("@", slash, end)
    has_password = ":" in text[at:slash] and not text[at:slash].rpartition(":")[2].isdecimal()
    return end if at_sign > 0 and has_password else slash


# By name


def _after_names(text: str) -> Iterator[tuple[int, int]]:
    """Values after names of secrets: NAME=value, name: value, "name": "value", --name value."""
    done = 0
    for found in _NAME.finditer(text):
        if found.start() < done or _PLACES.search(found[0]):
            continue
        span = _value_of(text, found)
        if span and text.startswith("%s", span[0]):
            # The format of a printf, whose arguments follow.
            span = span[0], _line_end(text, span[0])
        # A number of tokens is none, as in --max-tokens 512.
        is_count = span and found[0].lower().startswith("tokens") and text[span[0] : span[1]].isdecimal()
        if span and span[1] > span[0] and not is_count:
            done = span[1]
            yield span


def _value_of(text: str, found: re.Match[str]) -> tuple[int, int] | None:
    before = _BEFORE.search(text, max(0, found.start() - 60), found.start())
    begun = before.start() if before else found.start()
    separator = _SEPARATOR.match(text, found.end())
    if separator is None:
        return _value_of_option(text, found, begun)
    is_strong = bool(_STRONG_NAME.match(found[0]))
    closing, left, sign, right = separator.groups()
    if sign == ":" and not is_strong and not (closing and right):
        return None
    quote = text[begun - 1 : begun] if not closing else ""
    return _given(text, separator.end(), quote, is_line=sign == ":" or bool(left or right), is_data=sign == ":")


def _given(text: str, at: int, outer: str, *, is_line: bool, is_data: bool) -> tuple[int, int]:
    """A value from `at` on; `outer` is a quote that was opened before its name."""
    if scheme := _SCHEME.match(text, at):
        at = scheme.end()
        return at, _word_end(text, at)
    if text.startswith("$(", at):
        return at, _substitution_end(text, at + 2)
    if outer in ("'", '"') and text[at : at + 1] != outer:
        return at, _outer_end(text, at, outer)
    if text[at : at + 2] in ('\\"', "\\'"):
        return at, _escaped_end(text, at + 2, text[at : at + 2])
    if text[at : at + 1] in ('"', "'"):
        inner = _quote_end(text, at + 1, text[at]) + 1
        # In JSON the value ends here; a word of the shell may go on.
        return at, min(len(text), inner) if is_data else _word_end(text, at)
    return at, _line_end(text, at) if is_line else _word_end(text, at)


def _value_of_option(text: str, found: re.Match[str], begun: int) -> tuple[int, int] | None:
    if comma := _COMMA.match(text, found.end()):
        return comma.end(), _quote_end(text, comma.end() + 1, text[comma.end()]) + 1
    gap = _GAP.match(text, found.end()) if text[begun : begun + 1] == "-" else _gap_after_verb(text, found, begun)
    if gap is None or text[gap.end() : gap.end() + 1] in ("-", "<", ""):
        return None
    at = gap.end()
    return at, _word_end(text, at)


def _gap_after_verb(text: str, found: re.Match[str], begun: int) -> re.Match[str] | None:
    """Find the gap between a name and its value where both are words of a command, as in: config set api_token abc."""
    line = max(text.rfind("\n", 0, begun) + 1, begun - VERB_CHARS)
    gap = _SET.match(text, found.end()) if _STRONG_NAME.match(found[0]) else None
    return gap if gap and (gap[1] or _VERB.search(text, line, begun)) else None


def _after_words(text: str) -> Iterator[tuple[int, int]]:
    """Passwords that follow certain words of well-known programs."""
    for found in _BEFORE_PASSWORD.finditer(text):
        yield found.end(), _word_end(text, found.end())


def _after_users(text: str) -> Iterator[tuple[int, int]]:
    """Passwords that follow the name of a user."""
    for found in _USER.finditer(text):
        end = _outer_end(text, found.end(), found[1]) if found[1] else _word_end(text, found.end())
        if not text[found.end() : end].strip("\"'").isdecimal():
            yield found.end(), end


def _in_logins(text: str) -> Iterator[tuple[int, int]]:
    """Strings in calls of a function that logs in."""
    for found in _LOGIN_CALL.finditer(text):
        yield found.end(), _quote_end(text, found.end() + 1, text[found.end()]) + 1


def _after_letters(text: str) -> list[tuple[int, int]]:
    """Passwords behind options of one letter."""
    return sorted(span for program, option in _WITH_LETTER for span in _after_letter(text, program, option))


def _after_letter(text: str, program: re.Pattern[str], option: re.Pattern[str]) -> Iterator[tuple[int, int]]:
    """Values of an option of one letter, on the lines of a program for which they are passwords."""
    at = 0
    while found := program.search(text, at):
        at = _line_end(text, found.end())
        for given in option.finditer(text, found.end(), at):
            yield given.end(), _word_end(text, given.end())


def _given_away(text: str) -> list[tuple[int, int]]:
    """Texts that are written into programs that read a password, and into files that are known to hold one."""
    found = [*_EATER.finditer(text), *_SECRET_FILE.finditer(text)]
    return sorted(span for each in found for span in _fed(text, each.start(), _line_end(text, each.end())))


def _fed(text: str, eater: int, line_end: int) -> Iterator[tuple[int, int]]:
    """Find the text that a line writes into the standard input of the program, or into the file, at `eater`."""
    line = text.rfind("\n", 0, eater) + 1
    pipe = eater if text[eater] == ">" else text.rfind("|", line, eater)
    if echoes := [found.end() for found in _ECHO.finditer(text, line, max(line, pipe))]:
        yield echoes[0], pipe
    here = text.find("<<<", eater, line_end)
    if here >= 0:
        start = here + 3 + (len(text[here + 3 :]) - len(text[here + 3 :].lstrip(" \t")))
        yield start, _word_end(text, start)
    elif document := _HERE.search(text, line, line_end):
        yield line_end + 1, _document_end(text, line_end, document[1])


def _document_end(text: str, at: int, word: str) -> int:
    """Return where the line is that ends a here-document, or the end of the text."""
    while at < len(text):
        start, at = at + 1, _line_end(text, at + 1)
        if text[start:at].strip() == word:
            return start
    return len(text)


# The rules, each with the words of which it needs one, in small letters.
_RULES: tuple[tuple[tuple[str, ...], Callable[[str], Iterable[tuple[int, int]]]], ...] = (
    (("://", "hooks.slack.com/", "discord", "open.feishu.cn/"), _in_urls),
    (("pass", "secret", "credential", "token", "auth", "cookie", "key", "pwd", "otp"), _after_names),
    (("login", "pass", "/p:", "literal", "alias", "net", "http-basic", "authtoken", "sqlplus", "lftp"), _after_words),
    (("-u", "-user"), _after_users),
    (("login(",), _in_logins),
    (tuple(f"-{letter.lower()}" for letter in _LETTERS), _after_letters),
    (("sudo", "stdin", "token", "passwd", "kinit", "cryptsetup", "wandb", ">"), _given_away),
)

# Where words and lines end


def _word_end(text: str, at: int, *, has_quotes: bool = False) -> int:
    """The end of a word of the shell that begins at `at`, with its quoted parts."""
    start = at
    while at < len(text):
        char = text[at]
        if char in " \t\r\n":
            return at
        if char == "\\":
            at += 2
        elif char in "\"'":
            if at > start and not has_quotes and (at + 1 == len(text) or text[at + 1] in _ENDS_OUTER):
                # The quote was opened before this word.
                return at
            at, has_quotes = _quote_end(text, at + 1, char) + 1, True
        else:
            at += 1
    return len(text)


def _quote_end(text: str, at: int, quote: str) -> int:
    """Return where the closing quote is, or the end of the text."""
    while at < len(text) and text[at] != quote:
        at += 2 if text[at] == "\\" and quote == '"' else 1
    return min(at, len(text))


def _outer_end(text: str, at: int, quote: str) -> int:
    """The end of a value inside of quotes; after a closing quote the same word may go on, as in 'it'"'"'s'."""
    end = _quote_end(text, at, quote)
    goes_on = end + 1 < len(text) and text[end + 1] not in _ENDS_OUTER
    return _word_end(text, end + 1, has_quotes=True) if goes_on else end


def _escaped_end(text: str, at: int, quote: str) -> int:
    """The end of a value in quotes that are escaped themselves, as in JSON inside of JSON."""
    over = text.find(quote, at)
    while over > 0 and text[over - 1] == "\\":
        over = text.find(quote, over + 1)
    return len(text) if over < 0 else over + 2


def _substitution_end(text: str, at: int) -> int:
    """The end of $(...), which may hold others; or of the text."""
    depth = 1
    while at < len(text) and depth:
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        at += 1
    return at


def _line_end(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end


def _hide(text: str, spans: Iterable[tuple[int, int]]) -> str:
    pieces, at = [], 0
    for start, end in spans:
        if end > max(at, start):
            pieces += [text[at : max(at, start)], HIDDEN]
            at = end
    return "".join((*pieces, text[at:])) if pieces else text
