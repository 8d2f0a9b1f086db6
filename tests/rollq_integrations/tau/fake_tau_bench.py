"""A package with the public names of tau_bench that the adapter uses, and the tools that need a
guard.
"""

FILES = {
    "__init__.py": "",
    "envs/user.py": "from litellm import completion\n",
    "envs/base.py": """
        import random
        import tau_bench.envs.user

        def to_hashable(item):
            if isinstance(item, dict):
                return tuple((key, to_hashable(value)) for key, value in sorted(item.items()))
            return tuple(map(to_hashable, item)) if isinstance(item, list) else item

        class Record:
            def __init__(self, **fields):
                self.__dict__.update(fields)

            def model_dump(self):
                return {k: [a.__dict__ for a in v] if k == "actions" else v for k, v in \
self.__dict__.items()}
    """,
    "envs/__init__.py": """
        import json
        from tau_bench.envs.base import Record

        def tool(name, function):
            schema = {"name": name, "description": name, "parameters": {"type": "object", \
"properties": {}}}
            return type(name, (), {"invoke": staticmethod(function), "info": {"type": "function", \
"function": schema}})

        def rename(data, key, name):
            data["users"][key]["name"] = name
            return json.dumps(data["users"][key])

        def calculate(data, expression):
            try:
                return str(round(float(eval(expression, {"__builtins__": None}, {})), 2))
            except Exception as e:
                return f"Error: {e}"

        TOOLS = {
            "rename": rename,
            "calculate": calculate,
            "think": lambda data, thought: "",
            "send_certificate": lambda data, key: None,
            "find": lambda data, name: next(k for k, v in data["users"].items() if v["name"] == \
name),
            "transfer_to_human_agents": lambda data, summary: "Transfer successful",
        }

        def action(name, /, **kwargs):
            return Record(name=name, kwargs=kwargs)

        TASKS = [
            Record(user_id="u1", instruction="You are Ann. Your name is now Anna.", \
outputs=["1234"],
                   actions=[action("rename", key="u1", name="Anna")]),
            Record(user_id="u2", instruction="You are Bob. You want a human.", outputs=["Sorry"],
                   actions=[action("rename", key="u9", name="x"), \
action("transfer_to_human_agents", summary="s")]),
            Record(user_id="u2", instruction="You are Bob. You ask for nothing.", outputs=[], \
actions=[]),
        ]

        class Env:
            def __init__(self, tasks):
                self.data = {"users": {"u1": {"name": "Ann"}, "u2": {"name": "Bob"}}}
                self.tasks, self.wiki, self.terminate_tools = tasks, "Be kind.", \
["transfer_to_human_agents"]
                self.tools_map = {name: tool(name, function) for name, function in TOOLS.items()}
                self.tools_info = [t.info for t in self.tools_map.values()]

        def get_env(env_name, user_strategy, user_model, task_split, user_provider=None, \
task_index=None):
            assert user_strategy == "human" and task_index is not None
            return Env(TASKS if task_split == "test" else TASKS[:1])
    """,
}
