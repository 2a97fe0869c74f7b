from __future__ import annotations

import ipaddress
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from remote_sandbox_mcp.cli.main import parser
from remote_sandbox_mcp.core.sandboxes.network import PACKAGE_INDEXES
from tests.support.doc_pages import PAGES, ROOT, blocks, heading_levels, prose, short, tables
from tests.support.doc_sentences import is_said, texts
from tests.support.sshd import wait_until

CHINESE = [page for page in PAGES if page.name.endswith(".zh-CN.md")]
# Services that an example cannot do without; all other names are reserved ones.
SERVICES = {*PACKAGE_INDEXES, "pythonhosted.org", "github.com", "docker.io", "proxy.golang.org", "api.telegram.org"}
TOP_LEVELS = "com|net|org|io|dev|edu|gov|cn|de|uk|ai|cloud|lab|corp|internal|lan"
RESERVED = re.compile(r"(?:.+\.)?example\.(?:com|org|net)|.+\.(?:example|test|invalid|localhost)")
DOCUMENTATION = [ipaddress.ip_network(each) for each in ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24")]
# Written elsewhere, or made of what is in the repository.


@pytest.mark.parametrize("page", CHINESE, ids=short)
def test_a_chinese_page_has_the_parts_of_the_english_one(page: Path) -> None:
    english = page.with_name(page.name.replace(".zh-CN", ""))
    assert heading_levels(page) == heading_levels(english)
    assert tables(page) == tables(english)
    assert blocks(page) == blocks(english)
    assert links(page) == links(english)
    assert quoted_errors(page) == quoted_errors(english)


def links(page: Path) -> list[str]:
    """Where a page leads, in whatever language, but for the same page in the other one."""
    found = {target.replace(".zh-CN", "") for target in re.findall(r"\]\(([^)#]+)", prose(page))}
    return sorted(found - {page.name.replace(".zh-CN", "")})


def quoted_errors(page: Path) -> list[str]:
    return re.findall(r"^\| `(.+?)` \|", page.read_text(encoding="utf-8"), re.M)


@pytest.mark.parametrize("page", PAGES, ids=short)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", prose(page)):
        if "://" not in target:
            place = (page.parent / target).resolve()
            assert place.exists(), target


@pytest.mark.parametrize("page", PAGES, ids=short)
def test_host_names_are_reserved_ones(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    names = set(re.findall(rf"\b(?:[a-z0-9-]+\.)+(?:{TOP_LEVELS})\b(?![\w/.-]*\.(?:md|py|sh)\b)", text))
    assert {name for name in names if name not in SERVICES and not RESERVED.fullmatch(name)} == set()


def test_the_hosts_that_agents_may_choose_are_documented() -> None:
    page = (ROOT / "docs/configuration.md").read_text(encoding="utf-8")
    rows = page.partition("### Hosts that an agent may choose")[2].partition("Entries are written")[0]
    assert set(re.findall(r"`([a-z.-]+\.[a-z]+)`", rows)) == {*PACKAGE_INDEXES}


@pytest.mark.parametrize("page", PAGES, ids=short)
def test_addresses_are_of_this_computer_or_for_documentation_or_name_a_network(page: Path) -> None:
    for word in re.findall(r"(?<![\d.])\d+\.\d+\.\d+\.\d+(?:/\d+)?(?![\d.])", page.read_text(encoding="utf-8")):
        if "/" not in word:
            address = ipaddress.ip_address(word)
            assert address.is_loopback or any(address in network for network in DOCUMENTATION), word


@pytest.mark.parametrize("page", PAGES, ids=short)
def test_nothing_is_installed_by_a_name_that_another_program_has(page: Path) -> None:
    text = " ".join(page.read_text(encoding="utf-8").split())
    assert not re.search(r"\b(uvx|install) remote-sandbox-mcp\b", text)


COMMANDS = sorted(
    {
        found.group(1)
        for page in PAGES
        for found in re.finditer(
            r"^(?:\$ |    )?(remote-sandbox-mcp(?: .+?)?)(?:  .*)?$", page.read_text("utf-8"), re.M
        )
    }
)


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_of_ours_is_one_that_is_understood(line: str) -> None:
    words = shlex.split(line, comments=True)
    # What follows is the shell's.
    until = next(
        (at for at, word in enumerate(words) if word in ("|", "||", "&&") or word.startswith((">", "2>"))), None
    )
    parser().parse_args(words[1:until])


TROUBLES = quoted_errors(ROOT / "docs/troubleshooting.md")


@pytest.fixture(scope="module")
def source() -> list[str]:
    return texts()


def test_there_are_troubles_to_look_up() -> None:
    assert len(TROUBLES) > 30
    assert len(set(TROUBLES)) == len(TROUBLES)


@pytest.mark.parametrize("quote", TROUBLES)
def test_words_of_an_error_are_those_of_the_program(quote: str, source: list[str]) -> None:
    # Some errors are put together of what was found and what to do.
    assert is_in(quote, source) or all(is_in(part, source) for part in quote.split("; ")), quote


def is_in(quote: str, source: list[str]) -> bool:
    return any(is_said(quote, text) for text in source)


def test_a_word_that_is_not_said_is_found_out() -> None:
    assert not is_said("unable to ...: fly", "unable to open gpu1: no")
    assert not is_said("b ... a", "a b")


def test_the_script_that_can_be_resumed_can_be_resumed(tmp_path: Path) -> None:
    (script,) = (block.text for block in blocks(ROOT / "docs/resume.md") if block.language == "python")
    file, out = tmp_path / "train.py", tmp_path / "runs/7"
    file.write_text(script)
    command = [sys.executable, "-u", str(file), "--out", str(out), "--steps", "40", "--pause"]
    for number, code in ((signal.SIGKILL, -signal.SIGKILL), (signal.SIGTERM, 143)):
        before = step(out)
        process = subprocess.Popen([*command, "0.05"], stdout=subprocess.DEVNULL)
        wait_until(lambda before=before: step(out) > before, what="a checkpoint")
        process.send_signal(number)
        assert process.wait(10) == code
        assert step(out) < 40
    done = subprocess.run([*command, "0"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"resumed from step {int(done.stdout.split()[3])}\n")
    assert done.stdout.endswith(f"done, total {sum(range(40))}\n")
    again = subprocess.run([*command, "0"], capture_output=True, text=True, check=True)
    assert again.stdout.count("\n") == 2


def step(out: Path) -> int:
    """What the file of progress says, which is there as a whole or not at all."""
    file = out / "progress.json"
    return int(json.loads(file.read_text())["step"]) if os.path.exists(file) else 0
