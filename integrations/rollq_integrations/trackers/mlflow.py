"""MLflow. MLFLOW_TRACKING_URI and its other variables are its own; the project is an experiment."""

import json
import os
import time

from rollq import StepMetrics
from rollq.pip_extras import needs

# It reports its own use, unless this is set before its import.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
with needs("mlflow"):
    from mlflow import MlflowClient
    from mlflow.entities import Metric

TAG = "rollq.run"


class MlflowTracker:
    """A run of its own, beside one that the trainer may have. It is found again by a tag, because
    MLflow makes the ids.
    """

    def __init__(self, project: str, rollouts: int, run: str) -> None:
        self.rollouts = rollouts
        self._client = MlflowClient()
        experiment = self._client.get_experiment_by_name(project)
        if experiment is None:
            experiment_id = self._client.create_experiment(project)
        else:
            experiment_id = experiment.experiment_id
        query = f"tags.`{TAG}` = '{run}'"
        runs = self._client.search_runs([experiment_id], query, max_results=1)
        if not runs:
            runs = [self._client.create_run(experiment_id, run_name=run, tags={TAG: run})]
        self._id = runs[0].info.run_id
        self._client.update_run(self._id, status="RUNNING")

    def log(self, metrics: StepMetrics) -> None:
        now = int(time.time() * 1000)
        values = [Metric(name, value, now, metrics.step) for name, value in metrics.numbers.items()]
        self._client.log_batch(self._id, values)
        if metrics.rollouts:
            text = json.dumps(metrics.rollouts, indent=1, ensure_ascii=False)
            self._client.log_text(self._id, text, f"rollouts/{metrics.step}.json")

    def close(self) -> None:
        self._client.set_terminated(self._id)
