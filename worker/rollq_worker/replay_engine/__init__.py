"""The replay engine: SGLang's HTTP API without a GPU, playing the ground truth of rollq's
environments.

For trying rollq, benchmarks and tests. `tests/contract` holds it and the real
server to the same assertions.
"""
