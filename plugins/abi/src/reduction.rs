//! How an op library reads a reduction from the attributes of its framework.

use std::ffi::{CString, NulError};

use crate::door::Failure;
use crate::status::GradlaneStatus;
use crate::types::{GradlaneOp, GradlaneSubmission};

/// How tensors are reduced: all that an op says, except for the tensors and their names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reduction {
    /// How contributions become one result.
    pub op: GradlaneOp,
    /// The rank whose bytes a broadcast sends to all.
    pub root: u32,
    /// Of the first tensor. Higher goes first.
    pub priority: i32,
    /// How tensors travel between machines: one text for all, or one for each tensor. The engine reads it.
    pub codecs: Vec<CString>,
    /// Milliseconds for the whole operation; 0 takes the job's step timeout.
    pub timeout_ms: u64,
}

/// The same as a framework has it: texts, and integers of 64 bits.
#[derive(Clone, Copy, Debug)]
pub struct Attributes<'a> {
    /// A name of [`GradlaneOp`].
    pub op: &'a str,
    /// See [`Reduction::root`].
    pub root: i64,
    /// See [`Reduction::priority`].
    pub priority: i64,
    /// How tensors travel between machines: one line for all, or one for each tensor.
    pub codec: &'a str,
    /// See [`Reduction::timeout_ms`].
    pub timeout_ms: i64,
}

impl Reduction {
    /// Reads the attributes of an op.
    ///
    /// # Errors
    /// [`GradlaneStatus::InvalidArgument`] for an unknown reduction, a number out of range, or a codec that contains a zero byte.
    pub fn read(attributes: Attributes<'_>) -> Result<Self, Failure> {
        let Attributes { op, root, priority, codec, timeout_ms } = attributes;
        let invalid = |text: String| Failure::new(GradlaneStatus::InvalidArgument, text);
        let out_of_range = |name: &str, value: i64| invalid(format!("{name}={value} is out of range"));
        Ok(Self {
            op: GradlaneOp::named(op).map_err(|unknown| invalid(unknown.to_string()))?,
            root: u32::try_from(root).map_err(|_| out_of_range("root", root))?,
            priority: i32::try_from(priority).map_err(|_| out_of_range("priority", priority))?,
            codecs: lines(codec).map_err(|_| invalid("the codec's name contains a zero byte".to_owned()))?,
            timeout_ms: u64::try_from(timeout_ms).map_err(|_| out_of_range("timeout_ms", timeout_ms))?,
        })
    }

    /// A submission of the tensor at this place of a list with this reduction, and with `weight` for a weighted mean, for the caller to add
    /// the tensor. Each tensor has a priority one less than the one before. The submission points to a codec of this value.
    pub fn submission(&self, position: usize, weight: f64) -> GradlaneSubmission {
        GradlaneSubmission {
            op: self.op as u32,
            root: self.root,
            weight,
            priority: self.priority.saturating_sub(i32::try_from(position).unwrap_or(i32::MAX)),
            codec: self.codecs.get(position).unwrap_or(&self.codecs[0]).as_ptr(),
            timeout_ms: self.timeout_ms,
            ..GradlaneSubmission::empty()
        }
    }
}

/// The texts that stand one a line; at least one.
///
/// # Errors
/// One contains a zero byte.
pub fn lines(text: &str) -> Result<Vec<CString>, NulError> {
    text.split('\n').map(CString::new).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_become_the_fields_of_a_submission() {
        let reduction = Reduction::read(Attributes { priority: -3, codec: "bf16", ..attributes("weighted_mean") });
        let reduction = reduction.expect("all of it is right");
        let submission = reduction.submission(0, 2.5);
        assert_eq!((submission.op, submission.root, submission.priority), (GradlaneOp::WeightedMean as u32, 1, -3));
        assert_eq!((submission.weight, submission.timeout_ms), (2.5, 20));
        assert_eq!(submission.codec, reduction.codecs[0].as_ptr());
        let priorities = [2, usize::MAX].map(|position| reduction.submission(position, 1.0).priority);
        assert_eq!(priorities, [-5, i32::MIN]);
    }

    #[test]
    fn each_tensor_has_the_codec_of_its_line() {
        let reduction = Reduction::read(Attributes { codec: "int8\nnone", ..attributes("sum") }).expect("two lines");
        let codecs = [0, 1].map(|position| reduction.submission(position, 1.0).codec);
        assert_eq!(codecs, [reduction.codecs[0].as_ptr(), reduction.codecs[1].as_ptr()]);
        assert_eq!(reduction.codecs, [c"int8".to_owned(), c"none".to_owned()]);
    }

    #[test]
    fn what_is_no_reduction_is_refused_in_words() {
        let text = |attributes| Reduction::read(attributes).expect_err("it is wrong").text;
        assert!(text(attributes("product")).contains("use one of sum, mean"));
        assert_eq!(text(Attributes { root: -1, ..attributes("sum") }), "root=-1 is out of range");
        assert_eq!(text(Attributes { priority: 1 << 31, ..attributes("sum") }), "priority=2147483648 is out of range");
        assert_eq!(text(Attributes { timeout_ms: -1, ..attributes("sum") }), "timeout_ms=-1 is out of range");
        assert!(text(Attributes { codec: "f\0", ..attributes("sum") }).contains("zero byte"));
    }

    fn attributes(op: &str) -> Attributes<'_> {
        Attributes { op, root: 1, priority: 0, codec: "none", timeout_ms: 20 }
    }
}
