"""One server over HTTP with a hub, and a browser that has entered its page."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fronts.http.conftest import Service, service
from tests.support.page import Browser
from tests.support.server import entry
from tests.support.sshd import Fleet, Sshd

PASSWORD_WORD = "a-password-of-the-operators"
# A call of more than this outlasts its call.
CONFIG = '[disposable]\nprovider = "embedded"\n[server]\npatience_s = 6\n'


@pytest.fixture(scope="module")
def machine(fleet: Fleet) -> Sshd:
    return fleet.machine("for-page")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, machine: Sshd) -> Iterator[Service]:
    home = tmp_path_factory.mktemp("home")
    secret = entry(machine, name="guarded", key_file="", password=PASSWORD_WORD, port=1)
    with service(home, entries=(entry(machine), secret), config=CONFIG) as running:
        yield running


@pytest.fixture
def browser(served: Service) -> Browser:
    entered = Browser(served.port)
    assert entered.enter(served.key).status == 200
    return entered
