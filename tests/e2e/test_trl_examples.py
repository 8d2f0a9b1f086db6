"""TRL's examples run from a clone, offline: workers play, the real trainers step, and every group
is acknowledged.
"""

import os
import subprocess
import sys

import pytest

from tests.conftest import REPO


@pytest.mark.parametrize("example", ["trl_sync.py", "trl_async.py"])
def test_an_example_trains_on_episodes_of_real_workers(example: str) -> None:
    line = [sys.executable, "-W", "ignore", str(REPO / "examples" / example), "2"]
    offline = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(line, capture_output=True, text=True, timeout=600, env=offline)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "4 groups trained" in done.stdout
