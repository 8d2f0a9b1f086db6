"""Task folders played in real containers. Run `make test-containers`."""

import io
import shutil
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from rollq.env import Action, CommandResult
from rollq.errors import EnvironmentFailure
from rollq_integrations.harbor import load
from rollq_integrations.harbor.artifacts import LARGEST_COPY, copy, unpack
from rollq_integrations.sandbox import Container
from rollq_worker.commands.env.check import check_environment
from tests import container_engine
from tests.container_engine import IMAGE, containers
from tests.rollq_integrations.harbor.task_folders import COMPOSE, EXAMPLE, harbor
from tests.waiting import until

pytestmark = [pytest.mark.containers, pytest.mark.timeout(600), container_engine.UNCLOSED]
OWN = 'artifacts = ["/app/median.py", "/app/none"]\n[verifier]\nenvironment_mode = "separate"\n'


@pytest.fixture(scope="module", autouse=True)
def served() -> Iterator[None]:
    with container_engine.served():
        yield


@pytest.fixture
def task(tmp_path: Path) -> Path:
    shutil.copytree(EXAMPLE / "fix-the-median", tmp_path / "median")
    return tmp_path / "median"


def in_a_container_of_its_own(task: Path) -> None:
    (task / "task.toml").write_text(OWN)
    (task / "tests" / "Dockerfile").write_text(f"FROM {IMAGE}\nCOPY . /tests/\n")


def in_a_copy(task: Path) -> None:
    (task / "task.toml").write_text(OWN)


def of_terminal_bench(task: Path) -> None:
    """The reward is the exit code of the tests."""
    checks = (
        "mkdir -p /logs/verifier && python3 /tests/checks.py && grep -q ': 1.0' "
        "/logs/verifier/reward.json\n"
    )
    for name, text in {
        "task.yaml": "instruction: Repair it.",
        "docker-compose.yaml": COMPOSE,
        "run-tests.sh": checks,
    }.items():
        (task / name).write_text(text)
    shutil.copytree(task / "environment", task, dirs_exist_ok=True)
    shutil.copy(task / "solution" / "solve.sh", task / "solution.sh")
    (task / "task.toml").unlink()


@pytest.mark.parametrize(
    "form", [lambda task: None, in_a_container_of_its_own, in_a_copy, of_terminal_bench]
)
def test_the_solution_earns_the_reward_and_idleness_none(task: Path, form) -> None:
    form(task)
    domain = load(str(task))
    report = check_environment(domain, "train", [0])
    assert report.rewards == [1.0] and report.problems == []
    episode = domain.open("train", 0, {})
    try:
        look = "python3 -c 'import median' && pwd && ls /logs"
        text = episode.step(Action("bash", {"command": look})).text
        assert text == "/app\nagent\nartifacts\nverifier\n"
        episode.step(Action("respond", {"content": "Done."}))
        assert episode.grade().reward == 0.0
    finally:
        episode.close()


@pytest.mark.parametrize(
    ("file", "text", "says"),
    [
        (
            "environment/Dockerfile",
            f"FROM {IMAGE}\nRUN echo the reason; exit 3\n",
            r"(?s)the image .*the reason",
        ),
        ("tests/test.sh", "sleep 600", "were stopped: it ran longer than 3 s"),
        (
            "tests/test.sh",
            "echo the reason; exit 1",
            r"(?s)ended with code 1 and no reward.*the reason",
        ),
        (
            "tests/test.sh",
            "head -c 99 /dev/zero > /dev/full || exit 9",
            "ended with code 9 and no reward",
        ),
        ("tests/test.sh", "mkdir /logs/verifier/reward.txt", "reward.txt is not a regular file"),
        ("tests/test.sh", "kill -9 -1; sleep 1", "and no reward"),
        (
            "tests/test.sh",
            "set -e; yes | head -c 40000000; echo 1 > /logs/verifier/reward.txt",
            "the 16 MB for outputs are full",
        ),
    ],
)
def test_what_cannot_be_graded_is_a_failure(task: Path, file: str, text: str, says: str) -> None:
    (task / "task.toml").write_text("[verifier]\ntimeout_sec = 3\n")
    (task / file).write_text(text if "Dockerfile" in file else f"#!/bin/bash\n{text}\n")
    episode = None
    with pytest.raises(EnvironmentFailure, match=says):
        episode = load(str(task)).open("train", 0, {})
        episode.grade()
    if episode is not None:
        episode.close()


SPOILS = {
    "it is a loop": "echo 'while True: pass' > median.py",
    "it floods": "echo 'while True: print(0)' > median.py",
    "there are no programs": "rm -rf /usr/bin /bin",
    "there is no shell": "rm -f /bin/sh",
    "there is no room for a process": "bomb() { while :; do bomb & done; }; bomb",
    "the disk of outputs is full": "head -c 99999999 /dev/zero > /run/rollq/full",
}


@pytest.mark.parametrize("form", [lambda task: None, of_terminal_bench])
@pytest.mark.parametrize("spoils", SPOILS.values(), ids=list(SPOILS))
def test_what_the_policy_has_spoiled_earns_nothing(task: Path, form, spoils: str) -> None:
    (task / "tests" / "test.sh").write_text("#!/bin/bash\nset -e\nid\npython3 /tests/checks.py\n")
    form(task)
    if (task / "task.toml").exists():
        (task / "task.toml").write_text("[verifier]\ntimeout_sec = 6\n")
    else:
        (task / "task.yaml").write_text("instruction: Repair it.\nmax_test_timeout_sec: 6\n")
    episode = load(str(task)).open("train", 0, {})
    try:
        episode.step(Action("bash", {"command": spoils, "seconds": 5}))
        assert episode.grade().reward == 0.0
    finally:
        episode.close()


def test_a_good_solution_earns_its_reward_beside_too_many_processes(task: Path) -> None:
    domain = load(str(task))
    episode = domain.open("train", 0, {})
    try:
        for action in domain.task("train", 0).moves[:1]:
            episode.step(action)
        bomb = SPOILS["there is no room for a process"]
        episode.step(Action("bash", {"command": bomb, "seconds": 3}))
        assert episode.grade().reward == 1.0
    finally:
        episode.close()


@pytest.mark.parametrize("toml", ['[agent]\nuser = "nobody"\n', ""])
def test_the_solution_of_a_user_earns_the_reward(task: Path, toml: str) -> None:
    (task / "task.toml").write_text(toml)
    with (task / "environment" / "Dockerfile").open("a") as dockerfile:
        dockerfile.write("RUN chmod -R a+w /app\n" + ("" if toml else "USER nobody\n"))
    report = check_environment(load(str(task)), "train", [0])
    assert report.rewards == [1.0] and report.problems == []


def test_what_another_user_left_cannot_grade(task: Path) -> None:
    (task / "task.toml").write_text('[agent]\nuser = "nobody"\n')
    (task / "tests" / "test.sh").write_text(
        "#!/bin/sh\nsleep 1\n[ -e /tests/json.py ] || echo 0 > /logs/verifier/reward.txt\n"
    )
    (task / "tests" / "test.sh").chmod(0o644)
    episode = load(str(task)).open("train", 0, {})
    try:
        episode.sandbox.run(["sh", "-c", "mkdir /tests; echo > /tests/json.py"], user="root")
        names = "seq -f /run/rollq/%g 3000 | xargs touch; chmod a+w /run/rollq/*"
        forge = "for f in /run/rollq/*; do echo 65534 > $f; done"
        earn = "echo '{\"reward\": 1}' > /logs/verifier/reward.json"
        cheat = f"{names}; while :; do {forge}; {earn}; done >&- 2>&- &"
        assert episode.step(Action("bash", {"command": cheat})).text == ""
        grade = episode.grade()
        assert (grade.reward, grade.info["tests"]) == (0.0, "")
    finally:
        episode.close()


def test_files_of_another_sandbox() -> None:
    def sh(box: Container, command: str) -> str:
        return box.run(["sh", "-c", command]).output

    with Container(IMAGE) as box, Container(IMAGE) as other:
        sh(
            box,
            "mkdir -p /a/b; cd /a/b; echo x > f; ln f same; ln -s f link; mkfifo pipe; echo y > /g",
        )
        sh(box, "cd /a/b; ln -s /etc/shadow out; ln -s ../../etc/shadow up; ln out out2")
        sh(box, "chmod 4755 /a/b/f; head -c 40000000 /dev/urandom > /a/b/big; mkdir /a/b/c")
        sh(box, "ln -s / /root/way; mkdir /tmp/z; cp -r /a/b/c /tmp/z; ln -s /a /d")
        for path in ("/a/b/", "/g", "/none", "/d"):
            copy(path, box, other)
        listed = sh(other, "cat /g; cd /a/b; cat link; ls; stat -c %a f; ls /none /d 2>&1")
        assert listed.startswith("y\nx\nbig\nc\nf\nlink\nsame\n755\nls: ")
        assert sh(other, "md5sum /a/b/big") == sh(box, "md5sum /a/b/big; ls /tmp | grep rollq")
        sh(box, "head -c 300000000 /dev/zero > /huge")
        with pytest.raises(EnvironmentFailure, match="/huge has more than"):
            copy("/huge", box, other)


class PackedFile:
    """A sandbox whose `tar` has written this."""

    def __init__(self, packed: bytes) -> None:
        self._parts = [packed]

    def run(self, command: Sequence[str], **_: Any) -> CommandResult:
        return CommandResult("", 0)

    def download(self, path: str) -> bytes:
        if not self._parts:
            raise FileNotFoundError(path)
        return self._parts.pop()


@pytest.mark.parametrize("name", ["/x", "../x", "a/../../x", "link/x"])
def test_a_packed_file_stays_in_its_folder(tmp_path: Path, name: str) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path)
        tar.addfile(link)
        tar.addfile(tarfile.TarInfo(name))
    packed.seek(0)
    (tmp_path / "in").mkdir()
    unpack(packed, tmp_path / "in")
    assert [*tmp_path.rglob("*")] == [tmp_path / "in"]


def test_holes_of_a_packed_file_do_not_fill_the_disk(tmp_path: Path) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:
        entry = tarfile.TarInfo("big")
        size = str(LARGEST_COPY + 1)
        entry.pax_headers = {"GNU.sparse.map": f"{size},0", "GNU.sparse.size": size}
        tar.addfile(entry)
    packed.seek(0)
    unpack(packed, tmp_path)
    assert [*tmp_path.iterdir()] == []


COUNTER = """
import http.server

class Handler(http.server.BaseHTTPRequestHandler):
    hits = 0

    def do_POST(self):
        Handler.hits += 1
        self.do_GET()

    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(str(Handler.hits).encode())

http.server.HTTPServer(("", 8000), Handler).serve_forever()
"""
SERVICES = """
services:
  main:
    depends_on: {counter: {condition: service_healthy}}
  counter:
    build: ./counter
    healthcheck:
      test: [CMD, python3, -c, "import urllib.request as r; r.urlopen('http://counter:8000')"]
      interval: 500ms
      start_period: 60s
"""
HIT = "python3 -c \"import urllib.request as r; print(r.urlopen('http://counter:8000'{}).read())\""
STEPS = """
[environment.healthcheck]
command = "test -d /app"
[[steps]]
name = "first"
min_reward = 0.5
[[steps]]
name = "second"
[steps.healthcheck]
command = "test -f /app/ready"
"""


@pytest.fixture
def with_services(tmp_path: Path) -> Path:
    """Two steps: the counter shall be hit once, and a second time."""
    check = f"{HIT.format('')} | grep -q {{}} && echo 1 > /logs/verifier/reward.txt || "
    check += "echo 0 > /logs/verifier/reward.txt\n"
    hit = HIT.format(", data=b''")
    image = f"FROM {IMAGE}\nWORKDIR /app\n"
    return harbor(
        tmp_path / "counted",
        STEPS,
        **{
            "environment/Dockerfile": image,
            "environment/docker-compose.yaml": SERVICES,
            "environment/counter/Dockerfile": f'{image}COPY s.py /\nCMD ["python3", "/s.py"]\n',
            "environment/counter/s.py": COUNTER,
            "steps/first/instruction.md": "Hit the counter.",
            "steps/first/tests/test.sh": check.format(1),
            "steps/first/tests/secret": "of the first step",
            "steps/first/solution/solve.sh": f"{hit}\n",
            "steps/second/instruction.md": "Once more.",
            "steps/second/workdir/setup.sh": "touch ready",
            "steps/second/workdir/notes": "as you know",
            "steps/second/tests/test.sh": check.format(2),
            "steps/second/solution/solve.sh": f"cat notes && {hit}\n",
        },
    )


def test_steps_and_services(with_services: Path) -> None:
    domain = load(str(with_services))
    report = check_environment(domain, "train", [0])
    assert report.rewards == [1.0] and report.problems == []
    with closing(domain.open("train", 0, {})) as episode:
        episode.step(Action("bash", {"command": HIT.format(", data=b''")}))
        told = episode.step(Action("respond", {"content": "Done."}))
        assert (told.text, told.done, told.reward) == ("Once more.", False, 1.0)
        left = "cat notes; ls /tests 2>&1 | grep -c secret; ls /logs/verifier; echo $?"
        assert episode.step(Action("bash", {"command": left})).text == "as you know0\n0\n"
        assert episode.step(Action("respond", {"content": "Done."})).done
        grade = episode.grade()
        assert grade.reward == 0.5
        assert grade.info["steps"] == {"first": {"reward": 1.0}, "second": {"reward": 0.0}}


def test_no_step_follows_one_that_earned_too_little(with_services: Path) -> None:
    with closing(load(str(with_services)).open("train", 0, {})) as episode:
        assert episode.step(Action("respond", {"content": "Done."})).done
        assert episode.grade().reward == 0.0 and [*episode.grade().info["steps"]] == ["first"]


@pytest.mark.parametrize(
    ("file", "text", "says"),
    [
        (
            "environment/counter/s.py",
            "print('the reason'); raise SystemExit(3)",
            r"(?s)service counter does not begin: it is not healthy.*the reason.*ended with code 3",
        ),
        (
            "environment/counter/Dockerfile",
            "FROM scratch\nCOPY s.py /\n",
            "the service counter .*not found",
        ),
        ("steps/second/workdir/setup.sh", "echo the reason; exit 4", "(?s)setup.sh .* the reason"),
        ("steps/second/workdir/setup.sh", "true", "the step second is not healthy"),
        ("task.toml", STEPS.replace('/app"', '/none"'), "counted is not healthy"),
    ],
)
def test_what_does_not_begin_is_a_failure(
    with_services: Path, file: str, text: str, says: str
) -> None:
    (with_services / file).write_text(text)
    compose = with_services / "environment" / "docker-compose.yaml"
    compose.write_text(SERVICES.replace("60s", "1s"))
    toml = (with_services / "task.toml").read_text().replace("command", "interval_sec = 1\ncommand")
    (with_services / "task.toml").write_text(toml.replace("min_reward = 0.5", ""))
    with (
        pytest.raises(EnvironmentFailure, match=says),
        closing(load(str(with_services)).open("train", 0, {})) as episode,
    ):
        episode.step(Action("respond", {"content": "Done."}))
    until(lambda: not containers(), 60)


@pytest.mark.parametrize("headers", [{"path": "a\0b"}, {"GNU.sparse.map": "x"}])
def test_a_tar_that_the_policy_has_written_fails_the_copy(headers: dict[str, str]) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:
        entry = tarfile.TarInfo("x")
        entry.pax_headers = headers
        tar.addfile(entry)
    with pytest.raises(EnvironmentFailure, match="a copy of /x"):
        copy("/x", PackedFile(packed.getvalue()), PackedFile(b""))  # type: ignore[arg-type]
