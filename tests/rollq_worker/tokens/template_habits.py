"""Chat templates as they are found in the wild, each in the smallest form that shows its habit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rollq_worker.tokens.selfcheck.bridge_comparison import Match
from rollq_worker.tokens.selfcheck.conversations import Edge
from rollq_worker.tokens.tokenizer import Tokenizer
from tests.rollq_worker.tokens.expected_edges import (
    ASKED_EDGES,
    EXACT,
    REASONED_EDGES,
    REPLY_EDGES,
    TOOL_EDGES,
    rewritten,
    unsupported,
)
from tests.rollq_worker.tokens.models import tokenizer_with

SYSTEM = (
    "{%- if tools %}<|im_start|>system\n{{ messages[0].content if messages[0].role == "
    "'system' else '' }}\n"
    "{% for t in tools %}{{ t | tojson }}\n{% endfor %}<|im_end|>\n{%- elif "
    "messages[0].role == 'system' %}"
    "<|im_start|>system\n{{ messages[0].content }}<|im_end|>\n{%- endif %}"
)
CALLS = (
    "{%- for c in m.tool_calls or [] %}<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson '
    "}}}\n</tool_call>{% endfor %}"
)
TURN = "\n<|im_start|>assistant\n{{ m.content }}" + CALLS + "<|im_end|>"
USER = "\n<|im_start|>user\n{{ m.content }}<|im_end|>"
TOOL = "\n<|im_start|>tool\n{{ m.content }}<|im_end|>"
HEADER = "{%- if add_generation_prompt %}\n<|im_start|>assistant\n{% endif %}"


def chatml(
    system: str = SYSTEM, turn: str = TURN, user: str = USER, tool: str = TOOL, header: str = HEADER
) -> str:
    """A ChatML template with parts of its own."""
    return (
        system
        + "{%- for m in messages %}{%- if m.role == 'assistant' %}"
        + turn
        + "{%- elif m.role == 'user' %}"
        + user
        + "{%- elif m.role == 'tool' %}"
        + tool
        + "{%- endif %}{%- endfor %}"
        + header
    )


LAST_USER = (
    "{%- set ns = namespace(last=0) %}{%- for m in messages %}{%- if m.role == 'user' %}{% "
    "set ns.last = loop.index0 %}{% endif %}{% endfor %}"
)
KEYED = TURN.replace(
    "{{ m.content }}",
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% "
    "endif %}{{ m.content }}",
)
HIDING = TURN.replace(
    "{{ m.content }}",
    "{% if m.reasoning_content and loop.index0 > ns.last %}<think>{{ m.reasoning_content "
    "}}</think>{% endif %}{{ m.content }}",
)


@dataclass(frozen=True)
class Habit:
    """A template, and how its edges are classed."""

    template: str
    edges: Mapping[Edge, Match] = field(default_factory=lambda: EXACT)
    added: Sequence[str] = ()
    """Control tokens."""

    def tokenizer(self, name: str) -> Tokenizer:
        return tokenizer_with(name, self.template, self.added)


HABITS: dict[str, Habit] = {
    "plain": Habit(chatml()),
    "appends to a list": Habit(
        "{%- set seen = [] %}" + chatml(turn="{%- set _ = seen.append(m) %}" + TURN)
    ),
    "reasoning kept": Habit(chatml(turn=KEYED)),
    "reasoning dropped at a user's message": Habit(
        chatml(system=LAST_USER + SYSTEM, turn=HIDING),
        EXACT | rewritten(Edge.REASONED_REPLY),
    ),
    "reasoning shown for the last turn only": Habit(
        chatml(
            turn=KEYED.replace(
                "{% if m.reasoning_content %}", "{% if m.reasoning_content and loop.last %}"
            )
        ),
        EXACT | rewritten(*REASONED_EDGES),
    ),
    "reasoning cut out of the content": Habit(
        chatml(turn=TURN.replace("m.content", "m.content.split('</think>')[-1].lstrip()")),
        EXACT | rewritten(*REASONED_EDGES),
    ),
    # Kimi K2: the reply's own reasoning goes with the old one, that of calls stays
    "reasoning of calls only": Habit(
        chatml(
            turn=KEYED.replace(
                "{% if m.reasoning_content %}", "{% if m.reasoning_content and m.tool_calls %}"
            )
        ),
        EXACT | rewritten(Edge.REASONED_REPLY),
    ),
    "reasoning dropped unless asked to keep it": Habit(
        chatml(
            system=LAST_USER + SYSTEM,
            turn=HIDING.replace(
                "loop.index0 > ns.last", "(preserve_thinking or loop.index0 > ns.last)"
            ),
        ),
    ),
    "reasoning dropped unless asked not to clear it": Habit(
        chatml(
            system=LAST_USER + SYSTEM,
            turn=HIDING.replace(
                "loop.index0 > ns.last",
                "((clear_thinking is defined and not clear_thinking) or loop.index0 > ns.last)",
            ),
        ),
    ),
    # Asked, it keeps old reasoning and breaks something else: better not to ask
    "keeping reasoning breaks replies": Habit(
        chatml(
            system=LAST_USER + SYSTEM,
            turn=HIDING.replace(
                "loop.index0 > ns.last", "(preserve_thinking or loop.index0 > ns.last)"
            ),
            user=USER.replace("{{ m", "{{ loop.index0 if preserve_thinking }}{{ m"),
        ),
        EXACT | rewritten(Edge.REASONED_REPLY),
    ),
    # Aya: the first control token behind the words is not the one that ends the turn
    "two tokens end a turn": Habit(
        "{%- for t in tools or [] %}{{ t | tojson }}{% endfor %}{%- for m in messages "
        "%}<|START|><|{{ m.role | upper }}|>"
        "{{ m.content }}" + CALLS + "<|END_SAID|><|END|>{%- endfor %}{% if add_generation_prompt "
        "%}<|START|><|ASSISTANT|>{% endif %}",
        added=[
            "<|START|>",
            "<|END_SAID|>",
            "<|END|>",
            "<|SYSTEM|>",
            "<|USER|>",
            "<|ASSISTANT|>",
            "<|TOOL|>",
        ],
    ),
    # Gemma 4: what was said beside a call is written behind its result
    "words behind results": Habit(
        chatml(
            turn="\n<|im_start|>assistant\n{{ m.content if not m.tool_calls or loop.last }}"
            + CALLS
            + "<|im_end|>",
            tool=TOOL + "{% if loop.previtem.tool_calls and loop.previtem.content "
            "%}\n<|im_start|>assistant\n{{ loop.previtem.content }}<|im_end|>{% endif %}",
        ),
        EXACT | rewritten(Edge.WORDS_AND_CALL, Edge.REASONED_CALL, Edge.REASONED_SECOND_CALL),
    ),
    "leaves words beside a call out": Habit(
        chatml(turn=TURN.replace("{{ m.content }}", "{{ m.content if not m.tool_calls }}")),
        EXACT | rewritten(Edge.WORDS_AND_CALL, Edge.REASONED_CALL, Edge.REASONED_SECOND_CALL),
    ),
    "a result without a call is refused": Habit(
        chatml(
            tool="{% if not loop.previtem.tool_calls and loop.previtem.role != 'tool' %}{{ "
            "raise_exception('no call') }}{% endif %}" + TOOL
        ),
    ),
    "a result without a call is left out": Habit(
        chatml(
            tool="{% if loop.previtem.tool_calls or loop.previtem.role == 'tool' %}"
            + TOOL
            + "{% endif %}"
        ),
    ),
    "control flow and generation tags": Habit(
        chatml(
            system=SYSTEM
            + "{%- for m in messages %}{% if loop.index0 > 1 %}{% break %}{% endif %}{% endfor %}",
            turn="{% generation %}" + TURN + "{% endgeneration %}",
        ),
    ),
    "trims everything": Habit(
        chatml(
            user=USER.replace("m.content", "m.content | trim"),
            tool=TOOL.replace("m.content", "m.content | trim"),
        ),
    ),
    "escapes tool output": Habit(chatml(tool=TOOL.replace("m.content", "m.content | tojson"))),
    "drops empty tool output": Habit(chatml(tool="{% if m.content %}" + TOOL + "{% endif %}")),
    "marks empty tool output": Habit(
        chatml(tool=TOOL.replace("m.content", "m.content or '(nothing)'"))
    ),
    "shows ids": Habit(chatml(tool=TOOL.replace("{{ m", "{{ m.tool_call_id }}: {{ m"))),
    "shows names": Habit(chatml(tool=TOOL.replace("{{ m", "{{ m.name or 'unknown' }}: {{ m"))),
    "the date first": Habit(chatml(system="{{ strftime_now('%d %b %Y') }}" + SYSTEM)),
    "reminds after each result": Habit(
        chatml(tool=TOOL + "\n<|im_start|>system\nMind the rules.<|im_end|>")
    ),
    "reminds before each result": Habit(
        chatml(tool="\n<|im_start|>system\nA result:<|im_end|>" + TOOL)
    ),
    "a header of its own with tools": Habit(
        chatml(header=HEADER.replace("assistant\n", "assistant\n{{ 'Tool or text? ' if tools }}")),
        EXACT | rewritten(*(set(Edge) - {Edge.OPEN})),
    ),
    "reminds of the tools": Habit(
        chatml(
            tool=TOOL.replace(
                "<|im_end|>", "\n({% for t in tools %}{{ t.function.name }} {% endfor %})<|im_end|>"
            )
        ),
    ),
    "a system prompt or an error": Habit(
        "{%- if messages[0].role != 'system' %}{{ raise_exception('no system prompt') }}{% endif %}"
        + chatml(),
    ),
    "no system prompt": Habit(
        "{%- if messages[0].role == 'system' %}{{ raise_exception('System role not "
        "supported') }}{% endif %}" + chatml(),
    ),
    "the system prompt moves": Habit(
        chatml(
            system="{% for t in tools or [] %}{{ t | tojson }}\n{% endfor %}",
            user="\n<|im_start|>user\n{% if loop.last and messages[0].role == 'system' %}{{ "
            "messages[0].content }}\n\n{% endif %}{{ m.content }}<|im_end|>",
        ),
        EXACT | rewritten(*(set(Edge) - {Edge.OPEN, Edge.SECOND_CALL, Edge.REASONED_SECOND_CALL})),
    ),
    "the system prompt again and again": Habit(
        chatml(user=USER.replace("{{ m", "{{ messages[0].content }}\n\n{{ m")),
        EXACT | unsupported(*REPLY_EDGES, *ASKED_EDGES, Edge.REASONED_REPLY),
    ),
    "the tools again at each message": Habit(
        chatml(user=USER.replace("<|im_end|>", "\n{{ tools | tojson if tools }}<|im_end|>")),
    ),
    "counts turns": Habit(
        chatml(tool=TOOL.replace("{{ m", "{{ loop.index0 }} {{ m")),
        EXACT | unsupported(Edge.CALL, Edge.SECOND_CALL, Edge.REASONED_SECOND_CALL),
    ),
    "shows the first result otherwise": Habit(
        "{%- set ns = namespace(first=true) %}"
        + chatml(
            tool=TOOL.replace("{{ m", "{{ 'Results: ' if ns.first }}{% set ns.first = false %}{{ m")
        ),
        EXACT | unsupported(Edge.SECOND_CALL, Edge.REASONED_SECOND_CALL),
    ),
    "drops tool messages": Habit(
        chatml(tool=""),
        EXACT | unsupported(*TOOL_EDGES, Edge.ASKED_AFTER_CALL),
    ),
    "drops all results but the first": Habit(
        chatml(tool="{% if loop.previtem.role != 'tool' %}" + TOOL + "{% endif %}"),
        EXACT | unsupported(Edge.CALLS),
    ),
    "one call at a time": Habit(
        chatml(
            turn="{% if m.tool_calls and m.tool_calls | length > 1 %}{{ raise_exception('one "
            "call') }}{% endif %}" + TURN
        ),
        EXACT | unsupported(Edge.CALLS),
    ),
    "no users after a turn": Habit(
        chatml(
            user="{% if not loop.first and loop.previtem.role == 'assistant' %}{{ "
            "raise_exception('alternate!') }}{% endif %}" + USER
        ),
        EXACT | unsupported(*REPLY_EDGES, Edge.ASKED, Edge.REASONED_REPLY),
    ),
    "tools for the model to guess": Habit(
        chatml(system=SYSTEM.replace("{{ t | tojson }}", "")),
        EXACT | unsupported(Edge.OPEN),
    ),
    "leaves out the system prompt": Habit(
        chatml(system=SYSTEM.replace("messages[0].content", "''"))
    ),
    "arguments as a string": Habit(
        chatml(turn=TURN.replace("c.function.arguments | tojson", "'' + c.function.arguments")),
    ),
    "shortens long results": Habit(
        chatml(tool=TOOL.replace("m.content", "m.content[:20]")),
        EXACT | unsupported(*TOOL_EDGES, Edge.ASKED_AFTER_CALL),
    ),
    "says how long results are": Habit(
        chatml(tool=TOOL.replace("{{ m", "{{ m.content | length }} {{ m"))
    ),
}
REFUSED: dict[str, tuple[str, str]] = {
    # name: template, why
    "chatml without tools": (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% "
        "endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
        "leaves an assistant's tool calls out, so nothing shows what a turn with calls looks like",
    ),
    "calls as their JSON": (
        chatml(turn=TURN.replace(CALLS, "{{ m.tool_calls | tojson if m.tool_calls }}")),
        "in no format that rollq reads",
    ),
    "pythonic": (
        chatml(
            turn=TURN.replace(
                CALLS,
                "{% for c in m.tool_calls or [] %}[{{ c.function.name }}(x={{ "
                "c.function.arguments.x | tojson }})]{% endfor %}",
            )
        ),
        "in no format",
    ),
    "refuses turns": (
        chatml(turn="{{ raise_exception('users only') }}"),
        "cannot write a tool call",
    ),
    "no token ends a turn": (
        chatml().replace("<|im_end|>", "\n\n").replace("<|im_start|>", "### "),
        "in no format",
    ),
}
