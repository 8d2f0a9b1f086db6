"""Our reader of gpt-oss' turns against OpenAI's own, openai-harmony: the same, or a listed
difference.

What that package reads was recorded with its version 0.0.8
(`parse_messages_from_completion_tokens`, the stop token put behind each turn): it needs the
vocabulary o200k_base, which it fetches from the network unless the folder in
TIKTOKEN_ENCODINGS_BASE holds it, so a test cannot call it everywhere.
"""

import json
from typing import Any

import pytest

from rollq_worker.toolcalls import PARSERS
from tests.rollq_worker.toolcalls.turns.token_formats import HARMONY_CALL
from tests.rollq_worker.toolcalls.turns.turn import TOOLS

BAD_JSON = "harmony does not look into arguments"
ROLE = "harmony takes messages of other roles for the assistant's"
CHANNEL = "harmony takes a message without a known channel, and fails without a header"
RECIPIENT = "harmony leaves it to the caller which recipients there are"
ENDED = "harmony wants a message to follow <|end|>"
HEADER = "harmony takes what it does not know in a header for a recipient"

Read = tuple[list[tuple[str, str]], str, str]
SAYS_HI = [("f", '{"s": "hi"}')]
TURNS: list[tuple[str, Read | None, str]] = [
    # the turn; calls, content and reasoning as harmony reads them, None: it fails; how we differ.
    # ?? stands in front of a recipient that is no function
    (HARMONY_CALL, (SAYS_HI, "", ""), ""),
    ("<|channel|>final<|message|>Hello.", ([], "Hello.", ""), ""),
    (
        '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"s": hi}',
        ([("f", '{"s": hi}')], "", ""),
        BAD_JSON,
    ),
    (
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant "
        'to=functions.f<|channel|>commentary <|constrain|>json<|message|>{"s": "hi"}',
        (SAYS_HI, "", "hm"),
        "",
    ),
    (
        "<|channel|>commentary to=functions.f<|constrain|>json<|message|>{}",
        ([("f", "{}")], "", ""),
        "",
    ),
    (
        '<|channel|>commentary to=functions.f json<|message|>{"n": 1}',
        ([("f", '{"n": 1}')], "", ""),
        "",
    ),
    (
        '<|channel|>analysis to=functions.f code<|message|>{"n": 1}',
        ([("f", '{"n": 1}')], "", ""),
        "",
    ),
    (
        "<|channel|>analysis to=python code<|message|>print(1)",
        ([("??python", "print(1)")], "", ""),
        RECIPIENT,
    ),
    (
        "<|channel|>commentary<|message|>I will "
        "look.<|end|><|start|>assistant<|channel|>commentary to=functions.f "
        "<|constrain|>json<|message|>{}",
        ([("f", "{}")], "I will look.", ""),
        "",
    ),
    ("<|channel|>final<|message|>Hello\n\nthere", ([], "Hello\n\nthere", ""), ""),
    (
        '<|channel|>final <|constrain|>json<|message|>{"a": 1}',
        ([("??<|constrain|>json", '{"a": 1}')], "", ""),
        HEADER,
    ),
    ("<|channel|>final<|message|>", ([], "", ""), ""),
    ("<|message|>no channel", ([], "no channel", ""), CHANNEL),
    ("just text", None, CHANNEL),
    ("<|channel|>other<|message|>hi", ([], "hi", ""), CHANNEL),
    ("<|channel|>analysis<|message|>hm<|end|><|start|>user<|message|>me", ([], "me", "hm"), ROLE),
    ("<|channel|>analysis<|message|>hm<|end|>", None, ENDED),
    ("<|channel|>analysis<|message|>hm", ([], "", "hm"), ""),
    (
        "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>b<|end|><|start|>assistant<|channel|>final<|message|>c",
        ([], "c", "a\n\nb"),
        "",
    ),
    (" to=functions.f<|channel|>commentary<|message|>{}", ([("f", "{}")], "", ""), ""),
    (
        "<|channel|>commentary to=assistant<|message|>{}",
        ([("??assistant", "{}")], "", ""),
        RECIPIENT,
    ),
    ("<|channel|>commentary to=functions.<|message|>{}", ([("", "{}")], "", ""), RECIPIENT),
    (
        "<|channel|>final<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b",
        ([], "ab", ""),
        "",
    ),
    (
        "<|start|>assistant<|channel|>final<|message|>b",
        ([("??<|start|>assistant", "b")], "", ""),
        HEADER,
    ),
    (
        '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"n": '
        "1}<|call|><|start|>assistant<|channel|>final<|message|>x",
        ([("f", '{"n": 1}')], "x", ""),
        "",
    ),
]


@pytest.mark.parametrize(("text", "theirs", "differs"), TURNS, ids=range(len(TURNS)))
def test_harmony_reads_the_same_or_differs_as_listed(text: str, theirs: Read | None, differs: str):
    read = PARSERS["gpt_oss"](text, False, TOOLS)
    ours = (
        [(call.name, dict(call.arguments)) for call in read.calls],
        read.content,
        read.reasoning,
    )
    same = theirs is not None and not read.errors and ours == (decoded(theirs[0]), *theirs[1:])
    assert same == (not differs), (
        f"ours {ours} {list(read.errors)}, harmony's {theirs}; listed: {differs!r}"
    )


HEADERS = [
    # what is taken off in front of <|message|>
    "<|channel|>final",
    "<|start|>assistant<|channel|>final",
    "assistant<|channel|>commentary",
    "<|channel|> commentary to=functions.f <|constrain|>json",
    "<|channel|>commentary to=functions.f<|constrain|>json ",
    "<|start|>assistant to=functions.f<|channel|>commentary <|constrain|> json",
    "to=functions.f<|channel|>analysis code",
    "<|channel|>final <|constrain|>application/json",
]
MALFORMED = [
    # a header, and what is said of it
    ("<|channel|>final The order W1 ships today.", "cannot be read"),
    ("<|channel|>final<|constrain|>hello user", "cannot be read"),
    ('<|channel|>commentary to=functions.f {"a": 1}', "cannot be read"),
    ("<|channel|>commentary to=functions.f to=functions.g", "cannot be read"),
    ("<|channel|>analysis<|channel|>final", "cannot be read"),
    ("<|channel|>commentary to=functions.f <|constrain|>", "cannot be read"),
    ("<|start|>assistant!<|channel|>final", "another role"),
    ("Hello <|channel|>final", "another role"),
    ("<|channel|>finally", "no channel"),
    ("to=functions.f", "no channel"),
    ("x" * 300 + "<|channel|>final", "another role"),
    ("<|channel|>final " + "x" * 300, "cannot be read"),
]


@pytest.mark.parametrize("header", HEADERS)
def test_a_well_formed_header_is_taken_off(header: str):
    read = PARSERS["gpt_oss"](f"{header}<|message|>{{}}", False, TOOLS)
    assert not read.errors and bool(read.calls) == ("to=" in header) != (read.content == "{}")


@pytest.mark.parametrize(
    ("header", "says"), MALFORMED, ids=[header[:60] for header, _ in MALFORMED]
)
def test_a_malformed_header_is_an_error_and_kept(header: str, says: str):
    good = "<|end|><|start|>assistant<|channel|>final<|message|>Bye."
    read = PARSERS["gpt_oss"](f"{header}<|message|>{{}}{good}", False, TOOLS)
    assert len(read.errors) == 1 and says in read.errors[0] and len(read.errors[0]) < 300
    assert (read.content, list(read.calls), read.reasoning) == (
        f"{header}<|message|>{{}}Bye.",
        [],
        "",
    )


@pytest.mark.parametrize("before", ["", "<|channel|>analysis<|message|>hm<|end|>"])
@pytest.mark.parametrize("after", ["", "<|return|>", "<|end|>\n", "<|end|>\n<|return|>"])
def test_white_space_around_messages_belongs_to_the_format(before: str, after: str):
    final = "<|start|>assistant<|channel|>final<|message|>Hello."
    read = PARSERS["gpt_oss"](f"{before}\n{final}{after}\n", False, TOOLS)
    assert (read.content, list(read.errors)) == ("Hello.", [])


def test_a_turn_of_white_space_says_nothing():
    read = PARSERS["gpt_oss"]("\n", False, TOOLS)
    assert (read.content, read.errors, read.calls) == ("", (), ())


def test_a_message_that_another_token_cuts_off_does_not_spoil_the_next():
    read = PARSERS["gpt_oss"](
        f"<|channel|>final Hello.<|end|><|start|>assistant{HARMONY_CALL}", False, TOOLS
    )
    assert (len(read.errors), len(read.calls), read.content) == (
        1,
        1,
        "<|channel|>final Hello.<|end|>",
    )


def decoded(calls: list[tuple[str, str]]) -> list[tuple[str, Any]]:
    try:
        return [(name, json.loads(arguments)) for name, arguments in calls]
    except ValueError:
        return []
