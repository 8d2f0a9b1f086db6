"""Files of a confident policy: samples of a group have a prompt in common, and go one of three ways
in each turn.

The first token of a turn decides the way, and is noisy; of the others one in twenty is. The engine
that is asked goes the same ways. What it says of a token is the same each time.
"""

from array import array
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rollq.events import Finish
from rollq_worker.audit.comparison import Auditor
from rollq_worker.audit.exported_file import ExportedTrajectory, Piece
from rollq_worker.audit.report import Report
from rollq_worker.audit.scorer import SampledTokens, Scores
from tests.rollq_worker.audit.simulation import report_on

PROMPT, BRIDGE, TURN, SIZE = 40, 6, 14, 8
WAYS = (0.6, 0.3, 0.1)
MASK = bytes([0] * PROMPT + [1] * TURN + [0] * BRIDGE + [1] * TURN)
Plant = Callable[[ExportedTrajectory, int], None]
"""What is wrong with sample so-and-so of a group."""


class DeskEngine:
    """A token's id says where its true logprob is, and by how much prefill is off."""

    max_tokens = 1 << 30
    cuts = False

    def __init__(self, seed: int) -> None:
        self._draw = np.random.default_rng(seed)
        self._true, self._off = array("d"), array("d")
        self._ways: dict[int, list[array[int]]] = {}

    def new(self, count: int) -> "array[int]":
        first = len(self._true)
        off = np.where(
            self._draw.random(count) < 0.05, 0.09 * self._draw.standard_t(14, count), 0.0
        )
        off[0] = 0.06 * self._draw.standard_t(8)
        self._true.extend(-self._draw.exponential(1 / 1.2, count))
        self._off.extend(off)
        return array("I", range(first, first + count))

    def sample(
        self, ids: "array[int]", sampling: Mapping[str, Any], adapter: Any = None
    ) -> SampledTokens:
        ways = self._ways.setdefault(ids[-1], [])
        while len(ways) < len(WAYS):
            ways.append(self.new(TURN))
        way = ways[self._draw.choice(len(WAYS), p=WAYS)]
        return SampledTokens(way, array("d", [self._true[id] for id in way]), True)

    def score(
        self, ids: "array[int]", start: int, *, likeliest: int = 0, adapter: Any = None
    ) -> Scores:
        logprobs = array("d", [self._true[id] + self._off[id] for id in ids[start + 1 :]])
        return Scores(logprobs, [()] * len(logprobs))


def groups_of(engine: DeskEngine, count: int) -> list[ExportedTrajectory]:
    file = []
    for group in range(count):
        prompt, bridges = engine.new(PROMPT), dict[int, "array[int]"]()
        for sample in range(SIZE):
            first = engine.sample(prompt, {})
            bridge = bridges.setdefault(first.ids[0], engine.new(BRIDGE))
            second = engine.sample(bridge, {})
            logprobs = (
                array("d", bytes(8 * PROMPT))
                + first.logprobs
                + array("d", bytes(8 * BRIDGE))
                + second.logprobs
            )
            file.append(
                ExportedTrajectory(
                    size=0,
                    job=f"r/{group}/{sample}",
                    tokens=prompt + first.ids + bridge + second.ids,
                    mask=MASK,
                    logprobs=logprobs,
                    versions=["v"] * len(MASK),
                    traces=[len(MASK)],
                    adapters=[""],
                    pieces=[Piece(TURN, Finish.STOP, {})] * 2,
                    calls=[True, False],
                    sampling={},
                )
            )
    return file


def first_off(t: ExportedTrajectory, sample: int) -> None:
    t.logprobs[PROMPT] += 0.5


def first_off_but_once(t: ExportedTrajectory, sample: int) -> None:
    t.logprobs[PROMPT] += 3.0 * (sample > 0)


def late(t: ExportedTrajectory, sample: int) -> None:
    t.logprobs[PROMPT + 1 : PROMPT + TURN] = t.logprobs[PROMPT : PROMPT + TURN - 1]


FAULTS: Mapping[str, Plant] = {
    "each first token off by 0.5": first_off,
    "the first token of all samples but one off by 3": first_off_but_once,
    "each first turn one token late": late,
}


def report_of_groups(seed: int, groups: int, plant: Plant | None = None) -> Report:
    engine = DeskEngine(seed)
    file = groups_of(engine, groups)
    for t in file:
        if plant:
            plant(t, int(t.job.rpartition("/")[2]))
    return report_on(file, Auditor(engine, frozenset(["v"]), 1 << 30))  # type: ignore[arg-type]
