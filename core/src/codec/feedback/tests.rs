use std::num::NonZeroU32;

use half::bf16;

use super::*;
use crate::codec::{self, AnyCodec, Seed, Workspace};
use crate::reduce::Kernels;
use crate::types::{CodecSpec, DType, Op, PartId, Round, TensorKey};

#[test]
fn what_was_delivered_and_the_residual_are_what_was_given() {
    for (spec, most) in [
        ("bf16", 0.05),
        ("bf16:stochastic=1", 0.05),
        ("fp16", 0.05),
        ("int8", 0.05),
        ("int8:block=32", 0.05),
        ("int4", 0.5),
        ("int4:stochastic=1", 1.0),
        ("fp8_e4m3", 0.5),
        ("fp8_e5m2", 1.0),
        ("onebit", 10.0),
    ] {
        let (mut play, mut given) = (Play::new(spec), vec![0.0; LEN]);
        let mut delivered = vec![0.0; LEN];
        for round in 0..50 {
            let elements: Vec<f32> = (0..LEN).map(|index| value(index, round)).collect();
            for (at, body) in play.round(&elements).iter().enumerate() {
                given[at] += f64::from(elements[at]);
                delivered[at] += f64::from(*body);
            }
            let residual = play.residual();
            for at in 0..LEN {
                // The additions of f32 round, 2^-24 of a value of at most 8 in each round.
                let gap = (delivered[at] + f64::from(residual[at]) - given[at]).abs();
                assert!(gap <= 1e-6 * f64::from(round + 1), "{spec}, round {round}, element {at}: {gap}");
                assert!(residual[at].abs() < most, "{spec}, round {round}: {} is left", residual[at]);
            }
        }
    }
}

#[test]
fn a_value_between_two_numbers_of_the_wire_is_sent_as_one_and_the_other() {
    // 1 and 1 + 1/128 are neighbours in bf16. Each number here is exact in f32.
    let mut play = Play::new("bf16");
    let sent: Vec<f32> = (0..8).map(|_| play.round(&[1.0 + 1.0 / 512.0])[0]).collect();
    let (low, high) = (1.0, 1.0 + 1.0 / 128.0);
    assert_eq!(sent, [low, low, high, low, low, low, high, low]);
    let residual = play.residual()[0];
    assert_eq!(sent.iter().sum::<f32>() + residual, 8.0 * (1.0 + 1.0 / 512.0));
}

#[test]
fn a_body_that_is_taken_back_has_changed_nothing() {
    for spec in ["int4", "topk:k=10000,feedback=1,momentum=500000"] {
        let round = |number| (0..LEN).map(|index| value(index, number)).collect::<Vec<f32>>();
        let (mut play, mut other) = (Play::new(spec), Play::new(spec));
        play.residual.hold();
        for number in [0, 1] {
            assert_eq!(play.round(&round(number)), other.round(&round(number)));
        }
        let before = [play.residual(), play.velocity()];
        play.round(&round(7));
        let half = 4 * (LEN / 2);
        play.residual.take_back(0..half);
        assert_eq!(play.residual()[..LEN / 2], before[0][..LEN / 2]);
        assert_ne!(play.residual()[LEN / 2..], before[0][LEN / 2..], "the rest is that of another tensor");
        play.residual.take_back(half..4 * LEN);
        assert_eq!([play.residual(), play.velocity()], before);
        assert_eq!(play.round(&round(2)), other.round(&round(2)));

        let memory = other.residual.bytes();
        assert_eq!(play.residual.bytes(), 2 * memory);
        other.residual.take_back(0..4 * LEN);
        assert_eq!(play.residual(), other.residual(), "what is not held stays");

        play.residual.write(0, &[0; 8], &[]);
        play.residual.take_back(0..8);
        assert_eq!(play.residual()[..2], [0.0; 2], "what a caller has put there stays");
    }
}

#[test]
fn a_body_may_begin_before_the_one_that_is_taken_back() {
    let round = |number| (0..LEN).map(|index| value(index, number)).collect::<Vec<f32>>();
    for spec in ["int4", "bf16:feedback=1,nesterov=500000"] {
        let (mut play, mut other) = (Play::new(spec), Play::new(spec));
        play.residual.hold();
        for number in 0..6 {
            // Every second round has another one before it, and the fourth has two, which are taken back.
            for unused in 0..[0, 1, 0, 2, 0, 1][number as usize] {
                play.round(&round(50 + unused));
                play.start = Start::Before;
            }
            assert_eq!(play.round(&round(number)), other.round(&round(number)), "{spec}, round {number}");
            play.start = Start::Kept;
        }
    }
}

#[test]
fn what_was_not_held_cannot_be_taken_back_and_goes_on() {
    let round = |number| (0..LEN).map(|index| value(index, number)).collect::<Vec<f32>>();
    let (mut play, mut other) = (Play::new("int4"), Play::new("int4"));
    for number in [0, 1] {
        play.round(&round(number));
        other.round(&round(number));
    }
    play.residual.hold();
    play.start = Start::Before;
    assert_eq!(play.round(&round(2)), other.round(&round(2)));
    assert_eq!(play.residual.bytes(), 2 * other.residual.bytes());
    play.residual.let_go();
    assert_eq!(play.residual.bytes(), other.residual.bytes());
    assert_eq!(play.round(&round(3)), other.round(&round(3)));
}

#[test]
fn the_body_is_that_of_the_elements_if_nothing_is_left_of_rounds_before() {
    for spec in ["bf16", "fp16", "int8"] {
        let elements: Vec<f32> = (0..LEN).map(|index| value(index, 0)).collect();
        let (codec, mut play) = (codec::of(spec.parse().unwrap(), DType::F32).unwrap(), Play::new(spec));
        let bytes = bytes_of(&elements);
        let mut body = vec![0; codec.body_bytes(LEN as u64).max() as usize];
        codec.encode(tools(0, &mut Workspace::default()), 1.0, &bytes, &mut body).unwrap();
        play.round(&elements);
        assert_eq!(play.body, body, "{spec}");
        play.start = Start::Zero;
        play.round(&elements);
        assert_eq!(play.body, body, "{spec}, from zero again");
    }
}

#[test]
fn a_part_that_is_encoded_in_pieces_of_whole_units_has_the_same_body_and_residual() {
    let codec = codec::of("int8:block=32".parse().unwrap(), DType::F32).unwrap();
    let mut play = Play::new("int8:block=32");
    let (mut residual, mut body) = (Residual::default(), vec![0; play.codec.body_bytes(LEN as u64).max() as usize]);
    for round in 0..3 {
        let elements: Vec<f32> = (0..LEN).map(|index| value(index, round)).collect();
        play.round(&elements);
        residual.start(Start::Kept, LEN, None);
        let mut used = 0;
        for (piece, elements) in bytes_of(&elements).chunks(96 * 4).enumerate() {
            let (first, workspace) = (piece * 96, &mut Workspace::default());
            let tools = tools(first as u64, workspace);
            used += residual.encode(&*codec, tools, 1.0, first, elements, &mut body[used..]).unwrap();
        }
        assert_eq!((used, &body, &residual), (body.len(), &play.body, &play.residual), "round {round}");
    }
}

#[test]
fn what_a_selection_leaves_out_comes_with_the_next_one_and_is_untouched_by_a_part_that_is_sent_plain() {
    // One of four elements is sent.
    let mut play = Play::new("topk:k=250000");
    let sparse = |play: &mut Play, elements: &[f32]| (play.round(elements), play.refused, play.residual());
    let zeros = [0.0; 12];
    let given = |pairs: &[(usize, f32)]| {
        let mut elements = [0.0; 16];
        pairs.iter().for_each(|(index, value)| elements[*index] = *value);
        elements
    };
    let (sent, refused, left) = sparse(&mut play, &given(&[(0, 8.0), (1, 7.0), (2, 6.0), (3, 5.0), (4, 1.0)]));
    assert_eq!((&sent[..5], refused, left[4]), (&[8.0, 7.0, 6.0, 5.0, 0.0][..], None, 1.0));
    assert_eq!(sent[4..], zeros);
    let (sent, refused, left) = sparse(&mut play, &given(&[(0, f32::NAN), (4, 2.0)]));
    assert!(sent[0].is_nan() && sent[4] == 2.0, "as it was given: {sent:?}");
    assert_eq!((refused, left[4]), (Some(Refusal::NotFinite), 1.0), "and what was left is left");
    let (sent, refused, left) = sparse(&mut play, &given(&[(4, 0.5)]));
    assert_eq!((sent[4], refused, &left[..]), (1.5, None, &[0.0; 16][..]), "what was left comes now");
}

#[test]
fn a_corrected_momentum_is_forgotten_where_an_element_was_sent() {
    // One of four elements is sent. All numbers are exact.
    let mut play = Play::new("topk:k=250000,feedback=1,momentum=500000");
    let gradient = [8.0, 1.0, 0.0, 0.0];
    // u = u/2 + gradient. The second element: u is 1, 1.5, 1.75, and what waits 1, 2.5, 4.25.
    assert_eq!(play.round(&gradient), [8.0, 0.0, 0.0, 0.0]);
    assert_eq!((play.residual(), play.velocity()), (vec![0.0, 1.0, 0.0, 0.0], vec![0.0, 1.0, 0.0, 0.0]));
    assert_eq!(play.round(&gradient), [8.0, 0.0, 0.0, 0.0], "without what the first round has sent");
    assert_eq!((play.residual(), play.velocity()), (vec![0.0, 2.5, 0.0, 0.0], vec![0.0, 1.5, 0.0, 0.0]));
    assert_eq!(play.round(&[0.0, 1.0, 0.0, 0.0]), [0.0, 4.25, 0.0, 0.0]);
    assert_eq!((play.residual(), play.velocity()), (vec![0.0; 4], vec![0.0; 4]));
    play.round(&[f32::INFINITY, 1.0, 1.0, 1.0]);
    assert_eq!((play.refused, play.velocity()), (Some(Refusal::NotFinite), vec![0.0; 4]), "as if it had not been");
}

#[test]
fn nesterovs_momentum_looks_ahead_and_is_never_forgotten() {
    let mut play = Play::new("bf16:feedback=1,nesterov=500000");
    // u is 2, 3, 3.5; what is sent is 2 + u/2.
    let sent: Vec<f32> = (0..3).map(|_| play.round(&[2.0; LEN])[LEN - 1]).collect();
    assert_eq!((sent, play.velocity()[0]), (vec![3.0, 3.5, 3.75], 3.5));
    play.start = Start::Zero;
    assert_eq!((play.round(&[2.0; LEN])[0], play.velocity()[0]), (3.0, 2.0), "from zero again");
    assert_eq!(play.residual.bytes(), 8 * LEN);
    assert!(play.round(&[f32::NAN; LEN])[0].is_nan());
    assert_eq!(play.velocity(), [0.0; LEN], "what is no number is not kept");
}

#[test]
fn what_is_no_number_leaves_no_residual() {
    let mut play = Play::new("fp16");
    // 70,000 is infinite in f16.
    let sent = play.round(&[f32::NAN, f32::INFINITY, 70_000.0, 1.0 + 1.0 / 4096.0]);
    assert!(sent[0].is_nan() && sent[1..3] == [f32::INFINITY; 2], "{sent:?}");
    assert_eq!(play.residual(), [0.0, 0.0, 0.0, 1.0 / 4096.0]);
    assert_eq!(play.round(&[1.0; 4])[..3], [1.0; 3], "the next round is whole");

    let mut play = Play::new("int8:block=32");
    let mut elements = [0.3; 64];
    elements[0] = f32::NAN;
    play.round(&elements);
    assert!(play.residual()[..32].iter().all(|lost| *lost == 0.0), "its block brings no numbers");
}

#[test]
fn a_divided_body_leaves_a_residual_of_what_was_not_divided() {
    let mut play = Play::new("fp16");
    play.divisor = play.codec.divisor(Op::Sum, NonZeroU32::new(4).unwrap());
    assert_eq!(play.divisor, 4.0);
    // 25,008 is a multiple of 16, the step of f16 there.
    assert_eq!(play.round(&[100_007.0]), [25_008.0]);
    assert_eq!(play.residual(), [100_007.0 - 4.0 * 25_008.0]);
}

#[test]
fn another_length_begins_at_zero_and_no_elements_need_nothing() {
    let mut play = Play::new("bf16");
    play.round(&[1.0 + 1.0 / 512.0; 4]);
    assert_eq!(play.round(&[1.0 + 1.0 / 512.0; 3]), [1.0; 3]);
    assert_eq!(play.round(&[]), [0.0; 0]);
    assert_eq!(bf16::from_f32(1.0 + 1.0 / 512.0).to_f32(), 1.0);
}

/// More than two runs, the last one shorter.
const LEN: usize = 10_003;

/// Different in each round, of magnitude 4 at most, and off the grid of every codec.
fn value(index: usize, round: u32) -> f32 {
    ((index * 37 + round as usize * 11) % 801) as f32 / 100.0 - 4.0 + 0.001
}

/// A part, round after round.
struct Play {
    spec: CodecSpec,
    codec: AnyCodec,
    divisor: f64,
    start: Start,
    residual: Residual,
    body: Vec<u8>,
    /// Why the latest body is plain, if it is.
    refused: Option<Refusal>,
}

impl Play {
    fn new(spec: &str) -> Self {
        let spec: CodecSpec = spec.parse().unwrap();
        let codec = codec::of(spec, DType::F32).unwrap();
        Self {
            spec,
            codec,
            divisor: 1.0,
            start: Start::Kept,
            residual: Residual::default(),
            body: Vec::new(),
            refused: None,
        }
    }

    /// Encodes them. Returns what the body brings.
    fn round(&mut self, elements: &[f32]) -> Vec<f32> {
        self.refused = self.try_round(elements).err();
        let mut decoded = vec![0; 4 * elements.len()];
        match self.refused {
            Some(_) => decoded.copy_from_slice(&self.body[..4 * elements.len()]),
            None => self.codec.decode(Kernels::detect(), &self.body, &mut decoded).unwrap(),
        }
        floats_of(&decoded)
    }

    fn try_round(&mut self, elements: &[f32]) -> Result<(), Refusal> {
        let workspace = &mut Workspace::default();
        self.residual.start(self.start, elements.len(), self.spec.momentum());
        self.body = vec![0; self.codec.body_bytes(elements.len() as u64).max() as usize];
        let (tools, bytes) = (tools(0, workspace), bytes_of(elements));
        let used = self.residual.encode(&*self.codec, tools, self.divisor, 0, &bytes, &mut self.body)?;
        self.body.truncate(used);
        Ok(())
    }

    fn residual(&self) -> Vec<f32> {
        floats_of(&self.residual.bytes)
    }

    fn velocity(&self) -> Vec<f32> {
        floats_of(&self.residual.velocity)
    }
}

fn tools(first: u64, workspace: &mut Workspace) -> Tools<'_> {
    let part = PartId { key: TensorKey(1), index: 0 };
    Tools { kernels: Kernels::detect(), seed: Seed::of(part, Round(0)).from_element(first), workspace }
}

fn bytes_of(elements: &[f32]) -> Vec<u8> {
    elements.iter().flat_map(|element| element.to_le_bytes()).collect()
}

fn floats_of(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|float| f32::from_le_bytes(*float)).collect()
}

#[test]
fn what_the_next_body_would_begin_with_is_shown_and_stays() {
    let mut residual = Residual::of(1.5_f32.to_le_bytes().to_vec());
    residual.hold();
    residual.start(Start::Kept, 1, None);
    // What a body leaves.
    residual.bytes = 0.25_f32.to_le_bytes().to_vec();
    let show = |residual: &Residual, start| {
        let mut shown = [7; 4];
        residual.show(start, &mut shown);
        f32::from_le_bytes(shown)
    };
    let starts = [Start::Zero, Start::Kept, Start::Before];
    assert_eq!(starts.map(|start| show(&residual, start)), [0.0, 0.25, 1.5]);
    residual.let_go();
    assert_eq!(starts.map(|start| show(&residual, start)), [0.0, 0.25, 0.25], "none is held");
    let mut longer = [7; 8];
    residual.show(Start::Kept, &mut longer);
    assert_eq!(longer, [7; 8], "of another length there is none");
}
