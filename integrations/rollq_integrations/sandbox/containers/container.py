"""A sandbox that is a container of Docker or Podman.

    with Container("python:3.12-slim") as sandbox:
        print(sandbox.run(["python3", "-c", "print(2)"]).output)

It lies on the least busy of the worker's hosts, and needs nothing of the worker's own files. It
starts in the background while the policy writes its first turn. Nothing is left behind, whatever
happens to the worker: a container reads lines from its worker, and ends, and is removed, once none
came for LEASE_S or the connection closes. What was made and never started is swept away by the next
worker. The image needs `sh`, `timeout` and `head` (coreutils or busybox). It does not know tasks or
tools.
"""

import io
import json
import math
import os
import secrets
import tarfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from rollq.env import CommandResult, SandboxSpec, attempt_labels
from rollq.errors import (
    EnvironmentFailure,
    ForOtherWorkers,
    JobFailure,
    RollqError,
    WorkerFailure,
)
from rollq_integrations.sandbox.containers.archives import (
    folders_for_all,
    owned_by_root,
    read,
)
from rollq_integrations.sandbox.containers.engine import (
    LABEL,
    WORKER_LABEL,
    failures,
    this_worker,
)
from rollq_integrations.sandbox.containers.hosts import Host, place
from rollq_integrations.sandbox.containers.images import have_image
from rollq_integrations.sandbox.containers.lease import (
    END_PROCESSES,
    HEARTBEAT,
    LEASE_S,
    LIVE,
    SERVE,
)

if TYPE_CHECKING:
    from docker.models.containers import Container as EngineContainer

T = TypeVar("T")
START_S = 120.0
"""Longest start in seconds, and longest upload or download."""
WAIT_S = 1.0
"""Seconds of one wait for the engine."""
GRACE_S = 30.0
"""Seconds beyond a command's time in which the engine must report its end."""
SHOWN = 32_768
"""Number of bytes of a command's output that are shown."""
MOST_OUTPUT = 2 * SHOWN
"""Number of bytes that the worker reads of it. The policy may have replaced `head`."""
LONGEST_ARGUMENT = 100_000
"""Number of bytes of one argument; Linux takes 131,072."""
OUTPUTS = "/run/rollq"
"""A folder in memory inside, for the outputs of commands."""
OUTPUTS_MB = 16
"""Its size: a command that writes more has a full disk."""
RUN = (
    'f="$0/$1"; shift; umask 77; set -C; : >"$f" || exit; umask 22; '
    'timeout -s KILL "$@" >>"$f" 2>&1 </dev/null; code=$?; '
    f'head -c {SHOWN} "$f"; '
    f'echo 2>/dev/null >>"$f" || echo "[the {OUTPUTS_MB} MB for outputs are full]"; '
    'rm -f "$f"; exit $code'
)
"""Runs a command for so many seconds, with its output in a new file of a random name, which another
user cannot have made and cannot write to (Podman's commands begin with no umask now and then).
Processes that it leaves running go on, and do not hold up its end: they have the file, and not the
connection.
"""
KILLED = 137
"""The exit code of a process that SIGKILL ended."""
NETWORK = "ROLLQ_SANDBOX_NETWORK"
"""Environment variable of the worker: the engine's network for containers that may have one."""
OPTIONS = "ROLLQ_SANDBOX_OPTIONS"
"""Environment variable of the worker: a JSON object of options of docker-py's `containers.create`,
which go before those here.
"""
DROPPED_CAPABILITIES = "AUDIT_WRITE MKNOD NET_RAW SETFCAP SETPCAP".split()
"""Capabilities of Docker's own set that installing packages and starting servers do not need. To
add the others to none would give them to an image's user, too, by Podman.
"""


class Container:
    """Implements rollq.env.Sandbox. Commands run one after the other."""

    def __init__(
        self,
        image: str,
        *,
        dockerfile: Path | None = None,
        build_s: float = 600.0,
        seconds: float = 60.0,
        cpus: float = 1.0,
        memory: int = 2 << 30,
        processes: int = 512,
        env: Mapping[str, str] | None = None,
        mounts: Mapping[str, str] | None = None,
        folder: str | None = None,
        folders: Sequence[str] = (),
        network: bool = False,
        names: Sequence[str] = (),
        beside: "Container | None" = None,
        command: Sequence[str] = (),
    ) -> None:
        """The engine fetches an `image` that it lacks, or builds it of the folder `dockerfile`
        within `build_s` seconds. `seconds` is a command's longest time. `cpus` and `memory` (bytes)
        are for all processes together. `mounts` are folders of the engine's machine, read-only, and
        where they lie inside. `folder` is where commands begin, in place of the image's. `folders`
        are made, for every user to write in.

        With `network`, the container is in the network that ROLLQ_SANDBOX_NETWORK names. It is in
        any case if that is an internal one, which leads nowhere but to its host. Otherwise it
        has loopback alone.

        A service, which is `beside` another container, runs the image's own command, or `command`,
        and shares that one's network and host. Both have the `names` of all services.

        Raises ServiceAway where no container engine answers, EnvironmentFailure where there is no
        such image, and ForOtherWorkers where the worker has a wrong ROLLQ_SANDBOX_OPTIONS.
        """
        self._seconds = seconds
        self._folder = folder
        labels = attempt_labels()
        options: dict[str, Any] = {
            "image": image,
            "command": ["sh", "-c", LIVE, str(LEASE_S // 3)],
            "stdin_open": True,  # and closed for ever with the connection of `attach_socket`
            "auto_remove": True,
            "labels": {
                LABEL: "",
                WORKER_LABEL: this_worker(),
                **{f"rollq.{k}": str(getattr(labels, k)) for k in ("run", "job", "attempt")},
            },
            "environment": dict(env or {}),
            "volumes": {
                source: {"bind": target, "mode": "ro"} for source, target in (mounts or {}).items()
            },
            "tmpfs": {OUTPUTS: f"size={OUTPUTS_MB}m,mode=1777"},
            "nano_cpus": int(cpus * 1e9),
            "mem_limit": memory,
            "memswap_limit": memory,
            "pids_limit": processes,
            "cap_drop": DROPPED_CAPABILITIES,
            "security_opt": ["no-new-privileges"],
            **_options(),
        }
        self._host: Host = beside._host if beside else place(self)
        self._host.containers.add(self)
        try:
            have_image(self._host, image, dockerfile, build_s)
            joined = _network(self._host, network)
            if beside:
                options["entrypoint"] = _service(self._host, image, names, command)
                del options["command"]
            else:
                options["extra_hosts"] = dict.fromkeys(names, "127.0.0.1")
        except BaseException:
            self._host.containers.discard(self)
            raise
        options = {**({"network": joined} if joined else {"network_mode": "none"}), **options}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rollq-container")
        self._started: Future[EngineContainer] = self._thread.submit(
            self._start, options, folders, beside
        )

    def __enter__(self) -> "Container":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(
        self,
        command: Sequence[str],
        *,
        seconds: float | None = None,
        env: Mapping[str, str] | None = None,
        user: str = "",
    ) -> CommandResult:
        """See Sandbox. `user` is who runs it, in place of the image's user."""
        longest = self._seconds if seconds is None else seconds
        if any(
            "\0" in part or len(part.encode(errors="replace")) > LONGEST_ARGUMENT
            for part in command
        ):
            return CommandResult(
                f"an argument has a null character or more than {LONGEST_ARGUMENT} bytes", 126
            )
        argv = ["sh", "-c", RUN, OUTPUTS, secrets.token_hex(8), f"{longest:g}", *command]
        options = {"environment": dict(env or {}), "user": user, "workdir": self._folder}
        began = time.monotonic()
        output, code = self._do(
            "a command", longest, lambda container: _run(container, argv, options, longest)
        )
        text = output[:MOST_OUTPUT].decode(errors="replace")
        if len(output) > MOST_OUTPUT:
            return CommandResult(text, KILLED, f"it wrote more than {MOST_OUTPUT} bytes")
        if code is None:  # it still runs
            raise WorkerFailure("the container engine has closed the connection of a command")
        late = code == KILLED and time.monotonic() - began >= longest
        return CommandResult(text, code, f"it ran longer than {longest:g} s" if late else "")

    def end_processes(self) -> None:
        """Kill everything that runs inside, without a new process, for which there may be no room.
        A container whose image has another user than root ends that user's processes alone.
        """
        self._do("a signal", START_S, lambda container: container.kill(END_PROCESSES))

    def upload(self, source: Path, target: str) -> None:
        made = io.BytesIO()
        with tarfile.open(fileobj=made, mode="w") as tar:
            tar.add(source, target.strip("/"), filter=owned_by_root)
        self._do(
            "an upload", START_S, lambda container: container.put_archive("/", made.getvalue())
        )

    def download(self, path: str) -> bytes:
        return self._do("a download", START_S, lambda container: read(container, path))

    def close(self) -> None:
        self._host.containers.discard(self)
        self._thread.shutdown(wait=False)
        self._started.add_done_callback(_close)

    def _start(
        self, options: dict[str, Any], folders: Sequence[str], beside: "Container | None"
    ) -> "EngineContainer":
        with failures(f"a container of {options['image']}"):
            if beside:
                options.pop("network", None)  # it would go before the mode
                options["network_mode"] = f"container:{beside._started.result().id}"
            try:
                container = self._host.client.containers.create(**options)
            except TypeError as e:
                raise ForOtherWorkers(f"{OPTIONS} has an unknown option: {e}") from e
            try:
                with failures(f"starting a container{_entrypoint(container)}"):
                    container.start()
                    HEARTBEAT.join(
                        container.id, container.attach_socket(params={"stdin": 1, "stream": 1})
                    )
                    container.put_archive("/", folders_for_all(folders))
            except BaseException:
                HEARTBEAT.leave(container.id)
                _remove(container)
                raise
            return container

    def _do(self, what: str, seconds: float, call: Callable[["EngineContainer"], T]) -> T:
        """Result of the call, once the container has started."""
        container = self._result(self._started, "its start", START_S)
        try:
            future = self._thread.submit(call, container)
        except RuntimeError as e:
            raise EnvironmentFailure("the container was closed") from e
        try:
            return self._result(future, what, seconds + GRACE_S)
        except EnvironmentFailure as e:
            if _runs(container):
                raise
            raise WorkerFailure(
                f"the container{_entrypoint(container)} at {self._host} has gone: its engine "
                f"restarted or its host died, or its worker was silent for {LEASE_S} s ({e})"
            ) from e

    def _result(self, future: "Future[T]", what: str, seconds: float) -> T:
        # A worker that was frozen has not waited meanwhile, so short waits are counted.
        for _ in range(math.ceil(seconds / WAIT_S)):
            if wait([future], WAIT_S).done:
                break
        else:
            raise WorkerFailure(
                f"the container engine at {self._host} took longer than {seconds:g} s for {what}"
            )
        with failures(f"in the container, {what}"):
            return future.result()


def of_spec(spec: SandboxSpec) -> Container:
    """Implements rollq.env.SandboxMaker."""
    if not spec.image:
        raise JobFailure("a container needs an image: name one in its SandboxSpec")
    return Container(
        spec.image,
        dockerfile=spec.dockerfile,
        build_s=spec.build_s,
        seconds=spec.seconds,
        cpus=spec.cpus,
        memory=spec.memory,
        env=spec.env,
        folder=spec.folder,
        folders=spec.folders,
        network=spec.network,
        names=spec.names,
        beside=cast("Container | None", spec.beside),
        command=spec.command,
    )


def _service(host: Host, image: str, names: Sequence[str], command: Sequence[str]) -> list[str]:
    """The entrypoint of a service: that of its image, with its command, beside the lease."""
    with failures(f"the image {image}"):
        config = host.client.images.get(image).attrs["Config"]
    own = [*(config.get("Entrypoint") or ()), *(command or config.get("Cmd") or ())]
    return ["sh", "-c", SERVE + LIVE, str(LEASE_S // 3), " ".join(names), *own]


def _run(
    container: "EngineContainer", argv: Sequence[str], options: Mapping[str, Any], seconds: float
) -> tuple[bytes, int | None]:
    """Output and exit code of a command; no more of the output than shows that it is too much. One
    that outlives its seconds, because the policy has replaced `timeout`, is ended with all others.
    """
    api = container.client.api
    command = api.exec_create(container.id, argv, **options)["Id"]
    clock = threading.Timer(seconds + GRACE_S / 2, _end_processes, [container])
    clock.daemon = True
    clock.start()
    output = bytearray()
    try:
        with closing(api.exec_start(command, stream=True)) as stream:
            for part in stream:
                output += part
                if len(output) > MOST_OUTPUT:
                    return bytes(output), None
    finally:
        clock.cancel()
    return bytes(output), api.exec_inspect(command)["ExitCode"]


def _end_processes(container: "EngineContainer") -> None:
    with suppress(RollqError), failures("a signal"):  # the engine is away, or the container gone
        container.kill(END_PROCESSES)


def _entrypoint(container: "EngineContainer") -> str:
    """Words on the image's ENTRYPOINT, which is a likely reason where a container does not run."""
    entrypoint = container.attrs["Config"].get("Entrypoint")
    if not entrypoint or SERVE + LIVE in entrypoint:
        return ""
    return f" (whose ENTRYPOINT {entrypoint} must run its arguments)"


def _runs(container: "EngineContainer") -> bool:
    with suppress(EnvironmentFailure), failures("looking at a container"):
        container.reload()
        return bool(container.status == "running")
    return False


def _options() -> dict[str, Any]:
    try:
        options = json.loads(os.environ.get(OPTIONS) or "{}")
    except ValueError as e:
        raise ForOtherWorkers(f"{OPTIONS} is no JSON: {e}") from e
    if not isinstance(options, dict):
        raise ForOtherWorkers(f"{OPTIONS} is no JSON object: {options!r:.100}")
    return options


def _network(host: Host, outward: bool) -> str:
    """The network that a container joins; "" for none."""
    name = os.environ.get(NETWORK, "")
    if name and (outward or _is_internal(host, name)):
        return name
    return ""


@cache
def _is_internal(host: Host, network: str) -> bool:
    with failures(f"the network {network} of {NETWORK} at {host}"):
        return bool(host.client.networks.get(network).attrs["Internal"])


def _close(started: "Future[EngineContainer]") -> None:
    with suppress(RollqError):  # it has not started
        container = started.result()
        HEARTBEAT.leave(container.id)
        _remove(container)


def _remove(container: "EngineContainer") -> None:
    """Remove a container that will otherwise end by itself, or has gone."""
    with suppress(RollqError), failures("removing a container"):
        container.remove(force=True)
