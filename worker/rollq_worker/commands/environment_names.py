"""Environments by the names that a user gives to commands: a wrong name or a missing extra becomes
one clear error.
"""

from typing import TYPE_CHECKING

from rollq.errors import RollqError, SettingsError
from rollq.pip_extras import needs

if TYPE_CHECKING:
    from rollq.env import Domain


def load_domain(env: str, extra: str = "demo") -> "Domain":
    """The environment of that name. `extra` is the extra that the command needs. Raises
    SettingsError.
    """
    with needs(extra):
        from rollq_worker.environments import domain
    try:
        return domain(env)
    except RollqError as e:
        raise SettingsError(str(e)) from e


def task_count(env: str, split: str) -> int:
    """Number of tasks of a split. Raises SettingsError for an unknown environment or split."""
    splits = load_domain(env).splits()
    if split not in splits:
        counts = ", ".join(f"{name} ({count} tasks)" for name, count in splits.items())
        raise SettingsError(f"{env} has no split {split!r}; it has {counts}")
    return splits[split]
