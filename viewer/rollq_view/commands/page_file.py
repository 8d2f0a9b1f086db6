"""`rollq show --html`: one rollout as a web page in a file that needs nothing else."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollq.errors import SettingsError
from rollq.trajectory import Trajectory
from rollq_view.exported import page_of_record
from rollq_view.redis_place import page_of_job
from rollq_view.single_page import single_page
from rollq_view.token_texts import load_texts, with_texts


def write(
    out: Path,
    rollout: Mapping[str, Any] | tuple[Any, Trajectory, Mapping[str, bytes]],
    attempt: int | None,
    tokenizer: str | None,
) -> None:
    """Writes the page of an exported record, or of a job in Redis as `RolloutReader.rollout` has
    it. Raises RollqError.
    """
    if isinstance(rollout, Mapping):
        page = page_of_record(rollout)
    else:
        page = page_of_job(*rollout, attempt)
    try:
        out.write_text(single_page(with_texts(page, load_texts(tokenizer))), encoding="utf-8")
    except OSError as e:
        raise SettingsError(f"cannot write {out}: {e.strerror}") from e
