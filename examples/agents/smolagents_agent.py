"""A ToolCallingAgent of smolagents, with the environment's tools.

pip install 'smolagents[openai]'
rollq demo --set agent=examples/agents/smolagents_agent.py:play
"""

from smolagents import OpenAIModel, Tool, ToolCallingAgent
from smolagents.monitoring import LogLevel


class EnvironmentTool(Tool):
    output_type = "string"
    skip_forward_signature_validation = True

    def __init__(self, episode, name, description, parameters):
        self.episode, self.name, self.description = episode, name, description
        required = parameters.get("required") or ()
        self.inputs = {
            key: {
                **schema,
                "description": schema.get("description", key),
                "nullable": key not in required,
            }
            for key, schema in (parameters.get("properties") or {}).items()
        }
        super().__init__()

    def forward(self, **arguments):
        return self.episode.step(self.name, arguments).text


def play(episode):
    """Returns the final answer, which the environment is told."""
    functions = [tool["function"] for tool in episode.tools]
    tools = [
        EnvironmentTool(
            episode, f["name"], f.get("description", f["name"]), f.get("parameters", {})
        )
        for f in functions
    ]
    model = OpenAIModel(episode.model, api_base=episode.base_url, api_key=episode.api_key)
    agent = ToolCallingAgent(tools, model, verbosity_level=LogLevel.OFF, max_steps=8)
    return str(agent.run("\n\n".join(message["content"] for message in episode.messages)))
