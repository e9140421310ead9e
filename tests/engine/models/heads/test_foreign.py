"""Import of draft heads in public layouts: files that are found, and what is refused in which words."""

import json
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from prolepsis.core.errors import ModelLoadError
from prolepsis.engine.models.files.weights import open_checkpoint
from prolepsis.engine.models.heads.exchange import archive_of, export_head, import_archive, import_head
from prolepsis.engine.models.heads.registry import find_head, list_heads, misfit
from prolepsis.engine.models.targets.lean_shape import LeanShape
from prolepsis.engine.models.targets.lean_weights import check_names
from tests.engine.models.public_heads import PublicHead, public_head, public_medusa
from tests.engine.models.tiny import save_tiny


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "models"


def changed(public: PublicHead, **tensors: Tensor) -> PublicHead:
    """The head with more or other tensors, whose names are given with _ for the dots."""
    return replace(public, tensors={**public.tensors, **{name.replace("__", "."): t for name, t in tensors.items()}})


def refusal(public: PublicHead, root: Path, **entries: object) -> str:
    """What an import answers; nothing is left of the head."""
    folder = public.save(root.parent / "given", **entries)
    with pytest.raises(ModelLoadError) as error:
        import_head(folder, "mine", root)
    assert not [entry for entry in list_heads(root) if not entry.shipped]
    assert str(folder) in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    ("kind", "layout"), [("eagle", "eagle"), ("qwen", "mtp"), ("deepseek", "mtp"), ("medusa", "medusa")]
)
def test_a_layout_is_told_by_its_tensors_and_only_the_heads_are_kept(kind: str, layout: str, root: Path) -> None:
    given = root.parent / "given"
    source = public_medusa().save(given) if kind == "medusa" else public_head(kind).save(given)
    entry = import_head(source, "mine", root)
    assert (entry.config.layout, entry.label, entry.provenance.source) == (layout, "mine@1", str(given))
    assert not any("embed_tokens" in name for name in load_file(entry.folder / "model.safetensors"))
    again = import_archive(archive_of(entry), "mine@2", root)
    assert (again.config.layout, again.provenance.sha256) == (layout, entry.provenance.sha256)
    with pytest.raises(ModelLoadError, match=f"mine@1 has the layout {layout}; allowed to export: eagle3"):
        export_head(entry, root / "exported")


def test_pickled_files_are_read_without_running_what_they_hold(root: Path, tmp_path: Path) -> None:
    medusa = import_head(public_medusa().save(tmp_path / "medusa", pickled=True), "medusa", root)
    assert medusa.target == "someone/tiny"
    eagle = public_head("eagle").save(tmp_path / "eagle")
    weights = eagle / "model.safetensors"
    torch.save(load_file(weights), eagle / "pytorch_model.bin")
    weights.unlink()
    assert import_head(eagle, "eagle", root).config.layout == "eagle"
    torch.save({"fc.weight": print}, eagle / "pytorch_model.bin")
    with pytest.raises(ModelLoadError, match=r"pytorch_model\.bin is not a whole file of tensors"):
        import_head(eagle, "eagle", root)


def test_fields_of_the_text_and_later_mtp_layers(root: Path, tmp_path: Path) -> None:
    public = public_head("qwen")
    layer = {
        name.replace(".layers.0.", ".layers.1."): t.clone()
        for name, t in public.tensors.items()
        if ".layers.0." in name
    }
    folder = replace(public, tensors={**public.tensors, **layer}).save(tmp_path / "given")
    (folder / "config.json").write_text(json.dumps({"model_type": "outer", "text_config": public.config.to_dict()}))
    entry = import_head(folder, "mine", root)
    assert entry.config.shape.hidden == 64
    assert not any("layers.1." in name for name in load_file(entry.folder / "model.safetensors"))


def test_what_no_forward_here_reads_is_refused_by_name(root: Path) -> None:
    eagle, deepseek = public_head("eagle"), public_head("deepseek")
    second = changed(eagle, layers__1__mlp__up_proj__weight=torch.zeros(1))
    assert "looks like EAGLE-1, which has no tensor 'layers.1.mlp.up_proj.weight'" in refusal(second, root)
    gate = changed(deepseek, model__layers__2__self_attn__g_proj__weight=torch.zeros(1, 1))
    assert "tensors that no forward here reads: layers.0.self_attn.g_proj.weight" in refusal(gate, root)
    assert refusal(deepseek, root, kv_lora_rank=8).endswith("a draft head with kv_lora_rank 8; allowed: None")
    coarse = changed(deepseek, model__layers__2__eh_proj__weight=torch.zeros(64, 128).to(torch.float8_e4m3fn))
    assert "eh_proj.weight is in float8_e4m3fn; allowed for a draft head: bfloat16, float16" in refusal(coarse, root)
    assert refusal(eagle, root, hidden_act="gelu").endswith("a draft head with hidden_act 'gelu'; allowed: 'silu'")
    assert "rope type 'dynamic'; allowed: default" in refusal(eagle, root, rope_scaling={"type": "dynamic"})


def test_what_is_missing_or_misshapen_is_said(root: Path) -> None:
    eagle = public_head("eagle")
    partial = {name: tensor for name, tensor in eagle.tensors.items() if "k_proj" not in name}
    missing = refusal(replace(eagle, tensors=partial), root)
    assert missing.endswith("has no tensor 'layers.0.self_attn.k_proj.weight'")
    wide = refusal(eagle, root, num_key_value_heads=4)
    assert wide.endswith("layers.0.self_attn.k_proj.weight is [32, 64]; its config says [64, 64]")
    other = refusal(replace(eagle, tensors={"a": torch.zeros(1)}), root)
    assert "holds no draft head: found a; allowed: EAGLE-3 in the speculators format, an MTP layer as in Qwen3" in other


def test_a_head_fits_targets_of_its_sizes_and_a_raw_checkpoint_is_to_be_imported(root: Path, tmp_path: Path) -> None:
    source = public_head("eagle").save(tmp_path / "given")
    entry = import_head(source, "mine", root)
    for changes, fault in (({}, None), ({"vocab_size": 200}, "its vocab size is 160; the target's is 200")):
        save_tiny(tmp_path / "target", "llama", cast(dict[str, object], changes))
        assert misfit(entry, LeanShape.from_config(open_checkpoint(tmp_path / "target").config), "any") == fault
    with pytest.raises(ModelLoadError, match="allowed: 'eagle3', or a head that `prolepsis models import` wrote"):
        find_head(str(source), root)


@pytest.mark.parametrize("kind", ["qwen", "deepseek"])
def test_a_model_runs_beside_its_own_mtp_layer_which_is_imported_from_its_folder(
    kind: str, root: Path, tmp_path: Path
) -> None:
    save_tiny(tmp_path, "llama", {})
    weights, config = tmp_path / "model.safetensors", tmp_path / "config.json"
    public, target = public_head(kind), load_file(weights)
    save_file({name: t.contiguous() for name, t in {**public.tensors, **target}.items()}, weights)
    own = json.loads(config.read_text())
    config.write_text(json.dumps({**public.config.to_dict(), **own}))
    assert import_head(tmp_path, "mine", root).config.layout == "mtp"
    config.write_text(json.dumps(own))
    checkpoint = open_checkpoint(tmp_path)
    check_names(checkpoint, LeanShape.from_config(checkpoint.config))
    save_file({**target, "model.layers.2.mlp.up_proj.weight": torch.zeros(1)}, weights)
    checkpoint = open_checkpoint(tmp_path)
    with pytest.raises(ModelLoadError, match=r"model\.layers\.2\.mlp\.up_proj\.weight"):
        check_names(checkpoint, LeanShape.from_config(checkpoint.config))


def test_medusa_needs_a_second_head(root: Path, tmp_path: Path) -> None:
    medusa = public_medusa()
    folder = replace(medusa, blocks=medusa.blocks[:1], outputs=medusa.outputs[:1]).save(tmp_path / "given")
    with pytest.raises(ModelLoadError, match="Medusa with 1 heads; allowed: 2 or more"):
        import_head(folder, "mine", root)
    save_file({"0.1.weight": torch.zeros(160, 64)}, folder / "medusa_lm_head.safetensors")
    with pytest.raises(ModelLoadError, match="holds no draft head"):
        import_head(folder, "mine", root)
