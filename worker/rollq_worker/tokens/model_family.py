"""Model families as data: what a chat template does not say about itself.

A family is one record. It is found by rendering: a record fits when its stop token is the template's own and its reader
gets back, argument for argument, the call that the template wrote. A template that fits no record but whose calls a
reader gets back makes a record of its own. Models' names are never looked at.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """How models of one kind end a turn and write a tool call."""

    name: str
    stops: tuple[str, ...]
    """The tokens that end a sampled turn; the first one is what the template writes there."""
    parser: str
    """A name in `toolcalls.PARSERS`."""
    ends: tuple[str, ...] = ()
    """What the template writes at the end of a turn and no turn is sampled to end with."""
    shared: Mapping[str, str] = field(default_factory=dict)
    """Stop tokens that are the next header as well, with the role that they call for."""
    roles: frozenset[str] = frozenset({"tool", "user"})
    """Who may answer a turn."""
    kwargs: Mapping[str, Json] = field(default_factory=dict)
    """Arguments for the template."""
    call_id: str = ""
    """How calls are named where the template shows it, of `name` and `n`, the number of the call; "": as they come."""
    call_ids: str = ""
    """Regular expression: ids that may stay as they are."""
    mark: str = ""
    """What else a rendered call holds, where two families share a reader."""
    tools_text: "ToolsText | None" = None
    """For a template that leaves the tools to whoever calls it."""
    thought: str = ""
    """The key under which the template takes reasoning, if not `reasoning_content`."""
    text_arguments: bool = False
    """The template takes a call's arguments as a string of JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsText:
    """What is added to the system prompt to tell a model of its tools. Control tokens in it are control tokens."""

    head: str
    tool: str
    """For each tool; with the fields `name`, `description` and `parameters`, the schema as JSON."""
    tail: str

    def write(self, tools: Sequence[Json]) -> str:
        """The text for these tools."""
        functions = [tool["function"] for tool in tools]
        told = [
            self.tool.format(
                name=function["name"],
                description=function.get("description", ""),
                parameters=json.dumps(function.get("parameters", {}), ensure_ascii=False),
            )
            for function in functions
        ]
        return "".join((self.head, *told, self.tail))


KEEPING: Mapping[str, Json] = {
    "preserve_thinking": True,  # Qwen3.6, Kimi K2.5, Gemma 4
    "clear_thinking": False,  # GLM-4.7 and later
    "truncate_history_thinking": False,  # Nemotron 3
    "keep_past_thinking": True,  # LFM2.5
    "drop_thinking": False,  # DeepSeek-V4
}
"""Arguments that make templates write old reasoning where they would leave it out, by the names they go by."""
CHATML = ("<|im_end|>", "<|endoftext|>")
_V31 = ToolsText(
    head="\n\n## Tools\nYou have access to the following tools:\n",
    tool="\n### {name}\nDescription: {description}\n\nParameters: {parameters}\n",
    tail="\nIMPORTANT: ALWAYS adhere to this exact format for tool use:\n"
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>tool_call_name<｜tool▁sep｜>tool_call_arguments<｜tool▁call▁end｜>"
    "{{additional_tool_calls}}<｜tool▁calls▁end｜>\n\nWhere:\n"
    "- `tool_call_name` must be an exact match to one of the available tools\n"
    "- `tool_call_arguments` must be valid JSON that strictly follows the tool's Parameters Schema\n"
    "- For multiple tool calls, chain them directly without separators or spaces\n",
)
"""The section that DeepSeek-V3.1's model card gives."""
FAMILIES = (
    # Qwen2.5, Qwen3 (hybrid and Instruct-2507), Hermes, the bundled template
    Family(name="chatml-hermes", stops=CHATML, parser="hermes"),
    # Qwen3-Coder, Qwen3.5, Qwen3.6, Nemotron 3
    Family(name="chatml-coder", stops=CHATML, parser="qwen3_coder"),
    Family(name="llama3", stops=("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"), parser="llama3"),
    Family(name="mistral", stops=("</s>",), parser="mistral", call_id="{n:09d}", call_ids="[a-zA-Z0-9]{9}"),
    # GLM-4.5 to 4.7: the model writes the next header itself and stops there
    Family(
        name="glm",
        stops=("<|user|>", "<|observation|>", "<|endoftext|>"),
        parser="glm45",
        shared={"<|user|>": "user", "<|observation|>": "tool"},
    ),
    # V3 and R1 fence the arguments, V3.1 does not and has a form in which its tools are told
    Family(name="deepseek-v3", stops=("<｜end▁of▁sentence｜>",), parser="deepseek_v31", mark="```json"),
    Family(name="deepseek-v3.2", stops=("<｜end▁of▁sentence｜>",), parser="deepseek_v32", mark="<｜DSML｜"),
    Family(name="deepseek-v3.1", stops=("<｜end▁of▁sentence｜>",), parser="deepseek_v31", tools_text=_V31),
    Family(
        name="kimi-k2",
        stops=("<|im_end|>", "[EOS]"),
        parser="kimi_k2",
        call_id="functions.{name}:{n}",
        call_ids=r"functions\.[\w.\-]+:\d+",
    ),
    Family(name="minimax-m2", stops=("[e~[",), parser="minimax_m2"),
    # A sampled turn ends with <|return|>; once more follows, the template writes <|end|> in its place
    Family(
        name="gpt-oss",
        stops=("<|return|>", "<|call|>", "<|endoftext|>"),
        ends=("<|end|>",),
        parser="gpt_oss",
        thought="thinking",
    ),
    Family(
        name="gemma4",
        stops=("<turn|>", "<|tool_response>", "<eos>"),
        parser="gemma4",
        shared={"<|tool_response>": "tool"},
    ),
)

_USER = "zqxjkv"
"""A user's message that nothing else in a rendered conversation spells."""
_ARGUMENTS = {"x": 'a "b" {c}', "n": 2, "o": {"p": ["q", 1.5]}}
_TOOL: Json = {
    "type": "function",
    "function": {
        "name": "probe_tool",
        "description": "probe",
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


def probe_call(name: str = "probe", arguments: Mapping[str, Json] | None = None, id: str = "call00000") -> Message:
    """An assistant message with one tool call, in the form templates take (some want ids of nine characters)."""
    function = {"name": name, "arguments": dict(arguments or {})}
    return {"role": "assistant", "content": "", "tool_calls": [{"id": id, "type": "function", "function": function}]}


def shows_tools(tokenizer: Tokenizer) -> bool:
    """Whether the template tells the model of its tools."""
    try:
        return "probe_tool" in _render(tokenizer, [], True)
    except JobFailure:
        return True  # it refuses more than that, and will say so


def _render(tokenizer: Tokenizer, turns: Sequence[Message], header: bool) -> str:
    """A user's message and `turns`, with a tool; with a system prompt where the template wants one."""
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
        for call_id in ("call00000", "functions.probe_tool:0"):
            try:
                prompt, turn = _written_call(tokenizer, text_arguments, call_id)
            except JobFailure as e:
                refusal = refusal or e
                continue
            rendered = rendered or "probe_tool" in turn
            for family in _candidates(tokenizer, prompt, turn):
                if _fits(family, turn):
                    return replace(family, text_arguments=text_arguments)
    remedy = "use a model of these families, give the tokenizer a template for tools, or add a reader to toolcalls"
    known = ", ".join(PARSERS)
    if refusal is not None and not rendered:
        raise JobFailure(f"{refusal}: it cannot write a tool call; mend the template or use another model")
    if not rendered:
        raise JobFailure(
            f"the chat template of {tokenizer.name} leaves an assistant's tool calls out, so nothing shows what a turn "
            f"with calls looks like; {remedy}"
        )
    raise JobFailure(
        f"the chat template of {tokenizer.name} writes tool calls in no format that rollq reads ({known}); {remedy}"
    )


def _written_call(tokenizer: Tokenizer, text_arguments: bool, call_id: str) -> tuple[str, str]:
    """The end of a rendered prompt, and what the template writes for a turn with a call behind it."""
    arguments: Json = json.dumps(_ARGUMENTS) if text_arguments else _ARGUMENTS
    call = probe_call("probe_tool", {}, call_id)
    call["tool_calls"][0]["function"]["arguments"] = arguments
    prompt = _render(tokenizer, [], True).rpartition(_USER)[2]
    whole = _render(tokenizer, [call], False).rpartition(_USER)[2]
    same = _same(prompt, whole)
    # Not into the middle of a control token of either.
    for start in range(max(0, same - 40), same):
        tokens = (token for token in tokenizer.added_tokens if start + len(token) > same)
        if any(prompt.startswith(token, start) or whole.startswith(token, start) for token in tokens):
            same = start
            break
    return prompt, whole[same:]


def _same(one: str, other: str) -> int:
    """How many characters two texts begin with in common."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))


def _candidates(tokenizer: Tokenizer, prompt: str, turn: str) -> Iterator[Family]:
    """The records whose tokens the vocabulary has, then one made up for every reader."""
    for family in FAMILIES:
        own = any(end in prompt + turn for end in (*family.stops, *family.ends)) and family.mark in turn
        if family.stops[0] in tokenizer.added_tokens and (own or family.shared):
            yield family
    end = end_of_turn(tokenizer)
    if end:
        for parser in PARSERS:
            yield Family(name=f"other ({parser})", stops=(end,), parser=parser)


def end_of_turn(tokenizer: Tokenizer) -> str:
    """The control token that the template writes at the end of an assistant's turn, whether more follows or not; the
    one that the model's files name, if it is among several; "" for none."""
    word = _USER[::-1]
    turns: list[Message] = [{"role": "assistant", "content": word}, {"role": "user", "content": "u"}]
    try:
        last, more = (_render(tokenizer, shown, False).rpartition(word)[2] for shown in (turns[:1], turns))
    except JobFailure:
        return ""
    control = any_of(filter(None, tokenizer.added_tokens))
    own = control.findall(last[: _same(last, more)])
    named = [token for token in own if tokenizer.added_tokens[token] in tokenizer.eos_ids]
    return next(iter([*named, *own[-1:], *control.findall(more)]), "")


def _fits(family: Family, turn: str) -> bool:
    """Whether the family's reader gets the call back."""
    ends: Sequence[str] = (*family.stops, *family.ends)
    cut = max(turn.rfind(end) for end in ends)
    if cut >= 0 and "probe_tool" not in turn[cut:]:
        turn = turn[:cut]
    read = PARSERS[family.parser](turn, None, [_TOOL])
    return list(read.calls) == [Action("probe_tool", _ARGUMENTS)] and not read.errors
