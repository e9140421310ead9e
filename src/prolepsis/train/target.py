"""What training needs of a target besides its forward: tokenizer, geometry, and the weights at both ends."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from prolepsis.models.files.store import resolve
from prolepsis.models.files.tokenizer import Tokenizer, load_tokenizer
from prolepsis.models.files.weights import open_checkpoint
from prolepsis.models.heads.format import HeadConfig
from prolepsis.models.load import identity_of
from prolepsis.models.targets.lean_shape import LeanEnds, LeanShape, lean_ends
from prolepsis.train.batches import TargetEnds
from prolepsis.train.prompts import turn_prefix


@dataclass(frozen=True, slots=True)
class Target:
    """A target as the trainer knows it."""

    name: str
    path: Path
    identity: str
    """`LoadedModel.identity`: of weights and tokenizer."""
    tokenizer: Tokenizer
    shape: LeanShape
    ends: LeanEnds
    layer_config: Mapping[str, Any]
    """The transformers configuration of the model, as JSON values: a head's layer has the same geometry."""
    eos_token_ids: tuple[int, ...]

    @property
    def taps(self) -> tuple[int, ...]:
        """Layers whose input a head reads, as EAGLE-3 chooses them."""
        layers = self.shape.layers
        return (min(2, layers), layers // 2, max(0, layers - 3))

    @property
    def recorded_taps(self) -> tuple[int, ...]:
        """`taps`, and what leaves the last layer: the target's own prediction is made from it."""
        return (*self.taps, self.shape.layers)

    @property
    def preamble(self) -> int:
        """Tokens of the chat template before a user's first word."""
        return len(turn_prefix(self.tokenizer, None, ""))

    def head_config(self, draft_vocab: int) -> HeadConfig:
        """Return the configuration of a head over `draft_vocab` tokens."""
        return HeadConfig(
            shape=replace(self.shape, layers=1, qkv_bias=False, qk_norm=False),
            taps=self.taps,
            draft_vocab=draft_vocab,
            verifier=self.name,
        )

    def ends_for(self, target_ids: Tensor) -> TargetEnds:
        """Return the frozen weights in float32, the output head cut to `target_ids`."""
        head = self.ends.embedding if self.ends.head is None else self.ends.head
        return TargetEnds(
            self.ends.embedding.float(), self.ends.final_norm.float(), head[target_ids].float(), self.shape.eps
        )


def open_target(name: str, model_dir: Path | None = None) -> Target:
    """Open a model's files; raises `ModelLoadError` for one that is not Llama-shaped, `ModelNotFound` for none."""
    path = resolve(name, model_dir)
    checkpoint = open_checkpoint(path)
    shape = LeanShape.from_config(checkpoint.config)
    layer_config = {key: value for key, value in checkpoint.config.to_dict().items() if key != "architectures"}
    return Target(
        name=name,
        path=path,
        identity=identity_of(path),
        tokenizer=load_tokenizer(path),
        shape=shape,
        ends=lean_ends(checkpoint, shape),
        layer_config={**layer_config, "model_type": "llama", "architectures": ["LlamaForCausalLM"]},
        eos_token_ids=checkpoint.eos_token_ids,
    )
