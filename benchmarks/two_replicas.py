"""Do two replicas lose against one engine on the same cores? Tokens a second over HTTP, each with half of the threads.

Usage: python -m benchmarks.two_replicas [--at-once 16] [--rounds 5] [--tokens 128] [--prompts FILE] [--json OUT]
       [serve's options]
"""

from benchmarks.two_servers import compare

ARMS: dict[str, tuple[str, ...]] = {"one engine": (), "two replicas": ("--replicas", "2")}

if __name__ == "__main__":
    compare(__doc__.splitlines()[0], ARMS, at_once="16")
