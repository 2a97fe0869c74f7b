from __future__ import annotations

import doctest

import pytest

from remote_sandbox_mcp.core.errors import SandboxError
from remote_sandbox_mcp.core.resources import checkup
from remote_sandbox_mcp.core.resources.checkup import Checkup, ClusterFindings, Findings, Mark, Step
from remote_sandbox_mcp.core.resources.usage import Gpu, Usage
from remote_sandbox_mcp.core.sandboxes.machine import Engine, Hop, Login, Machine

CLUSTER = Machine("cluster", "login.example.org", login=Login("alice"))
TOLD = """\
Welcome
@@ doctor 1
@@ shell
 GNU bash, version 5.2.15(1)-release (x86_64-pc-linux-gnu)
@@ login
 /usr/bin/fish
@@ python
@@ tmux
 tmux 3.3a
@@ path
 /usr/bin:/opt/my tools/bin
"""


def test_the_doctests_pass() -> None:
    assert doctest.testmod(checkup).failed == 0


def test_the_output_of_the_script_is_parsed() -> None:
    assert checkup.parse_findings(TOLD) == Findings(
        shell="GNU bash, version 5.2.15(1)-release (x86_64-pc-linux-gnu)",
        login_shell="/usr/bin/fish",
        tmux="tmux 3.3a",
        path="/usr/bin:/opt/my tools/bin",
        noise="Welcome",
    )


@pytest.mark.parametrize("text", ["", "bash: sh: command not found\n", "@@ doctor 2\n"])
def test_other_output_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        checkup.parse_findings(text)


def test_terminal_escapes_from_the_machine_are_removed() -> None:
    assert checkup.parse_findings("@@ doctor 1\n@@ path\n /bin\x1b[31m:/sbin\n").path == "/bin:/sbin"
    assert checkup.port_step(22, b"SSH-2.0-Evil\x1b]0;x\x07\r\n").said == "22, Evil"


@pytest.mark.parametrize(
    ("problem", "said", "remedy"),
    [
        pytest.param(
            SandboxError.of_parts("who", "nothing listens", "check port"),
            "nothing listens",
            "Check port. Also",
            id="with a remedy",
        ),
        pytest.param(
            SandboxError.of_parts("who", "no answer; try port 3"),
            "no answer; try port 3",
            "Otherwise. Also",
            id="without one",
        ),
        pytest.param(
            SandboxError.of_parts("who", "no", where="(jump host j)"),
            "(jump host j): no",
            "Otherwise. Also",
            id="a jump host is named",
        ),
        pytest.param(SandboxError("who: no; check"), "who: no; check", "Otherwise. Also", id="not made of parts"),
    ],
)
def test_an_error_becomes_what_was_found_and_what_to_do(problem: SandboxError, said: str, remedy: str) -> None:
    step = checkup.failed("port", problem, otherwise="otherwise.", also="also")
    assert step == Step("port", Mark.FAILED, said, remedy)


DOCKER, DENIED = (
    Engine("docker", ("docker",)),
    "no permission denied while trying to connect to the docker API at unix:",
)
ENGINES = {
    "none": (None, Findings(), Mark.OK, "there is neither docker nor podman"),
    "found": (
        None,
        Findings(docker="yes 28.2.2"),
        Mark.OK,
        "docker 28.2.2; to make sandboxes with it, write docker = ",
    ),
    "the one that answers": (None, Findings(docker=DENIED, podman="yes 4.3.1"), Mark.OK, "podman 4.3.1; to make sand"),
    "of no use": (None, Findings(docker=DENIED), Mark.OK, "docker, of no use now: the user on m may not talk to its d"),
    "used": (DOCKER, Findings(docker="yes 28.2.2"), Mark.OK, "docker 28.2.2; sandboxes are made with it: create_sandb"),
    "denied": (DOCKER, Findings(docker=DENIED), Mark.WARNING, "no sandboxes can be made: the user on m may not talk "),
    "missing": (DOCKER, Findings(podman="yes 4.3.1"), Mark.WARNING, "no sandboxes can be made: there is no docker"),
    "strange": (DOCKER, Findings(docker="no panic"), Mark.WARNING, "no sandboxes can be made: panic"),
}


@pytest.mark.parametrize(("engine", "findings", "mark", "said"), ENGINES.values(), ids=ENGINES)
def test_an_engine_is_told_with_what_to_write_or_to_mend(
    engine: Engine | None, findings: Findings, mark: Mark, said: str
) -> None:
    step = checkup.engine_step(findings, Machine("m", "h", engine=engine))
    assert (step.mark, step.said[: len(said)], bool(step.remedy)) == (mark, said, mark is Mark.WARNING)


def test_steps_that_were_not_reached_are_skipped() -> None:
    steps = checkup.complete([checkup.ok("a", "x"), Step("b", Mark.FAILED)], ("a", "b", "c"))
    assert [step.mark for step in steps] == [Mark.OK, Mark.FAILED, Mark.SKIPPED]
    assert Checkup("m", "ssh", "", steps).failed
    assert not Checkup("m", "ssh", "", steps[:1]).failed


@pytest.mark.parametrize(
    ("machine", "command"),
    [
        pytest.param(Machine("m", "gpu1"), "ssh gpu1", id="plain"),
        pytest.param(
            Machine("m", "gpu1", 2222, Login("me", key_files=("/my keys/id",))),
            "ssh -p 2222 -i '/my keys/id' me@gpu1",
            id="port, user and key",
        ),
        pytest.param(
            Machine("m", "::1", hops=(Hop("gate", 2200, Login("you")), Hop("fe80::1", 22))),
            "ssh -J you@gate:2200,fe80::1 ::1",
            id="jump hosts",
        ),
    ],
)
def test_the_command_to_try_by_hand_is_shown(machine: Machine, command: str) -> None:
    assert checkup.by_hand(machine) == f"by hand: {command}"


@pytest.mark.parametrize(
    ("there", "mark", "said"),
    [
        pytest.param(1000, Mark.OK, "agrees with ours", id="same"),
        pytest.param(1008, Mark.OK, "agrees with ours", id="within the limit of a slow answer"),
        pytest.param(1010, Mark.WARNING, "7 s ahead of ours", id="ahead"),
        pytest.param(993, Mark.WARNING, "6 s behind ours", id="behind"),
        pytest.param(1000 - 7200, Mark.WARNING, "2 hours behind ours", id="hours"),
        pytest.param(1000 + 90 * 86400, Mark.WARNING, "90 days ahead of ours", id="days"),
        pytest.param(None, Mark.WARNING, "the machine did not tell the time", id="untold"),
    ],
)
def test_a_clock_is_compared_with_the_time_of_the_question(there: float | None, mark: Mark, said: str) -> None:
    step = checkup.clock_step(there, 1000.0, 1003.0)
    assert (step.mark, step.said) == (mark, said)


@pytest.mark.parametrize(
    ("findings", "configured", "noise", "mark", "said"),
    [
        pytest.param(
            Findings(shell="GNU bash, version 5.1.4(1)"), (), "", Mark.OK, "commands run in bash 5.1.4", id="bash"
        ),
        pytest.param(Findings(), (), "", Mark.OK, "commands run in sh", id="sh"),
        pytest.param(
            Findings(shell="GNU bash, version 5.1", login_shell="/bin/zsh"),
            (),
            "",
            Mark.OK,
            "commands run in bash 5.1; the login shell is /bin/zsh",
            id="another login shell",
        ),
        pytest.param(
            Findings(login_shell="/bin/zsh"),
            ("/bin/zsh", "-c"),
            "",
            Mark.OK,
            "commands run in /bin/zsh -c",
            id="chosen",
        ),
        pytest.param(
            Findings(),
            (),
            "hi",
            Mark.WARNING,
            "commands run in sh. Start-up files print “hi”: dropped here, but scp, rsync and git break on it",
            id="noise at login",
        ),
        pytest.param(
            Findings(noise="hi\nthere"),
            (),
            "hi",
            Mark.WARNING,
            "commands run in sh. Start-up files print “hi there” before every command",
            id="noise in commands",
        ),
    ],
)
def test_output_of_start_up_files_is_a_warning_about_the_shell(
    findings: Findings, configured: tuple[str, ...], noise: str, mark: Mark, said: str
) -> None:
    step = checkup.shell_step(findings, configured, noise)
    assert (step.mark, step.said) == (mark, said)


def test_gpus_are_counted_by_name() -> None:
    usage = Usage(gpus=(Gpu(0, "A100"), Gpu(1, "A100"), Gpu(2, "T4")))
    assert checkup.gpu_step(usage).said == "2 × A100, 1 × T4"
    assert checkup.gpu_step(Usage()) == checkup.ok("GPUs", "none")
    broken = checkup.gpu_step(Usage(gpu_error="nvidia-smi failed"))
    assert (broken.mark, broken.said) == (Mark.WARNING, "nvidia-smi failed")


def test_a_python_that_is_too_old_is_named() -> None:
    said = checkup.python_step("", "python3", "Python 2.7.18", kills_trees=False).said
    assert "Python 2.7.18 is of no use" in said
    assert said.endswith("a stop reaches only the command's own session of processes")
    assert checkup.python_step("3.11.2", "python3", "", kills_trees=True) == checkup.ok("python3", "3.11.2")


def test_a_stop_that_reaches_everything_is_not_called_short() -> None:
    assert "session of processes" not in checkup.python_step("", "python3", "", kills_trees=True).said


@pytest.mark.parametrize(
    ("before", "now", "files", "said"),
    [
        (True, True, [], "known"),
        (True, True, ["~/.ssh/known_hosts"], "known, from ~/.ssh/known_hosts"),
        (False, True, [], "new, and remembered from now on: SHA256:x"),
        (False, False, [], "the connection ended before it was told"),
    ],
)
def test_the_step_of_the_host_key_says_how_it_is_known(before: bool, now: bool, files: list[str], said: str) -> None:
    assert checkup.host_key_step(before, now, files, "SHA256:x").said == said


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        pytest.param("yes slurm-wlm 22.05.8", "22.05.8", id="new"),
        pytest.param("yes slurm 20.11.0", "20.11.0", id="the first with --overlap"),
        pytest.param("yes slurm 20.02.3-1", "20.02.3, older than 20.11: srun is used without --overlap", id="old"),
        pytest.param("yes slurm 9999", "slurm 9999", id="odd"),
        pytest.param("no sinfo: fatal: No 1.2.3", "sinfo does not answer: sinfo: fatal: No 1.2.3", id="no cluster"),
        pytest.param("", "sinfo is not found, so nothing can be submitted", id="none"),
    ],
)
def test_the_version_of_slurm_is_told_with_what_it_means(answer: str, said: str) -> None:
    step = checkup.cluster_steps(answer, ClusterFindings(), None, CLUSTER)[0]
    assert (step.said, step.mark) == (said, Mark.OK if answer.startswith("yes") else Mark.WARNING)


@pytest.mark.parametrize(
    ("findings", "name", "said"),
    [
        pytest.param(ClusterFindings(sacct="yes "), "sacct", "answers", id="sacct"),
        pytest.param(ClusterFindings(sacct="none"), "sacct", "of no use (it is not installed", id="no sacct"),
        pytest.param(
            ClusterFindings(elsewhere="/opt/hpc/bin"), "slurm", "23.02.1, in /opt/hpc/bin, which", id="no PATH"
        ),
        pytest.param(ClusterFindings(home="nfs4"), "shared home", "on nfs4, as nodes share it", id="NFS"),
        pytest.param(ClusterFindings(home="xfs"), "shared home", "on xfs, perhaps of the login node", id="a disk"),
        pytest.param(ClusterFindings(), "shared home", "on an unknown file system", id="no answer"),
        pytest.param(ClusterFindings(modules="login"), "modules", "module takes a login shell", id="modules"),
        pytest.param(ClusterFindings(sbatch="yes odd words"), "sbatch", "takes jobs", id="sbatch"),
        pytest.param(
            ClusterFindings(sbatch="no sbatch: error: Invalid account"),
            "sbatch",
            "refuses a small job: Invalid",
            id="no",
        ),
        pytest.param(
            ClusterFindings(sbatch="late"), "sbatch", "it did not answer within 5 s", id="no answer of sbatch"
        ),
        pytest.param(ClusterFindings(), "controller", "it was not asked", id="no controller"),
    ],
)
def test_what_a_site_lacks_is_told_with_what_it_means(findings: ClusterFindings, name: str, said: str) -> None:
    steps = {step.name: step for step in checkup.cluster_steps("yes slurm 23.02.1", findings, None, CLUSTER)}
    assert steps[name].said.startswith(said)


def test_slurm_is_shown_only_where_it_answers() -> None:
    shown = checkup.installed_slurm_step("yes slurm 23.02.1", "gpu1")
    assert shown
    assert shown.said == "23.02.1; slurm = true under [machines.gpu1] makes it a cluster"
    assert checkup.installed_slurm_step("no sinfo: fatal: Could not establish a configuration source", "gpu1") is None
    assert checkup.installed_slurm_step("", "gpu1") is None
