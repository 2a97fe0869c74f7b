"""What hosts ask during a login, and which of it is answered: hosts that lie, and hosts that never stop asking."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from remote_sandbox_mcp.backends.ssh import dialogue
from remote_sandbox_mcp.backends.ssh.connection import LoginGate
from remote_sandbox_mcp.backends.ssh.dialogue import Codes
from remote_sandbox_mcp.core.errors import CODE_NEEDED, ConfigError, LoginRefused, Unreachable
from remote_sandbox_mcp.core.sandboxes.login import MOST_PROMPTS, MOST_ROUNDS, Challenge
from remote_sandbox_mcp.core.sandboxes.machine import Login, Machine
from remote_sandbox_mcp.core.sandboxes.secret import Secret
from remote_sandbox_mcp.local.asking import Answers, NoAnswer, Question, Questions, asking
from tests.support.sshd import HOST

Round = Sequence[tuple[str, bool]]
SEED = "JBSWY3DPEHPK3PXP"


class Host(asyncssh.SSHServer):
    """Asks one round after another, and lets in who has answered all of them as it wants."""

    def __init__(self, rounds: Callable[[int], Round | None], wanted: Any = None) -> None:
        self._rounds = rounds
        self._wanted = wanted
        self.heard: list[list[str]] = []
        self.connections: list[asyncssh.SSHServerConnection] = []

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self.connections.append(conn)

    def kbdint_auth_supported(self) -> bool:
        return True

    def get_kbdint_challenge(self, username: str, lang: str, submethods: str) -> Any:
        return self._challenge()

    def validate_kbdint_response(self, username: str, responses: Sequence[str]) -> Any:
        self.heard.append(list(responses))
        following = self._challenge()
        return following or (self._wanted is None or self.heard == self._wanted)

    def _challenge(self) -> Any:
        asked = self._rounds(len(self.heard))
        return None if asked is None else ("", "Welcome", "", list(asked))


@asynccontextmanager
async def listening(host: Host) -> AsyncIterator[int]:
    key = asyncssh.generate_private_key("ssh-ed25519")
    server = await asyncssh.listen(HOST, 0, server_factory=lambda: host, server_host_keys=[key])
    try:
        yield server.get_port()
    finally:
        server.close()
        await server.wait_closed()


def gate_to(port: int, tmp_path: Path, questions: Questions | None = None, **login: Any) -> LoginGate:
    machine = Machine("site", HOST, port, Login("alice", **login), known_hosts_files=(str(tmp_path / "none"),))
    return LoginGate(machine, tmp_path / "known_hosts", questions)


class Person:
    """Answers forms, or a terminal, from a list."""

    def __init__(self, *answers: Answers | str, is_terminal: bool = False) -> None:
        self.is_terminal = is_terminal
        self._answers = list(answers)
        self.asked: list[Question] = []

    def takes(self, challenge: Challenge) -> bool:
        return self.is_terminal or not challenge.wants_password

    async def __call__(self, question: Question) -> Answers:
        self.asked.append(question)
        answer = self._answers.pop(0)
        if isinstance(answer, str):
            raise NoAnswer(answer)
        return answer


async def enter(gate: LoginGate, person: Person | None = None) -> None:
    """Log in as a call does that waits with this person."""
    asking.set(person)
    opening = asyncio.ensure_future(gate.enter())
    (await gate.questions.attend(opening)).abort()


def always(*prompts: str) -> Callable[[int], Round]:
    return lambda _: [(prompt, False) for prompt in prompts]


def once(*rounds: Sequence[str]) -> Callable[[int], Round | None]:
    return lambda at: [(prompt, False) for prompt in rounds[at]] if at < len(rounds) else None


async def test_password_and_code_are_distinguished_in_one_round_and_in_several(tmp_path: Path) -> None:
    host = Host(once(["Password:", "Verification code:"], [], ["Duo passcode or option (1-2):"]))
    async with listening(host) as port:
        person = Person(("2",))
        gate = gate_to(port, tmp_path, password=Secret("pw"), otp=Secret.later(lambda: "123456", "command:x"))
        await enter(gate, person)
    assert host.heard == [["pw", "123456"], [], ["2"]]
    (question,) = person.asked
    assert question.challenge.prompts[0].text == "Duo passcode or option (1-2):"
    assert gate.asks_for_code


async def test_password_and_code_may_be_wanted_as_one_answer(tmp_path: Path) -> None:
    host = Host(once(["Password & verification code:"]))
    async with listening(host) as port:
        await enter(gate_to(port, tmp_path, password=Secret("pw"), otp_seed=Secret(SEED)))
    ((answer,),) = host.heard
    assert answer.startswith("pw")
    assert len(answer) == 8


@pytest.mark.parametrize(
    ("rounds", "most"),
    [(always(*["Code:"] * 1000), 0), (always("Code:"), MOST_ROUNDS), (always(), MOST_ROUNDS)],
    ids=["a thousand at once", "without end", "nothing without end"],
)
async def test_a_host_that_asks_without_end_is_left(tmp_path: Path, rounds: Any, most: int) -> None:
    host = Host(rounds)
    async with listening(host) as port:
        person = Person(*[("1",)] * (MOST_ROUNDS + 1))
        with pytest.raises(LoginRefused, match="more than any login needs"):
            await enter(gate_to(port, tmp_path), person)
    assert len(host.heard) == most
    assert MOST_PROMPTS < 1000


async def test_another_password_is_asked_for_in_no_form_and_is_not_guessed(tmp_path: Path) -> None:
    host = Host(once(["Verification code:"], ["Your laptop's password:"]))
    async with listening(host) as port:
        person = Person(("123456",), ("mine",))
        with pytest.raises(LoginRefused, match="laptop's password"):
            await enter(gate_to(port, tmp_path), person)
        assert host.heard == [["123456"]]
        assert len(person.asked) == 1


async def test_a_refused_key_is_reported_where_a_password_would_do(tmp_path: Path) -> None:
    host = Host(once(["Password:"]))
    async with listening(host) as port:
        person = Person(("mine",))
        with pytest.raises(LoginRefused, match="check user, key and password") as problem:
            await enter(gate_to(port, tmp_path), person)
    assert problem.value.reason != CODE_NEEDED
    assert not person.asked


async def test_a_terminal_may_be_asked_for_a_password(tmp_path: Path) -> None:
    host = Host(once(["Password:"]))
    async with listening(host) as port:
        await enter(gate_to(port, tmp_path), Person(("secret",), is_terminal=True))
    assert host.heard == [["secret"]]


async def test_the_password_is_given_once(tmp_path: Path) -> None:
    host = Host(once(["Password:"], ["New password:"], ["Password:"]))
    async with listening(host) as port:
        with pytest.raises(LoginRefused):
            await enter(gate_to(port, tmp_path, password=Secret("pw")))
    assert host.heard == [["pw"]]


async def test_without_a_person_to_ask_the_host_is_not_tried_again(tmp_path: Path) -> None:
    host = Host(once(["Verification code:"]))
    async with listening(host) as port:
        gate = gate_to(port, tmp_path)
        for _ in range(3):
            with pytest.raises(LoginRefused, match="it asks “Verification code:”") as problem:
                await enter(gate)
            assert problem.value.reason == CODE_NEEDED
        assert len(host.connections) == 1
        await enter(gate, Person(("123456",)))
    assert host.heard == [["123456"]]


async def test_a_declined_question_is_reported_and_nothing_is_sent(tmp_path: Path) -> None:
    host = Host(once(["Verification code:"]))
    async with listening(host) as port:
        with pytest.raises(LoginRefused, match="the form was declined"):
            await enter(gate_to(port, tmp_path), Person("the form was declined"))
    assert not host.heard


async def test_callers_that_wait_for_one_login_share_one_question(tmp_path: Path) -> None:
    host = Host(once(["Verification code:"]))
    async with listening(host) as port:
        gate = gate_to(port, tmp_path)
        opening = asyncio.ensure_future(gate.enter())
        people = [Person(("123456",)) for _ in range(3)]

        async def wait(person: Person) -> object:
            asking.set(person)
            return await gate.questions.attend(opening)

        gate.questions.is_awaited = True
        found = await asyncio.gather(*(asyncio.ensure_future(wait(person)) for person in people))
        assert len(set(found)) == 1
        opening.result().abort()
    assert sum(len(person.asked) for person in people) == 1
    assert host.heard == [["123456"]]


async def test_a_caller_that_goes_leaves_the_question_to_another(tmp_path: Path) -> None:
    host = Host(once(["Verification code:"]))
    silent = asyncio.Event()

    class Silent(Person):
        async def __call__(self, question: Question) -> Answers:
            silent.set()
            await asyncio.Event().wait()
            raise AssertionError

    async with listening(host) as port:
        gate = gate_to(port, tmp_path)
        gate.questions.is_awaited = True
        opening = asyncio.ensure_future(gate.enter())

        async def wait(person: Person) -> Any:
            asking.set(person)
            return await gate.questions.attend(opening)

        first = asyncio.ensure_future(wait(Silent()))
        await silent.wait()
        second = asyncio.ensure_future(wait(Person(("123456",))))
        await asyncio.sleep(0)
        first.cancel()
        (await second).abort()
    assert host.heard == [["123456"]]


async def test_a_cut_after_a_code_makes_no_second_attempt(tmp_path: Path) -> None:
    host = Host(once(["Verification code:"], ["Another code:"]))

    def cut(at: int) -> Round | None:
        if at:
            host.connections[-1].abort()
        return [("Verification code:", False)]

    host._rounds = cut
    async with listening(host) as port:
        with pytest.raises(Unreachable):
            await enter(gate_to(port, tmp_path, otp=Secret.later(lambda: "123456", "command:x")))
    assert len(host.connections) == 1
    assert host.heard == [["123456"]]


async def test_no_process_gives_a_code_that_another_has_given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A further login with the same seed gets the code of the next time step."""
    paused: list[float] = []

    async def pause(seconds: float) -> None:
        paused.append(seconds)

    monkeypatch.setattr(dialogue.asyncio, "sleep", pause)
    monkeypatch.setattr(dialogue.time, "time", lambda: 1_000_000_000.0)
    by_seed, file = Login(otp_seed=Secret(SEED)), tmp_path / "used"
    codes = [await Codes(file, "site").next(by_seed) for _ in range(3)]
    assert len(set(codes)) == 3
    assert paused == [0, 20.5, 50.5]
    assert not any(code in file.read_text() for code in (*codes, SEED))
    await Codes(file, "site").next(by_seed)
    with pytest.raises(ConfigError, match="too many logins"):
        await Codes(file, "site").next(by_seed)
    source = Secret.later(lambda: "111111", "command:same")
    assert await Codes(file, "site").next(Login(otp=source)) == "111111"
    with pytest.raises(ConfigError, match="used before"):
        await Codes(file, "site").next(Login(otp=source))


@pytest.mark.parametrize("content", ["", "null", "nonsense", '{"a": "b"}', "[" * 100_000])
async def test_a_damaged_file_of_used_codes_is_ignored(tmp_path: Path, content: str) -> None:
    (tmp_path / "used").write_text(content)
    assert len(await Codes(tmp_path / "used", "a").next(Login(otp_seed=Secret(SEED)))) == 6
    assert len(await Codes(tmp_path / "no" / "folder", "a").next(Login(otp_seed=Secret(SEED)))) == 6
