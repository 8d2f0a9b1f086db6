"""The checkpoint of a trainer to go on from."""

from pathlib import Path


def last_checkpoint(folder: str | Path) -> str | None:
    """The newest checkpoint of an output folder that was written to its end, for
    `resume_from_checkpoint`; None when there is none.

    A trainer that is killed may leave one without its last file, trainer_state.json.
    """
    complete = [file.parent for file in Path(folder).glob("checkpoint-*/trainer_state.json")]
    if not complete:
        return None
    newest = max(complete, key=lambda folder: int(folder.name.removeprefix("checkpoint-")))
    return str(newest)
