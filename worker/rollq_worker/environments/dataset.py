"""Tasks from a file of questions with answers: one prompt, one answer, and no tools or those of a
server.

`--env maths.jsonl:number` plays such a file as it is. In a file of your own, `dataset` makes the
environment:

    load = dataset(Path(__file__).with_name("maths.jsonl"), reward=lambda answer, row: float(row["answer"] in answer))

A row of JSON Lines or Parquet has `prompt` (a text, or messages in OpenAI's form: one of the
user's, perhaps behind a system message) and `answer`. Rows as verl (`reward_model.ground_truth`),
slime (`label`) and OpenAI's fine-tuning (a last message of the assistant's) write them are read as
they are. `system` is optional. So are `calls` and `response`: the tool calls that a perfect agent
makes, and what it says if that is not the answer. `labels` come back in the grade's info. What else
a row has is for the reward function. Of these fields null counts as none, as Parquet has it. This
module does not know how the file is named in a job.
"""  # noqa: E501

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any

from rollq.env import RESPOND, STOP_MARKER, Action, Grade, Observation, Task, Tools, User
from rollq.errors import JobFailure
from rollq.job import Json
from rollq.pip_extras import install_line
from rollq_worker.environments.graders import GRADERS, IN_A_BOX, Grader, in_a_box

Row = Mapping[str, Json]
Reward = Callable[[str, Row], float | Grade]
"""What an answer earns: it gets what the policy said, without its reasoning, and the row."""
PROMPTS = ("prompt", "question", "problem", "messages")
"""Names of the field with the prompt. The first one that a row has counts."""
ANSWERS = ("answer", "ground_truth", "solution", "label")


def dataset(
    data: str | Path | Mapping[str, str | Path],
    *,
    reward: str | Reward = "exact",
    system: str = "",
    tools: Callable[[], Tools] | None = None,
) -> Callable[[str | None], "Dataset"]:
    """The `load` of an environment with the rows of a file as its tasks, or of one file for each
    split.

    `reward` is a name in `graders.GRADERS` or a function. `system` is the system prompt of rows
    that have none. `tools` opens the tools of an episode (`mcp_server`). Raises JobFailure for an
    unknown name and for a file that cannot be read.
    """
    files = data if isinstance(data, Mapping) else {"train": data}
    chosen = _reward(reward)
    made = Dataset(
        {split: _read(Path(path)) for split, path in files.items()}, chosen, system, tools
    )
    return lambda variant: made


class Dataset:
    """Implements rollq.env.Domain."""

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
        if isinstance(self._reward, _Graded):
            self._reward(
                "", row
            )  # before anything is sampled for an answer that nothing can be compared with
        response = self._perfect(row)
        moves = () if response is None else (*_calls(row), Action(RESPOND, {"content": response}))
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

    def _perfect(self, row: Row) -> str | None:
        """What a perfect agent says at the end; None where the row does not tell."""
        if (response := row.get("response")) is not None:
            return _as_text(response)
        if (answer := _answer(row)) is None:
            return None
        return (
            self._reward.perfect(_as_text(answer))
            if isinstance(self._reward, _Graded)
            else _as_text(answer)
        )

    def _prompt(self, row: Row) -> tuple[str, str]:
        """System prompt and question."""
        if (prompt := _found(row, PROMPTS)) is None:
            raise _lacks(row, PROMPTS)
        system = self._system if row.get("system") is None else row["system"]
        if isinstance(prompt, list):
            messages = _messages(prompt)
            if [role for role, _ in messages] not in (["user"], ["system", "user"]):
                raise JobFailure(
                    "the row's prompt must be one message of the user's, after a "
                    "system message or none"
                )
            system, prompt = (messages[0][1] if len(messages) > 1 else system), messages[-1][1]
        if not isinstance(prompt, str) or not prompt.strip() or not isinstance(system, str):
            raise JobFailure(
                f"the row's prompt and system prompt must be texts, not {prompt!r:.60} "
                f"and {system!r:.60}"
            )
        return system, prompt


class Question:
    """Implements rollq.env.Environment: the first thing that the policy says is its answer."""

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
            return Observation(
                self._tools.call(action) if self._tools else "Error: there are no tools here"
            )
        content = action.arguments.get("content")
        if not isinstance(content, str):
            return Observation("Error: respond needs a text as its content")
        self._answer = content
        return Observation("", done=True)

    def grade(self) -> Grade:
        returned: Any = self._reward(self._answer, self._row)
        if returned is None or isinstance(returned, str):
            raise TypeError(
                f"the reward function returned {returned!r:.60}, not a number or a Grade"
            )
        grade = returned if isinstance(returned, Grade) else Grade(float(returned))
        labels = self._row.get("labels")
        return grade if labels is None else replace(grade, info={"labels": labels, **grade.info})

    def close(self) -> None:
        if self._tools:
            self._tools.close()


class _Graded:
    """A reward by the name of its grader."""

    def __init__(self, grader: Grader) -> None:
        self._grader = grader

    def __call__(self, answer: str, row: Row) -> float:
        return float(self._grader(answer, _truth(row)))

    def perfect(self, truth: str) -> str:
        """An answer that earns the reward."""
        return in_a_box(truth) if self._grader in IN_A_BOX else truth


def _reward(reward: str | Reward) -> Reward:
    if callable(reward):
        return reward
    if reward not in GRADERS:
        raise JobFailure(
            f"there is no reward {reward!r} of answers; there are {', '.join(GRADERS)}, "
            "or give a function"
        )
    return _Graded(GRADERS[reward])


def _read(path: Path) -> list[bytes]:
    """The rows as JSON. Raises JobFailure."""
    try:
        rows = list(_parquet(path) if path.suffix == ".parquet" else _lines(path))
    except ImportError as e:
        raise JobFailure(
            f"{path}: Parquet needs the package pyarrow: {install_line('parquet')}"
        ) from e
    except (OSError, ValueError) as e:
        raise JobFailure(f"the dataset {path} cannot be read: {e}") from e
    if not rows:
        raise JobFailure(f"the dataset {path} has no rows")
    return rows


def _parquet(path: Path) -> Iterator[bytes]:
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(1000):
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
                raise JobFailure(
                    f"{path}:{n} is no line of JSON with the fields of a row: {e}"
                ) from e
            yield line.strip()


def _found(row: Row, names: Sequence[str]) -> Any:
    """The first of these fields that the row has; None without one."""
    return next((row[name] for name in names if row.get(name) is not None), None)


def _lacks(row: Row, names: Sequence[str]) -> JobFailure:
    have = ", ".join(name for name, value in row.items() if value is not None)
    return JobFailure(f"the row has no {' or '.join(names)}; it has {have or 'nothing'}")


def _messages(found: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Role and content of each message of a prompt, but for an answer of the assistant's behind
    them.
    """
    messages = [
        (m.get("role"), _content(m.get("content"))) if isinstance(m, dict) else (None, None)
        for m in found
    ]
    return messages[:-1] if messages and messages[-1][0] == "assistant" else messages


def _content(content: Any) -> Any:
    """Text, also of a list of text parts."""
    if isinstance(content, list) and all(
        isinstance(part, dict) and part.get("type") == "text" for part in content
    ):
        return "".join(str(part.get("text", "")) for part in content)
    return content


def _answer(row: Row) -> Any:
    """The truth, where the formats that are read have it; None without one."""
    if (answer := _found(row, ANSWERS)) is not None:
        return answer
    graded = row.get("reward_model")
    if isinstance(graded, dict) and graded.get("ground_truth") is not None:
        return graded["ground_truth"]
    last = prompt[-1] if isinstance(prompt := _found(row, PROMPTS), list) and prompt else None
    return (
        _content(last.get("content"))
        if isinstance(last, dict) and last.get("role") == "assistant"
        else None
    )


def _calls(row: Row) -> Iterator[Action]:
    calls = row.get("calls") or ()
    for call in calls if isinstance(calls, list | tuple) else [calls]:
        name, arguments = (
            (call.get("name"), call.get("arguments")) if isinstance(call, dict) else (None, None)
        )
        if not isinstance(name, str) or not isinstance(arguments, dict):
            raise JobFailure(
                f"the row's calls are a list of objects with name and arguments, not {call!r:.100}"
            )
        yield Action(name, arguments)


def _truth(row: Row) -> str:
    if (answer := _answer(row)) is None:
        raise _lacks(row, ANSWERS)
    if text := _as_text(answer).strip():
        return text
    raise JobFailure("the row's answer is an empty text, which nothing can be compared with")


def _as_text(value: Json) -> str:
    return value if isinstance(value, str) else json.dumps(value)
