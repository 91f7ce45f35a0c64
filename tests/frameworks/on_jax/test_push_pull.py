"""Trees of arrays are reduced and broadcast, eagerly and under jit, and what is wrong is said in words."""

import sys

import gradlane.jax as gl
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from calls import ROUTES, SETTING
from children import told_by_a_child
from gradlane.errors import InvalidArgumentError, MismatchError, StallError, UnsupportedError
from processes import over, run_all, run_python

DTYPES = ("float32", "float16", "bfloat16", "int32", "int8", "uint8")


@pytest.mark.parametrize("mode", ["eager", "jit"])
@pytest.mark.workers(2)
@pytest.mark.over(*ROUTES)
def test_a_tree_of_many_kinds_is_reduced_in_one_call(mode, call):
    def reduce(tree):
        return gl.push_pull(tree, f"kinds {mode} {call}", op=gl.Sum)

    reduce = jax.jit(reduce) if mode == "jit" else reduce
    mine = {
        "kinds": [jnp.full((2, i), gl.rank() + i, dtype) for i, dtype in enumerate(DTYPES, 1)],
        "scalar": jnp.float32(gl.rank()),
        "empty": jnp.zeros((3, 0)),
        "none": None,
    }
    for _ in range(3):
        total = reduce(mine)
        assert jax.tree.structure(total) == jax.tree.structure(mine)
        for i, (array, dtype) in enumerate(zip(total["kinds"], DTYPES, strict=True), 1):
            assert (array.dtype, array.shape) == (dtype, (2, i))
            np.testing.assert_array_equal(np.asarray(array, np.float32), 2 * i + 1)
        assert (float(total["scalar"]), total["empty"].shape) == (1.0, (3, 0))


@pytest.mark.workers(2)
@pytest.mark.over(*ROUTES)
def test_reductions_and_weights_arrive(call):
    mine = jnp.array([1.0, 5.0]) * (gl.rank() + 1)

    def reduced(op, **more):
        return jax.jit(lambda x: gl.push_pull(x, f"{op.name} {call}", op=op, **more))(mine).tolist()

    assert reduced(gl.Average, priority=-3) == [1.5, 7.5]
    assert reduced(gl.Min) == [1.0, 5.0]
    assert reduced(gl.Max) == [2.0, 10.0]
    assert reduced(gl.Sum, compression=gl.Compression.fp16, timeout=5.0) == [3.0, 15.0]
    weighted = jax.jit(lambda x, weight: gl.push_pull(x, f"w {call}", op=gl.WeightedAverage, weight=weight))
    assert weighted(mine, 3.0 * gl.rank()).tolist() == [2.0, 10.0]
    assert weighted(mine, 1.0 - gl.rank()).tolist() == [1.0, 5.0]


@pytest.mark.workers(2)
@pytest.mark.over(*ROUTES)
def test_a_broadcast_keeps_all_bits_of_the_root(call):
    values = [0.0, -0.0, np.nan, np.inf]
    root = {
        "floats": jnp.array(values),
        "flags": jnp.array([True, False]),
        "counts": jnp.arange(3, dtype=jnp.uint32),
        "shorts": jnp.arange(3, dtype=jnp.int16),
        "waves": jnp.array([1 + 2j], jnp.complex64),
    }
    mine = root if gl.rank() == 1 else jax.tree.map(jnp.zeros_like, root)
    got = gl.broadcast(mine, root_rank=1, name=f"broadcast {call}")
    for array, expected in zip(jax.tree.leaves(got), jax.tree.leaves(root), strict=True):
        assert np.asarray(array).tobytes() == np.asarray(expected).tobytes()


@pytest.mark.workers(2)
@pytest.mark.over("quic")
def test_arrays_of_the_cpu_are_not_copied(call):
    large = jnp.ones(1 << 20)
    reduce = jax.jit(lambda x: gl.push_pull(x, f"large {call}"))
    before = gl.metrics()["copied_bytes"]
    reduce(large).block_until_ready()
    assert gl.metrics()["copied_bytes"] - before == 0
    if call == "native":
        program = reduce.lower(large).compile().as_text()
        assert "gradlane_push_pull" in program and " copy(" not in program, program


@pytest.mark.workers(2)
@pytest.mark.over(*ROUTES)
def test_donated_arrays_are_read_before_their_memory_is_used_again(call):
    total = jax.jit(lambda x: gl.push_pull(x, f"donated {call}", op=gl.Sum), donate_argnums=0)
    mixed = jax.jit(lambda x: gl.push_pull(2 * x, f"mixed {call}", op=gl.Sum) + x, donate_argnums=0)
    for number in range(5):
        mine = [jnp.full(300_000, 1.0 + number + gl.rank()) for _ in range(2)]
        np.testing.assert_array_equal(total(mine[0]), 3.0 + 2 * number)
        np.testing.assert_array_equal(mixed(mine[1]), 2 * (3.0 + 2 * number) + 1 + number + gl.rank())
        with pytest.raises(RuntimeError, match="deleted"):
            gl.push_pull(mine[0], "deleted")


@pytest.mark.workers(2)
@pytest.mark.over("local", "quic")
def test_trees_that_differ_are_the_typed_error_on_every_worker(call):
    rank = gl.rank()
    shapes = {"same": jnp.ones(5), "other": jnp.ones(3 + rank)}
    with pytest.raises(MismatchError) as caught:
        gl.push_pull(shapes, f"shapes {call}")
    assert (caught.value.tensor, set(caught.value.ranks)) == (f"shapes {call}['other']", {0, 1})

    leaves = {"same": jnp.ones(5), f"only{rank}": jnp.ones(3)}
    with pytest.raises(MismatchError) as caught:
        gl.push_pull(leaves, f"leaves {call}")
    error = caught.value
    assert (error.tensor, error.field, set(error.ranks)) == (f"leaves {call}", "tree", {0, 1})
    assert "trees with other paths; give all workers the same tree" in str(error) and "[" not in str(error)
    # The job goes on.
    np.testing.assert_array_equal(gl.push_pull(jnp.full(2, 2.0 * rank), f"good {call}"), 1.0)


@pytest.mark.workers(2)
@pytest.mark.over("local", "quic")
def test_an_error_under_jit_has_our_text_and_becomes_ours(call):
    mine = jnp.ones(3 + gl.rank())

    def reduce(name):
        return jax.block_until_ready(jax.jit(lambda x: gl.push_pull(x, name))(mine))

    with pytest.raises(jax.errors.JaxRuntimeError, match=r"tensor jit \w+: worker \d has shape \[\d\]"):
        reduce(f"jit {call}")
    with pytest.raises(MismatchError) as caught, gl.typed_errors():
        reduce(f"typed {call}")
    assert (caught.value.field, set(caught.value.ranks)) == ("shape", {0, 1})


@pytest.mark.workers(2, settings={"step_timeout": "2s"})
@pytest.mark.over("quic")
def test_a_worker_that_does_not_come_is_named(call):
    if gl.rank() == 0:
        with pytest.raises(StallError) as caught, gl.typed_errors():
            jax.block_until_ready(jax.jit(lambda x: gl.push_pull(x, f"alone {call}"))(jnp.ones(3)))
        assert caught.value.missing_ranks == [1]
    gl.barrier(f"after {call}", timeout=20.0)


@pytest.mark.workers(2)
@pytest.mark.over("quic")
def test_what_cannot_be_reduced_is_refused_by_its_name_on_every_worker(call):
    def refused(kind, words, attempt):
        with pytest.raises(kind, match=words):
            attempt()

    refused(
        InvalidArgumentError, r"x\['c'\] is complex64", lambda: gl.push_pull({"c": jnp.ones(2, jnp.complex64)}, "x")
    )
    refused(InvalidArgumentError, r"x\['c'\] is str, no array", lambda: gl.push_pull({"c": "text"}, "x"))
    refused(InvalidArgumentError, "cannot name a tensor", lambda: gl.push_pull(jnp.ones(2), ""))
    refused(InvalidArgumentError, "needs weight=", lambda: gl.push_pull(jnp.ones(2), "x", op=gl.WeightedAverage))
    refused(InvalidArgumentError, "root_rank=7", lambda: gl.broadcast(jnp.ones(2), 7))
    gradient_of_min = jax.grad(lambda x: gl.push_pull(x, "x", op=gl.Min).sum())
    refused(InvalidArgumentError, "op=min has no gradient", lambda: gradient_of_min(jnp.ones(2)))


@pytest.mark.parametrize("transformation", ["vmap", "pmap", "shard_map"])
@pytest.mark.workers(2)
@pytest.mark.over("quic")
def test_transformations_that_repeat_the_call_are_refused(transformation, call):
    mesh = jax.sharding.Mesh(jax.devices()[:1], ("d",))
    specs = {"mesh": mesh, "in_specs": jax.sharding.PartitionSpec("d"), "out_specs": jax.sharding.PartitionSpec("d")}
    transform = {"vmap": jax.vmap, "pmap": jax.pmap, "shard_map": lambda f: jax.jit(shard_map()(f, **specs))}
    with pytest.raises(UnsupportedError, match="outside of vmap, pmap and shard_map"):
        transform[transformation](lambda x: gl.push_pull(x, "never"))(jnp.ones((1, 3)))


@pytest.mark.filterwarnings("ignore:os.fork")
@pytest.mark.workers(2)
@pytest.mark.over("quic")
def test_a_forked_child_is_refused_and_the_parent_goes_on(call):
    """What JAX has not compiled before may hang in a forked child, before it reaches a call."""
    x = jnp.ones(3)
    total = jax.jit(lambda x: gl.push_pull(x, f"before and after forks {call}", op=gl.Sum))
    jax.block_until_ready(total(x))
    attempts = {
        "compiled": lambda: jax.block_until_ready(total(x)),
        "eager": lambda: gl.push_pull(x, "forked"),
        "broadcast": lambda: gl.broadcast(x, name="forked"),
    }
    for what, attempt in attempts.items():
        told = told_by_a_child(gl.typed_errors()(attempt))
        assert told.startswith("ForkedProcessError: process "), f"{what}: {told}"
        assert "spawn or forkserver" in told, f"{what}: {told}"
    assert total(x).tolist() == [2.0] * 3


def test_before_init_and_after_shutdown_the_error_says_what_to_call(call):
    ended = run_python(
        """
import gradlane.jax as gl, jax, jax.numpy as jnp
reduce = jax.jit(lambda x: gl.push_pull(x, "w"))
def attempt():
    try:
        with gl.typed_errors():
            print("reduced:", jax.block_until_ready(reduce(jnp.ones(2))).tolist())
    except gl.Error as error:
        print(f"refused: {type(error).__name__}: {error}")
attempt()
gl.init()
attempt()
gl.shutdown()
attempt()
gl.init()
attempt()
""",
        env={SETTING: call},
    )
    assert ended.code == 0, ended.output
    refused = "refused: NotInitializedError: this process takes part in no job; call gradlane.init() first"
    told = [line for line in ended.output.splitlines() if line.startswith(("refused", "reduced"))]
    assert told == [refused, "reduced: [1.0, 1.0]"] * 2, ended.output


def test_an_array_on_several_devices_is_refused():
    ended = run_python(
        """
import gradlane.jax as gl, jax, jax.numpy as jnp
gl.init()
mesh = jax.sharding.Mesh(jax.devices(), ("d",))
array = jax.device_put(jnp.ones(4), jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("d")))
for reduce in (lambda x: gl.push_pull(x, "w"), jax.jit(lambda x: gl.push_pull(x, "w"))):
    try:
        reduce(array)
    except gl.UnsupportedError as error:
        print("refused:", error)
""",
        env={"XLA_FLAGS": "--xla_force_host_platform_device_count=2"},
    )
    assert ended.code == 0, ended.output
    assert ended.output.count("refused: push_pull is one call of a process on one device") == 2, ended.output


@pytest.mark.parametrize(
    ("preparation", "words"),
    [
        ("sys.modules['jax'] = None", "ModuleNotFoundError: gradlane.jax needs JAX; run pip install 'gradlane[jax]'"),
        ("import jax; jax.__version__ = '0.4.30'", "UnsupportedError: JAX 0.4.30 is installed, and gradlane.jax needs"),
    ],
)
def test_a_missing_or_old_jax_is_named_when_the_door_is_imported(preparation, words):
    script = f"import sys, gradlane\n{preparation}\ntry:\n    import gradlane.jax\nexcept Exception as error:\n"
    ended = run_python(script + "    print(f'{type(error).__name__}: {error}')")
    assert ended.code == 0 and words in ended.output, ended.output


def shard_map():
    if hasattr(jax, "shard_map"):
        return jax.shard_map
    from jax.experimental.shard_map import shard_map

    return shard_map


UNCAUGHT = """
import gradlane.jax as gl, jax, jax.numpy as jnp
gl.init()
jax.block_until_ready(jax.jit(lambda x: gl.push_pull({"same": x, f"only{gl.rank()}": x}, "leaves"))(jnp.ones(2)))
"""


@pytest.mark.over("quic")
def test_an_uncaught_error_of_a_compiled_function_is_printed_as_ours(transport):
    command = [sys.executable, "-m", "gradlane", "run", "-n", "2", "-s", "1", "--", sys.executable, "-c", UNCAUGHT]
    [ended] = run_all([(command, over(transport))], timeout=120)
    assert ended.code == 1 and "MismatchError: tensor leaves: worker " in ended.output, ended.output
    assert "give trees with other paths" in ended.output and "has shape [" not in ended.output, ended.output
