# ruff: noqa: E501  (templates, one habit a line)
"""Chat templates with the habits of further model families, each in the smallest form that shows them."""

from rollq_worker.tokens.selfcheck.conversations import Edge
from tests.rollq_worker.tokens.expected_edges import EXACT, TOOL_EDGES, rewritten
from tests.rollq_worker.tokens.models import LLAMA, THINK
from tests.rollq_worker.tokens.template_habits import Habit

LLAMA_MESSAGE = (
    "{%- if m.role != 'assistant' %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content }}<|eot_id|>"
)
LLAMA_HEADER = "<|start_header_id|>assistant<|end_header_id|>\n\n"
SOLAR = [
    *["<|begin|>", "<|end|>", "<|content|>", "<|think|>", "<|flush|>", "<|calls|>", "<|tool_calls|>"],
    *["<|tool_call:begin|>", "<|tool_call:name|>", "<|tool_call:args|>", "<|tool_call:end|>", "<|tool_response|>"],
    *["<|tool_response:begin|>", "<|tool_response:name|>", "<|tool_response:result|>", "<|tool_response:end|>"],
]
APRIEL = [
    *["<|system|>", "<|user|>", "<|assistant|>", "<|tool_result|>", "<|end|>", "<tool_calls>", "</tool_calls>"],
    *["[BEGIN FINAL RESPONSE]", "[END FINAL RESPONSE]"],
]
HUNYUAN = [
    *[f"<｜{name}:opensource｜>" for name in ("hy_begin_of_sentence", "hy_User", "hy_Assistant", "hy_eos")],
    *[
        f"<{end}{name}:opensource>"
        for name in ("think", "tool_calls", "tool_call", "arg_key", "arg_value", "tool_responses", "tool_response")
        for end in ("", "/")
    ],
    "<tool_sep:opensource>",
]
MINIMAX_M1 = ["<begin_of_document>", "<beginning_of_sentence>", "<end_of_sentence>"]
LAGUNA = ["<system>", "</system>", "<user>", "</user>", "<assistant>", "</assistant>", "<tool_call>", "</tool_call>"]
HIDDEN_WORDS = rewritten(Edge.WORDS_AND_CALL, Edge.REASONED_CALL, Edge.REASONED_SECOND_CALL)

FAMILY_HABITS: dict[str, Habit] = {
    # Functionary 3.1: a turn with calls ends with another token
    "functionary-v3.1": Habit(
        "<|begin_of_text|>{% for t in tools or [] %}{{ t | tojson }}\n{% endfor %}<|eot_id|>{%- for m in messages %}"
        + LLAMA_MESSAGE
        + "{%- else %}"
        + LLAMA_HEADER
        + "{{ m.content }}{% for c in m.tool_calls or [] %}<function={{ c.function.name }}>{{ c.function.arguments | tojson }}</function>{% endfor %}"
        "{{ '<|eom_id|>' if m.tool_calls else '<|eot_id|>' }}{%- endif %}{%- endfor %}{% if add_generation_prompt %}"
        + LLAMA_HEADER
        + "{% endif %}",
        added=LLAMA,
    ),
    # Functionary 3.2: the header opens the first message, and arguments are text
    "functionary-v3.2": Habit(
        "<|begin_of_text|>{% for t in tools or [] %}{{ t | tojson }}\n{% endfor %}<|eot_id|>{%- for m in messages %}"
        + LLAMA_MESSAGE
        + "{%- else %}"
        + LLAMA_HEADER
        + "{% if m.content %}>>>all\n{{ m.content }}{% endif %}{% for c in m.tool_calls or [] %}{{ '>>>' + c.function.name + '\n' + c.function.arguments }}{% endfor %}<|eot_id|>"
        "{%- endif %}{%- endfor %}{% if add_generation_prompt %}" + LLAMA_HEADER + ">>>{% endif %}",
        added=LLAMA,
    ),
    # Solar: thoughts, words and calls are messages; words beside calls are left out
    "solar": Habit(
        "<|begin|>system<|content|>{{ messages[0].content if messages[0].role == 'system' }}{% for t in tools or [] %}{{ t.function | tojson }}{% endfor %}<|end|>"
        "{%- set ns = namespace(last=0) %}{%- for m in messages %}{%- if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}{%- for m in messages %}"
        "{%- if m.role == 'user' %}<|begin|>user<|content|>{{ m.content }}<|end|>"
        "{%- elif m.role == 'tool' %}{{ '<|begin|>tool<|tool_response|>' if loop.previtem.role != 'tool' }}<|tool_response:begin|>{{ m.tool_call_id }}<|tool_response:name|>{{ m.name }}"
        "<|tool_response:result|>{{ m.content }}<|tool_response:end|>{{ '<|end|>' if loop.last or loop.nextitem.role != 'tool' }}"
        "{%- elif m.role == 'assistant' %}{% if m.reasoning and (think_render_option == 'all' or loop.index0 > ns.last) %}<|begin|>assistant<|think|>{{ m.reasoning }}<|end|>{% endif %}"
        "{%- if m.tool_calls %}<|begin|>assistant<|tool_calls|>{% for c in m.tool_calls %}<|tool_call:begin|>{{ c.id }}<|tool_call:name|>{{ c.function.name }}<|tool_call:args|>"
        "{{ c.function.arguments | tojson }}<|tool_call:end|>{% endfor %}<|calls|>{% else %}<|begin|>assistant<|content|>{{ m.content }}<|end|>{% endif %}{%- endif %}{%- endfor %}"
        "{% if add_generation_prompt %}<|begin|>assistant{% endif %}",
        EXACT | rewritten(Edge.WORDS_AND_CALL),
        SOLAR,
    ),
    # GigaChat 3: a call is a message behind that of the words, and there is one a turn
    "gigachat3": Habit(
        "<s>{%- for m in messages %}{{ 'function result' if m.role == 'tool' else m.role }}<|role_sep|>\n{{ m.content }}<|message_sep|>\n\n"
        "{% if loop.first and tools %}functions<|role_sep|>\n{{ tools | tojson }}<|message_sep|>\n\n{% endif %}"
        '{% if m.tool_calls %}function call<|role_sep|>\n{"name": "{{ m.tool_calls[0].function.name }}", "arguments": {{ m.tool_calls[0].function.arguments | tojson }}}<|message_sep|>\n\n{% endif %}'
        "{%- endfor %}{% if add_generation_prompt %}assistant<|role_sep|>\n{% endif %}",
        EXACT | rewritten(Edge.CALLS),
        ["<s>", "</s>", "<|role_sep|>", "<|message_sep|>"],
    ),
    # GigaChat 3.1: a token stands before the call; its tokens hold line breaks
    "gigachat3.1": Habit(
        "<s>{%- for m in messages %}{{ 'function result' if m.role == 'tool' else m.role }}<|role_sep|>\n{{ m.content }}"
        '{% if m.tool_calls %}<|function_call|>{"name": "{{ m.tool_calls[0].function.name }}", "arguments": {{ m.tool_calls[0].function.arguments | tojson }}}{% endif %}<|message_sep|>\n\n'
        "{% if loop.first and tools %}functions<|role_sep|>\n{{ tools | tojson }}<|message_sep|>\n\n{% endif %}"
        "{%- endfor %}{% if add_generation_prompt %}assistant<|role_sep|>\n{% endif %}",
        EXACT | rewritten(Edge.CALLS),
        ["<s>", "</s>", "<|role_sep|>\n", "<|message_sep|>\n\n", "<|function_call|>"],
    ),
    # Apriel: an earlier call gets an id, which the last one has not
    "apriel": Habit(
        "{%- for m in messages %}{{ '<|tool_result|>' if m.role == 'tool' else '<|' + m.role + '|>' }}\n{{ m.content }}{% if loop.first and tools %}{{ tools | tojson }}{% endif %}"
        "{%- set last = loop.last %}{%- if m.tool_calls %}\n<tool_calls>[{% for c in m.tool_calls %}"
        '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}{% if not last %}, "id": "{{ c.id }}"{% endif %}}{{ ", " if not loop.last }}{% endfor %}]</tool_calls>{% endif %}'
        "\n<|end|>\n{%- endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}",
        EXACT | rewritten(*set(TOOL_EDGES) - {Edge.MALFORMED}, Edge.REASONED_CALL, Edge.REASONED_SECOND_CALL),
        APRIEL,
    ),
    # MiniMax M1: calls in lines; words beside them are left out
    "minimax-m1": Habit(
        "<begin_of_document>{%- for m in messages %}<beginning_of_sentence>{{ m.role }}\n{% if loop.first and tools %}{{ tools | tojson }}\n{% endif %}"
        '{%- if m.tool_calls %}<tool_calls>\n{% for c in m.tool_calls %}{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n{% endfor %}</tool_calls>{% else %}{{ m.content }}{% endif %}'
        "<end_of_sentence>\n{% endfor %}{% if add_generation_prompt %}<beginning_of_sentence>assistant\n{% endif %}",
        EXACT | HIDDEN_WORDS,
        MINIMAX_M1,
    ),
    # Laguna: GLM's calls in messages that have tags
    "laguna": Habit(
        "{%- for m in messages %}{% set tag = 'tool_response' if m.role == 'tool' else m.role %}<{{ tag }}>{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}"
        "{% if loop.first and tools %}{{ tools | tojson }}{% endif %}{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }}{% for k, v in c.function.arguments.items() %}"
        "<arg_key>{{ k }}</arg_key><arg_value>{{ v if v is string else v | tojson }}</arg_value>{% endfor %}</tool_call>{% endfor %}</{{ tag }}>\n{% endfor %}"
        "{%- if add_generation_prompt %}<assistant>{% endif %}",
        added=[*LAGUNA, *THINK],
    ),
    # Hunyuan 3: every tag has a mark
    "hunyuan3": Habit(
        "{%- set x = ':opensource' %}<｜hy_begin_of_sentence:opensource｜>{%- for m in messages %}{%- if m.role == 'system' %}{{ m.content }}{{ tools | tojson if tools }}"
        "{%- elif m.role == 'user' %}<｜hy_User:opensource｜>{{ m.content }}{%- elif m.role == 'tool' %}{{ '<tool_responses:opensource>' if loop.previtem.role != 'tool' }}"
        "\n<tool_response:opensource>\n{{ m.content }}\n</tool_response:opensource>{{ '\n</tool_responses:opensource>' if loop.last or loop.nextitem.role != 'tool' }}"
        "{%- else %}<｜hy_Assistant:opensource｜>{% if m.reasoning_content %}<think{{ x }}>{{ m.reasoning_content }}</think{{ x }}>{% endif %}{{ m.content }}{% if m.tool_calls %}<tool_calls{{ x }}>\n{% for c in m.tool_calls %}<tool_call{{ x }}>{{ c.function.name }}<tool_sep{{ x }}>\n"
        "{%- for k, v in c.function.arguments.items() %}<arg_key{{ x }}>{{ k }}</arg_key{{ x }}>\n<arg_value{{ x }}>{{ v if v is string else v | tojson }}</arg_value{{ x }}>\n{% endfor %}</tool_call{{ x }}>\n{% endfor %}</tool_calls{{ x }}>{% endif %}"
        "<｜hy_eos:opensource｜>{%- endif %}{%- endfor %}{% if add_generation_prompt %}<｜hy_Assistant:opensource｜>{% endif %}",
        added=HUNYUAN,
    ),
    # Kimi K3: every part of a message opens and closes, and values say their type
    "kimi-k3": Habit(
        "{%- macro open(tag) %}<|open|>{{ tag }}<|sep|>{% endmacro %}{%- macro close(tag) %}<|close|>{{ tag }}<|sep|>{% endmacro %}{%- for m in messages %}"
        "{{ open('message role=\"' + m.role + '\"') }}{% if loop.first and tools %}{{ tools | tojson }}{% endif %}{%- if m.role == 'assistant' %}"
        "{% if m.reasoning_content %}{{ open('think') + m.reasoning_content + close('think') }}{% endif %}{{ open('response') + m.content + close('response') }}"
        "{%- if m.tool_calls %}{{ open('tools') }}{% for c in m.tool_calls %}{{ open('call tool=\"' + c.function.name + '\" index=\"' + loop.index | string + '\"') }}"
        "{%- for k, v in c.function.arguments.items() %}{{ open('argument key=\"' + k + '\" type=\"' + ('string' if v is string else 'object') + '\"') }}{{ v if v is string else v | tojson }}{{ close('argument') }}{% endfor %}"
        "{{ close('call') }}{% endfor %}{{ close('tools') }}{% endif %}{% else %}{{ m.content }}{% endif %}{{ close('message') }}<|end_of_msg|>{%- endfor %}"
        "{% if add_generation_prompt %}{{ open('message role=\"assistant\"') }}{% endif %}",
        added=["<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"],
    ),
    # MiniCPM5: functions stand without a block, awkward values in sections, others as Python prints them
    "minicpm5": Habit(
        "{%- for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% if loop.first and tools %}{{ tools | tojson }}{% endif %}"
        "{%- for c in m.tool_calls or [] %}{{ '\n' if m.content or not loop.first }}<function name=\"{{ c.function.name }}\">{% for k, v in c.function.arguments.items() %}"
        "<param name=\"{{ k }}\">{% if v is string and ('<' in v or '\n' in v) %}<![CDATA[{{ v }}]]>{% else %}{{ v }}{% endif %}</param>{% endfor %}</function>{% endfor %}<|im_end|>\n"
        "{%- endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    ),
    # MiniMax-M3: every tag begins with a token, and values are nested
    "minimax-m3": Habit(
        "{%- set x = ']<]minimax[>[' %}{%- macro xml(v) %}{% if v is mapping %}{% for k, w in v.items() %}{{ x }}<{{ k }}>{{ xml(w) }}{{ x }}</{{ k }}>{% endfor %}{% elif v is string %}{{ v }}"
        "{% elif v is iterable %}{% for w in v %}{{ x }}<item>{{ xml(w) }}{{ x }}</item>{% endfor %}{% else %}{{ v | tojson }}{% endif %}{% endmacro %}"
        "]~!b[{%- for m in messages %}]~b]{{ 'ai' if m.role == 'assistant' else m.role }}\n{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content }}"
        '{% if loop.first and tools %}{{ tools | tojson }}{% endif %}{% if m.tool_calls %}{{ x }}<tool_call>\n{% for c in m.tool_calls %}{{ x }}<invoke name="{{ c.function.name }}">\n'
        "{%- for k, v in c.function.arguments.items() %}{{ x }}<{{ k }}>{{ xml(v) }}{{ x }}</{{ k }}>\n{% endfor %}{{ x }}</invoke>\n{% endfor %}{{ x }}</tool_call>{% endif %}[e~[\n{% endfor %}"
        "{%- if add_generation_prompt %}]~b]ai\n{% endif %}",
        added=["]~!b[", "]~b]", "[e~[", "]<]minimax[>[", *THINK],
    ),
    # Muse Glimmer: messages to recipients, with markup for calls
    "muse": Habit(
        "{%- for m in messages %}{% if m.role != 'assistant' %}<|start|>{{ m.role }}{{ ' ' + m.name if m.role == 'tool' and m.name }}<|message|>{{ m.content }}{% if loop.first and tools %}{{ tools | tojson }}{% endif %}<|eot|>"
        "{%- else %}{% if m.reasoning_content %}<|start|>assistant to=self<|message|>{{ m.reasoning_content }}<|eom|>{% endif %}{% if m.content or not m.tool_calls %}<|start|>assistant to=user<|message|>{{ m.content }}{{ '<|eom|>' if m.tool_calls else '<|eot|>' }}{% endif %}"
        '{%- for c in m.tool_calls or [] %}<|start|>assistant to={{ c.function.name }}<|message|><atem:function_calls>\n<atem:invoke name="{{ c.function.name }}">\n{% for k, v in c.function.arguments.items() %}'
        "<atem:parameter name=\"{{ k }}\">{{ v if v is string else v | tojson }}</atem:parameter>\n{% endfor %}</atem:invoke>\n</atem:function_calls>{{ '<|eot|>' if loop.last else '<|eom|>' }}{% endfor %}"
        "{%- endif %}{%- endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}",
        added=["<|start|>", "<|message|>", "<|eom|>", "<|eot|>"],
    ),
    # Inkling: each message says of which kind it is, and another token ends the turn
    "inkling": Habit(
        "{%- set token = {'user': '<|message_user|>', 'assistant': '<|message_model|>', 'system': '<|message_system|>', 'tool': '<|message_tool|>'} %}{% if tools %}<|message_system|>tool_declare<|content_text|>{{ tools | tojson }}<|end_message|>{% endif %}"
        "{%- for m in messages %}{% if m.role == 'tool' %}<|message_tool|>{{ m.name or '' }}<|content_text|>{{ m.content }}<|end_message|>{% else %}{% if m.reasoning_content %}<|message_model|><|content_thinking|>{{ m.reasoning_content }}<|end_message|>{% endif %}"
        "{% if m.content %}{{ token[m.role] }}<|content_text|>{{ m.content }}<|end_message|>{% endif %}{% for c in m.tool_calls or [] %}<|message_model|>{{ c.function.name }}<|content_invoke_tool_json|>"
        "{{ '{\"name\":' }}{{ c.function.name | tojson }},\"args\":{{ c.function.arguments | tojson }}}<|end_message|>{% endfor %}{{ '<|content_model_end_sampling|>' if m.role == 'assistant' }}{% endif %}{%- endfor %}"
        "{% if add_generation_prompt %}<|message_model|>{% endif %}",
        added=[
            *[f"<|message_{role}|>" for role in ("user", "model", "system", "tool")],
            *[f"<|content_{kind}|>" for kind in ("text", "thinking", "invoke_tool_json", "model_end_sampling")],
            "<|end_message|>",
        ],
    ),
}
