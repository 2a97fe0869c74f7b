"""What a real shell, real processes and a real file system add."""

from __future__ import annotations

import asyncio
import posixpath
import secrets
from collections.abc import AsyncIterator, Awaitable, Sequence

import pytest

from remote_sandbox_mcp.core.commands.command import Command, Completed, Ending, Environment, Missing, Observation
from remote_sandbox_mcp.core.commands.shell import quote
from remote_sandbox_mcp.core.errors import BadArgument, FileProblem, NotStarted
from remote_sandbox_mcp.core.sandboxes.files import Search, Span
from remote_sandbox_mcp.core.sandboxes.sandbox import Sandbox
from tests.support.pace import at_most
from tests.support.waiting import eventually

from .basics import (
    HOSTILE_NAMES,
    Basics,
    Opener,
    begin,
    cancel,
    finish,
    in_background,
    is_alive,
    is_dead,
    prepare,
    read_pid,
    refusal,
    said,
    table,
)

SCRIPTS = {
    "quotes": ("""echo "a'b" 'c"d' `echo e`""", b"a'b c\"d e\n"),
    "dollars": ("x=1; echo $x '$x' $((x + 1)) !x", b"1 $x 2 !x\n"),
    "backslashes": (r"printf '%s\n' 'a\nb' a\\b", b"a\\nb\na\\b\n"),
    "lines": ("if true\nthen\n  echo yes\nfi\n# end", b"yes\n"),
    "here document": ("cat <<'END'\n$x `y`\nEND", b"$x `y`\n"),
    "not utf-8": ("printf '\udcff\\n'", b"\xff\n"),
    "unicode": ("echo 日本語", "日本語\n".encode()),
    "leading dash": ("-x 2>/dev/null; echo after", b"after\n"),
    "empty": ("", b""),
    "comment": ("# nothing", b""),
}
FOLDERS = {
    "relative": "{relative}/a",
    "home": "~/{relative}/a",
    "absolute": "{folder}/a",
    "up": "{folder}/a/../a/.",
    "trailing slash": "{folder}/a/",
}
TREE_SCRIPT = """
trap '' TERM
stay='trap "" TERM; echo $$ > "$0.new"; mv "$0.new" "$0"; while :; do sleep 0.1; done'
sh -c "$stay" child &
setsid sh -c "$stay" session &
sh -c '(setsid sh -c "$0" daemon &) &' "$stay"
while :; do sleep 0.1; done
"""


async def stream_of(parts: Sequence[bytes]) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


async def outcome(run: Awaitable[object]) -> object:
    """What a run returns, or its refusal."""
    try:
        return await run
    except NotStarted as refusal:
        return refusal


class ShellContract(Basics):
    """What a real shell, real processes and a real file system add."""

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    async def stubborn(cls, sandbox: Sandbox) -> AsyncIterator[asyncio.Task[Completed]]:
        script = "trap '' TERM; echo up; while :; do sleep 0.1; done"
        # Beside other work a shell may need a second before it can refuse to be ended.
        async with in_background(finish(sandbox, script, timeout_s=2)) as task:
            yield task

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    async def felled(cls, sandbox: Sandbox, home: str) -> AsyncIterator[asyncio.Task[tuple[Observation, set[str]]]]:
        async with in_background(cls._fell(sandbox, f"{home}/tree-{secrets.token_hex(4)}")) as task:
            yield task

    @classmethod
    async def _fell(cls, sandbox: Sandbox, folder: str) -> tuple[Observation, set[str]]:
        """Stop a tree that will not go; what became of it, and who lives on."""
        await prepare(sandbox, folder)
        running = await begin(sandbox, TREE_SCRIPT, cwd=folder)
        pids = {name: await read_pid(sandbox, f"{folder}/{name}") for name in ("child", "session", "daemon")}
        seen = await sandbox.stop(running.run_id)
        alive = {name for name, pid in pids.items() if await is_alive(sandbox, pid)}
        await finish(sandbox, f"kill -9 {' '.join(map(str, pids.values()))}")
        return seen, alive

    # How commands start

    @pytest.mark.parametrize(("script", "expected"), **table(SCRIPTS))
    @pytest.mark.line
    async def test_a_script_arrives_as_it_is(self, sandbox: Sandbox, script: str, expected: bytes) -> None:
        done = await finish(sandbox, script)
        assert (done.stdout.head, done.exit_code) == (expected, 0)

    @pytest.mark.line
    async def test_a_script_of_a_megabyte_runs(self, sandbox: Sandbox) -> None:
        script = "x=0\n" + "x=$((x + 1)) # and a comment that makes it long enough, then some more\n" * 15_000
        done = await finish(sandbox, f"{script}echo $x; exit 7")
        assert (done.stdout.head, done.stderr.head, done.exit_code) == (b"15000\n", b"", 7)

    async def test_a_broken_script_is_the_shells_complaint(self, sandbox: Sandbox) -> None:
        done = await finish(sandbox, "if then")
        assert done.exit_code != 0
        assert done.stderr.head

    @pytest.mark.line
    async def test_standard_input_is_empty(self, sandbox: Sandbox) -> None:
        assert await said(sandbox, "cat; read x; echo $?; cat | wc -c", timeout_s=10) == b"1\n0\n"

    @pytest.mark.parametrize(
        "data", [b"x\n", bytes(range(256)), b"0123456789abcdef" * 20_000], ids=["line", "bytes", "large"]
    )
    @pytest.mark.line
    async def test_standard_input_arrives_as_it_is(self, sandbox: Sandbox, data: bytes) -> None:
        assert await said(sandbox, "cat", input=data, keep=400_000) == data

    @pytest.mark.line
    async def test_a_stream_of_input_arrives_whole_and_ends(self, sandbox: Sandbox) -> None:
        parts = [b"", b"first\n", bytes(range(256)) * 4000, b"\0last"]
        expected = b"".join(parts)
        assert await said(sandbox, "cat; exit 0", input=stream_of(parts), keep=2_000_000) == expected

    @pytest.mark.line
    async def test_a_command_may_leave_input_unread(self, sandbox: Sandbox) -> None:
        done = await finish(sandbox, "head -c 3; exit 6", input=stream_of([b"abc", *[b"x" * 65536] * 20]))
        assert (done.stdout.head, done.exit_code) == (b"abc", 6)

    async def test_two_at_once_have_their_own_input(self, sandbox: Sandbox) -> None:
        both = (said(sandbox, "cat", input=text) for text in (b"one", b"two"))
        assert await asyncio.gather(*both) == [b"one", b"two"]

    @pytest.mark.parametrize("cwd", ["", "~", "."])
    async def test_commands_start_at_home(self, sandbox: Sandbox, home: str, cwd: str) -> None:
        assert await said(sandbox, "pwd -P; cd; pwd -P", cwd=cwd) == f"{home}\n{home}\n".encode()

    @pytest.mark.parametrize("cwd", **table(FOLDERS))
    @pytest.mark.line
    async def test_commands_start_where_asked(self, sandbox: Sandbox, home: str, folder: str, cwd: str) -> None:
        await prepare(sandbox, f"{folder}/a")
        where = cwd.format(folder=folder, relative=posixpath.relpath(folder, home))
        assert await said(sandbox, "pwd -P", cwd=where) == f"{folder}/a\n".encode()

    @pytest.mark.parametrize("name", **table(HOSTILE_NAMES))
    async def test_commands_start_in_any_folder(self, sandbox: Sandbox, folder: str, name: str) -> None:
        await prepare(sandbox, f"{folder}/{name}")
        expected = f"{folder}/{name}\n".encode("utf-8", "surrogateescape")
        assert await said(sandbox, "pwd -P", cwd=f"{folder}/{name}") == expected

    @pytest.mark.parametrize("name", ["none", "file", "closed", "none/../a"])
    async def test_nothing_runs_where_the_folder_cannot_be_entered(
        self, sandbox: Sandbox, folder: str, name: str
    ) -> None:
        await prepare(sandbox, folder, "touch file; mkdir -m 0 closed")
        command = Command(f"touch {quote(folder)}/ran", cwd=f"{folder}/{name}")
        with pytest.raises(NotStarted, match=name):
            await sandbox.run(command)
        assert f"{folder}/ran" not in [entry.path for entry in (await sandbox.list(folder)).entries]
        assert isinstance(await sandbox.observe(command.run_id), Missing)

    @pytest.mark.line
    async def test_a_command_has_variables_of_its_own(self, opener: Opener) -> None:
        sandbox = await opener(Environment(env={"KEPT": "1", "OURS": "2"}))
        given = {"OURS": "it's\n $(so)", "MORE": "日本語", "EMPTY": ""}
        shown = 'printf \'%s|\' "$KEPT" "$OURS" "$MORE" "${EMPTY-unset}"'
        assert await said(sandbox, shown, env=given) == "1|it's\n $(so)|日本語||".encode()
        assert await said(sandbox, shown) == b"1|2||unset|"
        await sandbox.close()

    async def test_a_command_of_another_user_runs_or_is_refused_in_one_sentence(self, sandbox: Sandbox) -> None:
        # A user whom no file of users knows has only a number.
        own = (await said(sandbox, "id -un 2>/dev/null || true")).decode().strip()
        script = "id -un; pwd; cat"
        for user, match in (("no_such_user", "no_such_user|no such user"), ("-x", "not the name of a user|'-x'")):
            with pytest.raises((NotStarted, BadArgument), match=match) as refused:
                await sandbox.run(Command(script, user=user))
            assert "\n" not in str(refused.value)
        own = "nobody" if own.isdigit() else own
        done = await outcome(sandbox.run(Command("id -un; cat", user=own, input=b"in")))
        if isinstance(done, NotStarted):
            assert "needs python3" in str(done) or own == "nobody"
            return
        assert isinstance(done, Completed)
        assert done.stdout.head.endswith(b"in")
        done = await outcome(sandbox.run(Command(script, user="nobody", input=b"in")))
        if isinstance(done, NotStarted):
            assert "nobody" in str(done) or "another user" in str(done)
            assert "\n" not in str(done)
            return
        assert isinstance(done, Completed)
        assert done.stdout.head.startswith(b"nobody\n")
        assert done.stdout.head.endswith(b"in")

    async def test_the_environment_is_given(self, opener: Opener) -> None:
        values = {"PLAIN": "1", "HARD": 'it\'s "x" $HOME `id`\n\\ 日本 \udcff'}
        sandbox = await opener(Environment(init=("greet() { echo hi; }", "UNSEEN=2; false"), env=values))
        try:
            assert await said(sandbox, "greet; echo $UNSEEN") == b"hi\n2\n"
            expected = values["HARD"].encode("utf-8", "surrogateescape")
            assert await said(sandbox, 'printf %s "$HARD"; sh -c "printf %s \\"\\$PLAIN\\""') == expected + b"1"
        finally:
            await sandbox.close()

    @pytest.mark.line
    async def test_the_shell_is_the_one_that_was_asked_for(self, opener: Opener) -> None:
        sandbox = await opener(Environment(shell=("sh", "-e", "-u", "-c")))
        try:
            done = await finish(sandbox, "echo one; false; echo two")
            assert (done.stdout.head, done.exit_code) == (b"one\n", 1)
        finally:
            await sandbox.close()

    async def test_a_shell_that_is_not_there_starts_nothing(self, opener: Opener) -> None:
        sandbox = await opener(Environment(shell=("/no/such/shell", "-c")))
        try:
            with pytest.raises(NotStarted, match="/no/such/shell"):
                await sandbox.run(Command("true"))
        finally:
            await sandbox.close()

    # How commands end

    @pytest.mark.parametrize(("number", "name"), [(6, "SIGABRT"), (9, "SIGKILL"), (11, "SIGSEGV"), (15, "SIGTERM")])
    @pytest.mark.line
    async def test_a_death_by_signal_is_told(self, sandbox: Sandbox, number: int, name: str) -> None:
        done = await finish(sandbox, f"printf x; kill -{number} $$; sleep 5")
        assert (done.exit_code, done.ending, done.stdout.head) == (128 + number, Ending.EXITED, b"x")
        assert done.signal in ((name,) if sandbox.description.capabilities.kills_trees else (name, ""))

    async def test_a_timeout_first_asks(self, sandbox: Sandbox) -> None:
        done = await finish(sandbox, "trap 'echo bye; exit 0' TERM; while :; do sleep 0.05; done", timeout_s=1)
        assert (done.ending, done.exit_code, done.stdout.head) == (Ending.TIMED_OUT, 124, b"bye\n")
        assert done.seconds < at_most(2.9)

    async def test_a_timeout_then_kills(self, stubborn: asyncio.Task[Completed]) -> None:
        done = await stubborn
        assert (done.ending, done.exit_code, done.stdout.head) == (Ending.TIMED_OUT, 124, b"up\n")
        assert done.survivors == ()
        # For as long as it may take, and two seconds for it to go by itself; when that was over, the load was another.
        assert 3.9 < done.seconds < 30

    async def test_a_tree_that_will_not_go_is_killed(
        self, sandbox: Sandbox, felled: asyncio.Task[tuple[Observation, set[str]]]
    ) -> None:
        seen, alive = await felled
        assert isinstance(seen, Completed)
        assert seen.ending is Ending.STOPPED
        # Who has left the session can only be found where the whole tree can.
        out_of_reach = set() if sandbox.description.capabilities.kills_trees else {"session", "daemon"}
        assert alive <= out_of_reach
        assert seen.survivors == ()

    async def test_cancelling_ends_the_process(self, sandbox: Sandbox, folder: str) -> None:
        await prepare(sandbox, folder)
        running = asyncio.ensure_future(
            sandbox.run(Command("sleep 60 & echo $! > pid.new; mv pid.new pid; wait", folder))
        )
        pid = await read_pid(sandbox, f"{folder}/pid")
        assert await is_alive(sandbox, pid)
        await cancel(running)
        await eventually(lambda: is_dead(sandbox, pid), bool, "the process to end")

    @pytest.mark.parametrize("output", ["", ">/dev/null 2>&1"], ids=["holds the output", "lets go"])
    @pytest.mark.line
    async def test_who_is_left_behind_delays_nobody(self, sandbox: Sandbox, output: str) -> None:
        done = await finish(sandbox, f"sleep 60 {output} & echo $!")
        pid = int(done.stdout.head)
        assert (done.exit_code, done.ending) == (0, Ending.EXITED)
        assert done.seconds < at_most(3)
        assert done.left_running in (((pid,),) if sandbox.description.capabilities.kills_trees else ((pid,), ()))
        assert await is_alive(sandbox, pid)
        await said(sandbox, f"kill {pid}")

    # Files that only a shell can make

    async def test_only_files_are_read(self, sandbox: Sandbox, folder: str) -> None:
        await prepare(sandbox, folder, "echo x > file; ln -s file link; mkfifo pipe; echo y > closed; chmod 0 closed")
        assert (await sandbox.read(f"{folder}/link", Span())).data == b"x\n"
        assert await refusal(sandbox.read(f"{folder}/pipe", Span())) == "not_a_file"
        assert await refusal(sandbox.read("/dev/null", Span())) == "not_a_file"
        assert await refusal(sandbox.read(f"{folder}/closed", Span())) == "EACCES"
        assert await refusal(sandbox.read(f"{folder}/file/x", Span())) == "ENOTDIR"

    async def test_a_file_without_a_size_is_read(self, sandbox: Sandbox) -> None:
        found = await sandbox.read("/proc/self/limits", Span())
        assert b"Max open files" in found.data

    @pytest.mark.parametrize("mode", ["600", "754", "444"])
    async def test_a_write_keeps_the_mode(self, sandbox: Sandbox, folder: str, mode: str) -> None:
        await prepare(sandbox, folder, f"echo old > file; chmod {mode} file")
        await sandbox.write(f"{folder}/file", b"new", force=mode == "444")
        found = await said(sandbox, f"ls -l {quote(folder)}/file | cut -c 2-10; cat {quote(folder)}/file")
        letters = "".join("rwx"[n % 3] if int(mode, 8) & 0o400 >> n else "-" for n in range(9))
        assert found == f"{letters}\nnew".encode()

    @pytest.mark.parametrize("mode", ["444", "0", "577"])
    async def test_a_read_only_file_is_replaced_only_by_force(self, sandbox: Sandbox, folder: str, mode: str) -> None:
        path = f"{folder}/file"
        await prepare(sandbox, folder, f"echo old > file; chmod {mode} file")
        with pytest.raises(FileProblem, match=r"is read-only.*force=true") as problem:
            await sandbox.write(path, b"new")
        assert problem.value.reason == "read_only"
        assert (
            await said(sandbox, f"chmod u+r {quote(path)}; cat {quote(path)}; ls -A {quote(folder)}") == b"old\nfile\n"
        )
        await sandbox.write(path, b"new", force=True)
        assert await said(sandbox, f"cat {quote(path)}") == b"new"

    async def test_a_write_is_a_new_file(self, sandbox: Sandbox, folder: str) -> None:
        await prepare(sandbox, folder, "echo old > file; ln file other")
        await sandbox.write(f"{folder}/file", b"new")
        assert (await sandbox.read(f"{folder}/other", Span())).data == b"old\n"

    @pytest.mark.parametrize("name", ["link", "dangling", "pipe"])
    async def test_only_files_are_replaced(self, sandbox: Sandbox, folder: str, name: str) -> None:
        await prepare(sandbox, folder, "echo x > file; ln -s file link; ln -s none dangling; mkfifo pipe")
        reason = await refusal(sandbox.write(f"{folder}/{name}", b"new"))
        assert reason == ("not_a_file" if name == "pipe" else "is_link")
        assert (await sandbox.read(f"{folder}/file", Span())).data == b"x\n"
        kinds = {entry.path: entry.kind for entry in (await sandbox.list(folder)).entries}
        assert kinds == {
            f"{folder}/dangling": "link",
            f"{folder}/file": "file",
            f"{folder}/link": "link",
            f"{folder}/pipe": "other",
        }

    async def test_a_folder_that_cannot_be_written_is_told(self, sandbox: Sandbox, folder: str) -> None:
        await prepare(sandbox, folder, "mkdir -m 555 closed; touch file")
        assert await refusal(sandbox.write(f"{folder}/closed/file", b"")) == "EACCES"
        assert await refusal(sandbox.write(f"{folder}/file/below", b"")) in ("ENOTDIR", "EEXIST")

    async def test_a_folder_that_cannot_be_read_is_reported(self, sandbox: Sandbox, folder: str) -> None:
        await prepare(sandbox, folder, "mkdir a b c; echo needle | tee a/x b/x c/x > /dev/null; chmod 0 b")
        closed, there = f"{folder}/b", [f"{folder}/{name}" for name in ("a", "a/x", "b", "c", "c/x")]
        listing = await sandbox.list(folder, recursive=True)
        assert sorted(entry.path for entry in listing.entries) == there
        found = await sandbox.search(Search(folder, pattern="needle"))
        assert [match.path for match in found.matches] == [f"{folder}/a/x", f"{folder}/c/x"]
        for problems in (listing.problems, found.problems):
            assert [(problem.path, problem.reason) for problem in problems] == [(closed, "Permission denied")]
        assert await refusal(sandbox.list(closed)) == "EACCES"

    async def test_a_file_that_cannot_be_read_is_reported(self, sandbox: Sandbox, folder: str) -> None:
        await prepare(sandbox, folder, "echo needle | tee a b c > /dev/null; chmod 0 b")
        found = await sandbox.search(Search(folder, pattern="needle"))
        assert [match.path for match in found.matches] == [f"{folder}/a", f"{folder}/c"]
        assert [problem.path for problem in found.problems] == [f"{folder}/b"]

    async def test_links_are_told_and_not_followed(self, sandbox: Sandbox, folder: str) -> None:
        await prepare(sandbox, folder, "mkdir a; echo needle > a/x; ln -s . a/loop; ln -s a/x y; ln -s a z")
        listing = await sandbox.list(folder, recursive=True)
        kinds = {posixpath.relpath(entry.path, folder): entry.kind for entry in listing.entries}
        assert kinds == {"a": "dir", "a/x": "file", "a/loop": "link", "y": "link", "z": "link"}
        found = await sandbox.search(Search(folder, pattern="needle"))
        assert [match.path for match in found.matches] == [f"{folder}/a/x"]
        assert [entry.path for entry in (await sandbox.list(f"{folder}/z")).entries] == [
            f"{folder}/z/loop",
            f"{folder}/z/x",
        ]

    async def test_an_empty_folder_is_empty(self, sandbox: Sandbox, folder: str) -> None:
        await prepare(sandbox, folder)
        assert (await sandbox.list(folder)).entries == ()
        assert (await sandbox.search(Search(folder, glob="*"))).matches == ()
