"""The contexts that a job may name, and the errors of those that it may not."""

from collections.abc import Iterator, Sequence
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from rollq.errors import AgentFailure, ContractError, JobFailure, UserFailure
from rollq.events import Message, Observed, Prompt
from rollq.job import Budget, Job
from rollq.settings import Endpoint
from rollq_worker import context
from rollq_worker.agents.known_agents import check_agent
from rollq_worker.commands.for_clients import check_job
from rollq_worker.context import context_factory
from rollq_worker.context.summary import HEADING, POLICY_REQUEST, with_summary
from rollq_worker.extensions import plug_ins
from tests.rollq_worker.engine.engine_servers import scripted_engine
from tests.rollq_worker.episode.episodes import CALL, play_with_fakes

USER: Message = {"role": "user", "content": "hello"}


def job(**given: Any) -> Job:
    return Job(
        run="r", group="g", env="shop", task=0, context=given, budget=Budget(max_tokens=8000)
    )


def last_reply(
    opening: Sequence[Message], messages: Sequence[Message], tokens: int, *, over: int = 99
) -> Any:
    return [*opening, messages[-1]] if tokens > over else None


def careless(opening: Sequence[Message], messages: Sequence[Message], tokens: int) -> None:
    for message in messages:
        message["content"] = "gone"


def odd(opening: Sequence[Message], messages: Sequence[Message], tokens: int, *, gives: Any) -> Any:
    return gives


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    here = "tests.rollq_worker.context.test_context"
    entries = [
        EntryPoint(name, f"{here}:{name}", context.GROUP)
        for name in ("last_reply", "odd", "careless")
    ]
    monkeypatch.setattr(
        plug_ins, "entry_points", lambda group: entries if group == context.GROUP else []
    )
    plug_ins.function_named.cache_clear()
    yield
    plug_ins.function_named.cache_clear()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"kind": "window"},
            "context 'window': over must be a whole number of at least 1, not None",
        ),
        (
            {"kind": "window", "over": True, "turns": 1},
            "over must be a whole number of at least 1, not True",
        ),
        (
            {"kind": "window", "over": 500, "turns": 0},
            "turns must be a whole number of at least 1, not 0",
        ),
        (
            {"kind": "window", "over": 8000, "turns": 1},
            "over must be below budget.max_tokens, which is 8000",
        ),
        (
            {"kind": "window", "over": 500, "turns": 1, "ask": "?"},
            "it takes over and turns, not ask",
        ),
        ({"kind": "summary", "over": 500, "ask": ""}, "ask must be a text, not ''"),
        (
            {"kind": "summary", "over": 500, "asks": "?"},
            "it takes over and ask, and for another model endpoint and model",
        ),
        ({"kind": "summary", "over": 500, "model": "m"}, "endpoint and model, not model"),
        (
            {"kind": "summary", "over": 500, "endpoint": "local", "model": "m", "turns": 2},
            "summary model takes no turns; it takes endpoint, model",
        ),
        ({"kind": "summary", "over": 500, "endpoint": "local"}, "summary model needs model"),
        (
            {"kind": "windwo", "over": 500},
            "context 'windwo' is unknown here; there are careless, last_reply, "
            "odd, summary, window",
        ),
        ({"kind": "last_reply", "most": 1}, "context 'last_reply' with context {'most': 1}"),
    ],
)
def test_what_cannot_be_had_is_refused_before_it_is_submitted(
    given: dict[str, Any], message: str
) -> None:
    with pytest.raises(JobFailure) as raised:
        check_job(job(**given), [])
    assert message in str(raised.value)


def test_the_worker_names_the_endpoint_that_it_does_not_know() -> None:
    with pytest.raises(JobFailure, match="summary endpoint 'local' is unknown to this worker"):
        context_factory(job(kind="summary", over=1, endpoint="local", model="m"), endpoints={})


@pytest.mark.parametrize("given", [{"over": 3}, {"kind": 3}, {"kind": None}])
def test_a_context_has_a_kind(given: dict[str, Any]) -> None:
    with pytest.raises(ContractError, match="job r/g/0: context must have a kind"):
        job(**given)


def test_an_agent_program_manages_its_own() -> None:
    program = Job(
        env="shop",
        task=0,
        agent="solver@0123456789ab",
        context={"kind": "window", "over": 9, "turns": 1},
    )
    with pytest.raises(JobFailure, match="context is not for agent programs"):
        check_agent(program)


def test_a_model_behind_an_endpoint_writes_the_summary() -> None:
    said = {"choices": [{"message": {"content": "<think>so</think> In short."}}]}
    with scripted_engine((200, said)) as server:
        found = context_factory(
            job(kind="summary", over=10, endpoint="local", model="m", max_tokens=77),
            endpoints={"local": Endpoint(f"{server.url}/v1")},
        )
        assert found is not None
        assert found.shorten([USER], [USER], 10) is None
        assert found.shorten([USER], [USER], 11) == with_summary([USER], "In short.")
    assert found.failure is UserFailure
    assert found.request_for(10**9) == ""


def test_the_policys_own_summary_has_a_question() -> None:
    found = context_factory(job(kind="summary", over=10), endpoints={})
    assert found is not None
    assert (found.request_for(10), found.request_for(11)) == ("", POLICY_REQUEST)


def test_a_summary_stands_behind_what_the_user_said_and_showed() -> None:
    image = {"type": "image", "sha256": "0"}
    [shown] = with_summary([{"role": "user", "content": [image]}], " s ")
    assert shown["content"] == [image, {"type": "text", "text": f"{HEADING}s"}]


def test_a_package_adds_a_kind() -> None:
    played = play_with_fakes(CALL, "bye", context={"kind": "last_reply", "over": 60})
    assert [len(row.prompt_messages) for row in played.segments()] == [2, 3]


def test_half_a_surrogate_pair_of_a_package_is_no_text() -> None:
    gives = [{"role": "user", "content": "cut \ud83d"}]
    played = play_with_fakes(CALL, "bye", context={"kind": "odd", "gives": gives})
    [_, shortened] = [event for event in played.events if isinstance(event, Prompt)]
    assert shortened.messages[0]["content"] == "cut \ufffd"


def test_what_a_package_changes_is_not_what_was_said() -> None:
    played = play_with_fakes(CALL, "bye", context={"kind": "careless"})
    [observed, _] = [event for event in played.events if isinstance(event, Observed)]
    assert [reply["content"] for reply in observed.replies] != ["gone"]


IMAGE = {"type": "image", "sha256": "0", "mime": "image/png", "width": 1, "height": 1, "bytes": 9}
END = "ValueError: its messages must end with what the policy answers, not "


@pytest.mark.parametrize(
    ("gives", "message"),
    [
        ([], f"{END}[]"),
        ([USER, {"role": "assistant", "content": "hm"}], f"{END}[{{'role': 'assistant'"),
        ([{"role": "system", "content": "s"}], f"{END}[{{'role': 'system'"),
        (3, "TypeError: 'int' object is not iterable"),
        (["text"], "TypeError: "),
        (["text", USER], "AttributeError: "),
        ([{"role": "user"}], "ValueError: a message of its has no content: {'role': 'user'}"),
        ([{"role": "user", "content": None}], "ValueError: a message of its has no content: "),
        (
            [{"role": "user", "content": [IMAGE]}],
            "ValueError: it shows an image that the conversation does not: Im",
        ),
    ],
)
def test_what_a_package_returns_fails_the_attempt_by_name(gives: Any, message: str) -> None:
    with pytest.raises(AgentFailure) as raised:
        play_with_fakes(CALL, "bye", context={"kind": "odd", "gives": gives})
    assert str(raised.value).startswith(f"the context: {message}")
