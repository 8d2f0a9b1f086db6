"""Functions by import path, and what is said when they are not there, raise, or return what they
may not.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from rollq import Group, Trajectory
from rollq.client.consuming.functions import Filter, RewardFunction, load, unequal_rewards
from rollq.errors import FunctionError, SettingsError
from rollq.trajectory import AGENT_REWARDS
from tests.rollq.samples import job, trajectory


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a module `own_rules`."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_rules", raising=False)
    return tmp_path / "own_rules.py"


def rewarded(*rewards: float) -> Group:
    return Group(
        id="g", seq=1, size=len(rewards), trajectories=[trajectory(reward=r) for r in rewards]
    )


def test_a_function_is_loaded_by_its_import_path(module: Path) -> None:
    module.write_text(
        "def half(trajectory):\n    return trajectory.reward / 2\n\nclass Rules:\n    keep = half\n"
    )
    assert load("own_rules:half").__name__ == "half"
    assert load("own_rules:Rules.keep") is load("own_rules:half")


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("own_rules", "not an import path"),
        ("own_rules:", "not an import path"),
        ("own rules:half", "not an import path"),
        ("not_there.at_all:half", "there is no module not_there: is its folder on PYTHONPATH"),
        ("own_rules:third", "own_rules has no third"),
        ("own_rules:NUMBER", "NUMBER is a int, not a function"),
    ],
)
def test_a_path_that_names_no_function_is_refused(module: Path, path: str, says: str) -> None:
    module.write_text("NUMBER = 3\n\ndef half(trajectory):\n    return 0.5\n")
    with pytest.raises(SettingsError, match=says):
        load(path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "import not_there\n",
            "importing own_rules failed: ModuleNotFoundError: No module named 'not_there'",
        ),
        ("1 / 0\n", "importing own_rules failed: ZeroDivisionError"),
        ("def (\n", "importing own_rules failed: SyntaxError"),
        ("raise SystemExit(0)\n", "importing own_rules failed: SystemExit: 0"),
    ],
)
def test_a_module_that_cannot_be_imported_says_why(module: Path, text: str, says: str) -> None:
    module.write_text(text)
    with pytest.raises(SettingsError, match=says):
        load("own_rules:half")


def test_the_built_in_filter_keeps_groups_with_something_to_learn() -> None:
    assert unequal_rewards(rewarded(0.0, 1.0))
    assert not unequal_rewards(rewarded(1.0, 1.0))
    assert not unequal_rewards(rewarded(1.0))
    assert not unequal_rewards(rewarded(0.1 + 0.2, 0.3))  # rounding


def test_the_built_in_filter_looks_at_the_agents_that_are_trained() -> None:
    own = {"red": {"adapter": "red"}, "blue": {"model": "frozen"}}

    def played(red: float, blue: float, whole: float) -> Trajectory:
        episode = trajectory(whole, job(agent="a.py:play", models=own))
        prompt, *events, closed = episode.events
        closed = replace(closed, info={AGENT_REWARDS: {"red": red, "blue": blue}})
        return replace(episode, events=[replace(prompt, model="red"), *events, closed])

    def kept(*members: Trajectory) -> bool:
        return unequal_rewards(Group(id="g", seq=1, size=2, trajectories=[*members]))

    assert kept(played(0.0, 1.0, 1.0), played(1.0, 1.0, 1.0))
    assert not kept(played(0.5, 1.0, 1.0), played(0.5, 0.0, 0.0))


def test_a_filter_has_the_name_under_which_it_counts(module: Path) -> None:
    module.write_text("def long(group):\n    return True\n")
    assert Filter.of("unequal_rewards").name == "unequal_rewards"
    assert Filter.of("own_rules:long").name == "own_rules:long"
    assert Filter.of(unequal_rewards).name == "unequal_rewards"
    assert len(Filter.of(lambda group: True).name) <= 64


@pytest.mark.parametrize("where", ["equal", "", 3])
def test_what_names_no_filter_is_refused(where: str) -> None:
    with pytest.raises(
        SettingsError, match=r"unequal_rewards, or module:function|where is a function"
    ):
        Filter.of(where)


@pytest.mark.parametrize("verdict", [None, "yes", 2, []])
def test_a_filter_returns_true_or_false(verdict: object) -> None:
    def undecided(group: Group) -> bool:
        return verdict  # type: ignore[return-value]

    with pytest.raises(
        FunctionError, match=r"group r/g: the filter .*undecided: TypeError: it returned"
    ):
        Filter.of(undecided).keeps(rewarded(1.0))


@pytest.mark.parametrize("found", [float("nan"), float("inf"), "1.0", None, [1.0]])
def test_a_reward_is_a_finite_number(found: object) -> None:
    def reward(trajectory: Trajectory) -> float:
        return found  # type: ignore[return-value]

    with pytest.raises(FunctionError, match=r"job r/g/0: the reward function .*reward: "):
        RewardFunction.of(reward).apply(rewarded(1.0))


def test_a_function_that_exits_is_named_with_its_error() -> None:
    def leave(of: Group | Trajectory) -> float:
        sys.exit("no GPU here")

    with pytest.raises(
        FunctionError, match=r"job r/g/0: the reward function .*leave: SystemExit: no GPU here"
    ):
        RewardFunction.of(leave).apply(rewarded(1.0))
    with pytest.raises(
        FunctionError, match=r"group r/g: the filter .*leave: SystemExit: no GPU here"
    ):
        Filter.of(leave).keeps(rewarded(1.0))  # type: ignore[arg-type]
