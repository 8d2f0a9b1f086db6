"""Turns in the formats that write an argument as a key and a value, each between tags of
its own.
"""

from tests.rollq_worker.toolcalls.turns.turn import (
    LENIENT,
    LOST,
    REASONING,
    f,
    turns_of,
)

glm = turns_of("glm45")


def pairs(*params: tuple[str, str], name: str = "f", line: str = "\n") -> str:
    inside = "".join(
        f"<arg_key>{key}</arg_key>{line}<arg_value>{value}</arg_value>{line}"
        for key, value in params
    )
    return f"<tool_call>{name}{line}{inside}</tool_call>"


GLM_CALL = pairs(("s", "hi"))
GLM_TURNS = [
    glm("one call", GLM_CALL, calls=[f(s="hi")]),
    glm(
        "no white space",
        pairs(("s", "hi"), line=""),
        calls=[f(s="hi")],
        sglang="GLM-4.5's parser wants a line break",
    ),
    glm(
        "JSON for arguments",
        '<tool_call>f>{"s":"hi"}</tool_call>',
        error="writes its arguments as JSON",
        sglang=LOST,
    ),
    glm(
        "half a call",
        "<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>hi",
        error="was not closed",
        sglang=LOST,
    ),
    glm("half a name", "<tool_call>f", error="cut off", sglang=LOST),
    glm("an open block", GLM_CALL.removesuffix("</tool_call>"), error="not closed", sglang=LOST),
    glm(
        "no value",
        "<tool_call>f\n<arg_key>s</arg_key>\n</tool_call>",
        error="not a key and a value",
        sglang=LENIENT,
    ),
    glm("JSON", '<tool_call>{"a": 1}\n</tool_call>', error="no function name", sglang=LOST),
    glm("an argument twice", pairs(("s", "a"), ("s", "b")), error="'s' twice", sglang=LENIENT),
    glm("no name", pairs(("s", "a"), name=""), error="no function name", sglang=LOST),
]


hunyuan = turns_of("hunyuan3")


def hunyuan_tag(name: str, value: str) -> str:
    return f"<{name}:opensource>{value}</{name}:opensource>\n"


def hunyuan_call(*arguments: tuple[str, str]) -> str:
    inside = "".join(
        hunyuan_tag("arg_key", key) + hunyuan_tag("arg_value", value) for key, value in arguments
    )
    return hunyuan_tag("tool_call", f"f<tool_sep:opensource>\n{inside}")


def hunyuan_calls(*calls: str) -> str:
    return hunyuan_tag("tool_calls", "\n" + "".join(calls)).rstrip()


HUNYUAN_CALL = hunyuan_calls(hunyuan_call(("s", "hi")))
HUNYUAN_TURNS = [
    hunyuan("one call", HUNYUAN_CALL, calls=[f(s="hi")]),
    hunyuan(
        "without the section",
        hunyuan_call(("s", "hi")).rstrip(),
        calls=[f(s="hi")],
        sglang="a call outside of a section is text",
    ),
    hunyuan(
        "no tag behind the name",
        HUNYUAN_CALL.replace("<tool_sep:opensource>", ""),
        error="behind it",
        sglang=LENIENT,
    ),
    hunyuan(
        "reasoning",
        f"<think:opensource>hm</think:opensource>{HUNYUAN_CALL}",
        calls=[f(s="hi")],
        reasoning="hm",
        sglang=REASONING,
    ),
]
TURNS = [*GLM_TURNS, *HUNYUAN_TURNS]
