"""Do gaps in files get the text that was there, and the same text as from llama.cpp?

Usage: python -m benchmarks.fill_holes --url http://localhost:8000 --peer http://localhost:8080 --json out.json

Both servers have the same GGUF file: `prolepsis serve --model FILE` and `llama-server -m FILE -c 4096`. The gaps have 1
to 5 whole lines, drawn by a seed from the files of Python's standard library; each comes with the lines before and
after it. Both are asked at `/infill`, greedily, with the first line behind the gap as stop string. A gap counts as
filled if the answer begins with its own lines, and two answers as equal if all of their text is; spaces at the ends of
lines do not count.
"""

import argparse
import json
import random
import sysconfig
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import httpx

from prolepsis.lab.bench.provenance import provenance

LONGEST = 5
"""Lines of a gap."""


@dataclass(frozen=True, slots=True)
class Hole:
    file: str
    line: int
    """Of its first line, from 0."""
    before: str
    text: str
    after: str


@dataclass(frozen=True, slots=True)
class Filled:
    hole: Hole
    ours: str
    theirs: str


def holes(number: int, seed: int, before: int, after: int) -> Iterator[Hole]:
    """Yield gaps in files, one a file; `before` and `after`: most lines around one."""
    rng = random.Random(seed)
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    for file in rng.sample(files, len(files)):
        lines = file.read_text(errors="replace").splitlines(keepends=True)
        length = rng.randint(1, LONGEST)
        if len(lines) < before + after + length:
            continue
        line = rng.randrange(before, len(lines) - after - length)
        gap = lines[line : line + length]
        if any(one.strip() == "" for one in gap):
            continue
        text, behind = "".join(gap), "".join(lines[line + length : line + length + after])
        yield Hole(file.name, line, "".join(lines[line - before : line]), text.removesuffix("\n"), f"\n{behind}")
        number -= 1
        if not number:
            return


def following(hole: Hole) -> str:
    """Return the first line behind a gap that says something."""
    return next(line for line in hole.after.split("\n") if line.strip())


def trimmed(text: str, hole: Hole) -> str:
    """Return as many lines of a text as the gap has, without spaces at their ends."""
    length = 1 + hole.text.count("\n")
    return "\n".join(line.rstrip() for line in text.split("\n")[:length])


def fill(hole: Hole, most: int, url: str) -> str:
    """Return the answer of a server."""
    asked = {"n_predict": most, "temperature": 0, "repeat_penalty": 1, "stop": [f"\n{following(hole)}\n"]}
    body = {"input_prefix": hole.before, "input_suffix": hole.after, **asked}
    reply = httpx.post(f"{url}/infill", json=body, timeout=1200).raise_for_status().json()
    return str(reply["content"])


def filled(hole: Hole, most: int, url: str, peer: str) -> Filled:
    return Filled(hole, fill(hole, most, url), fill(hole, most, peer))


def build(url: str) -> str:
    return str(httpx.get(f"{url}/props").json()["build_info"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://localhost:8000")
    parser.add_argument("--peer", default="http://localhost:8080", help="llama.cpp's server")
    parser.add_argument("--holes", type=int, default=50)
    parser.add_argument("--seed", type=int, default=46)
    parser.add_argument("--before", type=int, default=10, help="lines before a gap")
    parser.add_argument("--after", type=int, default=5, help="lines after a gap")
    parser.add_argument("--most", type=int, default=48, help="tokens of an answer")
    parser.add_argument("--at-once", type=int, default=1, help="gaps; llama-server needs as many slots of 4096 tokens")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    made = provenance({"holes": arguments.seed}, {"llama.cpp": build(arguments.peer)})
    found = list[Filled]()
    drawn = holes(arguments.holes, arguments.seed, arguments.before, arguments.after)
    both = partial(filled, most=arguments.most, url=arguments.url, peer=arguments.peer)
    with ThreadPoolExecutor(arguments.at_once) as pool:
        for one in pool.map(both, drawn):
            found.append(one)
            print(f"{len(found)} {one.hole.file}:{one.hole.line} {summary(found)}", flush=True)
            if arguments.json:  # after each one, as a run may be cut
                result = {"counts": summary(found), "holes": [asdict(one) for one in found], "provenance": made}
                arguments.json.write_text(json.dumps(result, indent=1, ensure_ascii=False))


def summary(found: list[Filled]) -> dict[str, int]:
    """Return how many gaps have their own text from each server, and how many have equal texts from both."""
    return {
        "holes": len(found),
        "ours": sum(trimmed(one.ours, one.hole) == trimmed(one.hole.text, one.hole) for one in found),
        "llama.cpp": sum(trimmed(one.theirs, one.hole) == trimmed(one.hole.text, one.hole) for one in found),
        "equal": sum(one.ours.rstrip() == one.theirs.rstrip() for one in found),
    }


if __name__ == "__main__":
    main()
