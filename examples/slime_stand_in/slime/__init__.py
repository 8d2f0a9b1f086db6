"""A stand-in for slime, which needs GPUs: docs/slime.md says what it has."""
