"""The registry of draft heads: versions, fingerprints, checksums, import and export."""

import json
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import cast
from zipfile import ZipFile

import pytest
import torch
from structlog.testing import capture_logs

from prolepsis.core.errors import InvalidParameter, ModelLoadError
from prolepsis.engine.models.draft_models import list_draft_models, warn_of_other_target
from prolepsis.engine.models.files.weights import open_checkpoint
from prolepsis.engine.models.heads.aliases import HeadAliases, head_folder
from prolepsis.engine.models.heads.exchange import archive_of, export_head, import_archive, import_head, remove_head
from prolepsis.engine.models.heads.format import CONFIG, WEIGHTS, HeadStorage, load_head, read_config, save_head
from prolepsis.engine.models.heads.levels import LEVELS, save_levels
from prolepsis.engine.models.heads.registry import (
    HeadEntry,
    chosen_head,
    find_head,
    fitting_entry,
    head_for,
    list_heads,
    open_head,
    seen_by_auto,
)
from prolepsis.engine.models.load import LoadedModel
from prolepsis.engine.models.targets.lean import LeanModel
from prolepsis.engine.models.targets.lean_shape import LeanShape
from prolepsis.engine.text.model_tokenizer import ModelTokenizer
from tests.engine.models.random_heads import (
    levels_report,
    random_head,
    random_levels,
    record_checksum,
    save_random_head,
)
from tests.engine.models.tiny import save_tiny
from tests.fakes import Letters, TableModel


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = tmp_path_factory.mktemp("target")
    save_tiny(folder, "llama", {})
    checkpoint = open_checkpoint(folder, torch.float32)
    model = LeanModel(checkpoint, LeanShape.from_config(checkpoint.config), "tiny", torch.device("cpu"))
    return LoadedModel(model, cast(ModelTokenizer, Letters()), "tiny", "tiny-identity")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder of models without any head but those of the package."""
    return tmp_path / "models"


def own(root: Path) -> list[HeadEntry]:
    """Return the user's heads."""
    return [entry for entry in list_heads(root) if not entry.shipped]


def shape_of(target: LoadedModel) -> LeanShape:
    assert isinstance(target.model, LeanModel)
    return target.model.shape


def put(root: Path, fitting: LoadedModel, label: str, **said: object) -> Path:
    return save_random_head(head_folder(root) / label, shape_of(fitting), said)


def flip(folder: Path) -> None:
    """Change the last byte of a head's weights."""
    weights = bytearray((folder / WEIGHTS).read_bytes())
    weights[-1] ^= 1
    (folder / WEIGHTS).write_bytes(weights)


def test_a_name_is_its_newest_version_and_a_label_exactly_one(root: Path, target: LoadedModel) -> None:
    put(root, target, "a", version=2)
    put(root, target, "a@10")
    put(root, target, "a@9", version=77)  # the folder's name counts
    put(root, target, "b")
    assert [entry.label for entry in own(root)] == ["a@2", "a@9", "a@10", "b@1"]
    assert find_head("a", root).version == 10
    assert find_head("a@2", root).folder.name == "a"
    with pytest.raises(ModelLoadError, match=r"no draft head 'a@3'; allowed: a@2, a@9, a@10, b@1, .*or a folder"):
        find_head("a@3", root)


def test_the_users_head_comes_before_a_shipped_one_of_its_label(root: Path, target: LoadedModel) -> None:
    shipped = list_heads(root)[0]
    assert shipped.shipped
    put(root, target, shipped.label)
    (entry,) = (entry for entry in list_heads(root) if entry.label == shipped.label)
    assert not entry.shipped


def seen(root: Path, target: LoadedModel) -> dict[str, str]:
    return {entry.label: seen_by_auto(entry, target.identity, root) for entry in own(root)}


def test_auto_takes_the_best_measured_champion_of_exactly_this_target(root: Path, target: LoadedModel) -> None:
    fits = {"target_fingerprint": target.identity}
    put(root, target, "plain", **fits)
    put(root, target, "measured@1", **fits, acceptance={"all": {"hits": [5], "trials": [10]}})
    put(root, target, "measured@2", **fits, acceptance={"all": {"hits": [9], "trials": [10]}})
    put(root, target, "other", target_fingerprint="other", acceptance={"all": {"hits": [9], "trials": [9]}})
    assert head_for("auto", target, root) is None, "what was only imported, perhaps for a trial, does not draft"
    assert "alias measured@2 champion` adopts it" in seen(root, target)["measured@2"]
    for name in ("plain", "measured", "other"):
        HeadAliases(root).set(name, "champion", 1)
    head, reason = chosen_head("auto", target, root)
    assert head is not None
    assert head.info.name == "measured@1"
    assert reason.startswith(f"champion for these weights ({target.identity}), 1.50 tokens a pass")
    found = seen(root, target)
    assert (found["measured@1"], found["plain@1"]) == ("takes it: champion", "measured@1 comes before it")
    assert "only imported" in found["measured@2"]
    assert head_for("none", target, root) is None


def test_a_champion_comes_before_a_shipped_head(root: Path, target: LoadedModel) -> None:
    shipped = list_heads(root)[0]
    assert fitting_entry(shipped.target_fingerprint, root) == shipped
    assert seen_by_auto(shipped, shipped.target_fingerprint, root) == "takes it: shipped"
    put(root, target, "mine", target_fingerprint=shipped.target_fingerprint)
    assert fitting_entry(shipped.target_fingerprint, root) == shipped
    HeadAliases(root).set("mine", "champion", 1)
    taken = fitting_entry(shipped.target_fingerprint, root)
    assert taken is not None
    assert taken.label == "mine@1"
    assert seen_by_auto(shipped, shipped.target_fingerprint, root) == "mine@1 comes before it"


def test_auto_does_without_where_the_aliases_are_damaged(root: Path, target: LoadedModel) -> None:
    put(root, target, "a", target_fingerprint=target.identity)
    (head_folder(root) / "aliases.json").write_text("{")
    head, reason = chosen_head("auto", target, root)
    assert head is None
    assert "aliases.json is damaged" in reason


def test_a_misfit_names_the_difference(root: Path, target: LoadedModel) -> None:
    put(root, target, "other", target="big", target_fingerprint="00ff")
    with pytest.raises(ModelLoadError, match=r"other@1 does not fit tiny: .* other weights: big with fingerprint 00ff"):
        open_head(find_head("other", root), target)
    save_random_head(head_folder(root) / "wide", replace(shape_of(target), hidden=128))
    with pytest.raises(ModelLoadError, match="its hidden size is 128; the target's is 64"):
        open_head(find_head("wide", root), target)
    table = LoadedModel(TableModel(), cast(ModelTokenizer, Letters()), "fp")
    with pytest.raises(ModelLoadError, match="the forward table cannot run draft heads"):
        open_head(find_head("other", root), table)


REASONS: dict[str, tuple[list[tuple[str, str, str]], str]] = {
    "of these weights": (
        [("a", "", "{ours}"), ("b", "tiny", "")],
        "no head for these weights ({ours}) is shipped or champion; nearest: a@1, it was only imported; "
        "`prolepsis models alias a@1 champion` adopts it",
    ),
    "none of them": (
        [("a", "big", "00" * 16)],
        "no head for these weights ({ours}) is shipped or champion; nearest: a@1, it was trained for other weights: "
        f"big with fingerprint {'00' * 16}, not {{ours}}",
    ),
    "without a target": (
        [("a", "big", "00ff"), ("b", "tiny", "")],
        "no head for these weights ({ours}) is shipped or champion; nearest: b@1, it records no target, and drafts "
        "if draft_head names it",
    ),
    "by the name of a file": (
        [("a", "tiny", "0123456789abcdef")],
        "no head for these weights ({ours}) is shipped or champion; nearest: a@1, it was trained for tiny with "
        "fingerprint 0123456789abcdef, which depends on the name of the file and is no longer used; if these are its "
        "weights, write {ours} as prolepsis.target_fingerprint into {root}/heads/a/config.json",
    ),
}


@pytest.mark.parametrize("case", REASONS)
def test_auto_says_how_it_found_the_head_or_why_there_is_none(root: Path, target: LoadedModel, case: str) -> None:
    target = replace(target, identity="0f" * 16)
    heads, reason = REASONS[case]
    for name, trained_for, recorded in heads:
        fingerprint = recorded.format(ours=target.identity)
        put(root, target, name, target=trained_for, target_fingerprint=fingerprint)
    assert chosen_head("auto", target, root) == (None, reason.format(ours=target.identity, root=root.parent))
    assert chosen_head("none", target, root) == (None, "draft_head is none")


def test_of_heads_of_other_sizes_the_difference_is_said(root: Path) -> None:
    table = LoadedModel(TableModel(), cast(ModelTokenizer, Letters()), "fp")
    _, reason = chosen_head("auto", table, root)
    assert reason.endswith("the forward table cannot run draft heads; allowed: native, lean")


def test_a_damaged_head_is_refused_and_auto_does_without(root: Path, target: LoadedModel) -> None:
    folder = put(root, target, "a", target_fingerprint=target.identity)
    record_checksum(folder)
    HeadAliases(root).set("a", "champion", 1)
    assert head_for("auto", target, root) is not None
    flip(folder)
    with pytest.raises(ModelLoadError, match=r"is damaged: its SHA-256 is \w{64}, not the recorded \w{64}"):
        head_for("a", target, root)
    assert head_for("auto", target, root) is None


def test_unreadable_heads_are_left_out(root: Path, target: LoadedModel) -> None:
    put(root, target, "bad", version="new")
    (head_folder(root) / "bad-json").mkdir()
    (head_folder(root) / "bad-json" / CONFIG).write_text("{")
    put(root, target, ".staged.partial")
    assert own(root) == []


def test_import_copies_a_head_as_the_next_version_and_records_its_checksum(
    root: Path, tmp_path: Path, target: LoadedModel
) -> None:
    source = save_random_head(tmp_path / "from", shape_of(target))
    assert [import_head(source, "mine", root).label for _ in range(2)] == ["mine@1", "mine@2"]
    entry = import_head(source, "mine@7", root)
    assert (entry.label, entry.target, entry.provenance.source) == ("mine@7", "tiny", str(source))
    assert len(entry.provenance.sha256) == 64
    assert (entry.folder / WEIGHTS).read_bytes() == (source / WEIGHTS).read_bytes()
    with pytest.raises(InvalidParameter, match="mine@7 is taken"):
        import_head(source, "mine@7", root)
    for name in ("auto", "a/b", "", "a@0", ".a"):
        with pytest.raises(InvalidParameter, match="name is"):
            import_head(source, name, root)


@pytest.mark.parametrize("with_levels", [False, True])
def test_an_archive_is_the_head_on_another_machine(
    root: Path, tmp_path: Path, target: LoadedModel, with_levels: bool
) -> None:
    source = put(root, target, "mine@4", target_fingerprint=target.identity, manifests=["9f31"], serves=["0a" * 8])
    if with_levels:
        save_levels(source, random_levels(shape_of(target).hidden, count=2), {})
    record_checksum(source)
    content, there = archive_of(find_head("mine@4", root)), tmp_path / "there" / "models"
    assert content == archive_of(find_head("mine@4", root))
    entry = import_archive(content, "mine@4", there)
    assert (entry.folder, entry.provenance.serves) == (head_folder(there) / "mine@4", ("0a" * 8,))
    info = open_head(entry, target).info
    assert (info.levels, info.serves) == (2 * with_levels, frozenset(["0a" * 8]))
    assert import_archive(content, "mine@4", there) == entry, "it is there already"
    flip(put(root, target, "other"))
    with pytest.raises(InvalidParameter, match="mine@4 is taken"):
        import_archive(archive_of(find_head("other", root)), "mine@4", there)


def packed(name: str) -> bytes:
    content = BytesIO()
    with ZipFile(content, "w") as archive:
        archive.writestr(name, "{}")
    return content.getvalue()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cannot be unpacked"),
        (b"no archive" * 100, "cannot be unpacked"),
        (packed(CONFIG)[:-30], "cannot be unpacked"),
        (packed(CONFIG).replace(b"{}", b"[]", 1), "cannot be unpacked: Bad CRC"),
        (packed("../config.json"), "has no config.json"),
        (packed("/tmp/config.json"), "has no config.json"),
        (packed("run.py"), "has no config.json"),
        (packed(WEIGHTS), "has no config.json"),
    ],
)
def test_other_archives_are_refused_and_leave_nothing(root: Path, content: bytes, message: str) -> None:
    with pytest.raises(ModelLoadError, match=message):
        import_archive(content, "mine@1", root)
    assert own(root) == []


def test_an_archive_with_other_weights_than_it_records_is_refused(
    root: Path, tmp_path: Path, target: LoadedModel
) -> None:
    there = tmp_path / "there" / "models"
    folder = put(root, target, "mine@1")
    record_checksum(folder)
    flip(folder)
    with pytest.raises(ModelLoadError, match="is damaged: its SHA-256"):
        import_archive(archive_of(find_head("mine@1", root)), "mine@1", there)
    assert own(there) == []


def test_levels_go_with_their_head_and_are_loaded_with_it(root: Path, tmp_path: Path, target: LoadedModel) -> None:
    source = save_random_head(tmp_path / "from", shape_of(target))
    save_levels(source, random_levels(shape_of(target).hidden, count=2), {})
    entry = import_head(source, "mine", root)
    assert open_head(entry, target).info.levels == 2
    assert (export_head(entry, tmp_path / "out") / LEVELS).read_bytes() == (source / LEVELS).read_bytes()
    (entry.folder / LEVELS).unlink()
    assert open_head(entry, target).info.levels == 0


def test_an_incomplete_head_is_not_imported(root: Path, tmp_path: Path, target: LoadedModel) -> None:
    with pytest.raises(ModelLoadError, match=r"has no config\.json"):
        import_head(tmp_path, "a", root)
    source = save_random_head(tmp_path / "from", shape_of(target))
    config = json.loads((source / CONFIG).read_text())
    (source / CONFIG).write_text(json.dumps(config | {"speculators_model_type": "eagle"}))
    with pytest.raises(ModelLoadError, match="speculators_model_type is 'eagle'; allowed: 'eagle3'"):
        import_head(source, "a", root)
    (source / CONFIG).write_text(json.dumps(config))
    (source / WEIGHTS).write_bytes((source / WEIGHTS).read_bytes()[:-100])
    with pytest.raises(ModelLoadError, match="not a whole safetensors file"):
        import_head(source, "a", root)
    assert not head_folder(root).exists()


def test_an_exported_head_names_its_target(root: Path, tmp_path: Path, target: LoadedModel) -> None:
    entry = import_head(save_random_head(tmp_path / "from", shape_of(target)), "a", root)
    out = export_head(entry, tmp_path / "out" / "head", verifier="owner/tiny")
    config, weights = load_head(out)
    assert config == replace(read_config(entry.folder), verifier="owner/tiny")
    assert torch.equal(weights.q, load_head(entry.folder)[1].q)
    assert sorted(file.name for file in out.iterdir()) == [CONFIG, WEIGHTS]
    with pytest.raises(ModelLoadError, match="already exists"):
        export_head(entry, out)


def test_a_head_becomes_compact_and_whole_again(root: Path, tmp_path: Path, target: LoadedModel) -> None:
    model = target.model
    assert isinstance(model, LeanModel)
    config, weights = random_head(model.shape)
    weights.lm_head = model.output_rows(weights.target_ids).bfloat16()
    save_head(tmp_path / "from", config, weights, {"rope_type": "default", "rope_theta": 10000.0})
    save_levels(tmp_path / "from", random_levels(model.shape.hidden), {"said": 1})
    entry = find_head(str(tmp_path / "from"))

    def rows(ids: torch.Tensor) -> torch.Tensor:
        return model.output_rows(ids).bfloat16()

    compact = find_head(str(export_head(entry, tmp_path / "compact", weights="q8_0", rows=rows)))
    assert compact.config.storage == HeadStorage("q8_0", "target")
    assert compact.size < 0.6 * entry.size
    assert (compact.folder / LEVELS).stat().st_size < 0.6 * (entry.folder / LEVELS).stat().st_size
    assert open_head(compact, target).info.levels == 3
    assert import_head(compact.folder, "mine", root).config.storage == compact.config.storage
    with pytest.raises(ModelLoadError, match="is that of the target, which is not given"):
        export_head(compact, tmp_path / "none")
    whole = export_head(compact, tmp_path / "whole", rows=rows)
    config, again = load_head(whole)
    assert config.storage == HeadStorage()
    assert torch.equal(again.lm_head, weights.lm_head)
    torch.testing.assert_close(again.fc.float(), weights.fc.float(), rtol=0.02, atol=0.005)
    assert levels_report(whole) == {"said": 1}
    other = find_head(str(save_random_head(tmp_path / "other", model.shape)))
    document = json.loads((other.folder / CONFIG).read_text())
    layer = document["transformer_layer_config"]
    layer["rope_theta"] = layer.pop("rope_parameters")["rope_theta"]  # as older libraries write it
    (other.folder / CONFIG).write_text(json.dumps(document))
    kept = export_head(other, tmp_path / "kept", weights="q8_0", rows=rows)
    assert find_head(str(kept)).config.storage == HeadStorage("q8_0", "own"), "its output head is not the target's"


def test_only_the_users_heads_are_removed(root: Path, tmp_path: Path, target: LoadedModel) -> None:
    source = save_random_head(tmp_path / "from", shape_of(target))
    shipped = list_heads(root)
    import_head(source, "a", root)
    assert remove_head("a", root).label == "a@1"
    with pytest.raises(InvalidParameter, match=f"{shipped[-1].label} is in"):
        remove_head(shipped[-1].name, root)
    with pytest.raises(InvalidParameter, match="from@1 is in"):
        remove_head(str(source), root)
    assert list_heads(root) == shipped


def test_draft_models_are_model_folders_that_say_so(root: Path, target: LoadedModel) -> None:
    for name, document in {
        "other": {"prolepsis": {"target": "big", "target_fingerprint": "00ff"}},
        "ours": {"prolepsis": {"target": "tiny", "target_fingerprint": target.identity, "version": 2}},
        "unknown": {},
        "bad": {"prolepsis": []},
    }.items():
        (root / name).mkdir(parents=True)
        (root / name / CONFIG).write_text(json.dumps(document))
    entries = list_draft_models(root)
    assert [(e.name, e.version, e.provenance.target) for e in entries] == [("other", 1, "big"), ("ours", 2, "tiny")]
    with capture_logs() as lines:
        for name in ("ours", "unknown", "other"):
            warn_of_other_target(str(root / name), target, root)
    assert [line["draft_model"] for line in lines] == [str(root / "other")]


def test_an_alias_stands_for_a_version_and_moves(target: LoadedModel, root: Path) -> None:
    assert isinstance(target.model, LeanModel)
    for version in (1, 2):
        save_random_head(head_folder(root) / f"mine@{version}", target.model.shape, {})
    aliases = HeadAliases(root)
    assert aliases.set("mine", "champion", 1) is None
    assert find_head("mine@champion", root).label == "mine@1"
    assert find_head("mine", root).label == "mine@2"
    assert aliases.set("mine", "champion", 2) == 1
    assert (find_head("mine@champion", root).label, aliases.of("mine", 2)) == ("mine@2", ("champion",))
    with pytest.raises(InvalidParameter, match="mine@2 is champion"):
        remove_head("mine@2", root)
    assert aliases.set("mine", "champion", None) == 2
    with pytest.raises(ModelLoadError, match="'mine@champion'"):
        find_head("mine@champion", root)
    with pytest.raises(InvalidParameter, match="no alias 'champion'; it has: none"):
        aliases.set("mine", "champion", None)
    for word in ("7", "Champion", "", "a b", "x" * 33):
        with pytest.raises(InvalidParameter, match="allowed: up to 32 lower-case letters"):
            aliases.set("mine", word, 1)
