"""In a workspace that is used only over there, git's commands still run here, and no others."""

from __future__ import annotations

import pytest

from remote_sandbox_mcp.core.commands.local_command import is_gits

COMMIT = """git add -A && git commit -m "$(cat <<'EOF'
Say `make test` and $(date) in a message; it's only text

pytest is not run
EOF
)" && git status"""
BY_INPUT = "git commit -F - <<'END' | tail -3\nfirst; second\nrm -rf x\nEND\n"
PATCH = "apply_patch <<'EOF'\n*** Begin Patch\n*** Update File: a.py\n+x = `y`\n*** End Patch\nEOF\n"


@pytest.mark.parametrize(
    "command",
    [
        "git status",
        "git",
        "git log --oneline -5 | cat",
        "cd src && git diff HEAD~1 -- '*.py' 2>&1 | grep -n def | head -20",
        'git commit -m "it works; really && truly"',
        "GIT_PAGER=cat git show HEAD^{tree} 2>/dev/null || true",
        "git add a.py\ngit commit --amend --no-edit\n",
        "git push origin main; echo pushed",
        "git log --format='%h (%an)' \\\n  --since=yesterday",
        COMMIT,
        BY_INPUT,
        PATCH,
    ],
)
def test_commands_of_the_repository_run_here(command: str) -> None:
    assert is_gits(command)


@pytest.mark.parametrize(
    "command",
    [
        "",
        "   ",
        "pytest",
        "cd src",
        "echo git",
        "cat secrets | git hash-object --stdin",
        "git status && pytest",
        "git status;pytest",
        "git status\npytest",
        "git status & pytest",
        "git diff | python3 -",
        "git diff || make",
        'git log "$(pytest)"',
        "git log `pytest`",
        "git diff <(make)",
        "(git status; make)",
        "git() { pytest; }; git status",
        "bash -c 'git status'",
        "env git status",
        "/tmp/git status",
        "git bisect run pytest",
        "git rebase -x pytest main",
        "git rebase --exec 'make test' main",
        "git submodule foreach make",
        "git -c alias.t='!pytest' t",
        "git commit -m 'unclosed",
        "git commit -F - <<EOF\n$(pytest)\nEOF",
        "git commit -F - <<EOF\nno end\npytest",
        "git commit -F - <<EOF\ntext\nEOF\npytest",
        "X=1",
        "git status " + "x" * 200_000,
    ],
)
def test_all_others_are_refused(command: str) -> None:
    assert not is_gits(command)
