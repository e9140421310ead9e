"""Prompts made to make drafting useless: random words that no answer has a reason to repeat.

Usage: python -m benchmarks.useless_prompts [--number 16] [--seed 0] > FILE
       prolepsis bench --prompts FILE --temperature 1.5 --arms plain,auto

What `auto` loses against `plain` on them is what speculation costs where it cannot pay.
"""

import argparse
import json
import random
import string


def main() -> None:
    """Print the prompts as JSON lines."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--number", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    for i in range(arguments.number):
        prompt = {"id": f"useless-{i}", "category": "useless", "prompt": useless_text(chance)}
        print(json.dumps(prompt))


def useless_text(chance: random.Random) -> str:
    """Return 40 to 80 words of 2 to 9 random letters."""
    return " ".join(
        "".join(chance.choices(string.ascii_lowercase, k=chance.randint(2, 9))) for _ in range(chance.randint(40, 80))
    )


if __name__ == "__main__":
    main()
