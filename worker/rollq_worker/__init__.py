"""The worker: Celery app, agent loop, engine and environments."""
