"""verl's sessions on real workers: examples/verl_sessions.py, killed and started again."""

import os
import subprocess
import sys

from tests.conftest import REPO
from tests.e2e.stack import Stack

PROMPTS, N = 6, 4


def test_sessions_of_a_killed_trainer_are_found_and_none_is_played_twice(stack: Stack) -> None:
    missing = stack.folder / "missing"
    missing.mkdir()
    (missing / "transformers.py").write_text("raise ImportError('as in the demo')")
    paths = {**os.environ, "PYTHONPATH": str(missing)}
    stack.engine("--latency", "0.05")
    stack.worker(concurrency=4)
    line = [
        sys.executable,
        REPO / "examples/verl_sessions.py",
        "--redis",
        stack.redis_url,
        "--run",
        "r",
    ]
    line += ["--prompts", str(PROMPTS), "--n", str(N)]
    with subprocess.Popen(line, stdout=subprocess.DEVNULL, env=paths) as killed:
        stack.wait(lambda: stack.stats("r")["done"] >= N, 150, "some sessions")
        killed.kill()
    done = subprocess.run(line, stdout=subprocess.PIPE, text=True, timeout=150, env=paths)
    assert done.returncode == 0, stack.logs()
    assert done.stdout.count("rewards [1.0, 1.0, 1.0, 1.0]") == PROMPTS
    stats = stack.stats("r")
    assert (stats["submitted"], stats["done"], stats["claims"], stats["dead"]) == (
        PROMPTS * N,
    ) * 3 + (0,)
