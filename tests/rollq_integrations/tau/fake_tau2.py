"""A package with the public names of tau2 that the adapter uses, with a made-up retail and telecom,
and its data.
"""

PACKAGES = ("tau2", "loguru")
FILES = {
    "loguru.py": "class logger:\n    disable = staticmethod(lambda name: None)\n",
    "tau2/__init__.py": "raise SystemExit('its programs were imported')",
    "tau2/domains/__init__.py": "",
    "tau2/domains/retail/__init__.py": "",
    "tau2/domains/telecom/__init__.py": "",
    "tau2/utils.py": "from pathlib import Path\nDATA_DIR = Path(__file__).parents[1] / 'data'\n",
    "data/tau2/domains/retail/tasks.json": "[]",
    "data/tau2/domains/telecom/tasks.json": "[]",
    "tau2/kit.py": """
        import json
        from enum import Enum
        from types import SimpleNamespace

        from pydantic import BaseModel

        class Part(Enum):
            DB = "DB"
            COMMUNICATE = "COMMUNICATE"
            NL_ASSERTION = "NL_ASSERTION"
            ENV_ASSERTION = "ENV_ASSERTION"
            ACTION = "ACTION"

        class Toolkit:
            def __init__(self, db):
                self.db = db

            def use_tool(self, tool_name, **kwargs):
                if tool_name not in self.TOOLS:
                    raise ValueError(f"Tool '{tool_name}' not found.")
                return getattr(self, tool_name)(**kwargs)

            def schemas(self):
                parameters = {"type": "object", "properties": {}}
                return [
                    SimpleNamespace(openai_schema={
                        "type": "function",
                        "function": {"name": name, "description": name, "parameters": parameters},
                    })
                    for name in self.TOOLS
                ]

        class Environment:
            def __init__(self, domain_name, policy, tools, user_tools=None):
                self.domain_name, self.policy, self.tools, self.user_tools = domain_name, policy, \
tools, user_tools

            def get_policy(self):
                return self.policy

            def get_tools(self):
                return self.tools.schemas()

            def get_user_tools(self):
                return self.user_tools.schemas()

            def make_tool_call(self, tool_name, requestor="assistant", **kwargs):
                kit = self.tools if requestor == "assistant" else self.user_tools
                return kit.use_tool(tool_name=tool_name, **kwargs)

            def set_state(self, initialization_data, initialization_actions, message_history):
                for call in initialization_actions:
                    getattr(self.user_tools, call.func_name)(**call.arguments)
                self.sync_tools()

            def run_env_assertion(self, assertion, raise_assertion_error=True):
                return getattr(self.user_tools, assertion.func_name)(**assertion.arguments)

            @staticmethod
            def to_json_str(resp):
                return resp if isinstance(resp, str) else json.dumps(resp.model_dump())

        class Action(BaseModel):
            name: str
            arguments: dict = {}
            requestor: str = "assistant"

            def compare_with_tool_call(self, call):
                return (self.name, self.arguments) == (call.name, call.arguments)

            def get_func_format(self):
                return self.name

        class Call(BaseModel):
            func_name: str
            arguments: dict = {}

        class Start(BaseModel):
            initialization_data: None = None
            initialization_actions: list[Call]
            message_history: None = None

        class Instructions(BaseModel):
            known_info: str | None = None
            reason_for_call: str
            unknown_info: str | None = None
            task_instructions: str = "."

        class Scenario(BaseModel):
            instructions: Instructions

        class Criteria(BaseModel):
            actions: list[Action] | None = None
            env_assertions: list[Call] | None = None
            communicate_info: list[str] | None = None
            nl_assertions: list[str] | None = None
            reward_basis: list[Part]

        class Task(BaseModel):
            id: str
            user_scenario: Scenario
            initial_state: Start | None = None
            evaluation_criteria: Criteria

        def task(id, reason, start=None, **criteria):
            scenario = Scenario(instructions=Instructions(reason_for_call=reason))
            return Task(id=id, user_scenario=scenario, initial_state=start, \
evaluation_criteria=Criteria(**criteria))
    """,
    "tau2/domains/retail/environment.py": """
        from pydantic import BaseModel
        from tau2.kit import Environment, Toolkit, task

        class User(BaseModel):
            name: str

        class Database(BaseModel):
            users: dict[str, User]

        class Tools(Toolkit):
            TOOLS = ("rename", "calculate")

            def rename(self, key, name):
                self.db.users[key].name = name
                return self.db.users[key]

            def calculate(self, expression):
                return str(eval(expression, {"__builtins__": None}, {}))

        def get_environment():
            return Environment("retail", "Be kind.", Tools(Database(users={"u1": \
User(name="Ann")})))

        def get_tasks(split):
            rename = [{"name": "rename", "arguments": {"key": "u1", "name": "Anna"}}]
            return [
                task("0", "You want your name to be Anna.", actions=rename, \
communicate_info=["1234"],
                     nl_assertions=["The agent says why."], reward_basis=["DB", "NL_ASSERTION"]),
                task("1", "You ask for a number.", communicate_info=["1234"], nl_assertions=["It \
is kind."],
                     reward_basis=["DB", "COMMUNICATE"]),
            ]

        def get_tasks_split():
            return {"train": ["1"], "test": ["0", "1"]}
    """,
    "tau2/domains/telecom/environment.py": """
        from pydantic import BaseModel
        from tau2.domains.telecom.tools import Tools
        from tau2.kit import Environment, Start, Toolkit, task

        class Database(BaseModel):
            roaming: bool = False
            bills: list[str] = []

        class Device(BaseModel):
            on: bool = True
            roams: bool = False

        class UserTools(Toolkit):
            TOOLS = ("look", "switch")

            def look(self):
                return f"on: {self.db.on}, roams: {self.db.roams}"

            def switch(self, on):
                self.db.on = on
                return "switched"

            def is_fine(self):
                return self.db.on and self.db.roams

        class Telecom(Environment):
            def sync_tools(self):
                self.user_tools.db.roams = self.tools.db.roaming

        def get_environment():
            return Telecom("telecom", "Be patient.", Tools(Database()), UserTools(Device()))

        def get_tasks(split):
            start = Start(initialization_actions=[{"func_name": "switch", "arguments": {"on": \
False}}])
            actions = [{"name": "enable_roaming"}, {"name": "switch", "arguments": {"on": True}, \
"requestor": "user"},
                       {"name": "look", "requestor": "user"}]
            fine = [{"func_name": "is_fine"}]
            return [
                task("a", "You have no signal.", start, actions=actions, env_assertions=fine,
                     reward_basis=["ENV_ASSERTION"]),
                task("b", "You have no signal.", start, actions=actions, env_assertions=fine,
                     reward_basis=["ENV_ASSERTION", "ACTION"]),
            ]

        def get_tasks_split():
            return {"test": ["a", "b"]}
    """,
    "tau2/domains/telecom/tools.py": """
        import uuid

        from tau2.kit import Toolkit

        class Tools(Toolkit):
            TOOLS = ("enable_roaming", "charge")

            def enable_roaming(self):
                self.db.roaming = True
                return "enabled"

            def charge(self):
                self.db.bills.append(uuid.uuid4().hex[:8])
                return f"bills: {self.db.bills}"
    """,
}
