"""Other engines, each variant in a process of its own that is stopped while others run."""

import asyncio
import json
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prolepsis.core.errors import ConfigError, EngineError, ProlepsisError
from prolepsis.core.terminal.config import listed
from prolepsis.lab.measure.contenders import Outcome, Run
from prolepsis.lab.measure.prompts import EncodedPrompt

VARIANTS = {
    "transformers": ("plain", "lookup"),
    "vllm": ("plain", "ngram", "suffix", "plugin"),
    "openvino": ("plain", "lookup"),
    "llamacpp": ("plain", "ngram"),
}
OWN_FORMAT = {"openvino": "a folder of an fp16 IR, or a GGUF file", "llamacpp": "a GGUF file"}
"""Peers that do not load the folder of safetensors that is exported for the others, and what they load."""
SEQUENTIAL = ("transformers",)
"""Peers that do not batch requests: they are left out above concurrency 1."""
LOOP = Path(__file__).parent / "scripts" / "loop.py"
LOAD_S = 1800.0
_LINE_LIMIT = 64 * 2**20


@dataclass(frozen=True, slots=True)
class PeerSpec:
    """One variant of one peer and what it is started from."""

    kind: str
    variant: str
    python: Path
    model: Path
    """A folder of safetensors, or what `OWN_FORMAT` says of the peer."""

    @property
    def name(self) -> str:
        return f"{self.kind}:{self.variant}"


@dataclass(frozen=True, slots=True)
class PeerLimits:
    """Limits that hold for every peer."""

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


def find_peers(
    wanted: Sequence[tuple[str, str]],
    pythons: Mapping[str, Path],
    models: Mapping[str, Path],
    exported: Callable[[], Path],
) -> tuple[PeerSpec, ...]:
    """Return what to start for each (kind, variant); `pythons` and `models` are by kind.

    A folder of safetensors that is not given is made by `exported`. Raises `ConfigError` that says what is missing.
    """
    for name, given in (("python", pythons), ("model", models)):
        for kind in given:
            if kind not in VARIANTS:
                raise ConfigError(f"--{name} names {kind!r}; allowed: {', '.join(VARIANTS)}", param=name)
    specs = []
    for kind, variant in wanted:
        # A virtual environment's python is a link; resolving it would lose the environment.
        python = _existing("python", kind, pythons.get(kind), "a Python with its packages").absolute()
        model = models.get(kind) or (None if kind in OWN_FORMAT else exported())
        what = OWN_FORMAT.get(kind, "a folder of safetensors")
        specs.append(PeerSpec(kind, variant, python, _existing("model", kind, model, what).resolve()))
    return tuple(specs)


def _existing(field: str, kind: str, given: Path | None, what: str) -> Path:
    if given is not None and given.expanduser().exists():
        return given.expanduser()
    problem = f"{given} does not exist" if given else "none is given"
    raise ConfigError(f"peer {kind} needs {what}; {problem}. Give it with --{field} {kind}=PATH", param=field)


class PeerProcess:
    """A contender that is driven over JSON lines. Owns the process; `close` must be awaited."""

    def __init__(self, spec: PeerSpec, limits: PeerLimits, loop: Path = LOOP) -> None:
        self.name = spec.name
        self.versions: dict[str, str] = {}
        self._spec = spec
        self._limits = limits
        self._loop = loop
        self._process: asyncio.subprocess.Process | None = None
        self._errors = Path(tempfile.mkstemp(prefix=f"prolepsis-peer-{spec.kind}-", suffix=".log")[1])

    async def load(self) -> None:
        """Start the process and load the model; raises `EngineError` with the last lines of its log if it fails."""
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
        """Forget cached prefixes and learned outputs; the name of the round is not used."""
        await self._awake({"op": "begin"})

    async def answer(self, prompts: Sequence[EncodedPrompt], run: Run) -> None:
        answer = await self._awake(
            {
                "op": "run",
                "prompts": [list(p.token_ids) for p in prompts],
                "max_tokens": self._limits.max_tokens,
                "concurrency": run.concurrency,
            }
        )
        pairs = zip(prompts, answer["outcomes"], strict=True)
        run.outcomes += [Outcome(p.id, p.category, tuple(o["tokens"]), float(o["seconds"])) for p, o in pairs]

    async def close(self) -> None:
        """Kill the process and remove its log."""
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


class Peer:
    """A peer among the contenders: an error costs its own figures only, and a sequential one runs at concurrency 1."""

    def __init__(self, process: PeerProcess, kind: str) -> None:
        self.name = process.name
        self.failure: str | None = None
        self.max_cpu_share = 0.0
        """Largest share of a core that this process used while the peer ran: near 0, or the peer was disturbed."""
        self._process = process
        self._sequential = kind in SEQUENTIAL

    @property
    def versions(self) -> Mapping[str, str]:
        """Versions of its packages, each named after the peer."""
        return {f"{self.name} {package}": version for package, version in self._process.versions.items()}

    async def begin(self, round_name: str) -> None:
        if self.failure is None:
            with self._contained():
                await self._process.begin(round_name)

    async def answer(self, prompts: Sequence[EncodedPrompt], run: Run) -> None:
        if self.failure is not None or (self._sequential and run.concurrency > 1):
            return
        started, cpu = time.perf_counter(), time.process_time()
        with self._contained():
            await self._process.answer(prompts, run)
        share = (time.process_time() - cpu) / (time.perf_counter() - started)
        self.max_cpu_share = max(self.max_cpu_share, share)

    async def close(self) -> None:
        await self._process.close()

    @contextmanager
    def _contained(self) -> Iterator[None]:
        try:
            yield
        except ProlepsisError as error:
            self.failure = str(error)


def peer_environment(spec: PeerSpec, threads: int, base: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a peer: the settings that its documentation recommends for speed, and no downloads."""
    env = {k: v for k, v in base.items() if k not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
    env |= {"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    if spec.kind == "vllm":
        env |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1"}
        env.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
        openmp = spec.python.parent.parent / "lib" / "libiomp5.so"
        if openmp.exists() and "LD_PRELOAD" not in env:
            env["LD_PRELOAD"] = str(openmp)
    return env
