"""Tasks from a file of questions with answers: one prompt, one answer, and no tools or those of a server.

`--env maths.jsonl:number` plays such a file as it is. In a file of your own, `dataset` makes the environment:

    load = dataset(Path(__file__).with_name("maths.jsonl"), reward=lambda answer, row: float(row["answer"] in answer))

A row of JSON Lines or Parquet has `prompt` (a text, or messages in OpenAI's form: one of the user's, perhaps behind a
system message) and `answer`. `system` is optional. So are `calls` and `response`: the tool calls that a perfect agent
makes, and what it says if that is not the answer. What else a row has is for the reward function. It does not know how
the file is named in a job.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from hashlib import sha256
from pathlib import Path
from typing import Any

from rollq.errors import JobFailure
from rollq.job import Json
from rollq_worker.environments.mcp import Tools
from rollq_worker.protocols import RESPOND, STOP_MARKER, Action, Grade, Observation, Task, User

Row = Mapping[str, Json]
Reward = Callable[[str, Row], float | Grade]
"""What an answer earns: it gets what the policy said, without its reasoning, and the row."""
PROMPTS = ("prompt", "question", "problem")
"""Names of the field with the prompt. The first one that a row has counts."""
ANSWERS = ("answer", "ground_truth", "solution")
NUMBER = re.compile(r"-?(?:\d[\d,]*(?:\.\d+)?|\.\d+)")
_BOX = "\\boxed{"
_SAME = (("\\left", ""), ("\\right", ""), ("\\!", ""), ("\\,", ""), ("dfrac", "frac"), ("tfrac", "frac"), ("$", ""))
"""What may be left out of a formula, and other ways to write the same."""


def dataset(
    data: str | Path | Mapping[str, str | Path],
    *,
    reward: str | Reward = "exact",
    system: str = "",
    tools: Callable[[], Tools] | None = None,
) -> Callable[[str | None], "Dataset"]:
    """The `load` of an environment with the rows of a file as its tasks, or of one file for each split.

    `reward` is a name in REWARDS or a function. `system` is the system prompt of rows that have none. `tools` opens the
    tools of an episode (`mcp_server`). Raises JobFailure for an unknown name and for a file that cannot be read.
    """
    files = data if isinstance(data, Mapping) else {"train": data}
    chosen = _reward(reward)
    found = Dataset({split: _read(Path(path)) for split, path in files.items()}, chosen, system, tools)
    return lambda variant: found


class Dataset:
    """Implements protocols.Domain."""

    def __init__(
        self,
        rows: Mapping[str, Sequence[bytes]],
        reward: Reward,
        system: str,
        tools: Callable[[], Tools] | None,
    ) -> None:
        """`rows` are the rows of each split, as JSON."""
        self.name = "dataset"
        self.version = f"dataset {sha256(b''.join(b''.join(part) for part in rows.values())).hexdigest()[:12]}"
        self._rows = rows
        self._reward = reward
        self._system = system
        self._tools = tools

    def splits(self) -> Mapping[str, int]:
        return {split: len(rows) for split, rows in self._rows.items()}

    def task(self, split: str, index: int) -> Task:
        where, row = self._row(split, index)
        _, question = self._prompt(where, row)
        answer = row.get("response", _field(where, row, ANSWERS))
        return Task(
            id=where,
            hash=sha256(self._rows[split][index]).hexdigest()[:16],
            instruction=question,
            opening=question,
            replies=(STOP_MARKER,),
            moves=(
                *(Action(call["name"], call["arguments"]) for call in row.get("calls", ())),
                Action(RESPOND, {"content": answer if isinstance(answer, str) else json.dumps(answer)}),
            ),
        )

    def open(self, split: str, index: int, args: Mapping[str, Json]) -> "Question":
        if args:
            raise JobFailure(f"a dataset takes no env_args, not {dict(args)!r:.200}")
        where, row = self._row(split, index)
        system, _ = self._prompt(where, row)
        return Question(system, row, self._reward, self._tools() if self._tools else None)

    def _row(self, split: str, index: int) -> tuple[str, Row]:
        rows = self._rows.get(split, ())
        if not 0 <= index < len(rows):
            have = ", ".join(f"{len(rows)} of {split!r}" for split, rows in self._rows.items())
            raise JobFailure(f"there is no row {index} of split {split!r}; there are {have}")
        return f"{split}/{index}", json.loads(rows[index])

    def _prompt(self, where: str, row: Row) -> tuple[str, str]:
        """System prompt and question."""
        found = _field(where, row, PROMPTS)
        system = row.get("system", self._system)
        if isinstance(found, list):
            messages = [(m.get("role"), m.get("content")) for m in found if isinstance(m, dict)]
            if [role for role, _ in messages] not in (["user"], ["system", "user"]) or len(messages) < len(found):
                raise JobFailure(
                    f"row {where}: the prompt must be one message of the user's, after a system message or none"
                )
            system, found = (messages[0][1] if len(messages) > 1 else system), messages[-1][1]
        if not isinstance(found, str) or not found.strip() or not isinstance(system, str):
            raise JobFailure(
                f"row {where}: prompt and system prompt must be texts, not {found!r:.60} and {system!r:.60}"
            )
        return system, found


class Question:
    """Implements protocols.Environment: the first thing that the policy says is its answer."""

    def __init__(self, system_prompt: str, row: Row, reward: Reward, tools: Tools | None) -> None:
        self.system_prompt = system_prompt
        self.tools: Sequence[Json] = tools.schemas if tools else ()
        self._tools = tools
        self._row = row
        self._reward = reward
        self._answer = ""

    def reset(self, user: User) -> str:
        return user.open()

    def step(self, action: Action) -> Observation:
        if action.name != RESPOND and self._tools:
            return Observation(self._tools.call(action))
        self._answer = str(action.arguments["content"])
        return Observation("", done=True)

    def grade(self) -> Grade:
        found = self._reward(self._answer, self._row)
        return found if isinstance(found, Grade) else Grade(float(found))

    def close(self) -> None:
        if self._tools:
            self._tools.close()


def exact(answer: str, row: Row) -> float:
    """1.0 for the answer itself, without white space around it."""
    return float(answer.strip() == _truth(row))


def number(answer: str, row: Row) -> float:
    """1.0 when the last number is that of the row's answer. What follows `####` there counts alone, as in GSM8K."""
    said, truth = NUMBER.findall(answer), NUMBER.findall(_truth(row).rpartition("####")[2])
    return float(bool(said and truth) and _value(said[-1]) == _value(truth[-1]))


def boxed(answer: str, row: Row) -> float:
    """1.0 when the last \\boxed{...} holds the row's answer, as a text: `\\dfrac12` is not `0.5`."""
    return float(_plain(_last_box(answer)) == _plain(_last_box(_truth(row))))


REWARDS: Mapping[str, Reward] = {"exact": exact, "number": number, "boxed": boxed}


def _reward(reward: str | Reward) -> Reward:
    if callable(reward):
        return reward
    if reward not in REWARDS:
        raise JobFailure(
            f"there is no reward {reward!r} of answers; there are {', '.join(REWARDS)}, or give a function"
        )
    return REWARDS[reward]


def _read(path: Path) -> list[bytes]:
    """The rows as JSON. Raises JobFailure."""
    try:
        if path.suffix == ".parquet":
            from pyarrow import parquet

            return [json.dumps(row, default=str).encode() for row in parquet.read_table(path).to_pylist()]
        lines = [line for line in path.read_bytes().splitlines() if line.strip()]
    except ImportError as e:
        raise JobFailure(f"{path}: Parquet needs the package pyarrow: pip install 'rollq[parquet]'") from e
    except (OSError, ValueError) as e:
        raise JobFailure(f"the dataset {path} cannot be read: {e}") from e
    for n, line in enumerate(lines, 1):
        try:
            if not isinstance(json.loads(line), dict):
                raise ValueError("not an object")
        except ValueError as e:
            raise JobFailure(f"{path}:{n} is no line of JSON with the fields of a row: {e}") from e
    if not lines:
        raise JobFailure(f"the dataset {path} has no rows")
    return lines


def _field(where: str, row: Row, names: Sequence[str]) -> Any:
    for name in names:
        if name in row:
            return row[name]
    raise JobFailure(f"row {where} has no {' or '.join(names)}; it has {', '.join(row) or 'nothing'}")


def _truth(row: Row) -> str:
    found = _field("of the dataset", row, ANSWERS)
    return (found if isinstance(found, str) else json.dumps(found)).strip()


def _value(text: str) -> Decimal:
    return Decimal(text.replace(",", ""))


def _last_box(text: str) -> str:
    """What the last box holds; without a box, the whole text."""
    _, box, rest = text.rpartition(_BOX)
    if not box:
        return text
    depth = 1
    for at, char in enumerate(rest):
        depth += (char == "{") - (char == "}")
        if not depth:
            return rest[:at]
    return rest


def _plain(text: str) -> str:
    for written, same in _SAME:
        text = text.replace(written, same)
    return "".join(text.split()).rstrip(".")
