"""The figure: reward, staleness, throughput and entropy by training step."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # no display is needed
from matplotlib import pyplot as plt

PANELS = (
    ("held_out", "reward on held-out tasks"),
    ("reward", "reward in training"),
    ("staleness_mean", "staleness, steps"),
    ("entropy", "entropy, nats per token"),
    ("tokens_per_s", "sampled tokens per second"),
    ("mean_abs_log_ratio", "mean |log ratio| to the engine"),
)
"""The number of a step, and its title."""


def draw(histories: Mapping[str, Sequence[Mapping[str, Any]]], path: Path) -> Path:
    """One line for each history in each panel."""
    figure, axes = plt.subplots(2, 3, figsize=(11, 5.5), dpi=90, layout="constrained")
    for axis, (key, title) in zip(axes.flat, PANELS, strict=True):
        for history in histories.values():
            measured = [numbers for numbers in history if key in numbers]
            steps, values = (
                [numbers["step"] for numbers in measured],
                [numbers[key] for numbers in measured],
            )
            axis.plot(steps, values, linewidth=1.2, marker="." if key == "held_out" else "")
        axis.set_title(title, fontsize=10)
        axis.grid(alpha=0.3)
        if key in ("held_out", "reward"):
            axis.set_ylim(0, 1)
        if key == "mean_abs_log_ratio":
            axis.set_yscale("log")
    figure.legend(
        axes.flat[0].lines,
        histories,
        loc="outside lower center",
        ncols=3,
        fontsize=8,
        title="by training step",
    )
    figure.savefig(path)
    plt.close(figure)
    return path
