"""A turn with one call in every format, as the chat templates write it."""

import json
from collections.abc import Mapping

from rollq.job import Json
from rollq_worker.toolcalls.format_tests import Write
from tests.rollq_worker.toolcalls.turns.list_formats import gigachat3_call
from tests.rollq_worker.toolcalls.turns.markup_formats import (
    dsml,
    k3_argument,
    k3_call,
    k3_tools,
    minicpm_call,
)
from tests.rollq_worker.toolcalls.turns.token_formats import (
    deepseek_call,
    deepseek_section,
    gemma_call,
    kimi_call,
    kimi_section,
    solar_call,
)

Arguments = Mapping[str, Json]


def as_json(arguments: Arguments) -> str:
    return json.dumps(arguments, ensure_ascii=False)


def as_object(name: str, arguments: Arguments) -> str:
    return f'{{"name": "{name}", "arguments": {as_json(arguments)}}}'


def bare(value: Json) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def coder(tag: str, line: str = "\n") -> Write:
    def write(name: str, arguments: Arguments) -> str:
        inside = "".join(
            f"<parameter={key}>{line}{bare(value)}{line}</parameter>\n"
            for key, value in arguments.items()
        )
        return f"<{tag}>\n<function={name}>\n{inside}</function>\n</{tag}>"

    return write


def glm(name: str, arguments: Arguments) -> str:
    pairs = (
        f"<arg_key>{key}</arg_key>\n<arg_value>{bare(value)}</arg_value>\n"
        for key, value in arguments.items()
    )
    return f"<tool_call>{name}\n{''.join(pairs)}</tool_call>"


def deepseek_v32(name: str, arguments: Arguments) -> str:
    kinds = {key: json.dumps(isinstance(value, str)) for key, value in arguments.items()}
    parameters = (
        f'<DSML:parameter name="{key}" string="{kinds[key]}">{bare(value)}</DSML:parameter>'
        for key, value in arguments.items()
    )
    return dsml(*parameters, name=name)


def gemma_value(value: Json) -> str:
    if isinstance(value, str):
        return f'<|"|>{value}<|"|>'
    if isinstance(value, Mapping):
        return (
            "{"
            + ",".join(f'<|"|>{key}<|"|>:{gemma_value(item)}' for key, item in value.items())
            + "}"
        )
    if isinstance(value, list):
        return "[" + ",".join(map(gemma_value, value)) + "]"
    return json.dumps(value)


def in_python(name: str, arguments: Arguments) -> str:
    return f"[{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})]"


def hunyuan(mark: str, behind_name: str = "") -> Write:
    def write(name: str, arguments: Arguments) -> str:
        call = glm(f"{name}{behind_name}", arguments)
        for tag in ("tool_call", "tool_sep", "arg_key", "arg_value"):
            call = call.replace(f"{tag}>", f"{tag}{mark}>")
        return f"<tool_calls{mark}>\n{call}\n</tool_calls{mark}>"

    return write


def glm_like(prefix: str, begin: str = "", end: str = "") -> Write:
    def write(name: str, arguments: Arguments) -> str:
        pairs = (
            f"<{prefix}arg_key>{key}</{prefix}arg_key>\n"
            f"<{prefix}arg_value>{bare(value)}</{prefix}arg_value>\n"
            for key, value in arguments.items()
        )
        call = f"<{prefix}tool_call>{name}\n{''.join(pairs)}</{prefix}tool_call>"
        return f"{begin}{call}{end}"

    return write


def k2_horizon_typed(name: str, arguments: Arguments) -> str:
    types = {
        str: "string",
        bool: "boolean",
        int: "integer",
        float: "number",
        list: "array[any]",
        dict: "object",
        type(None): "null",
    }
    pairs = (
        f"<ifm|arg_key>{key}</ifm|arg_key><ifm|arg_type>{types[type(value)]}</ifm|arg_type>"
        f"<ifm|arg_value>{bare(value)}</ifm|arg_value>"
        for key, value in arguments.items()
    )
    call = f"<ifm|tool_call>{name}{''.join(pairs)}</ifm|tool_call>"
    return f"<ifm|tool_calls>{call}</ifm|tool_calls>"


def invoke(begin: str, end: str, prefix: str = "") -> Write:
    def write(name: str, arguments: Arguments) -> str:
        inside = "".join(
            f'<{prefix}parameter name="{key}">{bare(value)}</{prefix}parameter>\n'
            for key, value in arguments.items()
        )
        return f'{begin}<{prefix}invoke name="{name}">\n{inside}</{prefix}invoke>\n{end}'

    return write


def kimi_k3(name: str, arguments: Arguments) -> str:
    kinds = {
        key: "string" if isinstance(value, str) else "object" for key, value in arguments.items()
    }
    inside = "".join(k3_argument(key, bare(value), kinds[key]) for key, value in arguments.items())
    return k3_tools(k3_call(inside, name))


def minicpm(name: str, arguments: Arguments) -> str:
    texts = {
        key: f"<![CDATA[{value}]]>"
        if isinstance(value, str) and set("<&\n") & set(value)
        else bare(value)
        for key, value in arguments.items()
    }
    return minicpm_call(*texts.items(), name=name)


M3 = "]<]minimax[>["


def nested(value: Json) -> str:
    if isinstance(value, Mapping):
        return "".join(f"{M3}<{key}>{nested(item)}{M3}</{key}>" for key, item in value.items())
    return (
        "".join(f"{M3}<item>{nested(item)}{M3}</item>" for item in value)
        if isinstance(value, list)
        else bare(value)
    )


def minimax_m3(name: str, arguments: Arguments) -> str:
    inside = "".join(f"{nested({key: value})}\n" for key, value in arguments.items())
    return f'{M3}<tool_call>\n{M3}<invoke name="{name}">\n{inside}{M3}</invoke>\n{M3}</tool_call>'


def muse(name: str, arguments: Arguments) -> str:
    inside = "".join(
        f'<atem:parameter name="{key}">{bare(value)}</atem:parameter>\n'
        for key, value in arguments.items()
    )
    call = (
        "<atem:function_calls>\n<atem:invoke "
        f'name="{name}">\n{inside}</atem:invoke>\n</atem:function_calls>'
    )
    return f" to={name}<|message|>{call}"


WRITE: Mapping[str, Write] = {
    "hermes": lambda name, arguments: (
        f'<tool_call>\n{{"name": "{name}", "arguments": {as_json(arguments)}}}\n</tool_call>'
    ),
    "qwen3_coder": coder("tool_call"),
    "seed": coder("seed:tool_call", line=""),
    "llama3": lambda name, arguments: f'{{"name": "{name}", "parameters": {as_json(arguments)}}}',
    "mistral": lambda name, arguments: f"[TOOL_CALLS]{name}[ARGS]{as_json(arguments)}",
    "glm45": glm,
    "deepseek_v31": lambda name, arguments: deepseek_section(
        deepseek_call(as_json(arguments), name)
    ),
    "deepseek_v32": deepseek_v32,
    "kimi_k2": lambda name, arguments: kimi_section(
        kimi_call(as_json(arguments), f"functions.{name}:0")
    ),
    "minimax_m2": invoke("<minimax:tool_call>\n", "</minimax:tool_call>"),
    "mimo_v2": coder("tool_call", line=""),
    "dots": invoke("<dots_function_call>\n", "</dots_function_call>"),
    "step3": invoke(
        "<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜>",
        "<｜tool_call_end｜><｜tool_calls_end｜>",
        "steptml:",
    ),
    "longcat": glm_like("longcat_"),
    "k2_horizon": glm_like("ifm|", "<ifm|tool_calls>", "</ifm|tool_calls>"),
    "k2_horizon_typed": k2_horizon_typed,
    "k2_horizon_json": lambda name, arguments: (
        f"<ifm|tool_calls><ifm|tool_call>{as_object(name, arguments)}</ifm|tool_call>"
        "</ifm|tool_calls>"
    ),
    "olmo3": lambda name, arguments: (
        f"<function_calls>{in_python(name, arguments)[1:-1]}</function_calls>"
    ),
    "xlam": lambda name, arguments: f"[{as_object(name, arguments)}]",
    "intern_s1": lambda name, arguments: (
        f'<|action_start|> <|plugin|>\n{{"name": "{name}", "parameters": {as_json(arguments)}}}'
        "<|action_end|>"
    ),
    "deepseek_v41": lambda name, arguments: (
        deepseek_v32(name, arguments)
        .replace("DSML｜tool_calls", "DSML｜ calls")
        .replace("DSML｜function_calls", "DSML｜ calls")
        .replace("DSML｜invoke", "DSML｜ invoke")
        .replace("DSML｜parameter", "DSML｜ parameter")
    ),
    "gpt_oss": lambda name, arguments: (
        f"<|channel|>commentary to=functions.{name} "
        f"<|constrain|>json<|message|>{as_json(arguments)}"
    ),
    "gemma4": lambda name, arguments: gemma_call(gemma_value(arguments)[1:-1], name),
    "cohere": lambda name, arguments: (
        f'<|START_ACTION|>[{{"tool_call_id": "0", "tool_name": "{name}", "parameters": '
        f"{as_json(arguments)}}}]"
        "<|END_ACTION|>"
    ),
    "granite3": lambda name, arguments: (
        f'<|tool_call|>[{{"name": "{name}", "arguments": {as_json(arguments)}}}]'
    ),
    "nemotron_v2": lambda name, arguments: (
        f'<TOOLCALL>[{{"name": "{name}", "arguments": {as_json(arguments)}}}]</TOOLCALL>'
    ),
    "apertus": lambda name, arguments: (
        f'<|tools_prefix|>[{{"{name}": {as_json(arguments)}}}]<|tools_suffix|>'
    ),
    "lfm2": lambda name, arguments: (
        f"<|tool_call_start|>{in_python(name, arguments)}<|tool_call_end|>"
    ),
    "pythonic": in_python,
    "functionary_v31": lambda name, arguments: f"<function={name}>{as_json(arguments)}</function>",
    "functionary_v32": lambda name, arguments: f"{name}\n{as_json(arguments)}",
    "solar": lambda name, arguments: f"<|tool_calls|>{solar_call(as_json(arguments), name)}",
    "gigachat3": lambda name, arguments: gigachat3_call(as_object(name, arguments)),
    "gigachat31": lambda name, arguments: f"<|function_call|>{as_object(name, arguments)}",
    "apriel": lambda name, arguments: f"<tool_calls>[{as_object(name, arguments)}]</tool_calls>",
    "minimax_m1": lambda name, arguments: (
        f"<tool_calls>\n{as_object(name, arguments)}\n</tool_calls>"
    ),
    "hunyuan3": hunyuan(":opensource", "<tool_sep>"),
    "kimi_k3": kimi_k3,
    "minicpm5": minicpm,
    "minimax_m3": minimax_m3,
    "muse": muse,
    "inkling": lambda name, arguments: (
        f'{name}<|content_invoke_tool_json|>{{"name":"{name}","args":{as_json(arguments)}}}<|end_message|>'
    ),
}
