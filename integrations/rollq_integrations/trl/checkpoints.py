"""Which checkpoint of a trainer to go on from."""

from pathlib import Path


def last_checkpoint(folder: str | Path) -> str | None:
    """The newest checkpoint of an output folder that was written to its end, for
    `resume_from_checkpoint`; None when there is none.

    A trainer that is killed may leave one without its last file, trainer_state.json.
    """
    whole = Path(folder).glob("checkpoint-*/trainer_state.json")
    newest = max(
        whole, key=lambda file: int(file.parent.name.removeprefix("checkpoint-")), default=None
    )
    return str(newest.parent) if newest else None
