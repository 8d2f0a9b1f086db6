"""Runs a state machine of hypothesis against a real Redis."""

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test


def run_machine(
    machine: type[RuleBasedStateMachine], redis_url: str, *, examples: int, steps: int = 40
) -> None:
    """The machine finds the server's address in its attribute `url`."""
    own: Any = type("Machine", (machine,), {"url": redis_url})
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    run_state_machine_as_test(
        own,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=checks,
        ),
    )
