"""Tasks from a file of questions with answers: one prompt, one answer, and no tools or those of a server.

`--env maths.jsonl:number` plays such a file as it is. In a file of your own, `dataset` makes the environment:

    load = dataset(Path(__file__).with_name("maths.jsonl"), reward=lambda answer, row: float(row["answer"] in answer))

A row of JSON Lines or Parquet has `prompt` (a text, or messages in OpenAI's form: one of the user's, perhaps behind a
system message) and `answer`. `system` is optional. So are `calls` and `response`: the tool calls that a perfect agent
makes, and what it says if that is not the answer. `labels` come back in the grade's info. What else a row has is for
the reward function. Of these fields null counts as none, as Parquet has it. This module does not know how the file is
named in a job.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any

from rollq.errors import JobFailure
from rollq.extras import install_line
from rollq.job import Json
from rollq_worker.environments.mcp import Tools
from rollq_worker.protocols import RESPOND, STOP_MARKER, Action, Grade, Observation, Task, User

Row = Mapping[str, Json]
Reward = Callable[[str, Row], float | Grade]
"""What an answer earns: it gets what the policy said, without its reasoning, and the row."""
PROMPTS = ("prompt", "question", "problem")
"""Names of the field with the prompt. The first one that a row has counts."""
ANSWERS = ("answer", "ground_truth", "solution")
RESPONSES = ("response", *ANSWERS)
NUMBER = re.compile(r"-?(?:\d[\d,]*(?:\.\d+)?|\.\d+)")
PARQUET_ROWS = 1000
"""Number of rows that are decoded at a time."""
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
        digest = sha256()
        for row in chain.from_iterable(rows.values()):
            digest.update(row)
        self.version = f"dataset {digest.hexdigest()[:12]}"
        self._rows = rows
        self._reward = reward
        self._system = system
        self._tools = tools

    def splits(self) -> Mapping[str, int]:
        return {split: len(rows) for split, rows in self._rows.items()}

    def task(self, split: str, index: int) -> Task:
        row = self._row(split, index)
        _, question = self._prompt(row)
        if self._reward in REWARDS.values():
            self._reward("", row)  # before anything is sampled for an answer that nothing can be compared with
        response = _found(row, RESPONSES)
        moves = () if response is None else (*_calls(row), Action(RESPOND, {"content": _as_text(response)}))
        return Task(
            id=f"{split}/{index}",
            hash=sha256(self._rows[split][index]).hexdigest()[:16],
            instruction=question,
            opening=question,
            replies=(STOP_MARKER,),
            moves=moves,
        )

    def open(self, split: str, index: int, args: Mapping[str, Json]) -> "Question":
        if args:
            raise JobFailure(f"a dataset takes no env_args, not {dict(args)!r:.200}")
        row = self._row(split, index)
        system, _ = self._prompt(row)
        return Question(system, row, self._reward, self._tools() if self._tools else None)

    def _row(self, split: str, index: int) -> Row:
        rows = self._rows.get(split, ())
        if not 0 <= index < len(rows):
            have = ", ".join(f"{len(rows)} of {split!r}" for split, rows in self._rows.items())
            raise JobFailure(f"there is no row {index} of split {split!r}; there are {have}")
        row: Row = json.loads(rows[index])
        return row

    def _prompt(self, row: Row) -> tuple[str, str]:
        """System prompt and question."""
        found = _field(row, PROMPTS)
        system = self._system if row.get("system") is None else row["system"]
        if isinstance(found, list):
            messages = [(m.get("role"), m.get("content")) for m in found if isinstance(m, dict)]
            if [role for role, _ in messages] not in (["user"], ["system", "user"]) or len(messages) < len(found):
                raise JobFailure("the row's prompt must be one message of the user's, after a system message or none")
            system, found = (messages[0][1] if len(messages) > 1 else system), messages[-1][1]
        if not isinstance(found, str) or not found.strip() or not isinstance(system, str):
            raise JobFailure(f"the row's prompt and system prompt must be texts, not {found!r:.60} and {system!r:.60}")
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
        if action.name != RESPOND:
            return Observation(self._tools.call(action) if self._tools else "Error: there are no tools here")
        self._answer = str(action.arguments["content"])
        return Observation("", done=True)

    def grade(self) -> Grade:
        found: Any = self._reward(self._answer, self._row)
        if found is None or isinstance(found, str):
            raise TypeError(f"the reward function returned {found!r:.60}, not a number or a Grade")
        grade = found if isinstance(found, Grade) else Grade(float(found))
        labels = self._row.get("labels")
        return grade if labels is None else replace(grade, info={"labels": labels, **grade.info})

    def close(self) -> None:
        if self._tools:
            self._tools.close()


def exact(answer: str, row: Row) -> float:
    """1.0 for the answer itself, without white space around it."""
    return float(answer.strip() == _truth(row))


def number(answer: str, row: Row) -> float:
    """1.0 when the last number is that of the row's answer. What follows `####` there counts alone, as in GSM8K."""
    said, truth = NUMBER.findall(answer), NUMBER.findall(_truth(row).rpartition("####")[2])
    if not truth:
        raise JobFailure(f"the row's answer holds no number: {_truth(row)!r:.100}")
    return float(bool(said) and _value(said[-1]) == _value(truth[-1]))


def boxed(answer: str, row: Row) -> float:
    """1.0 when the last \\boxed{...} holds the row's answer, as a text: `\\dfrac12` is not `0.5`."""
    truth = _plain(_last_box(_truth(row)))
    if not truth:
        raise JobFailure(f"the row's answer has nothing in its box: {_truth(row)!r:.100}")
    return float(_plain(_last_box(answer)) == truth)


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
        rows = list(_parquet(path) if path.suffix == ".parquet" else _lines(path))
    except ImportError as e:
        raise JobFailure(f"{path}: Parquet needs the package pyarrow: {install_line('parquet')}") from e
    except (OSError, ValueError) as e:
        raise JobFailure(f"the dataset {path} cannot be read: {e}") from e
    if not rows:
        raise JobFailure(f"the dataset {path} has no rows")
    return rows


def _parquet(path: Path) -> Iterator[bytes]:
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(PARQUET_ROWS):
            for row in batch.to_pylist():
                yield json.dumps(row, default=str).encode()


def _lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        for n, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                if not isinstance(json.loads(line), dict):
                    raise ValueError("not an object")
            except (ValueError, RecursionError) as e:
                raise JobFailure(f"{path}:{n} is no line of JSON with the fields of a row: {e}") from e
            yield line.strip()


def _found(row: Row, names: Sequence[str]) -> Any:
    """The first of these fields that the row has; None without one."""
    return next((row[name] for name in names if row.get(name) is not None), None)


def _field(row: Row, names: Sequence[str]) -> Any:
    if (found := _found(row, names)) is None:
        have = ", ".join(name for name, value in row.items() if value is not None)
        raise JobFailure(f"the row has no {' or '.join(names)}; it has {have or 'nothing'}")
    return found


def _calls(row: Row) -> Iterator[Action]:
    calls = row.get("calls") or ()
    for call in calls if isinstance(calls, list | tuple) else [calls]:
        name, arguments = (call.get("name"), call.get("arguments")) if isinstance(call, dict) else (None, None)
        if not isinstance(name, str) or not isinstance(arguments, dict):
            raise JobFailure(f"the row's calls are a list of objects with name and arguments, not {call!r:.100}")
        yield Action(name, arguments)


def _truth(row: Row) -> str:
    if text := _as_text(_field(row, ANSWERS)).strip():
        return text
    raise JobFailure("the row's answer is an empty text, which nothing can be compared with")


def _as_text(value: Json) -> str:
    return value if isinstance(value, str) else json.dumps(value)


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
