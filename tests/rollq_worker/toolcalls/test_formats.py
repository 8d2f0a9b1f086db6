"""Every format of calls: what is read, what is refused in words, and that no text is lost."""

from typing import Any

import pytest

from rollq.env import Action
from rollq.job import Json
from rollq_worker.toolcalls import PARSERS, readers_for
from rollq_worker.toolcalls.format_tests import reader_tests
from tests.rollq_worker.toolcalls.turns.every_format import TURNS
from tests.rollq_worker.toolcalls.turns.markup_formats import CODER_CALL
from tests.rollq_worker.toolcalls.turns.token_formats import KIMI_CALL
from tests.rollq_worker.toolcalls.turns.turn import TOOLS, Turn
from tests.rollq_worker.toolcalls.written import WRITE, hunyuan


@pytest.mark.parametrize("turn", TURNS, ids=[turn.id for turn in TURNS])
def test_a_turn_is_read_as_listed(turn: Turn):
    thinking = None if "</think>" in turn.text else False
    read = PARSERS[turn.format](turn.text, thinking, TOOLS)
    assert list(read.calls) == turn.calls
    assert read.reasoning == turn.reasoning
    assert [call.unclosed for call in read.calls][-1:] == ([turn.unclosed] if turn.calls else [])
    assert turn.error in " ".join(read.errors) and bool(turn.error) == bool(read.errors)
    if turn.content or turn.calls or not turn.error:
        assert read.content == turn.content
    else:  # a broken call is kept as it is
        assert read.content and read.content in turn.text
    for error in read.errors:
        assert error.endswith(".") and len(error) < 300


ROWS_OF_MESSAGES = {"functionary_v32", "gpt_oss", "inkling", "muse"}
WHOLE_TURNS = {"llama3", "pythonic", "xlam"}
"""Formats that read a call only where a turn, or a line of it, begins."""


@pytest.mark.parametrize("name", sorted(set(WRITE) - ROWS_OF_MESSAGES - WHOLE_TURNS))
def test_calls_stand_among_reasoning_and_words(name: str):
    calls = [WRITE[name]("f", {"n": 3}), WRITE[name]("unknown", {})]
    begin, end = PARSERS[name].think
    read = PARSERS[name](f"{begin}hm{end}Well. {calls[0]} And {calls[1]} ok", False, TOOLS)
    assert (list(read.calls), list(read.errors)) == (
        [Action("f", {"n": 3}), Action("unknown", {})],
        [],
    )
    assert (read.content.split(), read.reasoning) == (["Well.", "And", "ok"], "hm")
    assert PARSERS[name]("Hello.").content == "Hello."


def test_two_lists_of_calls_on_lines_of_their_own():
    for between in ("\n", "\n  ", " \n\n\t"):
        read = PARSERS["pythonic"](f"[f(n=1)]{between}[g(n=2)]", False, TOOLS)
        assert ([call.name for call in read.calls], read.content, read.errors) == (
            ["f", "g"],
            "",
            (),
        )


def test_calls_keep_the_ids_that_the_model_gave():
    assert PARSERS["kimi_k2"](KIMI_CALL, False, TOOLS).call_ids == ("functions.f:0",)
    text = '[TOOL_CALLS] [{"name": "f", "id": "abc123def"}, {"name": "g"}]'
    assert PARSERS["mistral"](text, False, TOOLS).call_ids == ("abc123def", "")
    assert PARSERS["mistral"]("[TOOL_CALLS]f[CALL_ID]x[ARGS]{}", False, TOOLS).call_ids == ("x",)
    assert PARSERS["qwen3_coder"](CODER_CALL, False, TOOLS).call_ids == ()


@pytest.mark.parametrize(("id", "read"), [("null", ""), ('{"a": 1}', ""), ("3", "3")])
def test_an_id_is_a_text_or_a_number(id: str, read: str):
    cohere = f'<|START_ACTION|>[{{"tool_call_id": {id}, "tool_name": "f"}}]<|END_ACTION|>'
    mistral = f'[TOOL_CALLS][{{"name": "f", "id": {id}}}]'
    assert PARSERS["cohere"](cohere).call_ids == PARSERS["mistral"](mistral).call_ids == (read,)


@pytest.mark.parametrize("name", sorted(WRITE))
@pytest.mark.parametrize("key", ["first name", "user-id", "a.b", "$x", "ü", "x y  z"])
def test_a_key_need_not_be_one_word(name: str, key: str):
    text = WRITE[name]("f", {key: "a\n"})
    assert [call.arguments for call in PARSERS[name](text, False, TOOLS).calls] == [{key: "a\n"}]


@pytest.mark.parametrize("name", sorted(set(WRITE) & set(PARSERS)))
def test_an_error_repeats_only_the_beginning_of_a_long_name(name: str):
    long_name = "x" * 600
    for arguments in ({"k": 1}, {long_name: long_name}):
        turn = WRITE[name](long_name, arguments)
        broken = [turn[:end] for end in range(0, len(turn), 7)]
        broken += [f"{turn[:at]}#{turn[at:]}" for at in range(0, len(turn), 7)]
        for text in broken:
            errors = PARSERS[name](text, False, TOOLS).errors
            assert all(len(error) <= 300 for error in errors)


def test_an_error_names_the_innermost_of_nested_fields():
    schema: dict[str, Any] = {"type": "integer"}
    value: Json = "two"
    for _ in range(20):
        schema = {"type": "object", "properties": {"x" * 100: schema}}
        value = {"x" * 100: value}
    tool = {"function": {"name": "f", "parameters": {"properties": {"a": schema}}}}
    [error] = PARSERS["minimax_m3"](WRITE["minimax_m3"]("f", {"a": value}), False, [tool]).errors
    assert "must be of type integer, not 'two'" in error and len(error) <= 300


def test_every_format_has_a_writer() -> None:
    missing = sorted({*PARSERS} - {*WRITE})
    assert not missing, (
        f"add writers to WRITE in tests/rollq_worker/toolcalls/written.py: {missing}"
    )


for _name in sorted({*PARSERS} & {*WRITE}):
    globals()[f"Test_{_name}"] = reader_tests(PARSERS[_name], WRITE[_name])


HUNYUAN_4 = readers_for(["<tool_calls:6124c78e>", "<tool_calls>", "x"])["hunyuan4:6124c78e"]
TestHunyuan4 = reader_tests(HUNYUAN_4, hunyuan(":6124c78e"))


def test_the_mark_of_another_checkpoint_makes_no_call():
    text = hunyuan(":0a1b2c3d")("f", {"s": "hi"})
    read = HUNYUAN_4(text, False, TOOLS)
    assert (read.calls, read.errors, read.content) == ((), (), text)
