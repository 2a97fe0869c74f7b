"""A backend of deepagents (LangChain) over one sandbox: `create_deep_agent(backend=RemoteSandbox(box))`."""

from __future__ import annotations

from deepagents.backends.protocol import ExecuteResponse, FileDownloadResponse, FileUploadResponse
from deepagents.backends.sandbox import BaseSandbox

from .. import SandboxError
from ..blocking import Box
from . import DENIED, FOLDER, MISSING, NO_LIMIT_S

# The codes of deepagents, by the reasons of ours.
CODES = {
    **dict.fromkeys(MISSING, "file_not_found"),
    **dict.fromkeys(DENIED, "permission_denied"),
    **dict.fromkeys(FOLDER, "is_directory"),
}
USUAL_TIMEOUT_S = 30 * 60
# Bytes of both ends of an output. deepagents itself cuts what it shows to a model, and reads files by commands.
KEPT = 2_000_000


class RemoteSandbox(BaseSandbox):
    """Commands and files of one sandbox, a box of `remote_sandbox_mcp.blocking`."""

    def __init__(self, box: Box) -> None:
        self._box = box

    @property
    def id(self) -> str:
        return self._box.name

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        limit = NO_LIMIT_S if timeout == 0 else timeout or USUAL_TIMEOUT_S
        done = self._box.run(f"exec 2>&1\n{command}", timeout=limit, keep=KEPT)
        cut = f"\n... {done.omitted} bytes are left out ...\n" if done.omitted else ""
        half = len(done.stdout) // 2 if cut else len(done.stdout)
        text = (done.stdout[:half] + cut.encode() + done.stdout[half:] + done.stderr).decode("utf-8", "replace")
        if done.timed_out:
            text += f"\nThe command was ended after {limit} s."
        return ExecuteResponse(text, done.exit_code, bool(done.omitted))

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        return [FileUploadResponse(path, self._upload(path, data)) for path, data in files]

    def _upload(self, path: str, data: bytes) -> str | None:
        """Write a file; returns what went wrong."""
        if not path.startswith("/"):
            return "invalid_path"
        try:
            self._box.write(path, data)
        except SandboxError as problem:
            return CODES.get(problem.reason, str(problem))
        return None

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        return [self._download(path) for path in paths]

    def _download(self, path: str) -> FileDownloadResponse:
        if not path.startswith("/"):
            return FileDownloadResponse(path, None, "invalid_path")
        try:
            return FileDownloadResponse(path, self._box.read(path))
        except SandboxError as problem:
            return FileDownloadResponse(path, None, CODES.get(problem.reason, str(problem)))
