"""A sandbox that is a container of Docker or Podman.

    with Container("python:3.12-slim") as sandbox:
        print(sandbox.run(["python3", "-c", "print(2)"]).output)

It runs on the least busy of the worker's hosts and needs none of the worker's files. It starts in
the background while the policy writes its first turn. Nothing stays behind, whatever happens to the
worker: the container reads lines from its worker, and exits and is removed once none has come for
LEASE_S seconds or the connection closes. One that was created and never started is removed by the
next worker. The image needs `sh`, `timeout` and `head` (coreutils or busybox). It does not know
tasks or tools.
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
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from rollq.env import CommandResult, SandboxSpec, attempt_labels
from rollq.errors import (
    EnvironmentFailure,
    ForOtherWorkers,
    JobFailure,
    RollqError,
    WorkerFailure,
)
from rollq_integrations.sandbox.arguments import refuse_arguments
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

CALL_S = 120.0
"""Longest start, upload, download or signal, in seconds."""
WAIT_S = 1.0
"""Seconds of one wait for the engine."""
GRACE_S = 30.0
"""Seconds beyond a command's time in which the engine must report its end."""
SHOWN_OUTPUT = 32_768
"""Number of bytes of a command's output that are shown."""
MOST_OUTPUT = 2 * SHOWN_OUTPUT
"""Number of bytes that the worker reads of it. The policy may have replaced `head`."""
OUTPUTS = "/run/rollq"
"""A folder in memory inside, for the outputs of commands."""
OUTPUTS_MB = 16
"""Size of OUTPUTS: a command that writes more has a full disk."""
RUN_SCRIPT = (
    'f="$0/$1"; shift; umask 77; set -C; : >"$f" || exit; umask 22; '
    'timeout -s KILL "$@" >>"$f" 2>&1 </dev/null; code=$?; '
    f'head -c {SHOWN_OUTPUT} "$f"; '
    f'echo 2>/dev/null >>"$f" || echo "[the {OUTPUTS_MB} MB for outputs are full]"; '
    'rm -f "$f"; exit $code'
)
"""Runs a command for at most so many seconds. Its output goes to a new file with a random name,
which no other user can have made or can write to. (Podman's commands sometimes begin without a
umask.) Processes that it leaves running do not delay its end, because they hold the file and not
the connection.
"""
KILLED = 137
"""The exit code of a process that SIGKILL ended."""
NETWORK_VARIABLE = "ROLLQ_SANDBOX_NETWORK"
"""Environment variable of the worker: the engine's network for containers that may have one."""
OPTIONS_VARIABLE = "ROLLQ_SANDBOX_OPTIONS"
"""Environment variable of the worker: a JSON object of options of docker-py's `containers.create`,
which override those here.
"""
DROPPED_CAPABILITIES = "AUDIT_WRITE MKNOD NET_RAW SETFCAP SETPCAP".split()
"""Capabilities of Docker's own set that installing packages and starting servers do not need.
Dropping these is safer than adding the others to an empty set: Podman gives added capabilities to
an image's own user too.
"""

T = TypeVar("T")


class _Exit(NamedTuple):
    """The end of a command."""

    output: bytes
    code: int | None
    """None if the output was too long, or the command still runs."""
    seconds: float


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
        """`image` is pulled where it is missing, or built from the folder `dockerfile` within
        `build_s` seconds. `seconds` limits a command. `cpus` and `memory` (bytes) limit all
        processes together. `mounts` maps folders of the engine's machine to paths inside,
        read-only. `folder` is where commands begin, instead of the image's. `folders` are created,
        writable by every user.

        With `network`, the container joins the network named by ROLLQ_SANDBOX_NETWORK. It joins
        that network in any case if it is an internal one, which reaches only the host. Otherwise
        it has loopback alone.

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
            "stdin_open": True,  # it closes for good when the connection of `attach_socket` does
            "auto_remove": True,
            "labels": {
                LABEL: "",
                WORKER_LABEL: this_worker(),
                "rollq.run": labels.run,
                "rollq.job": labels.job,
                "rollq.attempt": str(labels.attempt),
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
            **_operator_options(),
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
        network_options = {"network": joined} if joined else {"network_mode": "none"}
        options = {**network_options, **options}  # the operator's override it
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
        refusal = refuse_arguments(command)
        if refusal:
            return refusal
        argv = ["sh", "-c", RUN_SCRIPT, OUTPUTS, secrets.token_hex(8), f"{longest:g}", *command]
        options = {"environment": dict(env or {}), "user": user, "workdir": self._folder}
        output, code, elapsed_s = self._call(
            "a command", longest, lambda container: _run(container, argv, options, longest)
        )
        text = output[:MOST_OUTPUT].decode(errors="replace")
        if len(output) > MOST_OUTPUT:
            return CommandResult(text, KILLED, f"it wrote more than {MOST_OUTPUT} bytes")
        if code is None:  # it has no exit code while it runs
            raise WorkerFailure("the container engine has closed the connection of a command")
        is_timeout = code == KILLED and elapsed_s >= longest
        return CommandResult(text, code, f"it ran longer than {longest:g} s" if is_timeout else "")

    def end_processes(self) -> None:
        """Kills everything that runs inside, without a new process, for which there may be no room.
        A container whose image has another user than root ends that user's processes alone.
        """
        self._call("a signal", CALL_S, lambda container: container.kill(END_PROCESSES))

    def upload(self, source: Path, target: str) -> None:
        made = io.BytesIO()
        with tarfile.open(fileobj=made, mode="w") as tar:
            tar.add(source, target.strip("/"), filter=owned_by_root)
        self._call(
            "an upload", CALL_S, lambda container: container.put_archive("/", made.getvalue())
        )

    def download(self, path: str) -> bytes:
        return self._call("a download", CALL_S, lambda container: read(container, path))

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
                raise ForOtherWorkers(f"{OPTIONS_VARIABLE} has an unknown option: {e}") from e
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

    def _call(self, what: str, seconds: float, call: Callable[["EngineContainer"], T]) -> T:
        """Result of the call, once the container has started."""
        container = self._wait_for(self._started, "its start", CALL_S)
        try:
            future = self._thread.submit(call, container)
        except RuntimeError as e:
            raise EnvironmentFailure("the container was closed") from e
        try:
            return self._wait_for(future, what, seconds + GRACE_S)
        except EnvironmentFailure as e:
            if _runs(container):
                raise
            raise WorkerFailure(
                f"the container{_entrypoint(container)} at {self._host} has gone: its engine "
                f"restarted or its host died, or its worker was silent for {LEASE_S} s ({e})"
            ) from e

    def _wait_for(self, future: "Future[T]", what: str, seconds: float) -> T:
        # Count short waits: a worker that was frozen has not really waited.
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
) -> _Exit:
    """Runs a command; stops reading once its output is too long. One that outlives its seconds,
    because the policy has replaced `timeout`, is ended with all others.
    """
    api = container.client.api
    command = api.exec_create(container.id, argv, **options)["Id"]
    began = time.monotonic()
    kill_timer = threading.Timer(seconds + GRACE_S / 2, _end_processes, [container])
    kill_timer.daemon = True
    kill_timer.start()
    output = bytearray()
    try:
        with closing(api.exec_start(command, stream=True)) as stream:
            for part in stream:
                output += part
                if len(output) > MOST_OUTPUT:
                    return _Exit(bytes(output), None, time.monotonic() - began)
    finally:
        kill_timer.cancel()
    elapsed_s = time.monotonic() - began
    return _Exit(bytes(output), api.exec_inspect(command)["ExitCode"], elapsed_s)


def _end_processes(container: "EngineContainer") -> None:
    with suppress(RollqError), failures("a signal"):  # the engine is away, or the container gone
        container.kill(END_PROCESSES)


def _entrypoint(container: "EngineContainer") -> str:
    """A hint at the image's ENTRYPOINT, a likely reason why a container does not run, or "" without
    one.
    """
    entrypoint = container.attrs["Config"].get("Entrypoint")
    if not entrypoint or SERVE + LIVE in entrypoint:
        return ""
    return f" (whose ENTRYPOINT {entrypoint} must run its arguments)"


def _runs(container: "EngineContainer") -> bool:
    with suppress(EnvironmentFailure), failures("looking at a container"):
        container.reload()
        return bool(container.status == "running")
    return False


def _operator_options() -> dict[str, Any]:
    try:
        options = json.loads(os.environ.get(OPTIONS_VARIABLE) or "{}")
    except ValueError as e:
        raise ForOtherWorkers(f"{OPTIONS_VARIABLE} is not valid JSON: {e}") from e
    if not isinstance(options, dict):
        raise ForOtherWorkers(f"{OPTIONS_VARIABLE} is not a JSON object: {options!r:.100}")
    return options


def _network(host: Host, outward: bool) -> str:
    """The network that a container joins, or ""."""
    name = os.environ.get(NETWORK_VARIABLE, "")
    if name and (outward or _is_internal(host, name)):
        return name
    return ""


@cache
def _is_internal(host: Host, network: str) -> bool:
    with failures(f"the network {network} of {NETWORK_VARIABLE} at {host}"):
        return bool(host.client.networks.get(network).attrs["Internal"])


def _close(started: "Future[EngineContainer]") -> None:
    with suppress(RollqError):  # it has not started
        container = started.result()
        HEARTBEAT.leave(container.id)
        _remove(container)


def _remove(container: "EngineContainer") -> None:
    """Removes a container. One that cannot be removed ends by itself, or has ended."""
    with suppress(RollqError), failures("removing a container"):
        container.remove(force=True)
