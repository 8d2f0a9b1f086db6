"""The model families that rollq knows, as data.

A template is matched with a record by rendering a call, never by a model's name: see `family_detection`. Installed
packages add records: see docs/formats.md.
"""

from collections.abc import Mapping, Sequence
from functools import cache

from rollq.errors import JobFailure
from rollq.job import Json
from rollq_worker.plug_ins import plug_ins, with_plug_ins
from rollq_worker.tokens.model_family import Family, ToolsPrompt
from rollq_worker.toolcalls import readers

GROUP = "rollq.families"
"""The entry points of records: each is a `Family`, or a list of them."""

KEEP_REASONING: Mapping[str, Json] = {
    "preserve_thinking": True,  # Qwen3.6, Kimi K2.5, Gemma 4
    "clear_thinking": False,  # GLM-4.7 and later
    "truncate_history_thinking": False,  # Nemotron 3
    "keep_past_thinking": True,  # LFM2.5
    "drop_thinking": False,  # DeepSeek-V4
}
"""Arguments that make a template keep old reasoning. Each template knows at most one of them."""
_CHATML_STOPS = ("<|im_end|>", "<|endoftext|>")
_DEEPSEEK_V31_TOOLS = ToolsPrompt(
    head="\n\n## Tools\nYou have access to the following tools:\n",
    tool="\n### {name}\nDescription: {description}\n\nParameters: {parameters}\n",
    tail="\nIMPORTANT: ALWAYS adhere to this exact format for tool use:\n"
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>tool_call_name<｜tool▁sep｜>tool_call_arguments<｜tool▁call▁end｜>"
    "{{additional_tool_calls}}<｜tool▁calls▁end｜>\n\nWhere:\n"
    "- `tool_call_name` must be an exact match to one of the available tools\n"
    "- `tool_call_arguments` must be valid JSON that strictly follows the tool's Parameters Schema\n"
    "- For multiple tool calls, chain them directly without separators or spaces\n",
)
"""From the model card of DeepSeek-V3.1."""
FAMILIES = (
    # Qwen2.5, Qwen3 (hybrid and Instruct-2507), Hermes, the bundled template
    Family(name="chatml-hermes", stops=_CHATML_STOPS, parser="hermes"),
    # Qwen3-Coder, Qwen3.5, Qwen3.6, Nemotron 3
    Family(name="chatml-coder", stops=_CHATML_STOPS, parser="qwen3_coder"),
    Family(name="llama3", stops=("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"), parser="llama3"),
    Family(
        name="mistral", stops=("</s>",), parser="mistral", call_id_format="{n:09d}", call_id_pattern="[a-zA-Z0-9]{9}"
    ),
    # GLM-4.5 to 4.7: the model writes the next header itself and stops there
    Family(
        name="glm",
        stops=("<|user|>", "<|observation|>", "<|endoftext|>"),
        parser="glm45",
        header_stops={"<|user|>": "user", "<|observation|>": "tool"},
    ),
    # V3 and R1 fence the arguments; V3.1 does not, and its template does not list the tools
    Family(name="deepseek-v3", stops=("<｜end▁of▁sentence｜>",), parser="deepseek_v31", call_mark="```json"),
    Family(name="deepseek-v3.2", stops=("<｜end▁of▁sentence｜>",), parser="deepseek_v32", call_mark="<｜DSML｜"),
    Family(
        name="deepseek-v3.1", stops=("<｜end▁of▁sentence｜>",), parser="deepseek_v31", tools_prompt=_DEEPSEEK_V31_TOOLS
    ),
    Family(
        name="kimi-k2",
        stops=("<|im_end|>", "[EOS]"),
        parser="kimi_k2",
        call_id_format="functions.{name}:{n}",
        call_id_pattern=r"functions\.[\w.\-]+:\d+",
    ),
    Family(name="minimax-m2", stops=("[e~[",), parser="minimax_m2"),
    # A sampled turn ends with <|return|>; the template writes <|end|> there once more messages follow
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
    # The template numbers calls over the whole conversation, unless it is asked for the ids that it is given
    Family(
        name="cohere",
        stops=("<|END_OF_TURN_TOKEN|>",),
        parser="cohere",
        template_kwargs={"regen_tool_call_ids": False},
        call_id_format="{n}",
        call_id_pattern=r"\d+",
    ),
    Family(name="granite-3.3", stops=("<|end_of_text|>",), parser="granite3", call_mark="<|tool_call|>"),
    Family(name="nemotron-v2", stops=("<SPECIAL_12>",), parser="nemotron_v2"),
    # A turn that calls ends with <|tools_suffix|>, and its result stands in the same turn
    Family(
        name="apertus",
        stops=("<|assistant_end|>", "<|tools_suffix|>"),
        parser="apertus",
        header_stops={"<|tools_suffix|>": "tool"},
    ),
)


@cache
def families() -> Sequence[Family]:
    """All records, first rollq's own, then those of installed packages, which are loaded at the first call.

    Raises JobFailure for a plug-in that is broken, whose name is taken, or that names no reader.
    """
    added = list(plug_ins(GROUP, Family))
    for plug_in in added:
        if plug_in.object.parser not in readers():
            raise JobFailure(
                f"{plug_in.origin}: the family {plug_in.object.name!r} wants the reader {plug_in.object.parser!r}, and"
                f" there are {', '.join(readers())}; add one as docs/formats.md shows"
            )
    known = {family.name: family for family in FAMILIES}
    return tuple(with_plug_ins(known, ((plug_in.object.name, plug_in) for plug_in in added)).values())
