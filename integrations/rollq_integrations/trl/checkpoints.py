"""The checkpoint of a trainer to go on from."""

import json
from pathlib import Path


def last_checkpoint(folder: str | Path) -> str | None:
    """The newest checkpoint of an output folder that was written to its end, for
    `resume_from_checkpoint`; None when there is none.

    A trainer that is killed, or whose disk is full, may leave one without its last file,
    trainer_state.json, or with a part of it.
    """
    complete: dict[int, Path] = {}
    for file in Path(folder).glob("checkpoint-*/trainer_state.json"):
        step = file.parent.name.removeprefix("checkpoint-")
        if step.isdecimal() and _is_json(file):  # else it may be a copy of yours
            complete[int(step)] = file.parent
    return str(complete[max(complete)]) if complete else None


def _is_json(file: Path) -> bool:
    try:
        json.loads(file.read_bytes())
    except ValueError:
        return False
    return True
