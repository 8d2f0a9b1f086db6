"""The prompt that a group's samples share: what is split comes back byte for byte, and damage has a
typed error.
"""

from __future__ import annotations

from array import array
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollq.errors import ContractError
from rollq.events import Prompt
from rollq.wire.codec import encode_header, encode_job
from rollq.wire.events import decode_event, encode_event
from rollq.wire.shared_prompt import join_prompt, prompt_digest, split_prompt
from tests.rollq.samples import events, job, prompt, trajectory

texts = st.text(st.characters(exclude_categories=()), max_size=300)
messages = st.lists(st.dictionaries(texts, texts, max_size=2), max_size=3)
prompts = st.builds(
    Prompt,
    ids=st.lists(st.integers(0, 2**32 - 1), max_size=200).map(lambda values: array("I", values)),
    messages=messages,
    tools=messages,
    at=st.floats(allow_nan=False),
)


def split(event: Prompt) -> tuple[bytes, bytes, bytes, bytes]:
    """Blob, reference, digest and content."""
    blob = encode_event(event, "r/g/0")
    parts = split_prompt(blob)
    assert parts is not None
    return blob, *parts


@given(prompts)
@settings(deadline=None)
def test_a_prompt_comes_back_byte_for_byte(event: Prompt) -> None:
    blob, reference, digest, content = split(event)
    assert prompt_digest(reference) == digest
    assert join_prompt(reference, content) == blob
    assert decode_event(join_prompt(reference, content), "r/g/0") == event


@given(prompts, st.floats(allow_nan=False))
@settings(deadline=None)
def test_the_samples_of_a_group_share_the_content_whatever_the_time(
    event: Prompt, at: float
) -> None:
    _, reference, *shared = split(event)
    blob, other, *again = split(replace(event, at=at))
    assert again == shared
    assert len(reference) == len(other) == 36  # a long prompt costs each journal this much
    assert join_prompt(other, shared[1]) == blob


def test_other_prompts_have_other_digests() -> None:
    made = [prompt(), prompt(1), replace(prompt(), tools=[]), replace(prompt(), messages=[])]
    assert len({split(event)[2] for event in made}) == len(made)


def test_only_prompts_are_split_and_only_references_have_a_digest() -> None:
    first, *others = [encode_event(event, "r/g/0") for event in events()]
    others.append(encode_event(replace(prompt(), model="red"), "r/g/0"))
    others += [encode_header(trajectory().header), encode_job(job()), b""]
    assert split_prompt(first)
    assert [split_prompt(blob) for blob in others] == [None] * len(others)
    assert [prompt_digest(blob) for blob in [first, *others]] == [None] * (len(others) + 1)


def test_a_content_that_is_gone_damaged_or_another_s_is_refused_by_name() -> None:
    _, reference, _, content = split(prompt())
    for wrong, word in (
        (None, "gone"),
        (content[:-1], "damaged"),
        (split(prompt(9))[3], "damaged"),
    ):
        with pytest.raises(ContractError, match=f"job r/g/0: the prompt .* {word}"):
            join_prompt(reference, wrong, "r/g/0")
    with pytest.raises(
        ContractError, match=r"job r/g/0: the reference to its prompt: .* is not a shared"
    ):
        join_prompt(encode_event(prompt(), "r/g/0"), content, "r/g/0")


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_no_damage_escapes_as_another_error(data: st.DataObject) -> None:
    _, reference, _, content = split(prompt())
    damaged = bytearray(data.draw(st.sampled_from([reference, content])))
    is_reference = bytes(damaged) == reference
    at = data.draw(st.integers(0, len(damaged) - 1))
    damaged[at : at + data.draw(st.integers(0, 9))] = data.draw(st.binary(max_size=9))
    try:
        blob = (
            join_prompt(bytes(damaged), content)
            if is_reference
            else join_prompt(reference, bytes(damaged))
        )
        repr(decode_event(blob, "r/g/0"))
    except ContractError:
        pass
