"""slime's loop on real workers: examples/slime_rollout.py, which drives the adapter as slime's
train.py does.
"""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from rollq import Client, Job
from tests.conftest import REPO
from tests.e2e.stack import Stack

GROUPS, SIZE, ROLLOUTS = 8, 4, 4


def train(stack: Stack, out: Path, *flags: str) -> "subprocess.Popen[str]":
    """The example, with two groups in a rollout."""
    command = [
        sys.executable,
        "-u",
        REPO / "examples/slime_rollout.py",
        "--redis",
        stack.redis_url,
        "--run",
        "r",
    ]
    command += [
        "--engine",
        stack.engine_url,
        "--groups",
        "2",
        "--rollouts",
        str(ROLLOUTS),
        "--out",
        out,
        *flags,
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def rows(out: Path) -> dict[int, list[dict[str, Any]]]:
    """The samples of each rollout. A killed trainer may leave half a line."""
    found: dict[int, list[dict[str, Any]]] = {}
    whole, _, _ = out.read_text().rpartition("\n")
    for row in map(json.loads, whole.splitlines()):
        found.setdefault(row["rollout"], []).append(row)
    return found


def test_a_trainer_killed_after_a_rollout_trains_on_the_same_samples_again(
    stack: Stack, tmp_path: Path
) -> None:
    stack.engine("--mistakes", "0.3")
    stack.worker()
    with Client(stack.redis_url, run="r") as client:
        client.submit([Job(env="shop", task=task, size=SIZE) for task in range(GROUPS)])
        client.seal()
    with train(stack, tmp_path / "killed.jsonl", "--save", "0") as killed:
        assert killed.stdout is not None
        next(line for line in killed.stdout if line.startswith("rollout 2"))
        killed.kill()
    with train(
        stack, tmp_path / "again.jsonl", "--start", "1", "--save", str(ROLLOUTS - 1)
    ) as again:
        again.communicate(timeout=150)
    assert again.returncode == 0, stack.logs()
    before, after = rows(tmp_path / "killed.jsonl"), rows(tmp_path / "again.jsonl")
    assert [before[1], before[2]] == [after[1], after[2]]
    trained = [row for rollout in (before[0], after[1], after[2], after[3]) for row in rollout]
    assert len({row["job"] for row in trained}) == len(trained) == GROUPS * SIZE
    assert set(Counter(row["group"] for row in trained).values()) == {SIZE}
    assert [row["index"] for row in trained] == list(range(GROUPS * SIZE))
    stats = stack.stats("r")
    assert (stats["groups_acked"], stats["delivered"]) == (GROUPS, GROUPS * SIZE)
