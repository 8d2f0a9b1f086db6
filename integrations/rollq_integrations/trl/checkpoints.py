"""The checkpoint of a trainer to go on from."""

from pathlib import Path


def last_checkpoint(folder: str | Path) -> str | None:
    """The newest checkpoint of an output folder that was written to its end, for
    `resume_from_checkpoint`; None when there is none.

    A trainer that is killed may leave one without its last file, trainer_state.json.
    """
    complete: dict[int, Path] = {}
    for file in Path(folder).glob("checkpoint-*/trainer_state.json"):
        step = file.parent.name.removeprefix("checkpoint-")
        if step.isdecimal():  # else it is a copy of yours
            complete[int(step)] = file.parent
    return str(complete[max(complete)]) if complete else None
