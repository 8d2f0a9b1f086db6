# ruff: noqa: E501  (templates, one habit a line)
"""Chat templates as they are found in the wild, each in the smallest form that shows its habit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rollq_worker.tokens.selfcheck.bridge_comparison import Match
from rollq_worker.tokens.selfcheck.conversations import Edge
from rollq_worker.tokens.tokenizer import Tokenizer
from tests.rollq_worker.tokens.expected_edges import (
    EXACT,
    REASONED_EDGES,
    REPLY_EDGES,
    TOOL_EDGES,
    rewritten,
    unsupported,
)
from tests.rollq_worker.tokens.models import (
    APERTUS,
    COHERE,
    DEEPSEEK,
    GRANITE,
    KIMI,
    LLAMA,
    MISTRAL,
    NEMOTRON,
    THINK,
    tokenizer_with,
)

SYSTEM = (
    "{%- if tools %}<|im_start|>system\n{{ messages[0].content if messages[0].role == 'system' else '' }}\n"
    "{% for t in tools %}{{ t | tojson }}\n{% endfor %}<|im_end|>\n{%- elif messages[0].role == 'system' %}"
    "<|im_start|>system\n{{ messages[0].content }}<|im_end|>\n{%- endif %}"
)
CALLS = (
    "{%- for c in m.tool_calls or [] %}<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}'
)
TURN = "\n<|im_start|>assistant\n{{ m.content }}" + CALLS + "<|im_end|>"
USER = "\n<|im_start|>user\n{{ m.content }}<|im_end|>"
TOOL = "\n<|im_start|>tool\n{{ m.content }}<|im_end|>"
HEADER = "{%- if add_generation_prompt %}\n<|im_start|>assistant\n{% endif %}"


def chatml(system: str = SYSTEM, turn: str = TURN, user: str = USER, tool: str = TOOL, header: str = HEADER) -> str:
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


LAST_USER = "{%- set ns = namespace(last=0) %}{%- for m in messages %}{%- if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
KEYED = TURN.replace(
    "{{ m.content }}", "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}"
)
HIDING = TURN.replace(
    "{{ m.content }}",
    "{% if m.reasoning_content and loop.index0 > ns.last %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}",
)

LFM = [
    *["<|startoftext|>", "<|im_start|>", "<|im_end|>", "<|tool_list_start|>", "<|tool_list_end|>"],
    *["<|tool_call_start|>", "<|tool_call_end|>", "<|tool_response_start|>", "<|tool_response_end|>"],
]


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
    "appends to a list": Habit("{%- set seen = [] %}" + chatml(turn="{%- set _ = seen.append(m) %}" + TURN)),
    "reasoning kept": Habit(chatml(turn=KEYED)),
    "reasoning dropped at a user's message": Habit(
        chatml(system=LAST_USER + SYSTEM, turn=HIDING),
        EXACT | rewritten(Edge.REASONED_REPLY),
    ),
    "reasoning shown for the last turn only": Habit(
        chatml(turn=KEYED.replace("{% if m.reasoning_content %}", "{% if m.reasoning_content and loop.last %}")),
        EXACT | rewritten(*REASONED_EDGES),
    ),
    "reasoning cut out of the content": Habit(
        chatml(turn=TURN.replace("m.content", "m.content.split('</think>')[-1].lstrip()")),
        EXACT | rewritten(*REASONED_EDGES),
    ),
    # Kimi K2: the reply's own reasoning goes with the old one, that of calls stays
    "reasoning of calls only": Habit(
        chatml(turn=KEYED.replace("{% if m.reasoning_content %}", "{% if m.reasoning_content and m.tool_calls %}")),
        EXACT | rewritten(Edge.REASONED_REPLY),
    ),
    "reasoning dropped unless asked to keep it": Habit(
        chatml(
            system=LAST_USER + SYSTEM,
            turn=HIDING.replace("loop.index0 > ns.last", "(preserve_thinking or loop.index0 > ns.last)"),
        ),
    ),
    "reasoning dropped unless asked not to clear it": Habit(
        chatml(
            system=LAST_USER + SYSTEM,
            turn=HIDING.replace(
                "loop.index0 > ns.last", "((clear_thinking is defined and not clear_thinking) or loop.index0 > ns.last)"
            ),
        ),
    ),
    # Asked, it keeps old reasoning and breaks something else: better not to ask
    "keeping reasoning breaks replies": Habit(
        chatml(
            system=LAST_USER + SYSTEM,
            turn=HIDING.replace("loop.index0 > ns.last", "(preserve_thinking or loop.index0 > ns.last)"),
            user=USER.replace("{{ m", "{{ loop.index0 if preserve_thinking }}{{ m"),
        ),
        EXACT | rewritten(Edge.REASONED_REPLY),
    ),
    # Aya: the first control token behind the words is not the one that ends the turn
    "two tokens end a turn": Habit(
        "{%- for t in tools or [] %}{{ t | tojson }}{% endfor %}{%- for m in messages %}<|START|><|{{ m.role | upper }}|>"
        "{{ m.content }}"
        + CALLS
        + "<|END_SAID|><|END|>{%- endfor %}{% if add_generation_prompt %}<|START|><|ASSISTANT|>{% endif %}",
        added=["<|START|>", "<|END_SAID|>", "<|END|>", "<|SYSTEM|>", "<|USER|>", "<|ASSISTANT|>", "<|TOOL|>"],
    ),
    # Gemma 4: what was said beside a call is written behind its result
    "words behind results": Habit(
        chatml(
            turn="\n<|im_start|>assistant\n{{ m.content if not m.tool_calls or loop.last }}" + CALLS + "<|im_end|>",
            tool=TOOL
            + "{% if loop.previtem.tool_calls and loop.previtem.content %}\n<|im_start|>assistant\n{{ loop.previtem.content }}<|im_end|>{% endif %}",
        ),
        EXACT | rewritten(Edge.WORDS_AND_CALL, Edge.REASONED_CALL, Edge.REASONED_SECOND_CALL),
    ),
    "leaves words beside a call out": Habit(
        chatml(turn=TURN.replace("{{ m.content }}", "{{ m.content if not m.tool_calls }}")),
        EXACT | rewritten(Edge.WORDS_AND_CALL, Edge.REASONED_CALL, Edge.REASONED_SECOND_CALL),
    ),
    "a result without a call is refused": Habit(
        chatml(
            tool="{% if not loop.previtem.tool_calls and loop.previtem.role != 'tool' %}{{ raise_exception('no call') }}{% endif %}"
            + TOOL
        ),
    ),
    "a result without a call is left out": Habit(
        chatml(tool="{% if loop.previtem.tool_calls or loop.previtem.role == 'tool' %}" + TOOL + "{% endif %}"),
    ),
    "control flow and generation tags": Habit(
        chatml(
            system=SYSTEM + "{%- for m in messages %}{% if loop.index0 > 1 %}{% break %}{% endif %}{% endfor %}",
            turn="{% generation %}" + TURN + "{% endgeneration %}",
        ),
    ),
    "trims everything": Habit(
        chatml(user=USER.replace("m.content", "m.content | trim"), tool=TOOL.replace("m.content", "m.content | trim")),
    ),
    "escapes tool output": Habit(chatml(tool=TOOL.replace("m.content", "m.content | tojson"))),
    "drops empty tool output": Habit(chatml(tool="{% if m.content %}" + TOOL + "{% endif %}")),
    "marks empty tool output": Habit(chatml(tool=TOOL.replace("m.content", "m.content or '(nothing)'"))),
    "shows ids": Habit(chatml(tool=TOOL.replace("{{ m", "{{ m.tool_call_id }}: {{ m"))),
    "shows names": Habit(chatml(tool=TOOL.replace("{{ m", "{{ m.name or 'unknown' }}: {{ m"))),
    "the date first": Habit(chatml(system="{{ strftime_now('%d %b %Y') }}" + SYSTEM)),
    "reminds after each result": Habit(chatml(tool=TOOL + "\n<|im_start|>system\nMind the rules.<|im_end|>")),
    "reminds before each result": Habit(chatml(tool="\n<|im_start|>system\nA result:<|im_end|>" + TOOL)),
    "a header of its own with tools": Habit(
        chatml(header=HEADER.replace("assistant\n", "assistant\n{{ 'Tool or text? ' if tools }}")),
        EXACT | rewritten(*(set(Edge) - {Edge.OPEN})),
    ),
    "reminds of the tools": Habit(
        chatml(tool=TOOL.replace("<|im_end|>", "\n({% for t in tools %}{{ t.function.name }} {% endfor %})<|im_end|>")),
    ),
    "a system prompt or an error": Habit(
        "{%- if messages[0].role != 'system' %}{{ raise_exception('no system prompt') }}{% endif %}" + chatml(),
    ),
    "no system prompt": Habit(
        "{%- if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
        + chatml(),
    ),
    "the system prompt moves": Habit(
        chatml(
            system="{% for t in tools or [] %}{{ t | tojson }}\n{% endfor %}",
            user="\n<|im_start|>user\n{% if loop.last and messages[0].role == 'system' %}{{ messages[0].content }}\n\n{% endif %}{{ m.content }}<|im_end|>",
        ),
        EXACT | rewritten(*(set(Edge) - {Edge.OPEN, Edge.SECOND_CALL, Edge.REASONED_SECOND_CALL})),
    ),
    "the system prompt again and again": Habit(
        chatml(user=USER.replace("{{ m", "{{ messages[0].content }}\n\n{{ m")),
        EXACT | unsupported(*REPLY_EDGES, Edge.REASONED_REPLY),
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
        + chatml(tool=TOOL.replace("{{ m", "{{ 'Results: ' if ns.first }}{% set ns.first = false %}{{ m")),
        EXACT | unsupported(Edge.SECOND_CALL, Edge.REASONED_SECOND_CALL),
    ),
    "drops tool messages": Habit(
        chatml(tool=""),
        EXACT | unsupported(*TOOL_EDGES),
    ),
    "drops all results but the first": Habit(
        chatml(tool="{% if loop.previtem.role != 'tool' %}" + TOOL + "{% endif %}"),
        EXACT | unsupported(Edge.CALLS),
    ),
    "one call at a time": Habit(
        chatml(
            turn="{% if m.tool_calls and m.tool_calls | length > 1 %}{{ raise_exception('one call') }}{% endif %}"
            + TURN
        ),
        EXACT | unsupported(Edge.CALLS),
    ),
    "no users after a turn": Habit(
        chatml(
            user="{% if not loop.first and loop.previtem.role == 'assistant' %}{{ raise_exception('alternate!') }}{% endif %}"
            + USER
        ),
        EXACT | unsupported(*REPLY_EDGES, Edge.REASONED_REPLY),
    ),
    "tools for the model to guess": Habit(
        chatml(system=SYSTEM.replace("{{ t | tojson }}", "")),
        EXACT | unsupported(Edge.OPEN),
    ),
    "leaves out the system prompt": Habit(chatml(system=SYSTEM.replace("messages[0].content", "''"))),
    "arguments as a string": Habit(
        chatml(turn=TURN.replace("c.function.arguments | tojson", "'' + c.function.arguments")),
    ),
    "shortens long results": Habit(
        chatml(tool=TOOL.replace("m.content", "m.content[:20]")),
        EXACT | unsupported(*TOOL_EDGES),
    ),
    "says how long results are": Habit(chatml(tool=TOOL.replace("{{ m", "{{ m.content | length }} {{ m"))),
    # DeepSeek-V3's own template: the first result opens a section that the following ones only continue
    "deepseek-v3": Habit(
        "{%- set ns = namespace(tool=false, first=true, sp='') %}{%- for m in messages %}{%- if m['role'] == 'system' %}{% set ns.sp = m['content'] %}{%- endif %}{%- endfor %}"
        "<｜begin▁of▁sentence｜>{{ ns.sp }}{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{%- for m in messages %}"
        "{%- if m['role'] == 'user' %}{% set ns.tool = false %}<｜User｜>{{ m['content'] }}{%- endif %}"
        "{%- if m['role'] == 'assistant' and m['tool_calls'] %}{% set ns.tool = false %}<｜Assistant｜>{%- for c in m['tool_calls'] %}"
        "{{ '<｜tool▁calls▁begin｜>' if loop.first else '\n' }}{{ '<｜tool▁call▁begin｜>' + c['type'] + '<｜tool▁sep｜>' + c['function']['name'] + '\n```json\n' + c['function']['arguments'] + '\n```<｜tool▁call▁end｜>' }}"
        "{%- endfor %}<｜tool▁calls▁end｜><｜end▁of▁sentence｜>{%- endif %}"
        "{%- if m['role'] == 'assistant' and not m['tool_calls'] %}{{ '<｜tool▁outputs▁end｜>' if ns.tool else '<｜Assistant｜>' }}{% set ns.tool = false %}{{ m['content'] }}<｜end▁of▁sentence｜>{%- endif %}"
        "{%- if m['role'] == 'tool' %}{% set ns.tool = true %}{{ '<｜tool▁outputs▁begin｜>' if ns.first else '\n' }}<｜tool▁output▁begin｜>{{ m['content'] }}<｜tool▁output▁end｜>{% set ns.first = false %}{%- endif %}"
        "{%- endfor %}{%- if ns.tool %}<｜tool▁outputs▁end｜>{% endif %}{% if add_generation_prompt and not ns.tool %}<｜Assistant｜>{% endif %}",
        EXACT | rewritten(Edge.SECOND_CALL, Edge.WORDS_AND_CALL, Edge.REASONED_CALL, Edge.REASONED_SECOND_CALL),
        DEEPSEEK,
    ),
    "kimi-k2": Habit(
        "{%- if tools %}<|im_system|>tool_declare<|im_middle|>{{ tools | tojson }}<|im_end|>{% endif %}{%- for m in messages %}"
        "{{ '<|im_' + (m.role if m.role in ['user', 'assistant'] else 'system') + '|>' + m.role + '<|im_middle|>' }}"
        "{%- if m.role == 'tool' %}## Return of {{ m.tool_call_id }}\n{% endif %}{{ m.content }}"
        "{%- if m.tool_calls %}<|tool_calls_section_begin|>{% for c in m.tool_calls %}<|tool_call_begin|>{{ c.id }}<|tool_call_argument_begin|>"
        "{{ c.function.arguments if c.function.arguments is string else c.function.arguments | tojson }}<|tool_call_end|>{% endfor %}<|tool_calls_section_end|>{% endif %}"
        "<|im_end|>{%- endfor %}{% if add_generation_prompt %}<|im_assistant|>assistant<|im_middle|>{% endif %}",
        added=KIMI,
    ),
    # Kimi K2 Thinking as llama.cpp has it: it counts the calls itself, whatever their ids are
    "kimi counting the calls": Habit(
        "{%- set open = namespace(ids=[], n=0) %}{% if tools %}<|im_system|>tools<|im_middle|>{{ tools | tojson }}<|im_end|>{% endif %}{%- for m in messages %}"
        "<|im_{{ m.role if m.role in ('user', 'assistant') else 'system' }}|>{{ m.name or m.role }}<|im_middle|>"
        "{%- if m.role == 'tool' %}## Return of {{ open.ids.pop(0) if open.ids else 'functions.' ~ (m.name or 'unknown') ~ ':' ~ open.n }}\n{% endif %}{{ m.content }}"
        "{%- if m.tool_calls %}<|tool_calls_section_begin|>{% for c in m.tool_calls %}{% set id = 'functions.' ~ c.function.name ~ ':' ~ open.n %}"
        "{%- set open.n = open.n + 1 %}{% set _ = open.ids.append(id) %}<|tool_call_begin|>{{ id }}<|tool_call_argument_begin|>"
        "{{ c.function.arguments if c.function.arguments is string else c.function.arguments | tojson }}<|tool_call_end|>{% endfor %}<|tool_calls_section_end|>{% endif %}"
        "<|im_end|>{%- endfor %}{% if add_generation_prompt %}<|im_assistant|>assistant<|im_middle|>{% endif %}",
        added=KIMI,
    ),
    "mistral with names and ids": Habit(
        "<s>{%- if messages[0].role == 'system' %}[SYSTEM_PROMPT]{{ messages[0].content }}[/SYSTEM_PROMPT]{% endif %}"
        "{%- if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}{%- for m in messages %}"
        "{%- if m.role == 'user' %}[INST]{{ m.content }}[/INST]{%- elif m.role == 'assistant' %}{{ m.content }}{%- for c in m.tool_calls or [] %}"
        "{%- if c.id | length != 9 %}{{ raise_exception('nine characters!') }}{% endif %}[TOOL_CALLS]{{ c.function.name }}[CALL_ID]{{ c.id }}[ARGS]{{ c.function.arguments | tojson }}{%- endfor %}</s>"
        "{%- elif m.role == 'tool' %}[TOOL_RESULTS]{{ m.tool_call_id }}[TOOL_CONTENT]{{ m.content }}[/TOOL_RESULTS]{%- endif %}{%- endfor %}",
        added=MISTRAL,
    ),
    "llama-3.2": Habit(
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nToday Date: {{ strftime_now('%d %b %Y') }}\n\n"
        "{% if messages[0].role == 'system' %}{{ messages[0].content | trim }}{% set messages = messages[1:] %}{% endif %}<|eot_id|>"
        "{%- for m in messages %}{%- if m.role == 'user' %}<|start_header_id|>user<|end_header_id|>\n\n"
        "{% if loop.first and tools %}Tools: {% for t in tools %}{{ t | tojson(indent=4) }}\n\n{% endfor %}{% endif %}{{ m.content | trim }}<|eot_id|>"
        "{%- elif m.role == 'assistant' %}<|start_header_id|>assistant<|end_header_id|>\n\n"
        "{% if 'tool_calls' in m %}{%- if m.tool_calls | length != 1 %}{{ raise_exception('single tool-calls') }}{% endif %}"
        '{"name": "{{ m.tool_calls[0].function.name }}", "parameters": {{ m.tool_calls[0].function.arguments | tojson }}}'
        "{%- else %}{{ m.content | trim }}{% endif %}<|eot_id|>"
        "{%- elif m.role == 'tool' %}<|start_header_id|>ipython<|end_header_id|>\n\n{{ m.content | tojson }}<|eot_id|>{%- endif %}{%- endfor %}"
        "{%- if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}",
        EXACT | unsupported(Edge.CALLS) | rewritten(Edge.WORDS_AND_CALL, Edge.REASONED_CALL, Edge.REASONED_SECOND_CALL),
        LLAMA,
    ),
    # Command: calls in one list, replies between tokens of their own, and the header ends thinking
    "command": Habit(
        "<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>{{ messages[0].content if messages[0].role == 'system' }}{% for t in tools or [] %}\n{{ t | tojson }}{% endfor %}<|END_OF_TURN_TOKEN|>"
        "{%- for m in messages %}{%- if m.role == 'user' %}<|START_OF_TURN_TOKEN|><|USER_TOKEN|>{{ m.content }}<|END_OF_TURN_TOKEN|>"
        "{%- elif m.role == 'assistant' %}<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|><|START_THINKING|><|END_THINKING|>"
        "{% if m.reasoning_content %}<|START_THINKING|>{{ m.reasoning_content }}<|END_THINKING|>{% endif %}"
        "{% if m.content %}<|START_RESPONSE|>{{ m.content }}<|END_RESPONSE|>{% endif %}{% if m.tool_calls %}<|START_ACTION|>[\n"
        '{% for c in m.tool_calls %}    {"tool_call_id": "{{ c.id }}", "tool_name": "{{ c.function.name }}", "parameters": {{ c.function.arguments | tojson }}}{{ "," if not loop.last }}\n{% endfor %}'
        "]<|END_ACTION|>{% endif %}<|END_OF_TURN_TOKEN|>"
        "{%- elif m.role == 'tool' %}<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|><|START_TOOL_RESULT|>{{ m.tool_call_id }}: {{ m.content | tojson }}<|END_TOOL_RESULT|><|END_OF_TURN_TOKEN|>{%- endif %}{%- endfor %}"
        "{% if add_generation_prompt %}<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|><|START_THINKING|><|END_THINKING|>{% endif %}",
        added=COHERE,
    ),
    # Granite 3.3's list of calls has no end tag
    "granite-3.3": Habit(
        "{%- for m in messages %}<|start_of_role|>{{ m.role }}<|end_of_role|>{{ m.content }}{% if loop.first and tools %}{{ tools | tojson }}{% endif %}"
        "{%- for c in m.tool_calls or [] %}{{ '<|tool_call|>[' if loop.first else ', ' }}"
        '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}{{ "]" if loop.last }}{% endfor %}<|end_of_text|>\n'
        "{%- endfor %}{% if add_generation_prompt %}<|start_of_role|>assistant<|end_of_role|>{% endif %}",
        added=GRANITE,
    ),
    # Nemotron Nano v2: the header opens thinking
    "nemotron-nano-v2": Habit(
        "<SPECIAL_10>System\n{{ messages[0].content if messages[0].role == 'system' }}{% if tools %}\n<AVAILABLE_TOOLS>{{ tools | tojson }}</AVAILABLE_TOOLS>{% endif %}\n\n"
        "{%- for m in messages %}{%- if m.role == 'user' %}<SPECIAL_11>User\n{{ m.content }}\n"
        "{%- elif m.role == 'assistant' %}<SPECIAL_11>Assistant\n<think>\n{% if m.reasoning_content %}{{ m.reasoning_content }}\n{% endif %}</think>\n\n{{ m.content }}"
        "{%- for c in m.tool_calls or [] %}{{ '<TOOLCALL>[' if loop.first else ', ' }}"
        '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}{{ "]</TOOLCALL>" if loop.last }}{% endfor %}\n<SPECIAL_12>\n'
        "{%- elif m.role == 'tool' %}<SPECIAL_11>User\n<TOOL_RESPONSE>[{{ m.content }}]</TOOL_RESPONSE>{%- endif %}{%- endfor %}"
        "{% if add_generation_prompt %}<SPECIAL_11>Assistant\n<think>\n{% endif %}",
        added=NEMOTRON,
    ),
    # Apertus: the token that ends the calls ends the turn too, and the header comes and goes behind a result
    "apertus": Habit(
        "{%- set ns = namespace(open=false) %}<|system_start|>{{ messages[0].content if messages[0].role == 'system' }}<|system_end|>"
        "<|developer_start|>{{ tools | tojson if tools }}<|developer_end|>{%- for m in messages %}{%- if m.role == 'user' %}"
        "{{ '<|assistant_end|>' if ns.open }}{% set ns.open = false %}<|user_start|>{{ m.content }}<|user_end|>"
        "{%- elif m.role == 'assistant' %}{{ '<|assistant_start|>' if not ns.open }}{% set ns.open = true %}{{ m.content }}"
        '{%- if m.tool_calls %}<|tools_prefix|>[{% for c in m.tool_calls %}{"{{ c.function.name }}": {{ c.function.arguments | tojson }}}{{ ", " if not loop.last }}{% endfor %}]<|tools_suffix|>{% endif %}'
        "{%- elif m.role == 'tool' %}{{ '[' if loop.previtem.role != 'tool' else ', ' }}{{ m.content }}{{ ']' if loop.last or loop.nextitem.role != 'tool' }}{%- endif %}{%- endfor %}"
        "{% if add_generation_prompt %}<|assistant_start|>{% endif %}",
        EXACT | rewritten(Edge.SECOND_CALL, Edge.REPLY_AFTER_CALL, Edge.REASONED_SECOND_CALL, Edge.REASONED_REPLY),
        APERTUS,
    ),
    # Gemma 2: users and turns alternate, no system prompt, no tools
    "gemma": Habit(
        "<bos>{%- for m in messages %}{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('alternate!') }}{% endif %}"
        "<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content | trim }}<end_of_turn>\n{% endfor %}"
        "{%- if add_generation_prompt %}<start_of_turn>model\n{% endif %}",
        added=["<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"],
    ),
    # Phi-3: roles that it does not know are left out; the end of the text is marked
    "phi3": Habit(
        "{%- for m in messages %}{%- if m.role in ['system', 'user', 'assistant'] %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endif %}{% endfor %}"
        "{{ '<|assistant|>\n' if add_generation_prompt else '<|endoftext|>' }}",
        added=["<|system|>", "<|user|>", "<|assistant|>", "<|end|>", "<|endoftext|>"],
    ),
    # LFM2: lists the tools, and takes calls as words of the turn
    "lfm2": Habit(
        "<|startoftext|>{% if messages[0].role == 'system' or tools %}<|im_start|>system\n{{ messages[0].content if messages[0].role == 'system' }}"
        "{% if tools %}\nList of tools: <|tool_list_start|>{{ tools | tojson }}<|tool_list_end|>{% endif %}<|im_end|>\n{% endif %}"
        "{%- for m in messages %}{%- if m.role != 'system' %}<|im_start|>{{ m.role }}\n"
        "{{ '<|tool_response_start|>' + m.content + '<|tool_response_end|>' if m.role == 'tool' else m.content }}<|im_end|>\n{% endif %}{% endfor %}"
        "{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
        added=LFM,
    ),
    # LFM2.5: writes calls as in Python, and drops old thoughts
    "lfm2.5": Habit(
        "<|startoftext|>{% set ns = namespace(last=-1) %}{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
        "<|im_start|>system\n{{ messages[0].content if messages[0].role == 'system' }}\nList of tools: {{ tools | tojson if tools }}<|im_end|>\n"
        "{%- for m in messages %}{%- if m.role != 'system' %}<|im_start|>{{ m.role }}\n"
        "{% if m.thinking and (preserve_thinking or loop.index0 > ns.last) %}<think>{{ m.thinking }}</think>{% endif %}{{ m.content }}"
        "{%- if m.tool_calls %}<|tool_call_start|>[{% for c in m.tool_calls %}{{ ', ' if not loop.first }}{{ c.function.name }}("
        "{%- for k, v in c.function.arguments.items() %}{{ ', ' if not loop.first }}{{ k }}={{ '\\'' + v + '\\'' if v is string else v | tojson }}{% endfor %}){% endfor %}]<|tool_call_end|>{% endif %}"
        "<|im_end|>\n{% endif %}{% endfor %}{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
        added=[*LFM, *THINK],
    ),
    # R1's distilled models: the end of a turn is missing behind its first call
    "deepseek-r1": Habit(
        "<｜begin▁of▁sentence｜>{% if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}{%- for m in messages %}"
        "{%- if m.role == 'user' %}<｜User｜>{{ m.content }}{% endif %}"
        "{%- if m.role == 'assistant' and m.content is not none %}<｜Assistant｜>{{ m.content.split('</think>')[-1] }}<｜end▁of▁sentence｜>{% endif %}"
        "{%- if m.role == 'tool' %}<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>{{ m.content }}<｜tool▁output▁end｜>{% endif %}{%- endfor %}"
        "{%- if add_generation_prompt %}<｜Assistant｜><think>\n{% endif %}",
        EXACT | rewritten(*(set(Edge) - {Edge.OPEN})),
        DEEPSEEK,
    ),
}
REFUSED: dict[str, tuple[str, str]] = {
    # name: template, why
    "chatml without tools": (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
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
                "{% for c in m.tool_calls or [] %}[{{ c.function.name }}(x={{ c.function.arguments.x | tojson }})]{% endfor %}",
            )
        ),
        "in no format",
    ),
    "refuses turns": (chatml(turn="{{ raise_exception('users only') }}"), "cannot write a tool call"),
    "no token ends a turn": (
        chatml().replace("<|im_end|>", "\n\n").replace("<|im_start|>", "### "),
        "in no format",
    ),
}
