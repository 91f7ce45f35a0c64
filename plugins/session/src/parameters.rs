//! Parameters of a job of one worker without servers: this process keeps them, as servers of a larger job would.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use gradlane_core::cluster::ticks;
use gradlane_core::engine::{Memory, ParameterUse};
use gradlane_core::mem::{Pool, Region};
use gradlane_core::reduce::{Kernels, OptimizerState, clip_factor};
use gradlane_core::types::{
    Access, Ask, Average, ClockKey, ClockStep, Effect, Fate, Mode, PartId, TensorSpec, Tick, Ticked, Update, Version,
    WorkerId,
};
use gradlane_core::wire::limits;
use gradlane_core::{Error, Result};

use gradlane_server::checkpoint::FrozenPart;

use crate::memory::{bytes_of, bytes_of_mut};

/// The parameters and the clocks, by name.
#[derive(Debug)]
pub(crate) struct Parameters {
    kept: Mutex<Kept>,
    kernels: Kernels,
}

#[derive(Default, Debug)]
struct Kept {
    parameters: BTreeMap<String, Parameter>,
    clocks: BTreeMap<String, OwnClock>,
    /// Where clocks begin, since a checkpoint was loaded.
    begins: BTreeMap<ClockKey, ClockStep>,
}

/// All parameters as they were at one moment.
pub(crate) struct FrozenParameters {
    pub(crate) tensors: Vec<TensorSpec>,
    /// What the part of each has.
    pub(crate) parts: BTreeMap<PartId, FrozenPart>,
    /// How far the clocks were.
    pub(crate) steps: Vec<ClockStep>,
}

/// A clock that one worker ticks.
#[derive(Debug)]
struct OwnClock {
    mode: Mode,
    /// The rounds that were finished.
    finished: u64,
    /// What is added to them to make the global step, modulo 2^64.
    base: u64,
    /// The samples of these.
    samples: u64,
    /// Whether it is ticked no more.
    has_left: bool,
}

/// A use of a parameter whose arguments are right.
pub(crate) struct Checked {
    tensor: TensorSpec,
    access: Access,
    clock_at: u64,
    value: Region,
    into: Option<Region>,
}

#[derive(Debug)]
struct Parameter {
    /// As its first use has declared it.
    tensor: TensorSpec,
    /// Empty before the first value.
    value: Vec<u8>,
    version: Version,
    /// The version that was read last, from which changes are computed.
    read: Version,
    /// The value of that version, if the mode compensates gradients that were computed from it.
    base: Vec<u8>,
    /// The gradient of the round that is open, with its round.
    of_round: Option<(u64, Vec<u8>)>,
    /// What its rule keeps, once the rule was applied.
    optimizer: Option<OptimizerState>,
}

impl Checked {
    /// Whether it changes what has a value.
    pub(crate) fn is_change(&self) -> bool {
        self.access.changes()
    }
}

impl Parameters {
    pub(crate) fn new() -> Self {
        Self { kept: Mutex::default(), kernels: Kernels::detect() }
    }

    /// Refuses a use that makes no sense, whatever the parameters' state.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] as [`Engine::access`](gradlane_core::engine::Engine::access); [`Error::FailedPrecondition`] for memory of
    /// a device.
    pub(crate) fn check(asked: ParameterUse) -> Result<Checked> {
        asked.check()?;
        let ParameterUse { tensor, access, clock_at, memory, into, .. } = asked;
        let name = &tensor.name;
        let host = |memory| match memory {
            Memory::Host(region) => Ok(region),
            Memory::Device { .. } => Err(Error::FailedPrecondition {
                what: format!(
                    "tensor {name}: a parameter in memory of a device, in a job of one worker without a server"
                ),
                hint: "start the job with a server, such as by `gradlane run -n 1 -s 1`, or give host memory"
                    .to_owned(),
            }),
        };
        let (value, into) = (host(memory)?, into.map(host).transpose()?);
        Ok(Checked { tensor, access, clock_at, value, into })
    }

    /// Uses a parameter, and returns what that has come to.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if its first use was of another element type, shape, rule or mode, or if gradients of its clock are clipped to another
    /// norm; [`Error::FailedPrecondition`] if it has no value, or a gradient for this round already.
    pub(crate) fn access(&self, asked: Checked) -> Result<Effect> {
        let Checked { tensor, access, clock_at, value, into } = asked;
        let mut kept = self.lock();
        let Kept { parameters, clocks, .. } = &mut *kept;
        if !parameters.contains_key(&tensor.name) {
            let me = WorkerId(0);
            let other = parameters.values().find_map(|known| ticks::other_clip((me, &known.tensor), (me, &tensor)));
            other.map_or(Ok(()), Err)?;
        }
        let parameter = parameters.entry(tensor.name.clone()).or_insert_with(|| Parameter::unset(&tensor));
        if let Some(difference) = parameter.tensor.declared().difference(&tensor.declared()) {
            return Err(difference.into_error(tensor.name, WorkerId(0), WorkerId(0)));
        }
        let mut effect = Effect::default();
        match access {
            Access::Init if parameter.is_set() => {}
            Access::Init => {
                parameter.change(self.kernels, Update::Assign, None, bytes_of(&value));
                parameter.note_read();
            }
            Access::Push(_) | Access::Pull | Access::PushPull(_) | Access::PullAverage(_) if !parameter.is_set() => {
                return Err(Error::FailedPrecondition {
                    what: format!("tensor {}: {access} of a parameter that has no value", tensor.name),
                    hint: "initialise the parameter first".to_owned(),
                });
            }
            Access::Push(Update::Step) if tensor.kind.mode().rounds().is_some() => {
                let of_this = |clock: &&OwnClock| clock.mode == tensor.kind.mode();
                let finished = clocks.values().find(of_this).map_or(0, |clock| clock.finished);
                return parameter.keep(clock_at, finished, bytes_of(&value));
            }
            Access::Push(update) | Access::PushPull(update) => {
                effect = parameter.push(self.kernels, update, clock_at, bytes_of(&value));
            }
            Access::Pull | Access::PullAverage(_) => {}
        }
        effect.version = parameter.version;
        if access.receives() {
            parameter.write(access.average(), bytes_of_mut(&mut into.unwrap_or(value)));
            if access.average().is_none() {
                parameter.note_read();
            }
        }
        Ok(effect)
    }

    /// Finishes a round of a clock: nobody is waited for, and gradients of the round are applied.
    ///
    /// # Errors
    /// As [`Engine::tick`](gradlane_core::engine::Engine::tick).
    pub(crate) fn tick(&self, tick: Tick) -> Result<Ticked> {
        limits::check_ask(&Ask::Tick(tick.clone()))?;
        let Tick { clock: name, mode, round, samples, leaves, .. } = tick;
        let mut kept = self.lock();
        let Kept { parameters, clocks, begins } = &mut *kept;
        let at = mode.clock.and_then(|clock| begins.get(&clock));
        let (base, samples_before) = at.map_or((0, 0), |at| (at.step, at.samples));
        let clock = clocks.entry(name.clone()).or_insert(OwnClock {
            mode,
            finished: 0,
            base,
            samples: samples_before,
            has_left: false,
        });
        if leaves {
            clock.has_left = true;
        } else {
            clock.check(&name, mode, round)?;
        }
        if round == clock.finished + 1 && !leaves {
            clock.finished = round;
            let mut of_clock: Vec<_> =
                parameters.values_mut().filter(|parameter| parameter.tensor.kind.mode() == mode).collect();
            let squares = of_clock.iter().map(|parameter| parameter.squares(self.kernels, round));
            let norm = squares.fold(0.0, |all, squares| all + squares).sqrt();
            let before = (round, clock.base.wrapping_add(round - 1), clock.samples);
            of_clock.iter_mut().for_each(|parameter| parameter.close(self.kernels, before, norm));
            clock.samples = clock.samples.saturating_add(samples);
        }
        Ok(Ticked { round: clock.finished, step: clock.step(), ahead: 0, fate: Fate::Accepted })
    }

    /// All parameters as they are now.
    ///
    /// # Errors
    /// [`Error::FailedPrecondition`] if one has no value.
    pub(crate) fn frozen(&self, pool: &Pool) -> Result<FrozenParameters> {
        let kept = self.lock();
        let mut parts = BTreeMap::new();
        for parameter in kept.parameters.values() {
            if !parameter.is_set() {
                return Err(Error::FailedPrecondition {
                    what: format!("parameter {} has no value", parameter.tensor.name),
                    hint: "initialise all parameters before saving them, or undeclare it".to_owned(),
                });
            }
            let mut block = pool.lease(parameter.value.len());
            block.copy_from_slice(&parameter.value);
            let frozen = FrozenPart {
                version: parameter.version,
                blocks: vec![block.freeze()],
                optimizer: parameter.optimizer.clone(),
            };
            parts.insert(part_of(&parameter.tensor), frozen);
        }
        let step =
            |clock: &OwnClock| Some(ClockStep { clock: clock.mode.clock?, step: clock.step(), samples: clock.samples });
        let steps = kept.clocks.values().filter_map(step).collect();
        Ok(FrozenParameters { tensors: kept.tensors(), parts, steps })
    }

    /// The parameters that were used.
    pub(crate) fn tensors(&self) -> Vec<TensorSpec> {
        self.lock().tensors()
    }

    /// Puts what was read in the place of the values, and lets clocks go on from these steps.
    ///
    /// # Errors
    /// [`Error::FailedPrecondition`] if a round has begun, and then nothing is changed.
    pub(crate) fn restore(&self, parts: &BTreeMap<PartId, FrozenPart>, steps: &[ClockStep]) -> Result<()> {
        let mut kept = self.lock();
        let begun = kept.parameters.values().find_map(|parameter| Some((parameter, parameter.of_round.as_ref()?.0)));
        if let Some((Parameter { tensor, .. }, round)) = begun {
            return Err(Error::FailedPrecondition {
                what: format!("round {round} has begun: there is a gradient of {}", tensor.name),
                hint: "load between two rounds".to_owned(),
            });
        }
        for parameter in kept.parameters.values_mut() {
            if let Some(frozen) = parts.get(&part_of(&parameter.tensor)) {
                parameter.value = frozen.blocks.iter().flat_map(|block| block.iter().copied()).collect();
                parameter.optimizer.clone_from(&frozen.optimizer);
                parameter.version = frozen.version.max(Version(parameter.version.0 + u64::from(parameter.is_set())));
            }
        }
        let Kept { clocks, begins, .. } = &mut *kept;
        *begins = steps.iter().map(|at| (at.clock, *at)).collect();
        for clock in clocks.values_mut() {
            let at = clock.mode.clock.and_then(|key| begins.get(&key));
            clock.base = at.map_or(0, |at| at.step.wrapping_sub(clock.finished));
            clock.samples = at.map_or(clock.samples, |at| at.samples);
        }
        Ok(())
    }

    /// Forgets the parameters with these names.
    pub(crate) fn forget(&self, names: &[String]) {
        let mut kept = self.lock();
        for name in names {
            kept.parameters.remove(name);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    fn tensors(&self) -> Vec<TensorSpec> {
        self.parameters.values().map(|parameter| parameter.tensor.clone()).collect()
    }
}

impl Parameter {
    fn unset(tensor: &TensorSpec) -> Self {
        let (version, read) = (Version::default(), Version::default());
        Self {
            tensor: tensor.clone(),
            value: Vec::new(),
            version,
            read,
            base: Vec::new(),
            of_round: None,
            optimizer: None,
        }
    }

    /// The worker computes from the present value from now on.
    fn note_read(&mut self) {
        self.read = self.version;
        if self.tensor.kind.mode().compensation.kappa().is_some() {
            self.base.clone_from(&self.value);
        }
    }

    fn is_set(&self) -> bool {
        self.version > Version::default()
    }

    /// Does a change as its mode says.
    fn push(&mut self, kernels: Kernels, update: Update, clock_at: u64, change: &[u8]) -> Effect {
        let global_step = self.tensor.kind.mode().clock.map(|_| clock_at);
        let lag = u32::try_from(self.version.0.saturating_sub(self.read.0)).unwrap_or(u32::MAX);
        let (lag, (fate, factor)) = match update {
            Update::Assign => (0, (Fate::Accepted, 1.0)),
            Update::Add | Update::Step => (lag, self.tensor.kind.mode().staleness.judge(lag)),
        };
        let (mode, dtype) = (self.tensor.kind.mode(), self.tensor.dtype);
        let kappa = mode.compensation.kappa().filter(|_| update == Update::Step && lag > 0);
        match fate {
            Fate::Accepted if kappa.is_none() => self.change(kernels, update, global_step, change),
            Fate::Accepted | Fate::Scaled => {
                let mut changed = change.to_vec();
                if let Some(kappa) = kappa {
                    kernels.compensate(dtype, kappa, &mut changed, &self.value, &self.base);
                }
                kernels.scale(dtype, factor, &mut changed);
                self.change(kernels, update, global_step, &changed);
            }
            Fate::Kept | Fate::DiscardedStale | Fate::DroppedLate => {}
        }
        Effect { version: self.version, fate, lag }
    }

    /// Keeps a gradient until its round is closed.
    fn keep(&mut self, round: u64, finished: u64, gradient: &[u8]) -> Result<Effect> {
        let mut fate = Fate::Kept;
        if round <= finished {
            fate = Fate::DroppedLate;
        } else if self.of_round.as_ref().is_some_and(|(of, _)| *of == round) {
            return Err(Error::FailedPrecondition {
                what: format!("tensor {}: a second gradient for round {round}", self.tensor.name),
                hint: "tick the clock after each round, or add gradients up before pushing them".to_owned(),
            });
        } else {
            self.of_round = Some((round, gradient.to_vec()));
        }
        Ok(Effect { version: self.version, fate, lag: 0 })
    }

    /// The squares of its gradient of a round, if that is clipped.
    fn squares(&self, kernels: Kernels, round: u64) -> f64 {
        let gradient = self.of_round.as_ref().filter(|(of, _)| *of == round && self.clip_norm().is_some());
        gradient.map_or(0.0, |(_, gradient)| kernels.squares(self.tensor.dtype, gradient))
    }

    /// A round is closed, before which there were so many steps and samples, and in which the gradients that are clipped have this norm.
    fn close(&mut self, kernels: Kernels, (round, steps, samples): (u64, u64, u64), norm: f64) {
        if let Some((_, mut gradient)) = self.of_round.take_if(|(of, _)| *of == round) {
            // Gradients that are not finite have no norm, and are clipped to nothing, as servers do it.
            let norm = if norm.is_nan() { f64::INFINITY } else { norm };
            let factor = self.clip_norm().map_or(1.0, |most| clip_factor(most, norm));
            if factor != 1.0 {
                kernels.scale(self.tensor.dtype, factor, &mut gradient);
            }
            let is_by_samples = self.tensor.kind.rule().is_some_and(|rule| rule.is_by_samples());
            let global_step = if is_by_samples { samples } else { steps };
            self.change(kernels, Update::Step, Some(global_step), &gradient);
        }
    }

    fn clip_norm(&self) -> Option<f64> {
        self.tensor.kind.rule()?.clip_norm()
    }

    /// Writes the value, or an average, which is the value before the first step.
    fn write(&self, average: Option<Average>, out: &mut [u8]) {
        match average.zip(self.optimizer.as_ref()) {
            Some((average, optimizer)) => optimizer.average(average, [out]),
            None => out.copy_from_slice(&self.value),
        }
    }

    fn change(&mut self, kernels: Kernels, update: Update, global_step: Option<u64>, change: &[u8]) {
        let dtype = self.tensor.dtype;
        match update {
            Update::Assign => change.clone_into(&mut self.value),
            Update::Add => kernels.add_elements(dtype, change, &mut self.value, |bytes| vec![0; bytes]),
            Update::Step => {
                let rule = self.tensor.kind.rule().expect("a step without a rule was refused");
                let bytes = self.value.len() as u64;
                let optimizer = self.optimizer.get_or_insert_with(|| OptimizerState::new(rule, dtype, bytes));
                let mut next = change.to_vec();
                optimizer.step(kernels, global_step, [(&self.value[..], &mut next[..])]);
                self.value = next;
            }
        }
        if let Some(optimizer) = self.optimizer.as_mut().filter(|_| update != Update::Step) {
            optimizer.handle_changed();
        }
        self.version.0 += 1;
    }
}

impl OwnClock {
    /// The global step.
    fn step(&self) -> u64 {
        self.base.wrapping_add(self.finished)
    }

    fn check(&self, name: &str, mode: Mode, round: u64) -> Result<()> {
        let me = WorkerId(0);
        if mode != self.mode {
            return Err(ticks::other_mode(name, (me, self.mode), (me, mode)));
        }
        if let Some(error) = mode.rounds().and_then(|(_, quorum, _)| ticks::too_few(name, quorum, 1)) {
            return Err(error);
        }
        if self.has_left {
            return Err(ticks::after_leaving(name, me));
        }
        match round == self.finished || round == self.finished + 1 {
            true => Ok(()),
            false => Err(ticks::out_of_order(name, me, round, self.finished)),
        }
    }
}

/// The part that a tensor is.
pub(crate) fn part_of(tensor: &TensorSpec) -> PartId {
    PartId { key: tensor.key(), index: 0 }
}

#[cfg(test)]
mod tests;
