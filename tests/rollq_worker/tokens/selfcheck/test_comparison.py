"""Edges that a template writes otherwise only late: behind the second call, the second user, or a long text."""

from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from rollq_worker.tokens.selfcheck.check import check, checked_renderer
from rollq_worker.tokens.selfcheck.comparison import Finding, Match
from rollq_worker.tokens.selfcheck.conversations import EPISODES, Edge, Golden
from tests.rollq_worker.tokens.models import DEEPSEEK, Models
from tests.rollq_worker.tokens.test_model_family import LETTERS, TOOLS
from tests.rollq_worker.toolcalls.variations import EXACT, HEADER, THOUGHTS, TOOL, USER, USERS, but, chatml

COUNT = "{%- set ns = namespace(n=0) %}"
ONE_MORE = "{% set ns.n = ns.n + 1 %}"
LATER = (Edge.AGAIN, Edge.THOUGHT_AGAIN)
END = "{%- if not add_generation_prompt %}<|endoftext|>{% endif %}"
LATE_HABITS = {
    # name: template, the class of every edge, a word of why
    "numbers results from the third on": (
        COUNT + chatml(tool=ONE_MORE + TOOL.replace("{{ m", "{{ '(call ' ~ ns.n ~ ')' if ns.n > 2 }}{{ m")),
        EXACT | but("U", *LATER),
        "differs",
    ),
    "reminds the third user": (
        COUNT + chatml(user=ONE_MORE + USER.replace("{{ m", "{{ 'Stay safe. ' if ns.n == 3 }}{{ m")),
        EXACT | but("U", *USERS, Edge.THOUGHT_USER),
        "differs",
    ),
    "leaves out results once there are newer ones": (
        chatml(tool=TOOL.replace("m.content", "m.content if loop.index0 >= messages | length - 4 else '[omitted]'")),
        EXACT | but("R", *LATER, Edge.SERVED, Edge.THOUGHT_USER),
        "rewrites earlier turns",
    ),
    "a header of its own behind long texts": (
        chatml(
            header=HEADER.replace("assistant\n", "assistant\n{{ 'Summary: ' if messages[-1].content | length > 200 }}")
        ),
        EXACT | but("R", Edge.CALL, Edge.AGAIN, Edge.USER, Edge.SERVED, *THOUGHTS[1:]),
        "the prompt of a turn differently",
    ),
    "at most two results": (
        "{% if messages | selectattr('role', 'equalto', 'tool') | list | length > 2 %}{{ raise_exception('too many') }}"
        "{% endif %}" + chatml(),
        EXACT | but("U", *LATER, Edge.CALLS),
        "too many",
    ),
    "leaves out the end of long results": (
        chatml(tool=TOOL.replace("m.content", "m.content[:1000]")),
        EXACT | but("U", Edge.LINES, Edge.THOUGHT_AGAIN),
        "leaves out 'lastword'",
    ),
    # What ends the conversation is not there when it goes on
    "an end of the conversation": (chatml() + END, EXACT, ""),
    "an end of the conversation on a line of its own": (chatml() + END.replace("<", "\n<", 1), EXACT, ""),
}


@pytest.fixture(scope="module")
def models(shared: Path) -> Models:
    return Models(shared)


@pytest.mark.parametrize("name", LATE_HABITS)
def test_habits_that_show_late(models: Models, name: str):
    template, expected, why = LATE_HABITS[name]
    found = check(models.made(name, template), TOOLS).edges
    assert {edge: LETTERS[found[edge].match].replace("-", "U") for edge in Edge} == expected
    assert all(why in finding.why for finding in found.values() if finding.match is not Match.EXACT)


def test_a_second_result_without_a_call_is_written_as_behind_one(models: Models):
    """The R1 template of vLLM opens a section of results for each turn with calls, and never for another one."""
    turn = "{% if m.tool_calls %}{% set ns.n = 0 %}{% endif %}"
    tool = TOOL.replace("{{ m", "{{ 'Results:\n' if ns.n == 1 }}{{ m")
    plain = chatml(tool=ONE_MORE + tool)
    template = COUNT + plain.replace("{%- if m.role == 'assistant' %}", "{%- if m.role == 'assistant' %}" + turn)
    tokenizer = models.made("sections", template, DEEPSEEK)
    assert check(tokenizer, TOOLS).edges == dict.fromkeys(Edge, Finding(Match.EXACT))
    renderer = checked_renderer(tokenizer, TOOLS)
    unread = {"role": "assistant", "content": "Trying."}
    first, second = ({"role": "tool", "tool_call_id": f"call_{n}", "content": "Error: bad."} for n in range(2))
    opening = Golden(TOOLS).opening
    full = tokenizer.encode(renderer.prompt([*opening, unread, first, unread, second], TOOLS))
    bridge = renderer.bridge(unread, [second])
    assert full[-len(bridge) :] == bridge and tokenizer.decode(bridge).count("Results:") == 1


def test_every_edge_is_played_three_times_and_in_mixed_orders():
    golden = Golden(TOOLS)
    played = Counter(edge for edge in Edge if edge is not Edge.OPEN)
    followed: set[tuple[Edge, Edge]] = set()
    long: set[str] = set()
    for episode in EPISODES:
        followed |= set(pairwise(episode))
        history = list(golden.opening)
        for edge in episode:
            play = golden.later(edge, history, "key")
            played.update(golden.edges(edge, play))
            long |= {reply["role"] for reply in play.replies if len(reply["content"]) > 2000}
            history += [play.turn, *play.replies]
    first = {Edge.CALL, Edge.THOUGHT_CALL}  # only once in a conversation
    assert {edge for edge, times in played.items() if times < 3} <= first and played[Edge.CALL] >= 2
    assert {(Edge.MALFORMED, Edge.MALFORMED), (Edge.CALL, Edge.MALFORMED), (Edge.LINES, Edge.CALL)} <= followed
    assert long == {"tool", "user"}
