"""A container of Debian's podman, with folders that nobody else has; the programs in it are those of this machine."""

from __future__ import annotations

import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

from tests.support.means import require_program
from tests.support.root import as_root
from tests.support.sshd import wait_until

# Whatever of this machine's cgroups, network and limits podman 4.3 needs told, so that it runs on any.
OPTIONS = ("--network=none", "--ulimit=nofile=1024:1024", "--ulimit=nproc=4096:4096", "--cap-drop=all")
NAME, USER = "door", "12345:12345"
# Debian has programs and libraries in /usr alone, and these names for parts of it.
LINKS = ("bin", "lib", "lib64", "sbin")
FOLDERS = ("usr", "proc", "sys", "dev", "etc", "run", "tmp")


class PodmanContainer:
    """Runs from start to stop, as an ordinary user; nothing of it is left then."""

    name = NAME

    def __init__(self) -> None:
        require_program("podman")
        self.folder = Path(tempfile.mkdtemp(prefix="podman-", dir="/tmp"))
        places = (f"--root={self.folder}/root", f"--runroot={self.folder}/run", f"--tmpdir={self.folder}/tmp")
        self.command = [*as_root("podman"), *places, "--cgroup-manager=cgroupfs", "--runtime=runc"]

    def __enter__(self) -> PodmanContainer:
        rootfs = self.folder / "rootfs"
        for name in FOLDERS:
            (rootfs / name).mkdir(parents=True)
        for name in LINKS:
            if Path("/", name).is_symlink():
                (rootfs / name).symlink_to(f"usr/{name}")
        (rootfs / "tmp").chmod(0o1777)
        try:
            given = (f"--name={NAME}", f"--user={USER}", "--env=HOME=/tmp/home", "--volume=/usr:/usr:ro")
            script = "mkdir -p /tmp/home; exec sleep infinity"
            self.podman("run", "--detach", *OPTIONS, *given, "--rootfs", f"{rootfs}", "sh", "-c", script)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run([*self.command, "rm", "--force", "--time=0", NAME], capture_output=True, check=False)
        # Whatever podman has left to tidy up behind us would make its folders anew.
        wait_until(lambda: not self._processes(), what="podman's own processes to end", seconds=30)
        for place in self._mounts():
            subprocess.run(as_root("umount", "--lazy", place), check=False)
        subprocess.run(as_root("rm", "-rf", str(self.folder)), check=False)

    def _processes(self) -> list[str]:
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                found.append((folder / "cmdline").read_text(errors="replace"))
        return [command for command in found if str(self.folder) in command]

    def _mounts(self) -> list[str]:
        places = (line.split()[1] for line in Path("/proc/mounts").read_text().splitlines())
        return sorted((place for place in places if place.startswith(f"{self.folder}/")), reverse=True)

    def podman(self, *words: str) -> None:
        done = subprocess.run([*self.command, *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    def restart(self) -> None:
        self.podman("restart", "--time=0", NAME)

    def stop(self) -> None:
        self.podman("stop", "--time=0", NAME)
