"""A scripted server of OpenAI's chat completions for the peers that speak messages: what it says
depends on the number of turns alone.

    python -m peers.chat_server
"""

import itertools
import json

from aiohttp import web
from peers.task import LAST, TURNS, call

NUMBERS = itertools.count()
LOGPROB = {"token": "token_id:9", "logprob": -0.25, "bytes": None, "top_logprobs": []}
SAID = 45
"""Tokens of a turn, where they are asked for."""


async def complete(request):
    body = await request.json()
    turn = sum(message["role"] == "assistant" for message in body["messages"])
    message = {"role": "assistant", "content": LAST}
    if turn < TURNS - 1:
        name, arguments = call(turn)
        # some prefix a tool's name with its server's
        names = (tool["function"]["name"] for tool in body["tools"])
        name = next(one for one in names if one.endswith(name))
        function = {"name": name, "arguments": json.dumps(arguments)}
        made = {"id": f"call_{turn}", "type": "function", "function": function}
        message = {"role": "assistant", "content": None, "tool_calls": [made]}
    finish = "tool_calls" if "tool_calls" in message else "stop"
    choice = {"index": 0, "message": message, "finish_reason": finish}
    reply = {"id": f"chat-{next(NUMBERS)}", "object": "chat.completion", "created": 1}
    if body.get("logprobs"):
        choice["logprobs"] = {"content": [LOGPROB] * SAID}
    if body.get("return_token_ids"):
        choice["token_ids"] = [9] * SAID
        reply["prompt_token_ids"] = list(range(1650 + 130 * turn))
    reply["model"] = body.get("model")
    reply["usage"] = {"prompt_tokens": 1650, "completion_tokens": SAID, "total_tokens": 1650 + SAID}
    if body.get("stream"):
        return await stream(request, {**reply, "object": "chat.completion.chunk"}, choice)
    return web.json_response({**reply, "choices": [choice]})


async def stream(request, reply, choice):
    """The turn as one chunk of server-sent events, as verifiers reads it."""
    delta = choice.pop("message")
    for index, made in enumerate(delta.get("tool_calls", ())):
        made["index"] = index
    chunk = json.dumps({**reply, "choices": [{**choice, "delta": delta}]})
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    await response.write(f"data: {chunk}\n\ndata: [DONE]\n\n".encode())
    return response


async def models(request):
    return web.json_response({"object": "list", "data": [{"id": "peer", "object": "model"}]})


def announce(text):
    print(text.splitlines()[0], flush=True)


if __name__ == "__main__":
    app = web.Application(client_max_size=64 << 20)
    app.router.add_post("/v1/chat/completions", complete)
    app.router.add_get("/v1/models", models)
    web.run_app(app, host="127.0.0.1", port=0, print=announce, access_log=None)
