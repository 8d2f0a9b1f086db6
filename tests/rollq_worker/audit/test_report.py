"""The numbers of an audit, and its verdict."""

from array import array
from collections.abc import Mapping
from typing import Any

import pytest

from rollq_worker.audit.floor import TURNS, spread
from rollq_worker.audit.scorer import SampledTokens, Scores, ScoringRefused
from tests.rollq_worker.audit.desk_simulation import FAULTS as DESK_FAULTS
from tests.rollq_worker.audit.desk_simulation import report_of_groups
from tests.rollq_worker.audit.exported import FakeScorer, audit, record, true_logprob
from tests.rollq_worker.audit.simulation import FAULTS, Noise, audited, deep, shallow


@pytest.mark.parametrize("n", [1, 2, 100, 101, 1000])
def test_the_spread_of_differences(n: int) -> None:
    report = spread(
        array("d", [(i * 37 % n) / n for i in range(n)]) if n != 2 else array("d", [1.0, 3.0])
    )
    ordered = [i / n for i in range(n)] if n != 2 else [1.0, 3.0]
    assert report["p99_abs"] == ordered[int(0.99 * (n - 1))] and report["max_abs"] == ordered[-1]
    assert report["mean_abs"] == pytest.approx(sum(ordered) / n) and report["tokens"] == n


def test_a_file_that_is_off_as_a_whole() -> None:
    records = [record(job=f"r/{i}/0") for i in range(20)]
    for changed in records:
        changed["logprobs"] = [p - 0.05 if p else 0.0 for p in changed["logprobs"]]
    report = audit(*records)
    assert (
        report["verdict"] == "bad"
        and report["reasons"][0] == "the mean difference of all tokens is 0.0500, above 0.0100"
    )
    assert report["detectable"]["mean_abs"] == 0.01


def test_an_engine_that_is_as_noisy_is_no_fault_of_the_file() -> None:
    report = audit(*[record(job=f"r/{i}/0") for i in range(20)], scorer=FakeScorer(noise=0.12))
    assert (report["verdict"], report["reasons"]) == ("ok", [])
    assert report["floor"]["mean_abs"] == pytest.approx(0.12) == report["mean_abs"]
    assert (
        report["detectable"]["outlier"] == pytest.approx(0.18) == report["detectable"]["mean_abs"]
    )


def test_an_engine_that_contradicts_itself() -> None:
    report = audit(record(), scorer=FakeScorer(noise=0.3))
    assert report["verdict"] == "bad" and report["reasons"][0].startswith(
        "the engine contradicts itself: its prefill is off"
    )


def test_noise_that_cannot_be_measured_proves_nothing() -> None:
    class Refuses(FakeScorer):
        def sample(
            self, ids: "array[int]", sampling: Mapping[str, Any], adapter: Any = None
        ) -> SampledTokens:
            raise ScoringRefused("no")

    report = audit(record(), scorer=Refuses())
    assert (
        report["verdict"] == "incomplete"
        and "the engine's own noise could not be measured" in report["reasons"]
    )
    assert report["floor"]["tokens"] == 0 and report["detectable"]["mean_abs"] is None


@pytest.mark.parametrize("noise", [deep, shallow])
class TestSimulatedFiles:
    """Of a deep model, whose decoding and prefill are far apart, and of a shallow one."""

    def test_a_good_file_is_good(self, noise: Noise) -> None:
        assert [seed for seed in range(100) if audited(noise, seed, 10).verdict != "ok"] == []

    @pytest.mark.parametrize(
        "fault",
        [
            "all logprobs one token late",
            "those of one turn one token late",
            "each first token of a turn off by 0.5",
            "other weights, off by 0.2 on average",
        ],
    )
    def test_a_fault_of_one_trajectory_in_two_hundred_is_found(
        self, noise: Noise, fault: str
    ) -> None:
        report = audited(noise, 7, 200, plant=FAULTS[fault], share=0.005)
        assert report.verdict == "bad" and [parts[0].job for parts in report.faults] == ["r/g/0"]


class TestGroups:
    """Samples of a group begin alike: what they have in common is one observation."""

    @pytest.mark.parametrize("groups", [8, 24])
    def test_a_good_file_is_good(self, groups: int) -> None:
        assert [seed for seed in range(30) if report_of_groups(seed, groups).verdict == "bad"] == []

    @pytest.mark.parametrize("fault", DESK_FAULTS)
    def test_a_fault_is_found(self, fault: str) -> None:
        assert [
            seed
            for seed in range(10)
            if report_of_groups(seed, 16, DESK_FAULTS[fault]).verdict != "bad"
        ] == []

    def test_chance_is_reckoned_with_what_is_not_repeated_in_a_group(self) -> None:
        def least(*jobs: str) -> int:
            found: int = audit(*[record(job=job) for job in jobs])["detectable"]["outliers"][
                "file"
            ]["least"]
            return found

        together, apart = (
            least(*(f"r/a/{i}" for i in range(8))),
            least(*(f"r/{i}/0" for i in range(8))),
        )
        assert together > 2 * apart

    @pytest.mark.parametrize("right", [0, 3])
    def test_a_good_sample_hides_no_bad_ones(self, right: int) -> None:
        records = [record(job=f"r/{group}/{sample}") for group in range(60) for sample in range(4)]
        for number, changed in enumerate(records):
            changed["logprobs"][5] -= 3.0 * (number % 4 != right)
        report = audit(*records)
        assert (report["verdict"], report["classes"]["first"]["outliers"]) == ("bad", 180)

    def test_turns_that_the_engine_decodes_alike_are_one_observation(self) -> None:
        class Alike(FakeScorer):
            def sample(
                self, ids: "array[int]", sampling: Mapping[str, Any], adapter: Any = None
            ) -> SampledTokens:
                found = super().sample(ids, sampling)
                self.sampled.clear()
                return found

        alike, various = audit(record(), scorer=Alike()), audit(record())
        assert alike["floor"]["tokens"] == various["floor"]["tokens"] == 4 * TURNS
        least = [report["detectable"]["outliers"]["file"]["least"] for report in (alike, various)]
        assert least[0] > least[1]


@pytest.mark.parametrize("by", [1, -1])
def test_a_shifted_file_is_named_as_such(by: int) -> None:
    shifted = record()
    positions = [i for i, bit in enumerate(shifted["mask"]) if bit]
    tokens = array("I", shifted["tokens"])
    for i in positions:
        shifted["logprobs"][i] = true_logprob(tokens, (i + by) % len(tokens))
    report = audit(shifted)
    assert (report["verdict"], report["shift"]) == ("bad", by)
    assert any(reason.endswith("later" if by > 0 else "earlier") for reason in report["reasons"])


def test_a_confident_policy_is_not_taken_for_shifted() -> None:
    class Sure(FakeScorer):
        def score(
            self, ids: "array[int]", start: int, *, likeliest: int = 0, adapter: Any = None
        ) -> Scores:
            logprobs = array("d", [-1e-6 * (i % 3) for i in range(start + 1, len(ids))])
            return Scores(logprobs, [()] * len(logprobs))

        def sample(
            self, ids: "array[int]", sampling: Mapping[str, Any], adapter: Any = None
        ) -> SampledTokens:
            found = super().sample(ids, sampling)
            return SampledTokens(found.ids, array("d", [-1e-6] * len(found.ids)), True)

    report = audit(
        record(
            logprobs=[
                -1e-6 * ((i + 1) % 3) if bit else 0.0 for i, bit in enumerate(record()["mask"])
            ]
        ),
        scorer=Sure(),
    )
    assert (report["verdict"], report["shift"]) == ("ok", 0)


def test_a_file_without_sampled_tokens_proves_nothing() -> None:
    report = audit(record(mask=[0] * 16, versions=[None] * 16))
    assert (report["tokens"], report["mean_abs"], report["verdict"]) == (0, None, "incomplete")


class TestRareFaults:
    """They do not move the mean or the 99th percentile of a whole file."""

    def records(self, count: int) -> list[dict[str, Any]]:
        """Two turns each: 4 sampled tokens and a stop; 3 tokens, an interruption, and 4 more with a
        stop.
        """
        mask = [0] * 4 + [1] * 5 + [0] * 2 + [1] * 7
        tokens = array("I", [(7 * i * i + 3) % 50 for i in range(len(mask))])
        report = {
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
        return [
            record(job=f"r/{i}/0", **report | {"logprobs": list(report["logprobs"])})
            for i in range(count)
        ]

    PLACES = {"first": 4, "call": 6, "stop": 8, "bridge": 11, "text": 12, "interruption": 14}  # noqa: RUF012

    def test_each_token_has_its_class(self) -> None:
        report = audit(*self.records(1))["classes"]
        assert {name: tally["tokens"] for name, tally in report.items()} == {
            "interruption": 1, "first": 1, "bridge": 1, "stop": 2, "call": 3, "text": 4,
        }  # fmt: skip

    @pytest.mark.parametrize("name", PLACES)
    def test_a_class_of_which_some_are_off_is_named(self, name: str) -> None:
        records = self.records(500)
        assert audit(*records)["verdict"] == "ok"
        for changed in records[::12]:
            changed["logprobs"][self.PLACES[name]] += 0.5
        report = audit(*records)
        assert report["verdict"] == "bad" and report["p99_abs"] < 0.1 and report["mean_abs"] < 0.01
        total = report["classes"][name]["tokens"]
        assert (
            f"42 of the tokens of class {name} ({total}) are off by more than 0.125"
            in report["reasons"]
        )

    def test_one_shifted_trajectory_of_many_is_found(self) -> None:
        records = self.records(500)
        places = [i for i, bit in enumerate(records[0]["mask"]) if bit]
        tokens = array("I", records[0]["tokens"])
        for i in places[:-1]:
            records[77]["logprobs"][i] = true_logprob(tokens, i + 1)
        report = audit(*records)
        assert (report["verdict"], report["faulty"], report["shift"]) == ("bad", 1, 0)
        assert (
            report["reasons"][-1]
            == "too many tokens are off in 1 of 500 trajectories, first in r/77/0"
        )
        assert [(fault["job"], fault["turn"]) for fault in report["faults"]] == [("r/77/0", None)]

    def test_one_bad_turn_of_a_long_trajectory_is_found(self) -> None:
        mask = [0] * 4 + [1] * 600 + [0] * 2 + [1] * 20
        tokens = array("I", [(7 * i * i + 3) % 50 for i in range(len(mask))])
        logprobs = [true_logprob(tokens, i) if bit else 0.0 for i, bit in enumerate(mask)]
        for i in range(607, 611):
            logprobs[i] += 0.3
        versions = ["v1" if bit else None for bit in mask]
        fields = {
            "tokens": tokens.tolist(),
            "mask": mask,
            "logprobs": logprobs,
            "versions": versions,
            "traces": [626],
        }
        report = audit(record(**fields))
        assert (report["verdict"], [fault["turn"] for fault in report["faults"]]) == ("bad", [1])

    def test_two_outliers_prove_nothing(self) -> None:
        records = self.records(50)
        for changed in records[:2]:
            changed["logprobs"][self.PLACES["stop"]] += 0.5
        assert audit(*records)["verdict"] == "ok"
