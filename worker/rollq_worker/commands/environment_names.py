"""Environments as the commands meet them: by a name that may be wrong, and may need an extra."""

from typing import TYPE_CHECKING

from rollq.errors import RollqError, SettingsError
from rollq.extras import needs

if TYPE_CHECKING:
    from rollq_worker.protocols import Domain


def world(env: str, wanted: str = "demo") -> "Domain":
    """The environment of that name; `wanted` is the extra that the command needs. Raises SettingsError."""
    with needs(wanted):
        from rollq_worker.environments import domain
    try:
        return domain(env)
    except RollqError as e:
        raise SettingsError(str(e)) from e


def task_count(env: str, split: str) -> int:
    """How many tasks there are. Raises SettingsError for an unknown environment or split."""
    try:
        splits = world(env).splits()
    except RollqError as e:
        raise SettingsError(str(e)) from e
    if split not in splits:
        known = ", ".join(f"{name} ({count} tasks)" for name, count in splits.items())
        raise SettingsError(f"{env} has no split {split!r}; it has {known}")
    return splits[split]
