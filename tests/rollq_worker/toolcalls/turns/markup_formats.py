"""Turns in the formats that write calls in markup."""

from tests.rollq_worker.toolcalls.turns.turn import (
    FRAMED,
    LENIENT,
    LOST,
    REASONING,
    TEXT,
    TYPES,
    f,
    turns_of,
)


def xml(tag: str, *params: tuple[str, str], line: str = "\n") -> str:
    inside = "".join(f"<parameter={key}>{line}{value}{line}</parameter>\n" for key, value in params)
    return f"<{tag}>\n<function=f>\n{inside}</function>\n</{tag}>"


coder = turns_of("qwen3_coder")
CODER_CALL = xml("tool_call", ("s", "hi"))
CODER_TURNS = [
    coder("one call", CODER_CALL, calls=[f(s="hi")]),
    coder("blank lines in a value", xml("tool_call", ("s", "\n\na\n\n")), calls=[f(s="\n\na\n\n")]),
    coder("no line breaks", xml("tool_call", ("s", "hi"), line=""), calls=[f(s="hi")]),
    coder(
        "tags in a value",
        xml("tool_call", ("s", "<tool_call> </tool_call")),
        calls=[f(s="<tool_call> </tool_call")],
    ),
    coder(
        "an open parameter",
        "<tool_call>\n<function=f>\n<parameter=s>\nhi\n<parameter=n>\n1\n</parameter>\n</function>\n</tool_call>",
        error="'s' of the call of 'f' was not closed",
        sglang=LENIENT,
    ),
    coder(
        "an open function",
        "<tool_call>\n<function=f>\n</tool_call>",
        error="more than parameters",
        sglang=LENIENT,
    ),
    coder(
        "an open block", CODER_CALL.removesuffix("</tool_call>"), calls=[f(s="hi")], unclosed=True
    ),
    coder(
        "an open block with text",
        CODER_CALL.removesuffix("</tool_call>") + "Done.",
        error="more than functions",
        sglang=LENIENT,
    ),
    coder(
        "JSON", '<tool_call>\n{"name": "f"}\n</tool_call>', error="holds no function", sglang=LOST
    ),
    coder(
        "a parameter twice",
        xml("tool_call", ("s", "a"), ("s", "b")),
        error="'s' twice",
        sglang=LENIENT,
    ),
    coder("no block", "<function=f>\n</function>", error="does not stand between", sglang=TEXT),
    coder(
        "no name",
        "<tool_call>\n<function=>\n</function>\n</tool_call>",
        error="no function name",
        sglang=LENIENT,
    ),
]


minimax = turns_of("minimax_m2")


def invoke(*params: tuple[str, str]) -> str:
    inside = "".join(f'<parameter name="{key}">{value}</parameter>\n' for key, value in params)
    return f'<invoke name="f">\n{inside}</invoke>\n'


def block(*invokes: str) -> str:
    return f"<minimax:tool_call>\n{''.join(invokes)}</minimax:tool_call>"


MINIMAX_CALL = block(invoke(("s", "hi")))
MINIMAX_TURNS = [
    minimax("one call", MINIMAX_CALL, calls=[f(s="hi")]),
    minimax(
        "an open block",
        MINIMAX_CALL.removesuffix("</minimax:tool_call>"),
        error="not closed",
        sglang=TEXT,
    ),
]


def dsml(*parameters: str, name: str = "f", block: str = "function_calls") -> str:
    """A block of DeepSeek-V3.2's, whose `DSML:` stands for the token in every tag."""
    inside = "".join(f"{parameter}\n" for parameter in parameters)
    text = f'<DSML:{block}>\n<DSML:invoke name="{name}">\n{inside}</DSML:invoke>\n</DSML:{block}>'
    return text.replace("DSML:", "｜DSML｜")


def param(key: str, value: str, text: bool = False) -> str:
    return (
        f'<DSML:parameter name="{key}" '
        f'string="{"true" if text else "false"}">{value}</DSML:parameter>'
    )


v32 = turns_of("deepseek_v32")
V32_CALL = dsml(param("s", "hi", text=True))
V32_TURNS = [
    v32("one call", V32_CALL, calls=[f(s="hi")]),
    v32("V4's block", dsml(param("n", "2"), block="tool_calls"), calls=[f(n=2)]),
    v32(
        "Python's words for what is text",
        V32_CALL.replace('"true"', '"True"').replace(">hi<", ">5<"),
        calls=[f(s="5")],
        sglang=TYPES,
    ),
    v32(
        "Python's words for what is JSON",
        dsml(param("n", "2").replace('"false"', '"False"')),
        calls=[f(n=2)],
    ),
    v32(
        "a value of which nothing says whether it is text",
        V32_CALL.replace(' string="true"', ""),
        error="does not say whether it is text",
        sglang=LOST,
    ),
    v32("bad JSON", dsml(param("n", "two")), error="not valid JSON", sglang=LENIENT),
    v32("text behind JSON", dsml(param("n", "2 3")), error="text behind its JSON", sglang=LENIENT),
]

k3 = turns_of("kimi_k3")


def k3_argument(key: str, value: str, kind: str = "string") -> str:
    return f'<|open|>argument key="{key}" type="{kind}"<|sep|>{value}<|close|>argument<|sep|>'


def k3_call(inside: str, name: str = "f", index: int = 1) -> str:
    return f'<|open|>call tool="{name}" index="{index}"<|sep|>{inside}<|close|>call<|sep|>'


def k3_tools(*calls: str) -> str:
    return f"<|open|>tools<|sep|>{''.join(calls)}<|close|>tools<|sep|>"


K3_CALL = k3_tools(k3_call(k3_argument("s", "hi")))
K3_WORDS = "<|open|>response<|sep|>Hello.<|close|>response<|sep|>"
KIMI_K3_TURNS = [
    k3("one call", K3_CALL, calls=[f(s="hi")]),
    k3("words", K3_WORDS, content="Hello.", sglang=FRAMED),
    k3(
        "reasoning",
        f"<|open|>think<|sep|>hm<|close|>think<|sep|>{K3_CALL}",
        calls=[f(s="hi")],
        reasoning="hm",
        sglang=REASONING,
    ),
]

cpm = turns_of("minicpm5")


def minicpm_call(*params: tuple[str, str], name: str = "f") -> str:
    inside = "".join(f'<param name="{key}">{value}</param>' for key, value in params)
    return f'<function name="{name}">{inside}</function>'


CPM_CALL = minicpm_call(("s", "hi"))
MINICPM_TURNS = [
    cpm("one call", CPM_CALL, calls=[f(s="hi")]),
    cpm(
        "a section",
        minicpm_call(("s", "<![CDATA[a <b>\n]]>")),
        calls=[f(s="a <b>\n")],
        sglang="white space at the ends of a value goes",
    ),
    cpm(
        "an end tag in a section",
        minicpm_call(("s", "<![CDATA[</param>]]>")),
        calls=[f(s="</param>")],
    ),
    cpm("no name", "<function name=f></function>", content="<function name=f></function>"),
    cpm("an open call", CPM_CALL.removesuffix("</function>"), error="cut off", sglang=TEXT),
    cpm("an open section", minicpm_call(("s", "<![CDATA[hi")), error="not closed", sglang=LENIENT),
]
TURNS = [*CODER_TURNS, *MINIMAX_TURNS, *V32_TURNS, *KIMI_K3_TURNS, *MINICPM_TURNS]
