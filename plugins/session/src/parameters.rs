//! Parameters of a job of one worker without servers: this process keeps them, as servers of a larger job would.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use gradlane_core::engine::{Memory, ParameterUse};
use gradlane_core::mem::Region;
use gradlane_core::reduce::{Kernels, OptimizerState};
use gradlane_core::types::{Access, Average, TensorSpec, Update, Version, WorkerId};
use gradlane_core::{Error, Result};

use crate::memory::{bytes_of, bytes_of_mut};

/// The parameters, by name.
#[derive(Debug)]
pub(crate) struct Parameters {
    kept: Mutex<BTreeMap<String, Parameter>>,
    kernels: Kernels,
}

/// A use of a parameter whose arguments are right.
pub(crate) struct Checked {
    tensor: TensorSpec,
    access: Access,
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
    /// What its rule keeps, once the rule was applied.
    optimizer: Option<OptimizerState>,
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
        let ParameterUse { tensor, access, memory, into, .. } = asked;
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
        Ok(Checked { tensor, access, value, into })
    }

    /// Uses a parameter, and returns its version.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if its first use was of another element type or shape; [`Error::FailedPrecondition`] if it has no value.
    pub(crate) fn access(&self, asked: Checked) -> Result<Version> {
        let Checked { tensor, access, value, into } = asked;
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let parameter = kept.entry(tensor.name.clone()).or_insert_with(|| Parameter::unset(&tensor));
        if let Some(difference) = parameter.tensor.declared().difference(&tensor.declared()) {
            return Err(difference.into_error(tensor.name, WorkerId(0), WorkerId(0)));
        }
        match access {
            Access::Init if parameter.is_set() => {}
            Access::Init => parameter.change(self.kernels, Update::Assign, bytes_of(&value)),
            Access::Push(_) | Access::Pull | Access::PushPull(_) | Access::PullAverage(_) if !parameter.is_set() => {
                return Err(Error::FailedPrecondition {
                    what: format!("tensor {}: {access} of a parameter that has no value", tensor.name),
                    hint: "initialise the parameter first".to_owned(),
                });
            }
            Access::Push(update) | Access::PushPull(update) => {
                parameter.change(self.kernels, update, bytes_of(&value));
            }
            Access::Pull | Access::PullAverage(_) => {}
        }
        if access.receives() {
            parameter.read(access.average(), bytes_of_mut(&mut into.unwrap_or(value)));
        }
        Ok(parameter.version)
    }

    /// Forgets the parameters with these names.
    pub(crate) fn forget(&self, names: &[String]) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        for name in names {
            kept.remove(name);
        }
    }
}

impl Parameter {
    fn unset(tensor: &TensorSpec) -> Self {
        Self { tensor: tensor.clone(), value: Vec::new(), version: Version::default(), optimizer: None }
    }

    fn is_set(&self) -> bool {
        self.version > Version::default()
    }

    /// Writes the value, or an average, which is the value before the first step.
    fn read(&self, average: Option<Average>, out: &mut [u8]) {
        match average.zip(self.optimizer.as_ref()) {
            Some((average, optimizer)) => optimizer.average(average, [out]),
            None => out.copy_from_slice(&self.value),
        }
    }

    fn change(&mut self, kernels: Kernels, update: Update, change: &[u8]) {
        let dtype = self.tensor.dtype;
        match update {
            Update::Assign => change.clone_into(&mut self.value),
            Update::Add => kernels.add_elements(dtype, change, &mut self.value, |bytes| vec![0; bytes]),
            Update::Step => {
                let rule = self.tensor.kind.rule().expect("a step without a rule was refused");
                let bytes = self.value.len() as u64;
                let optimizer = self.optimizer.get_or_insert_with(|| OptimizerState::new(rule, dtype, bytes));
                let mut next = change.to_vec();
                optimizer.step(kernels, [(&self.value[..], &mut next[..])]);
                self.value = next;
            }
        }
        if let Some(optimizer) = self.optimizer.as_mut().filter(|_| update != Update::Step) {
            optimizer.handle_changed();
        }
        self.version.0 += 1;
    }
}

#[cfg(test)]
mod tests {
    use gradlane_core::types::{DType, Priority};

    use super::*;

    const ADD: Access = Access::Push(Update::Add);

    #[test]
    fn a_parameter_is_given_a_value_once_and_each_change_makes_a_version() {
        let parameters = Parameters::new();
        let (mut first, mut second, mut out) = ([1.0_f32, 2.0], [5.0, 5.0], [0.0; 2]);
        assert_eq!(parameters.used(Access::Init, &mut first), Ok(1));
        assert_eq!(parameters.used(Access::Init, &mut second), Ok(1), "it has one");
        assert_eq!(parameters.used(ADD, &mut first), Ok(2));
        assert_eq!(parameters.used(Access::Pull, &mut out), Ok(2));
        assert_eq!(out, [2.0, 4.0]);
        assert_eq!(parameters.used(Access::Push(Update::Assign), &mut second), Ok(3));
        assert_eq!(parameters.used(Access::PushPull(Update::Add), &mut first), Ok(4));
        assert_eq!(first, [6.0, 7.0], "in place");
        assert_eq!(parameters.used(Access::PushPull(Update::Step), &mut [2.0, 4.0]), Ok(5));
        assert_eq!(parameters.used(Access::Pull, &mut out), Ok(5));
        assert_eq!(out, [5.0, 5.0]);
    }

    #[test]
    fn averages_are_the_value_before_the_first_step_and_follow_steps_alone() {
        let parameters = Parameters::new();
        let averages = || {
            [Average::Ema, Average::Window].map(|average| {
                let mut out = [0.0];
                parameters.used(Access::PullAverage(average), &mut out).map(|version| (version, out[0]))
            })
        };
        parameters.used(Access::Init, &mut [3.0]).unwrap();
        parameters.used(Access::Push(Update::Assign), &mut [8.0]).unwrap();
        assert_eq!(averages(), [Ok((2, 8.0)), Ok((2, 8.0))]);
        parameters.used(Access::Push(Update::Step), &mut [8.0]).unwrap();
        assert_eq!(averages(), [Ok((3, 6.0)), Ok((3, 4.0))], "the value is 4");
        parameters.used(ADD, &mut [100.0]).unwrap();
        assert_eq!(averages(), [Ok((4, 6.0)), Ok((4, 4.0))]);
        let mut value = [0.0];
        parameters.used(Access::Pull, &mut value).unwrap();
        assert_eq!(value, [104.0], "the value is not disturbed");
    }

    #[test]
    fn what_has_no_value_is_neither_changed_nor_read() {
        let parameters = Parameters::new();
        for access in Access::ALL.into_iter().filter(|access| *access != Access::Init) {
            let mut memory = [1.0_f32];
            let refused = parameters.used(access, &mut memory);
            let Err(Error::FailedPrecondition { what, .. }) = refused else { panic!("{access}: {refused:?}") };
            assert!(what.contains(&access.to_string()), "{what}");
            assert_eq!(memory, [1.0]);
        }
    }

    #[test]
    fn another_shape_is_a_mismatch_until_the_name_is_forgotten() {
        let parameters = Parameters::new();
        assert_eq!(parameters.used(Access::Init, &mut [1.0_f32, 2.0]), Ok(1));
        let refused = parameters.used(Access::Init, &mut [1.0_f32]);
        assert!(matches!(&refused, Err(Error::Mismatch { field, .. }) if field == "shape"), "{refused:?}");
        parameters.forget(&["w".to_owned()]);
        assert_eq!(parameters.used(Access::Init, &mut [1.0_f32]), Ok(1));
    }

    #[test]
    fn buffers_of_another_length_are_refused() {
        let mut memory = [0.0_f32; 3];
        let asked = ParameterUse { tensor: TensorSpec::parameter("w", DType::F32, vec![2]), ..used(ADD, &mut memory) };
        assert!(matches!(Parameters::check(asked), Err(Error::InvalidArgument { .. })));
    }

    impl Parameters {
        fn used(&self, access: Access, memory: &mut [f32]) -> Result<u64> {
            self.access(Self::check(used(access, memory))?).map(|version| version.0)
        }
    }

    #[expect(unsafe_code, reason = "the memory outlives the use")]
    fn used(access: Access, memory: &mut [f32]) -> ParameterUse {
        // SAFETY: the tests use it before the memory ends, and not meanwhile.
        let region = unsafe { Region::new(memory.as_mut_ptr().cast(), size_of_val(memory)) };
        let tensor = TensorSpec::parameter("w", DType::F32, vec![memory.len() as u64]);
        ParameterUse {
            tensor: tensor.with_rule("sgd:lr=0.5,ema=0.5,window=1".parse().expect("a rule")),
            access,
            memory: region.into(),
            into: None,
            priority: Priority::default(),
            timeout: None,
        }
    }
}
