"""The replay engine: what it says, how it fails on order, and that it is a good process."""

import asyncio
import os
import random
import signal
import subprocess
import sys
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import requests
from hypothesis import given, settings
from hypothesis import strategies as st

from rollq.errors import JobFailure, SettingsError
from rollq.job import Job, Json
from rollq.trajectory import Finish, Stop, Trajectory, VersionSpan
from rollq_worker.engine.sglang_client import SGLangEngine
from rollq_worker.environments import domain
from rollq_worker.episode.loop import play
from rollq_worker.fakes import FakeJournal
from rollq_worker.protocols import RESPOND, STOP_MARKER, Action, Generated, ReadTurn, Task
from rollq_worker.replay_engine import faults, made_up_logprobs
from rollq_worker.replay_engine.errors import HttpError
from rollq_worker.replay_engine.faults import Fault
from rollq_worker.replay_engine.generate import Options
from rollq_worker.replay_engine.ground_truth import POLITE, Player, turn_text
from rollq_worker.replay_engine.mistakes import Mistake, chance, draw, last_call, spoilt
from rollq_worker.replay_engine.scheduler import Generation, Scheduler
from rollq_worker.replay_engine.server import serve
from rollq_worker.replay_engine.task_progress import Progress, Scripts
from rollq_worker.tokens.renderer import ChatRenderer
from rollq_worker.tokens.tokenizer import load_tokenizer
from rollq_worker.users.openai import GREETING, PROMPT
from rollq_worker.users.scripted import ScriptedUser
from tests.clock import Clock
from tests.recorder import recording
from tests.rollq_worker.engine.engine_servers import replaying

SPLIT = "dev"
TOKENIZER = load_tokenizer()
SHOP = domain("shop")
TASKS = SHOP.splits()[SPLIT]


class PlayerEngine:
    """protocols.Engine straight on a player, interrupted after `cut()` tokens."""

    def __init__(self, player: Callable[[], Player], cut: Callable[[], int], seed: int = 0) -> None:
        self.player = player
        self.cut = cut
        self.rng = random.Random(seed)

    def room(self, prompt: int) -> int:
        return 1 << 20

    def generate(self, ids: "array[int]", *, sampling: Mapping[str, Json], max_new_tokens: int, **_: Any) -> Generated:
        said = self.player().answer(ids, self.rng).ids[: min(self.cut(), max_new_tokens)]
        whole = said[-1] == TOKENIZER.added_tokens["<|im_end|>"]
        return Generated(
            ids=said,
            logprobs=array("f", [-1.0] * len(said)),
            versions=[VersionSpan("v", 0, len(said))],
            finish=Finish.STOP if whole else Finish.ABORT,
        )


def episode(engine: Any, task: int, env: str = "shop") -> Trajectory:
    environment = SHOP.open(SPLIT, task, {})
    script = SHOP.task(SPLIT, task)
    return play(
        Job(run="run", group="group", env=env, split=SPLIT, task=task),
        engine=engine,
        renderer=ChatRenderer(TOKENIZER, environment.tools),
        environment=environment,
        user=ScriptedUser(script.opening, script.replies),
        journal=FakeJournal(),
    )


def always(count: int) -> Callable[[], int]:
    return lambda: count


@pytest.fixture(scope="module")
def scripts() -> Scripts:
    return Scripts([SHOP])


@pytest.fixture(scope="module")
def task() -> Task:
    """One with a few calls."""
    return max((SHOP.task(SPLIT, i) for i in range(TASKS)), key=lambda task: len(task.moves))


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with replaying() as url:
        yield url


@pytest.fixture(autouse=True, scope="module")
def no_pause() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rollq_worker.episode.loop.ABORT_PAUSE_S", 0.0)
        yield


class TestPlayer:
    def test_every_task_is_played_to_its_reward(self, scripts: Scripts) -> None:
        player = Player(TOKENIZER, scripts)
        for index in range(TASKS):
            trajectory = episode(PlayerEngine(lambda: player, always(1 << 20)), index)
            assert (trajectory.stop, trajectory.reward) == (Stop.DONE, 1.0)
            assert trajectory.turns == len(SHOP.task(SPLIT, index).moves)

    def test_nothing_depends_on_what_was_seen_before(self, scripts: Scripts) -> None:
        """Behind a router every turn may come to another server."""
        warm = Player(TOKENIZER, scripts)
        for index in range(3):
            one = episode(PlayerEngine(lambda: warm, always(1 << 20)), index)
            each = episode(PlayerEngine(lambda: Player(TOKENIZER, scripts), always(1 << 20)), index)
            assert one.tokens == each.tokens

    @settings(max_examples=25, deadline=None)
    @given(cuts=st.lists(st.integers(1, 40), min_size=1), mistakes=st.sampled_from([0.0, 0.5]), seed=st.integers(0, 99))
    def test_an_interrupted_turn_is_finished_as_it_was_begun(
        self, scripts: Scripts, cuts: list[int], mistakes: float, seed: int
    ) -> None:
        lengths = iter(cuts * 10_000)
        player = Player(TOKENIZER, scripts, mistakes)
        trajectory = episode(PlayerEngine(lambda: player, lambda: next(lengths), seed), seed % TASKS)
        assert trajectory.graded
        said = [message["content"] for message in trajectory.messages if message["role"] == "assistant"]
        assert all(isinstance(text, str) for text in said)
        if not mistakes:
            assert trajectory.reward == 1.0

    def test_mistakes_happen_in_about_as_many_episodes_as_asked_for(self, scripts: Scripts) -> None:
        player = Player(TOKENIZER, scripts, mistakes=0.5)
        engine = PlayerEngine(lambda: player, always(1 << 20), seed=7)
        played = [episode(engine, index % TASKS) for index in range(60)]
        assert all(trajectory.graded for trajectory in played)
        clean = sum(
            [(a["name"], a["arguments"]) for a in actions(t)]
            == [(move.name, dict(move.arguments)) for move in SHOP.task(SPLIT, t.job.task).moves]
            for t in played
        )
        assert 15 <= clean <= 45
        lost = sum(trajectory.reward == 0.0 for trajectory in played)
        assert 5 <= lost <= 60 - clean

    def test_conversations_that_are_nobodys(self, scripts: Scripts) -> None:
        player, rng = Player(TOKENIZER, scripts), random.Random(0)
        polite = TOKENIZER.encode(POLITE) + array("I", [TOKENIZER.added_tokens["<|im_end|>"]])
        for text in (
            "Hello?",
            "<|im_start|>user\nHello?<|im_end|>\n<|im_start|>assistant\n",
            "<|im_start|>",
            "<|im_start|>assistant\n<|im_start|>assistant\n",
            "<|im_start|>user\nA<|im_end|>\n<|im_start|>assistant\nB<|im_end|>\n<|im_start|>user\nC<|im_end|>\n",
        ):
            assert player.answer(TOKENIZER.encode(text), rng).ids == polite

    @settings(max_examples=100, deadline=None)
    @given(ids=st.lists(st.integers(0, TOKENIZER.vocab_size - 1), min_size=1, max_size=60))
    def test_no_prompt_breaks_it(self, scripts: Scripts, ids: list[int]) -> None:
        answer = Player(TOKENIZER, scripts, 0.5).answer(array("I", ids), random.Random(0))
        assert answer.ids and answer.known == 0

    def test_an_opened_thought_is_closed(self, scripts: Scripts, task: Task) -> None:
        player, rng = Player(TOKENIZER, scripts), random.Random(0)
        prompt = f"<|im_start|>user\n{task.opening}<|im_end|>\n<|im_start|>assistant\n"
        move = turn_text(task.moves[0])
        for thought, rest in (("<think>\n", f"\n</think>\n\n{move}"), ("<think>\n\n</think>\n\n", move)):
            said = player.answer(TOKENIZER.encode(prompt + thought), rng).ids
            assert TOKENIZER.decode(said[:-1]) == rest

    def test_a_turn_that_somebody_else_began_is_just_ended(self, scripts: Scripts, task: Task) -> None:
        prompt = f"<|im_start|>user\n{task.opening}<|im_end|>\n<|im_start|>assistant\nI, for one,"
        said = Player(TOKENIZER, scripts).answer(TOKENIZER.encode(prompt), random.Random(0)).ids
        assert list(said) == [TOKENIZER.added_tokens["<|im_end|>"]]

    def test_what_was_seen_before_is_known_until_it_is_forgotten(self, scripts: Scripts, task: Task) -> None:
        player, rng = Player(TOKENIZER, scripts), random.Random(0)
        prompt = TOKENIZER.encode(f"<|im_start|>user\n{task.opening}<|im_end|>\n<|im_start|>assistant\n")
        first = player.answer(prompt, rng)
        bridge = "\n<|im_start|>user\nYes.<|im_end|>\n<|im_start|>assistant\n"
        second = player.answer(prompt + first.ids + TOKENIZER.encode(bridge), rng)
        assert first.known == 0 < second.known < len(prompt)
        player.forget()
        assert player.answer(prompt, rng).known == 0


def actions(trajectory: Trajectory) -> list[Any]:
    return [action for event in trajectory.events for action in getattr(event, "actions", ())]


class TestProgress:
    MOVES = (
        Action(RESPOND, {"content": "Shall I?"}),
        Action("look", {"id": 1}),
        Action("write", {"id": 1}),
        Action(RESPOND, {"content": "Done."}),
    )
    TASK = Task(id="t", hash="", instruction="Do it.", opening="Please do it.", replies=[STOP_MARKER], moves=MOVES)

    def after(self, *turns: ReadTurn) -> int:
        progress = Progress(self.TASK, opened=True)
        for turn in turns:
            progress = progress.after_turn(turn)
        return progress.made

    def test_moves_are_made_in_order(self) -> None:
        turns = [ReadTurn(str(m.arguments["content"])) if m.name == RESPOND else ReadTurn("", [m]) for m in self.MOVES]
        assert [self.after(*turns[:count]) for count in range(5)] == [0, 1, 2, 3, 4]

    def test_what_is_no_move_does_not_count(self) -> None:
        asked = ReadTurn("Shall I?")
        assert self.after(asked, ReadTurn("<tool_call>{", (), ["broken"])) == 1
        assert self.after(asked, ReadTurn("", [Action("look", {"id": 2})])) == 1
        assert self.after(asked, ReadTurn("", [Action("look_now", {"id": 1})])) == 1
        assert self.after(asked, ReadTurn("One moment.")) == 1

    def test_other_words_are_as_good_where_words_are_due(self) -> None:
        assert self.after(ReadTurn("May I?")) == 1

    def test_skipped_moves_stay_skipped(self) -> None:
        assert self.after(ReadTurn("Shall I?"), ReadTurn("", [self.MOVES[2]])) == 3
        assert self.after(ReadTurn("Done.")) == 4

    def test_only_the_first_call_of_a_turn_is_carried_out(self) -> None:
        assert self.after(ReadTurn("Shall I?"), ReadTurn("", [self.MOVES[1], self.MOVES[2]])) == 2

    def test_the_first_user_message_says_whose_it_is(self) -> None:
        scripts = Scripts([SHOP])
        task = SHOP.task(SPLIT, 3)
        for text in (task.opening, f" {task.opening}\n", f"Hello! {task.opening}"):
            assert Progress().after_user(text, scripts).task == task
        nobody = Progress().after_user("Hello!", scripts)
        assert nobody.task is None
        assert nobody.after_user(task.opening, scripts).task is None

    def test_unknown_environments_are_refused(self) -> None:
        with pytest.raises(JobFailure, match="no-such-env"):
            Scripts.load("shop,no-such-env")


class TestMistakes:
    def test_each_kind_is_something_else_than_the_move(self, task: Task) -> None:
        made = last_call(task)
        said = {kind: spoilt(kind, task, made) for kind in Mistake}
        assert None not in said.values()
        assert task.moves[made] not in said.values()
        assert said[Mistake.ARGUMENT].name == task.moves[made].name
        assert said[Mistake.FINISH] == task.moves[-1]

    def test_the_same_kind_is_always_the_same(self, task: Task) -> None:
        assert [spoilt(kind, task, 1) for kind in Mistake] == [spoilt(kind, task, 1) for kind in Mistake]

    def test_nothing_goes_wrong_when_all_calls_are_made(self, task: Task) -> None:
        for made in range(last_call(task) + 1, len(task.moves)):
            assert draw(random.Random(0), task, made) is None

    def test_half_of_them_are_fatal(self, task: Task) -> None:
        rng = random.Random(0)
        made = next(index for index, move in enumerate(task.moves) if move.name != RESPOND)
        assert made < last_call(task)
        drawn = Counter(str(draw(rng, task, made)) == str(task.moves[-1]) for _ in range(400))
        assert 150 < drawn[True] < 250

    @given(rate=st.floats(0, 1))
    def test_the_chance_adds_up_over_the_turns(self, rate: float) -> None:
        task = SHOP.task(SPLIT, 0)
        assert 1 - (1 - chance(rate, task)) ** (last_call(task) + 1) == pytest.approx(rate, abs=1e-9)


class TestLogprobs:
    @given(ids=st.lists(st.integers(0, 2**32 - 1), min_size=2, max_size=50), data=st.data())
    def test_scoring_agrees_with_sampling_wherever_it_starts(self, ids: list[int], data: st.DataObject) -> None:
        cut = data.draw(st.integers(1, len(ids) - 1))
        start = data.draw(st.integers(0, cut - 1))
        sampled = made_up_logprobs.continuation(ids[cut - 1], ids[cut:])
        assert all(-3 < score < 0 for score in sampled)
        scored = made_up_logprobs.prompt(ids, start)
        assert scored[0] is None and scored[cut - start :] == sampled

    def test_nothing_to_score(self) -> None:
        assert made_up_logprobs.prompt([1, 2], 2) == []


class TestScheduler:
    def test_what_is_released_belongs_to_the_version_of_its_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("rollq_worker.replay_engine.scheduler.time", clock := Clock())

        async def run() -> Generation:
            scheduler = Scheduler(version="a")
            generation = Generation(rid="r", total=1000, seconds=4000.0)
            running = asyncio.create_task(scheduler.run(generation))
            await asyncio.sleep(0)
            clock.ahead += 1000.0
            await scheduler.pause("in_place")
            scheduler.relabel("b")
            clock.ahead += 1000.0
            held = generation.released()
            assert 250 <= held < 500
            scheduler.resume()
            clock.ahead += 4000.0
            await running
            assert generation.spans[0] == ("a", 0, held)
            return generation

        generation = asyncio.run(run())
        assert [span[0] for span in generation.spans] == ["a", "b"]
        assert generation.spans[1][1:] == (generation.spans[0][2], 1000)
        assert generation.released() == 1000

    def test_a_full_queue_and_a_duplicate(self) -> None:
        async def run() -> None:
            scheduler = Scheduler(version="a", max_running=1, max_queued=1)
            first, second = (Generation(rid=rid, total=10, seconds=60) for rid in "ab")
            tasks = [asyncio.create_task(scheduler.run(one)) for one in (first, second)]
            await asyncio.sleep(0)
            with pytest.raises(HttpError) as full:
                await scheduler.run(Generation(rid="c", total=10, seconds=1))
            with pytest.raises(HttpError) as twice:
                await scheduler.run(Generation(rid="a", total=10, seconds=1))
            assert (full.value.status, twice.value.status) == (503, 400)
            assert (scheduler.running, scheduler.waiting) == (1, 1)
            scheduler.abort("a")
            await tasks[0]
            assert (scheduler.running, scheduler.waiting) == (1, 0)
            tasks[1].cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert (scheduler.running, scheduler.waiting) == (0, 0)

        asyncio.run(run())

    def test_new_weights_wait_for_what_runs(self) -> None:
        async def run() -> None:
            scheduler = Scheduler(version="a")
            generation = Generation(rid="r", total=10, seconds=0.05)
            running = asyncio.create_task(scheduler.run(generation))
            await asyncio.sleep(0)
            await scheduler.reload("b")
            assert running.done()
            assert generation.spans == [("a", 0, 10)] and scheduler.version == "b"

        asyncio.run(run())


class TestServer:
    def test_episodes_survive_errors_of_every_kind(self) -> None:
        with replaying(errors=0.25, seed=1) as url:
            engine = SGLangEngine(url, vocab_size=TOKENIZER.vocab_size)
            played = [episode(engine, index) for index in range(6)]
            engine.close()
        assert [(t.stop, t.reward) for t in played] == [(Stop.DONE, 1.0)] * 6

    def test_errors_of_every_kind_happen(self) -> None:
        rng = random.Random(0)
        assert {faults.draw(rng, 1.0) for _ in range(100)} == set(Fault)
        assert {faults.draw(rng, 0.0) for _ in range(100)} == {None}
        with replaying(errors=1.0) as url:
            seen = {_outcome(url) for _ in range(40)}
        assert seen == {"503", "ConnectionError", "garbage", "abort"}

    def test_ids_go_out_as_they_came_in(self, address: str, tmp_path: Path) -> None:
        """Each request is the one before, what that was answered, and a bridge; the trajectory is all of it."""
        with recording(address, tmp_path / "calls.jsonl") as recorder:
            engine = SGLangEngine(recorder.url, vocab_size=TOKENIZER.vocab_size)
            trajectory = episode(engine, 1)
            engine.close()
            calls = recorder.calls()
        assert trajectory.reward == 1.0 and len(calls) == trajectory.turns
        seen: list[int] = []
        for call in calls:
            assert set(call["request"]) == {"input_ids", "rid", "sampling_params", "return_logprob"}
            assert call["headers"]["X-SMG-Routing-Key"] == trajectory.job.id
            assert call["request"]["input_ids"][: len(seen)] == seen
            seen = call["request"]["input_ids"] + call["reply"]["output_ids"]
        assert seen == list(trajectory.tokens)

    def test_a_sampling_seed_decides(self) -> None:
        body = {"input_ids": list(_prompt(SHOP.task(SPLIT, 0))), "sampling_params": {"sampling_seed": 5}}
        said = []
        for seed in (0, 1):
            with replaying(mistakes=0.9, seed=seed) as url:
                said += [requests.post(f"{url}/generate", json=body, timeout=60).json()["output_ids"] for _ in range(3)]
        assert all(ids == said[0] for ids in said)

    def test_requests_draw_for_themselves(self) -> None:
        body = {"input_ids": list(_prompt(SHOP.task(SPLIT, 0)))}
        with replaying(mistakes=0.9) as url:
            said = {requests.post(f"{url}/generate", json=body, timeout=60).json()["text"] for _ in range(20)}
        assert len(said) > 1

    def test_options_show(self) -> None:
        with replaying(weight_version="step-3", context_length=100) as url:
            assert requests.get(f"{url}/model_info", timeout=60).json()["weight_version"] == "step-3"
            answer = requests.post(f"{url}/generate", json={"input_ids": [1] * 100}, timeout=60)
            assert "context length (100 tokens)" in answer.json()["error"]["message"]

    @pytest.mark.parametrize("wrong", [{"mistakes": 1.5}, {"errors": -0.1}, {"latency": -1}, {"context_length": 3}])
    def test_options_are_checked(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(SettingsError, match=next(iter(wrong)).split("_")[0]):
            Options(**wrong)

    @pytest.mark.parametrize("ids", [[-1], [10_000_000]], ids=repr)
    def test_what_would_kill_a_real_server_is_refused(self, address: str, ids: list[int]) -> None:
        answer = requests.post(f"{address}/generate", json={"input_ids": ids}, timeout=60)
        assert answer.status_code == 400
        assert "outside the vocabulary" in answer.json()["error"]["message"]

    @pytest.mark.parametrize("body", [{"stream": True}, {"sampling_params": {"n": 2}}])
    def test_what_it_cannot_do_is_refused(self, address: str, body: dict[str, Any]) -> None:
        answer = requests.post(f"{address}/generate", json={"input_ids": [1], **body}, timeout=60)
        assert answer.status_code == 400
        assert "replay engine" in answer.json()["error"]["message"]


class TestChat:
    def ask(self, address: str, messages: list[dict[str, Any]], **body: Any) -> dict[str, Any]:
        answer = requests.post(f"{address}/v1/chat/completions", json={"messages": messages, **body}, timeout=60)
        assert answer.status_code == 200, answer.text
        return dict(answer.json()["choices"][0])

    def test_it_speaks_the_scripted_users_lines(self, address: str, task: Task) -> None:
        messages = [{"role": "system", "content": PROMPT.format(instruction=task.instruction)}]
        for line in [task.opening, *task.replies, task.replies[-1]]:
            messages.append({"role": "user", "content": GREETING})
            said = self.ask(address, messages)["message"]["content"]
            assert said == line
            messages.append({"role": "assistant", "content": said})

    def test_it_plays_the_assistant(self, address: str, task: Task) -> None:
        messages: list[dict[str, Any]] = [{"role": "user", "content": [{"type": "text", "text": task.opening}]}]
        for move in task.moves:
            choice = self.ask(address, messages)
            messages.append(choice["message"])
            if move.name == RESPOND:
                assert choice["message"]["content"] == move.arguments["content"]
                messages.append({"role": "user", "content": "Yes."})
            else:
                assert choice["finish_reason"] == "tool_calls"
                call = choice["message"]["tool_calls"][0]
                assert call["function"]["name"] == move.name
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": "ok"})
        assert self.ask(address, messages)["message"]["content"] == POLITE

    def test_length(self, address: str) -> None:
        choice = self.ask(address, [{"role": "user", "content": "Hi"}], max_tokens=2)
        assert choice["finish_reason"] == "length"
        assert POLITE.startswith(choice["message"]["content"])

    @pytest.mark.parametrize(
        "messages",
        [
            [],
            [{}],
            [{"role": "assistant", "tool_calls": [{"function": {"name": "x", "arguments": "{"}}]}],
            [{"role": "assistant", "tool_calls": 5}, {"role": "user", "content": None}],
        ],
    )
    def test_odd_conversations_get_a_polite_answer(self, address: str, messages: list[dict[str, Any]]) -> None:
        assert self.ask(address, messages)["message"]["content"] == POLITE


class TestProcess:
    def start(self, port: int, **options: Any) -> "subprocess.Popen[str]":
        code = f"from rollq_worker.replay_engine.server import serve; serve(port={port}, **{options!r})"
        return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_it_says_where_it_is_and_goes_when_told(self, number: signal.Signals) -> None:
        process = self.start(0, latency=60.0)
        assert process.stdout is not None
        with process.stdout as out:
            url = out.readline().split()[-1]
            assert url.startswith("http://127.0.0.1:")
            with pytest.raises(requests.ReadTimeout):
                requests.post(f"{url}/generate", json={"input_ids": [1, 2]}, timeout=0.2)
            os.kill(process.pid, number)
            assert process.wait(60) == 0
            assert out.read() == ""

    def test_a_port_that_is_taken(self, address: str) -> None:
        with pytest.raises(SettingsError, match="cannot listen on"):
            serve(port=int(address.rpartition(":")[2]))


def _prompt(task: Task) -> "array[int]":
    return TOKENIZER.encode(f"<|im_start|>user\n{task.opening}<|im_end|>\n<|im_start|>assistant\n")


def _outcome(url: str) -> str:
    try:
        answer = requests.post(f"{url}/generate", json={"input_ids": [1, 2]}, timeout=60)
    except requests.ConnectionError as e:
        return type(e).__name__
    if answer.status_code != 200:
        return str(answer.status_code)
    try:
        return str(answer.json()["meta_info"]["finish_reason"]["type"])
    except ValueError:
        return "garbage"
