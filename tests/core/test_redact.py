"""What is kept of a call shows no secret that was given in a usual form, and stays readable."""

from __future__ import annotations

import json
import shlex
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote_sandbox_mcp.core.commands.command import Environment
from remote_sandbox_mcp.core.sandboxes.machine import Login, Machine
from remote_sandbox_mcp.core.sandboxes.secret import Secret, texts_in_use
from remote_sandbox_mcp.core.texts import redact
from remote_sandbox_mcp.core.texts.redact import (
    HIDDEN,
    end_safely,
    hide_in,
    is_secret_variable,
    shorten_safely,
    shown_arguments,
    without_secrets,
    without_tokens,
)
from remote_sandbox_mcp.core.texts.shown import shown, spellings, tokens_in


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
        ("redis-cli -h a -a abc ping", "redis-cli -h a -a [hidden] ping"),
        ("7z x -pabc a.7z && zip -P abc a b", "7z x -p[hidden] a.7z && zip -P [hidden] a b"),
        ("wandb login --relogin abc && ls", "wandb login --relogin [hidden] && ls"),
        ("vault login abc", "vault login [hidden]"),
        ("wandb.login(key='abc')", "wandb.login(key=[hidden])"),
        ("os.environ.setdefault('HF_TOKEN', 'abc')", "os.environ.setdefault('HF_TOKEN', [hidden])"),
        ("aws configure set aws_secret_access_key abc", "aws configure set aws_secret_access_key [hidden]"),
        ("conda token set abc", "conda token set [hidden]"),
        ("smbclient //a/b -U me%abc", "smbclient //a/b -U me%[hidden]"),
        ("ldapsearch -x -w abc -D b", "ldapsearch -x -w [hidden] -D b"),
        ("htpasswd -b file me abc", "htpasswd -b file me [hidden]"),
        ("kubectl create cm a --from-literal=b=abc", "kubectl create cm a --from-literal=b=[hidden]"),
        ("podman login --password-stdin <<EOF\nabc\nEOF\nls", "podman login --password-stdin <<EOF\n[hidden]EOF\nls"),
        ("cat > ~/.env <<'EOF'\nA=b\nEOF", "cat > ~/.env <<'EOF'\n[hidden]EOF"),
        ("echo abc > ~/.token", "echo [hidden]> ~/.token"),
        ("export TOKEN=$(cat <<EOF\nabc\nEOF\n) && ls", "export TOKEN=[hidden] && ls"),
        ("read -r TOKEN <<< abc", "read -r TOKEN <<< [hidden]"),
        ("print('make\\nredis-cli -a abc\\nls')", "print('make\\nredis-cli -a [hidden]\\nls')"),
        ("abc+/=\nabc=\n-----END PRIVATE KEY-----\nrest", "[hidden]\nrest"),
        ("use 0a1b2c3d4e5f60718293a4b5c6d7e8f901234567 now", "use [hidden] now"),
        ("use Zq7secretValue9Xw1 now", "use [hidden] now"),
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
        "python train.py --model Meta-Llama-3-8B-Instruct --run run-0123456789abcdef --at 20240131T120000Z",
        "mkdir -p a && cp -a b c && curl -k https://example.org > page.html",
        "from sklearn import set_config; hf_model_configuration_file = 'a'",
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
        "ya29." + "a1-" * 10,
        f"SG.{'aB1' * 7}.{'bC2' * 14}",
        "dop_v1_" + "a1" * 32,
        "npm_" + "a1" * 18,
        "pypi-AgEIcHlwaS5vcmc" + "a1" * 20,
        "sk_live_" + "a1" * 12,
        "hvs." + "aB1" * 10,
    ],
)
def test_keys_are_known_by_their_shape_wherever_they_are(key: str) -> None:
    for text in (key, f"run {key} now", f'"{key}"', f"a={key},b", f"https://example.org/?x={key}&y"):
        assert key not in without_secrets(text)
        assert key not in without_tokens(text)
        assert tokens_in(text)


def test_source_code_has_no_tokens() -> None:
    assert tokens_in("sk-learn-toggleable-content hf_model_configuration_file /opt/task-0123456789abcdef0123") == []


@pytest.mark.parametrize(
    ("name", "value", "is_secret"),
    [
        ("WANDB_API_KEY", "0123456789ab", True),
        ("DB_PASSWORD", "with spaces", True),
        ("DATABASE_URL", "postgres://me:abc@example.org/db", True),
        ("WHATEVER", "ghp_" + "a1" * 18, True),
        ("PASSWORD", "short", False),
        ("GOOGLE_APPLICATION_CREDENTIALS", "/home/me/key.json", False),
        ("SSH_AUTH_SOCK", "/tmp/agent.1", False),
        ("AUTH_HOST", "auth.example.org", False),
        ("PYTHONPATH", "/home/me/src", False),
        ("CUDA_HOME", "/usr/local/cuda", False),
        ("PROXY", "http://proxy.example.org:3128", False),
    ],
)
def test_a_variable_is_secret_by_its_name_or_by_what_it_holds(name: str, value: str, is_secret: bool) -> None:
    assert is_secret_variable(name, value) is is_secret


def test_secret_variables_are_hidden_as_long_as_their_sandbox_is_in_use() -> None:
    environment = Environment(env={"API_TOKEN": "open sesame!", "MODE": "production"})
    assert shown("production open sesame! open%20sesame%21") == "production [hidden] [hidden]"
    del environment
    assert shown("open sesame!") == "open sesame!"


@pytest.mark.parametrize("value", ["short12", "postgres", "student01", "gpu1.example.org"])
def test_what_may_be_an_ordinary_word_or_is_a_name_is_shown_although_it_is_a_password(value: str) -> None:
    machine = Machine("lab-machine", "gpu1.example.org", login=Login("student01", Secret(value)))
    assert shown(f"connected as {value} to {machine.name}") == f"connected as {value} to lab-machine"


@pytest.mark.parametrize("most", [50, 4000])
def test_the_end_of_a_text_shows_no_secret_in_part(most: int) -> None:
    for gap in range(most - 20, most + redact.SEAM + 60, 37):
        assert "Zq" not in end_safely(f"{'x ' * 20_000} ghp_{'Zq' * 18}{' y' * (gap // 2)}", most=most)


def test_values_of_json_are_kept_without_secrets() -> None:
    value = {"api_key": "abc", "steps": [1, {"cmd": "x --token abc"}], "empty_token": "", "token_count": 7}
    hidden = {"api_key": HIDDEN, "steps": [1, {"cmd": f"x --token {HIDDEN}"}], "empty_token": "", "token_count": 7}
    assert hide_in(value) == hidden


def test_of_an_argument_that_a_tool_does_not_have_only_the_size_is_kept() -> None:
    given = {"path": "a", "contents": "abc", "lines": ["abc"], "flag": True}
    kept = {"path": "a", "contents": "(3 characters)", "lines": "(7 characters)", "flag": True}
    assert shown_arguments(given, takes=("path",)) == kept


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
    "part",
    [
        *("token=", "--password ", "https://a:", "echo | sudo -S ", "login a password ", "'", "\\", "\\n", "$("),
        *(
            "sk-",
            "eyJ.",
            "echo >token ",
            "kinit <<EOF ",
            "set token ",
            "redis-cli -a ",
            "login('",
            "a1",
            "A\n",
            "-u a:",
        ),
        "a=\n-----END PRIVATE KEY-----\n-----BEGIN PRIVATE KEY-----\n",
    ],
)
def test_a_repetitive_text_is_read_in_linear_time(part: str) -> None:
    assert shorten_safely(part * 200_000)
    end_safely(part * 200_000)
    without_tokens(part * 50_000)
    tokens_in(part * 50_000)
