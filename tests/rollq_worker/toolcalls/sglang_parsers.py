"""Run by the Python of an SGLang installation: what its own parsers read in the turns given on
stdin, as JSON.

Reads `{"tools": [...], "turns": [{"format": ..., "text": ...}]}`; writes a list of `{"text": ...,
"calls": [...]}` or `{"error": ...}`.
"""

import json
import sys

PARSERS = {
    "hermes": "qwen25",
    "glm45": "glm45",
    "deepseek_v31": "deepseekv31",
    "deepseek_v32": "deepseekv32",
    "minimax_m2": "minimax-m2",
    "cohere": "cohere_command4",
    "apertus": "apertus2509",
    "gigachat31": "gigachat3",
    "hunyuan3": "hunyuan",
    "minimax_m3": "minimax-m3",
    "deepseek_v41": "deepseekv41",
    "mimo_v2": "mimo",
    "intern_s1": "interns1",
    "k2_horizon_typed": "k2_horizon",
    "k2_horizon_json": "k2_horizon",
}
"""SGLang's name for a format, where it is another one."""


def main() -> None:
    from sglang.srt.entrypoints.openai.protocol import Tool
    from sglang.srt.function_call.function_call_parser import FunctionCallParser

    asked = json.load(sys.stdin)
    tools = [Tool(**tool) for tool in asked["tools"]]
    found = []
    for turn in asked["turns"]:
        name = PARSERS.get(turn["format"], turn["format"].replace("_oss", "-oss"))
        try:
            text, calls = FunctionCallParser(tools, name).parse_non_stream(turn["text"])
            found.append(
                {
                    "text": text,
                    "calls": [[call.name, json.loads(call.parameters)] for call in calls],
                }
            )
        except Exception as e:
            found.append({"error": f"{type(e).__name__}: {e}"})
    print(json.dumps(found))


main()
