"""The tau2 environments against the package's own toolkit, data set and hash."""

import gc
import importlib
import json
import pickle
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import contextmanager
from importlib import metadata
from types import SimpleNamespace

import pytest

from rollq.errors import EnvironmentFailure, JobFailure, UserFailure
from rollq_worker.environments import customer_service, domain, tau2
from rollq_worker.fakes import FakeUser
from rollq_worker.protocols import RESPOND, STOP_MARKER, Action

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:pydantic")
VARIANTS = ["retail", "airline"]
IDS = {
    "retail": {"order_id": "orders", "user_id": "users", "product_id": "products"},
    "airline": {"reservation_id": "reservations", "user_id": "users", "flight_number": "flights"},
}


class Stock:
    """The package's toolkit on a database of its own, called as its solver does; the reference for everything here."""

    def __init__(self, variant):
        def find(module):
            return importlib.import_module(f"inspect_evals.tau2.{module}")

        title = variant.capitalize()
        self.toolkit = getattr(find(f"{variant}.{title}AgentTools"), f"{title}AgentTools")
        self.database = getattr(find(f"{variant}.data_model"), {"retail": "RetailDB", "airline": "FlightDB"}[variant])
        self.read_dataset = find(f"{variant}.dataset").read_dataset
        self.tools = getattr(find(f"{variant}.tools"), f"all_{variant}_tools")
        self.scorer = find("common.scorer")
        self.policy = find(f"{variant}.agents").get_domain_policy()
        self.error = importlib.import_module("inspect_ai.tool").ToolError
        self.store = importlib.import_module("inspect_ai.util").Store
        loaded = self.toolkit(store=self.store(), instance="pristine")
        loaded.initialize()
        self.blob = pickle.dumps(loaded.db)
        self.hash = loaded.db.get_hash()

    def fresh(self):
        toolkit = self.toolkit(store=self.store(), instance="episode")
        toolkit.initialized = True
        toolkit.db = pickle.loads(self.blob)
        return toolkit

    def call(self, toolkit, action):
        """The observation, None for a tool that is not of the toolkit."""
        if action.name in tau2.UNREPLAYED:
            return None
        try:
            result = getattr(toolkit, action.name)(**pickle.loads(pickle.dumps(action.arguments)))
        except self.error as e:
            return f"Error: {e}"
        return result if isinstance(result, str) else json.dumps(result, sort_keys=True)

    def replay(self, actions):
        """The hash of the database after it, and the observations."""
        toolkit = self.fresh()
        seen = [self.call(toolkit, action) for action in actions]
        return toolkit.db.get_hash(), seen

    def tells(self, task, told):
        """The verdict of the package's scorer on what the agent said."""
        record = next(s for s in self.read_dataset("x") if str(s.id) == task.id)
        user_message = importlib.import_module("inspect_ai.model").ChatMessageUser
        messages = [*record.input, *(user_message(content=text) for text in told)]
        state = SimpleNamespace(metadata=record.metadata, messages=messages)
        step = self.scorer.score_communicated_info()(state, None)
        try:
            step.send(None)
        except StopIteration as e:
            return e.value.value == "C"
        raise AssertionError("the scorer waits for something")


@pytest.fixture(scope="module", autouse=True)
def no_garbage_collection():
    """The stock way makes a hundred thousand objects an episode, none of them in a cycle; they take long to walk."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(scope="module", params=VARIANTS)
def variant(request):
    return request.param


@pytest.fixture(scope="module")
def tau(variant):
    return domain(f"tau2:{variant}")


_stocks: dict[str, Stock] = {}


@pytest.fixture(scope="module")
def stock(variant, tau):
    if variant not in _stocks:
        _stocks[variant] = Stock(variant)
    return _stocks[variant]


def every_task(tau):
    """Each task once: the split `base` has them all."""
    return [("base", index) for index in range(tau.splits()["base"])]


def play(tau, split, index, moves):
    """Grade and observations of the moves against the scripted user, then small talk until the user stops."""
    task, environment = tau.task(split, index), tau.open(split, index, {})
    assert environment.reset(FakeUser([task.opening, *task.replies])) == task.opening
    seen, moves = [], iter(moves)
    while not seen or not seen[-1].done:
        seen.append(environment.step(next(moves, Action(RESPOND, {"content": "I see."}))))
    return environment.grade(), [observation.text for observation in seen]


def as_hashed(tau, stock, environment):
    """The hash of the environment's whole database, as the package computes it."""
    tables = {name: dict(table.items()) for name, table in environment._view.items()}
    return stock.database.model_construct(**tables).get_hash()


def pristine_hash(tau, stock):
    return stock.database.model_construct(**tau.desk.database.tables).get_hash()


# --- tasks and tools


def test_the_splits_are_the_package_s(tau, stock, variant):
    assert (
        tau.splits()
        == {"retail": {"train": 74, "test": 40, "base": 114}, "airline": {"train": 30, "test": 20, "base": 50}}[variant]
    )
    samples = stock.read_dataset("x")
    assert [tau.task("base", i).id for i in range(len(samples))] == [str(s.id) for s in samples]
    train, test, base = ({tau.task(s, i).hash for i in range(n)} for s, n in tau.splits().items())
    assert (train | test, train & test) == (base, set())


def test_the_tasks_are_the_package_s(tau, stock):
    for index, sample in enumerate(stock.read_dataset("x")):
        task, theirs = tau.task("base", index), sample.metadata["task"]
        assert task.instruction in sample.input[0].content
        assert list(task.outputs) == (theirs["evaluation_criteria"]["communicate_info"] or [])
        calls = [(a["name"], a["arguments"]) for a in theirs["evaluation_criteria"]["actions"]]
        assert [(m.name, m.arguments) for m in task.moves if m.name != RESPOND] == calls
        # What this adapter does not do, no task asks for.
        assert theirs["initial_state"] is None
        assert {*theirs["evaluation_criteria"]["reward_basis"]} <= {"DB", "COMMUNICATE"}


def test_openings_are_unique_and_speak_of_oneself(tau):
    tasks = [tau.task(s, i) for s, n in tau.splits().items() for i in range(n)]
    assert len({t.opening for t in tasks}) == len({t.hash for t in tasks}) == tau.splits()["base"]
    assert all(len(t.replies) >= 3 and STOP_MARKER in t.replies[-1] for t in tasks)
    assert not any(STOP_MARKER in text for t in tasks for text in (t.opening, *t.replies[:-1]))
    assert sum(t.opening.startswith(("I", "My")) for t in tasks) > len(tasks) / 2


def test_the_tools_are_the_package_s(tau, stock, variant):
    define = importlib.import_module("inspect_ai.tool").ToolDef
    theirs = {t.name: t for t in (define(tool()) for tool in stock.tools)}
    ours = {t["function"]["name"]: t["function"] for t in tau.open("test", 0, {}).tools}
    assert ours.keys() == theirs.keys()
    assert len(ours) == {"retail": 15, "airline": 14}[variant]
    for name, tool in ours.items():
        assert tool["description"] == theirs[name].description
        assert json.loads(json.dumps(tool["parameters"])) == theirs[name].parameters.model_dump(exclude_none=True)
        assert all(p.get("description") for p in tool["parameters"]["properties"].values())


def test_nested_arguments_are_described(stock):
    tools = {
        t["function"]["name"]: t["function"]["parameters"] for t in domain("tau2:airline").open("test", 0, {}).tools
    }
    booking = tools["book_reservation"]["properties"]
    assert booking["cabin"]["enum"] == ["business", "economy", "basic_economy"]
    assert booking["payment_methods"]["items"]["anyOf"][0]["properties"]["amount"]["type"] == "integer"


def test_the_policy_is_the_package_s(tau, stock):
    policy = tau.open("test", 0, {}).system_prompt
    assert policy in stock.policy
    assert len(policy) > 1000


# --- reward


def test_every_task_is_worth_what_the_package_s_scorer_gives(tau, stock):
    before = pristine_hash(tau, stock)
    assert before == stock.hash
    for split, index in every_task(tau):
        task = tau.task(split, index)
        calls = [move for move in task.moves if move.name != RESPOND]
        due, expected = stock.replay(calls)
        grade, seen = play(tau, split, index, task.moves)
        assert grade.reward == 1.0, (task.id, grade.info)
        ours = [text for move, text in zip(task.moves, seen, strict=True) if move.name != RESPOND]
        assert [o for o, e in zip(ours, expected, strict=True) if e is not None] == [
            e for e in expected if e is not None
        ]
        nothing, _ = play(tau, split, index, [])
        assert nothing.reward == float(due == stock.hash and not task.outputs), task.id
        assert nothing.info["database"] == (due == stock.hash)
    assert pristine_hash(tau, stock) == before


def test_all_splits_share_the_verdict(tau):
    for split in ("train", "test"):
        for index in range(tau.splits()[split]):
            assert play(tau, split, index, tau.task(split, index).moves)[0].reward == 1.0


def mutations(calls):
    """Ground truths gone wrong."""
    yield calls[:-1]
    yield calls[1:]
    yield calls + calls
    yield calls[::-1]
    for at, call in enumerate(calls):
        names = [k for k, v in call.arguments.items() if isinstance(v, str)]
        if len(names) > 1:
            first, second = names[:2]
            swapped = {**call.arguments, first: call.arguments[second], second: call.arguments[first]}
            yield [*calls[:at], Action(call.name, swapped), *calls[at + 1 :]]
            return


SAMPLED = 4
"""Tasks whose mutations are compared: the stock way takes about a third of a second each."""


def test_mutated_ground_truths_are_worth_the_same(tau, stock):
    tasks = [at for at in every_task(tau) if sum(m.name != RESPOND for m in tau.task(*at).moves) > 2]
    verdicts = []
    for split, index in random.Random(1).sample(tasks, SAMPLED):
        task = tau.task(split, index)
        calls = [move for move in task.moves if move.name != RESPOND]
        due, _ = stock.replay(calls)
        for mutated in mutations(calls):
            got, expected = stock.replay(mutated)
            told = [move for move in task.moves if move.name == RESPOND]
            grade, seen = play(tau, split, index, [told[0], *mutated, *told[1:]])
            assert grade.info["database"] == (got == due), (task.id, mutated)
            assert grade.reward == float(got == due)
            for text, theirs in zip(seen[1:], expected, strict=False):
                assert theirs is None or theirs == text or "are wrong" in text
            verdicts.append(grade.reward)
    assert 0.0 in verdicts and 1.0 in verdicts


TALK = [[], ["It is done."], ["You paid 1,093.34 for the CAMERA."], ["481.5", "0"], ["8276", ".23"]]


@pytest.mark.parametrize("told", TALK)
def test_what_was_told_counts_as_the_package_s_scorer_has_it(tau, stock, told):
    tasks = [at for at in every_task(tau) if tau.task(*at).outputs]
    for split, index in [*tasks[:3], *tasks[-3:]]:
        task = tau.task(split, index)
        for lines in (told, [*told, *(f"{output[:2].upper()},{output[2:]}" for output in task.outputs)]):
            assert (tau.desk.untold(task.outputs, lines) == []) == stock.tells(task, lines), (task.id, lines)


def test_a_number_of_another_type_is_another_database(stock, tau, variant):
    environment, toolkit = tau.open("test", 0, {}), stock.fresh()
    name = {"retail": "orders", "airline": "reservations"}[variant]
    key = next(iter(tau.desk.database.tables[name]))
    for records in (environment._view[name], getattr(toolkit.db, name)):
        payment = records[key].payment_history[0]
        payment.amount = {int: float, float: int}[type(payment.amount)](payment.amount)
    assert (tau.desk.database.changes(environment._view) == {}) == (toolkit.db.get_hash() == stock.hash)
    assert as_hashed(tau, stock, environment) == toolkit.db.get_hash()


def sampled_call(rng, tau, variant, tables):
    """A call that mostly names real records, as a policy's would, and is sometimes nonsense."""
    function = rng.choice(tau.desk.tools)["function"]
    arguments = {}
    record = None
    for name, schema in function["parameters"]["properties"].items():
        if name in IDS[variant]:
            # Few records, so that calls meet on them.
            key = rng.choice(list(tables[IDS[variant][name]])[:3])
            record = record or tables[IDS[variant][name]][key]
            arguments[name] = key
        else:
            arguments[name] = sampled_value(rng, name, schema, record)
    if rng.random() < 0.05 and arguments:
        arguments.pop(rng.choice(list(arguments)))
    return Action(function["name"], arguments)


def sampled_value(rng, name, schema, record):
    if rng.random() < 0.03:
        return rng.choice([None, [], {}, "x", 3, 2.5, [{"flight_number": 1}], True])
    if "enum" in schema:
        return rng.choice(schema["enum"])
    if schema["type"] == "integer":
        return rng.choice([0, 1, 2, 50, 2.0])
    if name == "expression":
        return rng.choice(["1+1", "9**9**9", "1/0", "2*(3", "0.1+0.2"])
    if schema["type"] == "array":
        lists = [
            v for k, v in (vars(record) if record else {}).items() if k in ("flights", "passengers", "payment_history")
        ]
        if name in ("item_ids", "new_item_ids"):
            return [i.item_id for i in getattr(record, "items", [])][: rng.randrange(3)]
        return [item.model_dump() for item in rng.choice(lists)] if lists else []
    methods = getattr(record, "payment_methods", None) or [
        p.payment_method_id if hasattr(p, "payment_method_id") else p.payment_id
        for p in getattr(record, "payment_history", [])
    ]
    if "payment" in name and methods:
        return rng.choice(list(methods))
    return rng.choice(
        ["no longer needed", "ordered by mistake", "SFO", "JFK", "2024-05-20", "2024-05-16", "x", "\ud800"]
    )


def test_sampled_calls_do_the_same_and_leave_the_pristine_database_alone(tau, stock, variant):
    rng = random.Random(7)
    environment, toolkit = tau.open("test", 0, {}), stock.fresh()
    environment.reset(FakeUser())
    changed, cancelled = 0, Counter()
    for _ in range(1500):
        action = sampled_call(rng, tau, variant, tau.desk.database.tables)
        if action.name == "cancel_reservation":
            cancelled[str(action.arguments)] += 1
            if cancelled[str(action.arguments)] > 3:
                continue  # every cancellation doubles the payments
        text = environment.step(action).text
        if text.startswith("Error: ") and "are wrong" in text:
            continue  # the package's solver would not have called the tool either
        arguments = {k: int(v) if isinstance(v, float) else v for k, v in action.arguments.items()}
        try:
            expected = stock.call(toolkit, Action(action.name, arguments))
        except Exception as e:
            assert text.startswith("Error: "), (action, e)
            continue
        if expected is not None:
            assert text == expected.encode("utf-8", "replace").decode(), action
            changed += not text.startswith("Error: ")
    assert changed > 300
    assert as_hashed(tau, stock, environment) == toolkit.db.get_hash() != stock.hash
    assert pristine_hash(tau, stock) == stock.hash


# --- what a policy gets wrong


@pytest.fixture
def airline():
    environment = domain("tau2:airline").open("test", 0, {})
    environment.reset(FakeUser(["hello"] * 9))
    return environment


BOOKING = {
    "user_id": "mia_li_3668",
    "origin": "JFK",
    "destination": "SEA",
    "flight_type": "one_way",
    "cabin": "economy",
    "flights": [{"flight_number": "HAT083", "date": "2024-05-20"}],
    "passengers": [{"first_name": "Mia", "last_name": "Li", "dob": "1990-04-05"}],
    "payment_methods": [],
    "total_baggages": 0,
    "nonfree_baggages": 0,
    "insurance": "no",
}


@pytest.mark.parametrize(
    "name, arguments, message",
    [
        ("fly", {}, "Tool fly not found"),
        ("initialize", {}, "Tool initialize not found"),
        ("_get_user", {"user_id": "mia_li_3668"}, "Tool _get_user not found"),
        ("get_user_details", {}, "'user_id' is a required property"),
        ("get_user_details", {"user_id": "mia_li_3668", "x": 1}, "'x' was unexpected"),
        ("get_user_details", {"user_id": ["mia_li_3668"]}, "is not of type 'string'"),
        ("get_user_details", {"user_id": "nobody"}, "User nobody not found"),
        ("book_reservation", {**BOOKING, "cabin": "first"}, "'first' is not one of"),
        ("book_reservation", {**BOOKING, "flights": "HAT083"}, "is not of type 'array'"),
        ("book_reservation", {**BOOKING, "passengers": [{"name": "Mia"}]}, "first_name"),
        ("book_reservation", {**BOOKING, "total_baggages": True}, "is not of type 'integer'"),
        ("book_reservation", {**BOOKING, "total_baggages": 10**30}, "too large"),
        ("book_reservation", {**BOOKING, "flights": [[[[[]]]] for _ in range(3)]}, "Error: "),
        ("calculate", {"expression": "9**9**9"}, "too large"),
        ("calculate", {"expression": "__import__('os')"}, "Invalid characters"),
        ("calculate", {"expression": "1/0"}, "Cannot evaluate"),
        ("calculate", {"expression": "(" * 400 + "1" + ")" * 400}, "Error: "),
    ],
)
def test_a_wrong_call_is_an_observation(airline, name, arguments, message):
    observation = airline.step(Action(name, arguments))
    assert observation.text.startswith("Error: ")
    assert message in observation.text
    assert not observation.done
    assert airline._domain.desk.database.changes(airline._view) == {}


def test_arguments_nested_without_end_are_an_observation(airline):
    deep = []
    for _ in range(5000):
        deep = [deep]
    assert "nested too deeply" in airline.step(Action("get_user_details", {"user_id": deep})).text


def test_errors_without_end_are_cut(airline):
    text = airline.step(Action("book_reservation", {**BOOKING, "flights": ["x"] * 10_000})).text
    assert text.startswith("Error: 20 of the arguments of book_reservation are wrong: 'x' is not valid")
    assert len(text) < 1500


def test_a_call_keeps_nothing_of_its_arguments(airline):
    action = Action(
        "book_reservation", {**BOOKING, "payment_methods": [{"payment_id": "credit_card_4421486", "amount": 0}]}
    )
    before = json.dumps(action.arguments)
    price = airline.step(action).text.split("total price is ")[1].split(",")[0]
    action.arguments["payment_methods"][0]["amount"] = int(price)
    assert airline.step(action).text.startswith('{"reservation_id":"HATHAT"')
    action.arguments["payment_methods"][0]["amount"] = 0
    action.arguments["passengers"][0]["first_name"] = "Mia"
    assert json.dumps(action.arguments) == before
    assert f'"amount":{price}' in airline.step(Action("get_reservation_details", {"reservation_id": "HATHAT"})).text


def test_whole_floats_are_integers(airline):
    text = airline.step(Action("send_certificate", {"user_id": "mia_li_3668", "amount": 50.0})).text
    assert text.endswith("with amount 50.")


def test_a_transfer_leaves_the_last_word_to_the_user():
    environment = domain("tau2:airline").open("test", 0, {})
    environment.reset(FakeUser(["hello", "ok ###TRANSFER### bye"]))
    assert environment.step(Action("transfer_to_human_agents", {"summary": "x"})) == customer_service.Observation(
        "Transfer successful"
    )
    assert environment.step(Action(RESPOND, {"content": "You are being transferred."})).done


@pytest.mark.parametrize("marker", tau2.MARKERS)
def test_the_user_s_markers_end_it(marker):
    environment = domain("tau2:retail").open("test", 0, {})
    environment.reset(FakeUser(["hello", f"so {marker} then"]))
    assert environment.step(Action(RESPOND, {"content": "hi"})) == customer_service.Observation(
        f"so {marker} then", True
    )


def test_a_respond_without_text_is_an_observation(airline):
    for arguments in ({}, {"content": None}, {"content": 3}):
        assert airline.step(Action(RESPOND, arguments)).text == "Error: respond needs a text as its content"


def test_a_user_without_words_is_the_user_s_failure():
    environment = domain("tau2:retail").open("test", 0, {})
    user = FakeUser(["hello"])
    environment.reset(user)
    user.reply = lambda message: None
    with pytest.raises(UserFailure, match="NoneType"):
        environment.step(Action(RESPOND, {"content": "hi"}))


def test_an_episode_is_frozen_when_it_is_over():
    tau = domain("tau2:retail")
    environment = tau.open("test", 0, {})
    with pytest.raises(EnvironmentFailure, match="before its reset"):
        environment.grade()
    environment.reset(FakeUser(["hello"]))
    assert environment.step(Action(RESPOND, {"content": "hi"})).done
    for call in tau.task("test", 0).moves:
        with pytest.raises(EnvironmentFailure, match="done"):
            environment.step(call)
    assert environment.grade().reward == 0.0
    with pytest.raises(EnvironmentFailure, match="twice"):
        environment.grade()
    with pytest.raises(EnvironmentFailure, match="reset"):
        environment.reset(FakeUser())


class TimeLimit(Exception):
    """As task queues raise into a running task."""


def test_only_errors_of_the_call_become_observations(airline, monkeypatch):
    def stop(*_):
        raise TimeLimit("soft limit")

    monkeypatch.setattr(airline._domain.desk, "_run", stop)
    with pytest.raises(TimeLimit):
        airline.step(Action("get_user_details", {"user_id": "mia_li_3668"}))


# --- the domain


@pytest.mark.parametrize("index", [-1, 40, "0", 1.0, True])
def test_tasks_that_are_not_there(index):
    with pytest.raises(JobFailure, match="tasks 0 to 39"):
        domain("tau2:retail").open("test", index, {})


def test_splits_variants_and_options_that_are_not_there():
    with pytest.raises(JobFailure, match="no split 'dev'; it has train, test, base"):
        domain("tau2:retail").task("dev", 0)
    with pytest.raises(JobFailure, match="takes no env_args, not colour"):
        domain("tau2:retail").open("test", 0, {"colour": "red"})
    for variant in (None, "telecom"):
        with pytest.raises(JobFailure, match="retail and airline"):
            tau2.load(variant)


def test_the_version_names_package_and_data(tau):
    assert tau.version.startswith(f"inspect_evals {metadata.version('inspect_evals')} data ")
    assert len(tau.version.split()[-1]) == 12


def test_a_missing_package_is_named_with_its_remedy(monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(tau2.metadata, "version", missing)
    with pytest.raises(JobFailure, match=r"needs the package inspect_evals: pip install .*\[tau2\]'"):
        tau2.load("retail")


@pytest.mark.parametrize("version", ["0.25.3", "0.260", "0.27.0", "1.0"])
def test_another_version_of_the_package_is_refused(monkeypatch, version):
    monkeypatch.setattr(tau2.metadata, "version", lambda name: version)
    with pytest.raises(JobFailure, match=rf"needs inspect_evals 0\.26\.\*, not {version}: pip install .*\[tau2\]'"):
        tau2.load("retail")


def test_a_broken_package_is_named_with_its_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "inspect_evals.tau2.utils", None)
    with pytest.raises(JobFailure, match=r"cannot import .* pip install .*\[tau2\]'"):
        tau2.load("retail")


def test_the_package_is_imported_when_a_domain_is_loaded_and_not_before():
    code = (
        "import sys; from rollq_worker.environments import domain, names, tau2; names();"
        "assert not {'inspect_ai', 'inspect_evals', 'pydantic'} & set(sys.modules), sys.modules;"
        "domain('tau2:retail'); assert 'inspect_evals' in sys.modules"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=120)


@contextmanager
def counted(monkeypatch, desk):
    calls, replay = [], desk.replay

    def slow(view, actions):
        calls.append(actions)
        time.sleep(0.02)
        replay(view, actions)

    monkeypatch.setattr(desk, "replay", slow)
    yield calls


def test_the_ground_truth_is_worked_out_once_for_all_threads(monkeypatch):
    tau = tau2.load("retail")
    grades, barrier = [], threading.Barrier(64)

    def run():
        barrier.wait(30)
        grades.append(play(tau, "test", 1, tau.task("test", 1).moves)[0].reward)

    with counted(monkeypatch, tau.desk) as calls:
        threads = [threading.Thread(target=run) for _ in range(64)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert grades == [1.0] * 64
    assert len(calls) == 1
