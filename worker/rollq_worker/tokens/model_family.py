"""Model families as data: facts about a model that its chat template does not tell.

A family is found by rendering, never by a model's name. A record fits when its stop token is the template's own and its
reader gets back, argument for argument, the call that the template wrote. A template that fits no record, but whose
calls some reader gets back, makes a record of its own.
"""

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rollq.errors import JobFailure
from rollq.job import Json
from rollq.trajectory import Message
from rollq_worker.protocols import Action
from rollq_worker.tokens.injection_guard import any_of
from rollq_worker.tokens.tokenizer import Tokenizer
from rollq_worker.toolcalls import PARSERS

REASONING = "reasoning_content"
"""The key of a message that holds reasoning, for most templates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsPrompt:
    """Text for the system prompt that lists the tools. Control tokens in it stay control tokens."""

    head: str
    tool: str
    """For each tool, with the fields `name`, `description` and `parameters` (the schema as JSON)."""
    tail: str

    def write(self, tools: Sequence[Json]) -> str:
        """The text for these tools."""
        listed = [
            self.tool.format(
                name=function["name"],
                description=function.get("description", ""),
                parameters=json.dumps(function.get("parameters", {}), ensure_ascii=False),
            )
            for function in (tool["function"] for tool in tools)
        ]
        return "".join((self.head, *listed, self.tail))


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """How models of one kind end a turn and write a tool call."""

    name: str
    stops: tuple[str, ...]
    """The tokens that end a sampled turn; the template writes the first one at the end of a turn."""
    parser: str
    """A name in `toolcalls.PARSERS`."""
    template_ends: tuple[str, ...] = ()
    """End tokens that the template writes but the model never samples."""
    header_stops: Mapping[str, str] = field(default_factory=dict)
    """Stop tokens that are also the next message's header, with the role in that header."""
    reply_roles: frozenset[str] = frozenset({"tool", "user"})
    """The roles that may answer a turn."""
    template_kwargs: Mapping[str, Json] = field(default_factory=dict)
    """Arguments for the template, beside messages and tools."""
    call_id_format: str = ""
    """Form of the id of a call that the template shows, made of `name` and `n`, the number of the call; "": any id is
    accepted."""
    call_id_pattern: str = ""
    """Regular expression for the ids that the template accepts."""
    call_mark: str = ""
    """A text that is in every rendered call; it tells apart two families with one reader."""
    tools_prompt: ToolsPrompt | None = None
    """The text that lists the tools, for a template that does not."""
    reasoning_key: str = REASONING
    """The key of a message under which the template takes reasoning."""
    text_arguments: bool = False
    """Whether the template takes a call's arguments as a string of JSON."""


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
    ),
    Family(
        name="gemma4",
        stops=("<turn|>", "<|tool_response>", "<eos>"),
        parser="gemma4",
        header_stops={"<|tool_response>": "tool"},
    ),
)

_USER = "zqxjkv"
"""A user's message whose text occurs nowhere else in a rendered conversation."""
_TOOL_NAME = "sample_tool"
_ARGUMENTS = {"x": 'a "b" {c}', "n": 2, "o": {"p": ["q", 1.5]}}
_TOOL: Json = {
    "type": "function",
    "function": {
        "name": _TOOL_NAME,
        "description": "sample",
        "parameters": {
            "type": "object",
            "properties": {
                "x": {"type": "string", "description": "x"},
                "n": {"type": "integer", "description": "n"},
                "o": {"type": "object", "description": "o"},
            },
            "required": ["x"],
        },
    },
}


def example_call(name: str, arguments: Json = None, id: str = "call00000") -> Message:
    """An assistant message with one tool call; some templates want ids of nine characters."""
    function = {"name": name, "arguments": arguments or {}}
    return {"role": "assistant", "content": "", "tool_calls": [{"id": id, "type": "function", "function": function}]}


def shows_tools(tokenizer: Tokenizer) -> bool:
    """Whether the template lists the tools for the model."""
    try:
        return _TOOL_NAME in _render(tokenizer, [], True)
    except JobFailure:
        return True  # other renderings will fail too, with a reason


def _render(tokenizer: Tokenizer, turns: Sequence[Message], header: bool) -> str:
    """The rendering of a user's message and `turns`, with a tool, and with a system prompt where the template wants
    one."""
    messages: list[Message] = [{"role": "user", "content": _USER}, *turns]
    try:
        return tokenizer.render(messages, [_TOOL], add_generation_prompt=header)
    except JobFailure:
        with contextlib.suppress(JobFailure):
            messages.insert(0, {"role": "system", "content": "s"})
            return tokenizer.render(messages, [_TOOL], add_generation_prompt=header)
        raise


def family_of(tokenizer: Tokenizer) -> Family:
    """The family of a tokenizer and its template.

    Raises JobFailure, with a remedy, for a template that cannot write tool calls or writes them in an unknown format.
    """
    refusal: JobFailure | None = None
    rendered = False
    for text_arguments in (False, True):
        for call_id in ("call00000", f"functions.{_TOOL_NAME}:0"):
            try:
                prompt, turn = _render_call(tokenizer, text_arguments, call_id)
            except JobFailure as e:
                refusal = refusal or e
                continue
            rendered = rendered or _TOOL_NAME in turn
            for family in _candidates(tokenizer, prompt, turn):
                if _fits(family, turn):
                    return replace(family, text_arguments=text_arguments)
    remedy = "use a model of these families, give the tokenizer a template for tools, or add a reader to toolcalls"
    template = f"the chat template of {tokenizer.name}"
    if rendered:
        known = ", ".join(PARSERS)
        raise JobFailure(f"{template} writes tool calls in no format that rollq reads ({known}); {remedy}")
    if refusal is not None:
        raise JobFailure(f"{refusal}: it cannot write a tool call; correct the template or use another model")
    raise JobFailure(
        f"{template} leaves an assistant's tool calls out, so nothing shows what a turn with calls looks like; {remedy}"
    )


def _render_call(tokenizer: Tokenizer, text_arguments: bool, call_id: str) -> tuple[str, str]:
    """The end of a rendered prompt, and the text that the template writes after it for a turn with a call."""
    arguments: Json = json.dumps(_ARGUMENTS) if text_arguments else _ARGUMENTS
    prompt = _render(tokenizer, [], True).rpartition(_USER)[2]
    whole = _render(tokenizer, [example_call(_TOOL_NAME, arguments, call_id)], False).rpartition(_USER)[2]
    same = _common_prefix(prompt, whole)
    # Do not cut a control token of either text in two.
    for start in range(max(0, same - 40), same):
        tokens = (token for token in tokenizer.added_tokens if start + len(token) > same)
        if any(prompt.startswith(token, start) or whole.startswith(token, start) for token in tokens):
            same = start
            break
    return prompt, whole[same:]


def _common_prefix(one: str, other: str) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))


def _candidates(tokenizer: Tokenizer, prompt: str, turn: str) -> Iterator[Family]:
    """The records whose tokens the vocabulary has, then one made up for each reader."""
    for family in FAMILIES:
        own = any(end in prompt + turn for end in (*family.stops, *family.template_ends)) and family.call_mark in turn
        if family.stops[0] in tokenizer.added_tokens and (own or family.header_stops):
            yield family
    end = _end_of_turn(tokenizer)
    if end:
        for parser in PARSERS:
            yield Family(name=f"other ({parser})", stops=(end,), parser=parser)


def _end_of_turn(tokenizer: Tokenizer) -> str:
    """The control token with which the template ends an assistant's turn, whether more follows or not; "" if it has
    none.

    Of several it is the one that the model's files name.
    """
    word = _USER[::-1]
    turns: list[Message] = [{"role": "assistant", "content": word}, {"role": "user", "content": "u"}]
    try:
        last, more = (_render(tokenizer, shown, False).rpartition(word)[2] for shown in (turns[:1], turns))
    except JobFailure:
        return ""
    control = any_of(filter(None, tokenizer.added_tokens))
    own = control.findall(last[: _common_prefix(last, more)])
    named = [token for token in own if tokenizer.added_tokens[token] in tokenizer.eos_ids]
    return next(iter([*named, *own[-1:], *control.findall(more)]), "")


def _fits(family: Family, turn: str) -> bool:
    """Whether the family's reader gets the call back."""
    cut = max(turn.rfind(end) for end in (*family.stops, *family.template_ends))
    if cut >= 0 and _TOOL_NAME not in turn[cut:]:
        turn = turn[:cut]
    read = PARSERS[family.parser](turn, None, [_TOOL])
    return list(read.calls) == [Action(_TOOL_NAME, _ARGUMENTS)] and not read.errors
