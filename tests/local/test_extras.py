from __future__ import annotations

import pytest

from remote_sandbox_mcp.core.errors import ConfigError
from remote_sandbox_mcp.local.extras import need


def test_a_missing_extra_is_named_and_one_that_is_there_is_not() -> None:
    need("keyring", "unable to get a secret")
    with pytest.raises(
        ConfigError, match=r"^unable to fly: this installation lacks the extra \[no_such_extra\]; install"
    ):
        need("no_such_extra", "unable to fly")
