"""Teachers' scores of the rows of a batch as numpy arrays."""

from __future__ import annotations  # numpy's names are not there at run time

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rollq.errors import ContractError
from rollq.teachers import SCORE
from rollq.trajectory import Segment

if TYPE_CHECKING:
    from numpy import ndarray

    Numpy = ndarray[Any, Any]

FIELDS = {
    "": "teacher_logprobs",
    "top_ids": "teacher_top_ids",
    "top_logprobs": "teacher_top_logprobs",
}
"""The field of `SegmentArrays` for each kind of a teacher's scores."""


def teacher_scores(segments: Sequence[Segment], mask: Numpy) -> dict[str, Any]:
    """The fields of `SegmentArrays`, by name: for each teacher one array, with an entry for each
    token of `mask`, which is that of all rows end to end.
    """
    fields: dict[str, dict[str, Numpy]] = {name: {} for name in FIELDS.values()}
    for extra in dict.fromkeys(name for segment in segments for name in segment.scores):
        teacher, _, kind = extra.removeprefix(SCORE).partition("/")
        fields[FIELDS[kind]][teacher] = _at_mask(extra, segments, mask)
    return fields


def _at_mask(extra: str, segments: Sequence[Segment], mask: Numpy) -> Numpy:
    import numpy as np

    first = next(segment.scores[extra] for segment in segments if extra in segment.scores)
    width = first.shape[1:]
    is_float = first.dtype == "float32"
    stored, dtype, missing = ("<f4", "float32", np.nan) if is_float else ("<u4", "int64", -1)
    array = np.full((len(mask), *width), missing if width else 0.0, dtype)
    parts = []
    for segment in segments:
        scores = segment.scores.get(extra)
        if scores is None:
            parts.append(np.full((segment.mask.count(1), *width), missing, dtype))
        elif scores.shape[1:] == width:
            parts.append(np.frombuffer(scores.data, stored).reshape(scores.shape))
        else:
            raise ContractError(f"{extra}: its rows differ in top_k in this batch")
    array[mask] = np.concatenate(parts)
    return array
