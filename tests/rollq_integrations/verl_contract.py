"""verl's agent loop for tests: the stand-in and the recorded contract, or verl's own classes where
it is installed.

Recorded from verl/experimental/agent_loop/agent_loop.py, verl/trainer/ppo/v1/agent_loop_tq.py and
trainer_base.py.
"""

import importlib
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.packages import imported_anew

STAND_IN = Path(__file__).resolve().parents[2] / "examples/verl_stand_in"
OUTPUT: dict[str, Any] = {
    "prompt_ids": [int],
    "response_ids": [int],
    "response_mask": [int],
    "response_logprobs": [float],
    "reward_score": float,
    "num_turns": int,
    "metrics": {"generate_sequences": float, "tool_calls": float},
    "extra_fields": {"min_global_steps": int, "max_global_steps": int, "reward_extra_info": dict},
}
"""Fields of AgentLoopOutput that rollq fills in, with their types. verl makes integer arrays of the
two steps, and copies `reward_extra_info` from the last output of a session to the others.
"""
GIVEN = ("uid", "session_id", "global_steps", "extra_info")
"""What the V1 trainer gives to `run`, among the fields of the data set."""


def check(output: Any, contract: Any = OUTPUT, where: str = "output") -> None:
    """The value has the recorded fields and types."""
    if isinstance(contract, dict):
        for name, inner in contract.items():
            found = output[name] if isinstance(output, dict) else getattr(output, name)
            check(found, inner, f"{where}.{name}")
    elif isinstance(contract, list):
        assert type(output) is list and all(type(item) is contract[0] for item in output), where
    else:
        assert type(output) is contract, f"{where}: {output!r}"


def is_installed() -> bool:
    return find_spec("verl") is not None


@contextmanager
def verl_package(own: bool) -> Iterator[ModuleType]:
    """The adapter on verl's own classes, or on the stand-in's."""
    with imported_anew(*([] if own else ["verl"])):  # its own take seconds to import
        _forget()
        sys.path[:0] = [] if own else [str(STAND_IN)]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of verl's own imports
                adapter = importlib.import_module("rollq_integrations.verl.agent_loop")
            yield adapter
        finally:
            _forget()
            if not own:
                sys.path.remove(str(STAND_IN))


def _forget() -> None:
    for name in [name for name in sys.modules if name.startswith("rollq_integrations.verl")]:
        del sys.modules[name]
