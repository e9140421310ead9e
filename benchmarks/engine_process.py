"""What does an engine in a process of its own bring over HTTP? Tokens a second, against the engine in the server's.

Usage: python -m benchmarks.engine_process [--at-once 1,16] [--rounds 5] [--tokens 128] [--prompts FILE]
       [--json OUT] [serve's options]
"""

from benchmarks.two_servers import compare

ARMS = {"in the server": ("--engine-process", "off"), "own process": ("--engine-process", "on")}

if __name__ == "__main__":
    compare(__doc__.splitlines()[0], ARMS, at_once="1,16")
