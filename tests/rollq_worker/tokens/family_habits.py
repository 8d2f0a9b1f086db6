"""Chat templates with the habits of further model families, each in the smallest form that shows
them.
"""

from rollq_worker.tokens.selfcheck.conversations import Edge
from tests.rollq_worker.tokens.expected_edges import (
    ASKED_EDGES,
    EXACT,
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
)
from tests.rollq_worker.tokens.template_habits import HABITS, Habit

LLAMA_MESSAGE = (
    "{%- if m.role != 'assistant' %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ "
    "m.content }}<|eot_id|>"
)
LLAMA_HEADER = "<|start_header_id|>assistant<|end_header_id|>\n\n"
SOLAR = [
    "<|begin|>",
    "<|end|>",
    "<|content|>",
    "<|think|>",
    "<|flush|>",
    "<|calls|>",
    "<|tool_calls|>",
    "<|tool_call:begin|>",
    "<|tool_call:name|>",
    "<|tool_call:args|>",
    "<|tool_call:end|>",
    "<|tool_response|>",
    "<|tool_response:begin|>",
    "<|tool_response:name|>",
    "<|tool_response:result|>",
    "<|tool_response:end|>",
]
APRIEL = [
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|tool_result|>",
    "<|end|>",
    "<tool_calls>",
    "</tool_calls>",
    "[BEGIN FINAL RESPONSE]",
    "[END FINAL RESPONSE]",
]
HUNYUAN = [
    *[
        f"<｜{name}:opensource｜>"
        for name in ("hy_begin_of_sentence", "hy_User", "hy_Assistant", "hy_eos")
    ],
    *[
        f"<{end}{name}:opensource>"
        for name in (
            "think",
            "tool_calls",
            "tool_call",
            "arg_key",
            "arg_value",
            "tool_responses",
            "tool_response",
        )
        for end in ("", "/")
    ],
    "<tool_sep:opensource>",
]
HUNYUAN_4 = [token.replace("opensource", "6124c78e") for token in HUNYUAN[:-1]]
K2_HORIZON_TOKENS = [
    "<|ifm|im_start|>",
    "<|ifm|im_end|>",
    *[
        f"<{end}ifm|{name}>"
        for name in ("think", "tool_calls", "tool_call", "arg_key", "arg_type", "arg_value")
        for end in ("", "/")
    ],
]
K2_HORIZON = (
    "{%- set form = tool_call_format | default('FORM') %}{%- for m in messages %}<|ifm|im_start|>"
    "{{ m.role }}\n{% if loop.first and tools %}{{ tools | tojson }}{% endif %}"
    "{% if m.role == 'assistant' and m.reasoning_content is not defined %}"
    "{{ raise_exception('an assistant message lacks a field for reasoning') }}{% endif %}"
    "{% if m.reasoning_content %}<ifm|think>{{ m.reasoning_content }}</ifm|think>{% endif %}"
    "{{ m.content }}{% if m.tool_calls %}<ifm|tool_calls>{% for c in m.tool_calls %}"
    "<ifm|tool_call>{% if form == 'json' %}"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}'
    "{% else %}{{ c.function.name }}{% for k, v in c.function.arguments.items() %}"
    "<ifm|arg_key>{{ k }}</ifm|arg_key>{% if form == 'xml_typed' %}<ifm|arg_type>"
    "{{ 'string' if v is string else 'integer' if v is integer else 'object' }}</ifm|arg_type>"
    "{% endif %}<ifm|arg_value>{{ v if v is string else v | tojson }}</ifm|arg_value>{% endfor %}"
    "{% endif %}</ifm|tool_call>{% endfor %}</ifm|tool_calls>{% endif %}<|ifm|im_end|>\n"
    "{% endfor %}"
    "{%- if add_generation_prompt %}<|ifm|im_start|>assistant\n{% endif %}"
)
MINIMAX_M1 = ["<begin_of_document>", "<beginning_of_sentence>", "<end_of_sentence>"]
LAGUNA = [
    "<system>",
    "</system>",
    "<user>",
    "</user>",
    "<assistant>",
    "</assistant>",
    "<tool_call>",
    "</tool_call>",
]
LFM = [
    "<|startoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|tool_list_start|>",
    "<|tool_list_end|>",
    "<|tool_call_start|>",
    "<|tool_call_end|>",
    "<|tool_response_start|>",
    "<|tool_response_end|>",
]
HIDDEN_WORDS = rewritten(Edge.WORDS_AND_CALL, Edge.REASONED_CALL, Edge.REASONED_SECOND_CALL)

FAMILY_HABITS: dict[str, Habit] = {
    # Functionary 3.1: a turn with calls ends with another token
    "functionary-v3.1": Habit(
        "<|begin_of_text|>{% for t in tools or [] %}{{ t | tojson }}\n{% endfor "
        "%}<|eot_id|>{%- for m in messages %}"
        + LLAMA_MESSAGE
        + "{%- else %}"
        + LLAMA_HEADER
        + "{{ m.content }}{% for c in m.tool_calls or [] %}<function={{ c.function.name "
        "}}>{{ c.function.arguments | tojson }}</function>{% endfor %}"
        "{{ '<|eom_id|>' if m.tool_calls else '<|eot_id|>' }}{%- endif %}{%- endfor %}{% "
        "if add_generation_prompt %}" + LLAMA_HEADER + "{% endif %}",
        added=LLAMA,
    ),
    # Functionary 3.2: the header opens the first message, and arguments are text
    "functionary-v3.2": Habit(
        "<|begin_of_text|>{% for t in tools or [] %}{{ t | tojson }}\n{% endfor "
        "%}<|eot_id|>{%- for m in messages %}"
        + LLAMA_MESSAGE
        + "{%- else %}"
        + LLAMA_HEADER
        + "{% if m.content %}>>>all\n{{ m.content }}{% endif %}{% for c in m.tool_calls or "
        "[] %}{{ '>>>' + c.function.name + '\n' + c.function.arguments }}{% endfor "
        "%}<|eot_id|>"
        "{%- endif %}{%- endfor %}{% if add_generation_prompt %}" + LLAMA_HEADER + ">>>{% endif %}",
        added=LLAMA,
    ),
    # Solar: thoughts, words and calls are messages; words beside calls are left out
    "solar": Habit(
        "<|begin|>system<|content|>{{ messages[0].content if messages[0].role == "
        "'system' }}{% for t in tools or [] %}{{ t.function | tojson }}{% endfor "
        "%}<|end|>"
        "{%- set ns = namespace(last=0) %}{%- for m in messages %}{%- if m.role == "
        "'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}{%- for m in "
        "messages %}"
        "{%- if m.role == 'user' %}<|begin|>user<|content|>{{ m.content }}<|end|>"
        "{%- elif m.role == 'tool' %}{{ '<|begin|>tool<|tool_response|>' if "
        "loop.previtem.role != 'tool' }}<|tool_response:begin|>{{ m.tool_call_id "
        "}}<|tool_response:name|>{{ m.name }}"
        "<|tool_response:result|>{{ m.content }}<|tool_response:end|>{{ '<|end|>' if "
        "loop.last or loop.nextitem.role != 'tool' }}"
        "{%- elif m.role == 'assistant' %}{% if m.reasoning and (think_render_option == "
        "'all' or loop.index0 > ns.last) %}<|begin|>assistant<|think|>{{ m.reasoning "
        "}}<|end|>{% endif %}"
        "{%- if m.tool_calls %}<|begin|>assistant<|tool_calls|>{% for c in m.tool_calls "
        "%}<|tool_call:begin|>{{ c.id }}<|tool_call:name|>{{ c.function.name "
        "}}<|tool_call:args|>"
        "{{ c.function.arguments | tojson }}<|tool_call:end|>{% endfor %}<|calls|>{% "
        "else %}<|begin|>assistant<|content|>{{ m.content }}<|end|>{% endif %}{%- endif "
        "%}{%- endfor %}"
        "{% if add_generation_prompt %}<|begin|>assistant{% endif %}",
        EXACT | rewritten(Edge.WORDS_AND_CALL),
        SOLAR,
    ),
    # GigaChat 3: a call is a message behind that of the words, and there is one a turn
    "gigachat3": Habit(
        "<s>{%- for m in messages %}{{ 'function result' if m.role == 'tool' else m.role "
        "}}<|role_sep|>\n{{ m.content }}<|message_sep|>\n\n"
        "{% if loop.first and tools %}functions<|role_sep|>\n{{ tools | tojson "
        "}}<|message_sep|>\n\n{% endif %}"
        '{% if m.tool_calls %}function call<|role_sep|>\n{"name": "{{ '
        'm.tool_calls[0].function.name }}", "arguments": {{ '
        "m.tool_calls[0].function.arguments | tojson }}}<|message_sep|>\n\n{% endif %}"
        "{%- endfor %}{% if add_generation_prompt %}assistant<|role_sep|>\n{% endif %}",
        EXACT | rewritten(Edge.CALLS),
        ["<s>", "</s>", "<|role_sep|>", "<|message_sep|>"],
    ),
    # GigaChat 3.1: a token stands before the call; its tokens hold line breaks
    "gigachat3.1": Habit(
        "<s>{%- for m in messages %}{{ 'function result' if m.role == 'tool' else m.role "
        "}}<|role_sep|>\n{{ m.content }}"
        '{% if m.tool_calls %}<|function_call|>{"name": "{{ '
        'm.tool_calls[0].function.name }}", "arguments": {{ '
        "m.tool_calls[0].function.arguments | tojson }}}{% endif %}<|message_sep|>\n\n"
        "{% if loop.first and tools %}functions<|role_sep|>\n{{ tools | tojson "
        "}}<|message_sep|>\n\n{% endif %}"
        "{%- endfor %}{% if add_generation_prompt %}assistant<|role_sep|>\n{% endif %}",
        EXACT | rewritten(Edge.CALLS),
        ["<s>", "</s>", "<|role_sep|>\n", "<|message_sep|>\n\n", "<|function_call|>"],
    ),
    # Apriel: an earlier call gets an id, which the last one has not
    "apriel": Habit(
        "{%- for m in messages %}{{ '<|tool_result|>' if m.role == 'tool' else '<|' + "
        "m.role + '|>' }}\n{{ m.content }}{% if loop.first and tools %}{{ tools | tojson "
        "}}{% endif %}"
        "{%- set last = loop.last %}{%- if m.tool_calls %}\n<tool_calls>[{% for c "
        "in m.tool_calls %}"
        '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson '
        '}}{% if not last %}, "id": "{{ c.id }}"{% endif %}}{{ ", " if not loop.last '
        "}}{% endfor %}]</tool_calls>{% endif %}"
        "\n<|end|>\n{%- endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}",
        EXACT
        | rewritten(
            *set(TOOL_EDGES) - {Edge.MALFORMED},
            Edge.ASKED_AFTER_CALL,
            Edge.REASONED_CALL,
            Edge.REASONED_SECOND_CALL,
        ),
        APRIEL,
    ),
    # MiniMax M1: calls in lines; words beside them are left out
    "minimax-m1": Habit(
        "<begin_of_document>{%- for m in messages %}<beginning_of_sentence>{{ m.role "
        "}}\n{% if loop.first and tools %}{{ tools | tojson }}\n{% endif %}"
        '{%- if m.tool_calls %}<tool_calls>\n{% for c in m.tool_calls %}{"name": "{{ '
        'c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n{% '
        "endfor %}</tool_calls>{% else %}{{ m.content }}{% endif %}"
        "<end_of_sentence>\n{% endfor %}{% if add_generation_prompt "
        "%}<beginning_of_sentence>assistant\n{% endif %}",
        EXACT | HIDDEN_WORDS,
        MINIMAX_M1,
    ),
    # Laguna: GLM's calls in messages that have tags
    "laguna": Habit(
        "{%- for m in messages %}{% set tag = 'tool_response' if m.role == 'tool' else "
        "m.role %}<{{ tag }}>{% if m.reasoning_content %}<think>{{ m.reasoning_content "
        "}}</think>{% endif %}{{ m.content }}"
        "{% if loop.first and tools %}{{ tools | tojson }}{% endif %}{% for c in "
        "m.tool_calls or [] %}<tool_call>{{ c.function.name }}{% for k, v in "
        "c.function.arguments.items() %}"
        "<arg_key>{{ k }}</arg_key><arg_value>{{ v if v is string else v | tojson "
        "}}</arg_value>{% endfor %}</tool_call>{% endfor %}</{{ tag }}>\n{% endfor %}"
        "{%- if add_generation_prompt %}<assistant>{% endif %}",
        added=[*LAGUNA, *THINK],
    ),
    # Hunyuan 3: every tag has a mark
    "hunyuan3": Habit(
        "{%- set x = ':opensource' %}<｜hy_begin_of_sentence:opensource｜>{%- for m in "
        "messages %}{%- if m.role == 'system' %}{{ m.content }}{{ tools | tojson if "
        "tools }}"
        "{%- elif m.role == 'user' %}<｜hy_User:opensource｜>{{ m.content }}{%- elif "
        "m.role == 'tool' %}{{ '<tool_responses:opensource>' if loop.previtem.role != "
        "'tool' }}"
        "\n<tool_response:opensource>\n{{ m.content }}\n</tool_response:opensource>{{ "
        "'\n</tool_responses:opensource>' if loop.last or loop.nextitem.role != 'tool' }}"
        "{%- else %}<｜hy_Assistant:opensource｜>{% if m.reasoning_content %}<think{{ x "
        "}}>{{ m.reasoning_content }}</think{{ x }}>{% endif %}{{ m.content }}{% if "
        "m.tool_calls %}<tool_calls{{ x }}>\n{% for c in m.tool_calls %}<tool_call{{ x "
        "}}>{{ c.function.name }}<tool_sep{{ x }}>\n"
        "{%- for k, v in c.function.arguments.items() %}<arg_key{{ x }}>{{ k "
        "}}</arg_key{{ x }}>\n<arg_value{{ x }}>{{ v if v is string else v | tojson "
        "}}</arg_value{{ x }}>\n{% endfor %}</tool_call{{ x }}>\n{% endfor "
        "%}</tool_calls{{ x }}>{% endif %}"
        "<｜hy_eos:opensource｜>{%- endif %}{%- endfor %}{% if add_generation_prompt "
        "%}<｜hy_Assistant:opensource｜>{% endif %}",
        added=HUNYUAN,
    ),
    # Hunyuan 4: the mark is each checkpoint's own
    "hunyuan4": Habit(
        "{%- set x = ':6124c78e' %}<｜hy_begin_of_sentence:6124c78e｜>{%- for m in messages %}"
        "{%- if m.role == 'system' %}{{ m.content }}{{ tools | tojson if tools }}"
        "{%- elif m.role == 'assistant' %}<｜hy_Assistant:6124c78e｜>{% if m.reasoning_content "
        "%}<think{{ x }}>{{ m.reasoning_content }}</think{{ x }}>{% endif %}{{ m.content }}"
        "{% if m.tool_calls %}<tool_calls{{ x }}>{% for c in m.tool_calls %}<tool_call{{ x }}>"
        "{{ c.function.name }}{% for k, v in c.function.arguments.items() %}<arg_key{{ x }}>"
        "{{ k }}</arg_key{{ x }}><arg_value{{ x }}>{{ v if v is string else v | tojson "
        "}}</arg_value{{ x }}>{% endfor %}</tool_call{{ x }}>{% endfor %}</tool_calls{{ x }}>"
        "{% endif %}<｜hy_eos:6124c78e｜>{%- else %}<｜hy_User:6124c78e｜>{{ m.content }}"
        "{%- endif %}{%- endfor %}{% if add_generation_prompt %}<｜hy_Assistant:6124c78e｜>"
        "{% endif %}",
        added=HUNYUAN_4,
    ),
    # K2 Horizon: the form of calls is an argument of the template
    "k2-horizon": Habit(K2_HORIZON.replace("FORM", "xml"), added=K2_HORIZON_TOKENS),
    "k2-horizon-typed": Habit(K2_HORIZON.replace("FORM", "xml_typed"), added=K2_HORIZON_TOKENS),
    "k2-horizon-json": Habit(K2_HORIZON.replace("FORM", "json"), added=K2_HORIZON_TOKENS),
    # Kimi K3: every part of a message opens and closes, and values say their type
    "kimi-k3": Habit(
        "{%- macro open(tag) %}<|open|>{{ tag }}<|sep|>{% endmacro %}{%- macro "
        "close(tag) %}<|close|>{{ tag }}<|sep|>{% endmacro %}{%- for m in messages %}"
        "{{ open('message role=\"' + m.role + '\"') }}{% if loop.first and tools %}{{ "
        "tools | tojson }}{% endif %}{%- if m.role == 'assistant' %}"
        "{% if m.reasoning_content %}{{ open('think') + m.reasoning_content + "
        "close('think') }}{% endif %}{{ open('response') + m.content + close('response') "
        "}}"
        "{%- if m.tool_calls %}{{ open('tools') }}{% for c in m.tool_calls %}{{ "
        "open('call tool=\"' + c.function.name + '\" index=\"' + loop.index | string + "
        "'\"') }}"
        "{%- for k, v in c.function.arguments.items() %}{{ open('argument key=\"' + k + "
        "'\" type=\"' + ('string' if v is string else 'object') + '\"') }}{{ v if v is "
        "string else v | tojson }}{{ close('argument') }}{% endfor %}"
        "{{ close('call') }}{% endfor %}{{ close('tools') }}{% endif %}{% else %}{{ "
        "m.content }}{% endif %}{{ close('message') }}<|end_of_msg|>{%- endfor %}"
        "{% if add_generation_prompt %}{{ open('message role=\"assistant\"') }}{% endif %}",
        added=["<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"],
    ),
    # MiniCPM5: functions stand without a block, awkward values in sections, others as Python prints
    # them
    "minicpm5": Habit(
        "{%- for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% if "
        "loop.first and tools %}{{ tools | tojson }}{% endif %}"
        "{%- for c in m.tool_calls or [] %}{{ '\n' if m.content or not loop.first "
        '}}<function name="{{ c.function.name }}">{% for k, v in '
        "c.function.arguments.items() %}"
        "<param name=\"{{ k }}\">{% if v is string and ('<' in v or '\n' in v) "
        "%}<![CDATA[{{ v }}]]>{% else %}{{ v }}{% endif %}</param>{% endfor "
        "%}</function>{% endfor %}<|im_end|>\n"
        "{%- endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    ),
    # MiniMax-M3: every tag begins with a token, and values are nested
    "minimax-m3": Habit(
        "{%- set x = ']<]minimax[>[' %}{%- macro xml(v) %}{% if v is mapping %}{% for k, "
        "w in v.items() %}{{ x }}<{{ k }}>{{ xml(w) }}{{ x }}</{{ k }}>{% endfor %}{% "
        "elif v is string %}{{ v }}"
        "{% elif v is iterable %}{% for w in v %}{{ x }}<item>{{ xml(w) }}{{ x "
        "}}</item>{% endfor %}{% else %}{{ v | tojson }}{% endif %}{% endmacro %}"
        "]~!b[{%- for m in messages %}]~b]{{ 'ai' if m.role == 'assistant' else m.role "
        "}}\n{% if m.reasoning_content %}<mm:think>\n{{ m.reasoning_content "
        "}}\n</mm:think>\n\n{% endif %}{{ m.content }}"
        "{% if loop.first and tools %}{{ tools | tojson }}{% endif %}{% if m.tool_calls "
        '%}{{ x }}<tool_call>\n{% for c in m.tool_calls %}{{ x }}<invoke name="{{ '
        'c.function.name }}">\n'
        "{%- for k, v in c.function.arguments.items() %}{{ x }}<{{ k }}>{{ xml(v) }}{{ x "
        "}}</{{ k }}>\n{% endfor %}{{ x }}</invoke>\n{% endfor %}{{ x }}</tool_call>{% "
        "endif %}[e~[\n{% endfor %}"
        "{%- if add_generation_prompt %}]~b]ai\n{% endif %}",
        added=["]~!b[", "]~b]", "[e~[", "]<]minimax[>[", "<mm:think>", "</mm:think>"],
    ),
    # Muse Glimmer: messages to recipients, with markup for calls
    "muse": Habit(
        "{%- for m in messages %}{% if m.role != 'assistant' %}<|start|>{{ m.role }}{{ ' "
        "' + m.name if m.role == 'tool' and m.name }}<|message|>{{ m.content }}{% if "
        "loop.first and tools %}{{ tools | tojson }}{% endif %}<|eot|>"
        "{%- else %}{% if m.reasoning_content %}<|start|>assistant to=self<|message|>{{ "
        "m.reasoning_content }}<|eom|>{% endif %}{% if m.content or not m.tool_calls "
        "%}<|start|>assistant to=user<|message|>{{ m.content }}{{ '<|eom|>' if "
        "m.tool_calls else '<|eot|>' }}{% endif %}"
        "{%- for c in m.tool_calls or [] %}<|start|>assistant to={{ c.function.name "
        '}}<|message|><atem:function_calls>\n<atem:invoke name="{{ c.function.name '
        '}}">\n{% for k, v in c.function.arguments.items() %}'
        '<atem:parameter name="{{ k }}">{{ v if v is string else v | tojson '
        "}}</atem:parameter>\n{% endfor %}</atem:invoke>\n</atem:function_calls>{{ "
        "'<|eot|>' if loop.last else '<|eom|>' }}{% endfor %}"
        "{%- endif %}{%- endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}",
        added=["<|start|>", "<|message|>", "<|eom|>", "<|eot|>"],
    ),
    # Inkling: each message says of which kind it is, and another token ends the turn
    "inkling": Habit(
        "{%- set token = {'user': '<|message_user|>', 'assistant': '<|message_model|>', "
        "'system': '<|message_system|>', 'tool': '<|message_tool|>'} %}{% if tools "
        "%}<|message_system|>tool_declare<|content_text|>{{ tools | tojson "
        "}}<|end_message|>{% endif %}"
        "{%- for m in messages %}{% if m.role == 'tool' %}<|message_tool|>{{ m.name or "
        "'' }}<|content_text|>{{ m.content }}<|end_message|>{% else %}{% if "
        "m.reasoning_content %}<|message_model|><|content_thinking|>{{ "
        "m.reasoning_content }}<|end_message|>{% endif %}"
        "{% if m.content %}{{ token[m.role] }}<|content_text|>{{ m.content "
        "}}<|end_message|>{% endif %}{% for c in m.tool_calls or [] "
        "%}<|message_model|>{{ c.function.name }}<|content_invoke_tool_json|>"
        '{{ \'{"name":\' }}{{ c.function.name | tojson }},"args":{{ '
        "c.function.arguments | tojson }}}<|end_message|>{% endfor %}{{ "
        "'<|content_model_end_sampling|>' if m.role == 'assistant' }}{% endif %}{%- "
        "endfor %}"
        "{% if add_generation_prompt %}<|message_model|>{% endif %}",
        added=[
            *[f"<|message_{role}|>" for role in ("user", "model", "system", "tool")],
            *[
                f"<|content_{kind}|>"
                for kind in ("text", "thinking", "invoke_tool_json", "model_end_sampling")
            ],
            "<|end_message|>",
        ],
    ),
    # DeepSeek-V3's own template: the first result opens a section that the following ones only
    # continue
    "deepseek-v3": Habit(
        "{%- set ns = namespace(tool=false, first=true, sp='') %}{%- for m in messages "
        "%}{%- if m['role'] == 'system' %}{% set ns.sp = m['content'] %}{%- endif %}{%- "
        "endfor %}"
        "<｜begin▁of▁sentence｜>{{ ns.sp }}{% for t in tools or [] %}{{ t | tojson }}{% "
        "endfor %}{%- for m in messages %}"
        "{%- if m['role'] == 'user' %}{% set ns.tool = false %}<｜User｜>{{ "
        "m['content'] }}{%- endif %}"
        "{%- if m['role'] == 'assistant' and m['tool_calls'] %}{% set ns.tool = false "
        "%}<｜Assistant｜>{%- for c in m['tool_calls'] %}"
        "{{ '<｜tool▁calls▁begin｜>' if loop.first else '\n' }}{{ '<｜tool▁call▁begin｜>' + "
        "c['type'] + '<｜tool▁sep｜>' + c['function']['name'] + '\n```json\n' + "
        "c['function']['arguments'] + '\n```<｜tool▁call▁end｜>' }}"
        "{%- endfor %}<｜tool▁calls▁end｜><｜end▁of▁sentence｜>{%- endif %}"
        "{%- if m['role'] == 'assistant' and not m['tool_calls'] %}{{ "
        "'<｜tool▁outputs▁end｜>' if ns.tool else '<｜Assistant｜>' }}{% set ns.tool = false "
        "%}{{ m['content'] }}<｜end▁of▁sentence｜>{%- endif %}"
        "{%- if m['role'] == 'tool' %}{% set ns.tool = true %}{{ "
        "'<｜tool▁outputs▁begin｜>' if ns.first else '\n' }}<｜tool▁output▁begin｜>{{ "
        "m['content'] }}<｜tool▁output▁end｜>{% set ns.first = false %}{%- endif %}"
        "{%- endfor %}{%- if ns.tool %}<｜tool▁outputs▁end｜>{% endif %}{% if "
        "add_generation_prompt and not ns.tool %}<｜Assistant｜>{% endif %}",
        EXACT
        | rewritten(
            Edge.SECOND_CALL, Edge.WORDS_AND_CALL, Edge.REASONED_CALL, Edge.REASONED_SECOND_CALL
        ),
        DEEPSEEK,
    ),
    "kimi-k2": Habit(
        "{%- if tools %}<|im_system|>tool_declare<|im_middle|>{{ tools | tojson "
        "}}<|im_end|>{% endif %}{%- for m in messages %}"
        "{{ '<|im_' + (m.role if m.role in ['user', 'assistant'] else 'system') + '|>' + "
        "m.role + '<|im_middle|>' }}"
        "{%- if m.role == 'tool' %}## Return of {{ m.tool_call_id }}\n{% endif %}{{ m.content }}"
        "{%- if m.tool_calls %}<|tool_calls_section_begin|>{% for c in m.tool_calls "
        "%}<|tool_call_begin|>{{ c.id }}<|tool_call_argument_begin|>"
        "{{ c.function.arguments if c.function.arguments is string else "
        "c.function.arguments | tojson }}<|tool_call_end|>{% endfor "
        "%}<|tool_calls_section_end|>{% endif %}"
        "<|im_end|>{%- endfor %}{% if add_generation_prompt "
        "%}<|im_assistant|>assistant<|im_middle|>{% endif %}",
        added=KIMI,
    ),
    # Kimi K2 Thinking as llama.cpp has it: it counts the calls itself, whatever their ids are
    "kimi counting the calls": Habit(
        "{%- set open = namespace(ids=[], n=0) %}{% if tools "
        "%}<|im_system|>tools<|im_middle|>{{ tools | tojson }}<|im_end|>{% endif %}{%- "
        "for m in messages %}"
        "<|im_{{ m.role if m.role in ('user', 'assistant') else 'system' }}|>{{ m.name "
        "or m.role }}<|im_middle|>"
        "{%- if m.role == 'tool' %}## Return of {{ open.ids.pop(0) if open.ids else "
        "'functions.' ~ (m.name or 'unknown') ~ ':' ~ open.n }}\n{% endif %}{{ m.content "
        "}}"
        "{%- if m.tool_calls %}<|tool_calls_section_begin|>{% for c in m.tool_calls %}{% "
        "set id = 'functions.' ~ c.function.name ~ ':' ~ open.n %}"
        "{%- set open.n = open.n + 1 %}{% set _ = open.ids.append(id) "
        "%}<|tool_call_begin|>{{ id }}<|tool_call_argument_begin|>"
        "{{ c.function.arguments if c.function.arguments is string else "
        "c.function.arguments | tojson }}<|tool_call_end|>{% endfor "
        "%}<|tool_calls_section_end|>{% endif %}"
        "<|im_end|>{%- endfor %}{% if add_generation_prompt "
        "%}<|im_assistant|>assistant<|im_middle|>{% endif %}",
        added=KIMI,
    ),
    "mistral with names and ids": Habit(
        "<s>{%- if messages[0].role == 'system' %}[SYSTEM_PROMPT]{{ messages[0].content "
        "}}[/SYSTEM_PROMPT]{% endif %}"
        "{%- if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif "
        "%}{%- for m in messages %}"
        "{%- if m.role == 'user' %}[INST]{{ m.content }}[/INST]{%- elif m.role == "
        "'assistant' %}{{ m.content }}{%- for c in m.tool_calls or [] %}"
        "{%- if c.id | length != 9 %}{{ raise_exception('nine characters!') }}{% endif "
        "%}[TOOL_CALLS]{{ c.function.name }}[CALL_ID]{{ c.id }}[ARGS]{{ "
        "c.function.arguments | tojson }}{%- endfor %}</s>"
        "{%- elif m.role == 'tool' %}[TOOL_RESULTS]{{ m.tool_call_id }}[TOOL_CONTENT]{{ "
        "m.content }}[/TOOL_RESULTS]{%- endif %}{%- endfor %}",
        added=MISTRAL,
    ),
    "llama-3.2": Habit(
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nToday Date: {{ "
        "strftime_now('%d %b %Y') }}\n\n"
        "{% if messages[0].role == 'system' %}{{ messages[0].content | trim }}{% set "
        "messages = messages[1:] %}{% endif %}<|eot_id|>"
        "{%- for m in messages %}{%- if m.role == 'user' "
        "%}<|start_header_id|>user<|end_header_id|>\n\n"
        "{% if loop.first and tools %}Tools: {% for t in tools %}{{ t | tojson(indent=4) "
        "}}\n\n{% endfor %}{% endif %}{{ m.content | trim }}<|eot_id|>"
        "{%- elif m.role == 'assistant' %}<|start_header_id|>assistant<|end_header_id|>\n\n"
        "{% if 'tool_calls' in m %}{%- if m.tool_calls | length != 1 %}{{ "
        "raise_exception('single tool-calls') }}{% endif %}"
        '{"name": "{{ m.tool_calls[0].function.name }}", "parameters": {{ '
        "m.tool_calls[0].function.arguments | tojson }}}"
        "{%- else %}{{ m.content | trim }}{% endif %}<|eot_id|>"
        "{%- elif m.role == 'tool' %}<|start_header_id|>ipython<|end_header_id|>\n\n{{ "
        "m.content | tojson }}<|eot_id|>{%- endif %}{%- endfor %}"
        "{%- if add_generation_prompt "
        "%}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}",
        EXACT
        | unsupported(Edge.CALLS)
        | rewritten(Edge.WORDS_AND_CALL, Edge.REASONED_CALL, Edge.REASONED_SECOND_CALL),
        LLAMA,
    ),
    # Command: calls in one list, replies between tokens of their own, and the header ends thinking
    "command": Habit(
        "<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>{{ messages[0].content if "
        "messages[0].role == 'system' }}{% for t in tools or [] %}\n{{ t | tojson }}{% "
        "endfor %}<|END_OF_TURN_TOKEN|>"
        "{%- for m in messages %}{%- if m.role == 'user' "
        "%}<|START_OF_TURN_TOKEN|><|USER_TOKEN|>{{ m.content }}<|END_OF_TURN_TOKEN|>"
        "{%- elif m.role == 'assistant' "
        "%}<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|><|START_THINKING|><|END_THINKING|>"
        "{% if m.reasoning_content %}<|START_THINKING|>{{ m.reasoning_content "
        "}}<|END_THINKING|>{% endif %}"
        "{% if m.content %}<|START_RESPONSE|>{{ m.content }}<|END_RESPONSE|>{% endif "
        "%}{% if m.tool_calls %}<|START_ACTION|>[\n"
        '{% for c in m.tool_calls %}    {"tool_call_id": "{{ c.id }}", "tool_name": "{{ '
        'c.function.name }}", "parameters": {{ c.function.arguments | tojson }}}{{ "," '
        "if not loop.last }}\n{% endfor %}"
        "]<|END_ACTION|>{% endif %}<|END_OF_TURN_TOKEN|>"
        "{%- elif m.role == 'tool' "
        "%}<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|><|START_TOOL_RESULT|>{{ m.tool_call_id "
        "}}: {{ m.content | tojson }}<|END_TOOL_RESULT|><|END_OF_TURN_TOKEN|>{%- endif "
        "%}{%- endfor %}"
        "{% if add_generation_prompt "
        "%}<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|><|START_THINKING|><|END_THINKING|>{% "
        "endif %}",
        added=COHERE,
    ),
    # Granite 3.3's list of calls has no end tag
    "granite-3.3": Habit(
        "{%- for m in messages %}<|start_of_role|>{{ m.role }}<|end_of_role|>{{ "
        "m.content }}{% if loop.first and tools %}{{ tools | tojson }}{% endif %}"
        "{%- for c in m.tool_calls or [] %}{{ '<|tool_call|>[' if loop.first else ', ' }}"
        '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson '
        '}}}{{ "]" if loop.last }}{% endfor %}<|end_of_text|>\n'
        "{%- endfor %}{% if add_generation_prompt "
        "%}<|start_of_role|>assistant<|end_of_role|>{% endif %}",
        added=GRANITE,
    ),
    # Nemotron Nano v2: the header opens thinking
    "nemotron-nano-v2": Habit(
        "<SPECIAL_10>System\n{{ messages[0].content if messages[0].role == 'system' }}{% "
        "if tools %}\n<AVAILABLE_TOOLS>{{ tools | tojson }}</AVAILABLE_TOOLS>{% endif "
        "%}\n\n"
        "{%- for m in messages %}{%- if m.role == 'user' %}<SPECIAL_11>User\n{{ m.content }}\n"
        "{%- elif m.role == 'assistant' %}<SPECIAL_11>Assistant\n<think>\n{% if "
        "m.reasoning_content %}{{ m.reasoning_content }}\n{% endif %}</think>\n\n{{ "
        "m.content }}"
        "{%- for c in m.tool_calls or [] %}{{ '<TOOLCALL>[' if loop.first else ', ' }}"
        '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson '
        '}}}{{ "]</TOOLCALL>" if loop.last }}{% endfor %}\n<SPECIAL_12>\n'
        "{%- elif m.role == 'tool' %}<SPECIAL_11>User\n<TOOL_RESPONSE>[{{ m.content "
        "}}]</TOOL_RESPONSE>{%- endif %}{%- endfor %}"
        "{% if add_generation_prompt %}<SPECIAL_11>Assistant\n<think>\n{% endif %}",
        added=NEMOTRON,
    ),
    # Apertus: the token that ends the calls ends the turn too, and the header comes and goes behind
    # a result
    "apertus": Habit(
        "{%- set ns = namespace(open=false) %}<|system_start|>{{ messages[0].content if "
        "messages[0].role == 'system' }}<|system_end|>"
        "<|developer_start|>{{ tools | tojson if tools }}<|developer_end|>{%- for m in "
        "messages %}{%- if m.role == 'user' %}"
        "{{ '<|assistant_end|>' if ns.open }}{% set ns.open = false %}<|user_start|>{{ "
        "m.content }}<|user_end|>"
        "{%- elif m.role == 'assistant' %}{{ '<|assistant_start|>' if not ns.open }}{% "
        "set ns.open = true %}{{ m.content }}"
        '{%- if m.tool_calls %}<|tools_prefix|>[{% for c in m.tool_calls %}{"{{ '
        'c.function.name }}": {{ c.function.arguments | tojson }}}{{ ", " if not '
        "loop.last }}{% endfor %}]<|tools_suffix|>{% endif %}"
        "{%- elif m.role == 'tool' %}{{ '[' if loop.previtem.role != 'tool' else ', ' "
        "}}{{ m.content }}{{ ']' if loop.last or loop.nextitem.role != 'tool' }}{%- "
        "endif %}{%- endfor %}"
        "{% if add_generation_prompt %}<|assistant_start|>{% endif %}",
        EXACT
        | rewritten(
            Edge.SECOND_CALL, Edge.REPLY_AFTER_CALL, Edge.REASONED_SECOND_CALL, Edge.REASONED_REPLY
        ),
        APERTUS,
    ),
    # Gemma 2: users and turns alternate, no system prompt, no tools
    "gemma": Habit(
        "<bos>{%- for m in messages %}{%- if (m.role == 'user') != (loop.index0 % 2 == "
        "0) %}{{ raise_exception('alternate!') }}{% endif %}"
        "<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content "
        "| trim }}<end_of_turn>\n{% endfor %}"
        "{%- if add_generation_prompt %}<start_of_turn>model\n{% endif %}",
        EXACT | unsupported(*ASKED_EDGES),
        added=["<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"],
    ),
    # Phi-3: roles that it does not know are left out; the end of the text is marked
    "phi3": Habit(
        "{%- for m in messages %}{%- if m.role in ['system', 'user', 'assistant'] %}<|{{ "
        "m.role }}|>\n{{ m.content }}<|end|>\n{% endif %}{% endfor %}"
        "{{ '<|assistant|>\n' if add_generation_prompt else '<|endoftext|>' }}",
        added=["<|system|>", "<|user|>", "<|assistant|>", "<|end|>", "<|endoftext|>"],
    ),
    # LFM2: lists the tools, and takes calls as words of the turn
    "lfm2": Habit(
        "<|startoftext|>{% if messages[0].role == 'system' or tools "
        "%}<|im_start|>system\n{{ messages[0].content if messages[0].role == 'system' }}"
        "{% if tools %}\nList of tools: <|tool_list_start|>{{ tools | tojson "
        "}}<|tool_list_end|>{% endif %}<|im_end|>\n{% endif %}"
        "{%- for m in messages %}{%- if m.role != 'system' %}<|im_start|>{{ m.role }}\n"
        "{{ '<|tool_response_start|>' + m.content + '<|tool_response_end|>' if m.role == "
        "'tool' else m.content }}<|im_end|>\n{% endif %}{% endfor %}"
        "{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
        added=LFM,
    ),
    # LFM2.5: writes calls as in Python, and drops old thoughts
    "lfm2.5": Habit(
        "<|startoftext|>{% set ns = namespace(last=-1) %}{%- for m in messages %}{% if "
        "m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
        "<|im_start|>system\n{{ messages[0].content if messages[0].role == 'system' "
        "}}\nList of tools: {{ tools | tojson if tools }}<|im_end|>\n"
        "{%- for m in messages %}{%- if m.role != 'system' %}<|im_start|>{{ m.role }}\n"
        "{% if m.thinking and (preserve_thinking or loop.index0 > ns.last) %}<think>{{ "
        "m.thinking }}</think>{% endif %}{{ m.content }}"
        "{%- if m.tool_calls %}<|tool_call_start|>[{% for c in m.tool_calls %}{{ ', ' if "
        "not loop.first }}{{ c.function.name }}("
        "{%- for k, v in c.function.arguments.items() %}{{ ', ' if not loop.first }}{{ k "
        "}}={{ '\\'' + v + '\\'' if v is string else v | tojson }}{% endfor %}){% endfor "
        "%}]<|tool_call_end|>{% endif %}"
        "<|im_end|>\n{% endif %}{% endfor %}{%- if add_generation_prompt "
        "%}<|im_start|>assistant\n{% endif %}",
        added=[*LFM, *THINK],
    ),
    # R1's distilled models: the end of a turn is missing behind its first call
    "deepseek-r1": Habit(
        "<｜begin▁of▁sentence｜>{% if messages[0].role == 'system' %}{{ "
        "messages[0].content }}{% endif %}{%- for m in messages %}"
        "{%- if m.role == 'user' %}<｜User｜>{{ m.content }}{% endif %}"
        "{%- if m.role == 'assistant' and m.content is not none %}<｜Assistant｜>{{ "
        "m.content.split('</think>')[-1] }}<｜end▁of▁sentence｜>{% endif %}"
        "{%- if m.role == 'tool' %}<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>{{ "
        "m.content }}<｜tool▁output▁end｜>{% endif %}{%- endfor %}"
        "{%- if add_generation_prompt %}<｜Assistant｜><think>\n{% endif %}",
        EXACT | rewritten(*(set(Edge) - {Edge.OPEN})),
        DEEPSEEK,
    ),
}
ALL_HABITS = HABITS | FAMILY_HABITS
