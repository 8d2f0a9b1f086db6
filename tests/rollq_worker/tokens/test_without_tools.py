"""Templates that know no tools: environments without tools, and calls written as text."""

import pytest

from rollq.env import Action
from rollq.errors import JobFailure
from rollq.events import Observed, Prompt, Stop
from rollq.job import Job
from rollq.trajectory import Trajectory
from rollq_worker.fakes import FakeEnvironment, FakeUser
from rollq_worker.process.attempts.renderer_cache import RendererCache
from rollq_worker.process.startup_checks import stop_ids
from rollq_worker.tokens.family_detection import family_of
from rollq_worker.tokens.renderer import ChatRenderer
from rollq_worker.tokens.selfcheck.check import check
from rollq_worker.tokens.selfcheck.conversations import WITHOUT_TOOLS
from rollq_worker.tokens.template_messages import write_calls
from rollq_worker.tokens.tokenizer import Tokenizer
from rollq_worker.toolcalls import PARSERS
from tests.rollq_worker.episode.episodes import play_with_fakes
from tests.rollq_worker.tokens.family_habits import ALL_HABITS
from tests.rollq_worker.tokens.models import tokenizer_with
from tests.rollq_worker.tokens.scripted_engine import Piece, ScriptedEngine
from tests.rollq_worker.toolcalls.turns.turn import FULL, TOOLS

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
USERS_ONLY = CHATML.replace(
    "{% for m in messages %}",
    "{% for m in messages %}{% if m.role == 'tool' or m.tool_calls %}{{ "
    "raise_exception('no tools') }}{% endif %}",
)
TEXT_CALLS = ["gemma", "phi3", "lfm2", "deepseek-r1"]
"""Templates that leave calls out."""


def habit(name: str) -> Tokenizer:
    return ALL_HABITS[name].tokenizer(name)


def episode(
    tokenizer: Tokenizer,
    *texts: str,
    environment: FakeEnvironment | None = None,
    lines: int = 2,
    **more: str,
) -> Trajectory:
    """An episode as a worker plays it, of an environment without tools; the message behind these
    lines ends it.
    """
    environment = environment or FakeEnvironment(tools=())
    return play_with_fakes(
        engine=ScriptedEngine([Piece(tokenizer.encode(text)) for text in texts]),
        renderer=RendererCache(tokenizer).get(Job(env="fake", task=0, **more), environment.tools),
        environment=environment,
        user=FakeUser(["hello", "go on"][:lines]),
        **more,
    )


@pytest.mark.parametrize("history", ["keep", "template"])
@pytest.mark.parametrize("template", [CHATML, USERS_ONLY])
def test_an_environment_without_tools_needs_no_format_of_calls(template: str, history: str) -> None:
    tokenizer = tokenizer_with("chatml", template)
    trajectory = episode(
        tokenizer, "<think>hm</think>Hi.<|im_end|>", "Bye.<|im_end|>", history=history
    )
    assert trajectory.stop is Stop.DONE
    assert [m["role"] for m in trajectory.messages] == [
        "system",
        "user",
        "assistant",
        "user",
        "assistant",
        "user",
    ]
    assert trajectory.messages[2]["content"] == "Hi."
    assert stop_ids(tokenizer) == (tokenizer.added_tokens["<|im_end|>"],)


@pytest.mark.parametrize(
    "turn",
    [
        "<think>never closed",
        '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>',
        "",
        "<tool_call>",
    ],
)
@pytest.mark.parametrize(
    "name", ["plain", "lfm2.5", "gemma", "phi3", "llama-3.2", "kimi-k2", "users only"]
)
def test_no_turn_kills_a_job_without_tools(name: str, turn: str) -> None:
    """Not even a call that the model makes up: there is no tool message that the template would
    have to take.
    """
    tokenizer = tokenizer_with(name, USERS_ONLY) if name == "users only" else habit(name)
    end = tokenizer.decode([ChatRenderer(tokenizer).stop_ids[0]])
    trajectory = episode(tokenizer, *[turn + end] * 4)
    assert trajectory.stop in (Stop.DONE, Stop.MALFORMED)
    assert "tool" not in {message["role"] for message in trajectory.messages}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gemma", "So it is\n[f(x=1)]"),
        ("gemma", "[f(x="),
        ("lfm2", "<|tool_call_start|>[f(x=1)]<|tool_call_end|>"),
        ("phi3", '<tool_call>{"name": "f"}</tool_call>'),
    ],
)
def test_what_looks_like_a_call_is_content_without_tools(name: str, said: str) -> None:
    renderer = ChatRenderer(habit(name))
    read = renderer.read(renderer.tokenizer.encode(said))
    assert (read.content, read.calls, read.errors) == (said, (), ())


def test_the_self_check_without_tools_has_the_edges_of_users_alone() -> None:
    assert tuple(check(habit("plain"), []).edges) == WITHOUT_TOOLS
    family = check(tokenizer_with("chatml", USERS_ONLY), []).family
    assert (family.name, family.parser, family.stops) == (
        "other (no calls)",
        "no_calls",
        ("<|im_end|>",),
    )


def test_with_tools_the_same_template_is_refused() -> None:
    with pytest.raises(JobFailure, match="leaves an assistant's tool calls out"):
        check(tokenizer_with("chatml", CHATML), TOOLS)


def test_turns_must_end_with_a_control_token() -> None:
    template = CHATML.replace("<|im_end|>", "\n\n").replace("<|im_start|>", "### ")
    with pytest.raises(JobFailure, match="nothing would stop a turn"):
        family_of(tokenizer_with("markdown", template), tools=False)


def test_the_system_prompt_stands_before_the_users_first_message() -> None:
    tokenizer = habit("gemma")
    trajectory = episode(tokenizer, "Hi.<end_of_turn>", "Bye.<end_of_turn>")
    opened = next(event for event in trajectory.events if isinstance(event, Prompt))
    assert (
        tokenizer.decode(opened.ids)
        == "<bos><start_of_turn>user\npolicy\n\nhello<end_of_turn>\n<start_of_turn>model\n"
    )
    assert opened.messages[0]["role"] == "system"  # only the template is shown another form


@pytest.mark.parametrize("name", TEXT_CALLS)
def test_calls_in_the_history_are_what_the_reader_reads(name: str) -> None:
    family = family_of(habit(name))
    assert family.call_text is not None
    calls = [
        {"function": {"name": "f", "arguments": FULL}},
        {"function": {"name": "g", "arguments": {}}},
    ]
    read = PARSERS[family.parser](write_calls(calls, family.call_text), False, TOOLS)
    assert list(read.calls) == [Action("f", FULL), Action("g", {})] and not read.errors


def test_results_of_one_turn_are_one_message_of_the_user() -> None:
    """Gemma's users and turns alternate."""
    tokenizer = habit("gemma")
    calls = [{"id": f"call{n}", "function": {"name": "f", "arguments": "{}"}} for n in range(2)]
    results = [{"role": "tool", "tool_call_id": f"call{n}", "content": str(n)} for n in range(2)]
    bridge = ChatRenderer(tokenizer, TOOLS).bridge(
        {"role": "assistant", "content": "", "tool_calls": calls}, results
    )
    shown = "".join(f"<tool_response>\n{n}\n</tool_response>\n" for n in range(2)).rstrip()
    assert (
        tokenizer.decode(bridge)
        == f"\n<start_of_turn>user\n{shown}<end_of_turn>\n<start_of_turn>model\n"
    )


def test_a_malformed_call_is_answered_and_the_episode_goes_on() -> None:
    tokenizer = habit("gemma")
    texts = [f"{text}<end_of_turn>" for text in ("[add(", "[add(a=1)]", "Done.")]
    trajectory = episode(tokenizer, *texts, environment=FakeEnvironment(), lines=1)
    first, second, *_ = (event for event in trajectory.events if isinstance(event, Observed))
    assert "cut off" in first.errors[0] and "Error: " in tokenizer.decode(first.ids)
    assert [action["name"] for action in second.actions] == ["add"] and trajectory.reward == 1.0


@pytest.mark.parametrize("name", ["gemma", "deepseek-r1", "laguna", "minicpm5"])
def test_a_call_that_an_agent_shows_may_have_no_arguments(name: str) -> None:
    renderer = ChatRenderer(habit(name), TOOLS)

    def opened(arguments: str) -> str:
        function = {"name": "f", "arguments": arguments}
        call = {"id": "call00000", "type": "function", "function": function}
        conversation = [
            {"role": "user", "content": "u"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call00000", "content": "r"},
        ]
        return renderer.tokenizer.decode(renderer.open(conversation, TOOLS))

    assert opened("") == opened("null") == opened("{}")
    with pytest.raises(JobFailure):
        opened("[1]")
