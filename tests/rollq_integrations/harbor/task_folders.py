"""Made-up task folders of Harbor and terminal-bench, and the one of the examples."""

from pathlib import Path

EXAMPLE = Path(__file__).parents[3] / "examples" / "harbor"
COMPOSE = """
services:
  client:
    build:
      dockerfile: Dockerfile
    image: ${T_BENCH_TASK_DOCKER_CLIENT_IMAGE_NAME}
    container_name: ${T_BENCH_TASK_DOCKER_CLIENT_CONTAINER_NAME}
    command: [sh, -c, sleep infinity]
    environment:
      - TEST_DIR=${T_BENCH_TEST_DIR}
      - COLOUR=red
    volumes: ["${T_BENCH_TASK_LOGS_PATH}:${T_BENCH_CONTAINER_LOGS_PATH}"]
"""


def harbor(folder: Path, toml: str = "", **files: str) -> Path:
    given = {
        "instruction.md": "Do it.",
        "environment/Dockerfile": "FROM x",
        "tests/test.sh": "true",
        **files,
    }
    for name, text in {"task.toml": toml, **given}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def terminal_bench(folder: Path, told: str = "instruction: Do it.", compose: str = COMPOSE) -> Path:
    files = {
        "task.yaml": told,
        "docker-compose.yaml": compose,
        "Dockerfile": "FROM x",
        "run-tests.sh": "pytest",
    }
    for name, text in {**files, "solution.sh": "true", "tests/test_outputs.py": ""}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder
