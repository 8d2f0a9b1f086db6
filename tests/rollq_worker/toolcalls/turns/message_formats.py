"""Turns of formats whose messages say what they are (Muse Glimmer, Inkling), and of MiniMax-M3's
nested markup.
"""

from rollq.env import Action
from tests.rollq_worker.toolcalls.turns.turn import (
    FRAMED,
    LENIENT,
    LOST,
    REASONING,
    TEXT,
    f,
    turns_of,
)

NAMED = "the name in front of a call stays in the text"
MARK = "]<]minimax[>["


def m3_tag(name: str, value: str) -> str:
    return f"{MARK}<{name}>{value}{MARK}</{name}>"


def m3_invoke(*values: str, name: str = "f") -> str:
    inside = "".join(f"{value}\n" for value in values)
    return f'{MARK}<invoke name="{name}">\n{inside}{MARK}</invoke>'


def m3_block(*invokes: str) -> str:
    return m3_tag("tool_call", "\n" + "".join(f"{invoke}\n" for invoke in invokes))


m3 = turns_of("minimax_m3")
M3_CALL = m3_block(m3_invoke(m3_tag("s", "hi")))
M3_TURNS = [
    m3("one call", M3_CALL, calls=[f(s="hi")]),
    m3("two functions", m3_block(m3_invoke(), m3_invoke(name="g")), calls=[f(), Action("g", {})]),
    m3(
        "nested values",
        m3_block(
            m3_invoke(
                m3_tag(
                    "o",
                    m3_tag("k", m3_tag("item", "1") + m3_tag("item", "null")) + m3_tag("a b", "x"),
                ),
                m3_tag("l", m3_tag("item", m3_tag("id", "7")) + m3_tag("item", "a")),
            )
        ),
        calls=[f(o={"k": [1, None], "a b": "x"}, l=[{"id": 7}, "a"])],
        sglang="a number of whose type the schema says nothing is text",
    ),
    m3(
        "empty list and object",
        m3_block(m3_invoke(m3_tag("o", ""), m3_tag("l", ""))),
        calls=[f(o={}, l=[])],
    ),
    m3(
        "tags for a text",
        m3_block(m3_invoke(m3_tag("s", m3_tag("a", "1")))),
        error="not an object",
        sglang=LENIENT,
    ),
    m3(
        "a key twice",
        m3_block(m3_invoke(m3_tag("s", "a"), m3_tag("s", "b"))),
        error="twice",
        sglang=LENIENT,
    ),
    m3("no function", m3_block(), error="holds no function", sglang=LOST),
    m3("half a call", M3_CALL[:-40], error="holds more than parameters", sglang=TEXT),
    m3(
        "an open parameter",
        M3_CALL.replace(f"{MARK}</s>", ""),
        error="'s' was not closed",
        sglang=LENIENT,
    ),
    m3(
        "reasoning",
        f"<mm:think>\nhm\n</mm:think>\n\n{M3_CALL}",
        calls=[f(s="hi")],
        reasoning="hm",
        sglang=REASONING,
    ),
]


def atem(*parameters: tuple[str, str], name: str = "f") -> str:
    inside = "".join(
        f'<atem:parameter name="{key}">{value}</atem:parameter>\n' for key, value in parameters
    )
    return (
        "<atem:function_calls>\n<atem:invoke "
        f'name="{name}">\n{inside}</atem:invoke>\n</atem:function_calls>'
    )


muse = turns_of("muse")
MUSE_CALL = f" to=f<|message|>{atem(('s', 'hi'))}"
NEXT = "<|eom|><|start|>assistant"
MUSE_TURNS = [
    muse("one call", MUSE_CALL, calls=[f(s="hi")]),
    muse("a reply", " to=user<|message|>Hello.", content="Hello.", sglang=FRAMED),
    muse(
        "reasoning, words and two calls",
        f" to=self<|message|>hm{NEXT} to=user<|message|>Well.{NEXT}{MUSE_CALL}{NEXT} "
        f"to=g<|message|>{atem(name='g')}",
        calls=[f(s="hi"), Action("g", {})],
        content="Well.",
        reasoning="hm",
        sglang=REASONING,
    ),
    muse("no header", "Hello.", error="has no header", content="Hello.", sglang=TEXT),
    muse("half a call", MUSE_CALL[:-40], error="was not closed", sglang=LOST),
]

THINKING, SAID, INVOKE = "<|content_thinking|>", "<|content_text|>", "<|content_invoke_tool_json|>"
END, MODEL = "<|end_message|>", "<|message_model|>"


def ink_call(arguments: str, name: str = "f") -> str:
    return f'{name}{INVOKE}{{"name":"{name}","args":{arguments}}}{END}'


ink = turns_of("inkling")
INK_CALL = ink_call('{"s":"hi"}')
INKLING_TURNS = [
    ink("one call", INK_CALL, calls=[f(s="hi")], sglang=NAMED),
    ink("a reply", f"{SAID}Hello.{END}", content="Hello.", sglang=FRAMED),
    ink(
        "reasoning, words and two calls",
        f"{THINKING}hm{END}{MODEL}{SAID}Well.{END}{MODEL}{INK_CALL}{MODEL}{ink_call('{}', 'g')}",
        calls=[f(s="hi"), Action("g", {})],
        content="Well.",
        reasoning="hm",
        sglang=REASONING,
    ),
    ink("null for arguments", ink_call("null"), calls=[f()], sglang=TEXT),
    ink("bad JSON", ink_call('{"s":}'), error="not valid JSON", sglang=TEXT),
    ink("no name", f'f{INVOKE}{{"args":{{}}}}{END}', error='no "name"', sglang=TEXT),
    ink("arguments that are a list", ink_call("[1]"), error="not a JSON object", sglang=TEXT),
    ink("no kind", "Hello.", error="does not say what it is", content="Hello.", sglang=TEXT),
    ink("half a call", INK_CALL.removesuffix(END), error="not closed", sglang=LENIENT),
    ink("an unknown tool", ink_call("{}", "h"), calls=[Action("h", {})], sglang=NAMED),
]
TURNS = [*M3_TURNS, *MUSE_TURNS, *INKLING_TURNS]
