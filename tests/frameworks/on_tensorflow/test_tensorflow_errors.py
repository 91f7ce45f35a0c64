"""What goes wrong has a name, on every worker, and nothing hangs."""

import gradlane.tensorflow as gl
import pytest
import tensorflow as tf
from children import told_by_a_child
from gradlane.errors import MismatchError, StallError, UnsupportedError, UnusedParametersError
from gradlane.tensorflow import _native
from processes import run_python


@pytest.fixture(params=["eager", "native", "fallback"])
def made(request, monkeypatch):
    """Makes a function of TensorFlow, or leaves it as it is."""
    if request.param == "eager":
        return lambda function: function
    monkeypatch.setenv("GRADLANE_TENSORFLOW_OP", request.param)
    return tf.function


over_quic = pytest.mark.over("quic")
together = pytest.mark.workers(2, settings={"step_timeout": "10s"})
broken = pytest.mark.workers(2, alone=True, settings={"step_timeout": "60s"})


@over_quic
@broken
def test_a_gradient_that_one_worker_lacks_is_an_error_on_all(made):
    used, sometimes = tf.Variable([1.0, 2.0]), tf.Variable([3.0], name="sometimes")

    @made
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(used)
            if gl.rank() == 0:
                loss += tf.reduce_sum(sometimes)
        return gl.DistributedGradientTape(tape).gradient(loss, [used, sometimes])

    for _ in range(2):  # the workers are out of step, and stay so
        expected = r"no gradient for variable 1 \(sometimes:0\) on rank 1"
        with pytest.raises(UnusedParametersError, match=expected) as caught, gl.typed_errors():
            step()
        assert list(caught.value.parameters.values()) == [[1]]


@over_quic
@broken
def test_models_that_differ_are_an_error_on_all(made):
    variable = tf.Variable(tf.zeros((3, 4) if gl.rank() == 0 else (4, 3)))

    @made
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(variable * variable)
        return gl.DistributedGradientTape(tape).gradient(loss, [variable])

    with (
        pytest.raises(MismatchError, match=r"worker 0 has float32 \[3, 4\], worker 1 has float32 \[4, 3\]"),
        gl.typed_errors(),
    ):
        step()


@over_quic
@together
def test_a_name_with_two_shapes_is_an_error_on_all(made, request):
    name = f"shapes of {request.node.name}"

    @made
    def total():
        return gl.push_pull(tf.zeros(3 + gl.rank()), name)

    with (
        pytest.raises(MismatchError, match="tensor shapes of") as caught,
        gl.typed_errors(),
    ):
        total()
    assert caught.value.tensor == name


@over_quic
@together
def test_a_worker_that_does_not_come_is_named(made, request):
    name = f"absent in {request.node.name}"

    @made
    def total():
        return gl.push_pull(tf.zeros(3), name)

    if gl.rank() == 0:
        with pytest.raises(StallError, match="absent") as caught, gl.typed_errors():
            total()
        assert caught.value.missing_ranks == [1]
    gl.barrier(f"{name} is done", timeout=60)


@pytest.mark.parametrize("how", ["gl.push_pull(x, 'x')", "tf.function(lambda: gl.push_pull(x, 'x'))()"])
def test_a_call_before_init_says_so(how):
    script = f"import tensorflow as tf, gradlane.tensorflow as gl\nx = tf.ones(3)\n{how}"
    ended = run_python(script)
    assert ended.code == 1 and "NotInitializedError: this process takes part in no job; call gradlane.init() first" in (
        ended.output
    )


@over_quic
@together
def test_a_forked_child_is_refused_and_the_parent_goes_on():
    """What TensorFlow itself runs in a forked child, such as a function, hangs there before it reaches an operation."""
    x = tf.ones(3)
    total = tf.function(lambda: gl.push_pull(x, "before and after forks", op=gl.Sum))
    total()
    pending = _native.submit(x, "begun before forks", 0)
    attempts = {
        "push_pull": lambda: gl.push_pull(x, "forked"),
        "tape": lambda: gl.DistributedGradientTape(tf.GradientTape()),
        "broadcast_variables": lambda: gl.broadcast_variables([tf.Variable(x)]),
        "submit": lambda: _native.submit(x, "forked", 0),
        "wait": lambda: _native.wait([pending], [x]),
        "the op by itself": lambda: _native.load().gradlane_wait(handles=[pending], Tout=[x.dtype]),
    }
    for what, attempt in attempts.items():
        told = told_by_a_child(gl.typed_errors()(attempt))
        assert told.startswith("ForkedProcessError: process "), f"{what}: {told}"
        assert "spawn or forkserver" in told, f"{what}: {told}"
    assert _native.wait([pending], [x])[0].numpy().tolist() == [1.0] * 3
    assert total().numpy().tolist() == [2.0] * 3


def test_a_release_that_is_too_old_is_refused():
    from gradlane.keras._release import KERAS
    from gradlane.tensorflow._release import TENSORFLOW

    TENSORFLOW.check_release("2.16.1")
    TENSORFLOW.check_release("3.0.0-rc1")
    with pytest.raises(UnsupportedError, match=r"TensorFlow 2\.15\.1 is installed.*2\.16 or later.*--upgrade"):
        TENSORFLOW.check_release("2.15.1")
    KERAS.check_release("3.0.0")
    with pytest.raises(UnsupportedError, match=r"Keras 2\.15\.0 is installed.*3\.0 or later.*or use gradlane"):
        KERAS.check_release("2.15.0")


@pytest.mark.parametrize(("door", "package"), [("tensorflow", "tensorflow"), ("keras", "keras")])
def test_a_framework_that_is_missing_is_named_by_its_door_only(door, package):
    script = f"""
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name == "{package}":
            raise ModuleNotFoundError("No module named {package!r}", name="{package}")
sys.meta_path.insert(0, Absent())
import gradlane
print("the package is fine")
import gradlane.{door}
"""
    ended = run_python(script)
    assert "the package is fine" in ended.output
    assert f"pip install 'gradlane[{door}]'" in ended.output, ended.output


def test_the_package_imports_no_framework():
    assert "False" in run_python("import sys, gradlane; print('tensorflow' in sys.modules)").output


def test_a_setting_that_is_none_of_the_choices_is_refused():
    script = "import tensorflow as tf, gradlane.tensorflow as gl\ngl.init()\n"
    script += "tf.function(lambda: gl.push_pull(tf.ones(3), 'x'))()"
    ended = run_python(script, env={"GRADLANE_TENSORFLOW_OP": "python"})
    assert ended.code == 1 and "is none of" in ended.output, ended.output
