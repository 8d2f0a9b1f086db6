"""What is compared, and what is skipped and why."""

import math
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollq_worker.audit.comparison import CONTEXT, OUTSIDE_VOCABULARY, WEIGHTS, rescale
from rollq_worker.audit.exported_file import read
from rollq_worker.audit.floor import TURNS, turns_to_decode
from rollq_worker.audit.report import MIN_COMPARED
from rollq_worker.audit.scorer import SampledTokens, Scores
from rollq_worker.protocols import Adapter
from tests.rollq_worker.audit.exported import FakeScorer, at_temperature, audit, record, write_file


def test_what_was_sampled_is_compared() -> None:
    scorer = FakeScorer(noise=0.002)
    found = audit(record(), record(job="r/g/1"), scorer=scorer)
    assert (found["trajectories"], found["tokens"], found["skipped"], found["shift"]) == (
        2,
        16,
        0,
        0,
    )
    assert found["mean_abs"] == pytest.approx(0.002) and found["max_abs"] == pytest.approx(0.002)
    assert found["verdict"] == "ok" and found["reasons"] == []
    assert scorer.calls[0] == (record()["tokens"], 4, 0)


def test_other_weights_are_skipped_and_too_many_of_them_are_too_many() -> None:
    some = record(versions=[None] * 5 + ["v0"] * 4 + [None] * 3 + ["v1"] * 4)
    scorer = FakeScorer()
    found = audit(some, scorer=scorer)
    assert (found["tokens"], found["skipped"], found["verdict"]) == (4, 4, "incomplete")
    assert found["by_reason"] == {WEIGHTS: 4}
    assert scorer.calls[0][1] == 11  # nothing before the first comparable token is scored
    many = [record(job=f"r/g/{i}") for i in range(19)]
    found = audit(some, *many)
    assert (
        found["tokens"] / (found["tokens"] + found["skipped"]) >= MIN_COMPARED
        and found["verdict"] == "ok"
    )


@pytest.mark.parametrize(
    ("sampling", "skipped"),
    [
        ({"top_p": 0.9}, 8),
        ({"top_k": 20, "temperature": 0.7}, 8),
        ({"min_p": 0.1}, 8),
        ({"top_p": 0.9, "temperature": 0}, 0),
        ({"top_p": 1, "top_k": -1, "min_p": 0}, 0),
    ],
)
def test_a_cut_distribution_is_compared_on_engines_that_report_the_whole_one(
    sampling: dict[str, Any], skipped: int
) -> None:
    scorer = FakeScorer()
    assert audit(record(sampling=sampling), scorer=scorer)["skipped"] == 0
    scorer.cuts = True
    found = audit(record(sampling=sampling), scorer=scorer)
    by_reason = {f"sampled with {next(iter(sampling))}": skipped} if skipped else {}
    assert (found["skipped"], found["by_reason"]) == (skipped, by_reason)


def test_each_token_is_scored_by_the_version_of_the_adapter_that_sampled_it() -> None:
    """The weights below it do not matter."""
    scorer = FakeScorer()
    versions = [None] * 5 + ["6"] * 4 + [None] * 3 + ["7"] * 4
    assert audit(record(adapter="math", versions=versions), scorer=scorer)["verdict"] == "ok"
    assert scorer.adapters[-2:] == [Adapter("math", "6"), Adapter("math", "7")]
    assert [len(ids) for ids, _, _ in scorer.calls] == [9, 16]
    scorer.others = {Adapter("math", "6")}
    found = audit(record(adapter="math", versions=versions), scorer=scorer)
    assert found["verdict"] == "bad" and {
        token["version"] for token in found["worst"] if token["abs"] > 0.1
    } == {"6"}


@pytest.mark.parametrize(
    "sampling", [{"repetition_penalty": 1.1}, {"logit_bias": {"5": 1}}, {"regex": "a*"}]
)
def test_what_a_prefill_does_not_apply_is_skipped(sampling: dict[str, Any]) -> None:
    scorer = FakeScorer()
    found = audit(record(sampling=sampling), scorer=scorer)
    assert found["skipped"] == 8 and found["by_reason"] == {
        f"sampled with {next(iter(sampling))}": 8
    }
    assert not scorer.calls


def test_what_saw_images_is_skipped() -> None:
    part = {
        "type": "image",
        "sha256": "ab",
        "mime": "image/png",
        "width": 4,
        "height": 4,
        "bytes": 70,
    }
    scorer, with_images = FakeScorer(), [{"role": "user", "content": [part]}, *record()["messages"]]
    found = audit(record(messages=with_images), scorer=scorer)
    assert found["by_reason"] == {"sampled with images": 8} and not scorer.calls


@pytest.mark.parametrize(
    "sampling", [{}, {"temperature": 0}, {"top_p": 0.5, "top_k": 3}, {"repetition_penalty": 1.0}]
)
def test_what_changes_no_logprob_is_compared(sampling: dict[str, Any]) -> None:
    assert audit(record(sampling=sampling))["verdict"] == "ok"


@pytest.mark.parametrize("temperature", [0.3, 0.7, 1.3])
def test_another_temperature(temperature: float) -> None:
    sampled = record(sampling={"temperature": temperature})
    for i, p in enumerate(sampled["logprobs"]):
        if sampled["mask"][i]:
            sampled["logprobs"][i] = at_temperature(p, temperature)
    found = audit(sampled)
    assert found["tokens"] == 8 and found["max_abs"] < 0.005 and found["verdict"] == "ok"
    assert audit(record(sampling={"temperature": temperature}))["verdict"] == "bad"


@pytest.mark.parametrize("lists", [True, False])
def test_where_the_likeliest_tokens_do_not_say_enough_the_engine_decodes_at_that_temperature(
    lists: bool,
) -> None:
    class Flat(FakeScorer):
        def score(
            self, ids: "array[int]", start: int, *, likeliest: int = 0, adapter: Any = None
        ) -> Scores:
            found = super().score(ids, start, likeliest=likeliest, adapter=adapter)
            return Scores(found.logprobs, [[-7.0, -8.0] if lists else []] * len(found.logprobs))

    sampled = record(sampling={"temperature": 1.5})
    sampled["logprobs"] = [p and at_temperature(p, 1.5) for p in sampled["logprobs"]]
    scorer = Flat()
    found = audit(sampled, scorer=scorer)
    assert (found["tokens"], found["skipped"], found["verdict"]) == (8, 0, "ok") and found[
        "max_abs"
    ] < 1e-9
    assert scorer.decoded[-8:] == [(i, 1.5) for i in (5, 6, 7, 8, 12, 13, 14, 15)]
    sampled["logprobs"][6] -= 2
    assert audit(sampled, scorer=Flat())["worst"][0]["position"] == 6
    found = audit(sampled, scorer=Flat(refusal_to_decode="no such field"))
    assert found["by_reason"] == {"refused: no such field": 8} and found["verdict"] == "incomplete"


def softmax(logits: Sequence[float]) -> list[float]:
    """Its logarithms, largest first."""
    highest = max(logits)
    normaliser = highest + math.log(math.fsum(math.exp(logit - highest) for logit in logits))
    return sorted((logit - normaliser for logit in logits), reverse=True)


@given(
    logits=st.lists(st.floats(-30, 30), min_size=1, max_size=20),
    listed=st.integers(0, 20),
    temperature=st.floats(1e-6, 10, exclude_min=True),
)
def test_a_logprob_at_another_temperature_is_right_or_unknown(
    logits: list[float], listed: int, temperature: float
) -> None:
    """Near 0 and in long lists too, where powers underflow."""
    logprobs = softmax(logits)
    for p, at in zip(logprobs, softmax([logit / temperature for logit in logits]), strict=True):
        found = rescale(p, logprobs[:listed], temperature)
        assert found is None or found == pytest.approx(at, abs=0.005, rel=1e-6)
        assert found is not None or listed < len(logits) or temperature > 1


def test_what_single_precision_hides_makes_a_logprob_unknown() -> None:
    """3,000 tokens of 5e-10 are nothing at 1, and 0.07 of the sum at 2."""
    logprobs = softmax([0.0] + [-21.4] * 3000)
    assert rescale(logprobs[0], [0.0, *logprobs[1:128]], 2.0) is None


def test_each_trace_is_scored_by_itself() -> None:
    first = record()
    both = {key: first[key] * 2 for key in ("tokens", "mask", "logprobs", "versions")}
    scorer = FakeScorer()
    found = audit(record(**both, traces=[16, 16]), scorer=scorer)
    assert found["tokens"] == 16 and found["verdict"] == "ok"
    assert scorer.calls == [(first["tokens"], 4, 0)] * 2


def test_what_the_engine_cannot_take_is_not_sent() -> None:
    scorer = FakeScorer(max_tokens=14)
    found = audit(record(), scorer=scorer)
    assert found["by_reason"] == {CONTEXT: 2} and len(scorer.calls[0][0]) == 14
    scorer = FakeScorer()
    assert audit(record(), scorer=scorer, vocabulary=40)["by_reason"] == {OUTSIDE_VOCABULARY: 8}
    assert not scorer.calls
    found = audit(record(), scorer=FakeScorer(refusal="too long"))
    assert found["by_reason"] == {"refused: too long": 8} and found["verdict"] == "incomplete"


def test_each_reply_of_the_engine_is_scored_at_its_own_temperature() -> None:
    sampled, pieces = record(), [[4, "stop", {"temperature": 0.3}], [4, "stop"]]
    for i in range(5, 9):
        sampled["logprobs"][i] = at_temperature(sampled["logprobs"][i], 0.3)
    report = audit({**sampled, "pieces": pieces})
    assert (report["tokens"], report["verdict"]) == (8, "ok") and report["max_abs"] < 1e-6
    assert audit({**sampled, "pieces": [piece[:2] for piece in pieces]})["verdict"] == "bad"


def test_only_the_replies_that_asked_for_a_parameter_cannot_be_compared() -> None:
    asked = [
        [4, "stop", {"frequency_penalty": 0.5, "temperature": 0.3}],
        [4, "stop", {"max_new_tokens": 9}],
    ]
    report = audit(record(pieces=asked))
    assert report["tokens"] == 4 and report["by_reason"] == {"sampled with frequency_penalty": 4}


def test_turns_are_sampled_anew_as_they_were_sampled() -> None:
    scorer = FakeScorer()
    made = record(
        pieces=[[4, "stop", {"temperature": 0.3}], [4, "length"]],
        sampling={"temperature": 1.0, "top_k": 9, "stop": "x"},
    )
    floor = audit(made, scorer=scorer)["floor"]
    assert floor["tokens"] == 4 * TURNS and floor["max_abs"] < 0.005
    asked = {"top_k": 9, "max_new_tokens": 4}
    first = (5, {**asked, "temperature": 0.3, "stop_token_ids": [made["tokens"][8]]})
    assert scorer.sampled == [first, (12, {**asked, "temperature": 1.0})] * (TURNS // 2)


def test_a_sampled_id_beyond_those_of_the_file_ends_what_is_scored_of_a_turn() -> None:
    class Higher(FakeScorer):
        def sample(
            self, ids: "array[int]", sampling: Mapping[str, Any], adapter: Any = None
        ) -> SampledTokens:
            found = super().sample(ids, sampling)
            found.ids[2] = 50
            return found

    found = audit(record(), scorer=Higher())
    assert found["floor"]["tokens"] == 2 * TURNS and found["floor"]["max_abs"] < 1e-6


@pytest.mark.parametrize(
    "changes",
    [
        {"versions": ["v0" if bit else None for bit in record()["mask"]]},
        {"sampling": {"regex": "a"}},
        {"tokens": [60] * 16},
    ],
)
def test_what_cannot_be_compared_is_not_sampled_anew(changes: dict[str, Any]) -> None:
    scorer = FakeScorer()
    assert audit(record(**changes), scorer=scorer)["verdict"] == "incomplete" and not scorer.sampled


@pytest.mark.parametrize("count", [1, 3, 63, 64, 65, 640])
def test_turns_from_all_over_a_file_are_sampled_anew(tmp_path: Path, count: int) -> None:
    file = list(read(write_file(tmp_path, *[record(job=f"r/g/{i}") for i in range(count)])))
    found = list(turns_to_decode(file, count))
    jobs = [int(trajectory.job[4:]) for trajectory, _ in found]
    assert len(found) == TURNS and jobs == sorted(jobs) and len(set(jobs)) == min(count, TURNS)
    assert jobs[0] == 0 and jobs[-1] >= count * 0.98 - 1
    assert [turn.begin for _, turn in found].count(5) == TURNS // 2
