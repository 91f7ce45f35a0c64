//! The parameters of a job of one worker, one behaviour a test.

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
        self.access(Self::check(used(access, memory))?).map(|effect| effect.version.0)
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
        clock_at: 0,
        memory: region.into(),
        into: None,
        priority: Priority::default(),
        timeout: None,
    }
}
