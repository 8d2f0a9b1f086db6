"""An agent written against the `openai` package. It plays any environment of rollq.

pip install openai
rollq demo --set agent=examples/agents/openai_agent.py:play
"""

from openai import OpenAI


def play(episode):
    """Asks the policy for a turn, carries out its calls or writes to the user, until the
    environment ends the episode.
    """
    messages, done = list(episode.messages), False
    with OpenAI(base_url=episode.base_url, api_key=episode.api_key) as client:
        while not done:
            reply = client.chat.completions.create(
                model=episode.model, messages=messages, tools=episode.tools
            )
            message = reply.choices[0].message
            messages.append(message)
            for call in message.tool_calls or ():
                seen = episode.step(call.function.name, call.function.arguments)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": seen.text})
                done = done or seen.done
            if not message.tool_calls:
                seen = episode.respond(message.content)
                messages.append({"role": "user", "content": seen.text})
                done = seen.done
