"""Which faults `rollq audit` finds, by simulation: files of a policy that is sure of most tokens,
on a noisy engine.

    python -m tests.rollq_worker.audit.simulation [--files N]

prints a table: files of 1,000 trajectories with a fault in a share of them, and in how many of the
files it was found. docs/audit.md sums it up. Exit code 1 when a good file is called bad.
"""

import argparse
import sys
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rollq.events import Finish
from rollq_worker.audit.comparison import Auditor
from rollq_worker.audit.exported_file import ExportedTrajectory, Piece
from rollq_worker.audit.floor import Floor, turns_to_decode
from rollq_worker.audit.report import Report
from rollq_worker.audit.scorer import SampledTokens, Scores

TURNS, TOKENS, BRIDGE, PROMPT = 8, 25, 6, 40
INTERRUPTED = 10
"""One turn in so many."""
SHARES = (0.001, 0.005, 0.02, 0.1)

Random = np.random.Generator
Noise = Callable[[Random, int], Any]
Plant = Callable[[ExportedTrajectory], None]


def deep(draw: Random, n: int) -> Any:
    """As measured between decoding and prefill of 28 layers in bf16: mean 0.06, 99th percentile
    0.21.
    """
    return 0.0715 * draw.standard_t(14, n)


def shallow(draw: Random, n: int) -> Any:
    """As measured of two layers, where few tokens are rounded the other way: mean 0.0011, 99th
    percentile 0.028.
    """
    return np.where(draw.random(n) < 0.06, 0.0185 * draw.standard_t(6, n), 0.0001)


def logprobs(draw: Random, n: int) -> Any:
    """Of a policy that gives two tokens of three a probability above 0.99."""
    return -np.where(
        draw.random(n) < 0.67, draw.exponential(1 / 300, n), draw.exponential(1 / 1.2, n)
    )


class SimulatedEngine:
    """Decodes with the true logprobs; its prefill is off by the noise. A token's id says where its
    logprob is.
    """

    max_tokens = 1 << 30
    cuts = False

    def __init__(self, draw: Random, noise: Noise) -> None:
        self._draw, self._noise, self._true = draw, noise, array("d")

    def sample(
        self, ids: "array[int]", sampling: Mapping[str, Any], adapter: Any = None
    ) -> SampledTokens:
        n = sampling["max_new_tokens"]
        first = len(self._true)
        self._true.extend(logprobs(self._draw, n))
        return SampledTokens(array("I", range(first, first + n)), self._true[first:], True)

    def score(
        self, ids: "array[int]", start: int, *, likeliest: int = 0, adapter: Any = None
    ) -> Scores:
        scored = ids[start + 1 :]
        noise = self._noise(self._draw, len(scored))
        true = np.frombuffer(self._true)[np.frombuffer(scored, np.uint32)]
        return Scores(array("d", true + noise))


def trajectory(engine: SimulatedEngine, number: int) -> ExportedTrajectory:
    mask = bytes([0] * PROMPT + ([0] * BRIDGE + [1] * TOKENS) * TURNS)
    sampled = engine.sample(array("I"), {"max_new_tokens": len(mask)})
    pieces: list[Piece] = []
    for i in range(TURNS):
        cut = (number + i) % INTERRUPTED == 0
        parts = [(12, Finish.ABORT), (TOKENS - 12, Finish.STOP)] if cut else [(TOKENS, Finish.STOP)]
        pieces += [Piece(length, finish, {}) for length, finish in parts]
    return ExportedTrajectory(
        size=0,
        job=f"r/g/{number}",
        tokens=sampled.ids,
        mask=mask,
        logprobs=sampled.logprobs,
        versions=["v"] * len(mask),
        traces=[len(mask)],
        adapters=[""],
        pieces=pieces,
        calls=[i % 2 == 0 for i in range(TURNS)],
        sampling={},
    )


def shifted(t: ExportedTrajectory, begin: int = 0, end: int | None = None) -> None:
    """The logprobs of these sampled tokens, one token late."""
    places = [i for i, bit in enumerate(t.mask) if bit][begin:end]
    moved = [t.logprobs[i] for i in places]
    for i, value in zip(places, moved[-1:] + moved[:-1], strict=True):
        t.logprobs[i] = value


def off(t: ExportedTrajectory, places: Sequence[int], by: float) -> None:
    for i in places:
        t.logprobs[i] += by


def turn_places(offset: int) -> list[int]:
    return [PROMPT + i * (BRIDGE + TOKENS) + BRIDGE + offset for i in range(TURNS)]


def resumed_places(t: ExportedTrajectory) -> list[int]:
    return [turn.pieces[0] for turn in t.turns() if len(turn.pieces) > 1]


def wrong_weights(t: ExportedTrajectory) -> None:
    """The logprobs of another policy, off by 0.2 on average."""
    apart = np.random.default_rng(len(t.job)).normal(0, 0.25, len(t.logprobs))
    for i, by in enumerate(apart):
        t.logprobs[i] += by


def hotter(t: ExportedTrajectory) -> None:
    for i in range(len(t.logprobs)):
        t.logprobs[i] *= 1.5


FAULTS: dict[str, Plant] = {
    "all logprobs one token late": shifted,
    "those of one turn one token late": lambda t: shifted(t, 2 * TOKENS, 3 * TOKENS),
    "each first token of a turn off by 0.5": lambda t: off(t, turn_places(0), 0.5),
    "each stop token off by 0.2": lambda t: off(t, turn_places(TOKENS - 1), 0.2),
    "the first token after each interruption off by 0.5": lambda t: off(t, resumed_places(t), 0.5),
    "one token of each trajectory off by 0.5": lambda t: off(t, [PROMPT + BRIDGE + 3], 0.5),
    "other weights, off by 0.2 on average": wrong_weights,
    "each logprob too large by a half": hotter,
}


def audited(
    noise: Noise, seed: int, trajectories: int, *, plant: Plant = shifted, share: float = 0.0
) -> Report:
    """The report on a file with the fault in that share of its trajectories."""
    draw = np.random.default_rng(seed)
    engine = SimulatedEngine(draw, noise)
    file = [trajectory(engine, number) for number in range(trajectories)]
    for number in range(round(share * trajectories)):
        plant(file[number * trajectories // round(share * trajectories)])
    return report_on(file, Auditor(engine, frozenset(["v"]), 1 << 30))  # type: ignore[arg-type]


def report_on(file: Sequence[ExportedTrajectory], auditor: Auditor) -> Report:
    floor = Floor(auditor.audit_again(*turn) for turn in turns_to_decode(file, len(file)))
    report = Report(floor)
    for t in file:
        report.add(auditor.audit(t, floor.outlier))
    return report


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=int, default=3, help="files for each cell of the table (3)")
    files = range(parser.parse_args().files)
    wrong = 0
    for noise in (deep, shallow):
        print(f"| {noise.__name__} | {' | '.join(f'{share:.1%}' for share in SHARES)} |")
        wrong += sum(audited(noise, 1000 + seed, 1000).verdict != "ok" for seed in files)
        for name, plant in FAULTS.items():
            found = [
                sum(
                    audited(noise, seed, 1000, plant=plant, share=share).verdict == "bad"
                    for seed in files
                )
                for share in SHARES
            ]
            print(f"| {name} | {' | '.join(f'{n}/{len(files)}' for n in found)} |", flush=True)
    print(f"{wrong} of {2 * len(files)} good files were called bad")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
