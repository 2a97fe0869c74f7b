"""An environment of mini-swe-agent: `environment_class: remote_sandbox_mcp.frameworks.mini_swe.RemoteEnvironment`."""

from __future__ import annotations

import os
from typing import Any

from minisweagent.exceptions import Submitted
from minisweagent.utils.serialize import recursive_merge
from pydantic import BaseModel

from .. import SandboxError
from ..blocking import Sandboxes

# The line by which a command says that the task is done.
DONE = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
FACTS = {"system": "s", "node": "n", "release": "r", "version": "v", "machine": "m"}


class RemoteEnvironmentConfig(BaseModel):
    """`sandbox` is the name of one; without it, each environment gets a fresh one that ends with it."""

    sandbox: str = ""
    image: str = ""
    # A machine with docker, podman or slurm, for a fresh one.
    on: str = ""
    gpus: int = 0
    cwd: str = ""
    env: dict[str, str] = {}
    # Names of variables of this computer that commands get, too; those in `env` win.
    forward_env: list[str] = []
    timeout: int = 30


class RemoteEnvironment:
    """Runs the agent's commands in a sandbox."""

    def __init__(self, *, config_class: type[RemoteEnvironmentConfig] = RemoteEnvironmentConfig, **given: Any) -> None:
        self.config = config = config_class(**given)
        self._boxes: Sandboxes | None = Sandboxes()
        self._boxes.__enter__()
        self._is_fresh = not config.sandbox
        try:
            if config.sandbox:
                self.box = self._boxes.open(config.sandbox)
            else:
                self.box = self._boxes.create(config.image, on=config.on, gpus=config.gpus)
            facts = self.box.run("; ".join(f"uname -{letter}" for letter in FACTS.values())).text.splitlines()
            self._facts = dict(zip(FACTS, facts, strict=False))
        except BaseException:
            self._is_fresh = False
            self.cleanup()
            raise

    def execute(self, action: dict[str, Any], cwd: str = "", *, timeout: int | None = None) -> dict[str, Any]:
        """Run the action's command. Raises Submitted where it says that the task is done."""
        limit, config = timeout or self.config.timeout, self.config
        env = {name: os.environ[name] for name in config.forward_env if name in os.environ} | config.env
        try:
            script = f"exec 2>&1\n{action.get('command', '')}"
            done = self.box.run(script, cwd=cwd or config.cwd, env=env, timeout=limit)
        except SandboxError as problem:
            return _failure("", str(problem), type(problem).__name__)
        if done.timed_out:
            return _failure(done.text, f"the command was ended after {limit} s", "TimeoutExpired")
        output = {"output": done.text, "returncode": done.exit_code, "exception_info": ""}
        lines = done.text.lstrip().splitlines(keepends=True)
        if lines and lines[0].strip() == DONE and done.exit_code == 0:
            extra = {"exit_status": "Submitted", "submission": "".join(lines[1:])}
            raise Submitted({"role": "exit", "content": extra["submission"], "extra": extra})
        return output

    def get_template_vars(self, **more: Any) -> dict[str, Any]:
        """Variables of prompts; the facts of `platform.uname` are those of the sandbox."""
        merged: dict[str, Any] = recursive_merge(self.config.model_dump(), self._facts, more)
        return merged

    def serialize(self) -> dict[str, Any]:
        kind = f"{type(self).__module__}.{type(self).__name__}"
        config = {"environment": self.config.model_dump(mode="json"), "environment_type": kind}
        return {"info": {"config": config}}

    def cleanup(self) -> None:
        """End a fresh sandbox, and the connection."""
        boxes, self._boxes = self._boxes, None
        if boxes is None:
            return
        try:
            if self._is_fresh:
                self.box.delete()
        finally:
            boxes.__exit__()

    def __del__(self) -> None:
        if getattr(self, "_boxes", None):
            self.cleanup()


def _failure(output: str, why: str, kind: str) -> dict[str, Any]:
    info = f"An error occurred while executing the command: {why}"
    extra = {"exception_type": kind, "exception": why}
    return {"output": output, "returncode": -1, "exception_info": info, "extra": extra}
