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
        for name, history in histories.items():
            points = [(numbers["step"], numbers[key]) for numbers in history if key in numbers]
            axis.plot(*zip(*points, strict=True), label=name, linewidth=1.2, marker="." if key == "held_out" else "")
        axis.set_title(title, fontsize=10)
        axis.grid(alpha=0.3)
        if key in ("held_out", "reward"):
            axis.set_ylim(0, 1)
    axes.flat[0].legend(fontsize=8)
    figure.supxlabel("training step", fontsize=10)
    figure.savefig(path)
    plt.close(figure)
    return path
