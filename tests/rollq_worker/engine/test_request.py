"""Prompts as bytes."""

from array import array

from hypothesis import given
from hypothesis import strategies as st

from rollq_worker.engine.request import PromptWriter


def test_only_the_new_part_of_a_prompt_is_written() -> None:
    writer, ids = PromptWriter(2), array("I", range(10_000))
    assert writer.write(ids, "a") == ",".join(map(str, range(10_000))).encode()
    ids.extend([7, 7])
    assert writer.write(ids, "a") == ",".join(map(str, ids)).encode()
    assert writer.write(ids, "a") == ",".join(map(str, ids)).encode()


@given(st.lists(st.tuples(st.sampled_from("abc"), st.lists(st.integers(0, 3), max_size=4)), max_size=20))
def test_whatever_was_sent_before(prompts: list[tuple[str, list[int]]]) -> None:
    writer = PromptWriter(2)
    for key, ids in prompts:
        assert writer.write(array("I", ids), key) == ",".join(map(str, ids)).encode()


def test_few_are_kept() -> None:
    writer = PromptWriter(2)
    for key in "abcde":
        writer.write(array("I", [1]), key)
    assert list(writer._last) == ["d", "e"]
