"""An agent that uses the anthropic package, which asks its endpoint in Anthropic's form.

pip install anthropic
rollq demo --set agent=examples/agents/anthropic_agent.py:play
"""

from anthropic import Anthropic


def play(episode):
    *system, opening = episode.messages
    messages = [opening]
    tools = [
        {
            "name": tool["function"]["name"],
            "description": tool["function"].get("description", ""),
            "input_schema": tool["function"].get("parameters", {"type": "object"}),
        }
        for tool in episode.tools
    ]
    asked = {
        "model": episode.model,
        "max_tokens": 1024,
        "system": system[0]["content"] if system else "",
        "tools": tools,
    }
    done = False
    with Anthropic(
        base_url=episode.base_url.removesuffix("/v1"), api_key=episode.api_key
    ) as client:
        while not done:
            reply = client.messages.create(messages=messages, **asked)
            messages.append({"role": "assistant", "content": reply.content})
            results = []
            for block in reply.content:
                if block.type == "tool_use":
                    seen = episode.step(block.name, block.input)
                    results.append(
                        {"type": "tool_result", "tool_use_id": block.id, "content": seen.text}
                    )
                    done = done or seen.done
            if not results:
                seen = episode.respond(
                    "".join(block.text for block in reply.content if block.type == "text")
                )
                results, done = seen.text, seen.done
            messages.append({"role": "user", "content": results})
