"""A container engine of the tests' own: Debian's dockerd with folders, socket and cgroup that nobody else has."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import platformdirs

from tests.support.root import WHY_NOT, as_root, can_be_root
from tests.support.sshd import wait_until

SCRIPTS = Path(__file__).parents[2] / "scripts"
# Found before any test gives itself another home: images are kept from one run to the next.
CACHE = Path(platformdirs.user_cache_dir("remote-sandbox-mcp-tests", appauthor=False))
# Where it is told to leave the machine's network alone, there is nothing to clean up after it.
ALONE = ("--bridge=none", "--iptables=false", "--ip6tables=false", "--ip-forward=false", "--ip-masq=false")
START_S, IMAGE_S = 60, 170
# What systemd needs where it boots in a container; all capabilities are more than some machines can give.
BOOTS = ("--cap-add=SYS_ADMIN", "--security-opt=seccomp=unconfined", "--cgroupns=private", "--tmpfs=/run:exec")
# Writable to a container is only what is mounted so, where cgroups are of version 2.
BOOT = "[ ! -e /sys/fs/cgroup/cgroup.controllers ] || mount -o remount,rw /sys/fs/cgroup; exec /lib/systemd/systemd"


class EngineProblem(Exception):
    """No engine, and why."""


class Container:
    """A container that runs."""

    def __init__(self, engine: Engine, name: str) -> None:
        self._engine = engine
        self.name = name

    def exec(
        self, *words: str, user: str = "root", env: Mapping[str, str] | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in it, in a new session without a terminal."""
        given = [f"--env={name}={value}" for name, value in (env or {}).items()]
        return self._engine.docker("exec", f"--user={user}", *given, self.name, *words, check=check)

    def restart(self) -> None:
        self._engine.docker("restart", "--time=5", self.name)

    def remove(self) -> None:
        self._engine.docker("rm", "--force", "--volumes", self.name, check=False)


class Engine:
    """Runs from start to stop. Nothing of it is left then: no process, mount, cgroup, interface or file."""

    def __init__(self, network: tuple[str, ...] = ALONE, disk_mb: int = 0) -> None:
        """With `disk_mb`, all that it keeps lies on a file system of its own, which can be full."""
        # Before anything is made: without root the test is left out here.
        as_root()
        self.folder = Path(tempfile.mkdtemp(prefix="engine-", dir="/tmp"))
        self._network = network
        self._disk_mb = disk_mb
        self.socket = f"unix://{self.folder}/socket"
        self._process: subprocess.Popen[bytes] | None = None
        self._containers: list[Container] = []

    def __enter__(self) -> Engine:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Raises EngineProblem where it cannot run here."""
        program = shutil.which("dockerd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
        if program is None:
            raise EngineProblem("there is no dockerd on this machine; run: apt-get install docker.io")
        if self._disk_mb:
            self._mount_disk()
        folder = self.folder
        places = [f"--data-root={folder}/data", f"--exec-root={folder}/exec", f"--pidfile={folder}/pid"]
        groups = [f"--cgroup-parent=/{folder.name}", "--exec-opt=native.cgroupdriver=cgroupfs"]
        words = [*as_root(), program, *places, *groups, *self._network, f"--host={self.socket}"]
        with (folder / "log").open("wb") as log:
            self._process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        wait_until(self._answers, what=f"dockerd, which says {self._last_words()}", seconds=START_S)

    def _mount_disk(self) -> None:
        disk, place = self.folder / "disk", self.folder / "data"
        place.mkdir()
        with disk.open("wb") as file:
            file.truncate(self._disk_mb << 20)
        # Nothing is kept back for root: what is full is full for everybody.
        make = ("mkfs.ext4", "-q", "-m", "0", "-b", "4096", str(disk))
        for words in (make, ("mount", "-o", "loop", str(disk), str(place))):
            done = subprocess.run([*as_root(), *words], capture_output=True, text=True, check=False)
            if done.returncode:
                raise EngineProblem(f"no disk of its own for the engine: {done.stderr.strip()}")

    def fill_disk(self, leave_kb: int = 0) -> None:
        """Leave no more room than that on its own disk, until `make_room`."""
        data = self.folder / "data"
        # What was removed a moment ago is free only after it was noted on the disk, too.
        for number in range(20):
            _run(*as_root(), "sync", "--file-system", str(data))
            found = os.statvfs(data)
            if not found.f_bavail:
                break
            ballast = f"{data}/ballast-{number}"
            if number:
                _run(*as_root(), "dd", "if=/dev/zero", f"of={ballast}", "bs=4k", "conv=fsync")
            else:
                # Nearly all of it, without writing it.
                _run(*as_root(), "fallocate", f"--length={found.f_bavail * found.f_frsize}", ballast)
        _run(*as_root(), "truncate", f"--size=-{leave_kb}K", f"{data}/ballast-0")
        _run(*as_root(), "sync", "--file-system", str(data))

    def make_room(self) -> None:
        _run(*as_root(), "find", f"{self.folder}/data", "-maxdepth", "1", "-name", "ballast-*", "-delete")

    def _answers(self) -> bool:
        assert self._process
        if self._process.poll() is not None:
            raise EngineProblem(f"dockerd does not run on this machine: {self._last_words()}")
        return self.docker("version", check=False).returncode == 0

    def _last_words(self) -> str:
        lines = (self.folder / "log").read_text(errors="replace").splitlines()
        return lines[-1] if lines else "nothing"

    def docker(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Its own client. Raises EngineProblem where that fails and must not."""
        command = [*as_root(), "docker", f"--host={self.socket}", *words]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if check and done.returncode:
            raise EngineProblem(f"{' '.join(words)} ended with {done.returncode}: {done.stderr.strip()}{done.stdout}")
        return done

    def import_image(self, tar: Path, name: str) -> None:
        self.docker("import", str(tar), name)

    def load_image(self, tar: Path) -> str:
        """The name of an image that `docker save` wrote into a file. Raises EngineProblem."""
        said = self.docker("load", f"--input={tar}").stdout
        return said.strip().rpartition("\n")[2].partition(": ")[2]

    def fetch_image(self, name: str) -> str:
        """An image by its name, from the engine of this machine where that has it, else from its registry."""
        with tempfile.TemporaryDirectory() as folder:
            tar = Path(folder, "image.tar")
            saved = subprocess.run(["docker", "save", f"--output={tar}", name], capture_output=True, check=False)
            if saved.returncode == 0:
                return self.load_image(tar)
        self.docker("pull", name)
        return name

    def run(self, image: str, *words: str, options: tuple[str, ...] = ()) -> Container:
        """A container that runs these words; it is removed with the engine."""
        name = f"container-{len(self._containers)}"
        container = Container(self, name)
        self._containers.append(container)
        self.docker("run", "--detach", "--network=none", f"--name={name}", *options, image, *words)
        return container

    def boot(self, image: str, options: tuple[str, ...] = ()) -> Container:
        """A container in which systemd has come up."""
        container = self.run(image, "/bin/sh", "-c", BOOT, options=(*BOOTS, *options))
        self.until_up(container)
        return container

    def until_up(self, container: Container) -> None:
        def is_up() -> bool:
            state = container.exec("systemctl", "is-system-running", check=False).stdout.strip()
            return state in ("running", "degraded")

        wait_until(is_up, what="systemd to come up", seconds=START_S)

    def stop(self) -> None:
        for container in self._containers:
            container.remove()
        if self._process:
            if self._process.poll() is None:
                _run(*as_root(), "kill", f"-{signal.SIGTERM.value}", (self.folder / "pid").read_text().strip())
            try:
                self._process.wait(START_S)
            finally:
                self._process = None
        for place in self._mounts():
            _run(*as_root(), "umount", "--lazy", place)
        for group in [*Path("/sys/fs/cgroup").glob(f"*/{self.folder.name}"), _cgroup(self.folder.name)]:
            _run(*as_root(), "find", str(group), "-depth", "-type", "d", "-exec", "rmdir", "{}", ";")
        _run(*as_root(), "rm", "-rf", str(self.folder))

    def _mounts(self) -> list[str]:
        places = (line.split()[1] for line in Path("/proc/mounts").read_text().splitlines())
        return sorted((place for place in places if place.startswith(f"{self.folder}/")), reverse=True)


def systemd_image() -> Path:
    """The tar of a Debian that boots systemd. Raises EngineProblem."""
    return made_image("systemd")


def made_image(kind: str) -> Path:
    """The tar that a script of ours makes, on the first use of a machine. Raises EngineProblem."""
    script = SCRIPTS / f"{kind}-image"
    file = CACHE / f"{kind}-{hashlib.sha256(script.read_bytes()).hexdigest()[:12]}.tar"
    with _one_at_a_time(CACHE / "lock"):
        if not file.exists():
            for old in CACHE.glob(f"{kind}-*.tar"):
                old.unlink()
            done = subprocess.run(
                [*as_root(), str(script), str(file)], capture_output=True, text=True, timeout=IMAGE_S, check=False
            )
            if done.returncode:
                raise EngineProblem(f"{script.name} could not make an image: {done.stderr.strip()}")
    return file


@contextmanager
def _one_at_a_time(file: Path) -> Iterator[None]:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _cgroup(name: str) -> Path:
    return Path("/sys/fs/cgroup") / name


def _run(*words: str) -> None:
    with suppress(OSError):
        subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, check=False)


if __name__ == "__main__":
    # Before the tests, which have little time each.
    if can_be_root():
        for wanted in ("systemd", "sandbox"):
            made_image(wanted)
    else:
        print(f"no images of containers are made: that {WHY_NOT}")
