"""A game for two agents in one episode (docs/agents.md): the one who takes the last stone wins.

Play it with `examples/agents/two_players.py`. The agents are `first` and `second`, and each has a
reward of its own.
"""

from rollq.env import STOP_MARKER, Action, Grade, Observation, Task
from rollq.errors import JobFailure

AGENTS = "first", "second"
TASKS = 10
STONES = {"type": "integer", "minimum": 1, "maximum": 3}
TOOL = {
    "name": "take",
    "description": "Take one, two or three stones.",
    "parameters": {"type": "object", "properties": {"stones": STONES}, "required": ["stones"]},
}


class Nim:
    tools = ({"type": "function", "function": TOOL},)
    system_prompt = (
        "You play against another player. By turns you take one, two or three stones. Who takes "
        "the last one wins. A move that is against the rules loses."
    )

    def __init__(self, stones):
        self.left, self.moves, self.winner = stones, 0, None

    def reset(self, user):
        return user.open()

    def step(self, action):
        player, other = AGENTS if self.moves % 2 == 0 else AGENTS[::-1]
        stones = action.arguments.get("stones")
        is_move = action.name == "take" and type(stones) is int
        if not is_move or stones not in (1, 2, 3) or stones > self.left:
            self.winner = other
            return Observation(f"That is against the rules: {other} wins.", done=True)
        self.left -= stones
        self.moves += 1
        if not self.left:
            self.winner = player
            return Observation(f"{player} took {stones} and wins.", done=True)
        return Observation(f"{player} took {stones}; {self.left} are left.")

    def grade(self):
        rewards = {agent: float(agent == self.winner) for agent in AGENTS}
        return Grade(rewards["first"], {"moves": self.moves}, rewards)


class Games:
    name, version = "nim", "nim 1"

    def splits(self):
        return {"train": TASKS}

    def task(self, split, index):
        if split != "train" or index not in range(TASKS):
            raise JobFailure(f"nim has tasks 0 to {TASKS - 1} of split 'train', not {index}")
        stones = 7 + 2 * index
        return Task(
            id=f"nim/{index}",
            hash=f"nim-1-{stones}",
            instruction="You watch two players.",
            opening=f"There are {stones} stones.",
            replies=(STOP_MARKER,),
            moves=(Action("take", {"stones": 1}),) * stones,
            outputs=(str(stones),),
        )

    def open(self, split, index, args):
        if args:
            raise JobFailure("nim takes no env_args")
        return Nim(int(self.task(split, index).outputs[0]))


def load(variant):
    return Games()
