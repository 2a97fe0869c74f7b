from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote_sandbox_mcp.core.errors import BadArgument
from remote_sandbox_mcp.core.permission import (
    Hook,
    Notify,
    allow_hook,
    allow_local_port,
    allow_volume,
    allow_webhook,
    is_loopback,
    read_address,
)
from remote_sandbox_mcp.core.sandboxes.secret import Secret

SLACK = "https://hooks.slack.com/services/T012"
PREFIXES = (SLACK, "https://ci.example.com:8443/", "http://localhost:3000", "https://oapi.dingtalk.com/robot?token=abc")
HIDDEN = "hunter2-do-not-show"


@pytest.mark.parametrize(
    ("url", "called"),
    [
        pytest.param(SLACK, SLACK, id="the prefix itself"),
        pytest.param(f"{SLACK}/B1/xyz", f"{SLACK}/B1/xyz", id="below it"),
        pytest.param(f"{SLACK}/", f"{SLACK}/", id="with a slash"),
        pytest.param(f"{SLACK}?a=b", f"{SLACK}?a=b", id="any query"),
        pytest.param("HTTPS://Hooks.Slack.COM/services/T012", SLACK, id="case of scheme and host"),
        pytest.param("https://hooks.slack.com:443/services/T012", SLACK, id="usual port"),
        pytest.param("https://hooks.slack.com:0443/services/T012", SLACK, id="usual port with a nought"),
        pytest.param("https://ci.example.com:8443/any/where", "https://ci.example.com:8443/any/where", id="other port"),
        pytest.param("https://ci.example.com:8443", "https://ci.example.com:8443/", id="no path"),
        pytest.param("http://localhost:3000/x", "http://localhost:3000/x", id="http on this machine"),
        pytest.param(PREFIXES[3], PREFIXES[3], id="with the very query"),
        pytest.param(f"{SLACK}/a%20b", f"{SLACK}/a%20b", id="harmless percent sign"),
        pytest.param(f"{SLACK}/a..b/...", f"{SLACK}/a..b/...", id="dots that are no steps"),
    ],
)
def test_an_address_at_or_below_an_allowed_one_is_allowed(url: str, called: str) -> None:
    assert allow_webhook(url, PREFIXES) == called


@pytest.mark.parametrize(
    "url",
    [
        pytest.param("https://hooks.slack.com/services/T0123", id="part of a step"),
        pytest.param("https://hooks.slack.com/services", id="above"),
        pytest.param("https://hooks.slack.com/SERVICES/T012", id="case of the path"),
        pytest.param("http://hooks.slack.com/services/T012", id="without encryption"),
        pytest.param("https://hooks.slack.com:444/services/T012", id="another port"),
        pytest.param("https://hooks.slack.com.evil.com/services/T012", id="longer host"),
        pytest.param("https://evil-hooks.slack.com/services/T012", id="host with something before"),
        pytest.param("https://hooks.slack.com@evil.com/services/T012", id="host as a user"),
        pytest.param("https://hooks.slack.com:x@evil.com/services/T012", id="host as a user with a password"),
        pytest.param("https://user@hooks.slack.com/services/T012", id="user"),
        pytest.param("https://hooks.slack.com\\@evil.com/services/T012", id="backslash"),
        pytest.param("https:\\\\hooks.slack.com\\services\\T012", id="backslashes"),
        pytest.param("https://evil.com#https://hooks.slack.com/services/T012", id="fragment"),
        pytest.param(f"{SLACK}#x", id="fragment at the end"),
        pytest.param("https://evil.com?https://hooks.slack.com/services/T012", id="host as a query"),
        pytest.param("https://hooks.slack.com./services/T012", id="dot at the end of the host"),
        pytest.param("https://hooks.slack.com:/services/T012", id="empty port"),
        pytest.param("https://hooks.slack.com:99999/services/T012", id="port too large"),
        pytest.param("https://hooks.slack.com:0/services/T012", id="port nought"),
        pytest.param("https:///services/T012", id="no host"),
        pytest.param("https:hooks.slack.com/services/T012", id="no slashes"),
        pytest.param("//hooks.slack.com/services/T012", id="no scheme"),
        pytest.param("ftp://hooks.slack.com/services/T012", id="another scheme"),
        pytest.param("file:///services/T012", id="file"),
        pytest.param("javascript:alert(1)", id="script"),
        pytest.param(f" {SLACK}", id="blank before"),
        pytest.param(f"{SLACK} ", id="blank behind"),
        pytest.param(f"{SLACK}\n", id="line end"),
        pytest.param("https://hooks.slack.com/services/T012\r\nX: y", id="header"),
        pytest.param("https://hooks.slack\t.com/services/T012", id="tab in the host"),
        pytest.param("https://hooks.slack.com/\0services/T012", id="NUL"),
        pytest.param("https://hooks.sla\u0441k.com/services/T012", id="Cyrillic letter"),
        pytest.param("https://hooks\u3002slack.com/services/T012", id="ideographic full stop"),
        pytest.param("https://hooks.slack.com\uff0fservices/T012", id="fullwidth slash"),
        pytest.param("https://xn--hooks-slack.com/services/T012", id="punycode of something else"),
        pytest.param(f"{SLACK}/../T999", id="up"),
        pytest.param(f"{SLACK}/x/../../T999", id="down and up"),
        pytest.param(f"{SLACK}/./x", id="same folder"),
        pytest.param(f"{SLACK}/..", id="up at the end"),
        pytest.param(f"{SLACK}/x\\..\\..\\T999", id="up by backslashes"),
        pytest.param(f"{SLACK}/..;/T999", id="up with a parameter"),
        pytest.param(f"{SLACK}/%2e%2e/T999", id="up in disguise"),
        pytest.param(f"{SLACK}/%2E./T999", id="half in disguise"),
        pytest.param(f"{SLACK}/..%2fT999", id="slash in disguise"),
        pytest.param(f"{SLACK}/..%5cT999", id="backslash in disguise"),
        pytest.param(f"{SLACK}/%252e%252e/T999", id="in disguise twice"),
        pytest.param(f"{SLACK}/%00", id="NUL in disguise"),
        pytest.param(f"{SLACK}/%0d%0aX", id="line end in disguise"),
        pytest.param(f"{SLACK}/%zz", id="broken percent sign"),
        pytest.param(f"{SLACK}/%2", id="cut percent sign"),
        pytest.param("https://oapi.dingtalk.com/robot?token=abcd", id="longer query"),
        pytest.param("https://oapi.dingtalk.com/robot?token=abc&x=y", id="more query"),
        pytest.param("https://oapi.dingtalk.com/robot", id="no query"),
        pytest.param("https://oapi.dingtalk.com/robot/x?token=abc", id="the query elsewhere"),
        pytest.param("http://localhost:3001/", id="another port of this machine"),
        pytest.param("http://127.0.0.1:3000/", id="another name of this machine"),
        pytest.param("https://[::1", id="half an IPv6 address"),
        pytest.param("https://[1:2:3]/", id="no IPv6 address"),
        pytest.param(f"{SLACK}/{'x' * 3000}", id="long"),
        pytest.param("", id="empty"),
    ],
)
def test_every_other_address_is_refused_in_one_sentence(url: str) -> None:
    with pytest.raises(BadArgument) as caught:
        allow_webhook(url, PREFIXES)
    assert str(caught.value).startswith("webhook_url ")
    assert str(caught.value).isprintable()


def test_the_refusal_says_how_to_allow_it_and_shows_no_key() -> None:
    with pytest.raises(BadArgument) as caught:
        allow_webhook(f"https://ci.example.com:9/{HIDDEN}?key={HIDDEN}", ())
    assert str(caught.value) == (
        "webhook_url leads to https://ci.example.com:9, which is not allowed to receive events; the owner of this "
        'machine can allow it: webhooks = ["https://ci.example.com:9/"] under [notify] in config.toml'
    )
    assert allow_webhook("https://ci.example.com:9/x", ["https://ci.example.com:9/"])


@pytest.mark.parametrize(
    ("host", "here"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("[::1]", True),
        ("0.0.0.0", False),
        ("127.1", False),
        ("2130706433", False),
        ("0x7f000001", False),
        ("127.0.0.1.evil.com", False),
        ("localhost.evil.com", False),
    ],
)
def test_only_unambiguous_names_count_as_this_computer(host: str, here: bool) -> None:
    assert is_loopback(host) == here
    if here:
        assert read_address(f"http://{host}/").is_loopback
    else:
        with pytest.raises(ValueError, match="https://"):
            read_address(f"http://{host}/")


@given(
    st.text(string.printable + "é。／\u202e\ud800", max_size=40), st.sampled_from(["", SLACK, "https://", f"{SLACK}/"])
)
def test_whatever_is_allowed_stays_below_the_prefix(text: str, start: str) -> None:
    try:
        called = allow_webhook(start + text, [SLACK])
    except BadArgument:
        return
    assert called == SLACK or called.startswith((f"{SLACK}/", f"{SLACK}?"))
    assert str(read_address(called)) == called


# --- hooks -----------------------------------------------------------------------------------------------------------

HOOKS = {"codex": Hook(("codex", "exec", "go on")), "mail": Hook(("/opt/mail", "$HOME", "it's"))}


@pytest.mark.parametrize(
    ("wanted", "name"),
    [
        pytest.param("codex", "codex", id="name"),
        pytest.param("codex exec 'go on'", "codex", id="command line"),
        pytest.param('  codex "exec" go\\ on', "codex", id="the same in other quotes"),
        pytest.param("""/opt/mail '$HOME' "it's" """, "mail", id="signs of a shell in quotes"),
    ],
)
def test_a_hook_is_chosen_by_its_name_or_its_command(wanted: str, name: str) -> None:
    assert allow_hook(wanted, HOOKS) == name


@pytest.mark.parametrize(
    ("wanted", "line"),
    [
        pytest.param("claude", 'kind = "claude" under [hooks.claude]', id="a known agent"),
        pytest.param("other", 'command = ["/path/to/program"] under [hooks.other]', id="unknown name"),
        pytest.param("codex exec", 'command = ["codex", "exec"] under [hooks.NAME]', id="fewer words"),
        pytest.param("codex exec 'go on'; rm -rf ~", "[hooks.NAME]", id="more behind it"),
        pytest.param("codex exec 'go on", 'command = ["/path/to/program"] under [hooks.NAME]', id="open quote"),
        pytest.param("/opt/mail $HOME it's", "[hooks.NAME]", id="open quote of an apostrophe"),
        pytest.param("", "[hooks.NAME]", id="empty"),
        pytest.param("Codex", "[hooks.Codex]", id="case"),
        pytest.param("a\nb\x1b[0m", "[hooks.NAME]", id="control characters"),
        pytest.param("x" * 5000, "[hooks.NAME]", id="long"),
        pytest.param("\ud800", "[hooks.NAME]", id="half a surrogate pair"),
    ],
)
def test_any_other_program_is_refused_with_the_line_that_allows_it(wanted: str, line: str) -> None:
    with pytest.raises(BadArgument) as caught:
        allow_hook(wanted, HOOKS)
    assert line in str(caught.value)
    assert "(allowed are: codex, mail)" in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 6000


def test_no_hook_is_allowed_where_none_is_named() -> None:
    with pytest.raises(BadArgument, match=r'allow it: kind = "codex" under \[hooks.codex\] in config.toml'):
        allow_hook("codex", {})


def test_what_may_hold_keys_is_not_shown() -> None:
    notify = Notify(webhooks=(f"https://h/{HIDDEN}",), webhook_secret=Secret(HIDDEN), hooks={"a": Hook(("a", HIDDEN))})
    assert HIDDEN not in f"{notify!r}{notify}{read_address(f'https://h/{HIDDEN}?{HIDDEN}')!r}"


# Volumes


@pytest.mark.parametrize(
    "source",
    [
        pytest.param("remote-sandbox-cache", id="made for sandboxes"),
        pytest.param("datasets", id="a name"),
        pytest.param("/srv/data", id="a folder"),
        pytest.param("/srv/data/a//./b/", id="below it"),
    ],
)
def test_volumes_of_our_own_and_those_of_the_operator_are_allowed(source: str) -> None:
    assert allow_volume(source, ("datasets", "/srv/data")) == source


@pytest.mark.parametrize(
    "source",
    [
        pytest.param("postgres", id="of another program"),
        pytest.param("my-remote-sandbox-x", id="our word in the middle"),
        pytest.param("remote-sandbox", id="half of our word"),
        pytest.param("datasets2", id="beginning of a name"),
        pytest.param("/", id="everything"),
        pytest.param("/srv", id="above"),
        pytest.param("/srv/data2", id="beginning of a step"),
        pytest.param("/srv/data/../../etc", id="back up"),
        pytest.param("/datasets", id="a folder named as a volume"),
    ],
)
def test_other_volumes_are_refused_with_the_line_that_allows_them(source: str) -> None:
    with pytest.raises(BadArgument) as refusal:
        allow_volume(source, ("datasets", "/srv/data"))
    assert f'volumes = ["{source}"] under [opensandbox] in config.toml' in str(refusal.value)


# Ports


@pytest.mark.parametrize("port", [80, 3000, 3005, 3010])
def test_ports_of_the_operator_are_allowed(port: int) -> None:
    assert allow_local_port(port, ("80", "3000-3010")) == port


@pytest.mark.parametrize("port", [79, 81, 2999, 3011, 8080])
def test_other_ports_are_refused_with_the_line_that_allows_them(port: int) -> None:
    with pytest.raises(BadArgument, match=rf'forward_ports = \["{port}"\] under \[server\] in config.toml'):
        allow_local_port(port, ("80", "3000-3010"))
