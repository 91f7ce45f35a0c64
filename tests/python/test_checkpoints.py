"""Checkpoints: parameters are saved and loaded with all that their rules keep, whole or not at all."""

import json
import tempfile
import threading
from pathlib import Path

import gradlane
import numpy as np
import pytest
from gradlane import (
    CorruptCheckpointError,
    FailedPreconditionError,
    IncompatibleError,
    InvalidArgumentError,
    NotFoundError,
    ResourceExhaustedError,
    checkpoint,
    modes,
    parameters,
    rules,
)

ROOT = tempfile.gettempdir()
pytestmark = [
    pytest.mark.workers(1, 2, servers=3, settings={"checkpoint_dir": ROOT}),
    pytest.mark.over("local", "shm", "quic"),
]

LARGE = 3 << 18
"""Elements of float32 for several parts of the default length, on all servers."""

EVERY_RULE = [
    rules.SGD(lr=0.1),
    rules.SGD(lr=0.1, momentum=0.9, nesterov=True),
    rules.Adam(lr=0.1),
    rules.AdamW(lr=0.1, weight_decay=0.1),
    rules.Adamax(lr=0.1),
    rules.Adagrad(lr=0.1),
    rules.RMSprop(lr=0.1),
    rules.RMSprop(lr=0.1, momentum=0.9, centered=True),
    rules.Lion(lr=0.1),
    rules.AdamW(lr=0.1, schedule=rules.Cosine(50)),
    rules.SGD(lr=0.1, ema=rules.EMA(0.9), window=rules.Window(0.5, least=2, most=5)),
]


def noise(seed, size=8, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(size).astype(dtype)


def pulled(name, like, **how):
    out = np.full_like(like, 99)
    version = parameters.pull(name, out, **how)
    return out, version


class Names:
    """Parameters that end with the test, because a checkpoint is of all parameters of the job."""

    def __init__(self):
        self.used = []

    def init(self, name, value, **how):
        self.used.append(name)
        return parameters.init(name, value, **how)


@pytest.fixture
def names():
    used = Names()
    yield used
    for name in used.used:
        gradlane.undeclare(name)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("number", range(len(EVERY_RULE)))
def test_training_goes_on_after_a_load_as_if_nothing_had_happened(tmp_path, names, number, dtype):
    """To the bit: the same steps lead to the same value, with what the rule keeps."""
    if gradlane.rank() != 0:
        return
    name, rule = f"of rule {number} {dtype.__name__}", EVERY_RULE[number]
    value = noise(number, 37, dtype)
    names.init(name, value, rule=rule)

    def steps(seed):
        for step in range(3):
            parameters.push(name, noise(seed + step, 37, dtype), update="step")

    def seen():
        averages = [pulled(name, value, kind=kind)[0].tobytes() for kind in ("ema", "window") if getattr(rule, kind)]
        return [pulled(name, value)[0].tobytes(), *averages]

    steps(100)
    saved = checkpoint.save(tmp_path)
    before = seen()
    assert (saved.number, saved.tensors, saved.bytes) == (1, 1, value.nbytes)
    steps(200)
    went_on = seen()
    loaded = checkpoint.load(tmp_path)
    assert (loaded.number, loaded.directory, loaded.bytes) == (1, saved.directory, value.nbytes)
    assert seen() == before
    steps(200)
    assert seen() == went_on


def test_tensors_of_any_shape_and_type_are_saved_under_their_names(tmp_path, names):
    if gradlane.rank() != 0:
        return
    values = {
        "large": noise(1, LARGE).reshape(3, -1),
        "scalar": np.array(3.5, np.float64),
        "bytes": np.arange(200, dtype=np.uint8),
        "counts": np.array([-1, 2**40], np.int64),
        "half": noise(2, 10, np.float16),
        "with/odd [0:4] ü 'name'": noise(3, 4),
        "with/odd ": noise(4, 4),
    }
    for name, value in values.items():
        names.init(name, value)
    saved = checkpoint.save(tmp_path, extra={"epoch": 7, "names": ["a"]})
    assert saved.tensors == len(values) and saved.extra == {"epoch": 7, "names": ["a"]}
    reader = checkpoint.Reader(tmp_path)
    assert reader.extra == saved.extra and reader.number == saved.number and set(reader.tensors) == set(values)
    for name, value in values.items():
        assert reader.tensors[name].shape == value.shape and reader.tensors[name].dtype == value.dtype.name
        assert reader.read(name) == value.tobytes(), name
    for name, value in values.items():
        parameters.push(name, np.zeros_like(value), update="assign")
    assert checkpoint.load(tmp_path).extra == saved.extra
    for name, value in values.items():
        assert pulled(name, value)[0].tobytes() == value.tobytes(), name


def test_other_tools_read_the_values(tmp_path, names):
    """The form is that of safetensors: a header of JSON, then the bytes of the tensors."""
    if gradlane.rank() != 0:
        return
    values = {"w": noise(1, LARGE), "b": noise(2, 6).reshape(2, 3)}
    for name, value in values.items():
        names.init(name, value, rule=rules.Adam())
    checkpoint.save(tmp_path)
    checkpoint.export(tmp_path, tmp_path / "all.safetensors")
    data = (tmp_path / "all.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    assert set(header) - {"__metadata__"} == set(values)
    for name, value in values.items():
        begin, end = header[name]["data_offsets"]
        assert header[name]["dtype"] == "F32" and header[name]["shape"] == list(value.shape)
        assert data[8 + length + begin : 8 + length + end] == value.tobytes()


def test_an_export_of_a_damaged_checkpoint_leaves_what_was_there(tmp_path, names):
    if gradlane.rank() != 0:
        return
    names.init("w", noise(1, LARGE))
    directory = tmp_path / Path(checkpoint.save(tmp_path).directory).name
    out = tmp_path / "all.safetensors"
    checkpoint.export(tmp_path, out)
    before = out.read_bytes()
    path = max(directory.glob("server-*.safetensors"), key=lambda path: path.stat().st_size)
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(CorruptCheckpointError, match=path.name):
        checkpoint.export(tmp_path, out)
    assert out.read_bytes() == before and sorted(tmp_path.glob(".*")) == []


def test_one_directory_has_many_spellings(tmp_path, names):
    if gradlane.rank() != 0:
        return
    value = noise(1, 4)
    names.init("spelled", value)
    (tmp_path / "link").symlink_to("a")
    spellings = ["a", "./a", "a/", "a/.", "link"]
    assert [checkpoint.save(f"{tmp_path}/{path}").number for path in spellings] == [1, 2, 3, 4, 5]


def test_the_latest_is_loaded_and_old_ones_go(tmp_path, names):
    if gradlane.rank() != 0:
        return
    value = np.zeros(4, np.float32)
    names.init("kept", value)
    for number in range(1, 6):
        parameters.push("kept", value + number, update="assign")
        assert checkpoint.save(tmp_path, keep=3).number == number
    there = sorted(path.name for path in tmp_path.iterdir() if path.is_dir())
    assert there == ["checkpoint-3", "checkpoint-4", "checkpoint-5"]
    assert checkpoint.load(tmp_path).number == 5
    assert pulled("kept", value)[0][0] == 5
    assert checkpoint.load(tmp_path, checkpoint=3).number == 3
    assert pulled("kept", value)[0][0] == 3
    with pytest.raises(NotFoundError, match="a whole checkpoint in"):
        checkpoint.load(tmp_path, checkpoint=1)


def test_a_saver_saves_every_so_many_steps(tmp_path, names):
    if gradlane.rank() != 0:
        return
    names.init("every", np.zeros(4, np.float32))
    saver = checkpoint.Saver(tmp_path, every=3, keep=2)
    begun = []
    for step in range(9):
        begun.append(saver.step(step))
        if begun[-1] is not None:
            assert begun[-1].wait().extra == step
    assert [step for step, saving in enumerate(begun) if saving] == [2, 5, 8]
    assert saver.close().number == 3 and saver.close() is None


def test_missing_and_extra_tensors_are_named_and_nothing_is_loaded(tmp_path, names):
    if gradlane.rank() != 0:
        return
    one = np.ones(4, np.float32)
    names.init("there", one)
    names.init("extra", one)
    checkpoint.save(tmp_path)
    gradlane.undeclare("extra")
    names.used.remove("extra")
    names.init("new", one)
    for name in ("there", "new"):
        parameters.push(name, one)
    with pytest.raises(NotFoundError, match="parameter new in checkpoint 1"):
        checkpoint.load(tmp_path)
    with pytest.raises(NotFoundError, match="parameter extra of checkpoint 1 in this job"):
        checkpoint.load(tmp_path, missing="init")
    assert pulled("there", one)[0][0] == 2
    assert checkpoint.load(tmp_path, missing="init", ignore_extra=True).tensors == 1
    assert (pulled("there", one)[0][0], pulled("new", one)[0][0]) == (1, 2)
    checkpoint.load(tmp_path, missing="zero", ignore_extra=True)
    assert (pulled("there", one)[0][0], pulled("new", one)[0][0]) == (1, 0)


def test_a_tensor_of_another_shape_type_or_optimizer_is_refused(tmp_path, names):
    if gradlane.rank() != 0:
        return
    parameters.init("changed", np.ones(6, np.float32), rule=rules.Adam())
    parameters.push("changed", np.ones(6, np.float32), update="step")
    checkpoint.save(tmp_path)
    gradlane.undeclare("changed")
    for value, rule, text in [
        (np.ones(5, np.float32), rules.Adam(), r"saved as float32 of shape \(6\), and is float32 of shape \(5\)"),
        (np.ones(6, np.float64), rules.Adam(), r"saved as float32 .* is float64"),
        (np.ones(6, np.float32), rules.Lion(), r"rule adam.*changed by lion"),
        (np.ones(6, np.float32), rules.Adam(ema=rules.EMA(0.9)), "keeps no ema"),
    ]:
        parameters.init("changed", value, rule=rule)
        with pytest.raises(FailedPreconditionError, match=text):
            checkpoint.load(tmp_path)
        assert pulled("changed", value)[0][0] == 1
        gradlane.undeclare("changed")
    parameters.init("changed", np.zeros(6, np.float32), rule=rules.Lion())
    checkpoint.load(tmp_path, optimizer=False)
    assert pulled("changed", np.zeros(6, np.float32))[0][0] != 0
    gradlane.undeclare("changed")


def test_each_flipped_byte_is_found_and_its_file_is_named(tmp_path, names):
    if gradlane.rank() != 0:
        return
    value = noise(1, 16)
    names.init("flipped", value, rule=rules.Adam())
    parameters.push("flipped", value, update="step")
    directory = tmp_path / Path(checkpoint.save(tmp_path).directory).name
    went_on = pulled("flipped", value)[0]
    files = [path for path in [*directory.iterdir(), tmp_path / "latest"] if path.is_file()]
    assert len(files) == 5
    for path in files:
        whole = path.read_bytes()
        # Every byte of the small files would take a while: some of each, and the last ones.
        places = {*range(0, len(whole), max(1, len(whole) // 23)), len(whole) - 1, len(whole) - 2}
        for place in sorted(places):
            damaged = bytearray(whole)
            damaged[place] ^= 1
            path.write_bytes(damaged)
            with pytest.raises((CorruptCheckpointError, NotFoundError, IncompatibleError)) as raised:
                checkpoint.load(tmp_path)
            assert path.name in str(raised.value) or path.name == "latest", (path, place)
        path.write_bytes(whole[:-3])
        with pytest.raises((CorruptCheckpointError, NotFoundError)):
            checkpoint.load(tmp_path)
        path.write_bytes(whole)
    checkpoint.load(tmp_path)
    assert pulled("flipped", value)[0].tobytes() == went_on.tobytes()


def test_a_form_of_another_version_is_refused(tmp_path, names):
    if gradlane.rank() != 0:
        return
    names.init("newer", np.ones(4, np.float32))
    directory = tmp_path / Path(checkpoint.save(tmp_path).directory).name
    manifest = directory / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(IncompatibleError, match="the form of checkpoints differs: this process has 1, .* has 2"):
        checkpoint.load(tmp_path)


@pytest.mark.parametrize(
    "path", ["/etc/gradlane", "../outside", f"{ROOT}/../etc", "", ".", ROOT, "a/../../b", "nul\0", "x" * 5000]
)
def test_paths_that_lead_out_are_refused(path):
    if gradlane.rank() != 0:
        return
    for call in (checkpoint.save, checkpoint.load):
        with pytest.raises((InvalidArgumentError, FailedPreconditionError)):
            call(path)


def test_a_link_out_of_the_directory_is_refused(tmp_path, names):
    if gradlane.rank() != 0:
        return
    names.init("linked", np.ones(4, np.float32))
    (tmp_path / "out").symlink_to("/usr")
    with pytest.raises(InvalidArgumentError, match="by a link"):
        checkpoint.save(tmp_path / "out" / "here")


def test_a_file_in_the_place_of_the_directory_and_other_bad_arguments(tmp_path, names):
    if gradlane.rank() != 0:
        return
    with pytest.raises(FailedPreconditionError, match="no parameter"):
        checkpoint.save(tmp_path / "nothing")
    names.init("bad", np.ones(4, np.float32))
    (tmp_path / "file").write_text("")
    with pytest.raises(FailedPreconditionError, match="is no directory"):
        checkpoint.save(tmp_path / "file")
    with pytest.raises(NotFoundError, match="a whole checkpoint in"):
        checkpoint.load(tmp_path / "nowhere")
    for arguments in [{"keep": 0}, {"keep": True}, {"extra": {1, 2}}, {"extra": float("nan")}, {"timeout": 0}]:
        with pytest.raises(InvalidArgumentError):
            checkpoint.save(tmp_path / "a", **arguments)
    with pytest.raises(ResourceExhaustedError, match="notes"):
        checkpoint.save(tmp_path / "a", extra="x" * 70_000)
    for arguments in [{"missing": "maybe"}, {"checkpoint": 0}, {"timeout": float("inf")}]:
        with pytest.raises(InvalidArgumentError):
            checkpoint.load(tmp_path / "a", **arguments)
    for arguments in [{"every": 0}, {"every": 1.5}]:
        with pytest.raises(InvalidArgumentError):
            checkpoint.Saver(tmp_path / "a", **arguments)
    assert not (tmp_path / "a").exists()


def test_two_savers_at_once_do_not_meet(tmp_path, names):
    """Each has saved, or was told that another one saves; what is there is whole."""
    if gradlane.rank() != 0:
        return
    names.init("two", noise(1, LARGE), rule=rules.Adam())
    outcomes = []

    def save(number):
        try:
            outcomes.append(checkpoint.save(tmp_path / "a", extra=number).number)
        except FailedPreconditionError as error:
            assert "saves or loads" in str(error) or "is saving" in str(error), error
            outcomes.append(None)

    threads = [threading.Thread(target=save, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    saved = sorted(number for number in outcomes if number is not None)
    assert saved and saved == list(range(1, len(saved) + 1))
    assert checkpoint.load(tmp_path / "a").number == saved[-1]


def test_a_round_that_has_begun_is_not_loaded_over_and_steps_go_on_from_those_that_were_saved(tmp_path, names):
    """All workers take part: the rounds are those of all of them, and one saves and loads for all."""
    rank, size = gradlane.rank(), gradlane.size()
    clock = parameters.Clock(f"saved by {size}", modes.Sync())
    value, rule = np.zeros(LARGE, np.float32), rules.SGD(lr=1.0, schedule=rules.StepDecay(2, 0.5))
    parameters.init("in rounds", value, rule=rule, mode=clock)

    def a_round():
        parameters.push("in rounds", np.ones_like(value), update="step")
        return clock.tick().step

    shared = gradlane.broadcast_object(str(tmp_path))
    assert [a_round() for _ in range(3)] == [1, 2, 3]
    got, _ = pulled("in rounds", value)
    assert set(got) == {-2.5}, "1 + 1 + 0.5"
    gradlane.barrier()
    if rank == 0:
        saved = checkpoint.save(shared)
        assert saved.step == 3
    gradlane.barrier()
    assert [a_round() for _ in range(3)] == [4, 5, 6]
    after = pulled("in rounds", value)[0]
    assert set(after) == {-2.5 - 0.5 - 0.25 - 0.25}
    if rank == 0:
        parameters.push("in rounds", np.ones_like(value), update="step")
        with pytest.raises(FailedPreconditionError, match="round 7 has begun"):
            checkpoint.load(shared)
    else:
        parameters.push("in rounds", np.ones_like(value), update="step")
    clock.tick()
    gradlane.barrier()
    if rank == 0:
        assert checkpoint.load(shared).step == 3
    gradlane.barrier()
    assert set(pulled("in rounds", value)[0]) == {-2.5}
    assert [a_round() for _ in range(3)] == [4, 5, 6], "the schedule goes on from step 3"
    assert pulled("in rounds", value)[0].tobytes() == after.tobytes()
    gradlane.undeclare("in rounds")


@pytest.mark.workers(2, servers=3, settings={"checkpoint_dir": ROOT})
@pytest.mark.over("shm", "quic")
def test_training_goes_on_while_it_is_saved_and_what_is_saved_is_one_round(tmp_path, names):
    """Worker 1 trains in rounds with worker 0, whose other thread saves: each part of the checkpoint has the same round."""
    rank = gradlane.rank()
    clock = parameters.Clock("meanwhile", modes.Sync())
    value = np.zeros(LARGE, np.float32)
    parameters.init("meanwhile", value, rule=rules.SGD(lr=1.0), mode=clock)
    saving = None
    for number in range(30):
        if rank == 0 and number == 3:
            saving = checkpoint.save(tmp_path, async_=True)
        parameters.push("meanwhile", np.ones_like(value), update="step")
        clock.tick()
    if rank == 0:
        saved = saving.wait()
        values = np.frombuffer(checkpoint.Reader(tmp_path).read("meanwhile"), np.float32)
        assert len(set(values)) == 1 and -values[0] in saved.steps.values() and 3 <= -values[0] <= 30
    assert set(pulled("meanwhile", value)[0]) == {-30.0}
    gradlane.barrier()
    gradlane.undeclare("meanwhile")
