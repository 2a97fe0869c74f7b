"""One-time codes that a clock and a seed give (RFC 6238), as authenticator apps show them."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit

ALGORITHMS = ("SHA1", "SHA256", "SHA512")
DIGITS, PERIODS = range(6, 11), range(5, 301)


@dataclass(frozen=True)
class Totp:
    """A seed, and how codes are made of it. A code holds for one time step of `period_s`."""

    key: bytes = field(repr=False)
    digits: int = 6
    period_s: int = 30
    algorithm: str = "SHA1"

    def code(self, step: int) -> str:
        """
        >>> Totp(b"12345678901234567890", digits=8).code(59 // 30)
        '94287082'
        """
        digest = hmac.new(self.key, step.to_bytes(8, "big"), self.algorithm.lower()).digest()
        offset = digest[-1] & 0xF
        number = int.from_bytes(digest[offset : offset + 4], "big") & 0x7FFFFFFF
        return str(number % 10**self.digits).zfill(self.digits)

    @property
    def identity(self) -> str:
        """Digest that identifies it without its key."""
        return hashlib.sha256(self.key).hexdigest()


def read_seed(text: str) -> Totp:
    """A seed as sites show it: base32, or the otpauth:// address of a QR code.

    Raises ValueError, which shows nothing of it.
    """
    given = text.strip()
    if not given.lower().startswith("otpauth:"):
        return Totp(_key(given))
    address = urlsplit(given)
    if address.netloc.lower() != "totp":
        raise ValueError("it counts uses instead of time (hotp), which cannot be shared between programs")
    fields = {name: values[-1] for name, values in parse_qs(address.query).items()}
    algorithm = fields.get("algorithm", "SHA1").upper()
    if algorithm not in ALGORITHMS:
        raise ValueError(f"its algorithm is none of {', '.join(ALGORITHMS)}")
    digits, period_s = _number(fields, "digits", 6, DIGITS), _number(fields, "period", 30, PERIODS)
    return Totp(_key(fields.get("secret", "")), digits, period_s, algorithm)


def _key(text: str) -> bytes:
    letters = "".join(text.replace("-", "").split()).rstrip("=").upper()
    try:
        key = base64.b32decode(letters + "=" * (-len(letters) % 8))
    except (binascii.Error, ValueError):
        key = b""
    if not key:
        raise ValueError("it is neither a seed in base32 nor an otpauth:// address")
    return key


def _number(fields: dict[str, str], name: str, usual: int, allowed: range) -> int:
    given = fields.get(name, str(usual))
    if not given.isdecimal() or int(given) not in allowed:
        raise ValueError(f"its {name} must be a whole number from {allowed[0]} to {allowed[-1]}")
    return int(given)
