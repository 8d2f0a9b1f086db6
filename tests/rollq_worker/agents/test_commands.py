"""Agents as commands: how they are started and stopped, what they are told, and what ends with
them.
"""

import os
import signal
import stat
import subprocess
import sys
import tempfile
import textwrap
import threading
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from rollq.errors import AgentFailure, JobFailure, SettingsError
from rollq.events import Acted, Stop
from rollq_worker.agents.known_agents import add_file
from rollq_worker.agents.play import OUTPUT
from rollq_worker.agents.programs.running import KEPT_OUTPUT
from rollq_worker.agents.programs.users import agent_users
from rollq_worker.failures import Drained
from rollq_worker.fakes import FakeJournal
from tests.processes import alive
from tests.rollq_worker.agents.played import ASKS, run_file
from tests.waiting import until

CALL = '{"name": "look", "arguments": {}}'


class TestCommands:
    def test_it_asks_and_acts(self, written: Callable[..., str]) -> None:
        name = written(
            """
            about = post(episode, None)
            assert about["messages"][-1] == {"role": "user", "content": "hello"}, about
            reply = ask(about["messages"])
            seen = post(episode + "/step", {"name": "add", "arguments": {"a": 1}})
            assert seen == {"text": '{"a": 1}', "done": False}, seen
            seen = post(episode + "/step", {"name": "add", "arguments": '{"a": '})
            assert "holds no JSON object" in seen["text"], seen
            seen = post(episode + "/step", {"name": "respond", "arguments": {"content": reply}})
            assert seen["done"]
            print("all done")
            """
        )
        played = run_file(name)
        assert (played.stop, played.reward, played.info) == (Stop.DONE, 1.0, {OUTPUT: "all done"})

    def test_a_shell_script(self, written: Callable[..., str]) -> None:
        python = f"{sys.executable} - <<'E'\n{textwrap.dedent(ASKS)}\nask()\nE\n"
        assert run_file(written(python, name="agent.sh")).turns == 1

    def test_the_last_turn_is_the_answer_of_one_that_makes_no_step(
        self, written: Callable[..., str]
    ) -> None:
        acted = [event for event in run_file(written("ask()")).events if isinstance(event, Acted)]
        assert acted[-1].action["arguments"] == {"content": "hi"}

    def test_a_character_that_comes_in_parts_is_one(self, written: Callable[..., str]) -> None:
        name = written(
            """
            import time
            for part in (b"\\xe4", b"\\xbd\\xa0\\xe5", b"\\xa5\\xbd", b"\\xe4"):
                os.write(1, part)
                time.sleep(0.1)
            ask()
            """
        )
        assert run_file(name, said=CALL).info[OUTPUT] == "\u4f60\u597d\ufffd"

    def test_one_that_fails_is_quoted(self, written: Callable[..., str]) -> None:
        name = written('print("a hint"); sys.exit(7)')
        with pytest.raises(
            AgentFailure, match=rf"the agent {name} exited with 7; its last output:\na hint"
        ):
            run_file(name)

    def test_one_that_is_killed(self, written: Callable[..., str]) -> None:
        with pytest.raises(AgentFailure, match="was ended by signal 9"):
            run_file(written("import signal; os.kill(os.getpid(), signal.SIGKILL)"))

    @pytest.mark.parametrize("end", ["os.kill(os.getpid(), 9)", "sys.exit(128 + 15)"])
    @pytest.mark.parametrize("said", [CALL, "words"])
    def test_one_that_the_policys_call_has_killed_is_graded(
        self, written: Callable[..., str], end: str, said: str
    ) -> None:
        name = written(f"ask(); print('so far', flush=True); {end}")
        if said == CALL:
            played = run_file(name, said=said)
            assert (played.stop, played.reward, played.turns) == (Stop.DONE, 0.0, 1)
            assert played.info[OUTPUT].startswith("so far")
        else:  # the agent's own end
            with pytest.raises(AgentFailure, match="so far"):
                run_file(name, said=said)

    @pytest.mark.parametrize("end", ["os.kill(os.getpid(), 15)", "sys.exit(1)", "sys.exit()"])
    def test_one_that_ends_with_its_worker_goes_on_elsewhere(
        self, written: Callable[..., str], end: str
    ) -> None:
        journal = FakeJournal(stop=Drained("the worker is stopping"), limit=3)
        with pytest.raises(Drained):
            run_file(written(f"ask(); {end}"), journal, said=CALL)

    def test_one_that_fails_behind_a_cut_turn_ends_as_length(
        self, written: Callable[..., str]
    ) -> None:
        played = run_file(written("ask(); sys.exit('it was cut')"), said="x" * 999)
        assert (played.stop, played.reward, played.turns) == (Stop.LENGTH, 0.0, 1)
        assert played.info["unfinished"] == "length"

    @pytest.mark.parametrize(
        ("last", "answer"), [(CALL, "42"), ("The answer is 7.", "The answer is 7.")]
    )
    def test_what_it_prints_is_the_answer_where_its_last_turn_is_a_call(
        self, written: Callable[..., str], last: str, answer: str
    ) -> None:
        played = run_file(written("ask(); print('I think:'); print(42)"), said=last)
        [acted] = [event for event in played.events if isinstance(event, Acted)][1:]
        assert acted.action["arguments"] == {"content": answer}

    def test_one_that_cannot_start(self, tmp_path: Path) -> None:
        path = tmp_path / "agent.sh"
        path.write_text("#!/no/such/shell\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        with pytest.raises(AgentFailure, match="does not start"):
            run_file(add_file(str(path)))

    def test_arguments_that_no_variable_holds(self, written: Callable[..., str]) -> None:
        for args in ({"at": "a\0b"}, {"a=b": "c"}):
            with pytest.raises(JobFailure, match="takes its agent_args as environment variables"):
                run_file(written("pass"), **args)

    def test_endless_output_is_cut(self, written: Callable[..., str]) -> None:
        name = written(
            """
            sys.stdout.write("x" * 5_000_000 + "the end")
            ask()
            """
        )
        output = run_file(name).info[OUTPUT]
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
        output = run_file(name, depth="3", n=4).info[OUTPUT]
        assert "secret" not in output
        assert "'ROLLQ_ARG_DEPTH': '3'" in output
        assert "'ROLLQ_ARG_N': '4'" in output

    def test_what_it_left_behind_ends_with_it(
        self, written: Callable[..., str], tmp_path: Path
    ) -> None:
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
        played = run_file(name)
        folder = Path(str(played.info[OUTPUT]).strip())
        assert not folder.exists()
        assert _is_gone(int((tmp_path / "pid").read_text()))

    @pytest.mark.parametrize("end", ["os.kill(os.getpid(), 9)", "agent.kill(); guard.close()"])
    def test_what_it_started_ends_with_it_and_with_the_worker(self, end: str) -> None:
        """Also what has a session of its own, as each shell command of Claude Code."""
        mine = uuid.uuid4().hex  # the guard of a test beside this one must not take it for its own
        worker = f"""if True:
            import os, subprocess
            from rollq_worker.agents.programs.guard import Guard
            guard, command = Guard(), ["/bin/sh", "-c", "setsid sleep 600 & echo $!; sleep 600 & \
echo $!; wait"]
            agent = subprocess.Popen(command, start_new_session=True, env={{**os.environ, "MINE": \
"{mine}"}})
            guard.watch(agent.pid, "MINE={mine}")
            os.write(1, b"%d\\n" % agent.pid)  # in one piece: the shells write there, too
            input()
            {end}
        """
        with subprocess.Popen(
            [sys.executable, "-c", worker], stdin=-1, stdout=-1, text=True
        ) as process:
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
                'echo "$(id -u) $(id -G) $! $HOME $PWD $(cat /proc/$PPID/environ 2>&1 | '
                'tr -d "\\0")"; exit 7\n'
            )
            name = add_file(str(path))
            for _ in range(3):
                with pytest.raises(AgentFailure, match="exited with 7; its last output") as caught:
                    run_file(name)
                user, group, child, home, folder_inside, *environ = (
                    str(caught.value).splitlines()[1].split()
                )
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
        with pytest.raises(
            SettingsError, match="ROLLQ_AGENT_USERS must be numbers of users, as in 300000-300999"
        ):
            agent_users()

    def test_a_child_that_leaves_its_session_costs_the_worker_nothing(
        self, written: Callable[..., str], tmp_path: Path
    ) -> None:
        name = written(
            f"""
            import subprocess
            child = subprocess.Popen(["/bin/sleep", "600"], start_new_session=True, env={{}})
            open({str(tmp_path / "pid")!r}, "w").write(str(child.pid))
            ask()
            """
        )
        before = {thread.name for thread in threading.enumerate()}
        run_file(name)
        try:
            until(
                lambda: (
                    f"rollq-agent {name}"
                    not in {thread.name for thread in threading.enumerate()} - before
                ),
                10,
            )
        finally:
            os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)

    def test_one_that_does_nothing_ends_with_the_attempt(
        self, written: Callable[..., str], tmp_path: Path
    ) -> None:
        name = written(
            f"""
            open({str(tmp_path / "pid")!r}, "w").write(str(os.getpid()))
            import time; time.sleep(600)
            """
        )
        with pytest.raises(Drained):
            run_file(name, journal=FakeJournal(stop=Drained("stopping"), limit=0))
        pid = (
            (tmp_path / "pid").read_text() if (tmp_path / "pid").exists() else ""
        )  # it may not have come so far
        assert not pid or _is_gone(int(pid))


def _is_gone(pid: int) -> bool:
    def gone() -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"
        except (FileNotFoundError, ProcessLookupError):
            return True

    until(gone, 5)
    return True
