"""tau2_2025 as the package itself plays it: the reference for the adapter's tests."""

import importlib
import json
import pickle
from types import SimpleNamespace

from rollq_integrations.tau.tau2_2025 import NOT_REPLAYED


class OriginalTau2:
    """The package's toolkit on a database of its own, called as its solver calls it."""

    def __init__(self, variant):
        def find(module):
            return importlib.import_module(f"inspect_evals.tau2.{module}")

        title = variant.capitalize()
        self.toolkit = getattr(find(f"{variant}.{title}AgentTools"), f"{title}AgentTools")
        self.database = getattr(
            find(f"{variant}.data_model"), {"retail": "RetailDB", "airline": "FlightDB"}[variant]
        )
        self.read_dataset = find(f"{variant}.dataset").read_dataset
        self.tools = getattr(find(f"{variant}.tools"), f"all_{variant}_tools")
        self.scorer = find("common.scorer")
        self.policy = find(f"{variant}.agents").get_domain_policy()
        self.error = importlib.import_module("inspect_ai.tool").ToolError
        self.store = importlib.import_module("inspect_ai.util").Store
        loaded = self.toolkit(store=self.store(), instance="pristine")
        loaded.initialize()
        self.blob = pickle.dumps(loaded.db)
        self.hash = loaded.db.get_hash()

    def fresh(self):
        toolkit = self.toolkit(store=self.store(), instance="episode")
        toolkit.initialized = True
        toolkit.db = pickle.loads(self.blob)
        return toolkit

    def call(self, toolkit, action):
        """The observation; None for a tool that the toolkit does not have."""
        if action.name in NOT_REPLAYED:
            return None
        try:
            result = getattr(toolkit, action.name)(**pickle.loads(pickle.dumps(action.arguments)))
        except self.error as e:
            return f"Error: {e}"
        return result if isinstance(result, str) else json.dumps(result, sort_keys=True)

    def replay(self, actions):
        """The hash of the database after these actions, and the observations."""
        toolkit = self.fresh()
        seen = [self.call(toolkit, action) for action in actions]
        return toolkit.db.get_hash(), seen

    def tells_all_outputs(self, task, messages):
        """The verdict of the package's scorer on the agent's messages."""
        record = next(s for s in self.read_dataset("x") if str(s.id) == task.id)
        user_message = importlib.import_module("inspect_ai.model").ChatMessageUser
        conversation = [*record.input, *(user_message(content=text) for text in messages)]
        state = SimpleNamespace(metadata=record.metadata, messages=conversation)
        step = self.scorer.score_communicated_info()(state, None)
        try:
            step.send(None)
        except StopIteration as e:
            return e.value.value == "C"
        raise AssertionError("the scorer waits for something")

    def hash_of(self, tables):
        """The hash of a whole database, as the package computes it."""
        return self.database.model_construct(
            **{name: dict(table.items()) for name, table in tables.items()}
        ).get_hash()
