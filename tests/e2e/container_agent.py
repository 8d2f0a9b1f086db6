"""An agent for tests that runs inside a container: it calls bash there until the policy says
something.
"""

import json
import os
import subprocess
import urllib.request

BASH = {"type": "object", "properties": {"command": {"type": "string"}}}
TOOL = {"type": "function", "function": {"name": "bash", "parameters": BASH}}
messages = [{"role": "user", "content": os.environ["TASK"]}]
while True:
    body = json.dumps(
        {"model": os.environ["OPENAI_MODEL"], "messages": messages, "tools": [TOOL]}
    ).encode()
    headers = {
        "Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}",
        "Content-Type": "application/json",
    }
    request = urllib.request.Request(
        f"{os.environ['OPENAI_BASE_URL']}/chat/completions", body, headers
    )
    with urllib.request.urlopen(request, timeout=300) as reply:
        said = json.load(reply)["choices"][0]["message"]
    messages.append(said)
    if not said.get("tool_calls"):
        break
    for call in said["tool_calls"]:
        command = json.loads(call["function"]["arguments"])["command"]
        ran = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
        messages.append(
            {"role": "tool", "tool_call_id": call["id"], "content": ran.stdout + ran.stderr}
        )
print(said["content"])
