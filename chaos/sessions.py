"""Schedules against the hub: clients of all kinds call at once while hubs and fronts are killed, ended and stopped."""

from __future__ import annotations

import signal
import time
from collections.abc import Collection
from random import Random
from typing import Any

from tests.support.pace import Deadline

from .calls import make_large
from .clients import KINDS, Client, Machine
from .faults import cut_line
from .faults import play as strike
from .leftovers import about_descriptors, about_files, about_logs, stop_hub
from .scene import Scene, end, send

SESSIONS = (1, 3)
# A call that is not answered by then is lost.
LOST_S = 150.0
# How long a fault waits for a command that it may interrupt.
AIM_S = 20.0


# Faults


def hub_at_work(scene: Scene, word: str = "") -> list[int]:
    """The hub, as soon as a command whose token has this word runs and is not answered; or when no more calls come."""
    deadline = Deadline(AIM_S)
    while scene.is_busy and not deadline.has_passed():
        if any(word in token and scene.times(token) for token in scene.unanswered()):
            break
        time.sleep(0.01)
    found: list[int] = scene.target(scene.hubs, "hub")
    return found


def end_at_work(scene: Scene, number: signal.Signals) -> int:
    """How many hubs were hit; one that ends by itself before it is hit has a successor, which is waited for."""
    return int(scene.target(lambda: end(hub_at_work(scene), number), "living hub"))


def kill_hub(scene: Scene, chance: Random) -> int:
    return end_at_work(scene, signal.SIGKILL)


def kill_two_hubs(scene: Scene, chance: Random) -> int:
    """The next one, too, in whatever it does then."""
    hits = end_at_work(scene, signal.SIGKILL)
    time.sleep(chance.uniform(0, 3))
    return min(hits, scene.target(lambda: end(scene.hubs()), "second hub"))


def end_hub(scene: Scene, chance: Random) -> int:
    return end_at_work(scene, signal.SIGTERM)


def pause_hub(scene: Scene, chance: Random) -> int:
    """Shorter than fronts are patient."""
    paused = stopped_hubs(scene)
    time.sleep(chance.uniform(0.2, 4))
    return send(paused, signal.SIGCONT)


def stop_and_kill_hub(scene: Scene, chance: Random) -> int:
    hubs = stopped_hubs(scene)
    time.sleep(chance.uniform(0.2, 2))
    return end(hubs)


def stopped_hubs(scene: Scene) -> list[int]:
    found: list[int] = scene.target(lambda: [pid for pid in scene.hubs() if send([pid], signal.SIGSTOP)], "living hub")
    return found


def kill_hub_before_answers(scene: Scene, chance: Random) -> int:
    """Fronts that do not read, as of a computer that is about to sleep: answers die with the hub that has them."""
    return int(scene.target(lambda: kill_before_answers(scene, chance), "living hub"))


def kill_before_answers(scene: Scene, chance: Random) -> int:
    hubs = hub_at_work(scene, "large")
    fronts = [process.pid for process in scene.servers if process.poll() is None]
    large = [token for token in scene.unanswered() if "large" in token]
    send(fronts, signal.SIGSTOP)
    deadline = Deadline(2)
    while not deadline.has_passed() and not all(scene.times(f"{token}-ended") for token in large):
        time.sleep(0.02)
    time.sleep(chance.uniform(0.05, 0.4))
    hits = end(hubs)
    send(fronts, signal.SIGCONT)
    return hits


FAULTS = (
    *(kill_hub, kill_hub, kill_two_hubs, end_hub, pause_hub),
    *(stop_and_kill_hub, kill_hub_before_answers, cut_line),
)


# A schedule


def play(scene: Scene, seed: int, only: Collection[str] = ()) -> list[str]:
    """What was wrong in the end; nothing, if all is well. The same seed makes the same choices."""
    chance = Random(seed)
    scene.prepare(local=True)
    clients = cast(scene, chance)
    scene.clients = clients
    if "kill_hub_before_answers" in only:
        for client in clients:
            client.always = (make_large,)
    scene.is_striking = True
    for client in clients:
        client.start()
    faults = [fault for fault in FAULTS if not only or fault.__name__ in only]
    try:
        for _ in range(chance.randint(1, 4)):
            time.sleep(chance.uniform(0, 1.5))
            strike(scene, chance.choice(faults), chance)
    finally:
        scene.is_striking = False
    for client in clients:
        if isinstance(client, Machine) and client.is_doomed:
            strike(scene, front_killer(client), chance)
    deadline = time.monotonic() + LOST_S
    for client in clients:
        client.join(max(0.1, deadline - time.monotonic()))
    wrong = [each for client in clients for each in client.complaints()]
    wrong += [] if any(client.is_alive() for client in clients) else leave(scene, clients)
    return [*wrong, *([f"after {', '.join(it.fault for it in scene.strikes)}"] if wrong else [])]


def cast(scene: Scene, chance: Random) -> list[Client]:
    """One client that stays, others of any kind, and perhaps one whose front is killed."""
    kinds = [Machine, *(chance.choice(KINDS) for _ in range(chance.randint(*SESSIONS)))]
    clients: list[Client] = [kind(scene, chance, number) for number, kind in enumerate(kinds)]
    if chance.random() < 0.3:
        doomed = Machine(scene, chance, len(clients))
        doomed.is_doomed = True
        clients.append(doomed)
    return clients


def front_killer(client: Machine) -> Any:
    def kill_front(scene: Scene, chance: Random) -> int:
        process = scene.target(lambda: hasattr(client, "wire") and client.wire.process, "front")
        return send([process.pid] if process.poll() is None else [], signal.SIGKILL)

    return kill_front


def leave(scene: Scene, clients: list[Client]) -> list[str]:
    """The clients go; what they leave must be nothing."""
    wrong = end_sessions(scene)
    wrong += [each for client in clients for each in client.leave()]
    wrong += about_descriptors(scene)
    wrong += stop_hub(scene)
    expected = frozenset(made.token for client in clients for made in client.made if made.token)
    names = {"count", "job.py", *(f"edited-{it.number}" for it in clients), *(f"linked-{it.number}" for it in clients)}
    return [*wrong, *about_rows(scene), *about_logs(scene), *about_files(scene, expected | names)]


def end_sessions(scene: Scene) -> list[str]:
    """Sessions of Python live for hours; close them as an agent does."""
    wire = scene.serve()
    listed = wire.call("list_background_tasks", sandbox_name="gpu").get("structuredContent") or {}
    handles = [task["tmux_session"] for task in listed.get("tasks", ()) if task.get("kind") in ("python", "shell")]
    ended = {handle: wire.call("stop_background_task", tmux_session=handle, sandbox_name="gpu") for handle in handles}
    assert wire.process.stdin
    wire.process.stdin.close()
    wire.process.wait(30)
    return [f"{handle} could not be closed: {it}" for handle, it in ended.items() if it.get("isError")]


def about_rows(scene: Scene) -> list[str]:
    twice = scene.rows("SELECT job_id, COUNT(*) AS n FROM watches GROUP BY job_id HAVING n > 1")
    found = [f"{len(twice)} jobs have several watches"] if twice else []
    kept = scene.rows("SELECT * FROM disposables WHERE status != 'gone'")
    return found + ([f"disposable sandboxes that were deleted are still there: {kept}"] if kept else [])
