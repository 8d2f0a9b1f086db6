"""How bench_peers.py speaks with a peer's process: a line with the indices of tasks goes in, a line
with the rewards comes out.
"""

import json
import sys


def serve(play):
    """Plays what standard input asks for. `play` takes indices and returns rewards."""
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(play(json.loads(line))), flush=True)


def setting():
    """Addresses and numbers, from the file that the command line names."""
    with open(sys.argv[1]) as file:
        return json.load(file)
