"""Every main model family is recognised by its template, and every edge of the template
is classed.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

from array import array
from typing import Any

import pytest

from rollq.errors import JobFailure
from rollq_worker.tokens.family_detection import family_of
from rollq_worker.tokens.selfcheck.bridge_comparison import MOVED, ONE_CALL, UNLIKE_FIRST, Match
from rollq_worker.tokens.selfcheck.check import check, checked_renderer
from rollq_worker.tokens.selfcheck.conversations import Conversations, Edge
from rollq_worker.toolcalls import PARSERS
from tests.rollq_worker.tokens.expected_edges import (
    ASKED_EDGES,
    CALL_EDGES,
    EXACT,
    REASONED_EDGES,
    REPLY_EDGES,
    RESULT_EDGES,
    rewritten,
    same_text,
    unsupported,
)
from tests.rollq_worker.tokens.family_habits import ALL_HABITS
from tests.rollq_worker.tokens.messages import OPENING, REPLY, TOOLS, USER, called, result
from tests.rollq_worker.tokens.models import NAMES, PHI, RealTemplates, tokenizer_with
from tests.rollq_worker.tokens.template_habits import REFUSED

ALL_TURNS = (*CALL_EDGES, *REPLY_EDGES, *RESULT_EDGES, *ASKED_EDGES)
REAL = {
    # name: family, and the class of every edge
    # Reasoning, which it knows in tags only, is left out right behind a user's message.
    "deepseek-v3.1": ("deepseek-v3.1", EXACT | rewritten(Edge.REASONED_REPLY)),
    "gemma-4": ("gemma4", EXACT | rewritten(*ALL_TURNS, Edge.REASONED_CALL, Edge.REASONED_REPLY)),
    "glm-4.6": ("glm", EXACT | rewritten(Edge.REASONED_REPLY)),
    "glm-4.7": ("glm", EXACT | rewritten(*ALL_TURNS)),
    "gpt-oss": (
        "gpt-oss",
        EXACT | rewritten(*REPLY_EDGES, Edge.ASKED, Edge.REASONED_REPLY, Edge.CALLS),
    ),
    "granite-4.0": ("other (hermes)", EXACT),
    # A line break behind the last result comes and goes; reasoning and words beside a call are left
    # out.
    "hermes-3": (
        "chatml-hermes",
        EXACT
        | rewritten(Edge.SECOND_CALL, Edge.WORDS_AND_CALL, Edge.REPLY_AFTER_CALL, *REASONED_EDGES),
    ),
    "llama-3.1": (
        "llama3",
        EXACT
        | rewritten(Edge.WORDS_AND_CALL, Edge.REASONED_CALL, Edge.REASONED_SECOND_CALL)
        | unsupported(Edge.CALLS),
    ),
    "minimax-m2": ("minimax-m2", EXACT | rewritten(*ALL_TURNS, Edge.REASONED_REPLY)),
    "mistral-nemo": (
        "mistral",
        EXACT
        | rewritten(
            Edge.CALL, Edge.CALLS, Edge.WORDS_AND_CALL, *REPLY_EDGES, *RESULT_EDGES, *REASONED_EDGES
        )
        | unsupported(*ASKED_EDGES),
    ),
    "nemotron-3": ("chatml-coder", EXACT | rewritten(*ALL_TURNS)),
    "qwen2.5": ("chatml-hermes", EXACT),
    # An empty think block stands on the last turn only; a user's message drops old reasoning.
    "qwen3": ("chatml-hermes", EXACT | rewritten(*ALL_TURNS, Edge.REASONED_REPLY)),
    "qwen3-coder": ("chatml-coder", EXACT),
    # The header ends with a line break, and a turn without reasoning begins with another one.
    "qwen3.5": (
        "chatml-coder",
        EXACT
        | same_text(*CALL_EDGES, *RESULT_EDGES)
        | rewritten(*REPLY_EDGES, *ASKED_EDGES, Edge.REASONED_REPLY),
    ),
    "seed-oss": ("other (seed)", EXACT),
}
ASKED_TO_KEEP = {
    "glm-4.7": {"clear_thinking": False},
    "nemotron-3": {"truncate_history_thinking": False},
}


def edges(tokenizer: Any, rerender: bool = False) -> dict[Edge, Match]:
    return {edge: found.match for edge, found in check(tokenizer, TOOLS, rerender).edges.items()}


def test_every_real_template_is_listed(real: RealTemplates):
    assert real.names == list(REAL) == NAMES


@pytest.mark.parametrize("name", REAL)
def test_a_real_template_has_its_family_and_edges(real: RealTemplates, name: str):
    tokenizer = real.tokenizer(name)
    assert (check(tokenizer, TOOLS).family.name, edges(tokenizer)) == REAL[name]


@pytest.mark.parametrize("name", REAL)
def test_templates_are_asked_to_keep_old_reasoning_where_that_helps(real: RealTemplates, name: str):
    tokenizer = real.tokenizer(name)
    assert dict(check(tokenizer, TOOLS).family.template_kwargs) == ASKED_TO_KEEP.get(name, {})
    # Not where the template's own history is wanted.
    assert not check(tokenizer, TOOLS, rerender=True).family.template_kwargs
    if name in ASKED_TO_KEEP:
        assert edges(tokenizer, rerender=True) == REAL[name][1] | rewritten(Edge.REASONED_REPLY)
    said = [*OPENING, called() | {"reasoning_content": "hm"}, result("x"), REPLY, USER]
    kept, own = (
        checked_renderer(tokenizer, TOOLS),
        checked_renderer(tokenizer, TOOLS, rerender=True),
    )
    assert kept.open(OPENING, TOOLS) == own.open(OPENING, TOOLS)
    assert (kept.open(said, TOOLS) != own.open(said, TOOLS)) is (name in ASKED_TO_KEEP)


def test_bridges_are_what_the_templates_write_at_the_end(real: RealTemplates):
    """Each bridge against the end of the full render, without the self-check."""
    exact, moved, unlike_first, one_call, other = 0, 0, [], [], []
    for name in real.names:
        tokenizer = real.tokenizer(name)
        found, renderer = check(tokenizer, TOOLS), checked_renderer(tokenizer, TOOLS)
        conversations = Conversations(
            TOOLS, renderer.complaint_role(None), PARSERS[found.family.parser].think
        )
        for edge in Edge:
            if edge is Edge.OPEN or found.edges[edge].match is Match.UNSUPPORTED:
                continue
            for exchange in (
                next(conversations.short(edge, form)) for form in conversations.forms(edge)
            ):
                bridge = renderer.bridge(exchange.turn, exchange.replies)
                try:
                    full = tokenizer.encode(renderer.prompt(exchange.messages, TOOLS))
                except JobFailure:
                    continue
                if full[-len(bridge) :] == bridge and renderer.is_end(full[-len(bridge) - 1]):
                    exact += 1
                elif found.edges[edge].why == MOVED:
                    moved += 1
                elif found.edges[edge].why == UNLIKE_FIRST:
                    unlike_first.append((name, edge))
                elif found.edges[edge].why == ONE_CALL:
                    one_call.append((name, edge))
                elif edge is not Edge.MALFORMED:  # a template may leave out results without a call
                    other.append((name, edge))
                break
    assert exact >= 200 and not other
    # It writes the words behind the result, which came later.
    assert unlike_first == [("gemma-4", Edge.WORDS_AND_CALL)]
    assert one_call == [
        ("gpt-oss", Edge.CALLS)
    ]  # its bridge has both results, with no call between them
    assert moved == 5 - 1  # Mistral's users: the tools and the system prompt move to the last one


@pytest.mark.parametrize("name", ALL_HABITS)
def test_habits_of_templates(name: str):
    assert edges(ALL_HABITS[name].tokenizer(name)) == ALL_HABITS[name].edges


@pytest.mark.parametrize("name", REFUSED)
def test_templates_that_are_refused_with_a_remedy(name: str):
    template, why = REFUSED[name]
    with pytest.raises(JobFailure, match=why) as raised:
        checked_renderer(tokenizer_with(name, template, PHI), TOOLS)
    assert name in str(raised.value) and (
        "use a" in str(raised.value) or "correct the template" in str(raised.value)
    )


def test_calls_in_an_unknown_form_are_not_written_as_text():
    """Gemma's record writes calls as text, for templates that leave them out. This one does not."""
    template = (
        "{% for m in messages %}<start_of_turn>{{ m.role }}\n{{ m.content }}"
        "{% for c in m.tool_calls or [] %}<<{{ c.function.name }}: "
        "{{ c.function.arguments | tojson }}>>{% endfor %}<end_of_turn>\n{% endfor %}"
        "{% if add_generation_prompt %}<start_of_turn>assistant\n{% endif %}"
    )
    tokens = ["<start_of_turn>", "<end_of_turn>", "<eos>"]
    with pytest.raises(JobFailure, match="in no format that rollq reads"):
        family_of(tokenizer_with("gemma-like", template, tokens))


def test_rendering_again_replaces_an_unsupported_edge():
    tokenizer = ALL_HABITS["shows the first result otherwise"].tokenizer("first")
    with pytest.raises(JobFailure, match="second call -> tool"):
        checked_renderer(tokenizer, TOOLS)
    renderer = checked_renderer(tokenizer, TOOLS, rerender=True)
    history = [*OPENING, called(), result("one"), called("call_1")]
    ids = renderer.open([*history, result("two", "call_1")], TOOLS)
    assert ids == tokenizer.encode(renderer.prompt([*history, result("two", "call_1")], TOOLS))


@pytest.mark.parametrize("name", REAL)
@pytest.mark.parametrize(
    "unread",
    [
        {"role": "assistant", "content": "Well. <tool_call>{'name'"},
        {"role": "assistant", "content": "", "reasoning_content": "A thought without its end"},
        {"role": "assistant", "content": ""},
    ],
    ids=["malformed call", "open thought", "nothing"],
)
def test_a_turn_that_could_not_be_read_is_rendered_again_with_its_complaint(
    real: RealTemplates, name: str, unread: dict[str, Any]
):
    renderer = checked_renderer(real.tokenizer(name), TOOLS, rerender=True)
    complaint = {"role": renderer.complaint_role(None), "content": "Error: complaintword."}
    if complaint["role"] == "tool":
        complaint["tool_call_id"] = "call_0"
    history = [*OPENING, unread, complaint]
    for more in ([], [called("call_1"), result("resultword", "call_1")], [REPLY, USER]):
        messages = [*history, *more]
        turns = [n for n, message in enumerate(messages) if message["role"] == "assistant"]
        sampled = array("I", [renderer.stop_ids[0]])
        renderer.rewritten(messages[: turns[-1] + 1], sampled, messages[turns[-1] + 1 :], TOOLS)
        text = renderer.tokenizer.decode(renderer.open(messages, TOOLS))
        assert "complaintword" in text and ("resultword" in text) is any(
            "resultword" in str(m) for m in more
        )
    assert check(real.tokenizer(name), TOOLS, rerender=True).edges[Edge.MALFORMED].renders


def test_an_edge_that_a_job_needs_is_named(real: RealTemplates):
    checked_renderer(real.tokenizer("llama-3.1"), TOOLS)
    with pytest.raises(JobFailure, match=r"'calls -> tools': .*single tool-calls"):
        checked_renderer(real.tokenizer("llama-3.1"), TOOLS, Edge.CALLS)
