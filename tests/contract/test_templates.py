"""A perfect policy plays the shop to reward 1 through every kind of chat template, alone and on
real SGLang and vLLM servers.

ROLLQ_TEST_TEMPLATES names a folder of further templates (`*.jinja`), such as the real ones of
models.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from rollq.events import Stop
from rollq.trajectory import Trajectory
from rollq_worker.engine.client import EngineClient
from rollq_worker.protocols import Engine
from rollq_worker.tokens.renderer import ChatRenderer
from rollq_worker.tokens.selfcheck.bridge_comparison import Match
from rollq_worker.tokens.selfcheck.check import NEEDED
from rollq_worker.tokens.tokenizer import BUNDLED, Tokenizer
from tests.contract.conftest import ONLY_REAL, VLLM, Server
from tests.contract.played_templates import ROWS, on_qwen, play_template
from tests.rollq_worker.tokens.family_habits import ALL_HABITS

Connect = Callable[[ChatRenderer], Engine]
GIVEN = os.environ.get("ROLLQ_TEST_TEMPLATES")
REAL = {path.stem: path for path in sorted(Path(GIVEN).glob("*.jinja"))} if GIVEN else {}
PLAYABLE = {
    name: habit
    for name, habit in ALL_HABITS.items()
    if all(habit.edges[edge] is not Match.UNSUPPORTED for edge in NEEDED)
}
FORMATS = [name for name, habit in PLAYABLE.items() if habit.added]
"""Templates with control tokens of their own: each writes calls or turns in a form of its own."""


def tokenizer_of(name: str) -> Tokenizer:
    """A template on Qwen's vocabulary."""
    if name in PLAYABLE:
        return on_qwen(name, PLAYABLE[name].template, PLAYABLE[name].added)
    path = REAL.get(name, BUNDLED / "chat_template.jinja")
    return on_qwen(name, path.read_text())


def small_tokenizer(name: str) -> Tokenizer:
    """The same on a vocabulary that is quicker to load."""
    return tokenizer_of(name) if name in REAL else PLAYABLE[name].tokenizer(name)


def assert_perfect(trajectory: Trajectory) -> None:
    assert trajectory.stop is Stop.DONE
    assert trajectory.reward == 1.0
    assert max(trajectory.tokens) < ROWS


@pytest.mark.parametrize("name", [*PLAYABLE, *REAL])
class TestAlone:
    def test_a_perfect_episode(self, name: str) -> None:
        trajectory = play_template(small_tokenizer(name))
        assert_perfect(trajectory)
        assert len(trajectory.traces) == 1

    def test_with_the_history_of_the_template(self, name: str) -> None:
        assert_perfect(play_template(small_tokenizer(name), history="template"))

    def test_with_actions_as_text(self, name: str) -> None:
        assert_perfect(play_template(small_tokenizer(name), agent="react"))


@pytest.fixture
def connect(server: Server) -> Iterator[Connect]:
    with ExitStack() as opened:

        def engine(renderer: ChatRenderer) -> Engine:
            found = EngineClient(
                server.url, stop_ids=renderer.stop_ids, vocab_size=renderer.vocab_size
            )
            opened.callback(found.close)
            return found

        yield engine


@pytest.mark.parametrize("server", [*ONLY_REAL, VLLM], indirect=True)
@pytest.mark.parametrize("name", ["bundled", *FORMATS, *REAL])
def test_a_perfect_episode_on_the_server(connect: Connect, name: str) -> None:
    assert_perfect(play_template(tokenizer_of(name), connect, every=name == "bundled"))
