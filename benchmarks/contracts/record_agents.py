"""Records what coding agents send: the first turn, and the one after a file was read.

Usage: python -m benchmarks.contracts.record_agents FOLDER [--claude PROGRAM] [--codex PROGRAM] ...

Each program runs once, without a user, in an empty repository with one file, against `scripted_server.py`; its
requests go to FOLDER/NAME.json. They hold texts of the programs' makers and are not kept in the tree. Names of this
machine are replaced. Tried with Claude Code 2.1.197, Codex 0.171.0, Continue's cn 1.5.47 and aider 0.86.2.
"""

import argparse
import json
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.contracts.scripted_server import Recording, Script, serve
from prolepsis.server.answering import usage

MODEL = "recorded-model"
FILE = "figures.py"
SOURCE = Path(usage.__file__)
"""A file of some 180 lines, which the agents are asked to edit."""
ASKED = f"In {FILE}, rename the function _speculative_decoding to _drafts everywhere, and change nothing else."
WAIT_S = 180
CONTINUE = """name: local
version: 1.0.0
schema: v1
models:
  - {{name: {model}, provider: openai, model: {model}, apiBase: "{url}/v1", apiKey: none, capabilities: [tool_use]}}
"""


@dataclass(frozen=True, slots=True)
class Agent:
    """A program, how it is run on a server at a URL, and what the scripted model says to it."""

    command: Callable[[str, str], Sequence[str]]
    environment: Callable[[str], Mapping[str, str]]
    script: Callable[[Path], Script]
    settings: Callable[[str], Mapping[str, str]] = lambda url: {}
    """Files of its own beside the one to edit, by name."""


def _codex(program: str, url: str) -> Sequence[str]:
    provider = f'{{name="local",base_url="{url}/v1",wire_api="responses",env_key="CONTRACT_KEY"}}'
    settings = (f"model_providers.local={provider}", 'model_provider="local"', f'model="{MODEL}"')
    overrides = [part for one in settings for part in ("-c", one)]
    return [program, "exec", "--skip-git-repo-check", "-s", "danger-full-access", *overrides, ASKED]


AGENTS: Mapping[str, Agent] = {
    "claude": Agent(
        lambda program, url: [program, "-p", ASKED, "--model", MODEL, "--allowedTools", "Read"],
        lambda url: {
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_API_KEY": "none",
            "ANTHROPIC_SMALL_FAST_MODEL": MODEL,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        },
        lambda folder: Script(("Read", {"file_path": str(folder / FILE)}), "I have read it."),
    ),
    "continue": Agent(
        lambda program, url: [program, "-p", ASKED, "--config", "continue.yaml", "--auto"],
        lambda url: {"CONTINUE_TELEMETRY_ENABLED": "0"},
        lambda folder: Script(("Read", {"filepath": str(folder / FILE)}), "I have read it."),
        lambda url: {"continue.yaml": CONTINUE.format(model=MODEL, url=url)},
    ),
    "codex": Agent(
        _codex,
        lambda url: {"CONTRACT_KEY": "none"},
        lambda folder: Script(("exec_command", {"cmd": f"cat {FILE}"}), "I have read it."),
    ),
    "aider": Agent(
        lambda program, url: [
            program, "--model", f"openai/{MODEL}", "--yes-always", "--no-check-update", "--analytics-disable",
            "--no-show-model-warnings", "--no-show-release-notes", "--edit-format", "diff", "--message", ASKED, FILE,
        ],
        lambda url: {"OPENAI_API_BASE": f"{url}/v1", "OPENAI_API_KEY": "none"},
        lambda folder: Script(None, "I have read it."),
    ),
}  # fmt: skip

PROGRAMS = {"continue": "cn"}


def record(agent: Agent, program: str) -> list[object]:
    """Run a program once and return what it sent, without names of this machine."""
    with tempfile.TemporaryDirectory() as home, tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / FILE).write_text(SOURCE.read_text())
        subprocess.run(["git", "init", "-q", str(folder)], check=True)  # noqa: S603, S607 - the folder is ours
        recording = Recording(agent.script(folder))
        server = serve(recording)
        url = f"http://127.0.0.1:{server.server_address[1]}"
        for name, text in agent.settings(url).items():
            (folder / name).write_text(text)
        environment = {"PATH": os.environ["PATH"], "HOME": home, "TERM": "dumb", **agent.environment(url)}
        ended = subprocess.run(  # noqa: S603 - the program that the caller names
            agent.command(program, url), cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True,
            text=True, timeout=WAIT_S, check=False,
        )  # fmt: skip
        server.shutdown()
    if not recording.requests:
        raise SystemExit(f"{program} sent nothing: {(ended.stderr or ended.stdout)[-600:]}")
    text = json.dumps(recording.requests)
    for name, value in (
        (place, "/home/user/project"),
        (home, "/home/user"),
        (platform.node(), "host"),
        (platform.release(), "6.1"),
    ):
        text = text.replace(name, value)
    return list(json.loads(text))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    for name in AGENTS:
        parser.add_argument(f"--{name}", default=PROGRAMS.get(name, name), help="default: the one of PATH, if any")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    for name, agent in AGENTS.items():
        program = shutil.which(getattr(args, name))
        if not program:
            print(f"{name}: not installed")
            continue
        requests = record(agent, program)
        (args.folder / f"{name}.json").write_text(json.dumps(requests, indent=1))
        print(f"{name}: {len(requests)} requests")


if __name__ == "__main__":
    main()
