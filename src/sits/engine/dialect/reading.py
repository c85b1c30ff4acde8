"""Reading requests and answers as shapes, and telling what cannot be said in the other dialect.

The shapes say what there is; a decoder's complaint becomes an error that names the field: what no shape knows has no meaning
in the other dialect (`untranslatable_field`), what is of a wrong type is wrong in any (`invalid_field`).  A request's errors
are the caller's, an answer's (`AnswerError`) the engine's.

Deliberately absent: the shapes, and which engine it was.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar

import msgspec

from sits.core.errors import CallerError

Answer = TypeVar("Answer")

_UNKNOWN = re.compile(r"Object contains unknown field `(.*?)`(?: - at `\$\.?([^`]*)`)?", re.DOTALL)
_AT = re.compile(r"(.*) - at `\$\.?(.*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.*)`")


class AnswerError(Exception):
    """Something is wrong with an engine's answer; `what` is said of the engine."""

    def __init__(self, code: str, what: str) -> None:
        super().__init__(what)
        self.code = code
        self.what = what


def decoded(decode: Callable[[bytes], Answer], data: bytes) -> Answer:
    """An engine's JSON.

    Raises:
        AnswerError: it is not what it should be, or a part of it is nothing this dialect knows.

    """
    try:
        return decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        if str(error).startswith("Invalid value"):
            what = "answered with a part that the caller's dialect has no words for"
            raise AnswerError("engine_untranslatable", f"{what}: {error}") from error
        raise AnswerError("engine_garbage", f"answered with what cannot be read: {error}") from error


def read(decoder: msgspec.json.Decoder[Any], body: bytes, other: str, inside: str = "") -> Any:
    """A request body, or its field `inside`, as `decoder`'s type; `other` names the dialect it is to be said in.

    Raises:
        CallerError: names the field, and says whether it is wrong or only has no meaning in `other`.

    """
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        _refuse_invalid(str(error), other, inside)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CallerError(f"the body is not JSON: {error}", code="invalid_json") from error


def _refuse_invalid(text: str, other: str, inside: str) -> NoReturn:
    unknown = _UNKNOWN.fullmatch(text)
    if unknown:
        refuse(_path(inside, unknown.group(2), unknown.group(1)), other)
    at = _AT.fullmatch(text)
    what, field = (at.group(1), _path(inside, at.group(2))) if at else (text, inside)
    if what.startswith(("Invalid value", "Invalid enum value", "Expected `null`")):
        refuse(field, other, what)
    missing = _MISSING.fullmatch(what)
    if missing:
        field = _path(field, missing.group(1))
    raise CallerError(f"{field or 'body'}: {what}", field=field or None, code="invalid_field")


def _path(*parts: str | None) -> str:
    return ".".join(part for part in parts if part)


def refuse(field: str, other: str, why: str = "", hint: str = "") -> NoReturn:
    """Say that `field` has no meaning in `other`."""
    raise CallerError(
        f"{field}: {why or 'not known there'}; the engine of this model speaks {other}, and this cannot be said in it",
        field=field,
        code="untranslatable_field",
        hint=hint or "leave it out, or ask for a model whose engine speaks the dialect of this endpoint",
    )


def check_neutral(told: Any, neutral: Mapping[str, tuple[Any, ...]], other: str) -> None:
    """Refuse fields of `told` that have another value than unset or one of those that change nothing."""
    for field, values in neutral.items():
        value = getattr(told, field)
        if value is not None and value not in values:
            refuse(field, other)
