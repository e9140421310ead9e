"""A model file finds its head by its weights, whatever it is called."""

from pathlib import Path

from prolepsis.core.config import EngineConfig
from prolepsis.engine.models.heads.aliases import HeadAliases, head_folder
from prolepsis.engine.models.heads.registry import chosen_head
from prolepsis.engine.models.load import LoadedModel, load_model
from prolepsis.engine.models.targets.lean import LeanModel
from tests.engine.models.files.gguf_files import write_gguf
from tests.engine.models.random_heads import save_random_head
from tests.engine.models.tiny import random_model


def loaded(file: Path) -> LoadedModel:
    return load_model(EngineConfig(model=str(file), forward="lean", device="cpu"))


def test_a_renamed_file_keeps_its_head_and_other_weights_are_told_that_none_fits(tmp_path: Path) -> None:
    root, file = tmp_path / "models", tmp_path / "m.gguf"
    write_gguf(file, random_model("llama", {"vocab_size": 320}), "llama")
    target = loaded(file)
    assert isinstance(target.model, LeanModel)
    save_random_head(head_folder(root) / "own", target.model.shape, {"target_fingerprint": target.identity})
    HeadAliases(root).set("own", "champion", 1)
    renamed = loaded(file.rename(tmp_path / "my own.gguf"))
    head, reason = chosen_head("auto", renamed, root)
    assert head is not None
    assert (head.info.name, reason) == ("own@1", f"champion for these weights ({target.identity})")
    write_gguf(file, random_model("llama", {"vocab_size": 320}, seed=1), "llama")
    head, reason = chosen_head("auto", loaded(file), root)
    assert head is None
    assert "no head for these weights" in reason
    assert "nearest: own@1, it was trained for other weights" in reason
