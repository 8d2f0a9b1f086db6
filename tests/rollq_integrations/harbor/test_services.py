"""Services of Docker Compose beside the agent's container: those that are read, and those that are
refused.
"""

from pathlib import Path

import pytest

from rollq.errors import JobFailure
from rollq_integrations.harbor.folder import read
from rollq_integrations.harbor.task_folder import Healthcheck
from tests.rollq_integrations.harbor.task_folders import COMPOSE, harbor, terminal_bench

SERVICES = """
name: a-task
networks: {all: {driver: bridge}}
volumes: {data: }
services:
  main:
    build: {context: "${CONTEXT_DIR}"}
    image: ${MAIN_IMAGE_NAME}
    command: [sh, -c, sleep infinity]
    environment: ["TEST_DIR=${TEST_DIR}", COLOUR=red]
    volumes: ["${HOST_AGENT_LOGS_PATH}:${ENV_AGENT_LOGS_PATH}"]
    deploy: {resources: {limits: {cpus: "${CPUS}"}}}
    depends_on: {api: {condition: service_healthy}}
    networks: [all]
  api:
    build: "${CONTEXT_DIR}/api"
    command: python3 -m http.server "80"
    ports: ["8080:80"]
    networks: [all]
    depends_on: [db]
    healthcheck:
      test: [CMD, curl, -f, "http://localhost/a b"]
      interval: 1m2s
      retries: 7
  db:
    image: redis:${VERSION:-7}
    volumes: ["data:/var/lib/redis"]
    tmpfs: [/tmp]
    deploy: {resources: {limits: {memory: 512M}}}
    networks: [all]
    environment: {A: "1$$", B: "$${HOME}", C: "${NONE:-x$$y}", D: true}
    healthcheck: {test: "ping $$HOST", interval: 500ms, timeout: 3s, start_period: 1h}
"""


def test_services_of_docker_compose(tmp_path: Path) -> None:
    files = {"environment/docker-compose.yaml": SERVICES, "environment/api/Dockerfile": "FROM x"}
    task = read(harbor(tmp_path / "one", "[environment.env]\nB = '2'", **files))
    assert task.place.env == {"COLOUR": "red", "B": "2"} and [*task.services] == ["db", "api"]
    db, api = task.services.values()
    assert (db.place.image, db.place.env, db.place.command) == (
        "redis:7",
        {"A": "1$", "B": "${HOME}", "C": "x$y", "D": "true"},
        (),
    )
    assert (db.place.cpus, db.place.memory) == (1.0, 512 << 20)
    assert db.healthcheck == Healthcheck(
        command="ping $HOST",
        interval_s=0.5,
        timeout_s=3.0,
        start_period_s=3600.5,
        start_interval_s=0.5,
    )
    assert api.place.dockerfile == tmp_path / "one/environment/api"
    assert api.place.command == ("python3", "-m", "http.server", "80")
    assert api.healthcheck == Healthcheck(
        command="curl -f 'http://localhost/a b'",
        interval_s=62.0,
        start_period_s=62.0,
        retries=7,
    )
    bench = terminal_bench(tmp_path / "two", compose=COMPOSE + "  db: {image: redis:7}\n")
    assert [*read(bench).services] == ["db"]


@pytest.mark.parametrize(
    ("limits", "cpus", "size"),
    [
        ("cpus: '2.5', memory: 1g", 2.5, 1 << 30),
        ("cpus: 2, memory: 1.5 GiB", 2.0, 3 << 29),
        ("cpus: '${CPUS}', memory: 65536kb", 1.0, 64 << 20),
        ("cpus: '${OF_TASK:-3}', memory: 100000000", 3.0, 10**8),
    ],
)
def test_limits_of_the_agents_service(tmp_path: Path, limits: str, cpus: float, size: int) -> None:
    resources = f"{{limits: {{{limits}}}, reservations: {{memory: 64M}}}}"
    compose = f"{{services: {{client: {{deploy: {{resources: {resources}}}}}}}}}"
    files = {"environment/docker-compose.yaml": compose}
    toml = "[environment]\ncpus = 1\nmemory_mb = 4096"
    for task in (
        harbor(tmp_path / "one", toml, **files),
        terminal_bench(tmp_path / "two", compose=compose),
    ):
        place = read(task).place
        assert (place.cpus, place.memory) == (cpus, size)


@pytest.mark.parametrize(
    ("compose", "says"),
    [
        ("{services: {a: {}, b: {}}}", "asks for services without one named main or client"),
        ("{services: {main: }}", "main is a NoneType, not a table"),
        ("{services: {main: {}}, secrets: {a: }}", "asks for 'secrets' of docker compose"),
        ("{services: {main: {}}, networks: {a: {internal: true}}}", "settings of networks .'a'."),
        ("{services: {main: {}, db: {image: x, networks: [b]}}}", "asks for several networks"),
        ("{services: {main: {privileged: true}}}", "asks for 'privileged' of docker compose"),
        ("{services: {main: {build: ./other}}}", "asks for another build of its main service"),
        (
            "{services: {main: {build: '${CONTEXT_DIR}/..'}}}",
            "asks for another build of its main service",
        ),
        ("{services: {main: {deploy: {replicas: 2}}}}", "asks for 'replicas' of deploy"),
        (
            "{services: {main: {deploy: {resources: {reservations: {devices: [gpu]}}}}}}",
            "asks for 'devices' of deploy",
        ),
        (
            "{services: {main: {deploy: {resources: {limits: {memory: much}}}}}}",
            "memory is 'much', not a size",
        ),
        ("{services: {main: {volumes: ['${CONTEXT_DIR}/a:/a']}}}", "asks for volumes"),
        ("{services: {main: {image: x}}}", "asks for an image without a build"),
        (
            "{services: {main: {}, db: {image: x, restart: always}}}",
            "'restart' of the service 'db'",
        ),
        ("{services: {main: {}, db: {image: x, volumes: ['a:/a']}}}", "asks for volumes .a:/a."),
        ("{services: {main: {}, db: {image: x, volumes: [{type: bind}]}}}", "asks for volumes"),
        (
            "{services: {main: {volumes: ['a:/a']}, db: {image: x, volumes: ['a:/b']}},"
            " volumes: {a: }}",
            "asks for volumes .a:/a. and volumes .a:/b.",
        ),
        ("{services: {main: {}, db: {build: ../..}}}", "no Dockerfile for its service 'db'"),
        ("{services: {main: {}, db: {build: {context: ., args: {A: 1}}}}}", "build with arguments"),
        ("{services: {main: {}, db: {}}}", "the image of the service 'db' cannot be ''"),
        ("{services: {main: {}, 'a b': {image: x}}}", "the name of a service cannot be 'a b'"),
        ("{services: {main: {depends_on: [db]}}}", "the service 'db', which it does not"),
        (
            "{services: {main: {depends_on: {db: {condition: service_completed_successfully}}},"
            " db: {image: x}}}",
            "asks for the condition 'service_completed_successfully' of a service",
        ),
        (
            "{services: {main: {depends_on: [a]}, a: {image: x, depends_on: [main]}}}",
            "services that wait for each other",
        ),
        (
            "{services: {main: {}, db: {image: x, healthcheck: {test: [RUN, x]}}}}",
            "asks for a healthcheck by 'RUN'",
        ),
        (
            "{services: {main: {}, db: {image: x, healthcheck: {test: x, interval: soon}}}}",
            "a time is 'soon'",
        ),
        (
            "{services: {main: {}, db: {image: x, command: 'run ${SECRET}'}}}",
            "asks for the variable SECRET of this machine",
        ),
    ],
)
def test_services_that_are_not_played(tmp_path: Path, compose: str, says: str) -> None:
    with pytest.raises(JobFailure, match=says):
        read(harbor(tmp_path / "one", **{"environment/docker-compose.yaml": compose}))


def test_services_beside_tests_of_their_own(tmp_path: Path) -> None:
    files = {"environment/docker-compose.yaml": "{services: {main: {}, db: {image: x}}}"}
    toml = "[verifier]\nenvironment_mode = 'separate'"
    with pytest.raises(JobFailure, match="asks for services beside tests in a copy of its cont"):
        read(harbor(tmp_path / "one", toml, **files))
    task = read(harbor(tmp_path / "one", toml, **{**files, "tests/Dockerfile": "FROM x"}))
    assert task.tests_place and [*task.services] == ["db"]
    files = {"tests/docker-compose.yaml": "{}", "tests/Dockerfile": "FROM x"}
    with pytest.raises(JobFailure, match="asks for docker compose for its tests"):
        read(harbor(tmp_path / "two", toml, **files))
