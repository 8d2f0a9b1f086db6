"""The numbers of an audit, and its verdict."""

from array import array
from typing import Any

import pytest

from rollq.errors import ContractError
from rollq_worker.audit.comparison import WORST
from rollq_worker.audit.report import spread
from rollq_worker.audit.scorer import Scores, ScoringRefused
from tests.rollq_worker.audit.exported import FakeScorer, audit, record, true_logprob

PLACE = 7
"""Of the token that decoding and prefill score differently."""


class RoundingScorer(FakeScorer):
    """Its prefill gives the true logprobs; its decoding is off by `by`."""

    def __init__(self, by: float) -> None:
        super().__init__()
        self.by = by

    def score_next(self, ids: "array[int]", token: int, *, temperature: float) -> float:
        return super().score_next(ids, token, temperature=temperature) + self.by

    def records(self, count: int, off: int) -> list[dict[str, Any]]:
        """With 8 sampled tokens each; in the first `off` records one logprob is what decoding gives."""
        records = [record(job=f"r/g/{i}") for i in range(count)]
        for changed in records[:off]:
            changed["logprobs"][PLACE] += self.by
        return records


class TestSecondOpinion:
    """On the few tokens of a good file that a prefill rounds the other way."""

    def test_a_token_that_stands_out_is_decoded_as_well(self) -> None:
        scorer = RoundingScorer(-0.06)
        found = audit(*scorer.records(200, 1), scorer=scorer)
        assert (found["max_abs"], found["revised"], found["verdict"]) == (pytest.approx(0, abs=1e-9), 1, "ok")
        assert found["max_abs_prefill"] == pytest.approx(0.06) == found["worst"][0]["abs"]
        worst = found["worst"][0]
        assert worst["decoded"] == pytest.approx(worst["recorded"]) == pytest.approx(worst["scored"] - 0.06)
        assert found["worst"][1]["decoded"] is None
        assert found["mean_abs"] == pytest.approx(0.06 / 1600)  # the prefill's
        assert scorer.next_calls == [(PLACE, record()["tokens"][PLACE], 1.0)]

    @pytest.mark.parametrize("by", [-3.0, -0.4, 0.3])
    def test_a_decoding_that_no_prefill_agrees_with_is_what_an_audit_looks_for(self, by: float) -> None:
        scorer = RoundingScorer(by)
        found = audit(*scorer.records(75, 24), scorer=scorer)  # 4 % of 600 tokens
        assert found["verdict"] == "bad" and not scorer.next_calls
        assert found["mean_abs"] == pytest.approx(abs(by) * 0.04)
        assert found["p99_abs"] == found["max_abs"] == found["max_abs_prefill"] == pytest.approx(abs(by))
        assert found["revised"] == 0 and {token["decoded"] for token in found["worst"]} == {None}

    @pytest.mark.parametrize(
        ("count", "off", "asked"),
        [(1, 1, 1), (20, 2, 2), (20, 3, 0), (200, 9, 9), (200, WORST + 1, WORST), (200, 16, WORST), (200, 17, 0)],
    )
    def test_it_is_asked_about_the_worst_if_no_more_than_a_hundredth_is_off(
        self, count: int, off: int, asked: int
    ) -> None:
        scorer = RoundingScorer(0.06)
        found = audit(*scorer.records(count, off), scorer=scorer)
        assert len(scorer.next_calls) == found["revised"] == asked
        assert found["max_abs_prefill"] == pytest.approx(0.06)
        assert found["max_abs"] == pytest.approx(0.06 if off > asked else 0, abs=1e-9)  # of all tokens

    @pytest.mark.parametrize("by", [0.009, 0.13, 3.0])
    def test_a_difference_that_is_no_rounding_is_not_asked_for(self, by: float) -> None:
        scorer = RoundingScorer(by)
        found = audit(*scorer.records(1000, 1), scorer=scorer)
        assert not scorer.next_calls and found["max_abs"] == found["max_abs_prefill"] == pytest.approx(by)

    def test_a_decoding_that_is_nearer_but_still_off_does_not_count(self) -> None:
        scorer = RoundingScorer(0.06)
        records = scorer.records(200, 1)
        for by, left, revised in ((0.055, 0.005, 1), (0.04, 0.06, 0), (-0.05, 0.06, 0), (0.2, 0.06, 0)):
            scorer.by = by
            found = audit(*records, scorer=scorer)
            assert (found["max_abs"], found["revised"]) == (pytest.approx(left), revised)

    def test_an_engine_that_refuses_changes_nothing(self) -> None:
        class Refuses(RoundingScorer):
            def score_next(self, ids: "array[int]", token: int, *, temperature: float) -> float:
                raise ScoringRefused("no")

        scorer = Refuses(0.06)
        found = audit(*scorer.records(200, 1), scorer=scorer)
        assert found["max_abs"] == pytest.approx(0.06) and found["skipped"] == found["revised"] == 0


@pytest.mark.parametrize("n", [1, 2, 100, 101, 1000])
def test_the_spread_of_differences(n: int) -> None:
    found = spread(array("d", [(i * 37 % n) / n for i in range(n)]) if n != 2 else array("d", [1.0, 3.0]))
    ordered = [i / n for i in range(n)] if n != 2 else [1.0, 3.0]
    assert found["p99_abs"] == ordered[int(0.99 * (n - 1))] and found["max_abs"] == ordered[-1]
    assert found["mean_abs"] == pytest.approx(sum(ordered) / n) and found["tokens"] == n


def test_a_bad_mean_and_a_bad_percentile() -> None:
    found = audit(record(), scorer=FakeScorer(noise=0.05))
    assert found["verdict"] == "bad" and "mean" in found["reasons"][0]
    records = [record(job=f"r/g/{i}") for i in range(40)]
    for changed in records[:2]:  # few tokens far off: too few to show in the mean of a long file
        changed["logprobs"] = [p - 0.2 if p else 0.0 for p in changed["logprobs"]]
    found = audit(*records)
    assert found["mean_abs"] == pytest.approx(0.01, abs=0.001) and found["verdict"] == "bad"
    assert any("99th percentile" in reason for reason in found["reasons"])
    assert [token["job"] for token in found["worst"]].count("r/g/0") >= 1 and len(found["worst"]) == 10


@pytest.mark.parametrize("by", [1, -1])
def test_a_shifted_file_is_named_as_such(by: int) -> None:
    shifted = record()
    positions = [i for i, bit in enumerate(shifted["mask"]) if bit]
    tokens = array("I", shifted["tokens"])
    for i in positions:
        shifted["logprobs"][i] = true_logprob(tokens, (i + by) % len(tokens))
    found = audit(shifted)
    assert (found["verdict"], found["shift"]) == ("bad", by)
    assert any(reason.endswith("later" if by > 0 else "earlier") for reason in found["reasons"])


def test_a_confident_policy_is_not_taken_for_shifted() -> None:
    class Sure(FakeScorer):
        def score(self, ids: "array[int]", start: int, *, likeliest: int = 0) -> Scores:
            return Scores(array("d", [-1e-6 * (i % 3) for i in range(start + 1, len(ids))]), None)

    found = audit(record(logprobs=[-1e-6 * ((i + 1) % 3) for i in range(16)]), scorer=Sure())
    assert (found["verdict"], found["shift"]) == ("ok", 0)


def test_a_file_without_sampled_tokens_proves_nothing() -> None:
    found = audit(record(mask=[0] * 16, versions=[None] * 16))
    assert (found["tokens"], found["mean_abs"], found["verdict"]) == (0, None, "incomplete")


class TestRareFaults:
    """They do not move the mean or the 99th percentile of a whole file."""

    def records(self, count: int) -> list[dict[str, Any]]:
        """Two turns each: 4 sampled tokens and a stop; 3 tokens, an interruption, and 4 more with a stop."""
        mask = [0] * 4 + [1] * 5 + [0] * 2 + [1] * 7
        tokens = array("I", [(7 * i * i + 3) % 50 for i in range(len(mask))])
        found = {
            "tokens": tokens.tolist(),
            "mask": mask,
            "logprobs": [true_logprob(tokens, i) if bit else 0.0 for i, bit in enumerate(mask)],
            "versions": ["v1" if bit else None for bit in mask],
            "traces": [len(mask)],
            "pieces": [[5, "stop"], [3, "abort"], [4, "stop"]],
            "messages": [
                {"role": "user"},
                {"role": "assistant", "tool_calls": [{}]},
                {"role": "tool"},
                {"role": "assistant"},
            ],
        }
        return [record(job=f"r/g/{i}", **found | {"logprobs": list(found["logprobs"])}) for i in range(count)]

    PLACES = {"first": 4, "call": 6, "stop": 8, "bridge": 11, "text": 12, "interruption": 14}  # noqa: RUF012

    def test_each_token_has_its_class(self) -> None:
        found = audit(*self.records(1))["classes"]
        assert {name: tally["tokens"] for name, tally in found.items()} == {
            "interruption": 1, "first": 1, "bridge": 1, "stop": 2, "call": 3, "text": 4,
        }  # fmt: skip

    @pytest.mark.parametrize("name", PLACES)
    def test_a_class_of_which_one_in_a_hundred_is_off_is_named(self, name: str) -> None:
        records = self.records(500)
        assert audit(*records)["verdict"] == "ok"
        for changed in records[::100]:
            changed["logprobs"][self.PLACES[name]] += 0.5
        found = audit(*records)
        assert found["verdict"] == "bad" and found["p99_abs"] < 0.1 and found["mean_abs"] < 0.01
        total = found["classes"][name]["tokens"]
        assert found["reasons"] == [f"5 of {total} tokens of class {name} are off by more than 0.125"]

    def test_one_shifted_trajectory_of_many_is_found(self) -> None:
        records = self.records(500)
        places = [i for i, bit in enumerate(records[0]["mask"]) if bit]
        tokens = array("I", records[0]["tokens"])
        for i in places[:-1]:
            records[77]["logprobs"][i] = true_logprob(tokens, i + 1)
        found = audit(*records)
        assert (found["verdict"], found["faulty"], found["shift"]) == ("bad", 1, 0)
        assert found["reasons"][-1] == "too many tokens are off in 1 of 500 trajectories, first in r/g/77"
        assert [(fault["job"], fault["turn"]) for fault in found["faults"]] == [("r/g/77", None)]

    def test_one_bad_turn_of_a_long_trajectory_is_found(self) -> None:
        mask = [0] * 4 + [1] * 600 + [0] * 2 + [1] * 20
        tokens = array("I", [(7 * i * i + 3) % 50 for i in range(len(mask))])
        logprobs = [true_logprob(tokens, i) if bit else 0.0 for i, bit in enumerate(mask)]
        for i in range(607, 611):
            logprobs[i] += 0.3
        versions = ["v1" if bit else None for bit in mask]
        fields = {"tokens": tokens.tolist(), "mask": mask, "logprobs": logprobs, "versions": versions, "traces": [626]}
        found = audit(record(**fields))
        assert (found["verdict"], [fault["turn"] for fault in found["faults"]]) == ("bad", [1])

    def test_two_outliers_prove_nothing(self) -> None:
        records = self.records(50)
        for changed in records[:2]:
            changed["logprobs"][self.PLACES["stop"]] += 0.5
        assert audit(*records)["verdict"] == "ok"

    def test_pieces_that_do_not_fit_the_mask_are_refused(self) -> None:
        with pytest.raises(ContractError, match="its pieces do not make up its 12 sampled tokens"):
            audit({**self.records(1)[0], "pieces": [[5, "stop"]]})
