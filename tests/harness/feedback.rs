//! Sums with error feedback, and a scalar model of the whole pipeline to compare them with.

use gradlane_core::Result;
use gradlane_core::codec::{self, AnyCodec, Codec, testing};
use gradlane_core::engine::Engine;
use gradlane_core::reduce::Kernels;
use gradlane_core::types::{CodecSpec, DType, Op};

use crate::cluster::Tensor;

/// What `rank` contributes to a round: multiples of 2^-11 below 4, which most codecs do not hold. With casts, all numbers of a pipeline are
/// exact in f32, so that the order of additions does not matter.
pub fn given(rank: u32, round: u64, len: usize) -> Vec<f32> {
    let steps = |index: usize| (index as u64 * 37 + u64::from(rank) * 1009 + round * 11) % 16_381;
    (0..len).map(|index| steps(index) as f32 / 2048.0 - 4.0).collect()
}

/// Reduces what this worker contributes to a round, as sum, and returns what came.
///
/// # Errors
/// As [`Engine::push_pull`] and as its handle.
pub fn reduce(engine: &Engine, name: &str, codec: CodecSpec, round: u64, len: usize) -> Result<Vec<f32>> {
    let Tensor { spec, data } = Tensor::new(name, given(engine.rank().0, round, len));
    let mut tensor = Tensor { spec: spec.with_codec(codec), data };
    tensor.reduce(engine, Op::Sum)?;
    Ok(tensor.data)
}

/// The pipeline element by element: the feedback of each sender, the sum, and the feedback of its answer.
pub struct Model {
    codec: AnyCodec,
    has_feedback: bool,
    /// Of the senders, by number.
    residuals: Vec<Vec<f32>>,
    /// Of the answers.
    of_answers: Vec<f32>,
    /// The senders of the sum before.
    before: Vec<usize>,
}

impl Model {
    /// A part of `len` elements that so many senders exchange: workers, or machines.
    ///
    /// # Panics
    /// If the codec makes plain bodies.
    pub fn new(codec: CodecSpec, senders: usize, len: usize) -> Self {
        let has_feedback = codec.has_feedback();
        let codec = codec::of(codec, DType::F32).expect("a codec");
        let residuals = vec![vec![0.0; len]; senders];
        Self { codec, has_feedback, residuals, of_answers: vec![0.0; len], before: Vec::new() }
    }

    /// The sum of a round of these senders, each with what it gives.
    pub fn round(&mut self, given: &[(usize, Vec<f32>)]) -> Vec<f32> {
        let senders: Vec<usize> = given.iter().map(|(sender, _)| *sender).collect();
        let is_other = !self.before.is_empty() && self.before != senders;
        if is_other {
            // Server: it knows the senders before it encodes the answer.
            self.of_answers.fill(0.0);
        }
        let mut sum = vec![0.0; self.of_answers.len()];
        for (sender, given) in given {
            let sent = pass(&*self.codec, given, &mut self.residuals[*sender]);
            sum.iter_mut().zip(sent).for_each(|(sum, sent)| *sum += sent);
        }
        let answer = pass(&*self.codec, &sum, &mut self.of_answers);
        if is_other || !self.has_feedback {
            // Workers: they learn of the senders with the answer.
            self.residuals.iter_mut().for_each(|residual| residual.fill(0.0));
        }
        if !self.has_feedback {
            self.of_answers.fill(0.0);
        }
        self.before = senders;
        answer
    }
}

/// p = given + residual; C(p) is what passes; residual = p - C(p).
fn pass(codec: &dyn Codec, given: &[f32], residual: &mut [f32]) -> Vec<f32> {
    let padded: Vec<f32> = given.iter().zip(&*residual).map(|(given, lost)| given + lost).collect();
    let elements: Vec<u8> = padded.iter().flat_map(|element| element.to_le_bytes()).collect();
    let body = testing::encoded(codec, Kernels::portable(), 1.0, &elements, given.len() as u64);
    let mut decoded = vec![0; elements.len()];
    codec.decode(Kernels::portable(), &body.expect("it refuses nothing"), &mut decoded).expect("it was just encoded");
    let passed: Vec<f32> = decoded.as_chunks().0.iter().map(|float| f32::from_le_bytes(*float)).collect();
    residual.iter_mut().zip(padded.iter().zip(&passed)).for_each(|(lost, (padded, passed))| *lost = padded - passed);
    passed
}
