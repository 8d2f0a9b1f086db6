"""An environment of verifiers 0.3 with tools and a state, without arguments."""

import classic_env


def load_environment():
    return classic_env.load_environment("stateful")
