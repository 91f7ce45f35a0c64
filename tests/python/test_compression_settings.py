"""The settings of compression, for calls that name no codec."""

import gradlane
import numpy as np
import pytest
from gradlane import Compression
from gradlane._choice import codec_of_call
from gradlane._model_choice import codec_of_model, codecs_of_model
from gradlane._reduction import AVERAGE, reduction_of


@pytest.fixture
def job():
    """Joins a job of one with these settings."""
    try:
        yield lambda **settings: gradlane.init(config=settings)
    finally:
        gradlane.shutdown()


def test_without_settings_nothing_is_compressed(job):
    job()
    assert codec_of_call(None) == codec_of_model(None) == "none"
    assert reduction_of() is AVERAGE
    assert codec_of_model(Compression.int8) == "int8:min_bytes=8192"
    assert codec_of_model(Compression.int8(block=64)) == "int8:block=64,min_bytes=8192"
    assert codec_of_model(Compression.int8(compress_all=True)) == codec_of_call(Compression.int8) == "int8"
    assert codec_of_model(Compression.bf16) == "bf16"


def test_the_codec_of_a_job_acts_on_large_tensors_of_calls_without_one(job):
    job(compression="int8:block=512", min_compress_bytes="1 KiB")
    assert reduction_of().codec == codec_of_model(None) == "int8:block=512,min_bytes=1024"
    assert reduction_of(compression=Compression.none) is AVERAGE
    tensors = [("a", "float32", (16, 16)), ("b", "float32", (256,)), ("c", "int32", (64, 64)), ("d", "float32", (2, 2))]
    assert codecs_of_model(None, tensors) == ["int8:block=512", "none", "none", "none"]
    assert gradlane.push_pull(np.ones((16, 16), np.float32), "x").sum() == 256


def test_elements_that_a_codec_does_not_encode_may_travel_unchanged(job):
    job(compression_fallback="none")
    assert codec_of_call(Compression.topk) == "topk:fallback=1"
    assert codec_of_call(Compression.fp16) == "fp16"
    whole = np.arange(4)
    assert gradlane.push_pull(whole, "whole", compression=Compression.int8).tolist() == [0, 1, 2, 3]


def test_elements_that_a_codec_does_not_encode_are_an_error_by_default(job):
    job()
    with pytest.raises(gradlane.InvalidArgumentError, match="x is int64, which codec int8 does not encode"):
        gradlane.push_pull(np.arange(4), "x", compression=Compression.int8)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"compression": "int9"}, "compression.*int9.*there is no codec"),
        ({"compression": "int8:block=1"}, "compression.*block is 1"),
        ({"compression_fallback": "maybe"}, "compression_fallback.*error, none"),
        ({"min_compress_bytes": "-1"}, "min_compress_bytes"),
    ],
)
def test_a_setting_without_meaning_is_refused(settings, complaint):
    with pytest.raises(gradlane.ConfigError, match=complaint):
        gradlane.init(config=settings)
