"""A shared library of the kernels, called by ctypes through its C face (`sources/face.h`).

All functions return what they are asked for, or 0, and -1 where they fail. Nothing in C knows the types of arrays:
who calls passes addresses of `places_of` or `address`, which check them, and keeps the arrays until the call is over.
"""

import ctypes
import re
import weakref
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

FACE = 3
"""The version of the face that this package calls."""
_TABLE = """
    mapping:i mapping_data:p mapping_free:p pack:piip linear:piipipppi move_slots:pppi
    multiply_registers:i multiply_in_cache:iii attend_in_cache:iiiii
    decoder:pii decoder_free:p decoder_head:ppi decoder_exit:pii decoder_team:p decoder_weight_bytes:p
    decoder_output_rows:ppip decoder_embedding_rows:ppip
    decoder_add_rope:pppii decoder_add_layer:pp decoder_set_ends:pppp decoder_set_fusion:pppppii
    decoder_set_output:ppp decoder_take_output:pppip decoder_set_levels:piippppppp
    decoder_forward:ppppipp decoder_draft:ppppipp decoder_look_ahead:pppipppp decoder_top_k:ppiiipp
    decoder_follow:pppipipiipp decoder_trees:pppiippppppp
    pick:piipp verify:piipippppppp probabilities:pip gumbel:upip argmax:piipip below_infinity:piipip
    sequence:!i sequence_free:!p sequence_size:!p sequence_give:!ppi sequence_follow_given:!p sequence_goes_on:!p
    shared:!i shared_free:!p shared_add:!pipi shared_bytes:!p shared_size:!p propose:!pipppppppppp merge:!iipppippppp
"""
FUNCTIONS: dict[str, str] = dict(re.findall(r"(\w+):(\S+)", _TABLE))
"""Parameters of each function: p address or None, i int64, u uint64; behind "!" it keeps the interpreter's lock."""
_TYPES: "dict[str, type[ctypes._SimpleCData[Any]]]" = {
    "p": ctypes.c_void_p,
    "i": ctypes.c_int64,
    "u": ctypes.c_uint64,
    "b": ctypes.c_int32,
    "d": ctypes.c_double,
    "f": ctypes.c_float,
}


def fields(*groups: str) -> "tuple[tuple[str, type[ctypes._SimpleCData[Any]]], ...]":
    """Return the fields of a struct: of each group a letter for their type, as in `FUNCTIONS`, and their names."""
    split = [group.split() for group in groups]
    return tuple((name, _TYPES[letter]) for letter, *names in split for name in names)


class Library:
    """One file. Its functions are attributes under their names in `FUNCTIONS`; they raise `RuntimeError`."""

    def __init__(self, path: Path) -> None:
        """Open a library; raises `OSError` for a file that is none, `RuntimeError` for another version of the face."""
        self.path = path
        self._loose, self._locked = ctypes.CDLL(str(path)), ctypes.PyDLL(str(path))
        for function in (self._loose.prolepsis_error, self._locked.prolepsis_error):
            function.restype = ctypes.c_char_p
        face = self._loose.prolepsis_face()
        if face != FACE:
            raise RuntimeError(f"{path} has version {face} of the face; allowed: {FACE}")

    def __getattr__(self, name: str) -> Callable[..., int]:
        if name not in FUNCTIONS:
            raise AttributeError(name)
        locked = FUNCTIONS[name].startswith("!")
        function = getattr(self._locked if locked else self._loose, f"prolepsis_{name}")
        function.argtypes = [_TYPES[letter] for letter in FUNCTIONS[name].removeprefix("!")]
        function.restype = ctypes.c_int64
        function.errcheck = self._checked
        setattr(self, name, function)
        call: Callable[..., int] = function
        return call

    def _checked(self, result: int, *_: object) -> int:
        if result == -1:
            raise RuntimeError(self._locked.prolepsis_error().decode())
        return result


class NativeHandle:
    """Something that a library made, freed with its last reference."""

    def __init__(self, pointer: int, free: Callable[..., int]) -> None:
        self.pointer = pointer
        weakref.finalize(self, free, pointer).atexit = False  # other threads may still compute then


@dataclass(frozen=True, slots=True)
class Team:
    """Threads of a decoder, which live as long as it: kernels of other libraries share their work (`threads.h`)."""

    pointer: int
    decoder: NativeHandle


def address(tensor: Tensor, dtype: torch.dtype, *shape: int) -> int:
    """Return where a tensor lies; raises `ValueError` if it is not what a kernel reads there."""
    if tensor.dtype != dtype or tensor.shape != shape or not tensor.is_contiguous() or not tensor.is_cpu:
        given = f"{tensor.dtype} {list(tensor.shape)} of strides {tensor.stride()} on {tensor.device}"
        raise ValueError(f"a kernel takes {dtype} {list(shape)} in one piece on the CPU; given {given}")
    return tensor.data_ptr()


def places_of(*arrays: "array[Any]") -> list[int]:
    return [values.buffer_info()[0] for values in arrays]


def integers(values: Iterable[int]) -> "array[int]":
    """Return int64 values; raises `TypeError` or `OverflowError` for others."""
    return array("q", values)


def zeros(count: int) -> "array[int]":
    return array("q", bytes(8 * count))
