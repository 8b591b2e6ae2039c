"""Documents that are sealed: strict models, one byte form, one digest.

The byte form is RFC 8785 on a profile without floating point: integers in ns, bytes or ppm,
decimals as text. Must never write a float, a non-NFC string or a key outside ASCII.
Source: RFC 8785; DESIGN section 6.
"""

from __future__ import annotations

import hashlib
import json
import unicodedata
from typing import Annotated, Any, NoReturn, TypeVar

import rfc8785
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from window.errors import WindowError
from window.exit_codes import ExitCode

__all__ = [
    "Count",
    "DecimalText",
    "Digest",
    "Nanoseconds",
    "SealedModel",
    "canonical_bytes",
    "canonical_json",
    "parse_document",
    "plain_json",
    "sha256_hex",
    "strict_json",
]

LARGEST_INTEGER = 2**53 - 1

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
DecimalText = Annotated[str, Field(pattern=r"^-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,18})?$")]
Count = Annotated[int, Field(ge=0, le=LARGEST_INTEGER)]
Nanoseconds = Annotated[int, Field(ge=0, le=LARGEST_INTEGER)]


class SealedModel(BaseModel):
    """A record that is hashed: frozen, strict, and closed to unknown fields."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


Model = TypeVar("Model", bound=BaseModel)


def sha256_hex(data: bytes) -> str:
    """Return the sha-256 of some bytes as 64 hex digits."""
    return hashlib.sha256(data).hexdigest()


def canonical_bytes(document: SealedModel) -> bytes:
    """Return the one byte form of a model. Raises ValueError on a float, an odd key or a non-NFC string."""
    return canonical_json(document.model_dump(mode="json"))


def canonical_json(value: Any) -> bytes:
    """Return the RFC 8785 form of plain JSON data under the profile of this module. Raises ValueError."""
    _check_profile(value, "document")
    return rfc8785.dumps(value)


def plain_json(value: Any) -> Any:
    """Return data as canonical JSON would give it back: tuples as lists, enumerations as text. Raises ValueError."""
    return json.loads(canonical_json(value))


def _check_profile(value: Any, where: str) -> None:
    """Walk plain data and refuse what the profile forbids, naming the place."""
    if value is None or isinstance(value, bool):
        return
    if isinstance(value, int):
        if abs(value) > LARGEST_INTEGER:
            raise ValueError(f"{where}: the integer {value} is beyond 2^53-1; write it as text")
    elif isinstance(value, float):
        raise ValueError(f"{where}: floating point is not allowed; write a decimal as text")
    elif isinstance(value, str):
        if unicodedata.normalize("NFC", value) != value:
            raise ValueError(f"{where}: text must be in Unicode form NFC")
    elif isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str) or not key.isascii():
                raise ValueError(f"{where}: the key {key!r} must be ASCII text")
            _check_profile(inner, f"{where}.{key}")
    elif isinstance(value, (list, tuple)):
        for index, inner in enumerate(value):
            _check_profile(inner, f"{where}[{index}]")
    else:
        raise ValueError(f"{where}: {type(value).__name__} has no canonical form")


def strict_json(data: bytes) -> Any:
    """Return parsed JSON; duplicate keys, floats, NaN and non-NFC text are refused. Raises ValueError."""
    value = json.loads(
        data.decode("utf-8"), object_pairs_hook=_unique_pairs, parse_float=_no_float, parse_constant=_no_float
    )
    _check_profile(value, "document")
    return value


def _unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build an object and refuse a key that is given twice."""
    built: dict[str, Any] = {}
    for key, value in pairs:
        if key in built:
            raise ValueError(f"the key {key!r} is given twice")
        built[key] = value
    return built


def _no_float(text: str) -> NoReturn:
    """Refuse any number with a point, an exponent, NaN or infinity."""
    raise ValueError(f"floating point is not allowed: {text}")


def parse_document(model: type[Model], data: bytes, name: str) -> Model:
    """Return a validated model from its bytes; anything wrong is one sentence that names `name`. Raises WindowError."""
    try:
        strict_json(data)
        return model.model_validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "the whole document"
        message = first["msg"].removeprefix("Value error, ").replace("\n", " ")
        raise WindowError(f"{name} is not valid at {place}: {message}", ExitCode.BAD_DATA) from error
    except ValueError as error:
        message = str(error).replace("\n", " ")
        raise WindowError(f"{name} is not readable as canonical JSON: {message}", ExitCode.BAD_DATA) from error
