"""Pools of real engines with the default model, and our server in front of them."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest

from prolepsis.core.config import UpstreamApi
from prolepsis.core.files import cache_directory
from prolepsis.engine.models.files.export import export_model
from prolepsis.engine.models.files.store import resolve
from tests.adapters.vllm.other_python import VARIABLE as VLLM
from tests.commands import free_port, prolepsis, serving
from tests.default_model import CONFIG

LLAMA_SERVER = "PROLEPSIS_TEST_LLAMA_SERVER"
DEPTH = 4
"""Tokens that the speculating pools draft at most."""
_CONTEXT = 1024
_READY_S = 600


def needs(variable: str, what: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(variable not in os.environ, reason=f"{variable} does not name {what}")


ENGINES = (
    pytest.param("vllm", marks=needs(VLLM, "the Python of an environment with vLLM 0.32")),
    pytest.param("llama.cpp", marks=needs(LLAMA_SERVER, "llama.cpp's llama-server")),
)


@dataclass(frozen=True, slots=True)
class Front:
    """Our server in front of two pools."""

    api: UpstreamApi
    http: httpx2.Client
    model: str


@contextmanager
def in_front_of(api: UpstreamApi, folder: Path) -> Iterator[Front]:
    """Start a plain and a speculating pool and our server, and yield a client of it once it is ready."""
    model, names = _model(api), ("plain", "speculating")
    ports = {name: free_port() for name in (*names, "front")}
    store = f"sqlite:///{folder / 'kept'}"
    front = prolepsis("serve", "--engine", "upstream", "--model", str(model))
    front += ["--port", str(ports["front"]), "--num-speculative-tokens", str(DEPTH), "--store", store]
    front += ["--controls-file", str(folder / "controls.json")]
    front += ["--upstream", ",".join([f"api={api}", *(f"{name}=http://127.0.0.1:{ports[name]}" for name in names)])]
    with ExitStack() as stack:
        for name in names:
            command = _command(api, model, ports[name], speculates=name == "speculating")
            url, log = f"http://127.0.0.1:{ports[name]}/health", folder / f"{name}.log"
            stack.enter_context(serving(command, url, log, _environment(), wait_s=_READY_S))
        url = f"http://127.0.0.1:{ports['front']}"
        stack.enter_context(serving(front, f"{url}/health/ready", folder / "front.log", wait_s=_READY_S))
        http = stack.enter_context(httpx2.Client(base_url=url, timeout=120))
        yield Front(api, http, http.get("/v1/models").json()["data"][0]["id"])


def _model(api: UpstreamApi) -> Path:
    """Return the default model as the engine reads it: a GGUF file, or a folder of safetensors."""
    file = resolve(CONFIG.model, CONFIG.model_dir)
    if api == "llama.cpp":
        return file
    return export_model(file, cache_directory() / "exports" / Path(CONFIG.model).name)


def _command(api: UpstreamApi, model: Path, port: int, *, speculates: bool) -> Sequence[str]:
    where, context = ["--host", "127.0.0.1", "--port", str(port)], str(_CONTEXT)
    if api == "llama.cpp":
        command = [os.environ[LLAMA_SERVER], "-m", str(model), *where, "-c", str(2 * _CONTEXT), "-np", "2", "-t", "1"]
        drafts = ["--spec-type", "ngram-simple", "--spec-draft-n-max", str(DEPTH)]
        drafts += ["--spec-ngram-simple-size-n", "3", "--spec-ngram-simple-size-m", str(DEPTH)]
        return [*command, *drafts] if speculates else command
    command = [os.environ[VLLM], "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), *where]
    command += ["--max-model-len", context, "--max-num-seqs", "4", "--enforce-eager"]
    command += ["--structured-outputs-config", '{"backend": "guidance"}']
    ngram = {"method": "ngram", "num_speculative_tokens": DEPTH, "prompt_lookup_max": 4, "prompt_lookup_min": 2}
    drafts = ["--speculative-config", json.dumps(ngram), "--per-request-spec-decode-metrics", "summary"]
    return [*command, *drafts] if speculates else command


def _environment() -> Mapping[str, str]:
    """Return what an engine runs in: without the paths of our code."""
    offline = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | offline
