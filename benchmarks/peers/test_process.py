"""A peer's process behind its protocol: the real loop around a tiny peer."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from benchmarks.peers.process import LOOP, PeerLimits, PeerProcess, PeerSpec, peer_environment
from prolepsis.core.errors import ConfigError, EngineError
from prolepsis.lab.measure.contenders import Run
from prolepsis.lab.measure.prompts import EncodedPrompt

LIMITS = PeerLimits(threads=1, max_tokens=3, max_model_len=64, max_num_seqs=4, eos_token_ids=(0,))
PROMPTS = [EncodedPrompt("p1", "code", (5, 6)), EncodedPrompt("p2", "chat", (7,))]
PEER = """
import os
print("noise on stdout must not reach the protocol")


class Peer:
    def __init__(self, options):
        if options["variant"] == "broken":
            raise RuntimeError("no such method")
        self.versions = {"fake": "1", "pid": os.getpid(), "eos": options["eos"]}
        self.begun = 0

    def begin(self):
        self.begun += 1

    def run(self, prompts, max_tokens, concurrency):
        print("more noise")
        if concurrency == 2:
            raise ValueError("two is too many")
        if concurrency == 3:
            os._exit(3)
        return [{"tokens": [sum(p), self.begun, concurrency][:max_tokens], "seconds": 0.25} for p in prompts]
"""


@pytest.fixture
def loop(tmp_path: Path) -> Path:
    shutil.copy(LOOP, tmp_path / "loop.py")
    (tmp_path / "fake_peer.py").write_text(PEER)
    return tmp_path / "loop.py"


def _peer(loop: Path, variant: str = "plain", python: str = sys.executable) -> PeerProcess:
    return PeerProcess(PeerSpec("fake", variant, Path(python), loop.parent), LIMITS, loop)


@pytest.fixture
async def peer(loop: Path) -> AsyncIterator[PeerProcess]:
    peer = _peer(loop)
    await peer.load()
    yield peer
    await peer.close()


async def test_a_peer_answers_prompts_by_token_ids(peer: PeerProcess) -> None:
    assert (peer.name, peer.versions["fake"], peer.versions["eos"]) == ("fake:plain", "1", "[0]")
    await peer.begin("r0")
    await peer.begin("r1")
    run = Run(peer.name, 1)
    await peer.answer(PROMPTS, run)
    assert [(o.prompt_id, o.category, o.token_ids, o.seconds) for o in run.outcomes] == [
        ("p1", "code", (11, 2, 1), 0.25),
        ("p2", "chat", (7, 2, 1), 0.25),
    ]
    assert run.outcomes[0].num_steps is None


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the state of a process is read from /proc")
async def test_an_idle_peer_is_stopped_and_gone_after_close(loop: Path) -> None:
    peer = _peer(loop)
    await peer.load()
    pid = int(peer.versions["pid"])
    assert _state(pid) == "T"
    await peer.answer(PROMPTS, Run(peer.name, 1))
    assert _state(pid) == "T"
    await peer.close()
    assert str(pid) not in os.listdir("/proc")


@pytest.mark.skipif(sys.platform != "linux", reason="the death signal of a parent is Linux's")
def test_a_stopped_peer_does_not_outlive_a_killed_bench(loop: Path) -> None:
    program = (
        "import asyncio, os, sys\nfrom pathlib import Path\nfrom benchmarks.peers.test_process import _peer\n"
        "async def main():\n    peer = _peer(Path(sys.argv[1]))\n    await peer.load()\n"
        "    print(peer.versions['pid'], flush=True)\n    os._exit(9)\nasyncio.run(main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(loop)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 9, done.stderr
    assert _gone(int(done.stdout))


async def test_an_error_inside_a_peer_is_told_and_it_goes_on(peer: PeerProcess) -> None:
    with pytest.raises(EngineError, match="fake:plain: ValueError: two is too many"):
        await peer.answer(PROMPTS, Run(peer.name, 2))
    await peer.answer(PROMPTS, run := Run(peer.name, 1))
    assert len(run.outcomes) == 2


async def test_a_peer_that_dies_is_an_error_with_its_last_words(peer: PeerProcess) -> None:
    with pytest.raises(EngineError, match=r"fake:plain ended; its last words: .*noise"):
        await peer.answer(PROMPTS, Run(peer.name, 3))


async def test_a_peer_that_cannot_load_says_why(loop: Path) -> None:
    peer = _peer(loop, "broken")
    with pytest.raises(EngineError, match="no such method"):
        await peer.load()
    await peer.close()


async def test_a_python_that_does_not_start_is_named(loop: Path) -> None:
    peer = _peer(loop, python=str(loop.parent / "no-python"))
    with pytest.raises(ConfigError, match="no-python does not start"):
        await peer.load()
    await peer.close()


def test_the_environment_of_a_peer(tmp_path: Path) -> None:
    python = tmp_path / "bin" / "python"
    base = {"PYTHONPATH": "/x", "VIRTUAL_ENV": "/y", "HOME": "/h"}
    plain = peer_environment(PeerSpec("openvino", "plain", python, tmp_path), 2, base)
    assert (plain["OMP_NUM_THREADS"], plain["HOME"]) == ("2", "/h")
    assert not {"PYTHONPATH", "VIRTUAL_ENV", "LD_PRELOAD", "VLLM_CPU_KVCACHE_SPACE"} & set(plain)
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libiomp5.so").touch()
    vllm = peer_environment(PeerSpec("vllm", "plain", python, tmp_path), 2, base)
    assert vllm["LD_PRELOAD"] == str(tmp_path / "lib" / "libiomp5.so")
    assert vllm["VLLM_CPU_KVCACHE_SPACE"] == "1"
    kept = peer_environment(PeerSpec("vllm", "plain", python, tmp_path), 2, {"VLLM_CPU_KVCACHE_SPACE": "4"})
    assert kept["VLLM_CPU_KVCACHE_SPACE"] == "4"


def _state(pid: int) -> str:
    """Single-letter state of a process, after at most two seconds of waiting for it to be stopped."""
    for _ in range(200):
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        if state == "T":
            break
        time.sleep(0.01)
    return state


def _gone(pid: int) -> bool:
    """Whether a process has ended, or ends within two seconds; one nobody has waited for yet counts as ended."""
    for _ in range(200):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.01)
    return False


def test_the_loop_is_shipped() -> None:
    assert os.access(LOOP, os.R_OK)
    assert {p.name for p in LOOP.parent.glob("*_peer.py")} == {
        *("transformers_peer.py", "vllm_peer.py", "openvino_peer.py", "llamacpp_peer.py"),
        *("llamacpp_logits_peer.py", "openvino_logits_peer.py"),
    }
