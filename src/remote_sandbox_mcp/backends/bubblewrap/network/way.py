"""Whether a local sandbox can have a private network, and how bubblewrap is started in it."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

from ....core.sandboxes.network import Network, Reach
from ....local.processes.programs import find_helper
from ..bwrap import STEP_DOWN_TO, Footing, complaint_of, doubt_as_root, forbidding_switch
from .enter import NAMESERVER, PROXY_PORT

# Not the user that commands run as: they must not control the carrier of their network.
CARRIER = STEP_DOWN_TO + 1
PACKAGES = str(Path(__file__).parents[4])
START = (
    "import sys;sys.path.append(sys.argv[1]);"
    "from remote_sandbox_mcp.backends.bubblewrap.network.enter import main;main(sys.argv[2:])"
)
RESOLVER = f"nameserver {NAMESERVER}\n"
PROXY = f"http://127.0.0.1:{PROXY_PORT}"
SHARE = 'the operator can set network = "host" in config.toml, which shares the network of this computer'
OTHERWISE = (
    f'name the hosts that it needs (network=["pypi.org", "files.pythonhosted.org"]), which takes no program; {SHARE}'
)

# Only successes are cached: the reason for a failure may be fixed a minute later.
_works: set[tuple[Reach, int]] = set()


def find_slirp() -> str:
    """The program, or nothing."""
    return find_helper("slirp4netns")


def is_own(network: Network) -> bool:
    return network.reach in (Reach.OUTSIDE, Reach.HOSTS)


def prefix(network: Network, footing: Footing) -> list[str]:
    """The beginning of a command line that runs the rest in a private network; empty where none is wanted."""
    if not is_own(network):
        return []
    settings = {
        "reach": network.reach.value,
        "hosts": network.hosts,
        "private_ranges": network.private_ranges,
        "slirp": find_slirp(),
        "user": CARRIER if footing.step_down else 0,
    }
    return [own_python(), "-IS", "-c", START, PACKAGES, json.dumps(settings)]


def own_python() -> str:
    """Our own Python; for root by its real path, because the link of an environment leads where its owner wants."""
    return sys.executable if os.geteuid() else os.path.realpath(sys.executable)


def variables(network: Network) -> dict[str, str]:
    """Proxy variables; some programs only know lower-case names, and most know nothing of SOCKS."""
    if network.reach is not Reach.HOSTS:
        return {}
    values = {"http_proxy": PROXY, "https_proxy": PROXY, "all_proxy": PROXY, "no_proxy": "localhost,127.0.0.1,::1"}
    return {**values, **{name.upper(): value for name, value in values.items()}}


async def why_not(network: Network, footing: Footing) -> str:
    """Empty where a private network is possible; else one sentence that says what to do."""
    if footing.landlock and is_own(network):
        return f"a sandbox on this machine cannot have a network of its own where namespaces are forbidden; {SHARE}"
    if not is_own(network) or (network.reach, os.geteuid()) in _works:
        return ""
    if network.reach is Reach.OUTSIDE and not find_slirp():
        return (
            "a sandbox on this machine needs slirp4netns for a network of its own, which is not installed: run "
            f"`sudo apt install slirp4netns` (Debian, Ubuntu) or `sudo dnf install slirp4netns`; or {OTHERWISE}"
        )
    if why := doubt_as_root(Path(own_python())):
        return f"a sandbox on this machine cannot have a network of its own, because root would start {why}: {SHARE}"
    trial = [*prefix(network, footing), "/bin/sh", "-c", ":"]
    if complaint := (await asyncio.to_thread(complaint_of, trial)).rpartition("\n")[2]:
        cure = _cure(network, complaint)
        return f"a sandbox on this machine cannot have a network of its own here ({complaint}): {cure}"
    _works.add((network.reach, os.geteuid()))
    return ""


def _cure(network: Network, complaint: str) -> str:
    if "/dev/net/tun" in complaint:
        return f"let this user open /dev/net/tun (in a container: `docker run --device /dev/net/tun`); or {OTHERWISE}"
    if cure := forbidding_switch():
        return f"run `{cure}`; or {SHARE}"
    return OTHERWISE if network.reach is Reach.OUTSIDE else SHARE
