"""The engine that serves the policy: a real SGLang server where there is one, else the sampler of
this folder.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from examples.learn_shop.train import Options
from rollq.errors import RollqError
from rollq.processes.child import Child
from rollq.processes.embedded_redis import free_port

START_S = 300.0
CPU_FLAGS = (
    "--device cpu --attention-backend torch_native --sampling-backend pytorch --disable-cuda-graph"
    " --disable-overlap-schedule --sleep-on-idle --max-total-tokens 100000"
).split()
CPU_ENV = {"SGLANG_USE_CPU_ENGINE": "1", "TORCHDYNAMO_DISABLE": "1"}
CORES = 2
MEMORY = "0.3"
"""Share of the memory that SGLang takes: a GPU has the trainer, too."""


def threads(options: Options) -> int:
    """Number of threads. On policy, trainer and engine take turns; else they share the cores."""
    return 1 if options.staleness else CORES


def find_sglang() -> Path | None:
    """The Python of an environment with a working SGLang: this one, or ~/.cache/rollq/sglang."""
    for python in (Path(sys.executable), Path("~/.cache/rollq/sglang/bin/python").expanduser()):
        check = (
            "import importlib.util as u; assert u.find_spec('sglang') and u.find_spec('sgl_kernel')"
        )
        if (
            python.exists()
            and subprocess.run([python, "-c", check], capture_output=True).returncode == 0
        ):
            return python
    return None


def choose_sglang(args: argparse.Namespace) -> Path | None:
    """The Python of SGLang; None where a server runs already, and for the sampler of
    this folder.
    """
    if args.engine:
        return None
    sglang = args.sglang / "bin/python" if args.sglang else find_sglang()
    if args.model and sglang is None:
        raise SystemExit(
            "a pretrained model needs SGLang: name its environment with --sglang, or a "
            "server with --engine"
        )
    return sglang


def command(
    model: str, port: int, sglang: Path | None, options: Options
) -> tuple[list[str], dict[str, str]]:
    """The engine's command line and environment."""
    if sglang is None:
        line = [sys.executable, "-m", "examples.learn_shop.server", model, "--port", str(port)]
        line += ["--seed", str(options.seed)]
        return line, {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    flags = [
        "--model-path",
        model,
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--weight-version",
        "0",
    ]
    flags += [
        "--dtype",
        "bfloat16" if options.bf16 else "float32",
        "--context-length",
        str(options.context),
    ]
    flags += ["--mem-fraction-static", MEMORY]
    gpu = shutil.which("nvidia-smi") is not None
    line = [str(sglang), "-m", "sglang.launch_server", *flags, *(() if gpu else CPU_FLAGS)]
    return line, {} if gpu else {**CPU_ENV, "OMP_NUM_THREADS": str(threads(options))}


@contextmanager
def engine(model: str, folder: Path, sglang: Path | None, options: Options) -> Iterator[str]:
    """The address of an engine that serves `model` until the block ends. Raises RollqError when it
    does not start.
    """
    port = free_port()
    line, env = command(model, port, sglang, options)
    child = Child("engine", line, log=folder / "engine.log", env=env)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + START_S
        while not _ready(url):
            if child.exit_code is not None or time.monotonic() > deadline:
                raise RollqError(child.how_it_ended())
            time.sleep(0.2)
        yield url
    finally:
        child.stop()


def _ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/ready", timeout=5.0):
            return True
    except (urllib.error.URLError, OSError):
        return False
