"""Starts an engine for a command: fetches a known model that is missing, builds, waits, and closes at the end."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prolepsis.cli.config import Settings
from prolepsis.cli.models import ensure_model

if TYPE_CHECKING:
    from prolepsis.engine.client import EngineClient
    from prolepsis.models.tokenizer import Tokenizer
