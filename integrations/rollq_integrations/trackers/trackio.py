"""trackio, in its folder on this machine unless its own variables name another place: TRACKIO_DIR,
TRACKIO_SERVER_URL, TRACKIO_SPACE_ID.
"""

from rollq import StepMetrics
from rollq.pip_extras import needs

with needs("trackio"):
    import trackio


class TrackioTracker:
    """A run that is named after rollq's, and goes on under this name."""

    def __init__(self, project: str, rollouts: int, run: str) -> None:
        self.rollouts = rollouts
        self._run = trackio.init(
            project, name=run, resume="allow", embed=False, auto_log_cpu=False, auto_log_gpu=False
        )

    def log(self, metrics: StepMetrics) -> None:
        row = dict(metrics.numbers)
        if metrics.rollouts:
            columns = list(metrics.rollouts[0])
            row["rollq/rollouts"] = trackio.Table(
                columns, [list(rollout.values()) for rollout in metrics.rollouts]
            )
        self._run.log(row, metrics.step)

    def close(self) -> None:
        self._run.finish()
