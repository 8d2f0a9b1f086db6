"""Turns in every format of calls: good ones, broken ones, and ones about which readers may differ."""

from dataclasses import dataclass, field
from typing import Any

from rollq_worker.protocols import Action

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "d",
            "parameters": {
                "type": "object",
                "properties": {
                    "s": {"type": "string"},
                    "n": {"type": "integer"},
                    "x": {"type": "number"},
                    "b": {"type": "boolean"},
                    "o": {"type": "object"},
                    "l": {"type": "array"},
                    "e": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                },
            },
        },
    }
    for name in ("f", "g")
]


@dataclass(frozen=True, kw_only=True)
class Turn:
    """A sampled turn and what is read from it."""

    format: str
    name: str
    text: str
    calls: list[Action] = field(default_factory=list)
    content: str = ""
    error: str = ""
    """Part of what the policy is told."""
    reasoning: str = ""
    sglang: str = ""
    """How SGLang's parser differs, on purpose of ours; "": it reads the same."""

    @property
    def id(self) -> str:
        return f"{self.format}: {self.name}"


def f(**arguments: Any) -> Action:
    return Action("f", arguments)


FULL = {"s": 'a "b"\nc', "n": 2, "x": 1.5, "b": True, "o": {"k": [1, None]}, "l": ["a", 2]}
LOST = "a call that cannot be read vanishes with its text"
TAIL = "text behind a call vanishes"
UNKNOWN = "a call of an unknown tool vanishes with its text"
LENIENT = "a faulty call is mended and taken"
TYPES = "a value that does not fit its type becomes another value"
FRAMED = "without a call the framing of the messages stays in the text"
TEXT = "a call that cannot be read is text for the user"


def xml(tag: str, *params: tuple[str, str], name: str = "f", line: str = "\n") -> str:
    inside = "".join(f"<parameter={key}>{line}{value}{line}</parameter>\n" for key, value in params)
    return f"<{tag}>\n<function={name}>\n{inside}</function>\n</{tag}>"


def coder(name: str, text: str, **read: Any) -> Turn:
    return Turn(format="qwen3_coder", name=name, text=text, **read)


C = xml("tool_call", ("s", "hi"))
CODER = [
    coder("one call", C, calls=[f(s="hi")]),
    coder("no call", "Hello.", content="Hello."),
    coder("text before", f"Well.\n{C}", calls=[f(s="hi")], content="Well."),
    coder("text behind", f"{C}\nDone?", calls=[f(s="hi")], content="Done?", sglang=TAIL),
    coder("two calls", f"{C}\n{xml('tool_call', ('n', '3'), name='g')}", calls=[f(s="hi"), Action("g", {"n": 3})]),
    coder("no arguments", xml("tool_call"), calls=[f()]),
    coder(
        "all types",
        xml(
            "tool_call",
            ("s", 'a "b"\nc'),
            ("n", "2"),
            ("x", "1.5"),
            ("b", "true"),
            ("o", '{"k": [1, null]}'),
            ("l", '["a", 2]'),
        ),
        calls=[Action("f", FULL)],
    ),
    coder(
        "values as Python prints them",
        xml("tool_call", ("b", "True"), ("o", "{'k': [1, None]}"), ("l", "['a', 2]")),
        calls=[f(b=True, o={"k": [1, None]}, l=["a", 2])],
    ),
    coder("blank lines in a value", xml("tool_call", ("s", "\n\na\n\n")), calls=[f(s="\n\na\n\n")]),
    coder("no line breaks", xml("tool_call", ("s", "hi"), line=""), calls=[f(s="hi")]),
    coder("a string that is a number", xml("tool_call", ("s", "007")), calls=[f(s="007")]),
    coder("a string that says null", xml("tool_call", ("s", "null")), calls=[f(s="null")], sglang=TYPES),
    coder("null where it may be", xml("tool_call", ("e", "null")), calls=[f(e=None)]),
    coder("words for a number", xml("tool_call", ("n", "two")), calls=[f(n="two")]),
    coder("words for a boolean", xml("tool_call", ("b", "yes")), calls=[f(b="yes")], sglang=TYPES),
    coder("an unknown parameter", xml("tool_call", ("zz", "1")), calls=[f(zz="1")]),
    coder("an unknown tool", xml("tool_call", ("n", "1"), name="h"), calls=[Action("h", {"n": "1"})]),
    coder(
        "tags in a value", xml("tool_call", ("s", "<tool_call> </tool_call")), calls=[f(s="<tool_call> </tool_call")]
    ),
    coder("half a call", "<tool_call>\n<function=f>\n<parameter=s>\nhi", error="was not closed", sglang=LENIENT),
    coder(
        "an open parameter",
        "<tool_call>\n<function=f>\n<parameter=s>\nhi\n<parameter=n>\n1\n</parameter>\n</function>\n</tool_call>",
        error="'s' of the call of 'f' was not closed",
        sglang=LENIENT,
    ),
    coder("an open function", "<tool_call>\n<function=f>\n</tool_call>", error="more than parameters", sglang=LENIENT),
    coder("an open block", C.removesuffix("</tool_call>"), error="not closed with its end tag", sglang=LENIENT),
    coder("no function", "<tool_call>\nf(1)\n</tool_call>", error="holds no function", sglang=LOST),
    coder("JSON", '<tool_call>\n{"name": "f"}\n</tool_call>', error="holds no function", sglang=LOST),
    coder("a parameter twice", xml("tool_call", ("s", "a"), ("s", "b")), error="'s' twice", sglang=LENIENT),
    coder("no block", "<function=f>\n</function>", error="does not stand between", sglang=TEXT),
    coder("no name", "<tool_call>\n<function=>\n</function>\n</tool_call>", error="no function name", sglang=LENIENT),
    coder("reasoning", f"<think>\nhm\n</think>\n\n{C}", calls=[f(s="hi")], reasoning="hm", sglang="reasoning is text"),
]


def glm(name: str, text: str, **read: Any) -> Turn:
    return Turn(format="glm45", name=name, text=text, **read)


def pairs(*params: tuple[str, str], name: str = "f", line: str = "\n") -> str:
    inside = "".join(f"<arg_key>{key}</arg_key>{line}<arg_value>{value}</arg_value>{line}" for key, value in params)
    return f"<tool_call>{name}{line}{inside}</tool_call>"


G = pairs(("s", "hi"))
GLM = [
    glm("one call", G, calls=[f(s="hi")]),
    glm("no white space", pairs(("s", "hi"), line=""), calls=[f(s="hi")], sglang="GLM-4.5's parser wants a line break"),
    glm("text around", f"a {G} b", calls=[f(s="hi")], content="a  b", sglang=TAIL),
    glm("two calls", f"{G}\n{pairs(('n', '3'), name='g')}", calls=[f(s="hi"), Action("g", {"n": 3})]),
    glm("no arguments", pairs(), calls=[f()]),
    glm(
        "all types",
        pairs(("s", "a b"), ("n", "2"), ("x", "1.5"), ("b", "true"), ("o", '{"k": [1, null]}'), ("l", '["a", 2]')),
        calls=[Action("f", FULL | {"s": "a b"})],
    ),
    glm("a string that is a number", pairs(("s", "007")), calls=[f(s="007")]),
    glm("a string that says 12", pairs(("s", "12")), calls=[f(s="12")]),
    glm("words for a number", pairs(("n", "two")), calls=[f(n="two")]),
    glm("an unknown tool", pairs(("s", "a"), name="h"), calls=[Action("h", {"s": "a"})], sglang=UNKNOWN),
    glm("half a call", "<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>hi", error="not a key and a value", sglang=LOST),
    glm("half a name", "<tool_call>f", error="cut off", sglang=LOST),
    glm("an open block", G.removesuffix("</tool_call>"), error="not closed", sglang=LOST),
    glm("no value", "<tool_call>f\n<arg_key>s</arg_key>\n</tool_call>", error="not a key and a value", sglang=LENIENT),
    glm("JSON", '<tool_call>{"a": 1}\n</tool_call>', error="no function name", sglang=LOST),
    glm("an argument twice", pairs(("s", "a"), ("s", "b")), error="'s' twice", sglang=LENIENT),
    glm("no name", pairs(("s", "a"), name=""), error="no function name", sglang=LOST),
    glm("reasoning", f"<think>hm</think>\n{G}", calls=[f(s="hi")], reasoning="hm", sglang="reasoning is text"),
]


def minimax(name: str, text: str, **read: Any) -> Turn:
    return Turn(format="minimax_m2", name=name, text=text, **read)


def invoke(*params: tuple[str, str], name: str = "f") -> str:
    inside = "".join(f'<parameter name="{key}">{value}</parameter>\n' for key, value in params)
    return f'<invoke name="{name}">\n{inside}</invoke>\n'


def block(*invokes: str) -> str:
    return f"<minimax:tool_call>\n{''.join(invokes)}</minimax:tool_call>"


M = block(invoke(("s", "hi")))
MINIMAX = [
    minimax("one call", M, calls=[f(s="hi")]),
    minimax("text around", f"a {M} b", calls=[f(s="hi")], content="a  b"),
    minimax(
        "two calls", block(invoke(("s", "hi")), invoke(("n", "3"), name="g")), calls=[f(s="hi"), Action("g", {"n": 3})]
    ),
    minimax("no arguments", block(invoke()), calls=[f()]),
    minimax(
        "all types",
        block(
            invoke(("s", "a b"), ("n", "2"), ("x", "1.5"), ("b", "true"), ("o", '{"k": [1, null]}'), ("l", '["a", 2]'))
        ),
        calls=[Action("f", FULL | {"s": "a b"})],
    ),
    minimax("a string that is a number", block(invoke(("s", "007"))), calls=[f(s="007")]),
    minimax("blank lines in a value", block(invoke(("s", "\na\n"))), calls=[f(s="\na\n")], sglang=TYPES),
    minimax("words for a number", block(invoke(("n", "two"))), calls=[f(n="two")]),
    minimax("words for a boolean", block(invoke(("b", "yes"))), calls=[f(b="yes")], sglang=TYPES),
    minimax("null where it may be", block(invoke(("e", "null"))), calls=[f(e=None)]),
    minimax("a string or null", block(invoke(("e", "word"))), calls=[f(e="word")], sglang=TYPES),
    minimax("an unknown tool", block(invoke(name="h")), calls=[Action("h", {})], sglang=UNKNOWN),
    minimax("half a call", M[:-30], error="not closed", sglang=TEXT),
    minimax("an open block", M.removesuffix("</minimax:tool_call>"), error="not closed", sglang=TEXT),
    minimax("no function", block("f(1)\n"), error="holds no function", sglang=LOST),
    minimax("a parameter twice", block(invoke(("s", "a"), ("s", "b"))), error="'s' twice", sglang=LENIENT),
    minimax("reasoning", f"hm\n</think>\n\n{M}", calls=[f(s="hi")], reasoning="hm", sglang="reasoning is text"),
]


def dsml(*parameters: str, name: str = "f", block: str = "function_calls") -> str:
    """A block of DeepSeek-V3.2's, whose `DSML:` stands for the token in every tag."""
    inside = "".join(f"{parameter}\n" for parameter in parameters)
    text = f'<DSML:{block}>\n<DSML:invoke name="{name}">\n{inside}</DSML:invoke>\n</DSML:{block}>'
    return text.replace("DSML:", "｜DSML｜")


def param(key: str, value: str, text: bool = False) -> str:
    return f'<DSML:parameter name="{key}" string="{"true" if text else "false"}">{value}</DSML:parameter>'


def v32(name: str, text: str, **read: Any) -> Turn:
    return Turn(format="deepseek_v32", name=name, text=text, **read)


V = dsml(param("s", "hi", text=True))
V32 = [
    v32("one call", V, calls=[f(s="hi")]),
    v32("no call", "Hello.", content="Hello."),
    v32("text before", f"Well.\n\n{V}", calls=[f(s="hi")], content="Well."),
    v32("text behind", f"{V}\nDone?", calls=[f(s="hi")], content="Done?", sglang=TAIL),
    v32("V4's block", dsml(param("n", "2"), block="tool_calls"), calls=[f(n=2)]),
    v32("no arguments", dsml(), calls=[f()]),
    v32(
        "all types",
        dsml(
            *(param(key, value) for key, value in (("n", "2"), ("x", "1.5"), ("b", "true"), ("o", '{"k": [1, null]}'))),
            *(param("l", '["a", 2]'), param("s", 'a "b"\nc', text=True)),
        ),
        calls=[Action("f", FULL)],
    ),
    v32("text that is a number", dsml(param("n", "2", text=True)), calls=[f(n="2")]),
    v32("bad JSON", dsml(param("n", "two")), error="not valid JSON", sglang=LENIENT),
    v32("text behind JSON", dsml(param("n", "2 3")), error="text behind its JSON", sglang=LENIENT),
    v32("a key twice", dsml(param("o", '{"k": 1, "k": 2}')), error="'k' twice", sglang=LENIENT),
    v32("an unknown tool", dsml(name="h"), calls=[Action("h", {})], sglang=UNKNOWN),
    v32("half a call", V[:-40], error="not closed", sglang=TEXT),
    v32("no block", V.partition("\n")[2].rpartition("\n")[0], error="does not stand between", sglang=TEXT),
    v32("reasoning", f"hm</think>\n\n{V}", calls=[f(s="hi")], reasoning="hm", sglang="reasoning is text"),
]


def llama(name: str, text: str, **read: Any) -> Turn:
    return Turn(format="llama3", name=name, text=text, **read)


L = '{"name": "f", "parameters": {"s": "hi"}}'
LLAMA = [
    llama("one call", L, calls=[f(s="hi")]),
    llama("behind the tag", f"<|python_tag|>{L}", calls=[f(s="hi")]),
    llama(
        "behind Llama 4's tokens",
        f"<|python_start|><|python_end|>{L}",
        calls=[f(s="hi")],
        sglang="Llama 4's tokens are not known",
    ),
    llama("text before the tag", f"Well. <|python_tag|>{L}", calls=[f(s="hi")], content="Well."),
    llama("two calls", f"{L};{L}", calls=[f(s="hi"), f(s="hi")]),
    llama("two calls with a comma", f"{L}, {L}", calls=[f(s="hi"), f(s="hi")]),
    llama("arguments", '{"name": "f", "arguments": {"n": 1}}', calls=[f(n=1)]),
    llama("no arguments", '{"name": "f"}', calls=[f()]),
    llama("white space first", f"\n\n{L}", calls=[f(s="hi")], sglang=TEXT),
    llama("JSON behind text", f"See: {L}", content=f"See: {L}"),
    llama("no call", "Hello {you}.", content="Hello {you}."),
    llama("an unknown tool", '{"name": "h", "parameters": {}}', calls=[Action("h", {})], sglang=UNKNOWN),
    llama("half a call", '{"name": "f", "para', error="cut off", sglang=TEXT),
    llama("as Python prints it", "{'name': 'f', 'parameters': {}}", error="not valid JSON", sglang=LENIENT),
    llama("a Python call", '<|python_tag|>f.call(s="hi")', error="not valid JSON", sglang=TEXT),
    llama("no name", '{"parameters": {}}', error='no "name"', sglang=LOST),
    llama("text behind", f"{L} done", calls=[f(s="hi")], error="not valid JSON", content="done", sglang=TEXT),
    llama("a list for arguments", '{"name": "f", "parameters": [1]}', error="not a JSON object", sglang=LENIENT),
    llama("a key twice", '{"name": "f", "parameters": {"s": 1, "s": 2}}', error="'s' twice", sglang=LENIENT),
]


def mistral(name: str, text: str, **read: Any) -> Turn:
    return Turn(format="mistral", name=name, text=text, **read)


ITEM = '{"name": "f", "arguments": {"s": "hi"}, "id": "abc123def"}'
SPACE = "wants a space behind [TOOL_CALLS]"
MISTRAL = [
    mistral("a list with a space", f"[TOOL_CALLS] [{ITEM}]", calls=[f(s="hi")]),
    mistral("a list", f"[TOOL_CALLS][{ITEM}]", calls=[f(s="hi")], sglang=SPACE),
    mistral("two in a list", f"[TOOL_CALLS] [{ITEM}, {ITEM}]", calls=[f(s="hi"), f(s="hi")]),
    mistral("a name", '[TOOL_CALLS]f[ARGS]{"s": "hi"}', calls=[f(s="hi")]),
    mistral("two names", '[TOOL_CALLS]f[ARGS]{"s": "hi"}[TOOL_CALLS]g[ARGS]{}', calls=[f(s="hi"), Action("g", {})]),
    mistral("a name and an id", '[TOOL_CALLS]f[CALL_ID]abc123def[ARGS]{"n": 1}', calls=[f(n=1)], sglang=LOST),
    mistral("text before", 'Well.[TOOL_CALLS]f[ARGS]{"n": 1}', calls=[f(n=1)], content="Well."),
    mistral("no call", "Hello.", content="Hello."),
    mistral("brackets in a string", '[TOOL_CALLS] [{"name": "f", "arguments": {"s": "]}"}}]', calls=[f(s="]}")]),
    mistral("an unknown tool", "[TOOL_CALLS]h[ARGS]{}", calls=[Action("h", {})], sglang=UNKNOWN),
    mistral("half a call", '[TOOL_CALLS] [{"name": "f", "arg', error="cut off", sglang=LOST),
    mistral("half the arguments", '[TOOL_CALLS]f[ARGS]{"s": "h', error="not valid JSON", sglang=LOST),
    mistral("bad JSON", "[TOOL_CALLS] [{'name': 'f'}]", error="not valid JSON", sglang=LOST),
    mistral("only the tag", "[TOOL_CALLS]", error="not valid JSON", sglang=LOST),
    mistral("no name", '[TOOL_CALLS] [{"arguments": {}}]', error='no "name"', sglang=LOST),
    mistral(
        "reasoning",
        '[THINK]hm[/THINK][TOOL_CALLS]f[ARGS]{"n": 1}',
        calls=[f(n=1)],
        reasoning="hm",
        sglang="reasoning is text",
    ),
]


def deepseek(name: str, text: str, **read: Any) -> Turn:
    return Turn(format="deepseek_v31", name=name, text=text, **read)


def dcall(arguments: str, name: str = "f") -> str:
    return f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{arguments}<｜tool▁call▁end｜>"


def dsection(*calls: str) -> str:
    return f"<｜tool▁calls▁begin｜>{''.join(calls)}<｜tool▁calls▁end｜>"


D = dcall('{"s": "hi"}')
FENCE = '<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{"s": "hi"}\n```<｜tool▁call▁end｜>'
ALL = "one bad call makes text of all of them"
DEEPSEEK = [
    deepseek("one call", dsection(D), calls=[f(s="hi")]),
    deepseek("two calls", dsection(D, dcall('{"n": 3}', "g")), calls=[f(s="hi"), Action("g", {"n": 3})]),
    deepseek("text before", f"Well. {dsection(D)}", calls=[f(s="hi")], content="Well."),
    deepseek("V3's fence", dsection(FENCE), calls=[f(s="hi")], sglang="V3.1's parser does not know it"),
    deepseek("no call", "Hello.", content="Hello."),
    deepseek("an unknown tool", dsection(dcall("{}", "h")), calls=[Action("h", {})], sglang=UNKNOWN),
    deepseek("no section", D, calls=[f(s="hi")], sglang=TEXT),
    deepseek(
        "a good and a bad call",
        dsection(D, dcall("{s}")),
        calls=[f(s="hi")],
        content=dcall("{s}"),
        error="not valid JSON",
        sglang=ALL,
    ),
    deepseek("an open section", f"<｜tool▁calls▁begin｜>{D}", calls=[f(s="hi")], error="not closed", sglang=LENIENT),
    deepseek("half a call", f"<｜tool▁calls▁begin｜>{D[:-20]}", error="not valid JSON", sglang=LOST),
    deepseek("an empty section", dsection(), error="no tool call", sglang=LOST),
    deepseek("bad JSON", dsection(dcall("{'s': 1}")), error="not valid JSON", sglang=TEXT),
    deepseek("a list for arguments", dsection(dcall("[1]")), error="not a JSON object", sglang=LENIENT),
    deepseek("no name", dsection(dcall("{}", "")), error="no function name", sglang=LOST),
    deepseek("reasoning", f"hm</think>{dsection(D)}", calls=[f(s="hi")], reasoning="hm", sglang="reasoning is text"),
]


def kimi(name: str, text: str, **read: Any) -> Turn:
    return Turn(format="kimi_k2", name=name, text=text, **read)


def kcall(arguments: str, id: str = "functions.f:0") -> str:
    return f"<|tool_call_begin|>{id}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>"


def ksection(*calls: str) -> str:
    return f"<|tool_calls_section_begin|>{''.join(calls)}<|tool_calls_section_end|>"


K = kcall('{"s": "hi"}')
KIMI = [
    kimi("one call", ksection(K), calls=[f(s="hi")]),
    kimi("two calls", ksection(K, kcall('{"n": 3}', "functions.g:1")), calls=[f(s="hi"), Action("g", {"n": 3})]),
    kimi("text before", f"Well. {ksection(K)}", calls=[f(s="hi")], content="Well."),
    kimi("no prefix in the id", ksection(kcall("{}", "f:0")), calls=[f()]),
    kimi("no call", "Hello.", content="Hello."),
    kimi("an unknown tool", ksection(kcall("{}", "functions.h:0")), calls=[Action("h", {})]),
    kimi("a bare number", ksection(kcall("{}", "0")), error="id of the tool call", sglang="guesses the tool"),
    kimi("bad JSON", ksection(kcall("{'s': 1}")), error="not valid JSON", sglang=LENIENT),
    kimi("half a call", f"<|tool_calls_section_begin|>{K[:-25]}", error="JSON", sglang=LOST),
    kimi("an empty section", ksection(), error="no tool call", sglang=LOST),
    kimi("reasoning", f"<think>hm</think>{ksection(K)}", calls=[f(s="hi")], reasoning="hm", sglang="reasoning is text"),
]


def harmony(name: str, text: str, **read: Any) -> Turn:
    return Turn(format="gpt_oss", name=name, text=text, **read)


H = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"s": "hi"}'
A = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant"
HARMONY = [
    harmony("one call", H, calls=[f(s="hi")]),
    harmony("a call behind reasoning", A + H, calls=[f(s="hi")], reasoning="hm"),
    harmony(
        "the recipient first",
        ' to=functions.f<|channel|>commentary json<|message|>{"s": "hi"}',
        calls=[f(s="hi")],
        sglang="the recipient must follow the channel",
    ),
    harmony("a reply", "<|channel|>final<|message|>Hello.", content="Hello.", sglang=FRAMED),
    harmony(
        "a reply behind reasoning",
        f"{A}<|channel|>final<|message|>Hello.",
        content="Hello.",
        reasoning="hm",
        sglang=FRAMED,
    ),
    harmony(
        "words and a call",
        f"<|channel|>commentary<|message|>Let me see.<|end|><|start|>assistant{H}",
        calls=[f(s="hi")],
        content="Let me see.",
    ),
    harmony("an unknown tool", H.replace(".f ", ".h "), calls=[Action("h", {"s": "hi"})], sglang=UNKNOWN),
    harmony("bad JSON", H.replace('"hi"', "hi"), error="not valid JSON", sglang=LOST),
    harmony("half a call", H[:-3], error="not valid JSON", sglang=LOST),
    harmony("half a header", "<|channel|>comm", error="outside of any channel", sglang=FRAMED),
    harmony("no channel", "<|message|>Hello.", error="no channel", sglang=FRAMED),
    harmony("only text", "Hello.", error="outside of any channel", sglang=TEXT),
    harmony("another recipient", H.replace("functions.f", "python"), error="no recipient 'python'", sglang=LOST),
    harmony(
        "a user's words",
        f"{A}<|channel|>final<|message|>a<|end|><|start|>user<|message|>b",
        content="a<|start|>user<|message|>b",
        error="another role",
        reasoning="hm",
        sglang=FRAMED,
    ),
]


def gemma(name: str, text: str, **read: Any) -> Turn:
    return Turn(format="gemma4", name=name, text=text, **read)


def gcall(arguments: str, name: str = "f") -> str:
    return f"<|tool_call>call:{name}{{{arguments}}}<tool_call|>"


Q = '<|"|>'
E = gcall(f"s:{Q}hi{Q}")
GEMMA = [
    gemma("one call", E, calls=[f(s="hi")]),
    gemma("two calls", E + gcall("n:3", "g"), calls=[f(s="hi"), Action("g", {"n": 3})]),
    gemma("no arguments", gcall(""), calls=[f()]),
    gemma(
        "all types",
        gcall(f'b:true,l:[{Q}a{Q},2],n:2,o:{{k:[1,{Q}y{Q}]}},s:{Q}a "b"\nc{Q},x:1.5'),
        calls=[Action("f", FULL | {"o": {"k": [1, "y"]}})],
    ),
    gemma("quoted keys", gcall(f"o:{{{Q}a b{Q}:1}}"), calls=[f(o={"a b": 1})], sglang="the quotes stay in the key"),
    gemma("null", gcall("e:null"), calls=[f(e=None)], sglang="null is a string"),
    gemma("braces in a string", gcall(f"s:{Q}}}{{,:{Q}"), calls=[f(s="}{,:")]),
    gemma("text before", f"Well. {E}", calls=[f(s="hi")], content="Well."),
    gemma("text behind", f"{E} ok", calls=[f(s="hi")], content="ok", sglang=TAIL),
    gemma("no call", "Hello.", content="Hello."),
    gemma("an unknown tool", gcall("", "h"), calls=[Action("h", {})]),
    gemma("a bare word", gcall("s:hi"), error="cannot be read at 'hi", sglang=LENIENT),
    gemma("JSON", gcall('"s":"hi"'), error="cannot be read", sglang=LENIENT),
    gemma("half a call", E[:-14], error="cut off", sglang=TEXT),
    gemma("an open call", E.removesuffix("<tool_call|>"), error="not closed", sglang=TEXT),
    gemma("no call: in front", "<|tool_call>f{}<tool_call|>", error="no function name", sglang=TEXT),
    gemma("a key twice", gcall("n:1,n:2"), error="'n' twice", sglang=LENIENT),
    gemma("deep", gcall("l:" + "[" * 80 + "]" * 80), error="nested deeper", sglang=LENIENT),
    gemma(
        "reasoning",
        f"<|channel>thought\nhm\n<channel|>{E}",
        calls=[f(s="hi")],
        reasoning="hm",
        sglang="reasoning is text",
    ),
]


def hermes(name: str, text: str, **read: Any) -> Turn:
    return Turn(format="hermes", name=name, text=text, **read)


def json_block(inside: str) -> str:
    return f"<tool_call>\n{inside}\n</tool_call>"


J = json_block('{"name": "f", "arguments": {"s": "hi"}}')
HERMES = [
    hermes("one call", J, calls=[f(s="hi")]),
    hermes("no line breaks", J.replace("\n", ""), calls=[f(s="hi")], sglang="qwen25 wants the line breaks"),
    hermes("text before", f"Well.\n{J}", calls=[f(s="hi")], content="Well."),
    hermes("text behind", f"{J}\nDone?", calls=[f(s="hi")], content="Done?", sglang=TAIL),
    hermes("two calls", f"{J}\n{J}", calls=[f(s="hi"), f(s="hi")]),
    hermes("no call", "Hello.", content="Hello."),
    hermes("no arguments", json_block('{"name": "f"}'), calls=[f()]),
    hermes("an unknown tool", json_block('{"name": "h", "arguments": {}}'), calls=[Action("h", {})], sglang=UNKNOWN),
    hermes("bad JSON", json_block("{'name': 'f'}"), error="not valid JSON", sglang=LOST),
    hermes("half a call", J[:-20], error="cut off", sglang=LOST),
    hermes("parameters", json_block('{"name": "f", "parameters": {}}'), error='"parameters"', sglang=LENIENT),
    hermes(
        "arguments as a string",
        json_block('{"name": "f", "arguments": "{\\"s\\": \\"hi\\"}"}'),
        calls=[f(s="hi")],
        sglang="the arguments stay a string",
    ),
    hermes(
        "a good and a bad call",
        f"{J}\n{json_block('{')}",
        calls=[f(s="hi")],
        content=json_block("{"),
        error="not valid JSON",
        sglang=LOST,
    ),
    hermes("reasoning", f"<think>hm</think>{J}", calls=[f(s="hi")], reasoning="hm", sglang="reasoning is text"),
]
TURNS = [*HERMES, *CODER, *GLM, *MINIMAX, *V32, *LLAMA, *MISTRAL, *DEEPSEEK, *KIMI, *HARMONY, *GEMMA]
