"""The model families that rollq knows, as data.

A template is matched with a record by rendering a call, never by a model's name: see
`family_detection`. Installed packages add records: see docs/formats.md.
"""

from collections.abc import Mapping, Sequence
from functools import cache

from rollq.errors import JobFailure
from rollq.job import Json
from rollq_worker.extensions.plug_ins import plug_ins, with_plug_ins
from rollq_worker.tokens.model_family import CallText, Family, ToolsPrompt
from rollq_worker.toolcalls import readers

GROUP = "rollq.families"
"""The entry points of records: each is a `Family`, or a list of them."""

KEEP_REASONING: Mapping[str, Json] = {
    "preserve_thinking": True,  # Qwen3.6, Kimi K2.5, Gemma 4
    "clear_thinking": False,  # GLM-4.7 and later
    "truncate_history_thinking": False,  # Nemotron 3
    "keep_past_thinking": True,  # LFM2.5
    "drop_thinking": False,  # DeepSeek-V4
    "think_render_option": "all",  # Solar
    "preserved_thinking": True,  # Hunyuan 3
    "regen_tool_call_ids": False,  # Cohere's, which else numbers the calls of a conversation itself
}
"""Arguments that make a template keep old reasoning, or the ids of calls. Each template knows at
most one of them.
"""
_CHATML_STOPS = ("<|im_end|>", "<|endoftext|>")
_DEEPSEEK_V31_TOOLS = ToolsPrompt(
    head="\n\n## Tools\nYou have access to the following tools:\n",
    tool="\n### {name}\nDescription: {description}\n\nParameters: {parameters}\n",
    tail="\nIMPORTANT: ALWAYS adhere to this exact format for tool use:\n"
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>tool_call_name<｜tool▁sep｜>tool_call_arguments<｜tool▁call▁end｜>"
    "{{additional_tool_calls}}<｜tool▁calls▁end｜>\n\nWhere:\n"
    "- `tool_call_name` must be an exact match to one of the available tools\n"
    "- `tool_call_arguments` must be valid JSON that strictly follows the tool's "
    "Parameters Schema\n"
    "- For multiple tool calls, chain them directly without separators or spaces\n",
)
"""Prompt of the model card of DeepSeek-V3.1."""
_DEEPSEEK_V3_TOOLS = ToolsPrompt(
    head="\n\n## Tools\n\nYou have these tools:\n",
    tool="\n### {name}\n{description}\n\nParameters:\n```json\n{parameters}\n```\n",
    tail="\nA call of a tool has exactly this form, with valid JSON that fits the parameters:\n"
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>TOOL_NAME\n```json\n"
    '{"parameter": "value"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
)
"""V3 and R1 have no prompt of their own for tools; servers' templates for them list tools in this
way.
"""
_GEMMA_TOOLS = ToolsPrompt(
    head="\n\nYou have access to functions. If you decide to invoke any of the function(s), you "
    "MUST put it in the format of\n"
    "[func_name1(params_name1=params_value1, params_name2=params_value2...), func_name2(params)]\n"
    "\nYou SHOULD NOT include any other text in the response if you call a function\n[",
    tool="{function}",
    between=", ",
    tail="]",
)
"""Prompt of Google's page on function calling with Gemma 3
(ai.google.dev/gemma/docs/capabilities/function-calling).
"""
_HERMES_TOOLS = ToolsPrompt(
    head="\n\n# Tools\n\nThese tools may be called, one or more of them at a time:\n<tools>",
    tool='\n{{"type": "function", "function": {function}}}',
    tail="\n</tools>\n\nA call is a JSON object with the tool's name and its arguments, "
    "between tags:\n<tool_call>\n"
    '{"name": <the name>, "arguments": <the arguments, an object>}\n</tool_call>',
)
"""Prompt in Hermes' form, which prompts for models that were not trained on tools use most."""
FAMILIES = (
    # Qwen2.5, Qwen3 (hybrid and Instruct-2507), Hermes, the bundled template
    Family(name="chatml-hermes", stops=_CHATML_STOPS, parser="hermes"),
    # Qwen3-Coder, Qwen3.5, Qwen3.6, Nemotron 3
    Family(name="chatml-coder", stops=_CHATML_STOPS, parser="qwen3_coder"),
    Family(name="llama3", stops=("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"), parser="llama3"),
    Family(
        name="mistral",
        stops=("</s>",),
        parser="mistral",
        call_id_format="{n:09d}",
        call_id_pattern="[a-zA-Z0-9]{9}",
    ),
    # GLM-4.5 to 4.7: the model writes the next header itself and stops there
    Family(
        name="glm",
        stops=("<|user|>", "<|observation|>", "<|endoftext|>"),
        parser="glm45",
        header_stops={"<|user|>": "user", "<|observation|>": "tool"},
    ),
    # V3 and R1 fence the arguments; V3.1 does not, and its template does not list the tools
    Family(
        name="deepseek-v3",
        stops=("<｜end▁of▁sentence｜>",),
        parser="deepseek_v31",
        call_mark="```json",
        tools_prompt=_DEEPSEEK_V3_TOOLS,
    ),
    Family(
        name="deepseek-v3.2",
        stops=("<｜end▁of▁sentence｜>",),
        parser="deepseek_v32",
        call_mark="<｜DSML｜",
    ),
    Family(
        name="deepseek-v3.1",
        stops=("<｜end▁of▁sentence｜>",),
        parser="deepseek_v31",
        tools_prompt=_DEEPSEEK_V31_TOOLS,
    ),
    Family(
        name="kimi-k2",
        stops=("<|im_end|>", "[EOS]"),
        parser="kimi_k2",
        call_id_format="functions.{name}:{n}",
        call_id_pattern=r"functions\.[\w.\-]+:\d+",
    ),
    Family(name="minimax-m2", stops=("[e~[",), parser="minimax_m2"),
    # A sampled turn ends with <|return|>; the template writes <|end|> there once more messages
    # follow
    Family(
        name="gpt-oss",
        stops=("<|return|>", "<|call|>", "<|endoftext|>"),
        template_ends=("<|end|>",),
        parser="gpt_oss",
        reasoning_key="thinking",
        one_call=True,
    ),
    Family(
        name="gemma4",
        stops=("<turn|>", "<|tool_response>", "<eos>"),
        parser="gemma4",
        header_stops={"<|tool_response>": "tool"},
    ),
    Family(
        name="cohere",
        stops=("<|END_OF_TURN_TOKEN|>",),
        parser="cohere",
        call_id_format="{n}",
        call_id_pattern=r"\d+",
    ),
    Family(
        name="granite-3.3", stops=("<|end_of_text|>",), parser="granite3", call_mark="<|tool_call|>"
    ),
    Family(name="nemotron-v2", stops=("<SPECIAL_12>",), parser="nemotron_v2"),
    # A turn that calls ends with <|tools_suffix|>, and its result stands in the same turn
    Family(
        name="apertus",
        stops=("<|assistant_end|>", "<|tools_suffix|>"),
        parser="apertus",
        header_stops={"<|tools_suffix|>": "tool"},
    ),
    # A turn that calls ends with another token
    Family(name="functionary-v3.1", stops=("<|eot_id|>", "<|eom_id|>"), parser="functionary_v31"),
    # Thoughts, words and calls are messages of one turn, and only the last one ends it
    Family(
        name="solar",
        stops=("<|calls|>", "<|flush|>"),
        template_ends=("<|end|>",),
        parser="solar",
        call_id_format="{n:010d}",
        call_id_pattern="[a-z0-9]{10}",
        reasoning_key="reasoning",
    ),
    # Its call is a message behind the words; 3.1 has a token for calls, and needs no record
    Family(
        name="gigachat3",
        stops=("</s>",),
        template_ends=("<|message_sep|>\n\n", "<|message_sep|>"),
        parser="gigachat3",
        one_call=True,
    ),
    Family(name="apriel", stops=("<|end|>",), parser="apriel"),
    Family(name="minimax-m1", stops=("<end_of_sentence>",), parser="minimax_m1"),
    Family(name="laguna", stops=("</assistant>",), parser="glm45"),
    Family(name="hunyuan3", stops=("<｜hy_eos:opensource｜>",), parser="hunyuan3"),
    Family(name="kimi-k3", stops=("<|end_of_msg|>",), parser="kimi_k3"),
    # LFM2.5's first template writes calls; that of LFM2 and the later ones of LFM2.5 expect them in
    # the content
    Family(name="lfm2.5", stops=_CHATML_STOPS, parser="lfm2", reasoning_key="thinking"),
    Family(
        name="lfm2",
        stops=_CHATML_STOPS,
        parser="lfm2",
        call_text=CallText(
            begin="<|tool_call_start|>[",
            between=", ",
            end="]<|tool_call_end|>",
            call="{name}({keywords})",
            after_words="",
            prompt_mark="List of tools: ",
        ),
    ),
    # The distilled models' own template ends a turn behind its second call only, and opens a result
    # only once
    Family(
        name="deepseek-r1",
        stops=("<｜end▁of▁sentence｜>",),
        parser="deepseek_v31",
        tools_prompt=_DEEPSEEK_V3_TOOLS,
        call_text=CallText(
            begin="<｜tool▁calls▁begin｜>",
            between="\n",
            end="<｜tool▁calls▁end｜>",
            call="<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```<｜tool▁call▁end｜>",
            result=(
                "<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>",
                "<｜tool▁output▁end｜><｜tool▁outputs▁end｜>",
            ),
        ),
    ),
    # Gemma 2 and 3 know no tools
    Family(
        name="gemma",
        stops=("<end_of_turn>", "<eos>"),
        parser="pythonic",
        tools_prompt=_GEMMA_TOOLS,
        call_text=CallText(
            begin="[",
            between=", ",
            end="]",
            call="{name}({keywords})",
            result=("<tool_response>\n", "\n</tool_response>"),
        ),
    ),
    # Phi-3 and Phi-3.5 know none either
    Family(
        name="phi3",
        stops=("<|end|>", "<|endoftext|>"),
        parser="hermes",
        tools_prompt=_HERMES_TOOLS,
        call_text=CallText(
            begin="",
            between="\n",
            end="",
            call='<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>',
            result=("<tool_response>\n", "\n</tool_response>"),
        ),
    ),
)


@cache
def families() -> Sequence[Family]:
    """All records, first rollq's own, then those of installed packages, which are loaded at the
    first call.

    Raises JobFailure for a plug-in that is broken, whose name is taken, or that names no reader or
    no stop tokens.
    """
    added = list(plug_ins(GROUP, Family))
    for plug_in in added:
        stops = plug_in.object.stops
        if not isinstance(stops, tuple) or not stops:
            raise JobFailure(
                f"{plug_in.origin}: the stops of the family {plug_in.object.name!r} are {stops!r}; "
                "give a tuple of tokens, as docs/formats.md shows"
            )
        if plug_in.object.parser not in readers():
            raise JobFailure(
                f"{plug_in.origin}: the family {plug_in.object.name!r} wants the reader "
                f"{plug_in.object.parser!r}, and there are {', '.join(readers())}; add one as "
                "docs/formats.md shows"
            )
    by_name = {family.name: family for family in FAMILIES}
    return tuple(
        with_plug_ins(by_name, ((plug_in.object.name, plug_in) for plug_in in added)).values()
    )
