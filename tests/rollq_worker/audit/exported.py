"""Exported trajectories with made-up logprobs, and an engine that knows them."""

import json
import math
from array import array
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rollq_worker.audit.comparison import Auditor
from rollq_worker.audit.exported_file import read
from rollq_worker.audit.report import Report
from rollq_worker.audit.scorer import Scores, ScoringRefused


def true_logprob(ids: "array[int]", i: int) -> float:
    """Of token i, made up from it and the one before."""
    return -((ids[i] * 31 + ids[i - 1] * 17) % 97) / 20


class FakeScorer:
    """Knows the true logprobs up to `noise`."""

    def __init__(self, *, noise: float = 0.0, max_tokens: int = 1000, refusal: str = "", lists: bool = True) -> None:
        self.noise, self.max_tokens, self.refusal, self.lists = noise, max_tokens, refusal, lists
        self.calls: list[tuple[list[int], int, int]] = []
        self.next_calls: list[tuple[int, int, float]] = []
        """Tokens before it, token, temperature."""

    def score(self, ids: "array[int]", start: int, *, likeliest: int = 0) -> Scores:
        self.calls.append((ids.tolist(), start, likeliest))
        if self.refusal:
            raise ScoringRefused(self.refusal)
        logprobs = array("d", [true_logprob(ids, i) + self.noise for i in range(start + 1, len(ids))])
        if not likeliest or not self.lists:
            return Scores(logprobs, None)
        # Two tokens share all the mass: the sampled one and another.
        return Scores(logprobs, [sorted((p, math.log(max(1e-9, 1 - math.exp(p)))), reverse=True) for p in logprobs])

    def score_next(self, ids: "array[int]", token: int, *, temperature: float) -> float:
        self.next_calls.append((len(ids), token, temperature))
        return true_logprob(ids + array("I", [token]), len(ids))


def record(**changes: Any) -> dict[str, Any]:
    """5 tokens of prompt, 4 sampled, 3 observed, 4 sampled."""
    tokens = array("I", [(7 * i * i + 3) % 50 for i in range(16)])
    mask = [0] * 5 + [1] * 4 + [0] * 3 + [1] * 4
    found = {
        "job": "r/g/0",
        "tokens": tokens.tolist(),
        "mask": mask,
        "logprobs": [true_logprob(tokens, i) if bit else 0.0 for i, bit in enumerate(mask)],
        "versions": ["v1" if bit else None for bit in mask],
        "traces": [16],
        "sampling": {"temperature": 1.0},
    }
    return {**found, **changes}


def write_file(folder: Path, *lines: object) -> Path:
    path = folder / "x.jsonl"
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return path


def audit(*records: object, scorer: FakeScorer | None = None, vocabulary: int = 50) -> dict[str, Any]:
    """The report on these records as JSON, with the `reasons` of the verdict and the tokens skipped `by_reason`."""
    auditor = Auditor(scorer or FakeScorer(), frozenset(["v1"]), vocabulary)
    report = Report()
    with TemporaryDirectory() as folder:
        for trajectory in read(write_file(Path(folder), *records)):
            report.add(auditor.audit(trajectory))
    report.revise(auditor.decode)
    return {**report.as_json(), "reasons": report.reasons, "by_reason": dict(report.total.skipped)}
