"""What is kept of a call shows no secret that was given in a usual form, and stays readable."""

from __future__ import annotations

import json
import shlex
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote_sandbox_mcp.core import redact
from remote_sandbox_mcp.core.redact import HIDDEN, shorten_safely, shown_arguments, without_secrets
from remote_sandbox_mcp.core.secret import Secret, texts_in_use
from remote_sandbox_mcp.core.shown import spellings


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("export TOKEN=abc && run me", "export TOKEN=[hidden] && run me"),
        ("bash -c 'export TOKEN=abc && run me'", "bash -c 'export TOKEN=[hidden] && run me'"),
        ('docker run -e "TOKEN=abc" image x', 'docker run -e "TOKEN=[hidden]" image x'),
        ("x --password y --api-key=z -t", "x --password [hidden] --api-key=[hidden] -t"),
        ("x --password \\\n  y z", "x --password \\\n  [hidden] z"),
        ('["--token","abc"]', '["--token",[hidden]]'),
        ('curl -H "Authorization: Bearer abc" https://a/x', 'curl -H "Authorization: Bearer [hidden]" https://a/x'),
        ("curl -H 'X-Api-Key: abc def' https://a/x", "curl -H 'X-Api-Key: [hidden]' https://a/x"),
        ("curl -u me:abc https://a/x", "curl -u me:[hidden] https://a/x"),
        ("git clone https://me:a/b@example.org/c.git", "git clone https://[hidden]@example.org/c.git"),
        ("psql postgres://me:abc@example.org/db", "psql postgres://me:[hidden]@example.org/db"),
        ("echo 'a|b' | sudo -S ls", "echo [hidden]| sudo -S ls"),
        ("sudo -kS ls <<< 'a b' && ls", "sudo -kS ls <<< [hidden] && ls"),
        ("echo abc | podman login --password-stdin a", "echo [hidden]| podman login --password-stdin a"),
        ("sshpass -p abc ssh a", "sshpass -p [hidden] ssh a"),
        ("mysql -pabc -u me db", "mysql -p[hidden] -u me db"),
        ("openssl enc -pass pass:abc -in x", "openssl enc -pass [hidden] -in x"),
        ("machine a login b password abc", "machine a login b password [hidden]"),
        ('{"password": "a\\"b", "user": "me"}', '{"password": [hidden], "user": "me"}'),
        ('{\\"password\\": \\"a b\\"} x', '{\\"password\\": [hidden]} x'),
        ("passphrase: correct horse\nuser: me", "passphrase: [hidden]\nuser: me"),
        ("os.environ['API_TOKEN'] = 'abc'", "os.environ['API_TOKEN'] = [hidden]"),
        ("a -----BEGIN OPENSSH PRIVATE KEY-----\nabc\n-----END OPENSSH PRIVATE KEY----- b", "a [hidden] b"),
        ("a -----BEGIN RSA PRIVATE KEY-----\nabc", "a [hidden]"),
        ("post https://hooks.slack.com/services/T0/B0/abc", "post https://hooks.slack.com/[hidden]"),
    ],
)  # fmt: skip
def test_secrets_in_their_usual_places_are_hidden(text: str, shown: str) -> None:
    assert without_secrets(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "python train.py --tokenizer=gpt2 --max-tokens 512 --lr 1e-3",
        "python -c 'print(sorted(x, key=len))'",
        "docker run -u 1000:1000 -p 80:80 -v $PWD:/work image",
        "x --password-file /run/secret.txt -v",
        "unable to open gpu1: the host key has changed since it was first seen",
        "cp gpu1:/data http://a:8080/x@y https://registry.example.org/@scope/package",
        "exit 0 after 1.2 s",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert without_secrets(text) == text


@pytest.mark.parametrize(
    "key",
    [
        "AKIAIOSFODNN7EXAMPLE",
        "ghp_" + "a1" * 18,
        "github_pat_" + "a1" * 20,
        "glpat-" + "a1" * 10,
        "sk-proj-" + "a1_" * 10,
        "sk-ant-api03-" + "a1-" * 10,
        "hf_" + "aB" * 17,
        "xoxb-123456789-abcdef",
        "AIza" + "a1" * 18,
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
    ],
)
def test_keys_are_known_by_their_shape_wherever_they_are(key: str) -> None:
    for text in (key, f"run {key} now", f'"{key}"', f"a={key},b", f"https://example.org/?x={key}&y"):
        assert key not in without_secrets(text)


FORMS = [
    lambda secret: f"export API_TOKEN={shlex.quote(secret)} && make",
    lambda secret: f"DB_PASSWORD={shlex.quote(secret)} make -j4",
    lambda secret: f"login --password {shlex.quote(secret)} me",
    lambda secret: f"login --secret-key={shlex.quote(secret)} me",
    lambda secret: f"sshpass -p {shlex.quote(secret)} ssh a",
    lambda secret: f"curl -H {shlex.quote(f'Authorization: {secret}')} https://a",
    lambda secret: f"curl -u {shlex.quote(f'me:{secret}')} https://a",
    lambda secret: f"git clone https://me:{quote(secret, safe='')}@example.org/a",
    lambda secret: f"echo {shlex.quote(secret)} | sudo -S ls",
    lambda secret: json.dumps({"user": "me", "password": secret, "more": 1}),
    lambda secret: json.dumps(json.dumps({"api_key": secret})),
    lambda secret: f"[main]\npassword = {secret}\nuser = me",
    lambda secret: f"passphrase: {secret}\nuser: me",
]
# Long enough that it is not in the rest of the text by chance. An option's value does not begin with a dash.
SECRETS = st.text(st.sampled_from("aZ09 _.-+/=:;&|!@#%^*()[]{}<>?,~$'\"`\\é"), min_size=0, max_size=12).map(
    lambda text: f"Q7{text}7Q"
)
AROUND = st.text(st.sampled_from("ab -=:/.\n"), max_size=12)


@pytest.mark.parametrize("form", FORMS)
@given(secret=SECRETS, before=AROUND, after=AROUND)
def test_no_secret_in_a_known_form_appears(form: object, secret: str, before: str, after: str) -> None:
    shown = without_secrets(f"{before} {form(secret)} {after}")  # type: ignore[operator]
    assert "Q7" not in shown
    assert "7Q" not in shown


@given(secret=SECRETS.filter(lambda text: len(text) >= 8), before=AROUND, after=AROUND)
def test_a_configured_secret_appears_in_no_spelling(secret: str, before: str, after: str) -> None:
    known = sorted(spellings(secret), key=len, reverse=True)
    for written in (secret, shlex.quote(secret), json.dumps(secret), quote(secret, safe="")):
        assert secret not in without_secrets(f"{before}{written}{after}", known)
        assert "Q7" not in without_secrets(f"{before}{written}{after}", known)


def test_a_short_configured_secret_is_hidden_as_a_word_only() -> None:
    assert without_secrets("pytest -k test x-test", ["test"]) == "pytest -k [hidden] x-[hidden]"


def test_secrets_in_use_are_known_without_being_fetched() -> None:
    fetched: list[str] = []
    plain, later = Secret("correct horse"), Secret.later(lambda: fetched.append("x") or "battery", "env:X")
    assert "correct horse" in texts_in_use()
    assert (fetched, "battery" in texts_in_use()) == ([], False)
    assert later.reveal() in texts_in_use()
    del plain
    assert "correct horse" not in texts_in_use()


@pytest.mark.parametrize("gap", range(redact.MOST_READ - 60, redact.MOST_READ + 10, 7))
def test_a_secret_at_the_end_of_what_is_read_is_not_shown_in_part(gap: int) -> None:
    # What is hidden before it makes the text short, so that its end comes into sight.
    text = f"-----BEGIN PRIVATE KEY-----{'x' * (gap - 80)}-----END PRIVATE KEY----- ghp_{'Zq' * 18} rest"
    assert "Zq" not in shorten_safely(text)


def test_arguments_are_kept_without_secrets_and_contents_and_short() -> None:
    files = [{"path": "a", "content": "c2VjcmV0"}, {"path": "b", "text": "secret"}]
    shown = shown_arguments(
        {
            "command": "deploy --token abc",
            "content": "secret",
            "env": {"A": "secret"},
            "api_key": "secret",
            "webhook_url": "https://example.org/secret",
            "files": files,
            "timeout_s": 5,
            "delete": True,
        }
    )
    assert shown == {
        "command": f"deploy --token {HIDDEN}",
        "content": "(6 characters)",
        "env": {"A": HIDDEN},
        "api_key": HIDDEN,
        "webhook_url": HIDDEN,
        "files": [{"path": "a", "content": "(8 characters)"}, {"path": "b", "text": "(6 characters)"}],
        "timeout_s": 5,
        "delete": True,
    }
    assert len(json.dumps(shown_arguments({f"a{number}": "x" * 9000 for number in range(90)}))) < 5000
    assert len(json.dumps(shown_arguments({"a": [[[[[["x"]]]]]] * 900}))) < 5000
    assert shown_arguments({"command": "x" * 100_000})["command"] == "x" * 1000 + "…"


@pytest.mark.parametrize(
    "part", ["token=", "--password ", "https://a:", "echo | sudo -S ", "login a password ", "'", "\\"]
)
def test_a_repetitive_text_is_read_in_linear_time(part: str) -> None:
    assert shorten_safely(part * 200_000)
