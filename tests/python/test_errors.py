"""The exception classes: what they are, what they carry, how native failures become them."""

import builtins
import pickle

import pytest
from gradlane import _core, errors


def test_a_mismatch_names_both_sides():
    error = errors._build(
        "Mismatch",
        "tensor fc.weight: ...",
        {
            "tensor": "fc.weight",
            "field": "shape",
            "first": (0, "[10]"),
            "second": (1, "[11]"),
            "code": "InvalidArgument",
        },
    )
    assert isinstance(error, errors.MismatchError)
    assert (error.tensor, error.field, error.ranks, error.expected, error.got) == (
        "fc.weight",
        "shape",
        (0, 1),
        "[10]",
        "[11]",
    )


def test_stalls_and_timeouts_are_also_the_builtin_timeout_error():
    stall = errors._build("Stalled", "...", {"tensor": "w", "round": 7, "missing": [1, 3], "waited": 10.0})
    assert isinstance(stall, errors.StallError) and isinstance(stall, builtins.TimeoutError)
    assert (stall.tensor, stall.round, stall.missing_ranks, stall.waited) == ("w", 7, [1, 3], 10.0)
    assert isinstance(errors._build("Timeout", "...", {"what": "w", "waited": 1.0}), builtins.TimeoutError)


def test_a_job_that_did_not_form_names_who_is_missing():
    error = errors._build("NotFormed", "...", {"missing": ["worker 2", "server 1"], "waited": 3.0})
    assert isinstance(error, errors.NotFormedError) and error.missing == ["worker 2", "server 1"]


@pytest.mark.parametrize(
    ("member", "rank", "server"), [("worker 2", 2, None), ("server 0", None, 0), ("coordinator", None, None)]
)
def test_a_lost_peer_is_known_by_its_role_and_number(member, rank, server):
    error = errors._build("PeerLost", "...", {"member": member, "host": "n1", "cause": "connection reset"})
    assert (error.rank, error.server, error.host, error.cause) == (rank, server, "n1", "connection reset")


def test_bad_arguments_are_value_errors_and_missing_features_not_implemented():
    assert issubclass(errors.InvalidArgumentError, ValueError)
    assert issubclass(errors.MismatchError, errors.InvalidArgumentError)
    assert issubclass(errors.UnsupportedError, NotImplementedError)


@pytest.mark.parametrize("row", _core.error_table(), ids=lambda row: row["variant"])
def test_every_class_is_as_the_table_of_native_errors_says(row):
    kind = getattr(errors, row["exception"])
    bases = [f"builtins.{base.__name__}" if base.__module__ == "builtins" else base.__name__ for base in kind.__bases__]
    assert (bases, kind.code, kind.retryable) == (row["bases"], row["code"], row["retryable"])
    assert kind.__name__ in errors.__all__


def test_a_class_that_is_named_in_the_table_alone_is_made_from_its_row():
    row = {
        "variant": "Novelty",
        "exception": "NoveltyError",
        "bases": ["AbortedError", "builtins.KeyError"],
        "code": "Aborted",
        "retryable": False,
        "doc": "It is new.",
        "fields": [("what", "The new thing.")],
    }
    module = vars(errors) | {"__all__": []}
    kind = errors._class_of(row, module)
    assert issubclass(kind, errors.AbortedError) and issubclass(kind, KeyError)
    assert (kind.__doc__, kind.what.__doc__, module["__all__"]) == ("It is new.", "The new thing.", ["NoveltyError"])
    assert (kind("...", what="a moon").what, kind.code) == ("a moon", "Aborted")
    assert errors._class_of(row, module) is kind


@pytest.mark.parametrize("variant", sorted(errors._OF_VARIANT))
def test_every_native_failure_has_its_class_and_code(variant):
    error = errors._build(variant, "what happened", {})
    assert isinstance(error, errors.Error) and isinstance(error, RuntimeError)
    assert str(error) == "what happened"
    assert (variant == "Internal") == (error.code == "Internal")


def test_an_unknown_native_failure_is_an_internal_error():
    assert isinstance(errors._build("Novelty", "...", {}), errors.InternalError)


def test_code_and_retryable_of_the_native_side_win():
    error = errors._build("Unavailable", "...", {"code": "Unavailable", "retryable": True})
    assert error.retryable and not errors._build("Cancelled", "...", {}).retryable


def test_errors_survive_pickling_with_their_fields():
    error = errors._build("Stalled", "no contribution", {"tensor": "w", "missing": [1], "waited": 2.0})
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.tensor, copy.missing_ranks) == (errors.StallError, "no contribution", "w", [1])
