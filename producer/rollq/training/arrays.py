"""Rows to train on as numpy arrays or torch tensors, with teachers' scores: padded to one length,
or packed end to end.

Imports numpy and torch when they are first needed. `Batch.arrays` and `Batch.packed` are the way
in.
"""

from __future__ import annotations  # numpy's names are not there at run time

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import accumulate, pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from rollq.errors import ContractError
from rollq.events import Sampled
from rollq.pip_extras import needs
from rollq.teachers import SCORE
from rollq.trajectory import Segment, Traces, Trajectory
from rollq.trajectory_extras import ROUTED_EXPERTS, Extra

if TYPE_CHECKING:
    from numpy import ndarray
    from torch import Tensor

    Numpy = ndarray[Any, Any]

Array = TypeVar("Array")
SCORE_FIELDS = {
    "": "teacher_logprobs",
    "top_ids": "teacher_top_ids",
    "top_logprobs": "teacher_top_logprobs",
}
"""The field of `SegmentArrays` for each kind of a teacher's scores."""


def array_of(extra: Extra) -> Numpy:
    """The array of `Extra.shape`, read-only. Raises SettingsError without numpy, ContractError for
    a dtype that numpy does not have in that size.
    """
    with needs("numpy"):
        import numpy as np
    try:
        dtype = np.dtype(extra.dtype).newbyteorder("<")
    except TypeError as e:
        raise ContractError(f"numpy has no dtype {extra.dtype!r}: read extra.data yourself") from e
    if dtype.itemsize != extra.itemsize:
        raise ContractError(
            f"an entry of this extra has {extra.itemsize} bytes, one of {extra.dtype} "
            f"{dtype.itemsize}"
        )
    return np.frombuffer(extra.data, dtype).reshape(extra.shape)


def segment_experts(trajectory: Trajectory, traces: Traces = "all") -> list[Numpy]:
    """The routed experts of each of its segments (`Trajectory.segments`): (tokens of prompt and
    response, layers, top-k), as views.

    Empty when the trajectory has none: its job did not ask for them, or the consumer did not.
    """
    if ROUTED_EXPERTS not in trajectory.extras:
        return []
    experts = array_of(trajectory.extras[ROUTED_EXPERTS])
    bounds = [*pairwise(accumulate(trajectory.traces, initial=0))]
    return [experts[slice(*bounds[segment.trace])] for segment in trajectory.segments(traces)]


def refuse_agent_rewards(trajectory: Trajectory, trainer: str) -> None:
    """Raises ContractError where agents have rewards of their own, which the adapter for this
    trainer has no place for.
    """
    if trajectory.rewards:
        raise ContractError(
            f"job {trajectory.job.id}: its agents have rewards of their own, and rollq's adapter "
            f"for {trainer} has one for the episode: train on batch.arrays()"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of the arrays: a segment, and what is known of its trajectory."""

    segment: Segment
    job_id: str
    trajectory: int
    group: int
    reward: float
    advantage: float | Sequence[float]
    """The trajectory's, or one for each of its turns, by their numbers."""

    @property
    def length(self) -> int:
        """Number of tokens."""
        return len(self.segment.prompt_ids) + sum(len(event.ids) for event in self.segment.events)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SegmentArrays(Generic[Array]):
    """Fields of padded and packed arrays alike."""

    tokens: Array
    """`dtype`, int64 unless asked otherwise: token ids."""
    mask: Array
    """bool: True where the policy sampled the token. Train on these tokens and on no others."""
    logprobs: Array
    """float32: the engine's logprob of the token at the same place; 0.0 where the mask is False."""
    versions: Array
    """int32: the weight version that sampled the token, as an index into `version_names`; -1 where
    the mask is False.
    """
    version_names: tuple[str, ...]
    """The engine's names of the versions, in the order in which they first occur."""
    version_steps: Array
    """int64, (versions,): the training step of each of these versions; -1 where it is not known
    (`Client.publish`).
    """
    prompt_lengths: Array
    """int64, (rows,): number of tokens before the response."""
    rewards: Array
    """float32, (rows,): the reward of the row's trajectory, or of its agent (`Grade.rewards`)."""
    advantages: Array
    """float32, (rows,): the advantage of the row's trajectory in its group. With credit by turn it
    has the shape of `tokens`, and each sampled token the advantage of its turn; 0.0 where the mask
    is False.
    """
    weights: Array
    """float32, (rows,): the row's share of the sampled tokens of its trajectory's rows, so that
    those of a trajectory add up to 1. The mean of a row's token losses, times its weight, counts an
    episode once, whatever its traces.
    """
    trajectory_index: Array
    """int64, (rows,): the row's trajectory, as an index into `batch.trajectories`. Rows of one
    trajectory are neighbours.
    """
    group_index: Array
    """int64, (rows,): the row's group, as an index into `batch.groups`."""
    left_out: int
    """Number of rows that are not here because they have more than `max_length` tokens."""
    teacher_logprobs: Mapping[str, Array] = field(default_factory=dict)
    """Logprobs by the name of each teacher (`Job.teachers`), in the shape of `tokens`, float32: its
    logprob of the token at the same place, 0.0 where the mask is False, NaN in rows whose job does
    not name it.
    """
    teacher_top_ids: Mapping[str, Array] = field(default_factory=dict)
    """int64, in the shape of `tokens` and (top_k,): the likeliest tokens at each place, the
    likeliest first; -1 where the mask is False, or the job does not name the teacher. Of teachers
    whose `top_ids` extra was asked for.
    """
    teacher_top_logprobs: Mapping[str, Array] = field(default_factory=dict)
    """float32, in the same shape: the logprobs of these, if the `top_logprobs` extra was asked for.
    NaN where no token is named.
    """


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PaddedArrays(SegmentArrays[Array]):
    """One row per segment, padded on the right: `tokens`, `attention_mask`, `mask`, `logprobs` and
    `versions` have the shape (rows, length).

    Padding has token 0, masks False, logprob 0.0 and version -1. Place i of every array is about
    token i: a model that predicts token i at place i - 1 is compared with `logprobs[:, 1:]` under
    `mask[:, 1:]`.
    """

    attention_mask: Array
    """bool: True where the row has a token."""

    def torch(self) -> PaddedArrays[Tensor]:
        """The same as torch tensors on the CPU, which share the memory of the numpy arrays. Raises
        SettingsError when torch is not installed.
        """
        return PaddedArrays(**_tensors(self))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PackedArrays(SegmentArrays[Array]):
    """All rows end to end without padding: `tokens`, `positions`, `mask`, `logprobs` and `versions`
    have the shape (total,). Row r is at `offsets[r]:offsets[r + 1]`.
    """

    positions: Array
    """int64: the token's place in its row, from 0."""
    offsets: Array
    """int32, (rows + 1,): where the rows begin, and the total. Attention kernels for rows of
    different length take it as `cu_seqlens`.
    """

    def torch(self) -> PackedArrays[Tensor]:
        """The same as torch tensors on the CPU, which share the memory of the numpy arrays. Raises
        SettingsError when torch is not installed.
        """
        return PackedArrays(**_tensors(self))


def pad(
    rows: Sequence[Row],
    *,
    pad_to: int | None = None,
    dtype: str = "int64",
    by_turn: bool = False,
    version_steps: Mapping[str, int] = MappingProxyType({}),
    left_out: int = 0,
) -> PaddedArrays[Numpy]:
    """Rows of `pad_to` tokens each, or as long as the longest row.

    Raises ContractError when a row is longer than `pad_to`: nothing is ever cut.
    """
    with needs("numpy"):
        import numpy as np

    lengths = [row.length for row in rows]
    longest = max(lengths, default=0)
    width = longest if pad_to is None else pad_to
    if longest > width:
        job_id = rows[lengths.index(longest)].job_id
        raise ContractError(
            f"job {job_id}: a row of {longest} tokens does not fit pad_to={pad_to}: raise it, "
            "leave such rows out (max_length=), or submit jobs with a smaller budget.max_tokens"
        )
    padding = [width - length for length in lengths]
    flat, names = _end_to_end(rows, dtype, padding, by_turn)
    scores = _teacher_scores([row.segment for row in rows], flat["mask"])
    per_token = {name: array.reshape(len(rows), width) for name, array in flat.items()}
    return PaddedArrays(
        **_per_row(rows) | per_token,
        **{
            name: {
                teacher: array.reshape(len(rows), width, *array.shape[1:])
                for teacher, array in arrays.items()
            }
            for name, arrays in scores.items()
        },
        version_names=names,
        version_steps=_steps(names, version_steps),
        left_out=left_out,
        attention_mask=np.arange(width) < np.array(lengths, "int64")[:, np.newaxis],
    )


def pack(
    rows: Sequence[Row],
    *,
    dtype: str,
    by_turn: bool,
    version_steps: Mapping[str, int],
    left_out: int,
) -> PackedArrays[Numpy]:
    """The rows end to end. `by_turn`: see `_end_to_end`."""
    with needs("numpy"):
        import numpy as np

    per_token, names = _end_to_end(rows, dtype, [0] * len(rows), by_turn)
    offsets = np.array([0, *accumulate(row.length for row in rows)], "int64")
    positions = np.arange(offsets[-1]) - np.repeat(offsets[:-1], np.diff(offsets))
    return PackedArrays(
        **_per_row(rows) | per_token,
        **_teacher_scores([row.segment for row in rows], per_token["mask"]),
        version_names=names,
        version_steps=_steps(names, version_steps),
        left_out=left_out,
        positions=positions,
        offsets=offsets.astype("int32"),
    )


def _end_to_end(
    rows: Sequence[Row], dtype: str, padding: Sequence[int], by_turn: bool
) -> tuple[dict[str, Numpy], tuple[str, ...]]:
    """The arrays with one entry per token, each row with so much padding, and the names of the
    versions. `by_turn`: the rows' advantages are those of their turns.
    """
    import numpy as np

    if dtype not in ("int64", "int32"):
        raise ContractError(f"token ids have the dtype int64 or int32, not {dtype!r}")
    versions, names = _versions(rows, padding)
    mask = versions >= 0
    sampled = [event for row in rows for event in row.segment.events if isinstance(event, Sampled)]
    logprobs = np.zeros(len(mask), "float32")
    logprobs[mask] = np.frombuffer(b"".join(event.logprobs for event in sampled), "float32")
    arrays = {
        "tokens": _tokens(rows, dtype, padding),
        "mask": mask,
        "logprobs": logprobs,
        "versions": versions,
    }
    if by_turn:
        arrays["advantages"] = _turn_advantages(rows, mask)
    return arrays, tuple(names)


def _tokens(rows: Sequence[Row], dtype: str, padding: Sequence[int]) -> Numpy:
    import numpy as np

    tokens = np.zeros(sum(row.length for row in rows) + sum(padding), dtype)
    start = 0
    # Row by row: all of them in one buffer would be as many new pages of memory again.
    for row, padded in zip(rows, padding, strict=True):
        buffers = [row.segment.prompt_ids, *(event.ids for event in row.segment.events)]
        ids = np.frombuffer(b"".join(buffers), "uint32")
        tokens[start : start + len(ids)] = ids
        start += len(ids) + padded
    return tokens


def _versions(rows: Sequence[Row], padding: Sequence[int]) -> tuple[Numpy, list[str]]:
    """The index of the version that sampled each token, -1 for other tokens, and the names of the
    versions.
    """
    import numpy as np

    names: dict[str, int] = {}
    indices: list[int] = []
    lengths: list[int] = []
    for row, padded in zip(rows, padding, strict=True):
        unsampled = len(row.segment.prompt_ids)
        for event in row.segment.events:
            if not isinstance(event, Sampled):
                unsampled += len(event.ids)
                continue
            for span in event.versions:
                indices += [-1, names.setdefault(span.version, len(names))]
                lengths += [unsampled, span.end - span.start]
                unsampled = 0
        indices.append(-1)
        lengths.append(unsampled + padded)
    return np.repeat(np.array(indices, "int32"), lengths), [*names]


def _turn_advantages(rows: Sequence[Row], mask: Numpy) -> Numpy:
    """The advantage of each token's turn."""
    import numpy as np

    values: list[float] = []
    lengths: list[int] = []
    for row in rows:
        for event in row.segment.events:
            if isinstance(event, Sampled) and not isinstance(row.advantage, float):
                values.append(row.advantage[event.turn])
                lengths.append(len(event.ids))
    advantages = np.zeros(len(mask), "float32")
    advantages[mask] = np.repeat(values, lengths)
    return advantages


def _per_row(rows: Sequence[Row]) -> dict[str, Any]:
    import numpy as np

    advantages = [row.advantage if isinstance(row.advantage, float) else 0.0 for row in rows]
    trajectories = np.array([row.trajectory for row in rows], "int64")
    sampled = np.array([row.segment.sampled_tokens for row in rows], "int64")
    in_trajectory = np.bincount(trajectories, sampled)
    return {
        "prompt_lengths": np.array([len(row.segment.prompt_ids) for row in rows], "int64"),
        "rewards": np.array([row.reward for row in rows], "float32"),
        "advantages": np.array(advantages, "float32"),
        "weights": (sampled / in_trajectory[trajectories]).astype("float32"),
        "trajectory_index": trajectories,
        "group_index": np.array([row.group for row in rows], "int64"),
    }


def _steps(names: Sequence[str], version_steps: Mapping[str, int]) -> Numpy:
    import numpy as np

    return np.array([version_steps.get(name, -1) for name in names], "int64")


def _tensors(arrays: SegmentArrays[Any]) -> dict[str, Any]:
    """The fields, with arrays as tensors."""
    with needs("torch"):
        import torch

    values = {field.name: getattr(arrays, field.name) for field in fields(arrays)}
    for name, value in values.items():
        if isinstance(value, Mapping):
            values[name] = {teacher: torch.as_tensor(array) for teacher, array in value.items()}
        elif name not in ("version_names", "left_out"):
            values[name] = torch.as_tensor(value)
    return values


def _teacher_scores(segments: Sequence[Segment], mask: Numpy) -> dict[str, Any]:
    """The fields of `SegmentArrays`, by name: for each teacher one array, with an entry for each
    token of `mask`, which is that of all rows end to end.
    """
    fields: dict[str, dict[str, Numpy]] = {name: {} for name in SCORE_FIELDS.values()}
    for extra in dict.fromkeys(name for segment in segments for name in segment.scores):
        teacher, _, kind = extra.removeprefix(SCORE).partition("/")
        fields[SCORE_FIELDS[kind]][teacher] = _at_mask(extra, segments, mask)
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
