"""BytePS's keywords of `declare`, which choose a compressor, as compressors of this package.

Nothing here sends indices or seeds of its own, so bodies differ from BytePS's; what they bring does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradlane._compression import Compression, Compressor
from gradlane.errors import InvalidArgumentError, UnsupportedError

_KEYWORDS = (
    "byteps_compressor_type",
    "byteps_compressor_k",
    "byteps_compressor_onebit_scaling",
    "byteps_dithering_partition",
    "byteps_dithering_normalize",
    "byteps_ef_type",
    "byteps_error_feedback_type",
    "byteps_momentum_type",
    "byteps_momentum_mu",
    "byteps_seed",
)


def compressor_of(name: str, keywords: Mapping[str, object]) -> Compressor | None:
    """The compressor that these keywords ask for; None without keywords.

    The seed has no effect: chance follows from tensor, round and element, so that every run has the same bits.

    Raises:
        InvalidArgumentError: another keyword, a value without meaning, or settings of a compressor without its type.
        UnsupportedError: a compressor, or a form of one, that does not exist here.
    """
    given = {keyword: str(value).strip().lower() for keyword, value in keywords.items()}
    for keyword in given:
        if keyword not in _KEYWORDS:
            raise InvalidArgumentError(
                f"declare({name!r}) got {keyword!r}, which is no setting of a compressor; there are {', '.join(_KEYWORDS)}"
            )
    if not given:
        return None
    kind = given.get("byteps_compressor_type")
    if kind is None:
        raise InvalidArgumentError(
            f"declare({name!r}): {next(iter(given))!r} belongs to a compressor, and there is none; give byteps_compressor_type"
        )
    if kind not in _KINDS:
        raise UnsupportedError(f"declare({name!r}): there is no compressor {kind!r}; there are {', '.join(_KINDS)}")
    return _KINDS[kind](name, given)(**_wrapped(name, given))


def _onebit(name: str, given: Mapping[str, str]) -> Compressor:
    return Compression.onebit(scaling=_flag(name, "byteps_compressor_onebit_scaling", given, "true", "false"))


def _topk(name: str, given: Mapping[str, str]) -> Compressor:
    k = _number(name, "byteps_compressor_k", given)
    return Compression.topk(k=_millionths(k)) if k < 1 else Compression.topk(count=int(k))


def _randomk(name: str, given: Mapping[str, str]) -> Compressor:
    k = _number(name, "byteps_compressor_k", given)
    if k >= 1:
        raise UnsupportedError(f"declare({name!r}): randomk with byteps_compressor_k={k:g}; give a share below 1")
    return Compression.randomk(k=_millionths(k))


def _dithering(name: str, given: Mapping[str, str]) -> Compressor:
    return Compression.dithering(
        s=int(_number(name, "byteps_compressor_k", given)),
        natural=_flag(name, "byteps_dithering_partition", given, "natural", "linear"),
        norm=_flag(name, "byteps_dithering_normalize", given, "l2", "max"),
    )


_KINDS = {"onebit": _onebit, "topk": _topk, "randomk": _randomk, "dithering": _dithering}


def _wrapped(name: str, given: Mapping[str, str]) -> dict[str, Any]:
    """The parameters of what BytePS wraps a compressor in."""
    feedback = given.get("byteps_ef_type", given.get("byteps_error_feedback_type"))
    momentum = given.get("byteps_momentum_type")
    if feedback not in (None, "vanilla") or momentum not in (None, "nesterov"):
        raise UnsupportedError(
            f"declare({name!r}): error feedback {feedback!r} and momentum {momentum!r}; there are vanilla and nesterov"
        )
    if momentum is None:
        return {} if feedback is None else {"feedback": True}
    if feedback is None:
        raise UnsupportedError(f"declare({name!r}): momentum without error feedback; give byteps_ef_type='vanilla' too")
    return {"feedback": True, "nesterov": _number(name, "byteps_momentum_mu", given)}


def _number(name: str, keyword: str, given: Mapping[str, str]) -> float:
    try:
        number = float(given[keyword])
    except KeyError:
        raise InvalidArgumentError(f"declare({name!r}): this compressor needs {keyword}") from None
    except ValueError:
        number = -1.0
    if not 0 < number < 1e9:
        raise InvalidArgumentError(f"declare({name!r}): {keyword}={given[keyword]!r}; give a number above 0")
    return number


def _millionths(share: float) -> int:
    return max(1, round(share * 1_000_000))


def _flag(name: str, keyword: str, given: Mapping[str, str], yes: str, no: str) -> int:
    word = given.get(keyword, no)
    if word in ("1", yes):
        return 1
    if word in ("0", no):
        return 0
    raise InvalidArgumentError(f"declare({name!r}): {keyword}={word!r}; give {yes} or {no}")
