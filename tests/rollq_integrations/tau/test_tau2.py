"""The adapter of tau2-bench on a small package of the same form; test_real_tau2.py has the real
one.
"""

import json
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rollq.env import RESPOND, STOP_MARKER, Action
from rollq.env.customer_service import MAX_USER_CALLS, ConversationDomain
from rollq.errors import JobFailure, UserFailure
from rollq.settings import Endpoint
from rollq_integrations.tau import tau2
from rollq_worker.commands.env.check import check_environment
from rollq_worker.fakes import FakeUser
from rollq_worker.remote import chat_model
from rollq_worker.users import user_factory
from tests.packages import forget, imported_anew, install, write
from tests.rollq_integrations.tau.fake_tau2 import FILES, PACKAGES
from tests.rollq_worker.engine.engine_servers import Answer, scripted_engine
from tests.rollq_worker.environments.episodes import begin, play, respond

pytestmark = pytest.mark.packages


@pytest.fixture(autouse=True)
def fake_tau2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The fake package on the path."""
    write(tmp_path, FILES)
    with imported_anew(*PACKAGES):
        monkeypatch.syspath_prepend(tmp_path)
        yield tmp_path


@pytest.fixture
def retail() -> ConversationDomain:
    return tau2.load("retail")


@pytest.fixture
def telecom() -> ConversationDomain:
    return tau2.load("telecom")


def called(name: str, **arguments: object) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


@pytest.mark.parametrize("variant", ["retail", "telecom"])
def test_ground_truths_earn_everything_also_from_a_journal(variant: str) -> None:
    domain = tau2.load(variant)
    report = check_environment(domain, "test", range(domain.splits()["test"]))
    assert (report.problems, report.rewards, report.idle_rewards) == ([], [1.0, 1.0], [0.0, 0.0])
    assert report.judged == (variant == "retail")


def test_what_a_reward_has_is_what_its_task_says(retail: ConversationDomain) -> None:
    assert retail.splits() == {"train": 1, "test": 2}
    by_judge, by_words = retail.task("test", 0), retail.task("test", 1)
    assert (by_judge.outputs, by_judge.assertions) == ((), ("The agent says why.",))
    assert (by_words.outputs, by_words.assertions) == (("1234",), ())
    rename = Action("rename", {"key": "u1", "name": "Anna"})
    assert play(retail, "test", 0, [rename])[0].info == {
        "database": True,
        "outputs": True,
        "wrong_records": [],
        "untold": [],
        "assertions": ["The agent says why."],
    }
    assert play(retail, "test", 1, [respond("It is 1,234.")])[0].reward == 1.0
    assert play(retail, "test", 1, [respond("It is 12"), respond("34.")])[0].info["untold"] == [
        "1234"
    ]
    assert play(retail, "test", 1, [rename, respond("1234")])[0].info["wrong_records"] == [
        "users/u1"
    ]


@pytest.mark.parametrize(
    ("name", "arguments", "text"),
    [
        ("fly", {}, "Error: Tool 'fly' not found."),
        ("rename", {"key": "u9", "name": "x"}, "Error: 'u9'"),
        ("rename", {"tool_name": "x"}, "multiple values for argument 'tool_name'"),
        ("calculate", {"expression": "9**9**9"}, "Error: the result is too large"),
        ("calculate", {"expression": "2**10"}, "1024"),
        ("calculate", {"expression": "2 +"}, "Error: invalid syntax"),
        ("calculate", {"expression": "-" * 100_000 + "1"}, "Error: the result is too large"),
    ],
)
def test_a_strange_call_is_an_observation(
    retail: ConversationDomain, name: str, arguments: dict[str, object], text: str
) -> None:
    assert text in begin(retail).step(Action(name, arguments)).text


def test_the_user_s_tools_work_on_its_phone_and_the_agent_hears_words_alone(
    telecom: ConversationDomain,
) -> None:
    environment = begin(
        telecom,
        0,
        called("look"),
        called("switch", on=True),
        called("look"),
        "It is on.",
        f"Bye {STOP_MARKER}",
    )
    assert environment.step(respond("Please switch it on.")).text == "It is on."
    user = environment._user
    assert isinstance(user, FakeUser)
    shown = ["on: False, roams: False", "switched", "on: True, roams: False"]
    assert user.heard[-3:] == [f"<tool_response>\n{text}\n</tool_response>" for text in shown]
    assert environment.step(respond("Bye")).done
    assert environment.grade().info == {"failed": ["is_fine({})"], "not_called": []}


def test_what_must_be_called_counts_for_both_sides(telecom: ConversationDomain) -> None:
    moves = [move for move in telecom.task("test", 1).moves if move.name != RESPOND]
    environment = begin(telecom, 1, called("switch", on=True), f"Bye {STOP_MARKER}")
    for move in (*moves, respond("Switch it on.")):
        environment.step(move)
    grade = environment.grade()
    assert (grade.reward, grade.info) == (0.0, {"failed": [], "not_called": ["look"]})


@pytest.mark.parametrize(
    "said",
    [
        "<tool_call>no JSON</tool_call>",
        "<tool_call>[1]</tool_call>",
        '<tool_call>{"name": "look", "arguments": "{}"}</tool_call>',
        called("fly"),
        called("switch", off=1),
    ],
)
def test_a_user_s_wrong_call_is_told_to_the_user(telecom: ConversationDomain, said: str) -> None:
    environment = begin(telecom, 0, said, "Sorry.")
    assert environment.step(respond("hi")).text == "Sorry."
    assert isinstance(environment._user, FakeUser)
    assert environment._user.heard[-1].startswith("<tool_response>\nError: ")


def test_a_user_that_only_calls_tools_fails_the_attempt(telecom: ConversationDomain) -> None:
    with pytest.raises(UserFailure, match=f"called tools {MAX_USER_CALLS} times without a word"):
        begin(telecom, 0, *[called("look")] * (MAX_USER_CALLS + 1)).step(respond("hi"))
    with pytest.raises(UserFailure, match="called a tool before it said anything"):
        telecom.open("test", 0, {}).reset(FakeUser([called("look")]))


def test_the_same_actions_read_the_same_numbers_whatever_other_episodes_do(
    telecom: ConversationDomain,
) -> None:
    first, second = begin(telecom), begin(telecom)
    charge = Action("charge")
    seen = [environment.step(charge).text for environment in (first, second, first, second)]
    assert seen == ["bills: ['00000001']"] * 2 + ["bills: ['00000001', '00000002']"] * 2


def test_a_model_that_plays_the_user_is_told_its_tools(
    telecom: ConversationDomain, monkeypatch: pytest.MonkeyPatch
) -> None:
    def say(text: str) -> Answer:
        return 200, {"choices": [{"message": {"content": text}}]}

    with scripted_engine() as server:
        server.answers = [say("Hello."), say(called("look")), say("It shows no signal.")]
        options = {"kind": "openai", "endpoint": "u", "model": "m"}
        user = user_factory(
            options, telecom.task("test", 0), seed=0, endpoints={"u": Endpoint(f"{server.url}/v1")}
        )
        environment = telecom.open("test", 0, {})
        environment.reset(user)
        assert environment.step(respond("What do you see?")).text == "It shows no signal."
        *_, last = server.bodies("/v1/chat/completions")
    chat_model.http_client().close()
    system, *said = (message["content"] for message in last["messages"])
    assert '<tool_call>{"name": "TOOL"' in system and '"name": "switch"' in system
    assert said[-2:] == [
        called("look"),
        "<tool_response>\non: False, roams: False\n</tool_response>",
    ]


def test_the_oracle_uses_the_tools_that_the_agent_names(telecom: ConversationDomain) -> None:
    environment = telecom.open("test", 1, {})
    environment.reset(
        user_factory({"kind": "oracle"}, telecom.task("test", 1), seed=0, endpoints={})
    )
    seen = [environment.step(move).text for move in telecom.task("test", 1).moves[:-2]]
    assert seen == [
        "Yes, please go ahead.",
        "enabled",
        "I have done that. I see: on: True, roams: True",
    ]
    while not environment.step(respond("It is all done.")).done:
        pass
    assert environment.grade().reward == 1.0


def test_programs_of_the_package_are_left_out_and_no_env_file_is_read(
    retail: ConversationDomain,
) -> None:
    assert "tau2" not in sys.modules and "tau2.domains.retail.environment" in sys.modules
    assert "PYTHON_DOTENV_DISABLED" not in os.environ


def test_domains_that_load_at_once_do_not_get_in_each_other_s_way(fake_tau2: Path) -> None:
    for variant in ("retail", "telecom"):
        module = fake_tau2 / f"tau2/domains/{variant}/environment.py"
        module.write_text(f"import time\ntime.sleep(0.2)\n{module.read_text()}")
    with ThreadPoolExecutor(2) as pool:
        names = [domain.name for domain in pool.map(tau2.load, ("retail", "telecom"))]
    assert names == ["tau2:retail", "tau2:telecom"]
    assert "PYTHON_DOTENV_DISABLED" not in os.environ


def test_the_version_changes_with_the_data(retail: ConversationDomain, fake_tau2: Path) -> None:
    info = install(fake_tau2, "tau2", version="1.0.1")
    (info / "direct_url.json").write_text(
        '{"url": "u", "vcs_info": {"vcs": "git", "commit_id": "a2c02472"}}'
    )
    (fake_tau2 / "data/tau2/domains/retail/policy.md").write_text("Be kinder.")
    changed = tau2.load("retail")
    assert changed.version.startswith("tau2-bench 1.0.1 commit a2c02472 data ")
    assert changed.version[-12:] != retail.version[-12:]


def test_what_is_missing_is_named_with_its_remedy(
    fake_tau2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        JobFailure, match="has the variants retail, airline, telecom, not 'banking'"
    ):
        tau2.load("banking")
    (fake_tau2 / "data/tau2/domains/retail/tasks.json").unlink()
    (fake_tau2 / "data/tau2/domains/retail").rmdir()
    with pytest.raises(JobFailure, match=r"no data in .*retail: set TAU2_DATA_DIR"):
        tau2.load("retail")
    (fake_tau2 / "tau2/domains/telecom/tools.py").write_text("import nothing_of_that_name")
    forget(*PACKAGES)
    with pytest.raises(JobFailure, match=r"nothing_of_that_name.*pip install .*\[tau2\]'"):
        tau2.load("telecom")
    with pytest.raises(
        JobFailure, match=r"needs the package of tau2-bench: pip install .*\[tau2\]'"
    ):
        tau2.load("airline")  # as with the package of that name on PyPI, which has no such folder
    install(fake_tau2, "tau2", version="2.4.0")
    with pytest.raises(JobFailure, match=r"needs tau2-bench 1\.\*, not tau2 2\.4\.0"):
        tau2.load("retail")
