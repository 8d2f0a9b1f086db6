"""Environments of verifiers 0.3 and what came before: modules with a function `load_environment`.

Every kind of them is a MultiTurnEnv, so one way plays them all: its `setup_state`, `env_response`,
stop conditions and rubric, with a state that is made again when the episode is. The client of the
package is never asked. The package turns a reward that raises into 0.0; here it is a failure.
"""

import inspect
import json
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, wraps
from hashlib import sha256
from importlib import import_module, metadata
from types import SimpleNamespace
from typing import Any

from rollq.env import RESPOND, STOP_MARKER, Action, Grade, Json, Observation, Task, User
from rollq.errors import EnvironmentFailure, JobFailure
from rollq_integrations.verifiers.package import OwnLoop, only_in_main_thread
from rollq_integrations.verifiers.tasks import prompt_of

OWN_LOOP = ("get_prompt_messages", "get_model_response", "add_model_response", "rollout")
"""What an environment must not replace, because rollq's loop does it."""
FAILED = "_rollq_failed"
"""Key of the state: the rewards that raised."""
_ANYTHING = inspect.signature(lambda **objects: None)
"""Of a reward that is given all objects, the state among them."""


class ClassicDomain:
    """Implements rollq.env.Domain."""

    def __init__(self, name: str, args: Mapping[str, Json]) -> None:
        """`args` are those of `load_environment`. Raises JobFailure for an environment that cannot
        be played.
        """
        self.name = f"verifiers:{name}"
        self._env = _loaded(name, args)
        self._rows = {"train": self._env.get_dataset()}
        if self._env.eval_dataset_source is not None:
            self._rows["test"] = self._env.get_eval_dataset()
        given = sha256(json.dumps(args, sort_keys=True).encode()).hexdigest()[:8]
        self.version = (
            f"verifiers {metadata.version('verifiers')} {name} {_version_of(name)} {given}"
        )

    def splits(self) -> Mapping[str, int]:
        return {split: len(rows) for split, rows in self._rows.items()}

    def task(self, split: str, index: int) -> Task:
        row = self._row(split, index)
        question = _prompt(row)[1]
        digest = sha256(json.dumps(row, sort_keys=True, default=str).encode()).hexdigest()[:16]
        known = {
            "id": f"{split}/{index}",
            "hash": digest,
            "instruction": question,
            "opening": question,
        }
        return Task(**known, replies=(STOP_MARKER,), moves=())

    def open(self, split: str, index: int, args: Mapping[str, Json]) -> "ClassicEpisode":
        if args:
            raise JobFailure(
                f"{self.name} takes no env_args, not {dict(args)!r:.200}; give them in "
                "a file: taskset()"
            )
        only_in_main_thread(self.name)
        return ClassicEpisode(self._env, self._row(split, index))

    def _row(self, split: str, index: int) -> dict[str, Any]:
        rows = self._rows.get(split, ())
        if not 0 <= index < len(rows):
            raise JobFailure(
                f"there is no task {index} of split {split!r}; {self.name} has "
                f"{dict(self.splits())}"
            )
        return dict(rows[index])


class ClassicEpisode:
    """Implements rollq.env.Environment. A turn with several calls becomes as many turns of one call
    each.
    """

    def __init__(self, env: Any, row: Mapping[str, Any]) -> None:
        self._env = env
        self.system_prompt, _ = _prompt(row)
        self._loop = OwnLoop()
        self._state = self._loop.wait(self._open(row))
        self._prompt = self._state["prompt"]
        self.tools: Sequence[Json] = [_schema(tool) for tool in self._state["tool_defs"]]

    def reset(self, user: User) -> str:
        return user.open()

    def step(self, action: Action) -> Observation:
        types = _part("types")
        said: dict[str, Any] = {"role": "assistant"}
        if action.name == RESPOND:
            said["content"] = str(action.arguments["content"])
        elif not any(tool.name == action.name for tool in self._state["tool_defs"]):
            return Observation(f"Error: there is no tool {action.name!r}")
        else:
            call = {"id": f"call_{len(self._state['trajectory'])}", "name": action.name}
            said["tool_calls"] = [
                types.ToolCall(**call, arguments=json.dumps(dict(action.arguments)))
            ]
        text, done = self._loop.wait(self._answer(types.AssistantMessage(**said)))
        return Observation(text, done=done)

    def grade(self) -> Grade:
        state = self._state
        self._loop.wait(self._score())
        if state[FAILED]:
            name, error = state[FAILED][0]
            raise EnvironmentFailure(
                f"the reward function {name} raised {type(error).__name__}: {error}"
            ) from error
        info: dict[str, Json] = {
            "metrics": dict(state["metrics"]),
            "stop": state.get("stop_condition"),
        }
        return Grade(float(state["reward"]), info)

    def close(self) -> None:
        self._loop.close()

    async def _open(self, row: Mapping[str, Any]) -> Any:
        state = await self._env.init_state(row, _no_client(), "rollq", None)
        state[FAILED] = []
        return await self._env.setup_state(state) or state

    async def _answer(self, message: Any) -> tuple[str, bool]:
        """What the environment says to a turn, and whether that ends the episode."""
        env, state, before = self._env, self._state, self._prompt
        fixed = {
            "response": None,
            "tokens": None,
            "reward": None,
            "advantage": None,
            "is_truncated": False,
        }
        turn = {
            "prompt": before,
            "completion": [message],
            "trajectory_id": state["trajectory_id"],
            "extras": {},
        }
        await env.add_trajectory_step(state, {**turn, **fixed})
        if await env.is_completed(state):
            return "", True
        self._prompt = _part("utils.message_utils").normalize_messages(
            await env.get_prompt_messages(state), field_name="prompt"
        )
        new = state.get("final_env_response") or self._prompt[len(before) + 1 :]
        return "\n".join(
            map(_text, new if isinstance(new, list) else [new])
        ), await env.is_completed(state)

    async def _score(self) -> None:
        await self._env.cleanup(self._state)
        await self._env.rubric.score_rollout(self._state)
        await self._env.rubric.cleanup(self._state)


def _loaded(name: str, args: Mapping[str, Json]) -> Any:
    vf = import_module("verifiers")
    try:
        with _signals_stay():
            env = vf.load_environment(name, **args)
    except Exception as e:  # other people's code
        raise JobFailure(
            f"the environment {name!r} of verifiers cannot be loaded: {type(e).__name__}: {e}"
        ) from e
    kind = type(env)
    if not isinstance(env, vf.MultiTurnEnv):
        raise JobFailure(
            f"{name!r} is a {kind.__name__}; of verifiers 0.3 only kinds of MultiTurnEnv are played"
        )
    if own := [
        part for part in OWN_LOOP if getattr(kind, part) is not getattr(vf.MultiTurnEnv, part)
    ]:
        raise JobFailure(
            f"{name!r} is a {kind.__name__} with a {own[0]} of its own, which rollq's "
            "loop does not call"
        )
    if env.message_type != "chat":
        raise JobFailure(
            f"{name!r} has prompts of the type {env.message_type!r}; only 'chat' is played"
        )
    if env.rubric.has_group_rewards:
        raise JobFailure(
            f"{name!r} rewards a group's rollouts together, but rollq grades each episode by itself"
        )
    _tell_failures(env.rubric)
    return env


@contextmanager
def _signals_stay() -> Iterator[None]:
    """Environments set handlers for SIGINT and SIGTERM when they are made; those are the
    worker's.
    """
    module = _part("envs.environment")
    kept = {name: getattr(signal, name) for name in ("SIGINT", "SIGTERM", "default_int_handler")}
    module.signal = SimpleNamespace(signal=lambda number, handler: None, **kept)
    try:
        yield
    finally:
        module.signal = signal


def _tell_failures(rubric: Any) -> None:
    """Have the rubric's functions note in the state what they raise."""
    for part in getattr(rubric, "rubrics", ()):
        _tell_failures(part)
    rubric.funcs = [_telling(rubric, function) for function in rubric.funcs]


def _telling(rubric: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    wanted = inspect.signature(function).parameters.values()

    @wraps(function)
    async def told(**objects: Any) -> Any:
        state = objects["state"]
        try:
            takes_all = any(p.kind is p.VAR_KEYWORD for p in wanted)
            names = objects if takes_all else [p.name for p in wanted if p.name in objects]
            found = function(**{name: objects[name] for name in names})
            return float(await found if inspect.isawaitable(found) else found)
        except Exception as e:  # other people's code
            state[FAILED].append((told.__name__, e))
            raise

    told.__signature__ = _ANYTHING  # type: ignore[attr-defined]
    return told


def _prompt(row: Mapping[str, Any]) -> tuple[str, str]:
    prompt = row.get("prompt")
    if isinstance(prompt, list):
        prompt = [
            SimpleNamespace(role=message["role"], content=message["content"]) for message in prompt
        ]
    return prompt_of(SimpleNamespace(system_prompt="", prompt=prompt))


def _schema(tool: Any) -> Json:
    function = {
        "name": tool.name,
        "description": tool.description or "",
        "parameters": tool.parameters,
    }
    return {"type": "function", "function": function}


def _text(message: Any) -> str:
    content = message["content"] if isinstance(message, dict) else message.content
    if isinstance(content, str):
        return content
    parts = (part if isinstance(part, dict) else part.model_dump() for part in content or ())
    texts = ((part, part.get("text")) for part in parts)
    return "\n".join(
        text if isinstance(text, str) else f"[{part.get('type')}]" for part, text in texts
    )


@cache
def _no_client() -> Any:
    """A client that nothing may ask."""

    def asked(*_: Any, **__: Any) -> Any:
        raise EnvironmentFailure(
            "this environment asks a model by itself, which rollq does not give it"
        )

    kind = _part("clients").Client
    methods = dict.fromkeys(kind.__abstractmethods__, asked)
    return type("NoClient", (kind,), methods)(None)


def _version_of(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "without a package"


def _part(module: str) -> Any:
    return import_module(f"verifiers.legacy.{module}")
