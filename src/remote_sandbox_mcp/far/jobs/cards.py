"""The lease of GPUs: picks cards that are free now, and holds a lock on one file per card as long as a job lives."""

import contextlib
import errno
import fcntl
import json
import os
import pwd
import random
import re
import stat
import time

from ..outpost.place import closing_fd, to_bytes, user_name

# Root made these for everybody; the first one that is there and is open to all is the same for every user. No folder of
# our own in it: whoever made that could remove the files of others.
SHARED = (b"/run/lock", b"/var/lock", b"/tmp")
PREFIX = b"rsmcp-gpu-"
CARD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,99}\Z")
# More than this in use, or a tenth of a small card, is somebody's, also where the driver does not show whose.
HELD_MB = 512.0
# A card of 24 GB has a little less than that.
SLACK_MB = 1024.0
# A tool of a broken driver may never answer.
TOOL_S = 12.0
# Two who want several cards may each get a part of them: both let go, and try again a moment later.
ATTEMPTS = 3
LEASED = "is leased"
# Descriptors that scripts do not use: a command inherits its leases, and must not close one by accident.
FIRST_FD = 100
KEEP_S = 2.0
MOST_RECORD = 600
MOST_BUSY = 24
TOOL_FOLDERS = ":/usr/local/bin:/usr/bin:/bin:/opt/rocm/bin:/usr/local/nvidia/bin:/usr/lib/wsl/lib"


class NoCards(Exception):
    """Too few cards are free: a sentence, then one for each card that is not."""

    def __init__(self, message: str, busy: "list[str]") -> None:
        more = len(busy) - MOST_BUSY
        lines = [message] + busy[:MOST_BUSY] + (["%d more are not free" % more] if more > 0 else [])
        Exception.__init__(self, "\n".join(line[:140] for line in lines))


class Card:
    """A GPU, or a MIG slice of one. `why` says why it is not free; the memory is None where the driver does not say."""

    def __init__(self, uuid: str, name: str, total: "float | None", used: "float | None") -> None:
        self.uuid = self.visible = uuid
        self.variable = b"CUDA_VISIBLE_DEVICES"
        self.name = name
        self.total = total
        self.used = used
        self.why = ""

    def look(self, users: "list[str]", memory_mb: int) -> "Card":
        """Decide whether it is free; `users` are those who compute on it."""
        free = None if self.total is None or self.used is None else self.total - self.used
        if users:
            self.why = "is used by %s" % ", ".join(sorted(set(users)))
        elif self.total and self.used is not None and self.used > min(HELD_MB, self.total / 10):
            self.why = "has %d MB in use by processes that are not shown" % self.used
        elif memory_mb and (free is None or (self.total or 0.0) + SLACK_MB < memory_mb):
            self.why = "has %s MB free" % ("an unknown number of" if free is None else "%d" % free)
        return self


# The cards, as their vendor's tool tells them


def ask_tool(words: "list[str]") -> "tuple[int, str]":
    """Exit status and output of a vendor's tool; 127 if it is not installed, 124 if it did not answer in time."""
    # Most jobs want no card, and their keepers do not need it.
    import subprocess

    env = dict(os.environ, PATH=os.environ.get("PATH", "") + TOOL_FOLDERS, LC_ALL="C")
    null, pipe, out = subprocess.DEVNULL, subprocess.PIPE, subprocess.STDOUT
    try:
        said = subprocess.run(words, stdin=null, stdout=pipe, stderr=out, timeout=TOOL_S, env=env)
        return said.returncode, said.stdout.decode("utf-8", "replace")
    except subprocess.TimeoutExpired:
        return 124, "it did not answer in time; the driver may hang"
    except OSError:
        return 127, ""


def ask_nvidia(what: str, perhaps: str = "") -> "list[list[str]]":
    """The rows of a table of nvidia-smi, with a column more if the driver knows it. Raises NoCards if it fails."""
    for asked in (what + perhaps, what):
        status, text = ask_tool(["nvidia-smi", asked, "--format=csv,noheader,nounits"])
        if "not a valid field" not in text:
            break
    if status:
        raise NoCards("nvidia-smi failed: %s" % " ".join(text.split())[:100], [])
    return [[cell.strip() for cell in line.split(",")] for line in text.splitlines()]


def number(text: str) -> "float | None":
    return float(text) if re.match(r"[0-9]{1,12}(\.[0-9]+)?\Z", text.strip()) else None


def nvidia_cards(memory_mb: int) -> "list[Card]":
    columns = "--query-gpu=index,uuid,memory.total,memory.used,compute_mode"
    # Drivers before 450 have not heard of MIG.
    rows = [row + [""] if len(row) == 5 else row for row in ask_nvidia(columns, ",mig.mode.current")]
    used_by: "dict[str, list[str]]" = {}
    for row in ask_nvidia("--query-compute-apps=gpu_uuid,pid"):
        if len(row) == 2 and row[1].isdigit():
            used_by.setdefault(row[0], []).append(owner_of(int(row[1])))
    rows = [row for row in rows if len(row) == 6 and row[0].isdigit() and CARD.match(row[1])]
    slices = mig_slices() if any(row[5] == "Enabled" for row in rows) else {}
    cards = []
    for index, uuid, total, used, mode, mig in rows:
        card = Card(uuid, "GPU " + index, number(total), number(used))
        users = used_by.get(uuid, [])
        parts = slices.get(uuid, []) if mig == "Enabled" else [card]
        for part in parts:
            # An older driver names the whole card for a process in one of its slices.
            part.look(users + (used_by.get(part.uuid, []) if part is not card else []), memory_mb)
            if mode == "Prohibited":
                part.why = "admits no process (compute mode Prohibited)"
        cards.extend(parts)
    return cards


MIG_LINE = re.compile(r"\s+MIG\s+(\S+)\s+Device\s+([0-9]+):\s+\(UUID:\s+(MIG-[^)]+)\)")


def mig_slices() -> "dict[str, list[Card]]":
    """The slices of each card, by its UUID. A slice's size is in the name of its profile: 3g.20gb."""
    found: "dict[str, list[Card]]" = {}
    card = number_of_card = ""
    for line in ask_tool(["nvidia-smi", "-L"])[1].splitlines():
        whole = re.match(r"GPU ([0-9]{1,4}): ", line)
        part = MIG_LINE.match(line)
        if whole:
            number_of_card, card = whole.group(1), line.rpartition("(UUID: ")[2].rstrip(") ")
        elif part and CARD.match(part.group(3)):
            size = re.search(r"\.([0-9]{1,4})gb", part.group(1))
            name = "MIG %s of GPU %s" % (part.group(2), number_of_card)
            piece = Card(part.group(3), name, float(size.group(1)) * 1024 if size else None, 0.0)
            found.setdefault(card, []).append(piece)
    return found


KFD = "/sys/class/kfd/kfd/proc"


def amd_cards(memory_mb: int) -> "list[Card]":
    status, text = ask_tool(["rocm-smi", "--showid", "--showuniqueid", "--showmeminfo", "vram", "--json"])
    found = read_amd(text) if not status else {}
    used_by = amd_processes()
    cards = []
    for name in sorted(found, key=lambda name: int(name[4:])):
        said = found[name]
        total, used = (number(said.get(key, "")) for key in ("vram total memory (b)", "vram total used memory (b)"))
        guid = said.get("guid", "")
        uuid = guid if guid.isdigit() else name
        card = Card(uuid, "GPU " + name[4:], total and total / 2**20, None if used is None else used / 2**20)
        unique = said.get("unique id", "").lower().replace("0x", "")
        card.variable = b"ROCR_VISIBLE_DEVICES"
        # Where the card has no id of its own, only its place in the list identifies it.
        card.visible = "GPU-" + unique if re.match(r"[0-9a-f]{1,32}\Z", unique) and unique.strip("0") else name[4:]
        # Releases before 6.0 do not tell the id that the kernel has for a card.
        users = used_by.get(uuid, []) if guid or len(found) > 1 else sum(used_by.values(), [])
        cards.append(card.look(users, memory_mb))
    return cards


def read_amd(text: str) -> "dict[str, dict[str, str]]":
    """The cards in what rocm-smi printed; warnings may surround the JSON, and releases differ in capitals."""
    try:
        said, _ = json.JSONDecoder().raw_decode(text[text.index("{") :])
    except (ValueError, RecursionError):
        return {}
    return {
        name: {key.lower(): str(value).strip() for key, value in card.items()}
        for name, card in (said.items() if isinstance(said, dict) else [])
        if re.match(r"card[0-9]{1,4}\Z", name) and isinstance(card, dict)
    }


def amd_processes() -> "dict[str, list[str]]":
    """List who holds memory on an AMD card, by the kernel's id of the card."""
    found: "dict[str, list[str]]" = {}
    for pid in os.listdir(KFD) if os.path.isdir(KFD) else []:
        for name in os.listdir(os.path.join(KFD, pid)) if pid.isdigit() else []:
            try:
                with open(os.path.join(KFD, pid, name)) as file:
                    if name.startswith("vram_") and int(file.read()):
                        found.setdefault(name[5:], []).append(owner_of(int(pid)))
            except (OSError, ValueError):
                continue
    return found


def owner_of(pid: int) -> str:
    """The name of the user who runs a process; the process itself where that is not visible, as in a container."""
    try:
        uid = os.stat("/proc/%d" % pid).st_uid
    except OSError:
        return "process %d" % pid
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return "user %d" % uid


# The locks


def lease_folder() -> bytes:
    """The folder of all users' leases: a real one, of root, sticky and open to all. Raises NoCards."""
    for folder in SHARED:
        try:
            found = os.lstat(folder)
        except OSError:
            continue
        if stat.S_ISDIR(found.st_mode) and found.st_uid == 0 and found.st_mode & 0o1777 == 0o1777:
            return folder
    raise NoCards("there is no folder that all users share (/run/lock or /tmp), so no GPU can be leased", [])


def lease_file(folder: bytes, uuid: str) -> bytes:
    return os.path.join(folder, PREFIX + to_bytes(uuid.replace("/", "_")))


def open_lease(path: bytes) -> int:
    """Open a lease's file, or make it. Raises OSError if what is there is not a plain file with this name alone."""
    # A pipe must not make us wait, and a link must not lead us elsewhere. First without O_CREAT: kernels refuse to
    # "create" an existing file of another user in a sticky folder.
    flags = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        fd = os.open(path, os.O_RDWR | flags)
    except PermissionError:
        # It can be locked although it cannot be written.
        fd = os.open(path, os.O_RDONLY | flags)
    except FileNotFoundError:
        before = os.umask(0)
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | flags, 0o666)
        finally:
            os.umask(before)
    found = os.fstat(fd)
    # With a second name it may be a file of ours, which its record would overwrite.
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        os.close(fd)
        raise OSError(errno.EINVAL, "it is not a plain file")
    return fd


def lock_lease(path: bytes) -> int:
    """Lock a lease's file. Raises BlockingIOError if somebody holds it, another OSError if it cannot be used."""
    while True:
        try:
            fd = open_lease(path)
        except FileExistsError:
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Its owner may have removed it meanwhile: then another file of that name is what counts.
            if os.path.samestat(os.lstat(path), os.fstat(fd)):
                return fcntl.fcntl(fd, fcntl.F_DUPFD, FIRST_FD)
        except FileNotFoundError:
            pass
        finally:
            os.close(fd)


def holder_of(path: bytes) -> str:
    """Say who holds a lease. Of the user, the kernel is believed before what is written there, by whomever."""
    try:
        with closing_fd(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)) as fd:
            found, text = os.fstat(fd), os.read(fd, MOST_RECORD).decode("utf-8", "replace")
    except OSError:
        return LEASED + " by somebody"
    said = dict(line.split(" ", 1) for line in text.split("\n") if " " in line)
    pids = [int(pid) for pid in (said.get("pid", ""), locked_by(found)) if re.match(r"[1-9][0-9]{0,8}\Z", pid)]
    # A shell's keeper locks by a program that ends at once.
    living = [owner_of(pid) for pid in pids if os.path.exists("/proc/%d" % pid)]
    user = living[0] if living else "".join(letter for letter in said.get("user", "")[:64] if letter.isprintable())
    job, until = said.get("job", ""), number(said.get("until", "")) or 0.0
    words = "%s by %s" % (LEASED, user or "somebody")
    words += " (job %s)" % job if re.match(r"[\w@%+=,-]{1,60}\Z", job) else ""
    return words + (time.strftime(" until %Y-%m-%d %H:%M UTC", time.gmtime(until)) if 0 < until < 1e11 else "")


def locked_by(found: os.stat_result) -> str:
    """The pid of the process that locked a file, "" where the kernel does not tell."""
    key = "%02x:%02x:%d" % (os.major(found.st_dev), os.minor(found.st_dev), found.st_ino)
    try:
        with open("/proc/locks") as file:
            rows = [line.split() for line in file]
    except OSError:
        return ""
    return next((row[4] for row in rows if len(row) > 5 and row[1] == "FLOCK" and row[5] == key), "")


class Leases:
    """The cards that a job holds. The command inherits the locks, so a command whose keeper was killed keeps them."""

    def __init__(self) -> None:
        self.fds: "dict[bytes, int]" = {}
        self.cards: "list[Card]" = []
        self.record = b""
        self.looked = 0.0

    def take(self, count: int, memory_mb: int, record: bytes) -> None:
        """Lease so many cards that are free now, all or none of them. Raises NoCards."""
        self.record = record
        cards = all_cards(memory_mb)
        for attempt in range(ATTEMPTS):
            if self.try_cards(cards, count):
                for fd in self.fds.values():
                    self.write(fd)
                return
            self.drop()
            leased = [card for card in cards if card.why.startswith(LEASED)]
            # Without those that somebody else may just be letting go, another attempt would find the same.
            if attempt == ATTEMPTS - 1 or sum(not card.why for card in cards) + len(leased) < count:
                break
            time.sleep(random.uniform(0.05, 0.3))
            for card in leased:
                card.why = ""
        asked = "%d GPU%s%s" % (count, "s" * (count > 1), " with %d MB free" % memory_mb if memory_mb else "")
        is_free = sum(not card.why for card in cards)
        message = "%s cannot be had now: %d of %d are free" % (asked, is_free, len(cards))
        raise NoCards(message, ["%s %s" % (card.name, card.why) for card in cards if card.why])

    def try_cards(self, cards: "list[Card]", count: int) -> bool:
        """Lock free cards in a fixed order without waiting, until there are enough; the smallest that do go first."""
        folder = lease_folder()
        for card in sorted(cards, key=lambda card: card.total or 0.0):
            # One program cannot use cards of two vendors.
            if card.why or len(self.cards) == count or any(card.variable != mine.variable for mine in self.cards):
                continue
            path = lease_file(folder, card.uuid)
            try:
                self.fds[path] = lock_lease(path)
                self.cards.append(card)
            except BlockingIOError:
                card.why = holder_of(path)
            except OSError as problem:
                card.why = "cannot be leased: %s: %s" % (path.decode(), problem.strerror)
        return len(self.cards) == count

    @property
    def variables(self) -> "dict[bytes, bytes]":
        """Variables that let the command see its cards and no others."""
        visible = to_bytes(",".join(card.visible for card in self.cards))
        return {self.cards[0].variable: visible} if self.cards else {}

    def write(self, fd: int, text: "bytes | None" = None) -> None:
        # The file of a user who lets nobody write it, or a full disk: the lock alone decides.
        with contextlib.suppress(OSError):
            os.ftruncate(fd, 0)
            os.pwrite(fd, self.record if text is None else text, 0)

    def keep(self) -> None:
        """Lease again what was removed: a file's owner can do so, and programs that clean /tmp."""
        if not self.fds or time.monotonic() < self.looked + KEEP_S:
            return
        self.looked = time.monotonic()
        for path, fd in list(self.fds.items()):
            with contextlib.suppress(OSError):
                if os.path.samestat(os.lstat(path), os.fstat(fd)):
                    continue
            try:
                # The old lock stays: the command has it, too.
                self.fds[path] = lock_lease(path)
                self.write(self.fds[path])
            except OSError:
                continue

    def drop(self) -> None:
        """Release all. By unlocking: a process that the command left behind has the descriptors, too."""
        for fd in self.fds.values():
            self.write(fd, b"")
            fcntl.flock(fd, fcntl.LOCK_UN)
            os.close(fd)
        self.fds, self.cards = {}, []


def all_cards(memory_mb: int) -> "list[Card]":
    """All cards of the machine. Raises NoCards if there are none, or their driver does not answer."""
    folders = (os.environ.get("PATH", "") + TOOL_FOLDERS).split(":")
    is_nvidia = any(os.access(os.path.join(folder, "nvidia-smi"), os.X_OK) for folder in folders)
    cards = nvidia_cards(memory_mb) if is_nvidia else amd_cards(memory_mb)
    if not cards:
        raise NoCards("neither nvidia-smi nor rocm-smi tells of a GPU there", [])
    return cards


def lease_record(job: str, run_for_s: float) -> bytes:
    """Describe a lease for everybody who reads its file."""
    now = time.time()
    until = "until %d\n" % (now + run_for_s) if run_for_s else ""
    return to_bytes("user %s\njob %s\npid %d\nsince %d\n%s" % (user_name(), job, os.getpid(), now, until))[:MOST_RECORD]
