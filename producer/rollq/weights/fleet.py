"""New weights for a fleet of SGLang and vLLM engines: pause, update, verify, continue.

Each engine goes its own way, and no engine waits for the others to pause: every token carries the
version of the engine that sampled it, so engines may differ for a while. An engine continues as
soon as another one has reported the same checksum, or when no other one is left to do so. What
always holds: an engine generates only with weights that were verified under their name. One that
fails stays paused, and the others go on.

Nothing here knows runs or Redis: publish the version (`Client.publish`) when the update has
returned.
"""

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from rollq.errors import SettingsError, SyncError
from rollq.job import NAME, served_adapter
from rollq.numbers import is_number
from rollq.urls import mask_url
from rollq.weights.discovery import check_engine_url, engines_at
from rollq.weights.engine_control import (
    CONTROL_TIMEOUT_S,
    ControlFailure,
    PauseMode,
    Serving,
    UpdatingEngine,
)

T = TypeVar("T")
R = TypeVar("R")

VERSIONS_TIMEOUT_S = 5.0
Report = Callable[[str, str], None]
"""Called with an engine's URL and the step that it begins, from the thread of that engine. What it
raises is logged.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineUpdate:
    """The result of an update on one engine."""

    url: str
    """Address of the engine, as it was given."""
    server: str
    """The version of SGLang, or of vLLM with its name; empty when the engine does not say."""
    loaded: bool
    """False if it had these weights already, and went on generating."""
    paused_s: float
    """Seconds from the pause to the end of it."""
    checksum: str | None
    """Checksum of the weights in use. None where the engine computes none."""


class Fleet:
    """The engines at these addresses: SGLang or vLLM servers, or smg routers that were started with
    `--enable-rl`.

    `api_key_file` holds the key that the engines ask for (the admin key, where they have one).
    `pause` is the mode for servers with versions per token; SGLang before 0.5.20 has none, and
    aborts: rollq's workers continue the turns. `update_timeout_s` limits one load and one
    checksum. Engines that hold the same weights as other tensors (other kernels, other GPUs) need
    `checksums=False`. Raises SettingsError.
    """

    def __init__(
        self,
        urls: Sequence[str],
        api_key_file: str | Path | None = None,
        *,
        pause: PauseMode | str = PauseMode.RETRACT,
        update_timeout_s: float = 1800.0,
        checksums: bool = True,
    ) -> None:
        self._urls = _addresses(urls)
        self._key = _read_key(Path(api_key_file)) if api_key_file is not None else None
        if pause not in [*PauseMode]:
            raise SettingsError(f"a pause is {', '.join(PauseMode)}, not {pause!r}")
        self._pause = PauseMode(pause)
        if not is_number(update_timeout_s) or update_timeout_s <= 0:
            raise SettingsError(
                f"update_timeout_s is a number of seconds above 0, not {update_timeout_s!r:.80}"
            )
        self._update_timeout_s = update_timeout_s
        self._checksums = checksums
        self._compiled: set[str] = set()
        """Engines that were asked for a checksum before, by URL."""

    def update(
        self, path: str | Path, version: str, report: Report | None = None
    ) -> list[EngineUpdate]:
        """Loads the weights in the folder `path`, as the engines see it, under the name `version`.

        An engine that generates with this path and version is left alone; vLLM names only its
        version. One that is paused is loaded again, because its weights may be half written, and so
        is one that cannot say whether it is paused. So the same call repairs what a failed one has
        left. Raises SyncError with the engines that failed; the others continue.
        """
        folder = _folder(path)
        _checked(version)

        def one(engine: UpdatingEngine) -> EngineUpdate:
            serving = engine.inspect()
            if serving.paused is not False or not serving.holds(version, folder):
                self._pause_one(engine, serving)
                engine.load(folder, version, self._update_timeout_s)
            return self._finish_update(engine, version, folder, agreement)

        engines, away = self._engines(report)
        agreement = _Agreement(engines)
        return _outcome(version, *_parallel(engines, one, agreement.leave), away)

    def load_adapter(
        self, name: str, path: str | Path, version: str, report: Report | None = None
    ) -> list[EngineUpdate]:
        """Loads the LoRA adapter in the folder `path`, as the engines see it, as this version of
        the adapter `name`.

        Nothing is paused, and other versions stay: turns that run end under the one that they began
        with. An engine that has it is left alone, so the same call repairs what failed. Raises
        SyncError with the engines that lack it.
        """
        served = served_adapter(_checked_adapter(name), _checked(version))
        folder = _folder(path)

        def one(engine: UpdatingEngine) -> EngineUpdate:
            engine.describe()
            loaded = served not in engine.adapters()
            if loaded:
                try:
                    engine.load_adapter(served, folder, self._update_timeout_s)
                except ControlFailure:
                    # Another call may have been quicker, or a turn that needed it.
                    if served not in engine.adapters():
                        raise
            engine.begin("verify")
            loaded_from = engine.adapters().get(served)
            if loaded_from != folder:
                raise ControlFailure(
                    f"it has {served} from {loaded_from}: give each version a name that no other "
                    "one had"
                )
            engine.begin("done")
            return EngineUpdate(
                url=engine.url, server=engine.server, loaded=loaded, paused_s=0.0, checksum=None
            )

        engines, away = self._engines(report)
        return _outcome(served, *_parallel(engines, one), away)

    def unload_adapter(self, name: str, keep: Collection[str]) -> dict[str, str]:
        """Unloads the versions of the adapter that are not to `keep`, once no request uses them.
        Returns the reason of each engine that failed: there they take memory until the next call.
        Raises SettingsError.
        """
        if isinstance(keep, str):
            raise SettingsError(f"versions are kept by a list, also a single one: keep=[{keep!r}]")
        _checked_adapter(name)
        kept = {served_adapter(name, version) for version in keep}

        def one(engine: UpdatingEngine) -> None:
            for served in engine.adapters():
                if served.startswith(served_adapter(name, "")) and served not in kept:
                    engine.unload_adapter(served, self._update_timeout_s)

        engines, away = self._engines(None)
        _, failed = _parallel(engines, one)
        return away | {engine.url: reason for engine, reason in failed.items()}

    @contextmanager
    def paused(self, version: str, report: Report | None = None) -> Iterator[None]:
        """Pauses all engines for weights that the trainer sends itself (NCCL, tensors, IPC).
        Afterwards the engines are named `version`, verified and continued. SGLang 0.5.20 and newer
        take such weights between `/begin_weight_update` and `/end_weight_update`, which are the
        trainer's to call.

        When an engine cannot be paused, those that were generating continue with their old weights,
        and SyncError names those that stay paused. When the block raises, all engines stay paused,
        because their weights may be half written: repeat the transfer, or call `update` with a
        checkpoint.
        """
        _checked(version)
        engines = self._pause_all(version, report)
        try:
            yield
        except BaseException as e:
            names = ", ".join(engine.url for engine in engines)
            e.add_note(
                "rollq: these engines stay paused, because their weights may be "
                f"half written: {names}"
            )
            raise
        agreement = _Agreement(engines)

        def one(engine: UpdatingEngine) -> EngineUpdate:
            engine.name_version(version)
            return self._finish_update(engine, version, engine.serving().path, agreement)

        _outcome(version, *_parallel(engines, one, agreement.leave), {})

    def versions(self) -> dict[str, str | None]:
        """The weight version of each engine by its URL. None for one that is not an engine, or does
        not answer within 5 s. An engine that was started in the middle of an update shows itself
        here by its old version.
        """
        engines, away = self._engines(None, VERSIONS_TIMEOUT_S)
        served, _ = _parallel(engines, lambda engine: engine.serving(VERSIONS_TIMEOUT_S).version)
        return {**dict.fromkeys(away), **{engine.url: served.get(engine) for engine in engines}}

    def _engines(
        self, report: Report | None, timeout_s: float = CONTROL_TIMEOUT_S
    ) -> tuple[list[UpdatingEngine], dict[str, str]]:
        """The engines, and the reason for each address that has none."""
        engines_by_url, away = _parallel(
            self._urls, lambda url: engines_at(url, self._key, report, timeout_s)
        )
        engines = [engine for url in self._urls for engine in engines_by_url.get(url, ())]
        return engines, {mask_url(url): reason for url, reason in away.items()}

    def _pause_all(self, version: str, report: Report | None) -> list[UpdatingEngine]:
        """All engines, paused. Raises SyncError."""
        engines, away = self._engines(report)
        generated: list[UpdatingEngine] = []
        staying: dict[UpdatingEngine, str] = {}

        def pause(engine: UpdatingEngine) -> None:
            serving = engine.inspect()
            self._pause_one(engine, serving)
            if serving.paused is False:
                generated.append(engine)
            elif serving.paused:
                staying[engine] = "it was paused before, so it stays paused"
            else:
                staying[engine] = "it cannot say whether it was paused before, so it stays paused"

        _, failed = _parallel(engines, pause)
        if away or failed:
            _, stuck = _parallel(generated, UpdatingEngine.resume)
            raise _sync_error(
                "are not ready for",
                version,
                failed | stuck | staying,
                away,
                len(generated) - len(stuck),
            )
        return engines

    def _pause_one(self, engine: UpdatingEngine, serving: Serving) -> None:
        """An engine compiles what its first checksum needs, which takes seconds: before the pause,
        not in it.
        """
        if self._checksums and engine.url not in self._compiled:
            engine.checksum(self._update_timeout_s)
            self._compiled.add(engine.url)
        engine.pause(self._pause, serving)

    def _finish_update(
        self, engine: UpdatingEngine, version: str, path: str | None, agreement: "_Agreement"
    ) -> EngineUpdate:
        """The end of an update on one engine: see that it serves what it should, and let it
        generate.
        """
        engine.begin("verify")
        served = engine.serving()
        if not served.holds(version, path):
            raise ControlFailure(f"it serves version {served.version!r} from {served.path}")
        checksum = engine.checksum(self._update_timeout_s) if self._checksums else None
        if not agreement.reached(engine, checksum):
            if engine.paused_at is None:
                engine.pause(self._pause, served)
            raise ControlFailure(
                f"its weights have checksum {checksum}, and those of other engines another one"
            )
        loaded = engine.paused_at is not None
        paused_s = 0.0
        if loaded:
            engine.flush()
            paused_s = engine.resume()
        engine.begin("done")
        return EngineUpdate(
            url=engine.url,
            server=engine.server,
            loaded=loaded,
            paused_s=paused_s,
            checksum=checksum,
        )


class _Agreement:
    """Checksums of the engines of one update. The first that two engines of a shape report is that
    of the shape.
    """

    def __init__(self, engines: Iterable[UpdatingEngine]) -> None:
        self._awaited = {*engines}
        self._reported: dict[tuple[str, ...], list[str]] = {}
        self._agreed: dict[tuple[str, ...], str] = {}
        self._changed = threading.Condition()

    def reached(self, engine: UpdatingEngine, checksum: str | None) -> bool:
        """True if this engine agrees with another one, or is the only one of its shape. Waits until
        that is known. An engine without a checksum agrees.
        """
        shape = engine.shape
        with self._changed:
            reported = self._reported.setdefault(shape, [])
            if checksum is not None:
                if checksum in reported:
                    self._agreed.setdefault(shape, checksum)
                reported.append(checksum)
            self.leave(engine)
            self._changed.wait_for(
                lambda: checksum is None or shape in self._agreed or not self._awaited
            )
            return checksum is None or self._agreed.get(shape) == checksum or len(reported) == 1

    def leave(self, engine: UpdatingEngine) -> None:
        """Ends the wait for this engine."""
        with self._changed:
            self._awaited.discard(engine)
            self._changed.notify_all()


def _parallel(
    items: Sequence[T], act: Callable[[T], R], done: Callable[[T], None] = lambda item: None
) -> tuple[dict[T, R], dict[T, str]]:
    """`act` on every item, each in a thread: the results, and the reasons of those that failed."""
    results: dict[T, R] = {}
    reasons: dict[T, str] = {}

    def run(item: T) -> None:
        try:
            results[item] = act(item)
        except ControlFailure as e:
            reasons[item] = str(e)
        except Exception as e:  # else the update would wait for this engine, or pass without it
            reasons[item] = f"{type(e).__name__}: {e}"
        finally:
            done(item)

    threads = [threading.Thread(target=run, args=(item,), daemon=True) for item in items]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {item: results[item] for item in items if item in results}, reasons


def _outcome(
    version: str,
    updated: Mapping[UpdatingEngine, EngineUpdate],
    failed: Mapping[UpdatingEngine, str],
    away: Mapping[str, str],
) -> list[EngineUpdate]:
    """The updates, if all engines were updated. Raises SyncError."""
    if not failed and not away:
        return list(updated.values())
    error = _sync_error("do not serve", version, failed, away, len(updated))
    error.updated = tuple(updated.values())
    raise error


def _sync_error(
    lack: str,
    version: str,
    failed: Mapping[UpdatingEngine, str],
    away: Mapping[str, str],
    rest: int,
) -> SyncError:
    reasons = {
        **away,
        **{engine.url: f"{engine.step}: {reason}" for engine, reason in failed.items()},
    }
    error = SyncError(
        f"{len(reasons)} of {len(reasons) + rest} engines {lack} version {version!r}: "
        + "; ".join(f"{url} ({reason})" for url, reason in reasons.items())
        + ". Correct the cause and repeat the update: it loads what is missing. An engine that "
        "stays paused goes on then, or after an update to the weights that it had"
    )
    error.failed = reasons
    return error


def _addresses(urls: Sequence[str]) -> list[str]:
    if isinstance(urls, str):
        raise SettingsError(
            f"a fleet takes a list of addresses, also of one: Fleet([{mask_url(urls)!r}])"
        )
    for url in urls:
        check_engine_url(url)
    addresses = [url.rstrip("/") for url in urls]
    if not addresses:
        raise SettingsError("no engine is named or listed: a fleet has at least one")
    for url in addresses:
        if addresses.count(url) > 1:
            raise SettingsError(
                f"{mask_url(url)} is there twice: a fleet needs each of its engines once"
            )
    return addresses


def _checked(version: str) -> str:
    if not isinstance(version, str) or not version:
        raise SettingsError(f"a weight version is a name such as '41', not {version!r}")
    return version


def _folder(path: str | Path) -> str:
    if not isinstance(path, str | Path):
        raise SettingsError(f"path is a folder of weights, not {path!r:.80}")
    if folder := str(path).rstrip("/"):
        return folder
    raise SettingsError("path is empty: name the folder of the weights, as the engines see it")


def _checked_adapter(name: str) -> str:
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise SettingsError(f"the name of an adapter must match {NAME.pattern}, not {name!r}")
    return name


def _read_key(file: Path) -> str:
    try:
        key = file.read_text().strip()
    except (OSError, UnicodeDecodeError) as e:
        raise SettingsError(f"{file}: cannot read the API key: {type(e).__name__}") from None
    if not key or not key.isascii() or not key.isprintable():
        raise SettingsError(f"{file} holds no API key: expected one line of printable ASCII")
    return key
