r"""An agent program inside the episode's own container, such as a coding agent that is installed in
the image.

    rollq worker --env harbor:DIR --agent examples/agents/in_container.py:play
    rollq submit --env harbor:DIR --set agent=examples/agents/in_container.py:play \
        --set agent_args.command='claude --print -- "$TASK"' ...

docs/sandboxes.md shows the network that it needs. What it prints, its first 32 KiB, is its answer
and ends the episode.
"""


def play(episode, *, command, seconds=1800):
    if episode.sandbox is None:
        raise RuntimeError("this environment has no container; take one of harbor:DIR")
    variables = {
        "TASK": "\n\n".join(message["content"] for message in episode.messages),
        "OPENAI_BASE_URL": episode.base_url,
        "OPENAI_API_KEY": episode.api_key,
        "OPENAI_MODEL": episode.model,
        "ANTHROPIC_BASE_URL": episode.base_url.removesuffix("/v1"),
        "ANTHROPIC_API_KEY": episode.api_key,
        "ANTHROPIC_MODEL": episode.model,
    }
    result = episode.sandbox.run(["/bin/sh", "-c", command], env=variables, seconds=seconds)
    if result.code or result.stopped:
        raise RuntimeError(
            f"{result.output[-2000:]}\nended with code {result.code} {result.stopped}"
        )
    return result.output
