"""Tasks from a file of questions with answers: one prompt, one answer, and no tools or those of a
server.

`--env maths.jsonl:number` plays such a file as it is. In a file of your own, `dataset` makes the
environment:

    def reward(answer, row):
        return float(row["answer"] in answer)

    load = dataset(Path(__file__).with_name("maths.jsonl"), reward=reward)

A row of JSON Lines or Parquet has `prompt` (a text, or messages in OpenAI's form: one of the
user's, perhaps behind a system message) and `answer`: a text, a number or a list of such, of which
any one will do. Rows as verl (`reward_model.ground_truth`), slime (`label`) and OpenAI's
fine-tuning (a last message of the assistant's) write them are read as they are. `system` is
optional. So are `calls` and `response`: the tool calls that a perfect agent makes, and its words if
they are not the answer. `labels` come back in the grade's info. A row with images, with tools of
its own or with choices that its prompt does not show is refused. All other fields are for the
reward function. Null stands for a missing field, as in Parquet. This module does not know the
file's name in a job.
"""

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
from rollq.numbers import is_number
from rollq.pip_extras import install_line
from rollq_worker.environments.graders import GRADERS, IN_A_BOX, Grader, in_a_box

Row = Mapping[str, Json]
Reward = Callable[[str, Row], float | Grade]
"""Grades an answer. It gets the policy's words without its reasoning, and the row."""
PROMPTS = ("prompt", "question", "problem", "messages")
"""Names of the field with the prompt. The first one that a row has counts."""
ANSWERS = ("answer", "ground_truth", "solution", "label", "expected_answer")
ANY_OF = ("target", "aliases", "value")
"""Keys of a truth that is an object, in the rows of Search-R1 and TriviaQA. Their values are texts
or lists, of which any one is right.
"""
MEDIA = ("image", "images", "video", "videos", "audio", "audios")
"""Fields that belong to a row's prompt, and that a dataset cannot show."""
CHOICES = ("choices", "options")
"""Names of the field with the answers to choose from: a list, or an object with them under `text`
(ARC) or by their letters.
"""


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
        self._refuse_what_is_not_shown(row, question)
        if isinstance(self._reward, _Graded):
            self._reward("", row)  # raises for a truth that no answer can be compared with
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
        """The last words of a perfect agent. None if the row does not have them."""
        response = row.get("response")
        if response is not None:
            return _as_text(response)
        if isinstance(self._reward, _Graded):
            return self._reward.perfect(_truths(row)[0])
        answer = _answer(row)
        return None if answer is None else _as_text(answer)

    def _refuse_what_is_not_shown(self, row: Row, question: str) -> None:
        """Raises JobFailure for fields without which the question is another one."""
        lost = "the policy would not be shown the row's"
        for name in MEDIA:
            if row.get(name):
                raise JobFailure(f"{lost} {name}: write an environment that shows them")
        if row.get("tools") and self._tools is None:
            raise JobFailure(f"{lost} tools: give the dataset its tools with dataset(tools=)")
        for name in CHOICES:
            if any(choice not in question for choice in _choices_in(row.get(name))):
                raise JobFailure(f"{lost} {name}: write them into its prompt")

    def _prompt(self, row: Row) -> tuple[str, str]:
        """System prompt and question."""
        prompt = _first_field(row, PROMPTS)
        if prompt is None:
            raise _lacks(row, PROMPTS)
        system = self._system if row.get("system") is None else row["system"]
        if isinstance(prompt, list):
            messages = _messages(prompt)
            roles = [role for role, _ in messages]
            if roles not in (["user"], ["system", "user"], ["developer", "user"]):
                raise JobFailure(
                    "the row's prompt must be one message of the user's, after a system message "
                    "or none"
                )
            if len(messages) > 1:
                system = messages[0][1]
            prompt = messages[-1][1]
        if not isinstance(prompt, str) or not prompt.strip() or not isinstance(system, str):
            raise JobFailure(
                f"the row's prompt and system prompt must be texts, not {prompt!r:.60} and "
                f"{system!r:.60}"
            )
        return system, prompt


class Question:
    """Implements rollq.env.Environment: the policy's first words are its answer."""

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
            if self._tools is None:
                return Observation("Error: there are no tools here")
            return Observation(self._tools.call(action))
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
        if labels is None:
            return grade
        return replace(grade, info={"labels": labels, **grade.info})

    def close(self) -> None:
        if self._tools:
            self._tools.close()


class _Graded:
    """A reward by the name of its grader."""

    def __init__(self, grader: Grader) -> None:
        self._grader = grader

    def __call__(self, answer: str, row: Row) -> float:
        grades = [self._grader(answer, truth) for truth in _truths(row)]
        return float(any(grades))

    def perfect(self, truth: str) -> str:
        """An answer that earns the reward."""
        return in_a_box(truth) if self._grader in IN_A_BOX else truth


def _reward(reward: str | Reward) -> Reward:
    if callable(reward):
        return reward
    if reward not in GRADERS:
        raise JobFailure(
            f"there is no reward {reward!r} of answers; there are {', '.join(GRADERS)}, or give a "
            "function"
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
                fields = {name: _without_nulls(value) for name, value in row.items()}
                yield json.dumps(fields, default=str).encode()


def _without_nulls(value: Any) -> Any:
    """A value without the keys that only other rows of its column have. Parquet holds null there,
    which is not an argument of a call.
    """
    if isinstance(value, dict):
        return {key: _without_nulls(part) for key, part in value.items() if part is not None}
    if isinstance(value, list):
        return [_without_nulls(part) for part in value]
    return value


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
                    f"{path}:{n} is not a line of JSON with the fields of a row: {e}"
                ) from e
            yield line.strip()


def _first_field(row: Row, names: Sequence[str]) -> Any:
    """The first of these fields that the row has. None without one."""
    return next((row[name] for name in names if row.get(name) is not None), None)


def _lacks(row: Row, names: Sequence[str]) -> JobFailure:
    have = ", ".join(name for name, value in row.items() if value is not None)
    return JobFailure(f"the row has no {' or '.join(names)}; it has {have or 'nothing'}")


def _messages(prompt: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Role and content of each message of a prompt, without an answer at its end."""
    messages: list[tuple[Any, Any]] = []
    for message in prompt:
        if isinstance(message, dict):
            messages.append((message.get("role"), _content(message.get("content"))))
        else:
            messages.append((None, None))
    if messages and messages[-1][0] == "assistant":
        messages.pop()
    return messages


def _content(content: Any) -> Any:
    """Text, also of a list of text parts."""
    if isinstance(content, list) and all(map(_is_text_part, content)):
        return "".join(str(part.get("text", "")) for part in content)
    return content


def _is_text_part(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "text"


def _answer(row: Row) -> Any:
    """The truth, in one of the forms that rows have it. None without one."""
    answer = _first_field(row, ANSWERS)
    if answer is not None:
        return answer
    graded = row.get("reward_model")
    if isinstance(graded, dict) and graded.get("ground_truth") is not None:
        return graded["ground_truth"]
    prompt = _first_field(row, PROMPTS)
    if not isinstance(prompt, list) or not prompt:
        return None
    last = prompt[-1]
    if not isinstance(last, dict) or last.get("role") != "assistant":
        return None
    return _content(last.get("content"))


def _calls(row: Row) -> Iterator[Action]:
    calls = row.get("calls") or ()
    for call in calls if isinstance(calls, list | tuple) else [calls]:
        fields = call if isinstance(call, dict) else {}
        name = fields.get("name")
        arguments = fields.get("arguments")
        if not isinstance(name, str) or not isinstance(arguments, dict):
            raise JobFailure(
                f"the row's calls are a list of objects with name and arguments, not {call!r:.100}"
            )
        yield Action(name, arguments)


def _truths(row: Row) -> Sequence[str]:
    """The truths of which any one earns the reward. Raises JobFailure without one."""
    answer = _answer(row)
    if answer is None:
        raise _lacks(row, ANSWERS)
    truths = [_truth(value) for value in _alternatives(answer)]
    if not truths:
        raise JobFailure(f"the row's answer has nothing to compare with: {answer!r:.100}")
    return truths


def _alternatives(answer: Json) -> Iterator[Json]:
    if isinstance(answer, list):
        yield from answer
        return
    if not isinstance(answer, dict):
        yield answer
        return
    for name in ANY_OF:
        if name in answer:
            yield from _alternatives(answer[name])


def _truth(value: Json) -> str:
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if not (is_whole or isinstance(value, str) or is_number(value)):
        raise JobFailure(
            f"the row's answer is {json.dumps(value):.100}, and not a text, a number or a list of "
            "such: write it as a text, or grade with a function"
        )
    text = _as_text(value).strip()
    if not text:
        raise JobFailure("the row's answer is an empty text, which nothing can be compared with")
    return text


def _choices_in(value: Json) -> Iterator[str]:
    """The texts and numbers in nested lists and objects, without the labels of choices."""
    if isinstance(value, str | int | float):
        yield _as_text(value)
    elif isinstance(value, dict):
        shown = [value["text"]] if "text" in value else value.values()
        for part in shown:
            yield from _choices_in(part)
    elif isinstance(value, list):
        for part in value:
            yield from _choices_in(part)


def _as_text(value: Json) -> str:
    return value if isinstance(value, str) else json.dumps(value)
