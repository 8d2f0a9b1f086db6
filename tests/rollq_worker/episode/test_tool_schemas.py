"""What an environment offers as tool schemas."""

import pytest

from rollq import errors
from rollq_worker.fakes import FakeEnvironment
from tests.rollq_worker.episode.episodes import run


@pytest.mark.parametrize(
    "tools",
    [
        5,
        [None],
        [{"type": "function"}],
        [{"type": "function", "function": {"parameters": {}}}],
        [{"type": "function", "function": {"name": 5}}],
        [{"type": "function", "function": {"name": ""}}],
        [{"type": "function", "function": {"name": "f", "parameters": []}}],
        [{"type": "function", "function": {"name": "f", "description": None}}],
        [{"type": "function", "function": {"name": "f", "parameters": {"x": float("nan")}}}],
        [{"type": "function", "function": {"name": "f", "parameters": {"x": {1, 2}}}}],
        [{"type": "function", "function": {"name": "f"}}] * 2,
    ],
    ids=repr,
)
def test_tools_that_are_no_schemas_are_the_environments_failure(tools):
    with pytest.raises(errors.EnvironmentFailure, match=r"environment\.tools"):
        run("bye", environment=FakeEnvironment(tools=tools))
