"""Peers as the command line names them, and among the arms of a measurement."""

import shutil
import sys
from pathlib import Path

import pytest

from benchmarks.peers.__main__ import measure_with_peers
from benchmarks.peers.process import LOOP, PeerSpec, find_peers, parse_peers
from benchmarks.peers.report import base_of, print_peers_report
from prolepsis.core.errors import ConfigError
from prolepsis.core.requests import SamplingParams
from prolepsis.lab.bench import BenchJob
from prolepsis.lab.measure.contenders import Schedule
from tests.lab.measure.fakes import ByteTokenizer, table_client, two_prompts

JOB = BenchJob(
    "file", two_prompts(), "auto,suffix@4", Schedule((1, 2), 2), SamplingParams(temperature=0.0, max_tokens=6)
)


def test_peers_expand_to_variants_and_bring_their_plain_along() -> None:
    assert parse_peers("") == ()
    assert parse_peers("vllm:ngram,transformers") == (
        ("vllm", "plain"),
        ("vllm", "ngram"),
        ("transformers", "plain"),
        ("transformers", "lookup"),
    )
    for name in ("llama", "vllm:lookup", "vllm:"):
        with pytest.raises(ConfigError, match="allowed"):
            parse_peers(name)


def test_peers_are_found_or_it_is_said_how_to_give_them(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.touch()
    folder = tmp_path / "model"
    folder.mkdir()
    (spec,) = find_peers([("vllm", "ngram")], {"vllm": python}, {}, lambda: folder)
    assert (spec.name, spec.python, spec.model) == ("vllm:ngram", python, folder)
    with pytest.raises(ConfigError, match="--python vllm=PATH"):
        find_peers([("vllm", "plain")], {}, {}, lambda: folder)
    with pytest.raises(ConfigError, match=r"fp16 IR.*--model openvino=PATH"):
        find_peers([("openvino", "plain")], {"openvino": python}, {}, lambda: folder)
    with pytest.raises(ConfigError, match="does not exist"):
        find_peers([("vllm", "plain")], {"vllm": tmp_path / "gone"}, {}, lambda: folder)
    with pytest.raises(ConfigError, match="'lama'"):
        find_peers([], {"lama": python}, {}, lambda: folder)


def test_a_peers_tokens_are_compared_with_its_own_plain() -> None:
    names = ["vllm:plain", "vllm:ngram", "openvino:lookup"]
    assert [base_of(name, names) for name in names] == ["vllm:plain", "vllm:plain", None]


async def test_peers_stand_among_the_arms(tmp_path: Path) -> None:
    shutil.copy(LOOP, tmp_path / "loop.py")
    answer = '[{"tokens": [1, 2, 3], "seconds": 0.06} for p in prompts]'
    for kind in ("vllm", "transformers"):
        (tmp_path / f"{kind}_peer.py").write_text(
            "class Peer:\n    versions = {'it': '1'}\n    def __init__(self, options):\n"
            "        assert options['variant'] != 'suffix', 'arctic_inference is missing'\n"
            f"    def begin(self): pass\n    def run(self, prompts, max_tokens, concurrency): return {answer}\n"
        )
    names = [("vllm", "plain"), ("vllm", "ngram"), ("vllm", "suffix"), ("transformers", "plain")]
    specs = tuple(PeerSpec(kind, variant, Path(sys.executable), tmp_path) for kind, variant in names)
    report = await measure_with_peers(
        JOB, specs, 1, table_client(), ByteTokenizer(), notify=lambda line: None, loop=tmp_path / "loop.py"
    )
    assert set(report["arms"]) == {"plain", "auto", "suffix@4", "vllm:plain", "vllm:ngram", "transformers:plain"}
    assert "transformers:plain" not in report["concurrency"]["2"]["arms"]
    assert report["arms"]["vllm:ngram"]["all"]["tokens_per_s"]["median"] == pytest.approx(50.0)
    assert report["against"]["1"]["auto"]["vllm:ngram"]["code"]["median"] > 1
    assert report["outputs"]["vllm:ngram"]["compared_with"] == "vllm:plain"
    assert "arctic_inference is missing" in report["peers_failed"]["vllm:suffix"]
    assert report["provenance"]["versions"]["vllm:plain it"] == "1"
    assert report["peers_disturbed"] is not None
    print_peers_report(report)
