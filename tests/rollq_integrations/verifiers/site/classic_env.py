"""Environments of verifiers 0.3, one of each kind; the argument says which."""

import verifiers as vf
from datasets import Dataset

ROWS = [{"question": f"What is {n}+{n}?", "answer": str(2 * n)} for n in range(3)]
PARSER = vf.Parser()


def right(parser, completion, answer) -> float:
    return float(parser.parse_answer(completion) == answer)


async def short(completion, **kwargs) -> float:
    return 1.0 / len(completion)


def broken(answer) -> float:
    raise KeyError("no truth")


def ranked(completions) -> list[float]:
    return [0.0 for _ in completions]


def double(n: int) -> int:
    """Twice n."""
    return 2 * n


def remember(n: int, notes: list) -> str:
    """Keeps a number."""
    notes.append(n)
    return f"kept {notes}"


class Stateful(vf.StatefulToolEnv):
    def __init__(self, **kwargs):
        super().__init__(tools=[], **kwargs)
        self.add_tool(remember, args_to_skip=["notes"])

    async def setup_state(self, state, **kwargs):
        state["notes"] = []
        return state

    def update_tool_args(self, tool_name, tool_args, messages, state, **kwargs):
        return {**tool_args, "notes": state["notes"]}


class Guess(vf.MultiTurnEnv):
    async def env_response(self, messages, state, **kwargs):
        said = messages[-1].content
        if said == "give up":
            state["final_env_response"] = [{"role": "user", "content": "A pity."}]
            return []
        return [{"role": "user", "content": f"No, not {said}. Try again."}]

    @vf.stop
    async def found(self, state):
        steps = state["trajectory"]
        return bool(steps) and steps[-1]["completion"][-1].content == state["answer"]


class OwnPrompts(Guess):
    async def get_prompt_messages(self, state):
        return state["prompt"]


def load_environment(kind: str = "single", reward: str = "right", **kwargs):
    functions = {"right": right, "broken": broken, "ranked": ranked}
    rubric = vf.Rubric(funcs=[functions[reward], short], weights=[1.0, 0.5], parser=PARSER)
    known = {
        "dataset": Dataset.from_list(ROWS),
        "rubric": rubric,
        "parser": PARSER,
        "system_prompt": "Be brief.",
    }
    kinds = {
        "single": vf.SingleTurnEnv,
        "guess": Guess,
        "stateful": Stateful,
        "prompts": OwnPrompts,
        "tools": lambda **all: vf.ToolEnv(tools=[double], **all),
    }
    return kinds[kind](**known, **kwargs)
