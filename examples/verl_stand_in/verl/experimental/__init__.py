"""A stand-in for verl, which needs GPUs: docs/verl.md says what it has."""
