"""A layer of embeddings whose rows live on the servers, in a table."""

from __future__ import annotations

from typing import Any, Literal

import keras

from gradlane import rules
from gradlane._table_rows import TableRows, send
from gradlane.errors import InvalidArgumentError, UnsupportedError
from gradlane.rules import Rule
from gradlane.tables import Table

HINT = "wrap the optimizer by gradlane.keras.DistributedOptimizer, or call push() of the layer after each backward pass"


@keras.saving.register_keras_serializable(package="gradlane")
class Embedding(keras.layers.Layer):
    """What `keras.layers.Embedding` is, with rows that live on the servers. Needs TensorFlow as Keras' backend.

        model = keras.Sequential(
            [
                keras.Input((2,), dtype="int64"),
                gl.Embedding(output_dim=16, name="items", rule=gl.rules.Adagrad(lr=0.1)),
                keras.layers.Flatten(),
                keras.layers.Dense(1),
            ]
        )
        model.compile(optimizer=gl.DistributedOptimizer(keras.optimizers.Adam()), loss=...)

    With `training=True` a pass pulls the rows of its ids, and makes those that are missing. Otherwise it looks: it makes no rows. A
    backward pass leaves the gradients of the rows. `DistributedOptimizer` sends them in its step, also if the job has one worker:
    one push for each table, whose gradients of one id are added up; the sparse steps of Keras' Adagrad take each of them alone.
    With accumulated gradients it sends their mean, when Keras updates the weights. Nothing is averaged over the workers: the
    servers apply what each worker sends when it comes, by the rule of the table, and nobody waits. The learning rate is in the
    rule, and clipping by the optimizer does not see these gradients. A training loop with another optimizer calls `push()`.

    The rows are no weights of the model: it neither counts nor saves them. Its one weight, `anchor`, is a scalar that stays zero;
    gradients flow through it. With `layer.trainable = False` all passes look. Copies, and models that were loaded, use the same
    table.

    Give ids as int64, and say so by `keras.Input(..., dtype="int64")`: Keras makes float32 of the inputs of a `Sequential` without
    one, which holds ids below 2**24. Larger ones in float32 are refused.
    """

    def __init__(
        self,
        input_dim: int | None = None,
        output_dim: int | None = None,
        embeddings_initializer: Any = "uniform",
        embeddings_regularizer: Any = None,
        embeddings_constraint: Any = None,
        mask_zero: bool = False,
        weights: Any = None,
        *,
        rule: Rule | str,
        table: str | None = None,
        seed: int | None = None,
        after: int = 1,
        share: float = 1.0,
        rows: int = 0,
        full: Literal["refuse", "evict"] = "refuse",
        ttl: int = 0,
        bound: float = 0.0,
        compression: Literal["none", "bf16", "fp16", "int8"] = "none",
        table_dtype: Literal["float32", "bfloat16", "float16"] = "float32",
        **options: Any,
    ) -> None:
        """Describes the table. Servers hear of it with its first use.

        Args:
            input_dim: ids are from 0 and below it. It takes no memory: only ids that were used have rows. None for any id of 64 bits.
            output_dim: elements of a row, from 1 to 16,384.
            embeddings_initializer: what rows begin with: "zeros", "uniform", "normal", or those initializers of Keras with a range or
                a distribution around 0. What a row begins with follows from the seed and the id.
            embeddings_regularizer: has to be None.
            embeddings_constraint: has to be None.
            mask_zero: whether id 0 is padding, for layers that follow.
            weights: has to be None.
            rule: how gradients change rows, such as `rules.Adagrad(lr=0.1)`; equal on all workers, as all that follows.
            table: the name of the table. None takes the `name` of the layer, which has to be given then.
            seed: of the first values, from 0 on. None takes that of the initializer, or 0.
            after, share, rows, full, ttl, bound, compression: of the table; see `gradlane.tables.Table`. Workers never wait for
                each other.
            table_dtype: `dtype=` of the table, which says how servers keep rows, because `dtype` is that of the layer.
            options: those of every layer, such as `name`, `trainable` and `dtype`.
        Raises:
            UnsupportedError: Keras' backend is not TensorFlow, or something is asked for that a table does not have.
            InvalidArgumentError: another argument is not what it should be; it is named.
        """
        _check_backend()
        refused = {"embeddings_regularizer": embeddings_regularizer, "embeddings_constraint": embeddings_constraint, "weights": weights}
        refused |= {name: options.pop(name, None) for name in ("lora_rank", "lora_alpha", "quantization_config")}
        for argument, value in refused.items():
            if value is not None:
                raise UnsupportedError(f"{argument}={value!r}: rows on servers have none; leave it out, or give the table a bound=")
        if input_dim is not None and not _is_whole(input_dim, 1 << 63):
            raise InvalidArgumentError(f"input_dim={input_dim!r}; give a number of ids above 0 and below 2**63, or None for any ids")
        if not _is_whole(output_dim, 1 << 63):
            raise InvalidArgumentError(f"output_dim={output_dim!r}; give the number of elements of a row")
        name = table if table is not None else options.get("name")
        if name is None:
            raise InvalidArgumentError("the table has no name; give the layer a name=, equal on all workers, or give table=")
        super().__init__(**options)
        self.input_dim, self.output_dim, self.mask_zero = input_dim, output_dim, mask_zero
        self.supports_masking = mask_zero
        self.supports_jit = self.autocast = False
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        first = _first_values(self.embeddings_initializer)
        self._settings: dict[str, Any] = {"after": after, "share": share, "rows": rows, "full": full, "ttl": ttl, "bound": bound}
        self._settings |= {"compression": compression}
        self._settings |= {"rule": rules.text_of(rule), "seed": first.pop("seed") if seed is None else seed}
        self.table = Table(name, output_dim, dtype=table_dtype, **first | self._settings)  # type: ignore[arg-type]
        self._settings |= {"table_dtype": table_dtype}
        """The table, such as for `stats` and `shrink`."""
        self._rows = TableRows(self.table, input_dim, HINT)
        self._anchor: Any = None

    def build(self, input_shape: Any = None) -> None:
        """Makes the anchor."""
        del input_shape
        if self._anchor is None:
            self._anchor = self.add_weight(shape=(), initializer="zeros", dtype="float32", autocast=False, name="anchor")
            self._anchor._gradlane_rows = self._rows
        self.built = True

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """The rows of ids.

        Args:
            inputs: integers of any shape.
            training: whether gradients will follow.
        Returns:
            The rows, of the shape of the ids and `output_dim`, in the type in which the layer computes.
        Raises:
            InvalidArgumentError: an id is below 0 or not below `input_dim`, or is a float that may have been rounded; it is named.
            FailedPreconditionError: gradients were left, and nothing has sent them; the table is full, or a server has no memory
                for more rows.
            MismatchError: a worker has made the table with other arguments; both sides are named.
            UnsupportedError: ids are ragged or sparse, or XLA compiles the model.
        """
        from gradlane.tensorflow._table_rows import read

        rows = read(self._rows, self._anchor, inputs, is_training=bool(training) and self.trainable)
        return keras.ops.cast(rows, self.compute_dtype)

    def push(self) -> None:
        """Sends what backward passes have left, and waits until the rows are changed; for training loops without `DistributedOptimizer`.

        Raises:
            NotFiniteError: a gradient is infinite or not a number.
            FailedPreconditionError: the table is full, or a server has no memory for more rows.
            PeerLostError: a member of the job died.
        """
        send([self._rows])

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """Which ids are no padding; None without `mask_zero`."""
        del mask
        return keras.ops.not_equal(inputs, 0) if self.mask_zero else None

    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, ...]:
        """The shape of the ids, and `output_dim`."""
        return (*input_shape, self.output_dim)

    def compute_output_spec(self, inputs: Any, training: bool | None = None) -> Any:
        """What the layer makes of symbolic inputs."""
        del training
        return keras.KerasTensor(self.compute_output_shape(inputs.shape), dtype=self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        """The arguments that make the layer again, with the same table."""
        config: dict[str, Any] = {**super().get_config(), **self._settings, "table": self.table.name}
        config |= {"input_dim": self.input_dim, "output_dim": self.output_dim, "mask_zero": self.mask_zero}
        return config | {"embeddings_initializer": keras.initializers.serialize(self.embeddings_initializer)}


def rows_of(variable: Any) -> TableRows | None:
    """The rows for which a weight of a model stands; None if it is no anchor."""
    return getattr(variable, "_gradlane_rows", None)


def _check_backend() -> None:
    name = keras.backend.backend()
    if name != "tensorflow":
        there = {"torch": "gradlane.torch.Embedding, or ", "jax": "gradlane.jax.pull and push, or "}.get(name, "")
        raise UnsupportedError(f"gradlane.keras.Embedding with Keras' backend {name!r}; use {there}KERAS_BACKEND=tensorflow")


def _is_whole(number: object, below: int) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and 0 < number < below


def _first_values(initializer: Any) -> dict[str, Any]:
    """An initializer of Keras as arguments of a table."""
    config = initializer.get_config() if isinstance(initializer, keras.initializers.Initializer) else {}
    seed = config.get("seed")
    first = {"seed": 0 if seed is None else seed}
    if isinstance(initializer, keras.initializers.Zeros):
        return {**first, "init": "zero"}
    if isinstance(initializer, keras.initializers.RandomUniform) and config["minval"] == -config["maxval"]:
        return {**first, "init": "uniform", "scale": float(config["maxval"])}
    if isinstance(initializer, keras.initializers.RandomNormal) and config["mean"] == 0:
        return {**first, "init": "normal", "scale": float(config["stddev"])}
    raise UnsupportedError(
        f"embeddings_initializer={initializer!r} with {config}: rows begin with zeros, with numbers spread evenly from -x to x, or with "
        "a normal distribution around 0; give keras.initializers.Zeros(), RandomUniform(-x, x) or RandomNormal(stddev=x)"
    )
