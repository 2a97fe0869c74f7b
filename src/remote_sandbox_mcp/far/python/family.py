"""Processes of a session. On a machine this module is outpost/family itself."""

from ..outpost.family import PRCTL as PRCTL
from ..outpost.family import collect_children as collect_children
from ..outpost.family import descendants as descendants
from ..outpost.family import hear_signals as hear_signals
from ..outpost.family import read_status as read_status
from ..outpost.family import strike as strike
