"""An agent of LangGraph, unchanged but for its base URL. Its tools are the environment's.

pip install langgraph langchain-openai
rollq demo --set agent=examples/agents/langgraph_agent.py:play
"""

from langchain_core.messages import ToolMessage
from langchain_core.tools import StructuredTool
from langchain_openai import ChatOpenAI
from langgraph.prebuilt import create_react_agent


def play(episode):
    """Each of the user's messages is one run of the graph, which calls tools until it answers."""
    model = ChatOpenAI(model=episode.model, base_url=episode.base_url, api_key=episode.api_key)
    graph = create_react_agent(
        model, [tool(episode, schema["function"]) for schema in episode.tools]
    )
    messages, done = list(episode.messages), False
    while not done:
        messages = graph.invoke({"messages": messages}, {"recursion_limit": 100})["messages"]
        if broken := messages[-1].invalid_tool_calls:
            messages += [ToolMessage(call["error"], tool_call_id=call["id"]) for call in broken]
            continue
        seen = episode.respond(messages[-1].content)
        messages.append({"role": "user", "content": seen.text})
        done = seen.done


def tool(episode, function):
    """One of the environment's tools as LangChain's."""

    def call(**arguments):
        return episode.step(function["name"], arguments).text

    return StructuredTool(
        name=function["name"],
        description=function.get("description", ""),
        args_schema=function.get("parameters", {"type": "object", "properties": {}}),
        func=call,
    )
