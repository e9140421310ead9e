"""`prolepsis models` on a store in a temporary folder, with draft heads beside it."""

import json
import re
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from typer.testing import CliRunner, Result

from prolepsis.core.config import DEFAULT_MODEL
from prolepsis.core.errors import FetchError
from prolepsis.core.files import sha256_of
from prolepsis.core.phases import Phases, watching
from prolepsis.core.terminal.flags import settings_here
from prolepsis.engine.commands.downloads import download, ensure_model
from prolepsis.engine.models.files import quality
from prolepsis.engine.models.files.quality import MeasuredQuality
from prolepsis.engine.models.files.store import KNOWN, MANIFEST, Manifest, ModelStore
from prolepsis.engine.models.files.weights import open_checkpoint
from prolepsis.engine.models.heads.aliases import head_folder
from prolepsis.engine.models.heads.format import load_head
from prolepsis.engine.models.heads.registry import list_heads
from prolepsis.engine.models.load import identity_of
from prolepsis.engine.models.targets.lean_shape import LeanShape
from prolepsis.server.cli.main import app
from tests.engine.models.files.gguf_files import write_gguf
from tests.engine.models.files.web import Web, serve
from tests.engine.models.public_heads import public_medusa
from tests.engine.models.random_heads import save_random_head
from tests.engine.models.tiny import save_tiny
from tests.training.targets import save_target

TINY = Manifest("owner/tiny", "hub:owner/tiny@abc", "tiny.gguf", 3_000_000, {"tiny.gguf": "00ff"}, "mit", "2026-01-01")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = ModelStore(tmp_path / "models").folder(TINY.name)
    folder.mkdir(parents=True)
    (folder / MANIFEST).write_text(json.dumps(asdict(TINY)))
    return tmp_path / "models"


@pytest.fixture
def head(root: Path) -> Path:
    """A head from elsewhere for a tiny model that is here under the name "tiny"."""
    save_tiny(root / "tiny", "llama", {})
    manifest = Manifest("tiny", "test", ".", 1, {}, None, "2026-01-01")
    (root / "tiny" / MANIFEST).write_text(json.dumps(asdict(manifest)))
    backend = Tokenizer(WordLevel({"a": 0}, unk_token="a"))
    backend.save(str(root / "tiny" / "tokenizer.json"))
    shape = LeanShape.from_config(open_checkpoint(root / "tiny").config)
    said = {"target": "tiny", "acceptance": {"all": {"hits": [8, 4, 2], "trials": [10, 8, 4]}}, "steps": 7}
    return save_random_head(root.parent / "elsewhere", shape, said)


def run(root: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["models", *arguments, "--model-dir", str(root)])


def own_drafters(root: Path) -> list[dict[str, object]]:
    """Return what the list says of draft heads and draft models that are not the package's."""
    shipped = {entry.label for entry in list_heads(root.parent / "empty" / "models")}
    listed = json.loads(run(root, "show", "--json").stdout)["drafters"]
    return [one for one in listed if f"{one['name']}@{one['version']}" not in shipped]


def test_list_shows_what_is_here_and_what_can_be_had(root: Path) -> None:
    result = run(root, "show")
    assert result.exit_code == 0
    assert "owner/tiny" in result.stdout
    assert DEFAULT_MODEL in result.stdout


def test_list_as_json(root: Path) -> None:
    document = json.loads(run(root, "show", "--json").stdout)
    assert document["directory"] == str(root)
    assert [model["name"] for model in document["models"]] == ["owner/tiny"]
    assert DEFAULT_MODEL in [known["name"] for known in document["known"]]


def test_show_gives_path_source_and_checksums(root: Path) -> None:
    document = json.loads(run(root, "show", "owner/tiny", "--json").stdout)
    assert document["path"].endswith("tiny.gguf")
    assert document["sha256"] == {"tiny.gguf": "00ff"}
    assert "hub:owner/tiny@abc" in run(root, "show", "owner/tiny").stdout


def test_show_of_a_path_tells_name_context_formats_and_sampling(root: Path) -> None:
    path = root.parent / "some file.gguf"
    write_gguf(path, save_tiny(root.parent / "tiny", "llama", {}), "llama", changes={"general.sampling.temp": 0.5})
    document = json.loads(run(root, "show", str(path), "--json").stdout)
    assert (document["name"], document["path"], document["architecture"]) == ("some-file", str(path), "llama")
    assert document["context"] > 0
    assert document["weights"] == "F32 100%"
    assert document["default_sampling"].startswith("temperature 0.5, top_p 1, top_k 0")
    assert document["default_sampling"].endswith("(from gguf)")
    assert "(from gguf)" in run(root, "show", str(path)).stdout
    assert run(root, "show", str(root.parent / "other.gguf")).exit_code == 3


def test_show_tells_the_speed_that_memory_allows(root: Path, head: Path) -> None:
    document = json.loads(run(root, "show", "tiny", "--json").stdout)
    assert document["bytes_per_pass"] > 0
    expected = document["read_gb_per_s"] * 1e9 / document["bytes_per_pass"]
    assert document["memory_limit_tokens_per_s"] == pytest.approx(expected, rel=0.2)


def test_show_tells_the_quality_of_a_measured_file_only(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = root.parent / "quality.json"
    monkeypatch.setattr(quality, "RECORD", record)
    file = root / "owner--tiny" / "tiny.gguf"
    file.write_bytes(b"weights")
    one = MeasuredQuality("tiny.gguf", "00ff", "int8 activations", 0.012, 0.951, 12.34, 12.3, 20480, "texts", None)
    record.write_text(json.dumps([asdict(one)]))
    assert json.loads(run(root, "show", "owner/tiny", "--json").stdout)["quality"] == []
    record.write_text(json.dumps([asdict(replace(one, sha256=sha256_of(file)))]))
    assert json.loads(run(root, "show", "owner/tiny", "--json").stdout)["quality"][0]["kl"] == 0.012
    assert "quality with int8 activations" in run(root, "show", "owner/tiny").stdout


def test_show_of_a_model_that_is_not_here_is_status_3_and_names_those_that_are(root: Path) -> None:
    result = run(root, "show", "owner/other")
    assert result.exit_code == 3
    assert DEFAULT_MODEL in result.stderr
    assert "models here: owner/tiny" in result.stderr


def test_pull_of_a_model_that_is_here_fetches_nothing(root: Path) -> None:
    result = run(root, "pull", "owner/tiny", "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["source"] == TINY.source


def test_pull_names_the_head_that_drafts_for_the_model(root: Path) -> None:
    folder = ModelStore(root).folder("owner/whole")
    save_target(folder)
    (folder / MANIFEST).write_text(json.dumps(asdict(replace(TINY, name="owner/whole", path="."))))
    assert json.loads(run(root, "pull", "owner/whole", "--json").stdout)["draft_head"] is None
    shape = LeanShape.from_config(open_checkpoint(folder).config)
    save_random_head(head_folder(root) / "mine@3", shape, {"target_fingerprint": identity_of(folder)})
    assert run(root, "alias", "mine@3", "champion").exit_code == 0
    assert json.loads(run(root, "pull", "owner/whole", "--json").stdout)["draft_head"] == "mine@3"
    assert "draft head mine@3 drafts for it" in run(root, "pull", "owner/whole").stderr


def test_pull_of_a_name_that_means_nothing_is_status_3(root: Path) -> None:
    result = run(root, "pull", "not a name")
    assert result.exit_code == 3
    assert "'not a name'" in result.stderr


def test_a_download_is_a_phase_of_all_files_and_leaves_no_line_where_nobody_looks(
    capsys: pytest.CaptureFixture[str],
) -> None:
    phases = Phases()
    with watching(phases), download() as progress:
        progress("a", 1, 10)
        progress("b", 5, None)
        assert phases.current.describe() == "downloading 6 B of 15 B"
        progress("a", 10, 10)
        assert phases.current.describe() == "downloading 15 B"
    assert capsys.readouterr() == ("", ""), "a log had an empty line"


def test_export_of_a_model_that_is_not_here_is_status_3(root: Path) -> None:
    result = run(root, "export", DEFAULT_MODEL, str(root / "out"))
    assert result.exit_code == 3
    assert not (root / "out").exists()


def test_a_name_that_a_known_model_and_a_head_share_is_the_models(root: Path, head: Path) -> None:
    assert run(root, "import", str(head), "--as", f"{DEFAULT_MODEL}@77").exit_code == 0
    out = root.parent / "out"
    assert run(root, "export", DEFAULT_MODEL, str(out)).exit_code == 3
    assert run(root, "export", f"{DEFAULT_MODEL}@77", str(out)).exit_code == 0
    assert load_head(out)[0].draft_vocab == 64


def test_a_head_is_imported_listed_shown_exported_and_removed(root: Path, head: Path) -> None:
    imported = run(root, "import", str(head), "--as", "mine")
    assert imported.exit_code == 0, imported.stderr
    assert "mine@1 is in" in imported.stdout
    assert "layout eagle3" in imported.stderr
    assert "fits tiny (by its sizes; it does not name its target's weights)" in imported.stderr
    (listed,) = own_drafters(root)
    shown = json.loads(run(root, "show", "mine@1", "--json").stdout)
    assert listed == shown
    assert (shown["kind"], shown["version"], shown["checksum"]) == ("head", 1, "matches")
    assert (shown["chain_of_3"], shown["training"]) == (2.4, {"steps": 7})
    assert re.search(r"^chain of 3 +2\.4$", run(root, "show", "mine").stdout, re.MULTILINE)
    assert re.search(r"^ head +mine +1 +tiny +2\.4 ", run(root, "show").stdout, re.MULTILINE)
    out = root.parent / "out"
    assert run(root, "export", "mine", str(out), "--verifier", "/models/tiny").exit_code == 0
    assert load_head(out)[0].draft_vocab == 64
    told = json.loads((out / "config.json").read_text())["speculators_config"]["verifier"]
    assert told["name_or_path"] == "/models/tiny"
    assert run(root, "export", "tiny", str(root.parent / "model"), "--verifier", "x").exit_code == 2
    assert run(root, "remove", "mine").exit_code == 0
    assert own_drafters(root) == []


def test_import_says_which_target_a_head_fits(root: Path, head: Path) -> None:
    config = json.loads((head / "config.json").read_text())
    for fingerprint, fits in {identity_of(root / "tiny"): ["tiny"], "00ff": []}.items():
        config["prolepsis"]["target_fingerprint"] = fingerprint
        (head / "config.json").write_text(json.dumps(config))
        assert json.loads(run(root, "import", str(head), "--as", "mine", "--json").stdout)["fits"] == fits
    assert "fits no model that is here" in run(root, "import", str(head), "--as", "mine").stderr


def test_heads_that_cannot_be_imported_or_removed_are_refused(root: Path, head: Path) -> None:
    assert run(root, "import", str(root), "--as", "mine").exit_code == 3
    assert run(root, "import", str(head), "--as", "auto").exit_code == 2
    assert run(root, "remove", "mine").exit_code == 3


def test_draft_models_are_listed_beside_heads(root: Path, head: Path) -> None:
    config = json.loads((root / "tiny" / "config.json").read_text())
    (root / "tiny" / "config.json").write_text(json.dumps({**config, "prolepsis": {"target": "big"}}))
    (listed,) = own_drafters(root)
    assert (listed["kind"], listed["name"], listed["target"]) == ("draft-model", "tiny", "big")
    assert listed["checksum"] == "not recorded"
    assert "draft-model" in run(root, "show").stdout


def test_an_alias_names_a_version_everywhere(root: Path, head: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROLEPSIS_DATA", str(root.parent))
    for _ in range(2):
        assert run(root, "import", str(head), "--as", "mine").exit_code == 0
    done = run(root, "alias", "mine@1", "champion")
    assert (done.exit_code, done.stdout.strip()) == (0, "mine@champion is mine@1"), done.output
    assert [one["aliases"] for one in own_drafters(root)] == [["champion"], []]
    assert json.loads(run(root, "show", "mine@champion", "--json").stdout)["version"] == 1
    assert run(root, "alias", "mine", "champion").stdout.strip() == "mine@champion is mine@2; it was mine@1"
    assert run(root, "remove", "mine@2").exit_code == 2
    assert run(root, "alias", "mine", "champion", "--remove").stdout.strip() == "mine@champion is gone; it was mine@2"
    assert run(root, "alias", "mine", "Champion").exit_code == 2
    assert run(root, "alias", "other@1", "champion").exit_code == 3


def test_a_pull_shows_size_and_licence_before_and_after(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    coder = KNOWN["qwen2.5-coder-1.5b-instruct"]
    assert coder.hub is not None
    assert coder.hub.file is not None
    with serve(Web()) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        hub.serve_hub(coder.hub.repository, {coder.hub.file: bytes(4096)}, {"license": "apache-2.0"})
        done = run(root, "pull", coder.name)
    assert f"downloading {coder.name} to {root}: 1.04 GiB, licence apache-2.0" in " ".join(done.stderr.split())
    assert done.stdout.strip() == f"{coder.name} is in {root / coder.name}: 4 KiB, licence apache-2.0"


def test_a_model_of_a_hub_is_fetched_with_its_size_and_licence(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`serve --model OWNER/NAME` named another command instead."""
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    settings = settings_here(model="owner/new", model_dir=root)
    with serve(Web()) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        hub.serve_hub("owner/new", {"config.json": b"{}", "model.safetensors": bytes(4096)}, {"license": "mit"})
        ensure_model(settings)
        told = "".join(capsys.readouterr().err.split())
        assert "".join(f"downloading owner/new to {root}: 4 KiB, licence mit, from {hub.url}".split()) in told
        assert (root / "owner--new" / "model.safetensors").stat().st_size == 4096
        num_asked = len(hub.asked)
        ensure_model(settings)
        assert len(hub.asked) == num_asked, "it is here"
        with pytest.raises(FetchError, match=r"no folder 'owner/other' here, and as the id of a hub: .* answers 404"):
            ensure_model(settings_here(model="owner/other", model_dir=root))


def test_a_head_of_another_layout_is_imported_and_says_which(root: Path, tmp_path: Path) -> None:
    source = public_medusa().save(tmp_path / "medusa")
    imported = run(root, "import", str(source), "--as", "mine", "--json")
    assert imported.exit_code == 0, imported.stderr
    assert json.loads(imported.stdout)["layout"] == "medusa"
    refused = run(root, "export", "mine@1", str(tmp_path / "out"))
    assert refused.exit_code == 3
    assert "allowed to export: eagle3" in refused.stderr
