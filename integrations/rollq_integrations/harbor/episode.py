"""An episode of a task: a tool `bash` in a sandbox, and the task's own tests as its grade.

The policy calls `bash` until it answers in words, which ends the episode, or brings the instruction
of the next step. A failure of image, container, tests or time is an EnvironmentFailure, never a
reward of 0, unless the tests do give a grade in an untouched container: then the policy has broken
them, and gets 0. It does not know how containers are made or how folders are read.
"""

import json
import math
import shlex
from collections.abc import Sequence
from contextlib import closing
from statistics import fmean

from rollq.env import (
    RESPOND,
    Action,
    CommandResult,
    Grade,
    Json,
    Observation,
    Sandbox,
    User,
    attempt_labels,
)
from rollq.env.attempt import labelled
from rollq.errors import EnvironmentFailure
from rollq_integrations.harbor.artifacts import copy
from rollq_integrations.harbor.room import LOGS, Room, one_sandbox, wait_until_healthy
from rollq_integrations.harbor.task_folder import Step, TaskFolder
from rollq_integrations.sandbox import as_told

COMMAND_S = 60.0
"""Longest time of a command in seconds that names none."""
REWARD_TEXT = f"{LOGS}/reward.txt"
REWARD_JSON = f"{LOGS}/reward.json"
"""Files in which tests write the reward: a number, or a JSON object of numbers of which `reward`
counts.
"""
LARGEST_FILE = 1 << 16
"""Number of bytes of a reward file; all of its numbers stay with the episode."""
LARGEST_REWARD = 1 << 53
"""Every number that tests write is smaller."""
NO_GRADE = 125
"""Smallest exit code of a command that was not found, cannot run, or was killed. Podman says 125
where it cannot start one.
"""
SHOWN_CHARACTERS = 4000
"""Number of characters of the tests' output that the grade's info has."""
BASH: Json = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Runs a command in bash, in a shell of its own, and returns what it "
        "writes. When the task is done, say so without calling a tool.",
        "parameters": {
            "type": "object",
            "properties": {
                "command": {"type": "string"},
                "seconds": {
                    "type": "number",
                    "description": f"its longest time; {COMMAND_S:g} if it is left out",
                },
            },
            "required": ["command"],
        },
    },
}


class HarborEpisode:
    """Implements rollq.env.Environment."""

    tools: Sequence[Json] = (BASH,)
    system_prompt = ""

    def __init__(self, task: TaskFolder) -> None:
        self._task = task
        self._position = 0
        self._grades: dict[str, Grade] = {}
        agent_s = max(step.agent_s for step in task.steps)
        # Tests may run three times (see `_grade_fairly`), each with a few short commands.
        tests_s = max(step.tests_s for step in task.steps) + 4 * COMMAND_S
        self.longest_grade_s = 3 * tests_s
        if task.tests_place is not None:
            self.longest_grade_s += task.tests_place.build_s
        self.longest_step_s = agent_s + COMMAND_S
        if len(task.steps) > 1:
            checks = [step.healthcheck.longest_s for step in task.steps if step.healthcheck]
            self.longest_step_s += self.longest_grade_s + max(checks, default=0.0)
        self._labels = attempt_labels()
        self._room = Room(task)
        self.sandbox = self._room.main
        try:
            self._begin(self.sandbox, task.steps[0])
        except BaseException:
            self.close()
            raise

    @property
    def _current_step(self) -> Step:
        return self._task.steps[self._position]

    def _begin(self, sandbox: Sandbox, step: Step) -> None:
        """Prepares a step: its files and `setup.sh` in the folder where commands begin."""
        if step.files is not None:
            working_folder = sandbox.run(["pwd"])
            self._check("its folder", working_folder)
            for file in sorted(step.files.iterdir()):  # so the folder keeps its owner and mode
                sandbox.upload(file, f"{working_folder.output.strip()}/{file.name}")
            if (step.files / "setup.sh").is_file():
                result = sandbox.run(["bash", "setup.sh"], seconds=step.agent_s, user=step.user)
                self._check(f"setup.sh of the step {step.name}", result)
        if step.healthcheck is not None:
            wait_until_healthy(sandbox, step.healthcheck, f"the step {step.name}")

    def reset(self, user: User) -> str:
        return user.open()

    def step(self, action: Action) -> Observation:
        if action.name == RESPOND:
            return self._respond()
        if action.name != "bash":
            return Observation(f"Error: there is no tool {action.name!r:.80}")
        command = action.arguments.get("command")
        seconds = action.arguments.get("seconds", COMMAND_S)
        is_time = type(seconds) in (int, float) and 0 < seconds < math.inf
        if not isinstance(command, str) or not is_time:
            return Observation("Error: bash takes command, a text, and seconds, a number above 0")
        longest = float(min(seconds, self._current_step.agent_s))
        result = self.sandbox.run(
            ["bash", "-c", command], seconds=longest, user=self._current_step.user
        )
        return Observation(as_told(result))

    def _respond(self) -> Observation:
        """Ends the episode, or the step, whose tests then run and leave nothing behind."""
        step = self._current_step
        is_last = self._position == len(self._task.steps) - 1
        if is_last:
            return Observation("", done=True)
        grade = self._grade_step()
        rewards = grade.info["rewards"]
        if not rewards or _is_failed(step, rewards):  # the policy has broken them, or failed
            return Observation("", done=True, reward=grade.reward)
        targets = [target for target, _ in step.tests]
        remove = ["rm", "-rf", LOGS, *targets]
        self._prepare(self.sandbox, remove, ["mkdir", "-m", "777", LOGS])
        self._position += 1
        self._begin(self.sandbox, self._current_step)
        return Observation(self._current_step.instruction, reward=grade.reward)

    def grade(self) -> Grade:
        """The grade of the last step, or the mean of all that were played."""
        if self._current_step.name not in self._grades:
            self._grade_step()
        *_, last = self._grades.values()
        if len(self._task.steps) == 1:
            return last
        reward = last.reward
        if not self._task.final:
            reward = fmean(grade.reward for grade in self._grades.values())
        steps = {name: grade.info["rewards"] for name, grade in self._grades.items()}
        return Grade(reward, {**last.info, "steps": steps})

    def _grade_step(self) -> Grade:
        grade = self._grade_fairly()
        self._grades[self._current_step.name] = grade
        return grade

    def _grade_fairly(self) -> Grade:
        """Grades the policy's work. Tests that give no grade run once more where no policy was: if
        they fail there too, the task is at fault, which is an EnvironmentFailure. Otherwise they
        run again on the work, without the policy's processes: if they still give none, the reward
        is 0.
        """
        try:
            return self._grade_work()
        except EnvironmentFailure:
            with labelled(self._labels):
                self._grade_untouched()
        self.sandbox.end_processes()
        try:
            return self._grade_work()
        except EnvironmentFailure as e:
            return Grade(0.0, {"rewards": {}, "tests": str(e)[-SHOWN_CHARACTERS:]})

    def _grade_untouched(self) -> None:
        if self._task.tests_place is None:
            with closing(Room(self._task)) as untouched:
                for step in self._task.steps[: self._position + 1]:
                    self._begin(untouched.main, step)
                self._grade_in(untouched.main)
        else:
            with closing(one_sandbox(self._task.tests_place)) as tests_sandbox:
                self._grade_in(tests_sandbox)

    def _grade_work(self) -> Grade:
        if self._task.tests_place is None:
            return self._grade_in(self.sandbox)
        with labelled(self._labels), closing(one_sandbox(self._task.tests_place)) as tests_sandbox:
            for path in self._current_step.artifacts:
                copy(path, self.sandbox, tests_sandbox)
            return self._grade_in(tests_sandbox)

    def _grade_in(self, sandbox: Sandbox) -> Grade:
        step = self._current_step
        tests_user = step.tests_user or sandbox.run(["id", "-u"]).output.strip()
        targets = [target for target, _ in step.tests]
        self._prepare(
            sandbox,
            ["rm", "-rf", LOGS, *targets],
            ["mkdir", "-p", LOGS],
            ["chown", tests_user, LOGS],
        )
        for target, source in step.tests:
            sandbox.upload(source, target)
        if self._task.rewards:
            self._prepare(sandbox, ["chmod", "+x", "/tests/test.sh"])
        result = sandbox.run(
            ["sh", "-c", self._task.test_command],
            seconds=step.tests_s,
            env=step.tests_env,
            user=step.tests_user,
        )
        if result.stopped:
            raise EnvironmentFailure(
                f"the tests of {self._task.path.name} were stopped: {result.stopped}"
            )
        if not self._task.rewards and result.code >= NO_GRADE:
            raise EnvironmentFailure(
                f"the tests of {self._task.path.name} did not run: {as_told(result)[-2000:]}"
            )
        rewards = {"reward": float(result.code == 0)}
        if self._task.rewards:
            rewards = self._rewards(sandbox)
        info = {"rewards": rewards, "tests": result.output[-SHOWN_CHARACTERS:]}
        return Grade(self._reward(rewards, result), info)

    def _prepare(self, sandbox: Sandbox, *commands: Sequence[str]) -> None:
        """Runs commands as root, so that the agent's user, if it has one, cannot write the rewards
        of the tests.
        """
        result = sandbox.run(["sh", "-c", " && ".join(map(shlex.join, commands))], user="root")
        self._check("preparing its tests", result)

    def _check(self, what: str, result: CommandResult) -> None:
        if result.code or result.stopped:
            raise EnvironmentFailure(f"{self._task.path.name}: {what}: {as_told(result)[-2000:]}")

    def close(self) -> None:
        self._room.close()

    def _rewards(self, sandbox: Sandbox) -> Json:
        """The rewards that the tests wrote. Raises EnvironmentFailure for an unreadable file."""
        for path, read in ((REWARD_JSON, _json_rewards), (REWARD_TEXT, _text_reward)):
            try:
                content = sandbox.download(path)
                if len(content) > LARGEST_FILE:
                    raise ValueError(f"it has more than {LARGEST_FILE} bytes")
                return read(content.decode())
            except FileNotFoundError:
                continue
            except (ValueError, RecursionError) as e:
                raise EnvironmentFailure(
                    f"the tests of {self._task.path.name} wrote {path}: {e}"
                ) from e
        return {}

    def _reward(self, rewards: Json, result: CommandResult) -> float:
        reward = rewards.get("reward")
        if reward is None and len(rewards) == 1:
            [reward] = rewards.values()
        if reward is not None and 0.0 <= reward <= 1.0:
            return float(reward)
        problem = "no reward"
        if rewards:
            problem = f"the rewards {rewards}, where one `reward` from 0 to 1 is needed"
        raise EnvironmentFailure(
            f"the tests of {self._task.path.name} ended with code {result.code} and "
            f"{problem}; they said:\n{result.output[-2000:]}"
        )


def _is_failed(step: Step, rewards: Json) -> bool:
    """True if a reward is missing or too small for a further step."""
    for name, smallest in step.smallest_rewards.items():
        if name not in rewards or rewards[name] < smallest:
            return True
    return False


def _text_reward(text: str) -> Json:
    return {"reward": float(text)}


def _json_rewards(text: str) -> Json:
    rewards = json.loads(text)
    if not isinstance(rewards, dict):
        rewards = {"reward": rewards}
    for value in rewards.values():
        if type(value) not in (int, float, bool) or not abs(value) < LARGEST_REWARD:
            raise ValueError(f"rewards must be finite numbers: {text:.200}")
    return rewards
