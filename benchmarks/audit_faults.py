"""Which faults `rollq audit` finds, by simulation: good files with a fault planted in a share of their trajectories.

A file has 1,000 trajectories of 8 turns; a turn has 25 sampled tokens, and every tenth one was interrupted. Its
logprobs are those of a policy that is sure of most tokens. Recorded and scored ones differ as they do on a real server
in bf16: by about 0.0001, one token in 330 by more than 0.01, one in 6,000 by up to 0.061. The table says in how many of
the files the fault was found. Exit code 1 when the audit finds a fault in a good file.

    python benchmarks/audit_faults.py [--files N]
"""

import argparse
import random
import sys
from array import array
from collections.abc import Callable, Sequence

from tables import table

from rollq.events import Finish
from rollq_worker.audit.comparison import Auditor
from rollq_worker.audit.exported_file import ExportedTrajectory
from rollq_worker.audit.report import Report
from rollq_worker.audit.scorer import Scores

TRAJECTORIES, TURNS, TOKENS, BRIDGE, PROMPT = 1000, 8, 25, 6, 40
INTERRUPTED = 10
"""One turn in so many."""
SHARES = (0.002, 0.005, 0.02, 0.1)
"""Shares of the trajectories that have the fault."""

Plant = Callable[[ExportedTrajectory], None]


def trajectory(number: int, draw: random.Random) -> ExportedTrajectory:
    """Its ids say where a token is, so that the scorer below knows it again."""
    turn = [0] * BRIDGE + [1] * TOKENS
    mask = bytes([0] * PROMPT + turn * TURNS)
    logprobs = array("d", [true_logprob(draw) if bit else 0.0 for bit in mask])
    pieces: list[tuple[int, str]] = []
    for i in range(TURNS):
        cut = (number + i) % INTERRUPTED == 0
        pieces += [(12, Finish.ABORT), (TOKENS - 12, Finish.STOP)] if cut else [(TOKENS, Finish.STOP)]
    return ExportedTrajectory(
        size=0,
        job=f"r/g/{number}",
        tokens=array("I", range(len(mask))),
        mask=mask,
        logprobs=logprobs,
        versions=["v" if bit else None for bit in mask],
        traces=[len(mask)],
        pieces=pieces,
        calls=[i % 2 == 0 for i in range(TURNS)],
        sampling={},
    )


def true_logprob(draw: random.Random) -> float:
    """Of a policy that gives two tokens of three a probability above 0.99."""
    return -draw.expovariate(300) if draw.random() < 0.67 else -draw.expovariate(1.2)


def noise(draw: random.Random) -> float:
    """Between decoding and prefill of a bf16 model: the first row of the table in docs/audit.md."""
    kind = draw.random()
    size = 0.061 if kind < 1 / 6000 else 0.03 if kind < 1 / 330 else 0.0002
    return draw.uniform(-size, size)


class SimulatedScorer:
    """Knows the true logprobs of one trajectory up to the noise."""

    max_tokens = 1 << 20

    def __init__(self, logprobs: Sequence[float], draw: random.Random) -> None:
        self._logprobs, self._draw = logprobs, draw

    def score(self, ids: "array[int]", start: int, *, likeliest: int = 0) -> Scores:
        return Scores(array("d", [self._logprobs[i] + noise(self._draw) for i in ids[start + 1 :]]), None)


def shifted(t: ExportedTrajectory, begin: int = 0, end: int | None = None) -> None:
    places = [i for i, bit in enumerate(t.mask) if bit][begin:end]
    moved = [t.logprobs[i] for i in places]
    for i, value in zip(places, moved[1:] + moved[:1], strict=True):
        t.logprobs[i] = value


def off(t: ExportedTrajectory, places: Sequence[int], by: float) -> None:
    for i in places:
        t.logprobs[i] += by


def turn_places(offset: int) -> list[int]:
    return [PROMPT + i * (BRIDGE + TOKENS) + BRIDGE + offset for i in range(TURNS)]


def resumed_places(t: ExportedTrajectory) -> list[int]:
    return [turn.pieces[0] for turn in t.turns() if len(turn.pieces) > 1]


def hotter(t: ExportedTrajectory) -> None:
    for i in range(len(t.logprobs)):
        t.logprobs[i] *= 1.1


FAULTS: dict[str, Plant] = {
    "all logprobs one token late": shifted,
    "those of one turn one token late": lambda t: shifted(t, 50, 75),
    "each stop token off by 1.4 nats": lambda t: off(t, turn_places(TOKENS - 1), 1.4),
    "each stop token off by 0.2": lambda t: off(t, turn_places(TOKENS - 1), 0.2),
    "the first token of each turn off by 0.5": lambda t: off(t, turn_places(0), 0.5),
    "the first token after each interruption off by 0.5": lambda t: off(t, resumed_places(t), 0.5),
    "one token of each trajectory off by 0.5": lambda t: off(t, [PROMPT + BRIDGE + 3], 0.5),
    "each logprob too large by a tenth": hotter,
}


def verdict(plant: Plant, share: float, seed: int) -> str:
    draw, report = random.Random(seed), Report()
    for number in range(TRAJECTORIES):
        found = trajectory(number, draw)
        scorer = SimulatedScorer(list(found.logprobs), draw)
        if number < share * TRAJECTORIES:
            plant(found)
        report.add(Auditor(scorer, frozenset(["v"]), 1 << 20).audit(found))  # type: ignore[arg-type]
    return report.verdict


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=5, help="files for each cell of the table (5)")
    args = parser.parse_args(argv)
    wrong = sum(verdict(lambda _: None, 0.0, seed) != "ok" for seed in range(args.files))
    rows = []
    for name, plant in FAULTS.items():
        cells = [sum(verdict(plant, share, seed) == "bad" for seed in range(args.files)) for share in SHARES]
        rows.append([name, *(f"{cell}/{args.files}" for cell in cells)])
        print(f"{name}: {rows[-1][1:]}", file=sys.stderr, flush=True)
    print(table(["fault", *(f"{share:.1%}" for share in SHARES)], rows))
    print(f"\n{wrong} of {args.files} good files were called bad.")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
