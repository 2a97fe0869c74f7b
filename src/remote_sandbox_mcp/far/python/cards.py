"""Leases of GPUs for sessions. On a machine this module is jobs/cards itself, with what that needs."""

from ..jobs.cards import Leases as Leases
from ..jobs.cards import NoCards as NoCards
from ..jobs.cards import lease_record as lease_record
from ..outpost.place import birth_of as birth_of
from ..outpost.place import is_locked as is_locked
