"""The tau-bench adapter on a small package of the same shape; test_real_tau_bench.py has the real
one.
"""

import sys
from types import SimpleNamespace

import pytest

from rollq.env import RESPOND, STOP_MARKER, Action
from rollq.errors import JobFailure
from rollq_integrations.tau import tau_bench
from tests.packages import forget, install
from tests.rollq_worker.environments.episodes import begin, play, respond


def test_a_missing_package_is_named_with_its_remedy(monkeypatch):
    monkeypatch.setattr(tau_bench.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        JobFailure, match=r"needs the package tau_bench: pip install .*\[tau-bench\]'"
    ):
        tau_bench.load("retail")


def test_a_broken_package_is_named_with_its_remedy(fake_tau_bench, tmp_path):
    forget("tau_bench")
    (tmp_path / "tau_bench" / "envs" / "base.py").write_text("import nothing_of_that_name")
    with pytest.raises(JobFailure, match=r"nothing_of_that_name.*pip install .*\[tau-bench\]'"):
        tau_bench.load("retail")


@pytest.mark.parametrize("variant", [None, "telecom"])
def test_variants_that_are_not_there(variant):
    with pytest.raises(JobFailure, match="retail and airline"):
        tau_bench.load(variant)


def test_litellm_is_left_out_also_where_it_is_installed(fake_tau_bench, tmp_path, monkeypatch):
    forget("tau_bench")
    monkeypatch.delitem(sys.modules, "litellm", raising=False)
    (tmp_path / "litellm.py").write_text("raise SystemExit('it was imported')")
    tau_bench.load("airline")
    assert "litellm" not in sys.modules
    with pytest.raises(ModuleNotFoundError, match="need litellm"):
        sys.modules["tau_bench.envs.user"].completion(model="m", messages=[])


def test_litellm_is_used_where_a_process_has_it_already(fake_tau_bench, monkeypatch):
    forget("tau_bench")
    monkeypatch.setitem(sys.modules, "litellm", SimpleNamespace(completion="the real one"))
    tau_bench.load("airline")
    assert sys.modules["tau_bench.envs.user"].completion == "the real one"


def test_the_version_names_the_commit_if_it_is_known(fake_tau_bench, tmp_path):
    info = install(tmp_path, "tau_bench", version="0.1.0")
    assert tau_bench._version() == "tau_bench 0.1.0"
    (info / "direct_url.json").write_text(
        '{"url": "u", "vcs_info": {"vcs": "git", "commit_id": "59a200c6"}}'
    )
    assert tau_bench._version() == "tau_bench 0.1.0 commit 59a200c6"
    assert fake_tau_bench.version.split()[-2] == "data"


def test_tasks_of_the_fake(fake_tau_bench):
    assert fake_tau_bench.splits() == {"test": 3}
    task = fake_tau_bench.task("test", 0)
    assert (task.id, task.opening, task.outputs) == (
        "test/0",
        "I am Ann. My name is now Anna.",
        ("1234",),
    )
    assert [move.name for move in task.moves] == [RESPOND, "rename", RESPOND, RESPOND]
    moves = [move.name for move in fake_tau_bench.task("test", 1).moves]
    assert moves == [RESPOND, "rename", RESPOND, "transfer_to_human_agents"]
    assert len({fake_tau_bench.task("test", i).hash for i in range(3)}) == 3


def test_rewards_of_the_fake(fake_tau_bench):
    moves = [fake_tau_bench.task("test", i).moves for i in range(3)]
    assert [play(fake_tau_bench, "test", i, moves[i])[0].reward for i in range(3)] == [
        1.0,
        1.0,
        1.0,
    ]
    assert [play(fake_tau_bench, "test", i, [])[0].reward for i in range(3)] == [0.0, 0.0, 1.0]
    calls = [Action("rename", {"key": "u1", "name": "Anna"})]
    untold = {"database": True, "outputs": False, "wrong_records": [], "untold": ["1234"]}
    assert play(fake_tau_bench, "test", 0, calls)[0].info == untold
    assert play(fake_tau_bench, "test", 0, [*calls, respond("It is 1,234.")])[0].reward == 1.0
    assert (
        play(fake_tau_bench, "test", 0, [*calls, *(respond(text) for text in ("12", "34"))])[
            0
        ].reward
        == 0.0
    )
    grade, _ = play(fake_tau_bench, "test", 2, calls)
    assert (grade.reward, grade.info["wrong_records"]) == (0.0, ["users/u1"])


@pytest.mark.parametrize(
    "name, arguments, text",
    [
        ("fly", {}, "Unknown action fly"),
        ("rename", {"key": "u9", "name": "x"}, "Error: 'u9'"),
        ("rename", {"key": "u1"}, "missing 1 required positional argument: 'name'"),
        (
            "rename",
            {"key": "u1", "name": "x", "data": {}},
            "multiple values for keyword argument 'data'",
        ),
        ("rename", {"key": "u1", "name": 10**30}, "Error: a number in the arguments is too large"),
        ("find", {"name": "Bob"}, "u2"),
        ("think", {"thought": "hm"}, ""),
        ("send_certificate", {"key": "u1"}, "Error: send_certificate did nothing"),
    ],
)
def test_a_strange_call_is_an_observation(fake_tau_bench, name, arguments, text):
    environment = begin(fake_tau_bench, 0)
    observation = environment.step(Action(name, arguments))
    assert text in observation.text
    assert not observation.done
    assert fake_tau_bench.backend.database.changes(environment._state) == {}


@pytest.mark.parametrize(
    "expression, value",
    [
        ("9**9**9", "Error: the result is too large"),
        ("(9**9)**(9**9)", "Error: the result is too large"),
        ("0.5*(9**999)**999", "Error: the result is too large"),
        ("1(*9**9**9)", "Error: the result is too large"),
        ("2**10", "1024.0"),
        ("1.05**30", "4.32"),
        ("(1+2)*3-4/2", "7.0"),
        ("1/0", "Error: division by zero"),
        ("*".join(["9" * 50] * 50), "Error: int too large to convert to float"),
        ("9**9**9" + ")" * 3, "Error: unmatched ')'"),
        ("2**1+" * 3000 + "1", "Error: "),
        (["9**9**9"], "Error: "),
    ],
)
def test_calculations_are_the_tool_s_but_for_those_without_end(fake_tau_bench, expression, value):
    assert (
        begin(fake_tau_bench, 0)
        .step(Action("calculate", {"expression": expression}))
        .text.startswith(value)
    )


def test_a_transfer_ends_the_episode_even_when_it_is_called_wrongly(fake_tau_bench):
    for arguments in ({"summary": "s"}, {}):
        environment = begin(fake_tau_bench, 0)
        assert environment.step(Action("transfer_to_human_agents", arguments)).done
        assert environment.grade().reward == 0.0


def test_only_tau_bench_s_marker_ends_it(fake_tau_bench):
    environment = begin(fake_tau_bench, 0, "###TRANSFER###", f"well {STOP_MARKER} bye")
    assert [environment.step(respond("hi")).done for _ in range(2)] == [False, True]
