"""Files: strict YAML in, atomic writes out, and the hash that identifies content."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import tempfile
from pathlib import Path
from typing import Any

import yaml

from experiments.errors import UserError


class _StrictLoader(yaml.SafeLoader):
    """SafeLoader that reads ``1e-3`` as a number and refuses a key given twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                line = key_node.start_mark.line + 1
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key!r} is given twice (line {line})", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


# PyYAML follows YAML 1.1, where 1e-3 without a dot is a string.
_StrictLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:[0-9][0-9_]*)(?:\.[0-9_]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)


def load_yaml(path: Path) -> dict[str, Any]:
    """Reads one YAML file that holds a mapping.

    Raises:
        UserError: the file is missing, is not YAML, or does not hold a mapping.
    """
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=_StrictLoader)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({error})") from None
    except yaml.YAMLError as error:
        raise UserError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: expected a mapping of keys to values")
    return content


def dump_yaml(content: dict[str, Any]) -> str:
    """Writes a mapping as YAML text, keys in the given order."""
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=100)


def canonical_json(content: Any) -> str:
    """JSON text that depends on the content only: sorted keys, no spaces, no NaN."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)


def content_hash(content: Any) -> str:
    """SHA-256 (hexadecimal) of the canonical JSON of ``content``."""
    return hashlib.sha256(canonical_json(content).encode()).hexdigest()


def plain_json(content: Any) -> Any:
    """Replaces NaN and infinities, which JSON does not have, by null."""
    if isinstance(content, dict):
        return {key: plain_json(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [plain_json(value) for value in content]
    if isinstance(content, float) and not math.isfinite(content):
        return None
    return content


def write_atomic(path: Path, text: str) -> None:
    """Writes ``text`` so that a reader sees the old file or the whole new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_if_changed(path: Path, text: str) -> bool:
    """Writes ``text`` unless the file holds it already (its time stamp then stays)."""
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return False
    write_atomic(path, text)
    return True
