"""Checks arguments of the client and its consumers, once, where they enter."""

from collections.abc import Iterable
from math import inf
from typing import Literal

from rollq.errors import ContractError, SettingsError
from rollq.job import NAME
from rollq.numbers import is_number, whole_number

Order = Literal["ready", "submitted"]
"""`ready`: what is finished goes first. `submitted`: no group goes before an unfinished one that
was submitted earlier, which bounds how old a group can be.
"""
ORDERS = ("ready", "submitted")
MOST_DAYS = 36_500
"""Days for which a run may be told to keep a finished group's record."""


def check_client(run: str, hold_s: float) -> None:
    """Raises SettingsError unless a client can have this run, and hold batches for that long."""
    if not (isinstance(run, str) and NAME.fullmatch(run)):
        raise SettingsError(f"run {run!r} must match {NAME.pattern}")
    if not is_number(hold_s) or hold_s <= 0:
        raise SettingsError(f"hold_s must be a positive number of seconds, not {hold_s!r}")


def check_ahead(ahead: int) -> None:
    """Raises ContractError."""
    whole_number("ahead", ahead, at_least=1)


def check_days(days: float) -> None:
    """Raises SettingsError."""
    if not is_number(days) or not 0 < days <= MOST_DAYS:
        raise SettingsError(
            f"forget_after: days must be a positive number of at most {MOST_DAYS}, not {days!r}"
        )


def check_ids(job_ids: Iterable[str]) -> Iterable[str]:
    """Raises ContractError for a text in place of a list of ids."""
    if isinstance(job_ids, str):
        raise ContractError(f"give a list of ids of jobs, also of one: [{job_ids!r}]")
    return job_ids


def check_wanted(groups: int, timeout: float | None) -> None:
    """Raises ContractError unless a consumer can wait for that many groups, for that
    many seconds.
    """
    whole_number("groups", groups, at_least=1)
    check_timeout(timeout)


def check_timeout(timeout: float | None) -> None:
    """Raises ContractError unless it is a number of seconds or None."""
    if timeout is not None and not is_number(timeout) and timeout != inf:
        raise ContractError(f"timeout must be a number of seconds or None, not {timeout!r}")


def check_consumer(order: Order, name: str | None, step: int | None) -> None:
    """Raises ContractError unless a consumer may have this order, and begin after that step under
    this name.
    """
    if order not in ORDERS:
        raise ContractError(f"order must be {' or '.join(ORDERS)}, not {order!r}")
    if step is not None and name is None:
        raise ContractError(
            "step is that of a named consumer's batch: give the consumer a name, too"
        )
    if step is not None:
        whole_number("step", step, at_least=0)
    if name is not None and not (isinstance(name, str) and NAME.fullmatch(name)):
        raise ContractError(f"name {name!r} of a consumer must match {NAME.pattern}")
