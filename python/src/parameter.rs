//! Parameters and their clocks, as Python's values.

use std::sync::Arc;
use std::time::Duration;

use gradlane_core::Result;
use gradlane_core::types::{ClockKey, Mode, Rule, TensorKind, TensorSpec, Tick, Ticked};
use gradlane_session::{Session, dtype_named};
use pyo3::prelude::*;

use crate::errors;
use crate::wait::{duration, in_background};

/// The round, the global step, how many rounds the slowest worker is behind, and what became of the round.
pub(crate) type Told = (u64, u64, u64, &'static str);

/// How a parameter is declared: its rule, its mode, and the name of its clock; and where that stands.
pub(crate) type Kind<'a> = (Option<&'a str>, Option<&'a str>, Option<&'a str>, u64);

/// The declaration of a parameter.
pub(crate) fn declared(name: String, dtype: &str, shape: Vec<u64>, kind: Kind<'_>) -> Result<TensorSpec> {
    let (rule, mode, clock, _) = kind;
    let rule = rule.map(|rule| rule.parse().map(|rule: Rule| rule.of_shape(&shape))).transpose()?;
    let mode = mode_by(mode, clock)?;
    let kind = TensorKind::Parameter { rule, mode };
    Ok(TensorSpec { kind, ..TensorSpec::parameter(name, dtype_named(dtype)?, shape) })
}

/// Ticks a clock.
pub(crate) fn tick(
    py: Python<'_>,
    session: &Arc<Session>,
    (clock, mode): (String, String),
    (round, samples): (u64, u64),
    (waits, leaves, timeout): (bool, bool, Option<f64>),
) -> PyResult<Told> {
    let session = Arc::clone(session);
    let mode = mode_by(Some(&mode), Some(&clock)).map_err(|error| errors::raise(py, &error))?;
    // How long it waits is the timeout.
    let tick = Tick { clock, mode, round, samples, leaves, wait: waits.then_some(Duration::ZERO) };
    let ticked = in_background(py, move || session.tick(tick, timeout.map(duration)))?;
    let Ticked { round, step, ahead, fate } = ticked.map_err(|error| errors::raise(py, &error))?;
    Ok((round, step, ahead, fate.name()))
}

fn mode_by(mode: Option<&str>, clock: Option<&str>) -> Result<Mode> {
    let mode = mode.map_or(Ok(Mode::ASYNC), str::parse::<Mode>)?;
    Mode { clock: clock.map(ClockKey::of), ..mode }.check()
}
