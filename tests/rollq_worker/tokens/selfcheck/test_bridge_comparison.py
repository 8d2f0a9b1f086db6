"""Edges that a template writes otherwise only late: behind the second call, the second user, or a
long text.
"""

from itertools import pairwise

import pytest

from rollq_worker.tokens.selfcheck.bridge_comparison import (
    LEFT_OUT,
    MOVED,
    OTHER_IDS,
    UNLIKE_FIRST,
    Finding,
    Match,
)
from rollq_worker.tokens.selfcheck.check import check, checked_renderer
from rollq_worker.tokens.selfcheck.conversations import Conversations, Edge
from tests.rollq_worker.tokens.expected_edges import (
    EXACT,
    REASONED_EDGES,
    REPLY_EDGES,
    rewritten,
    same_text,
    unsupported,
)
from tests.rollq_worker.tokens.family_habits import ALL_HABITS
from tests.rollq_worker.tokens.messages import TOOLS
from tests.rollq_worker.tokens.models import DEEPSEEK, THINK, RealTemplates, tokenizer_with
from tests.rollq_worker.tokens.template_habits import HEADER, TOOL, TURN, USER, chatml

COUNT = "{%- set ns = namespace(n=0) %}"
ONE_MORE = "{% set ns.n = ns.n + 1 %}"
LATER = (Edge.SECOND_CALL, Edge.REASONED_SECOND_CALL)
END = "{%- if not add_generation_prompt %}<|endoftext|>{% endif %}"
LATE_HABITS = {
    # name: template, the class of every edge, a word of why
    "numbers results from the third on": (
        COUNT
        + chatml(
            tool=ONE_MORE + TOOL.replace("{{ m", "{{ '(call ' ~ ns.n ~ ')' if ns.n > 2 }}{{ m")
        ),
        EXACT | unsupported(*LATER),
        "differs",
    ),
    "reminds the third user": (
        COUNT
        + chatml(user=ONE_MORE + USER.replace("{{ m", "{{ 'Stay safe. ' if ns.n == 3 }}{{ m")),
        EXACT | unsupported(*REPLY_EDGES, Edge.REASONED_REPLY),
        "differs",
    ),
    "leaves out results once there are newer ones": (
        chatml(
            tool=TOOL.replace(
                "m.content", "m.content if loop.index0 >= messages | length - 4 else '[omitted]'"
            )
        ),
        EXACT | rewritten(*LATER, Edge.REPLY_AFTER_CALL, Edge.REASONED_REPLY),
        "rewrites earlier turns",
    ),
    "a header of its own behind long texts": (
        chatml(
            header=HEADER.replace(
                "assistant\n", "assistant\n{{ 'Summary: ' if messages[-1].content | length > 200 }}"
            )
        ),
        EXACT
        | rewritten(Edge.CALL, Edge.REPLY, Edge.REPLY_AFTER_CALL, Edge.REASONED_REPLY, *LATER),
        "the prompt of a turn differently",
    ),
    "at most two results": (
        "{% if messages | selectattr('role', 'equalto', 'tool') | list | length > 2 %}{{ "
        "raise_exception('too many') }}"
        "{% endif %}" + chatml(),
        EXACT | unsupported(*LATER, Edge.CALLS),
        "too many",
    ),
    "leaves out the end of long results": (
        chatml(tool=TOOL.replace("m.content", "m.content[:1000]")),
        EXACT | unsupported(Edge.MULTILINE_RESULT, Edge.REASONED_SECOND_CALL),
        "leaves out 'lastword'",
    ),
    # What ends the conversation is not there when it goes on
    "an end of the conversation": (chatml() + END, EXACT, ""),
    "an end of the conversation on a line of its own": (
        chatml() + END.replace("<", "\n<", 1),
        EXACT,
        "",
    ),
}


@pytest.mark.parametrize("name", LATE_HABITS)
def test_habits_that_show_late(name: str):
    template, expected, why = LATE_HABITS[name]
    found = check(tokenizer_with(name, template), TOOLS).edges
    assert {edge: found[edge].match for edge in Edge} == expected
    assert all(why in finding.why for finding in found.values() if finding.match is not Match.EXACT)


def test_a_second_result_without_a_call_is_written_as_behind_one():
    """The R1 template of vLLM opens a section of results for each turn with calls, and never for
    another one.
    """
    turn = "{% if m.tool_calls %}{% set ns.n = 0 %}{% endif %}"
    tool = TOOL.replace("{{ m", "{{ 'Results:\n' if ns.n == 1 }}{{ m")
    plain = chatml(tool=ONE_MORE + tool)
    template = COUNT + plain.replace(
        "{%- if m.role == 'assistant' %}", "{%- if m.role == 'assistant' %}" + turn
    )
    tokenizer = tokenizer_with("sections", template, DEEPSEEK)
    assert check(tokenizer, TOOLS).edges == dict.fromkeys(Edge, Finding(Match.EXACT))
    renderer = checked_renderer(tokenizer, TOOLS)
    unread = {"role": "assistant", "content": "Trying."}
    first, second = (
        {"role": "tool", "tool_call_id": f"call_{n}", "content": "Error: bad."} for n in range(2)
    )
    opening = Conversations(TOOLS).opening
    full = tokenizer.encode(renderer.prompt([*opening, unread, first, unread, second], TOOLS))
    bridge = renderer.bridge(unread, [second])
    assert full[-len(bridge) :] == bridge and tokenizer.decode(bridge).count("Results:") == 1


def test_a_template_that_moves_the_tools_to_the_last_user_rewrites_replies(real: RealTemplates):
    assert check(real.tokenizer("mistral-nemo"), TOOLS).edges[Edge.REPLY] == Finding(
        Match.REWRITE, MOVED
    )


def test_a_template_that_writes_a_later_result_otherwise_than_the_first_rewrites_it():
    found = check(ALL_HABITS["deepseek-v3"].tokenizer("deepseek-v3"), TOOLS).edges
    assert found[Edge.CALL] == Finding(Match.EXACT)
    assert found[Edge.SECOND_CALL] == Finding(Match.REWRITE, UNLIKE_FIRST)


def test_neighbouring_calls_differ_and_turns_reason_behind_users_and_results():
    conversations = Conversations(TOOLS)
    exchange = conversations.after(conversations.opening, Edge.CALLS, "")
    calls = exchange.turn["tool_calls"]
    for one, other in pairwise(calls):
        assert one["id"] != other["id"] and one["function"]["name"] != other["function"]["name"]
        assert one["function"]["arguments"] != other["function"]["arguments"]
    assert [reply["tool_call_id"] for reply in exchange.replies] == [call["id"] for call in calls]
    before = {
        exchange.history[-1]["role"] for exchange in conversations.short(Edge.REASONED_REPLY, "key")
    }
    assert before == {"user", "tool"}


def test_a_line_break_on_both_sides_of_the_header_is_the_same_text_in_other_ids():
    """Qwen3.5's header opens reasoning with a line break, and a turn without any begins with
    another one.
    """
    turn = TURN.replace(
        "{{ m.content }}", "<think>\n{{ m.reasoning_content }}\n</think>\n\n{{ m.content }}"
    )
    template = chatml(turn=turn, header=HEADER.replace("{% endif %}", "<think>\n{% endif %}"))
    tokenizer = tokenizer_with("opens reasoning", template, THINK)
    assert len(tokenizer.encode("\n\n")) == 1
    found = check(tokenizer, TOOLS).edges
    assert {edge: found[edge].match for edge in Edge} == (
        EXACT | same_text(*(set(Edge) - {Edge.OPEN, *REASONED_EDGES}))
    )
    assert found[Edge.REPLY] == Finding(Match.SAME_TEXT, OTHER_IDS)


def test_a_call_that_the_template_leaves_out_is_found():
    first_only = TURN.replace("m.tool_calls or []", "(m.tool_calls or [])[:1]")
    assert check(tokenizer_with("first", chatml(turn=first_only)), TOOLS).edges[
        Edge.CALLS
    ] == Finding(Match.REWRITE, LEFT_OUT)


def test_reasoning_that_is_left_out_right_behind_a_user_is_found():
    """Some templates keep reasoning of turns that tools answer, and leave out that of a reply to a
    user.
    """
    own = (
        "{{ m.content.split('</think>')[-1] if loop.previtem.role == 'user' and not "
        "m.tool_calls else m.content }}"
    )
    found = check(
        tokenizer_with("behind users", chatml(turn=TURN.replace("{{ m.content }}", own))), TOOLS
    ).edges
    assert {edge: one.match for edge, one in found.items()} == EXACT | rewritten(
        Edge.REASONED_REPLY
    )
