"""Checks that the engine gives the tokens of a run the same logprobs again: `rollq pull` and `rollq
audit`.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from examples.learn_shop.train import RUN, WAIT_S
from rollq.errors import RollqError


def audit(redis: str, engine: str, folder: Path, groups: int) -> dict[str, Any]:
    """Report of `rollq audit` on the next groups of the run. They stay in `last.jsonl`. Raises
    RollqError when one of the two commands fails, but not for a verdict.
    """
    file = folder / "last.jsonl"
    file.unlink(missing_ok=True)
    which = ("--run", RUN, "--redis", redis, "--groups", str(groups))
    pulled = _rollq("pull", *which, "--out", str(file), "--timeout", str(WAIT_S))
    if pulled.returncode:
        raise RollqError(f"rollq pull failed: {pulled.stderr}")
    audited = _rollq("audit", str(file), "--engine", engine, "--json")
    try:
        verdict: dict[str, Any] = json.loads(audited.stdout)
    except json.JSONDecodeError:
        raise RollqError(f"rollq audit failed: {audited.stderr}") from None
    return verdict


def _rollq(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "rollq", *words], capture_output=True, text=True)
