"""Turns in the formats that write calls in markup."""

from rollq.env import Action
from tests.rollq_worker.toolcalls.turns.turn import (
    FRAMED,
    LENIENT,
    LOST,
    REASONING,
    TAIL,
    TEXT,
    TYPES,
    UNKNOWN,
    f,
    turns_of,
)


def xml(tag: str, *params: tuple[str, str], name: str = "f", line: str = "\n") -> str:
    inside = "".join(f"<parameter={key}>{line}{value}{line}</parameter>\n" for key, value in params)
    return f"<{tag}>\n<function={name}>\n{inside}</function>\n</{tag}>"


coder = turns_of("qwen3_coder")
CODER_CALL = xml("tool_call", ("s", "hi"))
CODER_TURNS = [
    coder("one call", CODER_CALL, calls=[f(s="hi")]),
    coder("text behind", f"{CODER_CALL}\nDone?", calls=[f(s="hi")], content="Done?", sglang=TAIL),
    coder(
        "values as Python prints them",
        xml("tool_call", ("b", "True"), ("o", "{'k': [1, None]}"), ("l", "['a', 2]")),
        calls=[f(b=True, o={"k": [1, None]}, l=["a", 2])],
    ),
    coder("blank lines in a value", xml("tool_call", ("s", "\n\na\n\n")), calls=[f(s="\n\na\n\n")]),
    coder("no line breaks", xml("tool_call", ("s", "hi"), line=""), calls=[f(s="hi")]),
    coder("a string that is a number", xml("tool_call", ("s", "007")), calls=[f(s="007")]),
    coder(
        "a string that says null",
        xml("tool_call", ("s", "null")),
        calls=[f(s="null")],
        sglang=TYPES,
    ),
    coder("null where it may be", xml("tool_call", ("e", "null")), calls=[f(e=None)]),
    coder(
        "words for a number",
        xml("tool_call", ("n", "two")),
        error="must be of type integer",
        sglang=TYPES,
    ),
    coder(
        "words for a boolean",
        xml("tool_call", ("b", "yes")),
        error="must be of type boolean",
        sglang=TYPES,
    ),
    coder("an unknown parameter", xml("tool_call", ("zz", "1")), calls=[f(zz="1")]),
    coder(
        "an unknown tool", xml("tool_call", ("n", "1"), name="h"), calls=[Action("h", {"n": "1"})]
    ),
    coder(
        "tags in a value",
        xml("tool_call", ("s", "<tool_call> </tool_call")),
        calls=[f(s="<tool_call> </tool_call")],
    ),
    coder(
        "half a call",
        "<tool_call>\n<function=f>\n<parameter=s>\nhi",
        error="was not closed",
        sglang=LENIENT,
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
    coder("no function", "<tool_call>\nf(1)\n</tool_call>", error="holds no function", sglang=LOST),
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
    coder(
        "reasoning",
        f"<think>\nhm\n</think>\n\n{CODER_CALL}",
        calls=[f(s="hi")],
        reasoning="hm",
        sglang=REASONING,
    ),
]


minimax = turns_of("minimax_m2")


def invoke(*params: tuple[str, str], name: str = "f") -> str:
    inside = "".join(f'<parameter name="{key}">{value}</parameter>\n' for key, value in params)
    return f'<invoke name="{name}">\n{inside}</invoke>\n'


def block(*invokes: str) -> str:
    return f"<minimax:tool_call>\n{''.join(invokes)}</minimax:tool_call>"


MINIMAX_CALL = block(invoke(("s", "hi")))
MINIMAX_TURNS = [
    minimax("one call", MINIMAX_CALL, calls=[f(s="hi")]),
    minimax(
        "blank lines in a value", block(invoke(("s", "\na\n"))), calls=[f(s="\na\n")], sglang=TYPES
    ),
    minimax("a string or null", block(invoke(("e", "word"))), calls=[f(e="word")], sglang=TYPES),
    minimax("an unknown tool", block(invoke(name="h")), calls=[Action("h", {})], sglang=UNKNOWN),
    minimax("half a call", MINIMAX_CALL[:-30], error="not closed", sglang=TEXT),
    minimax(
        "an open block",
        MINIMAX_CALL.removesuffix("</minimax:tool_call>"),
        error="not closed",
        sglang=TEXT,
    ),
    minimax("no function", block("f(1)\n"), error="holds no function", sglang=LOST),
    minimax(
        "a parameter twice",
        block(invoke(("s", "a"), ("s", "b"))),
        error="'s' twice",
        sglang=LENIENT,
    ),
    minimax(
        "reasoning",
        f"hm\n</think>\n\n{MINIMAX_CALL}",
        calls=[f(s="hi")],
        reasoning="hm",
        sglang=REASONING,
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
    v32("text behind", f"{V32_CALL}\nDone?", calls=[f(s="hi")], content="Done?", sglang=TAIL),
    v32("V4's block", dsml(param("n", "2"), block="tool_calls"), calls=[f(n=2)]),
    v32("text that is a number", dsml(param("n", "2", text=True)), calls=[f(n="2")]),
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
    v32("an unknown tool", dsml(name="h"), calls=[Action("h", {})], sglang=UNKNOWN),
    v32("half a call", V32_CALL[:-40], error="not closed", sglang=TEXT),
    v32(
        "no block",
        V32_CALL.partition("\n")[2].rpartition("\n")[0],
        error="does not stand between",
        sglang=TEXT,
    ),
    v32(
        "reasoning",
        f"hm</think>\n\n{V32_CALL}",
        calls=[f(s="hi")],
        reasoning="hm",
        sglang=REASONING,
    ),
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
    k3("a string that is a number", k3_tools(k3_call(k3_argument("s", "007"))), calls=[f(s="007")]),
    k3(
        "no JSON",
        k3_tools(k3_call(k3_argument("n", "two", "number"))),
        error="not a string",
        sglang=LENIENT,
    ),
    k3("an unknown tool", k3_tools(k3_call("", "h")), calls=[Action("h", {})]),
    k3("no calls", k3_tools(), error="holds no function", sglang=LOST),
    k3("a call outside of the tools", k3_call(""), error="does not stand between", sglang=TEXT),
    k3(
        "an open call",
        K3_CALL.removesuffix("<|close|>tools<|sep|>"),
        calls=[f(s="hi")],
        unclosed=True,
    ),
    k3("half a call", K3_CALL[:-50], error="not closed", sglang=LOST),
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
    cpm("text behind", f"{CPM_CALL}\nok", calls=[f(s="hi")], content="ok"),
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
    cpm(
        "values as Python prints them",
        minicpm_call(("b", "True"), ("o", "{'k': [1, None]}"), ("l", "['a', 2]")),
        calls=[f(b=True, o={"k": [1, None]}, l=["a", 2])],
    ),
    cpm("a string that is a number", minicpm_call(("s", "007")), calls=[f(s="007")]),
    cpm(
        "words for a number",
        minicpm_call(("n", "two")),
        error="must be of type integer",
        sglang=TYPES,
    ),
    cpm("an unknown tool", minicpm_call(name="h"), calls=[Action("h", {})], sglang=TEXT),
    cpm("a key twice", minicpm_call(("s", "a"), ("s", "b")), error="twice", sglang=TEXT),
    cpm("no name", "<function name=f></function>", content="<function name=f></function>"),
    cpm("an open call", CPM_CALL.removesuffix("</function>"), error="cut off", sglang=TEXT),
    cpm("half a call", CPM_CALL[:-20], error="not closed", sglang=TEXT),
    cpm("an open section", minicpm_call(("s", "<![CDATA[hi")), error="not closed", sglang=LENIENT),
    cpm(
        "reasoning",
        f"<think>hm</think>{CPM_CALL}",
        calls=[f(s="hi")],
        reasoning="hm",
        sglang=REASONING,
    ),
]
TURNS = [*CODER_TURNS, *MINIMAX_TURNS, *V32_TURNS, *KIMI_K3_TURNS, *MINICPM_TURNS]
