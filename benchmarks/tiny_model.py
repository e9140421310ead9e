"""Writes a tiny random model with the tokenizer of a family: real vocabulary and chat template, a few small layers.

    python -m benchmarks.tiny_model VOCABULARY.gguf TEMPLATE.jinja OUT [--mark TEXT]... [--control TEXT]...

OUT is a GGUF file if it ends in .gguf, else a folder of transformers. Its text is noise that repeats.
"""

import argparse
from pathlib import Path

from prolepsis.engine.models.files.gguf_file import CONTROL, USER_DEFINED
from tests.engine.models.family import Family, write_family


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("vocabulary", type=Path, help="a GGUF file, with or without tensors")
    parser.add_argument("template", type=Path, help="a chat template")
    parser.add_argument("out", type=Path)
    parser.add_argument("--mark", action="append", default=[], help="a text that is one token, and seen in answers")
    parser.add_argument("--control", action="append", default=[], help="a text that is one token, hidden in answers")
    parser.add_argument("--hidden", type=int, default=64, help="width of the layers, a multiple of 32")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=7)
    given = parser.parse_args()
    added = dict.fromkeys(given.mark, USER_DEFINED) | dict.fromkeys(given.control, CONTROL)
    template = given.template.read_text(encoding="utf-8")
    write_family(given.out, Family(given.vocabulary, template, added, given.hidden, given.layers, given.seed))


if __name__ == "__main__":
    main()
