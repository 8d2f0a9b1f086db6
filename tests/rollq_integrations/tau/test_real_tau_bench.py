"""The tau-bench adapter on the real package, compared with the package's own Env.

The package is on no index. It is looked for among the installed ones, or in the folder that
ROLLQ_TAU_BENCH names. Without it these tests are skipped.
"""

import importlib.util
import json
import os
import pickle
import random
import sys
from pathlib import Path

import pytest

from rollq.env import STOP_MARKER, Action
from rollq.env.copy_on_write import Table
from rollq_worker.environments import domain
from rollq_worker.fakes import FakeUser
from tests.rollq_worker.environments.episodes import (
    begin,
    calls_of,
    messages_of,
    mistaken,
    play,
    respond,
)

WHERE = os.environ.get("ROLLQ_TAU_BENCH")
pytestmark = pytest.mark.skipif(
    WHERE is None and importlib.util.find_spec("tau_bench") is None,
    reason="NOT TESTED: tau_bench is not installed and ROLLQ_TAU_BENCH names no folder with "
    "it (make test-tau)",
)
STRIDE = {"tau_bench:retail": 40, "tau_bench:airline": 10}
"""Which tasks are played in the original Env as well: it takes from a quarter of a second to a
second an episode.
"""


@pytest.fixture(scope="module", params=["retail", "airline"])
def real_tau_bench(request):
    if WHERE is not None and WHERE not in sys.path:
        assert (Path(WHERE) / "tau_bench").is_dir(), f"no tau_bench in ROLLQ_TAU_BENCH={WHERE}"
        sys.path.insert(0, WHERE)
        importlib.invalidate_caches()
    return domain(f"tau_bench:{request.param}")


class OriginalTauBench:
    """The package's own Env, one for each episode."""

    def __init__(self, real_tau_bench):
        self.variant = real_tau_bench.name.partition(":")[2]
        self.get_env = importlib.import_module("tau_bench.envs").get_env
        self.action = importlib.import_module("tau_bench.types").Action
        self.blob = pickle.dumps(self.env("test", 0).data)

    def env(self, split, index):
        return self.get_env(self.variant, "human", "", split, task_index=index)

    def play(self, real_tau_bench, split, index, moves):
        """Reward and observations."""
        env, task = self.envs(split), real_tau_bench.task(split, index)
        env.data_load_func = lambda: pickle.loads(self.blob)
        env.user = FakeUser([task.opening, *task.replies])
        env.user.reset = lambda instruction: env.user.open()
        env.user.step, env.user.get_total_cost = env.user.reply, lambda: 0.0
        env.reset(index)
        seen, moves = [], iter(moves)
        while not seen or not seen[-1].done:
            move = next(moves, respond("I see."))
            seen.append(
                env.step(
                    self.action(name=move.name, kwargs=pickle.loads(pickle.dumps(move.arguments)))
                )
            )
        return seen[-1].reward, [response.observation for response in seen]

    def envs(self, split):
        if split not in self.__dict__:
            self.__dict__[split] = self.env(split, 0)
        return self.__dict__[split]


def everything(real_tau_bench):
    return [(split, index) for split, n in real_tau_bench.splits().items() for index in range(n)]


def fingerprint(real_tau_bench):
    return json.dumps(real_tau_bench.backend.database.tables)


def test_real_tasks(real_tau_bench):
    assert real_tau_bench.splits() == (
        {"train": 500, "test": 115, "dev": 20} if "retail" in real_tau_bench.name else {"test": 50}
    )
    tasks = [real_tau_bench.task(*at) for at in everything(real_tau_bench)]
    assert len({t.opening for t in tasks}) == len(
        {t.hash for t in tasks}
    )  # two retail tasks are the same
    assert len({t.id for t in tasks}) == len(tasks) <= len({t.hash for t in tasks}) + 1
    assert not any(STOP_MARKER in t.opening for t in tasks)
    assert len(real_tau_bench.open("test", 0, {}).tools) == (
        16 if "retail" in real_tau_bench.name else 14
    )
    assert "agent policy" in real_tau_bench.open("test", 0, {}).system_prompt.lower()


def test_real_ground_truths_are_worth_everything(real_tau_bench):
    before = fingerprint(real_tau_bench)
    for split, index in everything(real_tau_bench):
        grade, _ = play(real_tau_bench, split, index, real_tau_bench.task(split, index).moves)
        assert grade.reward == 1.0, (split, index, grade.info)
    assert fingerprint(real_tau_bench) == before


def test_real_episodes_are_worth_what_the_package_s_env_gives(
    real_tau_bench, no_garbage_collection
):
    original, rng = OriginalTauBench(real_tau_bench), random.Random(3)
    verdicts = []
    for split, index in everything(real_tau_bench)[:: STRIDE[real_tau_bench.name]]:
        task = real_tau_bench.task(split, index)
        first, *rest = messages_of(task)
        wrong = rng.choice(list(mistaken(calls_of(task))))
        for moves in ([], task.moves, [first, *wrong, *rest]):
            grade, seen = play(real_tau_bench, split, index, moves)
            assert (grade.reward, seen) == original.play(real_tau_bench, split, index, moves), (
                task.id,
                moves,
            )
            verdicts.append(grade.reward)
    assert {0.0, 1.0} <= set(verdicts)


def sampled_call(rng, real_tau_bench, records):
    """A call that mostly names real records; sometimes it is nonsense."""
    function = rng.choice(real_tau_bench.backend.tools)["function"]
    while function["name"] in real_tau_bench.backend.closing_tools:
        function = rng.choice(real_tau_bench.backend.tools)["function"]
    record = rng.choice(records)
    arguments = {}
    for name, schema in function["parameters"]["properties"].items():
        if rng.random() < 0.03:
            arguments[name] = rng.choice(
                [None, [], {}, "x", 2.5, ["x"], [{"flight_number": "x"}], True]
            )
        elif name in record:
            arguments[name] = record[name]
        elif "payment" in name:
            arguments[name] = rng.choice(list(record.get("payment_methods", ["gift_card_1"])))
        elif name in ("item_ids", "new_item_ids"):
            arguments[name] = [item["item_id"] for item in record.get("items", [])][
                : rng.randrange(3)
            ]
        elif schema["type"] in ("number", "integer"):
            arguments[name] = rng.choice([0, 1, 2, 50])
        else:
            arguments[name] = rng.choice(
                schema.get("enum", ["ordered by mistake", "SFO", "JFK", "2024-05-20", "1+1"])
            )
    return Action(function["name"], arguments)


def test_real_tools_do_the_same_and_leave_the_pristine_database_alone(real_tau_bench):
    original, rng, before = (
        OriginalTauBench(real_tau_bench),
        random.Random(5),
        fingerprint(real_tau_bench),
    )
    env, environment = original.env("test", 0), begin(real_tau_bench, 0)
    records = [
        r
        for table in real_tau_bench.backend.database.tables.values()
        for r in list(table.values())[:4]
    ]
    cancelled = 0
    for _ in range(3000):
        action = sampled_call(rng, real_tau_bench, records)
        if action.name == "cancel_reservation" and (cancelled := cancelled + 1) > 8:
            continue  # every cancellation doubles the payments
        text = environment.step(action).text
        if text != "Error: send_certificate did nothing":
            kwargs = pickle.loads(pickle.dumps(action.arguments))
            assert text == env.step(original.action(name=action.name, kwargs=kwargs)).observation, (
                action
            )
    assert {name: dict(table.items()) for name, table in environment._state.items()} == env.data
    assert json.dumps(env.data) != before == fingerprint(real_tau_bench)
    assert all(isinstance(table, Table) for table in environment._state.values())
