"""What machines ask during a login, and codes that a clock and a seed give."""

from __future__ import annotations

import base64

import pytest

from remote_sandbox_mcp.core.sandboxes.login import LONGEST_PROMPT, Kind, Prompt, challenge
from remote_sandbox_mcp.core.sandboxes.totp import Totp, read_seed


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Password:", Kind.PASSWORD),
        ("(alice@login1) Password: ", Kind.PASSWORD),
        ("Enter your laptop's password:", Kind.PASSWORD),
        ("密码：", Kind.PASSWORD),
        ("Passphrase for the vault:", Kind.PASSWORD),
        ("Verification code: ", Kind.CODE),
        ("One-time password (OATH) for `alice':", Kind.CODE),
        ("Passcode or option (1-3): ", Kind.CODE),
        ("Enter PASSCODE:", Kind.CODE),
        ("Press enter", Kind.CODE),
        ("", Kind.CODE),
        ("Password & verification code:", Kind.BOTH),
    ],
)
def test_a_prompt_says_what_it_wants(text: str, kind: Kind) -> None:
    assert Prompt(text).kind is kind


@pytest.mark.parametrize(
    ("sent", "shown"),
    [
        ("\x1b]0;title\x07\x1b[2JCode:\r\n", "Code:"),
        ("Code\u202e:", "Code\\u202e:"),
        ("a\x00b\tc\nd", "a␀b c d"),
        ("x" * 1_000_000, "x" * (LONGEST_PROMPT - 1) + "…"),
    ],
    ids=["escapes", "bidirectional", "controls", "long"],
)
def test_a_machines_words_are_made_harmless(sent: str, shown: str) -> None:
    asked = challenge("a", "a.example.org", [sent], [(sent, True)])
    assert asked.prompts[0].text == shown
    assert "\x1b" not in asked.note
    assert "\n" not in asked.note


@pytest.mark.parametrize(
    ("algorithm", "length", "code"), [("SHA1", 20, "14050471"), ("SHA256", 32, "67062674"), ("SHA512", 64, "99943326")]
)
def test_codes_are_those_of_the_standard(algorithm: str, length: int, code: str) -> None:
    """The table of RFC 6238, at 1111111111 s."""
    key = (b"1234567890" * 7)[:length]
    address = f"otpauth://totp/a:b?secret={base64.b32encode(key).decode()}&digits=8&algorithm={algorithm}"
    totp = read_seed(address)
    assert totp.code(1_111_111_111 // totp.period_s) == code


def test_a_seed_may_be_written_as_people_write_it() -> None:
    assert read_seed(" jbsw y3dp-ehpk 3pxp \n") == Totp(base64.b32decode("JBSWY3DPEHPK3PXP"))


@pytest.mark.parametrize(
    "seed",
    [
        "",
        "not base32!",
        "otpauth://hotp/a?secret=JBSWY3DPEHPK3PXP",
        "otpauth://totp/a",
        "otpauth://totp/a?secret=JBSWY3DPEHPK3PXP&digits=99",
        "otpauth://totp/a?secret=JBSWY3DPEHPK3PXP&period=0",
        "otpauth://totp/a?secret=JBSWY3DPEHPK3PXP&algorithm=MD5",
    ],
)
def test_a_bad_seed_is_refused_without_being_shown(seed: str) -> None:
    with pytest.raises(ValueError, match=r"^it") as problem:
        read_seed(seed)
    assert "JBSWY" not in str(problem.value)
