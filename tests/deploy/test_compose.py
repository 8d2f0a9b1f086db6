"""docker-compose.yml: each part comes to Redis as its own user, an image is built once, and Redis
starts as it says.
"""

import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import redis
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from rollq.servers.health import check_redis
from rollq.settings import Settings
from tests.conftest import REPO, free_port, redis_binary, started_redis
from tests.deploy.compose_file import FILE, ONCE, SERVICES, TEXT, VARIABLE, filled, secret
from tests.deploy.redis_users import reads_are_apart

OURS = [name for name, service in SERVICES.items() if "build" in service]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder as a user's clone has it, in which deploy/secrets.sh has run."""
    shutil.copytree(REPO / "deploy", tmp_path / "deploy")
    shutil.copy(REPO / ".env.example", tmp_path)
    make_secrets(tmp_path)
    return tmp_path


def make_secrets(folder: Path) -> None:
    subprocess.run(["deploy/secrets.sh"], cwd=folder, check=True, capture_output=True)


@pytest.mark.parametrize(
    ("service", "user"),
    [
        ("worker", "worker"),
        ("producer", "producer"),
        ("trainer", "trainer"),
        ("metrics", "reader"),
        ("flower", "flower"),
    ],
)
def test_each_part_is_its_own_user(
    folder: Path, service: str, user: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = SERVICES[service]["environment"]["ROLLQ_REDIS_URL_FILE"]
    name = path.removeprefix("/run/secrets/")
    assert SERVICES[service]["secrets"][0] == name
    assert re.fullmatch(rf"redis://{user}:\w{{24,}}@redis:6379/0", secret(name, folder / "secrets"))
    monkeypatch.setenv("ROLLQ_REDIS_URL_FILE", str(folder / "secrets" / name))
    assert Settings.from_env().redis_url == secret(name, folder / "secrets")


def test_no_password_is_in_an_environment_or_has_a_default() -> None:
    for name, service in SERVICES.items():
        for variable in service.get("environment", {}):
            assert not re.search(
                "PASSWORD|BASIC_AUTH|REDIS_URL|BROKER_URL", variable
            ) or variable.endswith("_FILE"), name
    assert all(
        ":?run deploy/secrets.sh first}/" in where["file"] for where in FILE["secrets"].values()
    )
    with pytest.raises(AssertionError, match="ROLLQ_SECRETS: run"):
        filled(FILE["secrets"]["worker-url"]["file"], {})


class TestSecrets:
    def test_they_are_for_this_machines_user_and_containers_only(self, folder: Path) -> None:
        assert (folder / "secrets").stat().st_mode & 0o777 == 0o700
        assert {path.name for path in (folder / "secrets").iterdir()} == {
            *FILE["secrets"],
            "admin-url",
        }
        assert all(path.stat().st_mode & 0o777 == 0o644 for path in (folder / "secrets").iterdir())
        ignored = (REPO / ".gitignore").read_text().split()
        assert "/secrets/" in ignored and "/.env" in ignored

    def test_they_are_kept_and_one_that_is_deleted_is_new(self, folder: Path) -> None:
        def found() -> dict[str, str]:
            return {path.name: path.read_text() for path in (folder / "secrets").iterdir()}

        before = found()
        make_secrets(folder)
        assert found() == before
        (folder / "secrets" / "trainer-url").unlink()
        make_secrets(folder)
        changed = {name for name, text in found().items() if text != before[name]}
        assert changed == {"trainer-url", "redis-users.acl"}

    def test_addresses_of_another_redis_stay(self, folder: Path) -> None:
        for user in ("worker", "producer", "trainer", "flower"):
            path = folder / "secrets" / f"{user}-url"
            path.unlink()
            path.write_text(f"rediss://{user}:secret@redis.example.com:6380/0\n")
        make_secrets(folder)
        assert (
            secret("worker-url", folder / "secrets")
            == "rediss://worker:secret@redis.example.com:6380/0"
        )

    def test_they_are_where_compose_looks(self, folder: Path) -> None:
        """Wherever the script is called from, and in a folder that .env names."""
        before = (folder / "secrets" / "worker-url").read_text()
        subprocess.run(
            ["../deploy/secrets.sh"], cwd=folder / "deploy", check=True, capture_output=True
        )
        assert (folder / "secrets" / "worker-url").read_text() == before
        (folder / ".env").write_text(f"ROLLQ_SECRETS={folder}/safe\n")
        make_secrets(folder)
        assert {path.name for path in (folder / "safe").iterdir()} == {
            *FILE["secrets"],
            "admin-url",
        }
        assert not (folder / "deploy" / "secrets").exists()
        refused = subprocess.run(
            ["deploy/secrets.sh", "./other"], cwd=folder, capture_output=True, text=True
        )
        assert (
            refused.returncode == 1 and f".env says ROLLQ_SECRETS={folder}/safe" in refused.stderr
        )

    def test_an_address_of_another_redis_leaves_the_passwords_of_this_one(
        self, folder: Path
    ) -> None:
        users = (folder / "secrets" / "redis-users.acl").read_text()
        (folder / "secrets" / "trainer-url").write_text("redis://trainer:x@elsewhere:6379/0\n")
        refused = subprocess.run(["deploy/secrets.sh"], cwd=folder, capture_output=True)
        assert refused.returncode
        assert (folder / "secrets" / "redis-users.acl").read_text() == users != ""

    def test_settings_of_the_operator_are_kept(self, folder: Path) -> None:
        assert "ROLLQ_SECRETS=./secrets" in (folder / ".env").read_text()
        (folder / ".env").write_text("MINE=1\n")
        make_secrets(folder)
        assert (folder / ".env").read_text() == "MINE=1\n"


def test_every_variable_is_in_the_example_with_its_default() -> None:
    example = dict(re.findall(r"^#?([A-Z_]+)=(.*)$", (REPO / ".env.example").read_text(), re.M))
    for name, operator, default in VARIABLE.findall(TEXT):
        assert name in example or name == "ROLLQ_DEMO_RUN", f"{name} is missing in .env.example"
        if operator == ":-" and name.endswith(
            ("_IMAGE", "_PORT", "_CPUS", "_MEMORY", "FSYNC", "REPLICAS", "QUEUES", "WORKERS")
        ):
            assert example[name] == default
    assert not re.search("PASSWORD|SECRET=", "".join(example))


def test_ports_are_bound_to_this_machine() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert len(ports) >= 4
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_each_image_is_built_by_one_service() -> None:
    images = [SERVICES[name]["image"] for name in OURS]
    assert len(images) == len({*images}) and {"worker", "producer", "trainer", "flower"} <= {*OURS}
    targets = re.findall(r"^FROM \S+ AS (\w+)", (REPO / "deploy/Dockerfile").read_text(), re.M)
    assert {SERVICES[name]["build"]["target"] for name in OURS} <= {*targets}
    assert SERVICES["worker"]["build"]["args"]["EXTRAS"] == "${ROLLQ_EXTRAS:-}"


@pytest.mark.parametrize("name", [*SERVICES])
def test_a_service_is_confined_and_says_how_it_is(name: str) -> None:
    service = SERVICES[name]
    assert service["logging"]["options"]["max-size"] == "10m"
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service.get("read_only") or name == "grafana"
    assert (
        service.get("cap_drop") == ["ALL"] or name == "redis"
    )  # its image starts as root and becomes `redis`
    assert ("healthcheck" in service, service["restart"]) == (
        (False, "no") if name in ONCE else (True, "unless-stopped")
    )
    assert not re.search(r":latest|:\d+$", filled(service["image"], {})), (
        "pinned to less than a minor version"
    )


def test_a_worker_scales() -> None:
    assert not {"container_name", "ports", "hostname"} & {*SERVICES["worker"]}
    assert SERVICES["worker"]["deploy"]["replicas"] == "${ROLLQ_WORKERS:-1}"
    for service in SERVICES.values():  # podman-compose reads `replicas` only beside the mode
        deploy = service.get("deploy", {})
        assert ("replicas" in deploy) is (deploy.get("mode") == "replicated")


def test_prometheus_reads_the_ports_that_services_serve() -> None:
    config = yaml.safe_load((REPO / "deploy/monitoring/prometheus.yml").read_text())
    ledger, worker = config["scrape_configs"]
    assert (
        ledger["static_configs"] == [{"targets": ["metrics:9464"]}]
        and "0.0.0.0:9464" in SERVICES["metrics"]["command"]
    )
    assert worker["dns_sd_configs"][0]["names"] == ["worker"]
    assert f"0.0.0.0:{worker['dns_sd_configs'][0]['port']}" in SERVICES["worker"]["command"]


def test_what_is_mounted_is_there() -> None:
    mounts = [
        volume
        for service in SERVICES.values()
        for volume in service.get("volumes", [])
        if volume.startswith("./")
    ]
    assert len(mounts) >= 4
    for mount in mounts:
        assert (REPO / mount.split(":")[0]).exists() and mount.endswith(":ro"), mount
    dashboards = yaml.safe_load((REPO / "deploy/monitoring/grafana/dashboards.yml").read_text())
    assert f":{dashboards['providers'][0]['options']['path']}/rollq.json:ro" in TEXT


def test_redis_starts_as_it_says_and_a_restart_loses_nothing(folder: Path) -> None:
    port, data, users = free_port(), folder / "data", folder / "secrets" / "redis-users.acl"
    data.mkdir()
    if not reads_are_apart():
        users.unlink(missing_ok=True)
        make_secrets(folder)
        rules = re.sub("%[RW]~", "~", users.read_text())
        users.unlink()
        users.write_text(rules)
    line = filled(SERVICES["redis"]["command"], {}).replace(
        "/run/secrets/redis-users.acl", str(users)
    )
    said = shlex.split(line.replace("--dir /data", f"--dir {data}"))
    command = [redis_binary(), "--port", str(port), "--bind", "127.0.0.1", *said]
    address = secret("worker-url", folder / "secrets").replace("@redis:6379", f"@127.0.0.1:{port}")
    with started_redis(command, port) as process, redis.Redis.from_url(address) as client:
        assert check_redis(client) == []  # it keeps everything and evicts nothing
        client.eval(
            "for _, key in ipairs(KEYS) do redis.call('SET', key, 'kept') end",
            2,
            "rollq:a",
            "rollq:b",
        )
        with redis.Redis(port=port, username="health", password="health") as health:
            assert health.ping()
            for forbidden in ("INFO", "GET rollq:a", "CLIENT LIST"):
                with pytest.raises(redis.exceptions.NoPermissionError):
                    health.execute_command(forbidden)
        process.terminate()
        process.wait(30)
    with started_redis(command, port) as process, redis.Redis.from_url(address) as client:
        found = client.mget("rollq:a", "rollq:b")
        process.kill()
    assert found == [b"kept", b"kept"]


def test_everything_in_an_image_is_locked() -> None:
    lines = [
        line
        for line in (REPO / "deploy/constraints.txt").read_text().splitlines()
        if not line.startswith("#")
    ]
    locked = {canonicalize_name(Requirement(line).name): Requirement(line) for line in lines}
    assert all(
        re.fullmatch(r"==[\w.+!]+", str(line.specifier)) and not line.url
        for line in locked.values()
    )
    project = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
    (extras,) = re.findall(
        r"^extras=.* %s' (.*)\)$", (REPO / "deploy/lock.sh").read_text(), re.MULTILINE
    )
    wanted = [
        *project["dependencies"],
        *(
            r
            for extra in ("producer", *extras.split())
            for r in project["optional-dependencies"][extra]
        ),
    ]
    for path in ("deploy/build-requirements.in", "deploy/flower/requirements.in"):
        wanted += (REPO / path).read_text().split("\n")
    for requirement in map(Requirement, filter(None, wanted)):
        found = locked.get(canonicalize_name(requirement.name))
        version = str(found.specifier).removeprefix("==") if found else "none"
        assert found and requirement.specifier.contains(version), (
            f"{requirement}: {version}; run deploy/lock.sh"
        )
