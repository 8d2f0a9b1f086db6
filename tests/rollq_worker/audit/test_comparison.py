"""The audit: what is compared, what is skipped and why, and what makes it say no."""

import gzip
import json
import math
from array import array
from pathlib import Path
from typing import Any

import pytest

from rollq.errors import ContractError, SettingsError
from rollq_worker.audit.comparison import CONTEXT, FLAT, NO_LIST, VOCABULARY_ENDS, WEIGHTS, WORST, Auditor
from rollq_worker.audit.exported_file import read
from rollq_worker.audit.report import COMPARED, Report, spread
from rollq_worker.audit.scorer import Refused, Scored


def truth(ids: "array[int]", i: int) -> float:
    """A made-up logprob of token i that depends on it and on the one before."""
    return -((ids[i] * 31 + ids[i - 1] * 17) % 97) / 20


class FakeScorer:
    """Knows the truth up to `noise`."""

    def __init__(self, *, noise: float = 0.0, longest: int = 1000, refuses: str = "", lists: bool = True) -> None:
        self.noise, self.longest, self.refuses, self.lists = noise, longest, refuses, lists
        self.asked: list[tuple[list[int], int, int]] = []
        self.nexts: list[tuple[int, int, float]] = []
        """Tokens before it, token, temperature."""

    def score(self, ids: "array[int]", start: int, *, likeliest: int = 0) -> Scored:
        self.asked.append((ids.tolist(), start, likeliest))
        if self.refuses:
            raise Refused(self.refuses)
        logprobs = array("d", [truth(ids, i) + self.noise for i in range(start + 1, len(ids))])
        if not likeliest or not self.lists:
            return Scored(logprobs, None)
        # Two tokens share all the mass: the sampled one and another.
        return Scored(logprobs, [sorted((p, math.log(max(1e-9, 1 - math.exp(p)))), reverse=True) for p in logprobs])

    def next(self, ids: "array[int]", token: int, *, temperature: float) -> float:
        self.nexts.append((len(ids), token, temperature))
        return truth(ids + array("I", [token]), len(ids))


def line(**changes: Any) -> dict[str, Any]:
    """Prompt 5, sampled 4, observed 3, sampled 4."""
    tokens = array("I", [(7 * i * i + 3) % 50 for i in range(16)])
    mask = [0] * 5 + [1] * 4 + [0] * 3 + [1] * 4
    found = {
        "job": "r/g/0",
        "tokens": tokens.tolist(),
        "mask": mask,
        "logprobs": [truth(tokens, i) if bit else 0.0 for i, bit in enumerate(mask)],
        "versions": ["v1" if bit else None for bit in mask],
        "traces": [16],
        "sampling": {"temperature": 1.0},
    }
    return {**found, **changes}


def written(path: Path, *lines: object) -> Path:
    path = path / "x.jsonl"
    path.write_text("".join(f"{text if isinstance(text, str) else json.dumps(text)}\n" for text in lines))
    return path


def audited(path: Path, *lines: object, scorer: FakeScorer | None = None, vocabulary: int = 50) -> dict[str, Any]:
    auditor = Auditor(scorer or FakeScorer(), frozenset(["v1"]), vocabulary)
    report = Report()
    for found in read(written(path, *lines)):
        report.add(auditor.audit(found))
    report.revise(auditor.decode)
    return {**report.found(), "problems": report.reasons, "reasons": dict(report.total.skipped)}


def test_what_was_sampled_is_compared(tmp_path: Path) -> None:
    scorer = FakeScorer(noise=0.002)
    found = audited(tmp_path, line(), line(job="r/g/1"), scorer=scorer)
    assert (found["trajectories"], found["tokens"], found["skipped"], found["shift"]) == (2, 16, 0, 0)
    assert found["mean_abs"] == pytest.approx(0.002) and found["max_abs"] == pytest.approx(0.002)
    assert found["verdict"] == "ok" and found["problems"] == []
    assert scorer.asked[0] == (line()["tokens"], 4, 0)


class Decodes(FakeScorer):
    """Its prefill is right; decoding is off by `by` for the tokens whose place in their turn is `place`."""

    def __init__(self, by: float, place: int = 2) -> None:
        super().__init__()
        self.by, self.place = by, place

    def next(self, ids: "array[int]", token: int, *, temperature: float) -> float:
        return super().next(ids, token, temperature=temperature) + self.by

    def recorded(self, lines: int, off: int) -> list[dict[str, Any]]:
        """Lines of 8 sampled tokens; in the first `off` of them one logprob is what decoding says."""
        found = [line(job=f"r/g/{i}") for i in range(lines)]
        for wrong in found[:off]:
            wrong["logprobs"][5 + self.place] += self.by
        return found


class TestSecondOpinion:
    """On the few tokens of a good file that a prefill rounds the other way."""

    def test_a_token_that_stands_out_is_decoded_as_well(self, tmp_path: Path) -> None:
        scorer = Decodes(-0.06)
        found = audited(tmp_path, *scorer.recorded(200, 1), scorer=scorer)
        assert (found["max_abs"], found["revised"], found["verdict"]) == (pytest.approx(0, abs=1e-9), 1, "ok")
        assert found["max_abs_prefill"] == pytest.approx(0.06) == found["worst"][0]["abs"]
        worst = found["worst"][0]
        assert worst["decoded"] == pytest.approx(worst["recorded"]) == pytest.approx(worst["scored"] - 0.06)
        assert found["worst"][1]["decoded"] is None
        assert found["mean_abs"] == pytest.approx(0.06 / 1600)  # the prefill's
        assert scorer.nexts == [(7, line()["tokens"][7], 1.0)]

    @pytest.mark.parametrize("by", [-3.0, -0.4, 0.3])
    def test_a_decoding_that_no_prefill_agrees_with_is_what_an_audit_looks_for(self, tmp_path: Path, by: float) -> None:
        scorer = Decodes(by)
        found = audited(tmp_path, *scorer.recorded(75, 24), scorer=scorer)  # 4 % of 600 tokens
        assert found["verdict"] == "bad" and not scorer.nexts
        assert found["mean_abs"] == pytest.approx(abs(by) * 0.04)
        assert found["p99_abs"] == found["max_abs"] == found["max_abs_prefill"] == pytest.approx(abs(by))
        assert found["revised"] == 0 and {token["decoded"] for token in found["worst"]} == {None}

    @pytest.mark.parametrize(
        ("lines", "off", "asked"),
        [(1, 1, 1), (20, 2, 2), (20, 3, 0), (200, 9, 9), (200, 16, WORST), (200, 17, 0)],
    )
    def test_it_is_asked_about_the_worst_if_no_more_than_a_hundredth_is_off(
        self, tmp_path: Path, lines: int, off: int, asked: int
    ) -> None:
        scorer = Decodes(0.06)
        found = audited(tmp_path, *scorer.recorded(lines, off), scorer=scorer)
        assert len(scorer.nexts) == found["revised"] == asked
        assert found["max_abs_prefill"] == pytest.approx(0.06)

    def test_the_largest_is_that_of_all_tokens(self, tmp_path: Path) -> None:
        scorer = Decodes(0.06)
        found = audited(tmp_path, *scorer.recorded(200, WORST + 1), scorer=scorer)
        assert len(scorer.nexts) == found["revised"] == WORST
        assert found["max_abs"] == pytest.approx(0.06)  # the eleventh was not asked for

    @pytest.mark.parametrize("by", [0.009, 0.13, 3.0])
    def test_what_is_no_rounding_is_not_asked_for(self, tmp_path: Path, by: float) -> None:
        scorer = Decodes(by)
        found = audited(tmp_path, *scorer.recorded(1000, 1), scorer=scorer)
        assert not scorer.nexts and found["max_abs"] == found["max_abs_prefill"] == pytest.approx(by)

    def test_what_is_nearer_and_still_off_is_not_revised(self, tmp_path: Path) -> None:
        scorer = Decodes(0.06)
        lines = scorer.recorded(200, 1)
        for by, left, revised in ((0.055, 0.005, 1), (0.04, 0.06, 0), (-0.05, 0.06, 0), (0.2, 0.06, 0)):
            scorer.by = by
            found = audited(tmp_path, *lines, scorer=scorer)
            assert (found["max_abs"], found["revised"]) == (pytest.approx(left), revised)

    def test_an_engine_that_refuses_has_none(self, tmp_path: Path) -> None:
        class Refuses(Decodes):
            def next(self, ids: "array[int]", token: int, *, temperature: float) -> float:
                raise Refused("no")

        scorer = Refuses(0.06)
        found = audited(tmp_path, *scorer.recorded(200, 1), scorer=scorer)
        assert found["max_abs"] == pytest.approx(0.06) and found["skipped"] == found["revised"] == 0


@pytest.mark.parametrize("n", [1, 2, 100, 101, 1000])
def test_the_spread_of_differences(n: int) -> None:
    found = spread(array("d", [(i * 37 % n) / n for i in range(n)]) if n != 2 else array("d", [1.0, 3.0]))
    ordered = [i / n for i in range(n)] if n != 2 else [1.0, 3.0]
    assert found["p99_abs"] == ordered[int(0.99 * (n - 1))] and found["max_abs"] == ordered[-1]
    assert found["mean_abs"] == pytest.approx(sum(ordered) / n) and found["tokens"] == n


def test_a_bad_mean_and_a_bad_percentile(tmp_path: Path) -> None:
    found = audited(tmp_path, line(), scorer=FakeScorer(noise=0.05))
    assert found["verdict"] == "bad" and "mean" in found["problems"][0]
    lines = [line(job=f"r/g/{i}") for i in range(40)]
    for wrong in lines[:2]:  # few tokens far off: too few to show in the mean of a long file
        wrong["logprobs"] = [p - 0.2 if p else 0.0 for p in wrong["logprobs"]]
    found = audited(tmp_path, *lines)
    assert found["mean_abs"] == pytest.approx(0.01, abs=0.001) and found["verdict"] == "bad"
    assert any("99th percentile" in problem for problem in found["problems"])
    assert [token["job"] for token in found["worst"]].count("r/g/0") >= 1 and len(found["worst"]) == 10


@pytest.mark.parametrize("by", [1, -1])
def test_a_shifted_file_is_named_as_such(tmp_path: Path, by: int) -> None:
    shifted = line()
    positions = [i for i, bit in enumerate(shifted["mask"]) if bit]
    tokens = array("I", shifted["tokens"])
    for i in positions:
        shifted["logprobs"][i] = truth(tokens, (i + by) % len(tokens))
    found = audited(tmp_path, shifted)
    assert (found["verdict"], found["shift"]) == ("bad", by)
    assert found["problems"][-1].endswith("later" if by > 0 else "earlier")


def test_a_confident_policy_is_not_taken_for_shifted(tmp_path: Path) -> None:
    class Sure(FakeScorer):
        def score(self, ids: "array[int]", start: int, *, likeliest: int = 0) -> Scored:
            return Scored(array("d", [-1e-6 * (i % 3) for i in range(start + 1, len(ids))]), None)

    found = audited(tmp_path, line(logprobs=[-1e-6 * ((i + 1) % 3) for i in range(16)]), scorer=Sure())
    assert (found["verdict"], found["shift"]) == ("ok", 0)


def test_other_weights_are_skipped_and_too_many_of_them_are_too_many(tmp_path: Path) -> None:
    some = line(versions=[None] * 5 + ["v0"] * 4 + [None] * 3 + ["v1"] * 4)
    scorer = FakeScorer()
    found = audited(tmp_path, some, scorer=scorer)
    assert (found["tokens"], found["skipped"], found["verdict"]) == (4, 4, "incomplete")
    assert found["reasons"] == {WEIGHTS: 4}
    assert scorer.asked[0][1] == 11  # nothing before the first comparable token is scored
    many = [line(job=f"r/g/{i}") for i in range(19)]
    found = audited(tmp_path, some, *many)
    assert found["tokens"] / (found["tokens"] + found["skipped"]) >= COMPARED and found["verdict"] == "ok"


@pytest.mark.parametrize("sampling", [{"repetition_penalty": 1.1}, {"logit_bias": {"5": 1}}, {"regex": "a*"}])
def test_what_a_prefill_does_not_apply_is_skipped(tmp_path: Path, sampling: dict[str, Any]) -> None:
    scorer = FakeScorer()
    found = audited(tmp_path, line(sampling=sampling), scorer=scorer)
    assert found["skipped"] == 8 and found["reasons"] == {f"sampled with {next(iter(sampling))}": 8}
    assert not scorer.asked


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0}, {"top_p": 0.5, "top_k": 3}, {"repetition_penalty": 1.0}])
def test_what_changes_no_logprob_is_compared(tmp_path: Path, sampling: dict[str, Any]) -> None:
    assert audited(tmp_path, line(sampling=sampling))["verdict"] == "ok"


@pytest.mark.parametrize("temperature", [0.3, 0.7, 1.3])
def test_another_temperature(tmp_path: Path, temperature: float) -> None:
    sampled = line(sampling={"temperature": temperature})
    for i, p in enumerate(sampled["logprobs"]):
        if sampled["mask"][i]:
            other = math.log(max(1e-9, 1 - math.exp(p)))
            normaliser = math.log(math.exp(p / temperature) + math.exp(other / temperature))
            sampled["logprobs"][i] = p / temperature - normaliser
    found = audited(tmp_path, sampled)
    assert found["tokens"] == 8 and found["max_abs"] < 0.005 and found["verdict"] == "ok"
    assert audited(tmp_path, line(sampling={"temperature": temperature}))["verdict"] == "bad"
    assert audited(tmp_path, sampled, scorer=FakeScorer(lists=False))["reasons"] == {NO_LIST: 8}


def test_a_flat_distribution_at_another_temperature_is_skipped(tmp_path: Path) -> None:
    class Flat(FakeScorer):
        def score(self, ids: "array[int]", start: int, *, likeliest: int = 0) -> Scored:
            logprobs = array("d", [-8.0] * (len(ids) - start - 1))
            return Scored(logprobs, [[-7.0, -8.0]] * len(logprobs))

    found = audited(tmp_path, line(sampling={"temperature": 1.5}), scorer=Flat())
    assert found["reasons"] == {FLAT: 8}


def test_each_trace_is_scored_by_itself(tmp_path: Path) -> None:
    first = line()
    both = {key: first[key] * 2 for key in ("tokens", "mask", "logprobs", "versions")}
    scorer = FakeScorer()
    found = audited(tmp_path, line(**both, traces=[16, 16]), scorer=scorer)
    assert found["tokens"] == 16 and found["verdict"] == "ok"
    assert scorer.asked == [(first["tokens"], 4, 0)] * 2


def test_what_the_engine_cannot_take_is_not_sent(tmp_path: Path) -> None:
    scorer = FakeScorer(longest=14)
    found = audited(tmp_path, line(), scorer=scorer)
    assert found["reasons"] == {CONTEXT: 2} and len(scorer.asked[0][0]) == 14
    scorer = FakeScorer()
    assert audited(tmp_path, line(), scorer=scorer, vocabulary=40)["reasons"] == {VOCABULARY_ENDS: 8}
    assert not scorer.asked
    found = audited(tmp_path, line(), scorer=FakeScorer(refuses="too long"))
    assert found["reasons"] == {"refused: too long": 8} and found["verdict"] == "incomplete"


def test_a_file_without_sampled_tokens_proves_nothing(tmp_path: Path) -> None:
    found = audited(tmp_path, line(mask=[0] * 16, versions=[None] * 16))
    assert (found["tokens"], found["mean_abs"], found["verdict"]) == (0, None, "incomplete")


def test_a_compressed_file_says_so(tmp_path: Path) -> None:
    (path := tmp_path / "x.jsonl.gz").write_bytes(gzip.compress(json.dumps(line()).encode()))
    with pytest.raises(ContractError, match=r"gzip -d it first"):
        list(read(path))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[" * 100_000, "x.jsonl:2 is not a line of JSON"),
        ("hello", "x.jsonl:2 is not a line of JSON"),
        ("[]", "not an exported trajectory but a list"),
        ({"job": "r/g/0"}, "it has no 'tokens'"),
        (line(mask=[0] * 15), "its lengths differ: 16 tokens, 15 mask"),
        (line(mask=16), "'int' object is not iterable"),
        (line(traces=[8, 9]), "its traces [8, 9] do not make up its 16 tokens"),
        (line(traces=[16, 0]), "its traces"),
        (line(mask=[0] * 15 + [2]), "more than 0 and 1"),
        (line(mask=[1] * 16), "token 0 opens a trace and was sampled"),
        (line(tokens=[-1] * 16), "not an exported trajectory"),
        (line(tokens=["a"] * 16), "not an exported trajectory"),
        (line(logprobs=[None] * 16), "not an exported trajectory"),
        (line(logprobs=[float("nan")] * 16), "token 5 was sampled, with logprob nan"),
        (line(versions=[None] * 16), "token 5 was sampled, with logprob"),
        (line(sampling={"temperature": "hot"}), "not an exported trajectory"),
        (line(sampling={"temperature": float("inf")}), "temperature is inf"),
    ],
)
def test_a_file_that_is_none(tmp_path: Path, text: object, said: str) -> None:
    path = written(tmp_path, line(), text)
    with pytest.raises(ContractError, match=r"x\.jsonl:2") as caught:
        list(read(path))
    assert said in str(caught.value)


def test_no_file_and_an_empty_one(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot read"):
        list(read(tmp_path / "none"))
    with pytest.raises(ContractError, match="holds no trajectory"):
        list(read(written(tmp_path)))
