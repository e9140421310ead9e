"""Other engines, each variant in a process of its own, stopped while others run."""

import asyncio
import json
import os
import signal
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prolepsis.cli.bench.measure import Outcome, Turn
from prolepsis.cli.bench.prompts import EncodedPrompt
from prolepsis.cli.config import listed
from prolepsis.core.errors import ConfigError, EngineError

VARIANTS = {
    "transformers": ("plain", "lookup"),
    "vllm": ("plain", "ngram", "suffix"),
    "openvino": ("plain", "lookup"),
}
SEQUENTIAL = ("transformers",)
"""Peers without batching of requests that come and go: they are left out above concurrency 1."""
LOOP = Path(__file__).parent / "peer_scripts" / "loop.py"
LOAD_S = 1800.0
_LINE_LIMIT = 64 * 2**20


@dataclass(frozen=True, slots=True)
class PeerSpec:
    """One variant of one peer and what it is started from."""

    kind: str
    variant: str
    python: Path
    model: Path
    """transformers, vllm: a folder of safetensors; openvino: a folder of an fp16 IR."""

    @property
    def name(self) -> str:
        return f"{self.kind}:{self.variant}"


@dataclass(frozen=True, slots=True)
class PeerLimits:
    """What every peer is told alike."""

    threads: int
    max_tokens: int
    max_model_len: int
    max_num_seqs: int
    eos_token_ids: tuple[int, ...]


def parse_peers(text: str) -> tuple[tuple[str, str], ...]:
    """Return (kind, variant) of a comma-separated list of KIND (all its variants) and KIND:VARIANT.

    A variant always brings its kind's `plain` along, which its output is compared with. Raises `ConfigError`.
    """
    found: dict[tuple[str, str], None] = {}
    for name in listed(text):
        kind, colon, variant = name.partition(":")
        if kind not in VARIANTS or (colon and variant not in VARIANTS[kind]):
            allowed = ", ".join([*VARIANTS, *(f"{k}:{v}" for k, vs in VARIANTS.items() for v in vs)])
            raise ConfigError(f"peer {name!r} is unknown; allowed: {allowed}", param="peers")
        found |= dict.fromkeys([(kind, "plain"), *((kind, v) for v in VARIANTS[kind] if variant in ("", v))])
    return tuple(found)


class PeerProcess:
    """A contender behind JSON lines. Owns the process; `close` must be awaited."""

    def __init__(self, spec: PeerSpec, limits: PeerLimits, loop: Path = LOOP) -> None:
        self.name = spec.name
        self.expendable = True
        self.max_concurrency = 1 if spec.kind in SEQUENTIAL else None
        self.versions: dict[str, str] = {}
        self._spec = spec
        self._limits = limits
        self._loop = loop
        self._process: asyncio.subprocess.Process | None = None
        self._errors = Path(tempfile.mkstemp(prefix=f"prolepsis-peer-{spec.kind}-", suffix=".log")[1])

    async def load(self) -> None:
        """Start the process and load the model; raises `EngineError` saying why it could not, with its last words."""
        with self._errors.open("wb") as errors:
            try:
                self._process = await asyncio.create_subprocess_exec(
                    str(self._spec.python),
                    str(self._loop),
                    self._spec.kind,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=errors,
                    limit=_LINE_LIMIT,
                    env=peer_environment(self._spec, self._limits.threads, os.environ),
                    start_new_session=True,
                )
            except OSError as error:
                raise ConfigError(f"peer {self.name}: {self._spec.python} does not start: {error}") from error
        limits = self._limits
        async with asyncio.timeout(LOAD_S):
            answer = await self._call(
                {
                    "op": "load",
                    "model": str(self._spec.model),
                    "variant": self._spec.variant,
                    "threads": limits.threads,
                    "eos": list(limits.eos_token_ids),
                    "max_model_len": limits.max_model_len,
                    "max_num_seqs": limits.max_num_seqs,
                }
            )
        self.versions = {str(k): str(v) for k, v in answer["versions"].items()}
        self._signal(signal.SIGSTOP)

    async def begin(self, round_name: str) -> None:
        """Forget cached prefixes and learnt outputs; `round_name` is of no use to a peer."""
        await self._awake({"op": "begin"})

    async def run(self, prompts: Sequence[EncodedPrompt], concurrency: int) -> Turn:
        answer = await self._awake(
            {
                "op": "run",
                "prompts": [list(p.token_ids) for p in prompts],
                "max_tokens": self._limits.max_tokens,
                "concurrency": concurrency,
            }
        )
        pairs = zip(prompts, answer["outcomes"], strict=True)
        return Turn([Outcome(p.id, p.category, tuple(o["tokens"]), float(o["seconds"])) for p, o in pairs])

    async def close(self) -> None:
        """End the process, whatever it does, and remove its log."""
        self._errors.unlink(missing_ok=True)
        if self._process is None:
            return
        self._signal(signal.SIGKILL)
        await self._process.wait()

    async def _awake(self, request: Mapping[str, object]) -> dict[str, Any]:
        """Let the process run for one request only: some peers keep polling while idle."""
        self._signal(signal.SIGCONT)
        try:
            return await self._call(request)
        finally:
            self._signal(signal.SIGSTOP)

    async def _call(self, request: Mapping[str, object]) -> dict[str, Any]:
        assert self._process is not None, "load comes first"
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        line = b""
        with suppress(BrokenPipeError, ConnectionResetError):
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            await self._process.stdin.drain()
            line = await self._process.stdout.readline()
        if not line:
            raise EngineError(f"peer {self.name} ended; its last words: {self._last_words()}")
        answer = json.loads(line)
        if "error" in answer:
            raise EngineError(f"peer {self.name}: {answer['error']}")
        assert isinstance(answer, dict)
        return answer

    def _signal(self, number: int) -> None:
        """Signal the whole session, so that worker processes of a peer stop with it."""
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def _last_words(self) -> str:
        lines = self._errors.read_text(errors="replace").strip().splitlines()
        return " / ".join(lines[-3:]) or "none"


def peer_environment(spec: PeerSpec, threads: int, base: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a peer: what its documentation recommends for speed, and nothing fetched."""
    env = {k: v for k, v in base.items() if k not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
    env |= {"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    if spec.kind == "vllm":
        env |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1"}
        env.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
        openmp = spec.python.parent.parent / "lib" / "libiomp5.so"
        if openmp.exists() and "LD_PRELOAD" not in env:
            env["LD_PRELOAD"] = str(openmp)
    return env
