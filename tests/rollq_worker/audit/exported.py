"""Exported trajectories with made-up logprobs, and an engine that knows them."""

import json
import math
from array import array
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rollq_worker.audit.comparison import Auditor
from rollq_worker.audit.exported_file import read
from rollq_worker.audit.floor import Floor, turns_to_decode
from rollq_worker.audit.report import Report
from rollq_worker.audit.scorer import SampledTokens, Scores, ScoringRefused
from rollq_worker.protocols import Adapter


def true_logprob(ids: "array[int]", i: int) -> float:
    """Of token i, made up from it and the one before."""
    return -((ids[i] * 31 + ids[i - 1] * 17) % 97) / 20


class FakeScorer:
    """Knows the true logprobs up to `noise`."""

    cuts = False

    def __init__(
        self,
        *,
        noise: float = 0.0,
        max_tokens: int = 1000,
        refusal: str = "",
        refusal_to_decode: str = "",
        lists: bool = True,
    ) -> None:
        self.noise, self.max_tokens, self.lists = noise, max_tokens, lists
        self.refusal, self.refusal_to_decode = refusal, refusal_to_decode
        self.decoded: list[tuple[int, float]] = []
        """Tokens before it, temperature."""
        self.calls: list[tuple[list[int], int, int]] = []
        self.sampled: list[tuple[int, dict[str, Any]]] = []
        """Tokens before it, what was asked for."""
        self.adapters: list[Adapter | None] = []
        """Those of the calls."""
        self.others: set[Adapter] = set()
        """Adapters that stand for other weights than they did."""

    def score(
        self, ids: "array[int]", start: int, *, likeliest: int = 0, adapter: Adapter | None = None
    ) -> Scores:
        self.calls.append((ids.tolist(), start, likeliest))
        self.adapters.append(adapter)
        if self.refusal:
            raise ScoringRefused(self.refusal)
        logprobs = array(
            "d",
            [
                true_logprob(ids, i) + self.noise - (adapter in self.others)
                for i in range(start + 1, len(ids))
            ],
        )
        if not likeliest or not self.lists:
            return Scores(logprobs, [()] * len(logprobs))
        # Two tokens share all the mass: the sampled one and another.
        return Scores(
            logprobs,
            [sorted((p, math.log(max(1e-9, 1 - math.exp(p)))), reverse=True) for p in logprobs],
        )

    def score_decoded(
        self, ids: "array[int]", token: int, temperature: float, adapter: Adapter | None = None
    ) -> float:
        self.decoded.append((len(ids), temperature))
        if self.refusal_to_decode:
            raise ScoringRefused(self.refusal_to_decode)
        logprob = true_logprob(ids + array("I", [token]), len(ids))
        return at_temperature(logprob, temperature) + self.noise - (adapter in self.others)

    def sample(
        self, ids: "array[int]", sampling: Mapping[str, Any], adapter: Adapter | None = None
    ) -> SampledTokens:
        """Decodes without noise. No two turns begin alike."""
        self.sampled.append((len(ids), dict(sampling)))
        new, count, temperature = (
            array("I"),
            sampling["max_new_tokens"],
            sampling.get("temperature") or 1.0,
        )
        for i in range(count):
            new.append((7 * i * i + ids[-1] + len(self.sampled) // 2) % 40)
        known = [true_logprob(ids + new, len(ids) + i) for i in range(count)]
        return SampledTokens(new, array("d", [at_temperature(p, temperature) for p in known]), True)


def at_temperature(p: float, temperature: float) -> float:
    """Of the sampled one of two tokens that share all the mass."""
    other = math.log(max(1e-9, 1 - math.exp(p)))
    return p / temperature - math.log(math.exp(p / temperature) + math.exp(other / temperature))


def record(**changes: Any) -> dict[str, Any]:
    """5 tokens of prompt, 4 sampled, 3 observed, 4 sampled; what is not given fits what is."""
    made = {
        "job": "r/g/0",
        "tokens": [(7 * i * i + 3) % 50 for i in range(16)],
        "mask": [0] * 5 + [1] * 4 + [0] * 3 + [1] * 4,
    }
    made |= changes
    mask, ids = made["mask"], array("I", made["tokens"])
    turns = [len(list(run)) for sampled, run in groupby(mask) if sampled]
    run, group, sample = made["job"].split("/")
    of_job = {
        "run": run,
        "group": group,
        "sample": int(sample),
        "env": "e",
        "split": "train",
        "queue": "rollq",
        "task": 0,
    }
    of_attempt = {
        "attempt": 1,
        "began": 1.0,
        "stop": "done",
        "failure": None,
        "reward": 1.0,
        "info": {},
    }
    return {
        **of_job,
        **of_attempt,
        "labels": {},
        "turns": len(turns),
        "turn_rewards": [None] * len(turns),
        "times": [],
        "messages": [{"role": "assistant", "content": ""}] * len(turns),
        "logprobs": [true_logprob(ids, i) if bit else 0.0 for i, bit in enumerate(mask)],
        "versions": ["v1" if bit else None for bit in mask],
        "traces": [len(ids)],
        "pieces": [[length, "stop"] for length in turns],
        "sampling": {"temperature": 1.0},
        **made,
    }


def write_file(folder: Path, *lines: object) -> Path:
    path = folder / "x.jsonl"
    path.write_text(
        "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines)
    )
    return path


def audit(
    *records: object, scorer: FakeScorer | None = None, vocabulary: int = 50
) -> dict[str, Any]:
    """The report on these records as JSON, with the `reasons` of the verdict and the tokens skipped
    `by_reason`.
    """
    scorer = scorer or FakeScorer()
    auditor = Auditor(scorer, frozenset(["v1"]), vocabulary)
    with TemporaryDirectory() as folder:
        trajectories = list(read(write_file(Path(folder), *records)))
    floor = Floor(
        auditor.audit_again(*turn) for turn in turns_to_decode(trajectories, len(trajectories))
    )
    scorer.calls.clear()
    report = Report(floor)
    for trajectory in trajectories:
        report.add(auditor.audit(trajectory, floor.outlier))
    return {**report.as_json(), "reasons": report.reasons, "by_reason": dict(report.total.skipped)}
