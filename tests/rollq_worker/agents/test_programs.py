"""Agents as functions and as commands: how they are found, started, stopped, and what they are told."""

import os
import re
import signal
import stat
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rollq.env import Episode
from rollq.errors import AgentFailure, ForOtherWorkers, JobFailure, SettingsError
from rollq.events import Acted, Stop
from rollq.job import History
from rollq.trajectory import Trajectory
from rollq_worker.agents import known_agents
from rollq_worker.agents.known_agents import add_file, agent_starter, check_agent
from rollq_worker.agents.play import OUTPUT
from rollq_worker.agents.programs import KEPT_OUTPUT
from rollq_worker.agents.users import agent_users
from rollq_worker.failures import Drained
from rollq_worker.fakes import FakeEnvironment, FakeJournal, FakeUser
from tests.conftest import REPO
from tests.processes import alive
from tests.rollq_worker.agents.played import ask, job, play
from tests.waiting import until

ASKS = """
    import json, os, sys, urllib.request

    def post(url, body):
        headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        return json.load(urllib.request.urlopen(urllib.request.Request(url, data, headers)))

    def ask(messages=({"role": "user", "content": "?"},)):
        reply = post(os.environ["OPENAI_BASE_URL"] + "/chat/completions", {"messages": messages})
        return reply["choices"][0]["message"]["content"]

    episode = os.environ["ROLLQ_EPISODE_URL"]
"""


@pytest.fixture(autouse=True)
def _files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(known_agents.FILES.variable, raising=False)


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., str]:
    """Writes an agent's file and has this process know it. Returns its name."""

    def write(text: str, name: str = "agent.py", function: str = "") -> str:
        path = tmp_path / name
        path.write_text(textwrap.dedent(ASKS if name.endswith(".py") and not function else "") + textwrap.dedent(text))
        return add_file(f"{path}:{function}" if function else str(path))

    return write


def run(name: str, journal: FakeJournal | None = None, **args: Any) -> Trajectory:
    return play(name, "hi", journal=journal, user=FakeUser(("hello",)), agent_args=args)


class TestCommands:
    def test_it_asks_and_acts(self, written: Callable[..., str]) -> None:
        name = written(
            """
            about = post(episode, None)
            assert about["messages"][-1] == {"role": "user", "content": "hello"}, about
            reply = ask(about["messages"])
            seen = post(episode + "/step", {"name": "add", "arguments": {"a": 1}})
            assert seen == {"text": '{"a": 1}', "done": False}, seen
            seen = post(episode + "/step", {"name": "respond", "arguments": {"content": reply}})
            assert seen["done"]
            print("all done")
            """
        )
        played = run(name)
        assert (played.stop, played.reward, played.info) == (Stop.DONE, 1.0, {OUTPUT: "all done\n"})

    def test_a_shell_script(self, written: Callable[..., str]) -> None:
        python = f"{sys.executable} - <<'E'\n{textwrap.dedent(ASKS)}\nask()\nE\n"
        assert run(written(python, name="agent.sh")).turns == 1

    def test_the_last_turn_is_the_answer_of_one_that_makes_no_step(self, written: Callable[..., str]) -> None:
        acted = [event for event in run(written("ask()")).events if isinstance(event, Acted)]
        assert acted[-1].action["arguments"] == {"content": "hi"}

    def test_one_that_fails_is_quoted(self, written: Callable[..., str]) -> None:
        name = written('print("a hint"); sys.exit(7)')
        with pytest.raises(AgentFailure, match=rf"the agent {name} exited with 7; its last output:\na hint"):
            run(name)

    def test_one_that_is_killed(self, written: Callable[..., str]) -> None:
        with pytest.raises(AgentFailure, match="was ended by signal 9"):
            run(written("import signal; os.kill(os.getpid(), signal.SIGKILL)"))

    def test_one_that_cannot_start(self, tmp_path: Path) -> None:
        path = tmp_path / "agent.sh"
        path.write_text("#!/no/such/shell\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        with pytest.raises(AgentFailure, match="does not start"):
            run(add_file(str(path)))

    def test_arguments_that_no_variable_holds(self, written: Callable[..., str]) -> None:
        for args in ({"at": "a\0b"}, {"a=b": "c"}):
            with pytest.raises(JobFailure, match="takes its agent_args as environment variables"):
                run(written("pass"), **args)

    def test_endless_output_is_cut(self, written: Callable[..., str]) -> None:
        name = written(
            """
            sys.stdout.write("x" * 5_000_000 + "the end")
            ask()
            """
        )
        output = run(name).info[OUTPUT]
        assert len(output) == KEPT_OUTPUT
        assert output.endswith("the end")

    def test_it_does_not_see_the_workers_secrets(
        self, written: Callable[..., str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("ROLLQ_REDIS_URL", "redis://:secret@h/0")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        name = written(
            """
            ask()
            print(dict(os.environ))
            """
        )
        output = run(name, depth="3", n=4).info[OUTPUT]
        assert "secret" not in output
        assert "'ROLLQ_ARG_DEPTH': '3'" in output
        assert "'ROLLQ_ARG_N': '4'" in output

    def test_what_it_left_behind_ends_with_it(self, written: Callable[..., str], tmp_path: Path) -> None:
        name = written(
            f"""
            import subprocess
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            open({str(tmp_path / "pid")!r}, "w").write(str(child.pid))
            open("scratch", "w").write("x")
            print(os.getcwd(), flush=True)
            ask()
            os._exit(0)
            """
        )
        played = run(name)
        folder = Path(str(played.info[OUTPUT]).strip())
        assert not folder.exists()
        assert _is_gone(int((tmp_path / "pid").read_text()))

    @pytest.mark.parametrize("end", ["os.kill(os.getpid(), 9)", "agent.kill(); guard.close()"])
    def test_what_it_started_ends_with_it_and_with_the_worker(self, end: str) -> None:
        """Also what has a session of its own, as each shell command of Claude Code."""
        worker = f"""if True:
            import os, subprocess
            from rollq_worker.agents.guard import Guard
            guard, command = Guard(), ["/bin/sh", "-c", "setsid sleep 600 & echo $!; sleep 600 & echo $!; wait"]
            agent = subprocess.Popen(command, start_new_session=True, env={{**os.environ, "MINE": "1"}})
            guard.watch(agent.pid, "MINE=1")
            print(agent.pid, flush=True)
            input()
            {end}
        """
        with subprocess.Popen([sys.executable, "-c", worker], stdin=-1, stdout=-1, text=True) as process:
            assert process.stdin is not None and process.stdout is not None
            pids = [int(process.stdout.readline()) for _ in range(3)]
            assert all(map(alive, pids))
            process.stdin.write("\n")
            process.stdin.flush()
            until(lambda: not any(map(alive, pids)))

    @pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
    def test_each_has_a_user_of_its_own(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ROLLQ_AGENT_USERS", "2110000000-2110000001")
        agent_users.cache_clear()
        seen, children = [], []
        with tempfile.TemporaryDirectory() as folder:
            os.chmod(folder, 0o755)
            (path := Path(folder) / "agent.sh").write_text(
                "setsid sleep 600 &\ntouch ./mine\n"
                'echo "$(id -u) $(id -G) $! $HOME $PWD $(cat /proc/$PPID/environ 2>&1 | tr -d "\\0")"; exit 7\n'
            )
            name = add_file(str(path))
            for _ in range(3):
                with pytest.raises(AgentFailure, match="exited with 7; its last output") as caught:
                    run(name)
                user, group, child, home, folder_inside, *environ = str(caught.value).splitlines()[1].split()
                assert (user, home) == (group, folder_inside)
                assert " ".join(environ).endswith("Permission denied")
                seen.append(int(user))
                children.append(int(child))
        assert seen == [2110000000, 2110000001, 2110000000]
        assert all(map(_is_gone, children))
        agent_users.cache_clear()

    @pytest.mark.parametrize("text", ["agent", "5", "7-5", "0-9", "1-99999999999"])
    def test_users_that_are_none(self, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
        monkeypatch.setenv("ROLLQ_AGENT_USERS", text)
        agent_users.cache_clear()
        with pytest.raises(SettingsError, match="ROLLQ_AGENT_USERS must be numbers of users, as in 300000-300999"):
            agent_users()

    def test_a_child_that_leaves_its_session_costs_the_worker_nothing(
        self, written: Callable[..., str], tmp_path: Path
    ) -> None:
        name = written(
            f"""
            import subprocess
            child = subprocess.Popen(["sleep", "600"], start_new_session=True)
            open({str(tmp_path / "pid")!r}, "w").write(str(child.pid))
            ask()
            """
        )
        before = {thread.name for thread in threading.enumerate()}
        run(name)
        try:
            until(lambda: f"rollq-agent {name}" not in {thread.name for thread in threading.enumerate()} - before, 10)
        finally:
            os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)

    def test_one_that_does_nothing_ends_with_the_attempt(self, written: Callable[..., str], tmp_path: Path) -> None:
        name = written(
            f"""
            open({str(tmp_path / "pid")!r}, "w").write(str(os.getpid()))
            import time; time.sleep(600)
            """
        )
        with pytest.raises(Drained):
            run(name, journal=FakeJournal(stop=Drained("stopping"), limit=0))
        pid = (tmp_path / "pid").read_text() if (tmp_path / "pid").exists() else ""  # it may not have come so far
        assert not pid or _is_gone(int(pid))


class TestFunctions:
    def test_what_it_says_is_whole_text(self) -> None:
        def agent(episode: Episode) -> str:
            ask(episode, episode.messages)
            episode.step("add", {"a\ud83d": ["\ud83d"]})
            return "done\ud83d"

        acted = [event.action["arguments"] for event in play(agent, "x").events if isinstance(event, Acted)]
        assert acted[1:] == [{"a\ufffd": ["\ufffd"]}, {"content": "done\ufffd"}]

    def test_one_in_a_file(self, written: Callable[..., str]) -> None:
        name = written(
            """
            from tests.rollq_worker.agents.played import ask

            def play(episode, greeting):
                ask(episode, [{"role": "user", "content": greeting}])
            """,
            name="solver.py",
            function="play",
        )
        assert name.startswith("solver.play@")
        assert run(name, greeting="ahoi").messages[0]["content"] == "ahoi"

    def test_its_answer_goes_to_the_environment(self) -> None:
        environment = FakeEnvironment()

        def agent(episode: Episode) -> str:
            ask(episode, episode.messages)
            return "my answer"

        play(agent, "hi", environment=environment)
        assert environment.actions[-1].arguments == {"content": "my answer"}

    def test_another_answer_than_text(self) -> None:
        with pytest.raises(AgentFailure, match="returned a int, not a string or None"):
            play(lambda episode: ask(episode, episode.messages) and 5, "hi")

    @pytest.mark.parametrize("args", [{}, {"gruss": "x"}, {"greeting": "x", "more": 1}])
    def test_wrong_arguments(self, written: Callable[..., str], args: dict[str, Any]) -> None:
        name = written("def play(episode, greeting): pass", name="solver.py", function="play")
        with pytest.raises(JobFailure, match="with agent_args"):
            run(name, **args)

    @pytest.mark.parametrize(
        "text", ["1 / 0", "def play(: pass", "import no_such_module", "raise SystemExit", "play = 5", ""]
    )
    def test_a_file_that_is_none(self, written: Callable[..., str], text: str) -> None:
        with pytest.raises(JobFailure, match="solver"):
            run(written(text, name="solver.py", function="play"))

    def test_one_that_does_not_end_costs_its_own_job(self) -> None:
        def agent(episode: Episode) -> None:
            while True:
                try:
                    time.sleep(0.01)
                except BaseException:  # what ends threads is caught, and thrown once
                    return

        with pytest.raises(Drained):
            play(agent, "hi", journal=FakeJournal(stop=Drained("stopping"), limit=0))


def test_an_agent_may_change_what_it_is_given() -> None:
    """Other episodes of the environment have the same tools, and renderers are kept for them."""
    seen: list[str] = []

    def agent(episode: Episode) -> None:
        function = episode.tools[0]["function"]
        seen.append(function.get("description", ""))
        function["description"] = "changed"
        messages: Any = episode.messages
        messages.append({"role": "assistant", "content": "made up"})
        ask(episode, [{"role": "user", "content": "hello"}])

    for _ in range(2):
        play(agent, "one")
    assert seen == ["", ""]


def test_the_page_shows_the_example() -> None:
    [shown] = re.findall(r"```python\n(.*?)```", (REPO / "docs/agents.md").read_text(), re.DOTALL)
    example = (REPO / "examples/agents/openai_agent.py").read_text()
    code = re.sub(r'^\s*""".*?"""\n', "", example, flags=re.DOTALL | re.MULTILINE)
    assert shown.split() == code.split()


class TestNames:
    def test_a_worker_without_the_file(self, written: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
        name = written("", name="agent.sh")
        other = written("# changed", name="agent.sh")
        assert name != other
        found = job(agent=name)
        with pytest.raises(ForOtherWorkers, match=f"there is no such file here, but {other}"):
            agent_starter(found)
        assert "rollq worker --agent FILE" in check_agent(found)
        monkeypatch.delenv(known_agents.FILES.variable)
        with pytest.raises(ForOtherWorkers, match="there is no such file here; give every worker"):
            agent_starter(found)

    @pytest.mark.parametrize(
        ("history", "why"),
        [
            (History.KEEP, "agent 'telepathy' is unknown here; there are act, few-shot, react"),
            (History.TEMPLATE, "history=template is not for agent programs"),
        ],
    )
    def test_one_that_nobody_can_play(self, history: History, why: str) -> None:
        with pytest.raises(JobFailure, match=why):
            agent_starter(job(agent="telepathy", history=history))

    @pytest.mark.parametrize("text", ["/no/such.py:play", "/tmp"])
    def test_a_file_that_cannot_be_read(self, text: str) -> None:
        with pytest.raises(JobFailure, match="cannot be read"):
            add_file(text)


def _is_gone(pid: int) -> bool:
    def gone() -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"
        except (FileNotFoundError, ProcessLookupError):
            return True

    until(gone, 5)
    return True
