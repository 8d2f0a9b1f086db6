"""Padded and packed arrays of a batch. Every token's id says what must stand at its place."""

import itertools
import sys
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollq.batch import Batch
from rollq.errors import ContractError, SettingsError
from rollq.training.arrays import PackedArrays, PaddedArrays
from tests.rollq.token_rows import (
    batch_of,
    batches,
    episode,
    logprob_of,
    sampled_id,
    sampled_tokens,
    scored,
    version_of,
)

NAMED = {"tokens", "mask", "logprobs", "versions"}


def check_places(arrays: "PaddedArrays[Any] | PackedArrays[Any]", real: Any) -> None:
    """At the places of real tokens everything is about that token; elsewhere there is nothing."""
    flat = {name: getattr(arrays, name)[real].tolist() for name in NAMED}
    assert flat["mask"] == [sampled_id(token) for token in flat["tokens"]]
    assert flat["logprobs"] == [logprob_of(token) for token in flat["tokens"]]
    names = [
        arrays.version_names[version] if version >= 0 else None for version in flat["versions"]
    ]
    assert names == [version_of(token) for token in flat["tokens"]]
    for name, nothing in {"tokens": 0, "mask": False, "logprobs": 0.0, "versions": -1}.items():
        assert (getattr(arrays, name)[~real] == nothing).all()


def a_batch() -> Batch:
    """Two groups; the second trajectory has two traces."""
    numbers = itertools.count()
    first = episode([(3, [([2, 1], 2), ([3], 0)])], numbers, 0, reward=0.0)
    second = episode([(2, [([2], 1)]), (4, [([1], 1)])], numbers, 1, reward=1.0)
    alone = episode([(1, [([4], 0)])], numbers, 0, reward=0.5)
    return batch_of([first, second], [alone])


@given(batches, st.integers(0, 3), st.sampled_from(["int64", "int32"]))
def test_padded_rows_hold_each_sampled_token_once_at_its_place(
    batch: Batch, more: int, dtype: str
) -> None:
    longest = batch.arrays().tokens.shape[1]
    arrays = batch.arrays(pad_to=longest + more, dtype=dtype)
    real = arrays.attention_mask
    check_places(arrays, real)
    assert arrays.tokens[arrays.mask].tolist() == sampled_tokens(batch)
    assert (np.sort(~real, axis=1) == ~real).all()  # padding is on the right
    assert not arrays.mask[np.arange(longest + more) < arrays.prompt_lengths[:, None]].any()
    assert (
        arrays.tokens.shape == (len(arrays.rewards), longest + more)
        and arrays.tokens.dtype == dtype
    )
    segments = [segment for trajectory in batch.trajectories for segment in trajectory.segments()]
    assert real.sum(1).tolist() == [len(s.prompt_ids) + len(s.response_ids) for s in segments]


@given(batches)
def test_packed_rows_are_the_padded_ones_without_padding(batch: Batch) -> None:
    padded, packed = batch.arrays(), batch.packed()
    real = padded.attention_mask
    check_places(packed, np.ones(len(packed.tokens), bool))
    for name in NAMED:
        assert (getattr(packed, name) == getattr(padded, name)[real]).all()
    assert packed.offsets.tolist() == [0, *np.cumsum(real.sum(1)).tolist()]
    assert (packed.positions == np.nonzero(real)[1]).all()
    for name, numbers in arrays_of(padded).items():
        if name not in {*NAMED, "attention_mask"}:
            assert (getattr(packed, name) == numbers).all()


def test_each_row_knows_its_trajectory_and_group() -> None:
    batch = a_batch()
    arrays = batch.arrays(pad_to=16)
    assert arrays.trajectory_index.tolist() == [0, 1, 1, 2]
    assert arrays.group_index.tolist() == [0, 0, 0, 1]
    assert arrays.rewards.tolist() == [0.0, 1.0, 1.0, 0.5]
    assert arrays.advantages.tolist() == [-1.0, 1.0, 1.0, 0.0]
    assert arrays.prompt_lengths.tolist() == [3, 2, 4, 1]
    assert (batch.rewards, batch.group_indices) == ([0.0, 1.0, 0.5], [0, 0, 1])
    assert batch.labels == [{"sample": 0}, {"sample": 1}, {"sample": 0}]
    for each in (batch.tokens, batch.mask, batch.logprobs):
        assert [*map(len, each)] == [sum(trajectory.traces) for trajectory in batch.trajectories]


def test_shapes_and_dtypes_are_those_of_the_docstrings() -> None:
    found = {
        name: (a.shape, str(a.dtype)) for name, a in arrays_of(a_batch().arrays(pad_to=16)).items()
    }
    token = {
        "mask": "bool",
        "attention_mask": "bool",
        "logprobs": "float32",
        "versions": "int32",
        "tokens": "int64",
    }
    row = dict.fromkeys(["prompt_lengths", "trajectory_index", "group_index"], "int64")
    row |= dict.fromkeys(["rewards", "advantages", "weights"], "float32")
    assert found.pop("version_steps") == ((4,), "int64")
    assert found == {
        **{k: ((4, 16), v) for k, v in token.items()},
        **{k: ((4,), v) for k, v in row.items()},
    }
    packed = arrays_of(a_batch().packed(dtype="int32"))
    assert (packed["tokens"].dtype, packed["positions"].dtype, packed["offsets"].dtype) == (
        "int32",
        "int64",
        "int32",
    )


def arrays_of(arrays: Any) -> dict[str, Any]:
    """Those of numpy, without those by teacher."""
    values = {field.name: getattr(arrays, field.name) for field in fields(arrays)}
    return {name: value for name, value in values.items() if isinstance(value, np.ndarray)}


def test_nothing_is_cut() -> None:
    with pytest.raises(
        ContractError, match=r"job r/g/0: a row of 11 tokens does not fit pad_to=10"
    ):
        a_batch().arrays(pad_to=10)
    assert a_batch().arrays(pad_to=11).tokens.shape == (4, 11)


def test_a_row_that_is_too_long_is_left_out_alone() -> None:
    for arrays in (a_batch().arrays(pad_to=8, max_length=8), a_batch().packed(max_length=8)):
        assert (arrays.left_out, arrays.trajectory_index.tolist()) == (1, [1, 1, 2])
        assert arrays.advantages.tolist() == [1.0, 1.0, 0.0]  # as if nothing had been left out
        assert arrays.weights.tolist() == pytest.approx([2 / 3, 1 / 3, 1.0])
    assert a_batch().arrays(max_length=11).left_out == 0
    with pytest.raises(ContractError, match="max_length"):
        a_batch().arrays(max_length=0)


@given(batches, st.sampled_from(["all", "main", "longest"]), st.none() | st.integers(1, 12))
def test_the_weights_of_a_trajectory_make_its_rows_count_as_one(
    batch: Batch, traces: str, max_length: int | None
) -> None:
    """The mean of each row, weighted, is the mean over all sampled tokens of the episode."""
    rows = batch.arrays(traces=traces, max_length=max_length)
    loss = np.cos(rows.tokens)  # any number of each token
    per_row = (loss * rows.mask).sum(1) / rows.mask.sum(1)
    for index in set(rows.trajectory_index.tolist()):
        own = rows.trajectory_index == index
        mean = loss[own][rows.mask[own]].mean()
        assert (per_row * rows.weights)[own].sum() == pytest.approx(mean, abs=1e-6)
        assert rows.weights[own].sum() == pytest.approx(1.0)
    everything = batch.arrays(traces=traces)
    assert len(rows.weights) + rows.left_out == len(everything.weights)


def test_token_ids_do_not_fit_every_dtype() -> None:
    with pytest.raises(ContractError, match="int64 or int32, not 'uint16'"):
        a_batch().arrays(dtype="uint16")


@pytest.mark.parametrize("width", [16.0, -3, "8", True])
def test_a_width_that_is_no_number_of_tokens(width: Any) -> None:
    for batch in (a_batch(), batch_of()):
        with pytest.raises(ContractError, match="pad_to must be a whole number"):
            batch.arrays(pad_to=width)


@pytest.mark.parametrize("package", ["numpy", "torch"])
def test_a_missing_package_is_named_with_its_extra(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        SettingsError,
        match=rf"this needs {package}, which is not installed: pip install .*\[{package}\]",
    ):
        a_batch().packed().torch()


@pytest.mark.trainers
class TestTorch:
    @pytest.mark.parametrize("how", ["arrays", "packed"])
    def test_tensors_are_the_arrays(self, how: str) -> None:
        import torch

        arrays = getattr(a_batch(), how)()
        tensors = arrays.torch()
        assert type(tensors) is type(arrays) and tensors.version_names == arrays.version_names
        for name, numbers in arrays_of(arrays).items():
            tensor = getattr(tensors, name)
            assert (
                isinstance(tensor, torch.Tensor) and str(tensor.dtype) == f"torch.{numbers.dtype}"
            )
            assert (tensor.numpy() == numbers).all()
            assert tensor.data_ptr() == numbers.ctypes.data  # the same memory

    @pytest.mark.filterwarnings("ignore:The given buffer is not writable")
    def test_torch_reads_the_buffers_as_they_are(self) -> None:
        import torch

        trajectory = a_batch().trajectories[0]
        tokens = torch.frombuffer(trajectory.tokens, dtype=torch.int32)
        mask = torch.frombuffer(trajectory.mask, dtype=torch.bool)
        logprobs = torch.frombuffer(trajectory.logprobs, dtype=torch.float32)
        assert mask.tolist() == [sampled_id(token) for token in tokens.tolist()]
        assert logprobs.tolist() == [logprob_of(token) for token in tokens.tolist()]


def test_teachers_scores_stand_at_the_places_of_their_tokens():
    batch = a_batch()
    first, second, alone = batch.trajectories
    batch = batch_of([scored(first, "math", 2), scored(second, "math", 2)], [scored(alone, "code")])
    for arrays in (batch.arrays(pad_to=20), batch.packed()):
        math, code = arrays.teacher_logprobs["math"], arrays.teacher_logprobs["code"]
        assert math.shape == code.shape == arrays.tokens.shape
        of_math = arrays.mask & ~np.isnan(math)
        assert (np.isnan(math) == (arrays.mask & ~np.isnan(code))).all()
        assert (math[of_math] == arrays.logprobs[of_math] / 2).all()
        assert not math[~arrays.mask].any() and not code[~arrays.mask].any()
        top = arrays.teacher_top_ids["math"]
        assert (top[of_math] == arrays.tokens[of_math][:, None] + [0, 1]).all()
        assert (arrays.teacher_top_logprobs["math"][of_math] == top[of_math]).all()
        assert (top[~of_math] == -1).all()
        assert np.isnan(arrays.teacher_top_logprobs["math"][~of_math]).all()
    assert not a_batch().arrays().teacher_logprobs
