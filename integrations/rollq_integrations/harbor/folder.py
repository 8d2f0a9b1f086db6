"""Finds the tasks of a folder, and reads one in Harbor's form (`task.toml`) or the older one of
terminal-bench (`task.yaml`).
"""

from pathlib import Path

from rollq.errors import JobFailure
from rollq_integrations.harbor import harbor_form, terminal_bench_form
from rollq_integrations.harbor.harbor_form import HARBOR
from rollq_integrations.harbor.task_folder import TaskFolder
from rollq_integrations.harbor.terminal_bench_form import TERMINAL_BENCH


def task_folders(folder: Path) -> list[Path]:
    """The tasks of a folder in the order of their names: itself, or the folders in it. Raises
    JobFailure when there is none.
    """
    if _is_task(folder):
        return [folder]
    try:
        tasks = sorted(path for path in folder.iterdir() if _is_task(path))
    except OSError as e:
        raise JobFailure(f"{folder}: {e.strerror or e}") from e
    if not tasks:
        raise JobFailure(
            f"{folder} has no task: neither it nor a folder in it has {HARBOR} or {TERMINAL_BENCH}"
        )
    return tasks


def _is_task(path: Path) -> bool:
    return (path / HARBOR).is_file() or (path / TERMINAL_BENCH).is_file()


def read(path: Path) -> TaskFolder:
    """The task of that folder. Raises JobFailure when it cannot be played, with the reason."""
    try:
        if (path / HARBOR).is_file():
            return harbor_form.read(path)
        return terminal_bench_form.read(path)
    except (
        OSError,
        TypeError,
        ValueError,
        KeyError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as e:
        raise JobFailure(f"the task {path.name}: {type(e).__name__}: {e}") from e
