"""Every format of calls: what is read, what is refused in words, and that no text is lost."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollq_worker.protocols import Action
from rollq_worker.toolcalls import PARSERS
from rollq_worker.toolcalls.pieces import Kind
from tests.rollq_worker.toolcalls.turns import TOOLS, TURNS, Turn
from tests.rollq_worker.toolcalls.turns.json_formats import HERMES_CALL, LLAMA_CALL
from tests.rollq_worker.toolcalls.turns.markup_formats import CODER_CALL, GLM_CALL, MINIMAX_CALL, dsml
from tests.rollq_worker.toolcalls.turns.token_formats import DEEPSEEK_CALL, GEMMA_CALL, HARMONY_CALL, KIMI_CALL

NAMES = sorted(PARSERS)


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


def test_seed_has_tags_of_its_own():
    call = CODER_CALL.replace("tool_call", "seed:tool_call").replace(">\nhi\n<", ">hi<")
    read = PARSERS["seed"](f"<seed:think>hm</seed:think>{call}", False, TOOLS)
    assert (list(read.calls), read.reasoning, read.content) == ([Action("f", {"s": "hi"})], "hm", "")
    assert PARSERS["seed"](CODER_CALL, False, TOOLS).errors  # the block's tags are another model's


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


SAMPLE_CALLS = (CODER_CALL, DEEPSEEK_CALL, GEMMA_CALL, GLM_CALL, HARMONY_CALL, KIMI_CALL, LLAMA_CALL, MINIMAX_CALL)
TAGS = """
    <tool_call> </tool_call> <function=f> </function> <parameter=s> </parameter> <arg_key> </arg_key> <arg_value>
    </arg_value> <think> </think> <seed:tool_call> </seed:tool_call> <minimax:tool_call> </minimax:tool_call> </invoke>
    <｜DSML｜function_calls> </｜DSML｜function_calls> </｜DSML｜invoke> </｜DSML｜parameter>
    <|python_tag|> [TOOL_CALLS] [ARGS] [CALL_ID] [THINK] [/THINK]
    <｜tool▁calls▁begin｜> <｜tool▁calls▁end｜> <｜tool▁call▁begin｜> <｜tool▁sep｜> <｜tool▁call▁end｜>
    <|tool_calls_section_begin|> <|tool_calls_section_end|> <|tool_call_begin|> <|tool_call_argument_begin|>
    <|tool_call_end|> <|channel|> <|message|> <|start|> <|end|> <|call|> <|tool_call> <tool_call|> <|channel>thought
    <channel|> <|"|>
""".split()
OPENING_TAGS = (
    '<｜DSML｜invoke name="f">',
    '<｜DSML｜parameter name="s" string="true">',
    '<｜DSML｜parameter name="n" string="false">',
    '<invoke name="f">',
    '<parameter name="s">',
)
WORDS = """
    f functions.f:0 final analysis to=functions.f call:f{ { } [ ] " : , 1 1e999 null \ufffd NaN ```json ` '
""".split()
PARTS = (*SAMPLE_CALLS, *TAGS, *OPENING_TAGS, *WORDS, "\n", " ")
SOUP = st.lists(st.one_of(st.sampled_from(PARTS), st.text(max_size=4)), max_size=20).map("".join)


@pytest.mark.parametrize("name", NAMES)
@given(text=SOUP, inside=st.sampled_from([False, True, None]))
def test_no_turn_raises_and_no_text_is_lost(name: str, text: str, inside: bool | None):
    read = PARSERS[name](text, inside, TOOLS)
    assert len(read.call_spans) == len(read.calls) and len(read.error_spans) == len(read.errors)
    for start, end in (*read.call_spans, *read.error_spans):
        assert 0 <= start <= end <= len(text)
    for call in read.calls:
        assert call.name
        json.dumps(dict(call.arguments), allow_nan=False).encode()
    # Whatever is neither a call, nor reasoning, nor a control token is content.
    kept = read.content + read.reasoning + "".join(text[start:end] for start, end in read.call_spans)
    for word in ("`", "'", "\ufffd"):
        assert kept.count(word) >= text.count(word)


@pytest.mark.parametrize("name", NAMES)
@given(text=SOUP, inside=st.sampled_from([False, True, None]))
def test_pieces_tile_the_turn(name: str, text: str, inside: bool | None):
    pieces = PARSERS[name].pieces(text, inside, TOOLS)
    assert "".join(text[piece.start : piece.end] for piece in pieces) == text
    assert [piece.start for piece in pieces] == [0, *(piece.end for piece in pieces)][: len(pieces)]
    for piece in pieces:
        assert bool(piece.calls) == (piece.kind is Kind.CALL)
        assert bool(piece.errors) >= (piece.kind is Kind.BROKEN)
    spoken = [text[piece.start : piece.end] for piece in pieces if piece.kind in (Kind.TEXT, Kind.BROKEN)]
    assert PARSERS[name](text, inside, TOOLS).content == "".join(spoken).strip()


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="<>|[]{}\"'\\\r\n\t "), min_size=1, max_size=12)
VALUES = st.fixed_dictionaries(
    {},
    optional={
        "s": TEXTS,
        "n": st.integers(-(2**63), 2**63 - 1),
        "x": st.floats(allow_nan=False, allow_infinity=False, width=32).filter(lambda x: x != int(x)),
        "b": st.booleans(),
        "o": st.dictionaries(TEXTS, st.one_of(TEXTS, st.integers(0, 9), st.none()), max_size=3),
        "l": st.lists(st.one_of(TEXTS, st.booleans()), max_size=3),
    },
)


def written(name: str, arguments: dict[str, Any]) -> str:
    """A call of `f` in a format."""
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in arguments.items()}
    as_json = json.dumps(arguments, ensure_ascii=False)
    if name in ("qwen3_coder", "seed"):
        inside = "".join(f"<parameter={key}>\n{text}\n</parameter>\n" for key, text in texts.items())
        tag = "tool_call" if name == "qwen3_coder" else "seed:tool_call"
        return f"<{tag}>\n<function=f>\n{inside}</function>\n</{tag}>"
    if name == "glm45":
        inside = "".join(f"<arg_key>{key}</arg_key>\n<arg_value>{text}</arg_value>\n" for key, text in texts.items())
        return f"<tool_call>f\n{inside}</tool_call>"
    if name == "minimax_m2":
        inside = "".join(f'<parameter name="{key}">{text}</parameter>\n' for key, text in texts.items())
        return f'<minimax:tool_call>\n<invoke name="f">\n{inside}</invoke>\n</minimax:tool_call>'
    if name == "deepseek_v32":
        kinds = {key: json.dumps(isinstance(value, str)) for key, value in arguments.items()}
        return dsml(
            *(f'<DSML:parameter name="{key}" string="{kinds[key]}">{texts[key]}</DSML:parameter>' for key in texts)
        )
    if name == "gemma4":
        return f"<|tool_call>call:f{gemma_value(arguments)}<tool_call|>"
    return {
        "hermes": f'<tool_call>\n{{"name": "f", "arguments": {as_json}}}\n</tool_call>',
        "llama3": f'{{"name": "f", "parameters": {as_json}}}',
        "mistral": f"[TOOL_CALLS]f[ARGS]{as_json}",
        "cohere": f'<|START_ACTION|>[{{"tool_call_id": "0", "tool_name": "f", "parameters": {as_json}}}]<|END_ACTION|>',
        "granite3": f'<|tool_call|>[{{"name": "f", "arguments": {as_json}}}]',
        "nemotron_v2": f'<TOOLCALL>[{{"name": "f", "arguments": {as_json}}}]</TOOLCALL>',
        "apertus": f'<|tools_prefix|>[{{"f": {as_json}}}]<|tools_suffix|>',
        "deepseek_v31": DEEPSEEK_CALL.replace('{"s": "hi"}', as_json),
        "kimi_k2": KIMI_CALL.replace('{"s": "hi"}', as_json),
        "gpt_oss": HARMONY_CALL.replace('{"s": "hi"}', as_json),
    }[name]


def gemma_value(value: Any) -> str:
    if isinstance(value, str):
        return f'<|"|>{value}<|"|>'
    if isinstance(value, dict):
        return "{" + ",".join(f'<|"|>{key}<|"|>:{gemma_value(item)}' for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(gemma_value, value)) + "]"
    return json.dumps(value)


@pytest.mark.parametrize("name", NAMES)
@given(arguments=VALUES)
def test_every_well_formed_call_is_read_as_it_is(name: str, arguments: dict[str, Any]):
    read = PARSERS[name](written(name, arguments), False, TOOLS)
    assert list(read.calls) == [Action("f", arguments)] and not read.errors and not read.content


@pytest.mark.parametrize("name", NAMES)
@given(arguments=VALUES, at=st.integers(1, 400))
def test_a_call_cut_anywhere_is_never_another_call(name: str, arguments: dict[str, Any], at: int):
    """At the token limit: a part of a call is an error, text, or the whole call but for its end."""
    whole = written(name, arguments)
    read = PARSERS[name](whole[: at % len(whole)], False, TOOLS)
    assert list(read.calls) in ([], [Action("f", arguments)])
