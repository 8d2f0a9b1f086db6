"""The tau-bench environments: the adapter on a small package of the same shape, and the real package if there is one.

The real package is on no index: the tests that need it look for it among the installed ones, or in the folder that
ROLLQ_TAU_BENCH names, and are skipped without it.
"""

import gc
import importlib.util
import json
import os
import pickle
import random
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from rollq.errors import EnvironmentFailure, JobFailure, UserFailure
from rollq_worker.environments import domain, tau_bench
from rollq_worker.environments.copy_on_write import Table
from rollq_worker.fakes import FakeUser
from rollq_worker.protocols import RESPOND, STOP_MARKER, Action

WHERE = os.environ.get("ROLLQ_TAU_BENCH")
real = pytest.mark.skipif(
    WHERE is None and importlib.util.find_spec("tau_bench") is None,
    reason="tau_bench is not installed and ROLLQ_TAU_BENCH names no folder with it",
)

# A package with the public names of tau_bench that the adapter uses, and the tools that need a guard.
FAKE = {
    "__init__.py": "",
    "envs/user.py": "from litellm import completion\n",
    "envs/base.py": """
        import random
        import tau_bench.envs.user

        def to_hashable(item):
            if isinstance(item, dict):
                return tuple((key, to_hashable(value)) for key, value in sorted(item.items()))
            return tuple(map(to_hashable, item)) if isinstance(item, list) else item

        class Record:
            def __init__(self, **fields):
                self.__dict__.update(fields)

            def model_dump(self):
                return {k: [a.__dict__ for a in v] if k == "actions" else v for k, v in self.__dict__.items()}
    """,
    "envs/__init__.py": """
        import json
        from tau_bench.envs.base import Record

        def tool(name, function):
            schema = {"name": name, "description": name, "parameters": {"type": "object", "properties": {}}}
            return type(name, (), {"invoke": staticmethod(function), "info": {"type": "function", "function": schema}})

        def rename(data, key, name):
            data["users"][key]["name"] = name
            return json.dumps(data["users"][key])

        def keep(data, key, tags):
            data["users"][key]["tags"] = tags
            tags.append("kept")
            return json.dumps(tags)

        def calculate(data, expression):
            try:
                return str(round(float(eval(expression, {"__builtins__": None}, {})), 2))
            except Exception as e:
                return f"Error: {e}"

        class TimeLimit(Exception):
            pass

        def limit(data):
            raise TimeLimit("soft limit")

        TOOLS = {
            "rename": rename,
            "keep": keep,
            "calculate": calculate,
            "limit": limit,
            "think": lambda data, thought: "",
            "send_certificate": lambda data, key: None,
            "find": lambda data, name: next(k for k, v in data["users"].items() if v["name"] == name),
            "transfer_to_human_agents": lambda data, summary: "Transfer successful",
        }

        def action(name, /, **kwargs):
            return Record(name=name, kwargs=kwargs)

        TASKS = [
            Record(user_id="u1", instruction="You are Ann. Your name is now Anna.", outputs=["1234"],
                   actions=[action("rename", key="u1", name="Anna")]),
            Record(user_id="u2", instruction="You are Bob. You want a human.", outputs=["Sorry"],
                   actions=[action("rename", key="u9", name="x"), action("transfer_to_human_agents", summary="s")]),
            Record(user_id="u2", instruction="You are Bob. You ask for nothing.", outputs=[], actions=[]),
        ]

        class Env:
            def __init__(self, tasks):
                self.data = {"users": {"u1": {"name": "Ann"}, "u2": {"name": "Bob"}}}
                self.tasks, self.wiki, self.terminate_tools = tasks, "Be kind.", ["transfer_to_human_agents"]
                self.tools_map = {name: tool(name, function) for name, function in TOOLS.items()}
                self.tools_info = [t.info for t in self.tools_map.values()]

        def get_env(env_name, user_strategy, user_model, task_split, user_provider=None, task_index=None):
            assert user_strategy == "human" and task_index is not None
            return Env(TASKS if task_split == "test" else TASKS[:1])
    """,
}


def forget():
    return {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == "tau_bench"}


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """The fake package on the path; whatever there was before is back afterwards."""
    for name, text in FAKE.items():
        path = tmp_path / "tau_bench" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    before = forget()
    monkeypatch.syspath_prepend(tmp_path)
    yield tau_bench.load("airline")
    forget()
    sys.modules.update(before)


def begin(tau, index, *lines, split="test"):
    environment = tau.open(split, index, {})
    environment.reset(FakeUser(["hello", *lines]))
    return environment


def play(tau, split, index, moves):
    """Grade and observations of the moves against the scripted user, then small talk until it is over."""
    task, environment = tau.task(split, index), tau.open(split, index, {})
    assert environment.reset(FakeUser([task.opening, *task.replies])) == task.opening
    seen, moves = [], iter(moves)
    while not seen or not seen[-1].done:
        seen.append(environment.step(next(moves, Action(RESPOND, {"content": "I see."}))))
    return environment.grade(), [observation.text for observation in seen]


def test_a_missing_package_is_named_with_its_remedy(monkeypatch):
    monkeypatch.setattr(tau_bench.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(JobFailure, match=r"needs the package tau_bench: pip install .*\[tau-bench\]'"):
        tau_bench.load("retail")


def test_a_broken_package_is_named_with_its_remedy(fake, tmp_path):
    forget()
    (tmp_path / "tau_bench" / "envs" / "base.py").write_text("import nothing_of_that_name")
    with pytest.raises(JobFailure, match=r"nothing_of_that_name.*pip install .*\[tau-bench\]'"):
        tau_bench.load("retail")


@pytest.mark.parametrize("variant", [None, "telecom"])
def test_variants_that_are_not_there(variant):
    with pytest.raises(JobFailure, match="retail and airline"):
        tau_bench.load(variant)


def test_nothing_is_imported_before_it_is_used():
    code = (
        "import sys; from rollq_worker.environments import names, tau_bench; names();"
        "assert not {'tau_bench', 'litellm', 'pydantic'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=60)


@pytest.mark.skipif(importlib.util.find_spec("litellm") is not None, reason="litellm is installed")
def test_litellm_is_only_stood_in_for(fake):
    assert "litellm" not in sys.modules
    with pytest.raises(ModuleNotFoundError, match="need litellm"):
        sys.modules["tau_bench.envs.user"].completion(model="m", messages=[])


def test_litellm_is_used_where_it_is_installed(fake, tmp_path, monkeypatch):
    forget()
    monkeypatch.delitem(sys.modules, "litellm", raising=False)
    (tmp_path / "litellm.py").write_text("completion = 'the real one'")
    tau_bench.load("airline")
    assert sys.modules["tau_bench.envs.user"].completion == "the real one"
    del sys.modules["litellm"]


def test_the_version_names_the_commit_if_it_is_known(fake, tmp_path):
    info = tmp_path / "tau_bench-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tau_bench\nVersion: 0.1.0\n")
    assert tau_bench._version() == "tau_bench 0.1.0"
    (info / "direct_url.json").write_text('{"url": "u", "vcs_info": {"vcs": "git", "commit_id": "59a200c6"}}')
    assert tau_bench._version() == "tau_bench 0.1.0 commit 59a200c6"
    assert fake.version.split()[-2] == "data"


def test_tasks_of_the_fake(fake):
    assert fake.splits() == {"test": 3}
    task = fake.task("test", 0)
    assert (task.id, task.opening, task.outputs) == ("test/0", "I am Ann. My name is now Anna.", ("1234",))
    assert [move.name for move in task.moves] == [RESPOND, "rename", RESPOND, RESPOND]
    assert [move.name for move in fake.task("test", 1).moves] == [
        RESPOND,
        "rename",
        RESPOND,
        "transfer_to_human_agents",
    ]
    assert len({fake.task("test", i).hash for i in range(3)}) == 3


def test_rewards_of_the_fake(fake):
    assert [play(fake, "test", i, fake.task("test", i).moves)[0].reward for i in range(3)] == [1.0, 1.0, 1.0]
    assert [play(fake, "test", i, [])[0].reward for i in range(3)] == [0.0, 0.0, 1.0]
    calls = [Action("rename", {"key": "u1", "name": "Anna"})]
    assert play(fake, "test", 0, calls)[0].info == {
        "database": True,
        "outputs": False,
        "wrong_records": [],
        "untold": ["1234"],
    }
    assert play(fake, "test", 0, [*calls, Action(RESPOND, {"content": "It is 1,234."})])[0].reward == 1.0
    assert play(fake, "test", 0, [*calls, *(Action(RESPOND, {"content": c}) for c in ("12", "34"))])[0].reward == 0.0
    grade, _ = play(fake, "test", 2, calls)
    assert (grade.reward, grade.info["wrong_records"]) == (0.0, ["users/u1"])


@pytest.mark.parametrize(
    "name, arguments, text",
    [
        ("fly", {}, "Unknown action fly"),
        ("rename", {"key": "u9", "name": "x"}, "Error: 'u9'"),
        ("rename", {"key": ["u1"], "name": "x"}, "Error: unhashable type: 'list'"),
        ("rename", {"key": "u1"}, "missing 1 required positional argument: 'name'"),
        ("rename", {"key": "u1", "name": "x", "data": {}}, "multiple values for keyword argument 'data'"),
        ("rename", {"key": "u1", "name": 10**30}, "Error: a number in the arguments is too large"),
        ("find", {"name": "Bob"}, "u2"),
        ("think", {"thought": "hm"}, ""),
        ("send_certificate", {"key": "u1"}, "Error: send_certificate did nothing"),
        ("rename", {"key": "\ud800", "name": ""}, "Error: '\\ud800'"),
    ],
)
def test_a_strange_call_is_an_observation(fake, name, arguments, text):
    environment = begin(fake, 0)
    observation = environment.step(Action(name, arguments))
    assert text in observation.text
    assert not observation.done
    assert fake.desk.database.changes(environment._view) == {}


@pytest.mark.parametrize(
    "bomb",
    [
        "9**9**9",
        "2**99999",
        "(9**9)**(9**9)",
        "-9**9**9",
        "2**2**2**2**2**2",
        "0.5*(9**999)**999",
        "1(**9**9**9)",
        "1(*9**9**9)",
    ],
)
def test_a_calculation_without_end_is_refused(fake, bomb):
    assert begin(fake, 0).step(Action("calculate", {"expression": bomb})).text == "Error: the result is too large"


@pytest.mark.parametrize(
    "expression, value",
    [
        ("2**10", "1024.0"),
        (" 2 ** 0.5", "1.41"),
        ("1.05**30", "4.32"),
        ("10**-2", "0.01"),
        ("(1+2)*3-4/2", "7.0"),
        ("2**", "Error: "),
        ("1/0", "Error: division by zero"),
        ("*".join(["9" * 50] * 50), "Error: int too large to convert to float"),
        ("9**9**9" + ")" * 3, "Error: unmatched ')'"),
        ("2**1+" * 3000 + "1", "Error: "),
        (7, "Error: "),
        (["9**9**9"], "Error: "),
    ],
)
def test_other_calculations_are_the_tool_s(fake, expression, value):
    assert begin(fake, 0).step(Action("calculate", {"expression": expression})).text.startswith(value)


def test_a_call_keeps_nothing_of_its_arguments(fake):
    action = Action("keep", {"key": "u1", "tags": ["a"]})
    environment = begin(fake, 0)
    assert [environment.step(action).text for _ in range(2)] == ['["a", "kept"]'] * 2
    assert action.arguments == {"key": "u1", "tags": ["a"]}


def test_the_tasks_survive_what_tools_do_to_arguments(fake):
    before = fake.task("test", 0).moves[1].arguments.copy()
    for _ in range(2):
        assert play(fake, "test", 0, fake.task("test", 0).moves)[0].reward == 1.0
    assert fake.task("test", 0).moves[1].arguments == before


def test_only_errors_of_the_call_become_observations(fake):
    with pytest.raises(sys.modules["tau_bench.envs"].TimeLimit):
        begin(fake, 0).step(Action("limit"))


def test_a_transfer_ends_the_episode_for_good(fake):
    environment = begin(fake, 0)
    assert environment.step(Action("transfer_to_human_agents", {"summary": "s"})).done
    for move in fake.task("test", 0).moves:
        with pytest.raises(EnvironmentFailure, match="done"):
            environment.step(move)
    assert environment.grade().reward == 0.0
    with pytest.raises(EnvironmentFailure, match="twice"):
        environment.grade()


def test_only_tau_bench_s_marker_ends_it(fake):
    environment = begin(fake, 0, "###TRANSFER###", f"well {STOP_MARKER} bye")
    assert [environment.step(Action(RESPOND, {"content": "hi"})).done for _ in range(2)] == [False, True]


def test_a_user_or_a_respond_without_words(fake):
    environment = fake.open("test", 0, {})
    user = FakeUser()
    user.open = lambda: None
    with pytest.raises(UserFailure, match="NoneType"):
        environment.reset(user)
    assert begin(fake, 0).step(Action(RESPOND, {})).text == "Error: respond needs a text as its content"


@pytest.mark.parametrize("index", [-1, 3])
def test_tasks_that_are_not_there(fake, index):
    with pytest.raises(JobFailure, match="tasks 0 to 2"):
        fake.open("test", index, {})


# --- the real package

STRIDE = {"tau_bench:retail": 40, "tau_bench:airline": 10}
"""Which tasks are played in the stock Env as well: it takes from a quarter of a second to a second an episode."""


@pytest.fixture
def no_garbage_collection():
    """The stock way makes a hundred thousand objects an episode, none of them in a cycle; they take long to walk."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(scope="module", params=["retail", "airline"])
def tau(request):
    if WHERE is not None and WHERE not in sys.path:
        assert (Path(WHERE) / "tau_bench").is_dir(), f"no tau_bench in ROLLQ_TAU_BENCH={WHERE}"
        sys.path.insert(0, WHERE)
        importlib.invalidate_caches()
    return domain(f"tau_bench:{request.param}")


class Stock:
    """The package's own Env, one for each episode."""

    def __init__(self, tau):
        self.variant = tau.name.partition(":")[2]
        self.get_env = importlib.import_module("tau_bench.envs").get_env
        self.action = importlib.import_module("tau_bench.types").Action
        self.blob = pickle.dumps(self.env("test", 0).data)

    def env(self, split, index):
        return self.get_env(self.variant, "human", "", split, task_index=index)

    def play(self, tau, split, index, moves):
        """Reward and observations."""
        env, task = self.envs(split), tau.task(split, index)
        env.data_load_func = lambda: pickle.loads(self.blob)
        env.user = FakeUser([task.opening, *task.replies])
        env.user.reset = lambda instruction: env.user.open()
        env.user.step, env.user.get_total_cost = env.user.reply, lambda: 0.0
        env.reset(index)
        seen, moves = [], iter(moves)
        while not seen or not seen[-1].done:
            move = next(moves, Action(RESPOND, {"content": "I see."}))
            seen.append(env.step(self.action(name=move.name, kwargs=pickle.loads(pickle.dumps(move.arguments)))))
        return seen[-1].reward, [response.observation for response in seen]

    def envs(self, split):
        if split not in self.__dict__:
            self.__dict__[split] = self.env(split, 0)
        return self.__dict__[split]


def everything(tau):
    return [(split, index) for split, n in tau.splits().items() for index in range(n)]


def fingerprint(tau):
    return json.dumps(tau.desk.database.tables)


@real
def test_real_tasks(tau):
    assert tau.splits() == ({"train": 500, "test": 115, "dev": 20} if "retail" in tau.name else {"test": 50})
    tasks = [tau.task(*at) for at in everything(tau)]
    assert len({t.opening for t in tasks}) == len({t.hash for t in tasks})  # two retail tasks are the same
    assert len({t.id for t in tasks}) == len(tasks) <= len({t.hash for t in tasks}) + 1
    assert not any(STOP_MARKER in t.opening for t in tasks)
    assert len(tau.open("test", 0, {}).tools) == (16 if "retail" in tau.name else 14)
    assert "agent policy" in tau.open("test", 0, {}).system_prompt.lower()


@real
def test_real_ground_truths_are_worth_everything(tau):
    before = fingerprint(tau)
    for split, index in everything(tau):
        grade, _ = play(tau, split, index, tau.task(split, index).moves)
        assert grade.reward == 1.0, (split, index, grade.info)
    assert fingerprint(tau) == before


@real
def test_real_episodes_are_worth_what_the_stock_env_gives(tau, no_garbage_collection):
    stock, rng = Stock(tau), random.Random(3)
    verdicts = []
    for split, index in everything(tau)[:: STRIDE[tau.name]]:
        task = tau.task(split, index)
        told = [move for move in task.moves if move.name == RESPOND]
        calls = [move for move in task.moves if move.name != RESPOND]
        wrong = [calls[:-1], calls[1:], calls + calls, calls[::-1]]
        for moves in ([], task.moves, [told[0], *rng.choice(wrong), *told[1:]]):
            grade, seen = play(tau, split, index, moves)
            assert (grade.reward, seen) == stock.play(tau, split, index, moves), (task.id, moves)
            verdicts.append(grade.reward)
    assert {0.0, 1.0} <= set(verdicts)


def sampled_call(rng, tau, records):
    """A call that mostly names real records; sometimes it is nonsense."""
    function = rng.choice(tau.desk.tools)["function"]
    while function["name"] in tau.desk.closing:
        function = rng.choice(tau.desk.tools)["function"]
    record = rng.choice(records)
    arguments = {}
    for name, schema in function["parameters"]["properties"].items():
        if rng.random() < 0.03:
            arguments[name] = rng.choice([None, [], {}, "x", 2.5, ["x"], [{"flight_number": "x"}], True])
        elif name in record:
            arguments[name] = record[name]
        elif "payment" in name:
            arguments[name] = rng.choice(list(record.get("payment_methods", ["gift_card_1"])))
        elif name in ("item_ids", "new_item_ids"):
            arguments[name] = [item["item_id"] for item in record.get("items", [])][: rng.randrange(3)]
        elif schema["type"] in ("number", "integer"):
            arguments[name] = rng.choice([0, 1, 2, 50])
        else:
            arguments[name] = rng.choice(schema.get("enum", ["ordered by mistake", "SFO", "JFK", "2024-05-20", "1+1"]))
    return Action(function["name"], arguments)


@real
def test_real_tools_do_the_same_and_leave_the_pristine_database_alone(tau):
    stock, rng, before = Stock(tau), random.Random(5), fingerprint(tau)
    env, environment = stock.env("test", 0), begin(tau, 0)
    records = [r for table in tau.desk.database.tables.values() for r in list(table.values())[:4]]
    cancelled = 0
    for _ in range(3000):
        action = sampled_call(rng, tau, records)
        if action.name == "cancel_reservation" and (cancelled := cancelled + 1) > 8:
            continue  # every cancellation doubles the payments
        text = environment.step(action).text
        if text != "Error: send_certificate did nothing":
            kwargs = pickle.loads(pickle.dumps(action.arguments))
            assert text == env.step(stock.action(name=action.name, kwargs=kwargs)).observation, action
    assert {name: dict(table.items()) for name, table in environment._view.items()} == env.data
    assert json.dumps(env.data) != before == fingerprint(tau)
    assert all(isinstance(table, Table) for table in environment._view.values())


@real
def test_real_ground_truths_for_all_threads(tau):
    fresh = tau_bench.load(tau.name.partition(":")[2])
    grades = []

    def run(index):
        grades.append(play(fresh, "test", index % 4, fresh.task("test", index % 4).moves)[0].reward)

    threads = [threading.Thread(target=run, args=[i]) for i in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert grades == [1.0] * 64
