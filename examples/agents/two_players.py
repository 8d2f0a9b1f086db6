"""Two agents in one episode, with the openai package: each sees its own moves and is told the
other's.

    rollq demo --env examples/nim.py --set agent=examples/agents/two_players.py:play \
        --set 'models={"first": {}, "second": {}}'

`{}` is the policy. With `{"adapter": NAME}` an adapter of the run plays that side, and with
`{"model": NAME}` a model of the workers, which is not trained (docs/agents.md).
"""

import json

from openai import OpenAI


def play(episode, *, players=("first", "second")):
    told = {player: [dict(message) for message in episode.messages] for player in players}
    tools = {tool["function"]["name"] for tool in episode.tools}
    calls = {}
    with OpenAI(base_url=episode.base_url, api_key=episode.api_key) as client:
        for turn in range(1000):
            player, other = players[turn % 2], players[1 - turn % 2]
            answer = client.chat.completions.create(
                model=player, messages=told[player], tools=episode.tools
            )
            message = answer.choices[0].message
            told[player].append(message)
            [call, *_] = message.tool_calls or [None]
            if call is None or call.function.name not in tools:
                episode.respond(message.content or "")  # against the rules
                return
            calls[player] = message.tool_calls
            try:
                arguments = dict(json.loads(call.function.arguments))
            except (TypeError, ValueError, RecursionError):
                arguments = {}  # against the rules
            seen = episode.step(call.function.name, arguments)
            if seen.done:
                return
            tell(told[other], calls.get(other), seen.text)


def tell(messages, calls, text):
    """The other's move answers a player's own last move. Before that it is part of the task."""
    if not calls:
        messages[-1]["content"] += f" {text}"
    for call in calls or ():
        messages.append({"role": "tool", "tool_call_id": call.id, "content": text})
