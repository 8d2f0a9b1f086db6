"""Every format of calls: what is read, what is refused in words, and that no text is lost."""

import pytest

from rollq.env import Action
from rollq_worker.toolcalls import PARSERS
from rollq_worker.toolcalls.format_tests import reader_tests
from tests.rollq_worker.toolcalls.turns import TOOLS, TURNS, Turn
from tests.rollq_worker.toolcalls.turns.json_formats import HERMES_CALL
from tests.rollq_worker.toolcalls.turns.markup_formats import CODER_CALL
from tests.rollq_worker.toolcalls.turns.pair_formats import GLM_CALL
from tests.rollq_worker.toolcalls.turns.token_formats import KIMI_CALL
from tests.rollq_worker.toolcalls.written import WRITE


@pytest.mark.parametrize("turn", TURNS, ids=[turn.id for turn in TURNS])
def test_a_turn_is_read_as_listed(turn: Turn):
    thinking = None if "</think>" in turn.text else False
    read = PARSERS[turn.format](turn.text, thinking, TOOLS)
    assert list(read.calls) == turn.calls
    assert read.reasoning == turn.reasoning
    assert [call.unclosed for call in read.calls][-1:] == ([turn.unclosed] if turn.calls else [])
    assert turn.error in " ".join(read.errors) and bool(turn.error) == bool(read.errors)
    assert len(read.call_spans) == len(read.calls) and len(read.error_spans) == len(read.errors)
    if turn.content or turn.calls or not turn.error:
        assert read.content == turn.content
    else:  # a broken call is kept as it is
        assert read.content and read.content in turn.text
    for error in read.errors:
        assert error.endswith(".") and len(error) < 300


ROWS_OF_MESSAGES = {"functionary_v32", "gpt_oss", "inkling", "muse"}
WHOLE_TURNS = {"llama3", "pythonic"}
"""Formats that read a call only where a turn, or a line of it, begins."""


@pytest.mark.parametrize("name", sorted(set(WRITE) - ROWS_OF_MESSAGES - WHOLE_TURNS))
def test_calls_stand_among_reasoning_and_words(name: str):
    calls = [WRITE[name]("f", {"n": 3}), WRITE[name]("unknown", {})]
    begin, end = PARSERS[name].think
    read = PARSERS[name](f"{begin}hm{end}Well. {calls[0]} And {calls[1]} ok", False, TOOLS)
    assert (list(read.calls), list(read.errors)) == ([Action("f", {"n": 3}), Action("unknown", {})], [])
    assert (read.content.split(), read.reasoning) == (["Well.", "And", "ok"], "hm")
    assert PARSERS[name]("Hello.").content == "Hello."


def test_spans_show_where_calls_and_errors_are():
    for name, call in {"hermes": HERMES_CALL, "qwen3_coder": CODER_CALL, "glm45": GLM_CALL}.items():
        text = f"One. {call} Two. {call}{call[:-3]}"
        read = PARSERS[name](text, False, TOOLS)
        assert [text[start:end] for start, end in read.call_spans] == [call, call]
        (start, end), *_ = read.error_spans
        assert text[start:end] == call[:-3]


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


for _name in sorted(PARSERS):
    globals()[f"Test_{_name}"] = reader_tests(PARSERS[_name], WRITE[_name])
