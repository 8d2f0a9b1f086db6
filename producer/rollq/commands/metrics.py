"""`rollq metrics`: serves the metrics of runs and of the fleet to Prometheus."""

import argparse
import signal
import threading

from rollq.commands.connect import ping_redis, settings
from rollq.commands.flags.parser import Commands
from rollq.commands.flags.shared import add_redis
from rollq.commands.flags.types import listen_address
from rollq.pip_extras import needs
from rollq.servers.connection import connect

PORT = "9464"


def add(commands: Commands) -> None:
    parser = commands.add_parser(
        "metrics",
        description="Serves metrics to Prometheus until it is stopped: jobs, groups and how long "
        "they wait, failures, staleness, where the time goes. Of runs it shows those with work, "
        "then the newest, 20 at most. One process serves a whole fleet; each worker serves its own "
        "with `rollq worker --metrics`. docs/metrics.md has a dashboard and alerts.",
    )
    parser.add_argument(
        "--port",
        type=listen_address,
        default=PORT,
        metavar="[HOST:]PORT",
        help="where to listen, at 127.0.0.1 unless told otherwise; port 0: a free one. Who reaches "
        "it can read names of runs and their numbers (%(default)s)",
    )
    add_redis(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    with needs("metrics"):
        from rollq.metrics.exposition import Exposition
        from rollq.metrics.of_runs import RunMetrics
    url = settings(args).redis_url
    ping_redis(url)
    # A call may take 5 s; Prometheus waits for 10 s at most, and asks again soon.
    connection = connect(url, patience_s=0)
    exposition = Exposition()
    exposition.read = RunMetrics(connection).read
    address = exposition.serve(*args.port)
    print(f"rollq metrics: {address}  Ctrl-C stops it", flush=True)
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: stopped.set())
    stopped.wait()
    return 128 + signal.SIGTERM
