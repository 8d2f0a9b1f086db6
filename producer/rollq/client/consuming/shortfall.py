"""What a consumer says when its batch does not come: too few groups are left, or they are late."""

from rollq.errors import MissingGroups
from rollq.ledger.deliveries import Taken


def missing_groups(run: str, taken: Taken, groups: int, kept: int) -> MissingGroups:
    """The error of an exact batch that stays short; `kept` of its groups are held already."""
    ready = taken.ready + kept
    missing = groups - ready
    remedy = f"Submit {missing} more: `Client.refill` replaces the dropped ones. Then ask again"
    if taken.sealed:
        remedy = f"The run is sealed and takes no more groups: ask for at most {ready}"
    dropped = f"{taken.dropped} dropped" + (
        " (`rollq jobs list` says why)" if taken.dropped else ""
    )
    error = MissingGroups(
        f"run {run}: {missing} of {groups} groups missing: {ready} ready, none being "
        f"played, {dropped}. {remedy}."
    )
    error.missing, error.ready, error.dropped = missing, ready, taken.dropped
    return error


def late(run: str, taken: Taken, groups: int, timeout: float, held: int, why: str) -> str:
    """The text of a timeout. `held`: groups that the consumer holds itself; `why`: the explanation
    of its wait.
    """
    text = (
        f"run {run}: no {groups} groups were ready within {timeout:g} s: {taken.ready} "
        f"ready, {taken.open} open,"
        f" {taken.others + held} held"
    )
    return f"{text}; {why.removeprefix(f'run {run}: ')}" if why else text
