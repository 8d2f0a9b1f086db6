"""Requests as pieces of bytes."""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import gc
import json
from array import array
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rollq_worker.engine.exchange.prompts import BLOCK, Prompt, PromptWriter, write_ids
from rollq_worker.engine.exchange.server import GenerationRequest
from rollq_worker.engine.sglang.generate import write_request
from tests.sample_requests import sample_request

IDS = st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=3 * BLOCK)


def text(prompt: Prompt) -> str:
    return b"".join(prompt.pieces).decode()


def assert_written(prompt: Prompt, ids: array[int]) -> None:
    assert text(prompt) == ",".join(map(str, ids))
    assert (prompt.length, prompt.last, prompt.highest) == (len(ids), ids[-1], max(ids))


@given(st.lists(IDS, min_size=1, max_size=6))
def test_a_prompt_that_grows_is_written_as_one_that_is_new(turns: list[list[int]]) -> None:
    writer, ids = PromptWriter(), array("I")
    for more in turns:
        ids.extend(more)
        assert_written(writer.write(ids), ids)
        assert_written(writer.write(ids), ids)
        assert_written(write_ids(ids), ids)


def test_only_the_new_part_of_a_prompt_is_written() -> None:
    writer, ids = PromptWriter(), array("I", range(10_000))
    first = writer.write(ids)
    assert writer.write(ids) is first
    ids.extend([7, 8])
    second = writer.write(ids)
    assert second.pieces[:-1] == first.pieces and second.pieces[-1] == b",7,8"
    assert all(a is b for a, b in zip(first.pieces, second.pieces, strict=False))


@given(st.lists(st.tuples(st.integers(0, 2), st.lists(st.integers(0, 3), max_size=4)), max_size=20))
def test_traces_that_grow_in_turn(turns: list[tuple[int, list[int]]]) -> None:
    writer, traces = PromptWriter(), [array("I", [id]) for id in range(3)]
    for which, more in turns:
        traces[which].extend(more)
        assert_written(writer.write(traces[which]), traces[which])


def test_an_array_that_did_not_only_grow_is_written_again() -> None:
    writer, ids = PromptWriter(), array("I", [1, 2, 3])
    writer.write(ids)
    ids.pop()
    assert_written(writer.write(ids), ids)
    ids[1] = 9
    assert_written(writer.write(ids), ids)


def test_prompts_that_begin_alike_share_their_digits() -> None:
    one, other = array("I", range(3 * BLOCK)), array("I", [*range(3 * BLOCK), 5])
    shared = [a is b for a, b in zip(write_ids(one).pieces, write_ids(other).pieces, strict=True)]
    assert sum(shared) >= 2


def test_what_was_written_goes_with_the_array() -> None:
    writer, ids = PromptWriter(), array("I", [1, 2, 3])
    for _ in range(10):
        writer.write(array("I", [4]))
    writer.write(ids)
    gc.collect()
    assert len(writer._written) == 1
    del ids
    gc.collect()
    assert not writer._written


JSON = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)


def request_of(ids: list[int], sampling: dict[str, Any], **facts: Any) -> GenerationRequest:
    turn = sample_request(ids, sampling=sampling, max_new_tokens=5)
    return GenerationRequest(turn=turn, prompt=write_ids(turn.ids), **facts)


@given(
    IDS,
    st.dictionaries(st.sampled_from(["temperature", "top_p", "stop", "custom_params"]), JSON),
    st.text(),
)
def test_a_body_says_what_it_was_given(ids: list[int], sampling: dict[str, Any], rid: str) -> None:
    request = request_of(ids, sampling, rid=rid, stop_ids=[1, 2])
    body = json.loads(write_request(request))
    own = {"max_new_tokens": 5, "stop_token_ids": [1, 2], "skip_special_tokens": False}
    assert body == {
        "input_ids": ids,
        "rid": rid,
        "return_logprob": True,
        "sampling_params": {**sampling, **own},
    }


def test_what_orjson_does_not_write_is_written() -> None:
    sampling = {"stop": "\ud83d", "custom_params": {"n": 2**70}}
    body = write_request(request_of([1], sampling, rid="r"))
    assert json.loads(body)["sampling_params"].items() >= sampling.items()
