"""The pages over HTTP, on loopback: static files, and JSON that their script asks for.

It answers only requests that name a loopback host, so that no other site can reach it by a name of
its own. Nothing can be changed unless it was started with a token, and then only by a request of
its own page that carries the token.
"""

import asyncio
import hmac
import logging
import re
import signal
from collections.abc import Awaitable, Callable
from dataclasses import asdict, fields
from importlib.resources import files
from typing import Any

from aiohttp import web
from aiohttp.http import HttpProcessingError

from rollq.errors import ContractError, RollqError, SettingsError
from rollq_view import rows
from rollq_view.conversation import as_json
from rollq_view.place import Place
from rollq_view.rows import Query
from rollq_view.token_texts import Texts, with_texts

LOOPBACK = "127.0.0.1"
HOST = re.compile(r"(?:127\.0\.0\.1|localhost|\[::1\])(?::\d{1,5})?", re.ASCII)
"""The whole of a Host that a request may name."""
TOKEN = "X-Rollq-Token"
"""Header with the token of the session."""
SCRIPTS = ("text.js", "turns.js", "rollout.js", "tables.js", "run.js", "view.js")
"""Scripts in the order in which they are loaded."""
TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
logging.getLogger("aiohttp.server").addFilter(
    lambda record: not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))
)
# Requests that are no HTTP are answered and not logged: anybody can send them.
MOST_ROWS = 500
"""Most rows of one answer."""
SHUTDOWN_S = 0.5


def asset(name: str) -> str:
    """A file of the page."""
    return files("rollq_view").joinpath("page", name).read_text(encoding="utf-8")


class ViewServer:
    """`run`: the run to open first, if any. `token`: what a requeue must carry. If it is empty,
    nothing can be changed. `texts`: of single tokens, where they are known.
    """

    def __init__(
        self, place: Place, *, run: str = "", token: str = "", texts: Texts | None = None
    ) -> None:
        self.place = place
        self.run = run
        self.token = token
        self.texts = texts

    def app(self) -> web.Application:
        app = web.Application(middlewares=[_guard, _errors], client_max_size=1 << 16)
        app.router.add_get("/", self.asset)
        app.router.add_get("/page/{name}", self.asset)
        for path, handler in (
            ("/api/start", self.start),
            ("/api/runs", self.runs),
            ("/api/run", self.summary),
            ("/api/rollouts", self.rollouts),
            ("/api/groups", self.groups),
            ("/api/rollout", self.rollout),
        ):
            app.router.add_get(path, handler)
        app.router.add_post("/api/requeue", self.requeue)
        return app

    async def asset(self, request: web.Request) -> web.Response:
        name = request.match_info.get("name", "index.html")
        if name not in ("index.html", "view.css", *SCRIPTS):
            raise web.HTTPNotFound
        return web.Response(
            text=asset(name), content_type=TYPES[name.rpartition(".")[2]], charset="utf-8"
        )

    async def start(self, request: web.Request) -> web.Response:
        """Facts that the page begins with."""
        place = self.place
        return _json(
            {"title": place.title, "live": place.live, "run": self.run, "actions": bool(self.token)}
        )

    async def runs(self, request: web.Request) -> web.Response:
        return _json({"runs": await asyncio.to_thread(self.place.runs)})

    async def summary(self, request: web.Request) -> web.Response:
        """Counts of the run, and those of the rows that are `listed`."""
        listing = await asyncio.to_thread(self.place.listing, request.query["run"])
        listed = await asyncio.to_thread(rows.summary, listing.rows.values())
        more = {"listed": listed, "version": listing.version, "share": listing.share}
        return _json({**listed, **listing.facts, **more})

    async def rollouts(self, request: web.Request) -> web.Response:
        """Some of the rows that a query chooses, and how many it chooses."""
        query = query_of(dict(request.query))
        listing = await asyncio.to_thread(self.place.listing, request.query["run"])
        chosen = await asyncio.to_thread(rows.select, listing.rows.values(), query)
        some = chosen[query.offset : query.offset + min(query.limit, MOST_ROWS)]
        shown = [asdict(row) | {"outcome": row.outcome} for row in some]
        trouble = {name: listing.facts.get(name) for name in ("trouble", "age_s")}
        return _json({"total": len(chosen), "rows": shown, **trouble})

    async def groups(self, request: web.Request) -> web.Response:
        """Groups that have a row that the query chooses, each with all its members."""
        query = query_of(dict(request.query))
        listing = await asyncio.to_thread(self.place.listing, request.query["run"])
        names = {row.group for row in rows.select(listing.rows.values(), query)}
        members = [row for row in listing.rows.values() if row.group in names]
        groups = await asyncio.to_thread(rows.groups, members, listing.groups)
        some = groups[query.offset : query.offset + min(query.limit, MOST_ROWS)]
        return _json({"total": len(groups), "groups": some})

    async def rollout(self, request: web.Request) -> web.Response:
        run, key = request.query["run"], request.query["key"]
        attempt = request.query.get("attempt")
        if attempt and not attempt.isdecimal():
            raise SettingsError(f"attempt must be a number, not {attempt!r}")
        number = int(attempt) if attempt else None
        page = await asyncio.to_thread(self.place.rollout, run, key, number)
        return _json(await asyncio.to_thread(with_texts, page, self.texts))

    async def requeue(self, request: web.Request) -> web.Response:
        """Plays a job again, only for a request of this page: other sites cannot set the header,
        and name another origin.
        """
        is_own = request.headers.get("Origin") == f"http://{request.host}"
        token = request.headers.get(TOKEN, "").encode()
        if not (self.token and is_own) or not hmac.compare_digest(token, self.token.encode()):
            remedy = "start `rollq view` with --allow-actions and open the address that it prints"
            return _json({"error": f"nothing was changed: {remedy}"}, status=403)
        body = await request.json()
        await asyncio.to_thread(self.place.requeue, str(body["run"]), str(body["job"]))
        return _json({"requeued": body["job"]})


def query_of(parameters: dict[str, str]) -> Query:
    """The query in an address. Raises SettingsError."""
    names = [field.name for field in fields(Query) if field.name in parameters]
    values: dict[str, Any] = {name: parameters[name] for name in names}
    try:
        for name in ("offset", "limit"):
            if name in values:
                values[name] = max(0, int(values[name]))
    except ValueError as e:
        raise SettingsError(f"offset and limit are numbers: {e}") from e
    values["descending"] = parameters.get("descending") == "1"
    return Query(**values)


def _json(value: Any, status: int = 200) -> web.Response:
    return web.Response(text=as_json(value), content_type="application/json", status=status)


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@web.middleware
async def _guard(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuses requests by another host's name, and sets the headers of every answer."""
    # An address in the request's line comes before the header.
    hosts = [*request.headers.getall("Host", []), request.host]
    response: web.StreamResponse
    if all(map(HOST.fullmatch, hosts)):
        response = await handler(request)
    else:
        response = web.Response(text="this page is served on loopback only\n", status=421)
    response.headers.update(HEADERS)
    return response


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Every foreseen error becomes one JSON object with the reason."""
    try:
        return await handler(request)
    except web.HTTPException as e:
        return _json({"error": e.reason}, status=e.status)
    except SettingsError as e:
        return _json({"error": str(e)}, status=404)
    except ContractError as e:
        return _json({"error": str(e)}, status=422)
    except RollqError as e:
        return _json({"error": str(e)}, status=503)
    except (KeyError, ValueError, TypeError, OverflowError, RecursionError) as e:
        return _json({"error": f"this request cannot be read: {type(e).__name__} {e}"}, status=400)


def serve(server: ViewServer, port: int, *, ready: Callable[[int], None]) -> None:
    """Serves until Ctrl-C or SIGTERM. `ready` gets the port once it is open. Raises SettingsError
    when it cannot be opened.
    """
    asyncio.run(_serve(server, port, ready))


async def _serve(server: ViewServer, port: int, ready: Callable[[int], None]) -> None:
    runner = web.AppRunner(server.app(), access_log=None, shutdown_timeout=SHUTDOWN_S)
    await runner.setup()
    site = web.TCPSite(runner, LOOPBACK, port)
    try:
        await site.start()
    except OSError as e:
        await runner.cleanup()
        reason = e.strerror or e
        raise SettingsError(
            f"cannot listen at port {port}: {reason}; choose another --port, or 0 for any"
        ) from e
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    ready(int(runner.addresses[0][1]))
    await ended.wait()
    await runner.cleanup()
