"""Flags from dataclasses, by tyro; its message for a wrong flag cut down to one sentence."""

import contextlib
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tyro

from ricnet.errors import RicnetError


def parse(kind: Any, arguments: Sequence[str], command: str, default: Any = tyro.MISSING_NONPROP) -> Any:
    """An instance of a dataclass from flags; the fields of nested ones are flags of their own, without a prefix."""
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            return tyro.cli(
                kind,
                args=list(arguments),
                prog=f"ric {command}",
                default=default,
                config=(tyro.conf.OmitArgPrefixes, tyro.conf.HelptextFromCommentsOff),
            )
    except SystemExit as end:
        if end.code in (0, None):
            raise
        raise RicnetError(f"{_sentence(complaint.getvalue())}; see ric {command} --help.") from None


def make_folder(path: Path) -> Path:
    """Before any work is done for it."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RicnetError(f"--out {path} cannot be made ({error.strerror}); choose another folder.") from error
    return path


def _sentence(message: str) -> str:
    """tyro frames its explanations; keep the words of the first one."""
    lines = [re.sub(r"^[\s│|]+|[\s│|]+$", "", line) for line in message.splitlines()]
    words = [line for line in lines if line and not set(line) <= set("─╭╮╰╯-+ ") and line[0] not in "╭╰"]
    text = re.split("Argument helptext|For full helptext|Perhaps you meant", " ".join(words))[0]
    return re.sub(r"\s+", " ", text).strip().rstrip(".:") or "these options cannot be read"
