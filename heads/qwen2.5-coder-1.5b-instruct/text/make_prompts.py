"""Writes the prompts whose answers are the head's text: questions, code to write, edits, explanations.

Usage: python make_prompts.py --wheels FOLDER --npm FOLDER --asked FILE.jsonl.gz --out prompts.jsonl

The folders hold wheels of Python packages (`pip download --no-deps`) and archives of JavaScript packages (`npm pack`),
the file has lines with `prompt` and `source` of people's questions. Code is taken from packages and from the standard
library. Packages that prompts for measuring come from must not be among them. `prolepsis train head --prompts` answers
the prompts in their order.
"""

import argparse
import ast
import gzip
import json
import random
import re
import sysconfig
import tarfile
import textwrap
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

SHARES = {"code": 30, "write": 25, "edit": 15, "explain": 10, "math": 4, "chat": 11, "tools": 5}
"""Prompts of each kind in a hundred."""
EDIT_SHARES = {"edit-whole": 60, "edit-blocks": 20, "edit-diff": 10, "edit-json": 10}
SOURCES = {
    "gpteacher-code": "code",
    "gsm8k": "math",
    "t0": "chat",
    "gpteacher-roleplay": "chat",
    "gpteacher-tools": "tools",
}
SYSTEMS = (
    "You are a helpful coding assistant.",
    "You are an expert programmer. Answer briefly.",
    "You are a senior software engineer.",
    "Answer in plain words.",
    "Act as an expert software developer. Always use best practices when coding.",
)
LANGUAGES = (
    "JavaScript",
    "TypeScript",
    "Go",
    "Rust",
    "Java",
    "C",
    "C++",
    "C#",
    "Kotlin",
    "Swift",
    "PHP",
    "Ruby",
    "Bash",
)
EDITS = (
    "Add type hints.",
    "Add a docstring and comments.",
    "Add error handling with clear messages.",
    "Add logging to the important steps.",
    "Make this async.",
    "Add a parameter `verbose: bool = False` that prints what is done.",
    "Rewrite it without early returns.",
    "Simplify this code.",
    "Add a timeout parameter.",
    "Validate the arguments.",
    "Turn it into a method of a class.",
    "Fix any bugs in it.",
    "Make it faster.",
    "Use f-strings and modern Python.",
)
NEW_NAMES = ("value", "entry", "items", "target", "source_data", "config", "node")
BLOCKS = "```\n<<<<<<< SEARCH\nlines to find\n=======\nlines to put there\n>>>>>>> REPLACE\n```"
LONGEST = 3600
"""Characters of a prompt."""
LONGEST_QUESTION = 1200
MOST_OF_A_PACKAGE = 110

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Function:
    package: str
    file: str
    name: str
    signature: str
    purpose: str
    """First paragraph of its docstring, or empty."""
    text: str


@dataclass(frozen=True, slots=True)
class Class:
    package: str
    name: str
    purpose: str
    methods: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Excerpt:
    package: str
    file: str
    text: str
    language: str


def python_files(wheels: Path, chance: random.Random) -> Iterator[tuple[str, str, str]]:
    """Yield package, file and source: of the standard library, and of up to 60 files of each wheel."""
    library = Path(sysconfig.get_paths()["stdlib"])
    left_out = {"test", "tests", "site-packages", "dist-packages", "idlelib"}
    for file in sorted(library.rglob("*.py")):
        if not left_out & set(file.parts):
            yield "stdlib", file.name, file.read_text(errors="ignore")
    for wheel in sorted(wheels.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            names = [
                name for name in archive.namelist() if name.endswith(".py") and not re.search("test|_vendor", name)
            ]
            for name in chance.sample(names, min(60, len(names))):
                yield wheel.name.split("-")[0], name.split("/")[-1], archive.read(name).decode(errors="ignore")


def script_excerpts(archives: Path, chance: random.Random) -> Iterator[Excerpt]:
    """Yield excerpts of up to 25 files of each JavaScript package."""
    for file in sorted(archives.glob("*.tgz")):
        with tarfile.open(file) as archive:
            found = [m for m in archive.getmembers() if re.search(r"\.(js|ts|mjs)$", m.name) and m.size < 60_000]
            found = [m for m in found if ".min." not in m.name and "test" not in m.name]
            for member in chance.sample(found, min(25, len(found))):
                data = archive.extractfile(member)
                lines = data.read().decode(errors="ignore").splitlines() if data else []
                if len(lines) > 15 and max(map(len, lines)) < 300:
                    language = "typescript" if member.name.endswith("ts") else "javascript"
                    for _ in range(3):
                        text = excerpt(lines, 10, 35, chance)
                        yield Excerpt(file.name, member.name.split("/")[-1], text, language)


def excerpt(lines: list[str], fewest: int, most: int, chance: random.Random) -> str:
    start = chance.randrange(max(1, len(lines) - fewest))
    return "\n".join(lines[start : start + chance.randrange(fewest, most)])


def parts_of(package: str, file: str, source: str) -> Iterator[Function | Class]:
    """Yield the functions of 5 to 45 lines and the small documented classes of a file."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return
    lines = source.splitlines()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            last = node.end_lineno or node.lineno
            text = textwrap.dedent("\n".join(lines[first - 1 : last]))
            if 5 <= last - node.lineno + 1 <= 45 and len(text) < 2200 and not node.name.startswith("test"):
                head = textwrap.dedent("\n".join(lines[node.lineno - 1 : node.body[0].lineno - 1]))
                purpose = (ast.get_docstring(node) or "").split("\n\n")[0][:400]
                yield Function(package, file, node.name, head or text.splitlines()[0], purpose, text)
        elif isinstance(node, ast.ClassDef) and (about := ast.get_docstring(node)):
            methods = [one.name for one in node.body if isinstance(one, ast.FunctionDef) and one.name[:2] != "__"]
            if 2 <= len(methods) <= 8:
                yield Class(package, node.name, about.split("\n\n")[0][:300], tuple(methods))


def few_of_each(found: list[T], most: int, chance: random.Random) -> Iterator[T]:
    """Return `found` in a random order, with at most `most` of a package."""
    counts: dict[str, int] = defaultdict(int)
    kept: list[T] = []
    for one in chance.sample(found, len(found)):
        package = str(getattr(one, "package"))  # noqa: B009  all kinds have one
        counts[package] += 1
        if counts[package] <= most:
            kept.append(one)
    return iter(kept)


def fenced(text: str, language: str = "python") -> str:
    return f"```{language}\n{text}\n```"


def words(name: str) -> str:
    return " ".join(re.findall("[A-Z]?[a-z0-9]+|[A-Z]+", name)).lower()


class Prompts:
    """Makes prompts of each kind, each from other code."""

    def __init__(self, wheels: Path, npm: Path, asked: Path, chance: random.Random) -> None:
        self._chance = chance
        parts: list[Function | Class] = []
        excerpts: list[Excerpt] = []
        for package, file, source in python_files(wheels, chance):
            parts += parts_of(package, file, source)
            lines = source.splitlines()
            if len(lines) > 40:
                excerpts.append(Excerpt(package, file, excerpt(lines, 12, 30, chance), "python"))
        functions = [one for one in parts if isinstance(one, Function)]
        self._functions = few_of_each(functions, MOST_OF_A_PACKAGE, chance)
        self._classes = few_of_each([one for one in parts if isinstance(one, Class)], 30, chance)
        self._excerpts = few_of_each(excerpts, 30, chance)
        self._scripts = few_of_each(list(script_excerpts(npm, chance)), 25, chance)
        self._asked: dict[str, list[str]] = defaultdict(list)
        with gzip.open(asked, "rt", encoding="utf-8") as lines_of_file:
            for given in map(json.loads, lines_of_file):
                kind = next((kind for source, kind in SOURCES.items() if given["source"].startswith(source)), None)
                if kind and len(given["prompt"]) < LONGEST_QUESTION:
                    self._asked[kind].append(given["prompt"])
        for prompts in self._asked.values():
            chance.shuffle(prompts)

    def make(self, kind: str) -> tuple[str, str]:
        """Return the kind and a new prompt; raises `StopIteration` or `IndexError` where nothing is left."""
        makers: dict[str, Callable[[], tuple[str, str]]] = {
            "write": lambda: ("write", self._write()),
            "edit": self._edit,
            "explain": lambda: ("explain", self._explain()),
        }
        return makers[kind]() if kind in makers else (kind, self._asked[kind].pop())

    def _write(self) -> str:
        choose, draw = self._chance.choice, self._chance.random()
        if draw < 0.75:
            one = next(function for function in self._functions if function.purpose)
            stub = f'{one.signature}\n    """{one.purpose}"""'
            return choose(
                (
                    f"Complete this Python function:\n\n{fenced(stub)}",
                    f"Write a Python function `{one.name}`. {one.purpose}",
                    stub + "\n",
                    f"Implement the following in {choose(LANGUAGES)}: {one.purpose}",
                    f"Write a function that does this, with type hints and a docstring: {one.purpose}",
                    f'How would I write code for "{one.purpose}"? Show an example with usage.',
                    f"Write a command line tool in Python using argparse. {one.purpose}",
                    f"{choose(LANGUAGES)}: {one.purpose}",
                    f"Write pytest tests for this function:\n\n{one.signature}\n\n{one.purpose}",
                )
            )
        kind = next(self._classes)
        methods, subject = ", ".join(kind.methods), words(kind.name)
        if draw < 0.95:
            language = choose(("Python",) * 5 + LANGUAGES)
            return choose(
                (
                    f"Write a {language} class {kind.name}: {kind.purpose} It has the methods {methods}.",
                    f"Design a class `{kind.name}` with {methods}. {kind.purpose}",
                    f"Implement a minimal `{kind.name}` in Python and show how it is used. {kind.purpose}",
                )
            )
        return choose(
            (
                f"Write a SQL schema and three queries for an application about {subject} with {words(methods)}.",
                f"Write an HTML page with CSS for {subject}: {kind.purpose}",
                f"Write a bash script that helps with {subject}. {kind.purpose}",
                f"Write a Dockerfile and docker-compose.yml for a service named {kind.name.lower()}.",
                f"Write a regular expression and a function for {subject} in {choose(LANGUAGES)}. {kind.purpose}",
            )
        )

    def _edit(self) -> tuple[str, str]:
        choose = self._chance.choice
        one = next(function for function in self._functions if function.text.count("\n") >= 7)
        names = [word for word in set(re.findall(r"\b[a-z_]{5,}\b", one.text)) if one.text.count(word) > 2]
        todo = choose(
            (
                *EDITS,
                f"Rename `{choose(sorted(names) or [one.name])}` to `{choose(NEW_NAMES)}`.",
                f"Rename the function `{one.name}` to `new_{one.name.strip('_')}`.",
            )
        )
        kind = self._chance.choices(list(EDIT_SHARES), list(EDIT_SHARES.values()))[0]
        code = fenced(one.text)
        whole = (
            f"{todo}\n\n{code}\n\nReturn the whole code.",
            f"{code}\n\n{todo} Reply with the complete updated function only.",
            f"Here is `{one.file}`:\n\n{code}\n\n{todo} Return the whole file, changed.",
        )
        rest = {
            "edit-whole": choose(whole),
            "edit-blocks": f"Reply with search/replace blocks only, in this form:\n\n{one.file}\n{BLOCKS}",
            "edit-diff": "Reply with a unified diff only.",
            "edit-json": 'Reply with a JSON object only: {"path": ..., "old_string": ..., "new_string": ...}',
        }[kind]
        return kind, rest if kind == "edit-whole" else f"{one.file}\n{code}\n\n{todo}\n\n{rest}"

    def _explain(self) -> str:
        choose = self._chance.choice
        one = next(self._scripts) if self._chance.random() < 0.35 else next(self._excerpts)
        code, other = fenced(one.text, one.language), choose(("Python", *LANGUAGES))
        return choose(
            (
                f"Explain this code:\n\n{code}",
                f"What does this code do?\n\n{code}",
                f"Continue this file:\n\n{code}",
                f"Review this code and suggest improvements:\n\n{code}",
                f"Translate this to {other}:\n\n{code}",
                f"Write tests for this:\n\n{code}",
                f"Are there bugs here?\n\n{code}",
                one.text,
            )
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheels", type=Path, required=True)
    parser.add_argument("--npm", type=Path, required=True)
    parser.add_argument("--asked", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--number", type=int, default=9000)
    parser.add_argument("--seed", type=int, default=45)
    given = parser.parse_args()
    chance = random.Random(given.seed)
    prompts, seen = Prompts(given.wheels, given.npm, given.asked, chance), set[str]()
    with given.out.open("w", encoding="utf-8") as out:
        for _ in range(given.number):
            try:
                kind, prompt = prompts.make(chance.choices(list(SHARES), list(SHARES.values()))[0])
            except (StopIteration, IndexError):
                continue
            if prompt in seen or len(prompt) > LONGEST:
                continue
            seen.add(prompt)
            system = chance.choice(SYSTEMS) if chance.random() < 0.15 else None  # None: the template's own
            out.write(json.dumps({"prompt": prompt, "kind": kind, "system": system}) + "\n")


if __name__ == "__main__":
    main()
