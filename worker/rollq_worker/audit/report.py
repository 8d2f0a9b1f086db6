"""The result of an audit: the numbers over all trajectories, what could be seen, and the verdict.

It keeps eight bytes a token, the tokens of one group and the worst ones, so a file may be long. It
knows nothing of engines.
"""

import math
from collections.abc import Iterator
from functools import cached_property
from typing import Any

from rollq_worker.audit.comparison import (
    MOST_REPORTED,
    SHIFTS,
    ComparisonResult,
    largest_differences,
)
from rollq_worker.audit.floor import Floor, spread
from rollq_worker.audit.significance import LEVEL, chance, fewest_outliers, highest_mean
from rollq_worker.audit.token_classes import Part, Place, Tally, TokenClass, note_repeats

MAX_NOISE = 0.15
"""Largest mean difference, in nats, between an engine's own decoding and prefill. A network of 28
layers in bf16 has 0.06. A temperature wrong by 0.5 makes 0.16.
"""
MIN_COMPARED = 0.95
"""Share of the sampled tokens that must be compared."""


class Report:
    """The sum of the results of all trajectories."""

    def __init__(self, floor: Floor) -> None:
        self.floor = floor
        self.trajectories = 0
        self.total = ComparisonResult("all")
        self._classes = {kind: Tally() for kind in TokenClass}
        self._group = ""
        self._places: list[Place] = []
        """Places of the group whose trajectories come now."""
        self._suspects: list[list[Part]] = []
        """Suspects of each trajectory that has some."""

    def add(self, result: ComparisonResult) -> None:
        self.trajectories += 1
        self.total.differences.extend(result.differences)
        self.total.skipped.update(result.skipped)
        self.total.shifted += result.shifted
        for shift, value in result.shifts.items():
            self.total.shifts[shift] += value
        group = result.job.rpartition("/")[0]
        if group != self._group:
            self._end_group()
            self._group = group
        self._places += result.places
        for place in result.places:
            self._classes[place.kind].add(place.difference, self.floor.outlier)
        self.total.parts += result.parts
        if result.suspects:
            self._suspects.append(result.suspects)
        self.total.worst = largest_differences([*self.total.worst, *result.worst])

    def _end_group(self) -> None:
        note_repeats(self._classes, self._places)
        self._places.clear()

    @property
    def classes(self) -> dict[TokenClass, Tally]:
        """The tokens of all trajectories by their place in a turn, once those are there."""
        self._end_group()
        return self._classes

    @property
    def shift(self) -> int:
        """The shift at which the scores fit the recorded logprobs at least twice as well as in
        place; else 0.
        """
        sums, n = self.total.shifts, self.total.shifted
        best = min(SHIFTS, key=lambda shift: (sums[shift], abs(shift)))
        # Below a mean of 0.001 a shift proves nothing: a confident policy's logprobs are about 0.
        if not n or sums[0] / n <= 0.001:
            return 0
        return best if sums[best] < sums[0] / 2 else 0

    @cached_property
    def all_tokens(self) -> Tally:
        tally = Tally()
        for of_class in self.classes.values():
            tally.join(of_class)
        return tally

    @property
    def level(self) -> float:
        """The level of one test with which all of them together keep LEVEL. The tests are of the
        mean and the outliers of the file and of each class, and of the outliers of each part.
        """
        return LEVEL / (2 + 2 * len(TokenClass) + self.total.parts)

    @cached_property
    def faults(self) -> list[list[Part]]:
        """The parts of each trajectory with too many outliers: all of it, or some of its turns."""
        faults = []
        for suspects in self._suspects:
            parts = [part for part in suspects if self._is_improbable(part.tally)]
            if parts and parts[0].turn is None:
                parts = parts[:1]
            if parts:
                faults.append(parts)
        return faults

    def as_json(self) -> dict[str, Any]:
        """The object that `rollq audit --json` prints."""
        numbers = spread(self.total.differences)
        return {
            "trajectories": self.trajectories,
            "tokens": numbers.pop("tokens"),
            "skipped": self.total.skipped.total(),
            **numbers,
            "floor": self.floor.numbers,
            "detectable": self.detectable,
            "shift": self.shift,
            "classes": {kind.value: tally.as_json() for kind, tally in self.classes.items()},
            "faulty": len(self.faults),
            "faults": [part.as_json() for parts in self.faults for part in parts][:MOST_REPORTED],
            "worst": [token.as_json() for token in self.total.worst],
            "verdict": self.verdict,
        }

    @property
    def detectable(self) -> dict[str, Any]:
        """The smallest faults that this audit can see, in trajectories and turns of
        average length.
        """
        tokens = self.all_tokens.tokens
        turns = self.total.parts - self.trajectories
        limit = self._highest_mean(self.all_tokens, self.floor.all_tokens)
        in_file = self._fewest(tokens, self.all_tokens.independent)
        outliers = {"file": {"of": tokens, "least": in_file}}
        sizes = {"trajectory": tokens // max(1, self.trajectories), "turn": tokens // max(1, turns)}
        for name, size in sizes.items():
            outliers[name] = {"of": size, "least": self._fewest(size)}
        return {
            "mean_abs": limit if limit < math.inf else None,
            "outlier": self.floor.outlier,
            "outliers": outliers,
        }

    def _fewest(self, tokens: int, independent: float = 1.0) -> int | None:
        """The smallest number of outliers that chance does not explain; None if even all prove
        nothing.
        """
        fewest = fewest_outliers(round(tokens * independent), self.floor.share(), self.level)
        return fewest and math.ceil(fewest / independent)

    @property
    def detectable_text(self) -> str:
        """`detectable`, in words."""
        detectable = self.detectable
        counts = []
        for name, outliers in detectable["outliers"].items():
            least = "not even all" if outliers["least"] is None else outliers["least"]
            counts.append(f"{least} of {outliers['of']} in a {name}")
        limit = detectable["mean_abs"]
        mean = "" if limit is None else f"a mean above {limit:.4f}, or "
        return (
            f"a fault shows as {mean}tokens off by more than {detectable['outlier']:.3g}: "
            f"{', '.join(counts)}"
        )

    @property
    def verdict(self) -> str:
        if self._mismatches():
            return "bad"
        return "incomplete" if self._gaps() else "ok"

    @property
    def reasons(self) -> list[str]:
        """The reasons for a verdict that is not ok, in words."""
        return [*self._mismatches(), *self._gaps()]

    def _is_improbable(self, tally: Tally, kind: TokenClass | None = None) -> bool:
        outliers = tally.outliers * tally.independent
        tokens = tally.tokens * tally.independent
        return chance(outliers, tokens, self.floor.share(kind)) < self.level

    def _highest_mean(self, tally: Tally, floor: Tally) -> float:
        # 0.01 nats are not a fault on any engine: two bf16 engines differ by 0.005 to 0.006 (dense
        # 32B).
        return max(0.01, highest_mean(tally, floor, self.level))

    def _mismatches(self) -> list[str]:
        reasons = []
        noise = self.floor.numbers["mean_abs"]
        if noise is not None and noise > MAX_NOISE:
            reasons.append(
                f"the engine contradicts itself: its prefill is off by {noise:.4f} on average from "
                f"what it decoded during this audit, above {MAX_NOISE:g}"
            )
        if self.shift:
            direction = "later" if self.shift > 0 else "earlier"
            reasons.append(f"the recorded logprobs fit the tokens one position {direction}")
        reasons += self._beyond(self.all_tokens, None)
        for kind, tally in self.classes.items():
            reasons += self._beyond(tally, kind)
        if self.faults:
            first = self.faults[0][0]
            where = first.job if first.turn is None else f"turn {first.turn} of {first.job}"
            reasons.append(
                f"too many tokens are off in {len(self.faults)} of {self.trajectories} "
                f"trajectories, first in {where}"
            )
        return reasons

    def _beyond(self, tally: Tally, kind: TokenClass | None) -> Iterator[str]:
        """Differences of the tokens of a class, or of all, that the engine's noise and chance do
        not explain.
        """
        if not tally.tokens:
            return
        what = f"the tokens of class {kind}" if kind else "all tokens"
        noise = self.floor.of(kind) if kind else self.floor.all_tokens
        limit = self._highest_mean(tally, noise)
        if tally.mean > limit:
            yield f"the mean difference of {what} is {tally.mean:.4f}, above {limit:.4f}"
        if self._is_improbable(tally, kind):
            yield (
                f"{tally.outliers} of {what} ({tally.tokens}) are off by more than "
                f"{self.floor.outlier:.3g}"
            )

    def _gaps(self) -> list[str]:
        compared = len(self.total.differences)
        skipped = self.total.skipped.total()
        gaps = []
        if compared < MIN_COMPARED * max(1, compared + skipped):
            gaps.append(f"{compared} of {compared + skipped} sampled tokens could be compared")
        if compared and not self.floor.all_tokens.tokens:
            gaps.append("the engine's own noise could not be measured")
        if compared and self._fewest(compared, self.all_tokens.independent) is None:
            gaps.append(f"{compared} tokens are too few to prove anything")
        return gaps
