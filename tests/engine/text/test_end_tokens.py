"""Which tokens of a vocabulary end an answer by their names."""

import pytest

from prolepsis.engine.text.named_tokens import named_ends


@pytest.mark.parametrize(
    ("special", "others", "ends"),
    [
        (
            ["<|im_end|>", "x", "<|endoftext|>"],
            ["<|fim_pad|>", "<tool_call>"],
            {"<|im_end|>", "<|endoftext|>", "<|fim_pad|>"},
        ),
        (["x"], ["</s>", "[PAD]", "<eos>"], set()),
        (["</s>", "[PAD]", "<reponame>"], [], {"</s>", "[PAD]", "<reponame>"}),
        (["<|end|>", "<|user|>"], [], {"<|end|>"}),
        (["<|end|>", "<|return|>", "<|call|>"], [], {"<|return|>", "<|call|>"}),
        (["<|end|>", "<|flush|>", "<|calls|>"], [], {"<|flush|>", "<|calls|>"}),
        (["<turn|>"], ["<|tool_response>"], {"<turn|>", "<|tool_response>"}),
    ],
    ids=["qwen", "tags", "special tags", "phi", "gpt-oss", "solar", "gemma 4"],
)
def test_ends_are_known_by_name(special: list[str], others: list[str], ends: set[str]) -> None:
    names = [*special, *others]
    ids = {name: i for i, name in enumerate(names)}
    found = named_ends({name: ids[name] for name in special}, {name: ids[name] for name in others})
    assert {names[i] for i in found} == ends
    assert list(found) == sorted(found)
