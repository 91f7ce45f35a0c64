"""Refuses to be imported without JAX, or with one that is too old."""

from __future__ import annotations

from gradlane._framework import Framework

JAX = Framework("JAX", "jax", (0, 8))
"""0.8 is the oldest release that is tested. Before it, `pmap` fails with an error of its own before it is recognised."""

JAX.check()
