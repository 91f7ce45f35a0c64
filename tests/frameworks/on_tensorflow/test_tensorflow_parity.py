"""Training on several workers equals training on one."""

import gradlane.keras as gk
import gradlane.tensorflow as gl
import pytest
from trainings import (
    BATCH,
    OPTIMIZERS,
    STEPS,
    TOLERANCE,
    assert_equal_everywhere,
    batches,
    compiled,
    custom_loop,
    deviation,
    embedder,
    mine,
    mlp,
    samples,
    sgd,
    share,
    words,
)

DEADLINE = {"settings": {"step_timeout": "100s"}}
TWO = pytest.mark.workers(2, **DEADLINE)
TWO_AND_FOUR = pytest.mark.workers(2, 4, **DEADLINE)

pytestmark = [
    pytest.mark.over("local", "quic"),
    pytest.mark.usefixtures("implementation"),
]


@TWO_AND_FOUR
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_custom_loop_with_a_tape_equals_that_of_one_process(optimizer, request):
    model, reference = mlp(seed=7 + gl.rank()), mlp()
    gl.broadcast_variables(model.variables, root_rank=0)
    losses = custom_loop(model, optimizer(), map(mine, batches(samples())), gl.DistributedGradientTape)
    custom_loop(reference, optimizer(), batches(samples()))
    assert losses[-1] < losses[0]
    assert deviation(model, reference) <= TOLERANCE
    assert_equal_everywhere(model, request.node.nodeid)


@TWO_AND_FOUR
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_fit_equals_that_of_one_process(optimizer, request):
    epochs = STEPS * BATCH // len(samples()[0])
    model, reference = mlp(seed=7 + gl.rank()), compiled(mlp(), optimizer())
    compiled(model, gk.DistributedOptimizer(optimizer()))
    broadcast = gk.callbacks.BroadcastGlobalVariablesCallback(0)
    options = {"epochs": epochs, "shuffle": False, "verbose": 0}
    model.fit(*share(samples()), batch_size=BATCH // gl.size(), callbacks=[broadcast], **options)
    reference.fit(*samples(), batch_size=BATCH, **options)
    assert deviation(model, reference) <= TOLERANCE
    assert_equal_everywhere(model, request.node.nodeid)


@pytest.mark.quick
@TWO
@pytest.mark.parametrize("sparse_as_dense", [False, True], ids=["gathered", "dense"])
@pytest.mark.parametrize("eager", [False, True], ids=["graph", "eager"])
def test_an_embedding_trains_as_in_one_process(sparse_as_dense, eager, request):
    model, reference = embedder(), embedder()
    optimizer = gl.DistributedOptimizer(sgd(), sparse_as_dense=sparse_as_dense)
    steps = 20
    custom_loop(model, optimizer, map(mine, batches(words(), steps)), eager=eager)
    custom_loop(reference, sgd(), batches(words(), steps), eager=eager)
    assert deviation(model, reference) <= TOLERANCE
    assert_equal_everywhere(model, request.node.nodeid)


@TWO
def test_fit_without_graphs_equals_fit_with_them():
    model, reference = mlp(), compiled(mlp(), sgd())
    compiled(model, gk.DistributedOptimizer(sgd()), run_eagerly=True)
    options = {"epochs": 3, "shuffle": False, "verbose": 0}
    model.fit(*share(samples()), batch_size=BATCH // gl.size(), **options)
    reference.fit(*samples(), batch_size=BATCH, **options)
    assert deviation(model, reference) <= TOLERANCE


@pytest.mark.quick
@TWO
def test_several_steps_in_one_call_of_a_graph():
    model, reference = mlp(), compiled(mlp(), sgd())
    compiled(model, gk.DistributedOptimizer(sgd()), steps_per_execution=2)
    options = {"epochs": 3, "shuffle": False, "verbose": 0}
    model.fit(*share(samples()), batch_size=BATCH // gl.size(), **options)
    reference.fit(*samples(), batch_size=BATCH, **options)
    assert deviation(model, reference) <= TOLERANCE


@pytest.mark.quick
@TWO
@pytest.mark.parametrize("eager", [False, True], ids=["graph", "eager"])
def test_gradients_that_accumulate_are_sent_once_for_all_passes(eager):
    model, reference = mlp(), mlp()
    optimizer = gl.DistributedOptimizer(sgd(), backward_passes_per_step=2)
    halves = [
        (inputs[half::2], labels[half::2]) for inputs, labels in map(mine, batches(samples(), 10)) for half in range(2)
    ]
    submissions = gl.metrics()["submissions"]
    custom_loop(model, optimizer, halves, eager=eager)
    submissions = gl.metrics()["submissions"] - submissions
    custom_loop(reference, sgd(), batches(samples(), 10), eager=eager)
    assert deviation(model, reference) <= TOLERANCE
    assert submissions <= 10 * (len(model.trainable_variables) + 1), "one sum a step, and the kinds of gradients"
