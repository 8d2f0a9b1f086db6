"""Addresses: checks those of Redis, and masks the passwords of any. Opens no connection."""

import re
from urllib.parse import urlsplit

from rollq.errors import SettingsError

SCHEMES = ("redis", "rediss", "unix")


def check_url(url: str) -> None:
    """Raises SettingsError when `url` cannot be the address of a Redis."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as e:
        # The error is not quoted: it may hold the password.
        raise SettingsError(f"not an address of Redis: {mask_url(url)} (expected redis://HOST:PORT/DATABASE)") from e
    if parts.scheme not in SCHEMES:
        raise SettingsError(f"not an address of Redis: {mask_url(url)} (expected redis://, rediss:// or unix://)")
    if parts.scheme == "unix":
        if not parts.path:
            raise SettingsError(f"not an address of Redis: {mask_url(url)} (expected unix:///path/to/socket)")
    elif not parts.hostname or port == 0 or not re.fullmatch(r"/?\d*", parts.path):
        raise SettingsError(f"not an address of Redis: {mask_url(url)} (expected redis://HOST:PORT/DATABASE)")


def mask_url(url: str) -> str:
    """The address with every password replaced by `***`. A name without a password is masked too: it may be a token."""
    masked = re.sub(r"(?<=://)([^/?#@:]*):(.*)@", r"\1:***@", url)
    masked = re.sub(r"(?<=://)[^/?#@:]+@", "***@", masked)
    return re.sub(r"(?i)([?&;,](?:password|api_?key|key|token|secret)=)[^&;,]*", r"\1***", masked)
