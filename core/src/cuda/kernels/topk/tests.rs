//! The PTX of `topk` that is built in, run on the host, against the codec of the host.

use fakecuda::ptx;

use super::*;
use crate::codec::{Seed, Tools, Workspace, testing};
use crate::cuda::kernels::testing::{awkward, bits, bytes, coding, has_kernels, module_of, ordinary};
use crate::cuda::kernels::tests::{Bytes, World, on_a_real_device};
use crate::device::Varying;
use crate::mem::Ordinal;
use crate::reduce;
use crate::types::{PartId, TensorKey};

const CODECS: [&str; 7] =
    ["topk", "topk:k=1", "topk:k=250000", "topk:count=1", "topk:count=40", "topk:count=3000", "topk:count=16777216"];
/// Around the ends of rows, of what a warp loads at once, and of blocks.
const LENS: [usize; 13] = [1, 2, 3, 5, 31, 32, 33, 127, 129, 2047, 2048, 2049, 9_000];

#[test]
fn bodies_are_those_of_the_host_whatever_is_in_them() {
    let interpreter = Interpreter::new();
    for codec in CODECS {
        for len in LENS {
            interpreter.agrees(&coding(codec), &ordinary(len), (3, 64));
        }
        for elements in awkward() {
            interpreter.agrees(&coding(codec), &elements, (2, 32));
        }
    }
}

#[test]
fn long_parts_have_the_bodies_of_the_host() {
    let interpreter = Interpreter::new();
    // More blocks of elements, of entries and of bytes than a warp has lanes.
    let elements = ordinary(150_000);
    let body = interpreter.agrees(&coding("topk:k=250000"), &elements, (4, 256)).unwrap();
    assert!(body.len() > 37_500 * 5 && 150_000 / 2048 > 32);
    // Gaps of three bytes, and of two.
    let mut elements = vec![0.0; 70_001];
    (elements[300], elements[50_000], elements[70_000]) = (1.0, -2.0, 3.0);
    let body = interpreter.agrees(&coding("topk"), &elements, (3, 32)).unwrap();
    assert_eq!(body.len(), 1 + 2 + 3 + 3 + 12);
}

#[test]
fn of_equal_magnitudes_those_with_the_lower_index_are_sent_whichever_blocks_they_are_in() {
    let interpreter = Interpreter::new();
    let equal: Vec<f32> = (0..10_000).map(|at| if at % 3 == 0 { -0.75 } else { 0.75 }).collect();
    for codec in ["topk:count=1", "topk:count=2048", "topk:count=2049", "topk:count=6000"] {
        interpreter.agrees(&coding(codec), &equal, (2, 64));
    }
    // Some are larger, in the last block too, so that ties fill up what these leave.
    let mut some_larger = equal;
    [5, 3_000, 9_999].into_iter().for_each(|at| some_larger[at] = 0.750_000_06);
    for codec in ["topk:count=2", "topk:count=3", "topk:count=4", "topk:count=3000"] {
        interpreter.agrees(&coding(codec), &some_larger, (2, 64));
    }
}

#[test]
fn what_has_a_number_that_is_none_or_gets_no_shorter_is_refused() {
    let interpreter = Interpreter::new();
    for strange in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for at in [0, 31, 2047, 2048, 4999, 5000] {
            for codec in ["topk", "topk:count=1"] {
                let mut elements = ordinary(5001);
                elements[at] = strange;
                assert_eq!(interpreter.agrees(&coding(codec), &elements, (2, 64)), None, "{codec}, {strange} at {at}");
            }
        }
    }
    let dense = coding("topk:count=16777216");
    assert_eq!(interpreter.agrees(&dense, &ordinary(2_600), (2, 64)), None);
    assert_eq!(interpreter.agrees(&coding("topk"), &[1.0], (1, 32)), None);
    // Four entries of five bytes and their number are 21 bytes: of 5 elements too many, of 6 not.
    let four = |len: usize| (0..len).map(|at| if at < 4 { 1.0 } else { 0.0 }).collect::<Vec<f32>>();
    assert_eq!([5, 6].map(|len| interpreter.agrees(&dense, &four(len), (1, 32)).is_some()), [false, true]);
}

#[test]
fn any_grid_makes_the_same_body() {
    let interpreter = Interpreter::new();
    let elements = ordinary(9_777);
    for codec in ["topk", "topk:k=200000"] {
        for grid in [(1, 32), (1, 64), (3, 32), (4, 256), (50, 32)] {
            interpreter.agrees(&coding(codec), &elements, grid);
        }
    }
}

#[test]
fn elements_are_divided_before_they_are_compared_and_sent() {
    let interpreter = Interpreter::new();
    for divisor in [4.0, 1024.0] {
        interpreter.agrees(&Coding { divisor, ..coding("topk:k=100000") }, &ordinary(3_000), (3, 64));
        // Subnormal ones become equal, or zero.
        let small: Vec<f32> = (0..3_000).map(|at| f32::from_bits(bits(at) as u32 & 0x8000_00ff)).collect();
        interpreter.agrees(&Coding { divisor, ..coding("topk:k=250000") }, &small, (3, 64));
    }
}

#[test]
fn as_many_are_sent_as_the_round_says() {
    let interpreter = Interpreter::new();
    let sent = [0, 4, 5, 10, 1_000].map(|round| {
        let found = interpreter.encoded(&coding("topk:count=7,warmup=5"), Round(round), &ordinary(4_000), (2, 64));
        let due = on_the_host(&coding("topk:count=7,warmup=5"), Round(round), &ordinary(4_000));
        assert_eq!(found, due, "round {round}");
        let mut elements = vec![0; 16_000];
        coding("topk").codec().decode(reduce::Kernels::portable(), &due.unwrap(), &mut elements).unwrap();
        elements.as_chunks::<4>().0.iter().filter(|element| **element != [0; 4]).count()
    });
    assert_eq!(sent, [1_000, 1_000, 250, 63, 7]);
}

#[test]
fn sums_of_many_workers_and_values_of_any_bits_are_decoded() {
    let interpreter = Interpreter::new();
    // Nearly as many entries as are worth it, so gaps of one byte, and few of them.
    for every in [2, 3, 40, 200, 3_000] {
        let len = 9_001;
        let sum: Vec<u8> = (0..len)
            .flat_map(|at| if at % every == every - 1 { ordinary(len)[at].to_le_bytes() } else { [0; 4] })
            .collect();
        let body =
            testing::finished(&*coding("topk").codec(), reduce::Kernels::portable(), crate::types::Op::Sum, 1.0, &sum);
        let found = interpreter.decoded(&coding("topk"), &body.unwrap(), len, (3, 64));
        assert!(found == sum, "each {every}th");
    }
}

/// Each of them once with all that is behind the end of the memory, so that a read behind the body is a fault.
#[test]
fn a_body_that_no_encoder_makes_leads_nowhere_outside_of_its_part() {
    let interpreter = Interpreter::new();
    let one = 1.0_f32.to_le_bytes();
    let with = |head: &[u8], values: usize| [head, [one].repeat(values).as_flattened()].concat();
    let lies = [
        vec![],
        vec![0x80],
        vec![0xff; 5],
        vec![0xff; 64],
        with(&[0x81, 0], 1),
        with(&[0xff, 0xff, 0xff, 0xff, 0x0f], 40),
        with(&[11, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], 11),
        with(&[1, 10], 1),
        with(&[1, 9], 1),
        with(&[2, 9, 0], 2),
        with(&[1, 0xff, 0xff, 0xff, 0xff, 0x0f], 1),
        with(&[1, 0xff, 0xff, 0xff, 0xff, 0x7f], 1),
        with(&[1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f], 1),
        with(&[3, 0xff, 0xff, 0xff, 0x7f, 0xff, 0xff, 0xff, 0x7f, 0], 3),
        with(&[2, 0, 0], 1),
        with(&[1, 0], 2),
        with(&[1, 0, 0], 1),
        with(&[3, 0x80, 0x80, 0x80], 3),
        vec![0; 2000],
        with(&[&[1][..], &[0x80; 1500], &[1]].concat(), 1),
    ];
    for body in &lies {
        interpreter.is_harmless(body, 10, (2, 64));
    }
    for number in 0..300 {
        let len = 1 + bits(number) as usize % 700;
        let mut body: Vec<u8> = (0..bits(number << 8) % 900).map(|at| bits(at << 10 | number) as u8).collect();
        // Mostly a possible number of entries, and mostly short gaps.
        if number % 3 > 0 && body.len() > 6 {
            body[0] = (body.len() / 7 % 128) as u8;
            body.iter_mut().skip(1).for_each(|byte| *byte &= if number % 3 == 1 { 0x83 } else { 0x0f });
        }
        interpreter.is_harmless(&body, len, (3, 64));
    }
    // True bodies, and some whose bytes have changed or which end early.
    let elements = ordinary(1_500);
    let body = on_the_host(&coding("topk:k=50000"), testing::SEED().round(), &elements).unwrap();
    for number in 0..300 {
        let mut body = body.clone();
        let at = bits(number) as usize % body.len();
        body[at] ^= 1 << (number % 8);
        if number % 4 == 0 {
            body.truncate(at);
        }
        interpreter.is_harmless(&body, elements.len(), (1, 64));
    }
}

#[test]
fn what_is_launched_is_done_on_the_device_in_the_order_of_its_stream() {
    let world = World::on(Ordinal(4));
    let kernels = world.context.within(|| TopKKernels::load(&world.context)).unwrap();
    let (coding, elements, round) = (coding("topk:k=20000"), ordinary(100_000), testing::SEED().round());
    let due = on_the_host(&coding, round, &elements).unwrap();
    let varying = Varying::of(&coding, round, elements.len() as u64).unwrap();
    let [there, back] = [(); 2].map(|()| world.memory(4 * elements.len()));
    let room = world.memory(varying.room() as usize);
    let notes = world.memory(TopKKernels::encoder_notes_bytes(&coding, round, elements.len() as u64) as usize);
    let more_notes = world.memory(TopKKernels::decoder_notes_bytes(due.len() as u64) as usize);
    world.control.produce(4, world.raw(), there.address(), &bytes(&elements));
    world.run(|stream| {
        let body = DeviceRegion::new(Ordinal(4), room.address(), due.len());
        kernels.encode(stream, &coding, round, (&there, &room), &notes)?;
        kernels.decode(stream, &coding, (&body, &back), &more_notes)
    });
    let found = world.read(&room);
    assert!(varying.told(&found) == Some(due.len() as u64) && found[..due.len()] == due);
    assert!(world.read(&back) == back_on_the_host(&due, elements.len()).unwrap());
}

#[test]
fn a_grid_has_a_warp_for_each_note_and_a_thread_for_each_element_that_is_cleared() {
    let of = |part: Part| KERNELS.map(|(work, _)| blocks(work, &part));
    assert_eq!(of(Part { len: 1, ..Part::default() }), [1; 8]);
    assert_eq!(of(Part { len: 8 * 2048 + 1, entries_max: 8 * 256 + 1, ..Part::default() }), [1, 2, 2, 2, 2, 2, 65, 1]);
    assert_eq!(of(Part { len: 1, bytes: 8 * 1024 + 1, ..Part::default() }), [1, 1, 1, 1, 1, 1, 2, 2]);
    let longest = Part { len: 1 << 24, entries_max: 13_421_772, bytes: 64 << 20, ..Part::default() };
    assert_eq!(of(longest), [1, 1024, 1024, 1024, 1024, 1024, 1024, 1024]);
    assert_eq!([0, 1, 1024, 1025].map(TopKKernels::decoder_notes_bytes), [0, 8, 8, 16]);
    let notes = |len| TopKKernels::encoder_notes_bytes(&coding("topk:count=300"), Round(0), len);
    // The counts, a note of elements and two of entries, and these; of ten elements eight entries are worth it.
    assert_eq!([notes(2048), notes(10)], [4104 + 3 * 8 + 1200, 4104 + 2 * 8 + 32]);
}

#[test]
fn the_text_has_the_kernels_that_are_launched_and_no_other() {
    has_kernels(&Interpreter::new().0, KERNELS.iter().map(|(_, name)| *name));
}

#[test]
fn no_other_codec_is_known() {
    let known = |text: &str| TopKKernels::know(text.parse().unwrap());
    assert!(CODECS.into_iter().all(known));
    assert!(!["none", "bf16", "int8", "onebit", "randomk", "dithering", "lossless"].into_iter().any(known));
}

/// What no test without a GPU can show; see the tests of the other kernels.
#[test]
fn a_real_device_encodes_and_decodes_as_the_host_does() {
    let mut loaded = None;
    let parts: Vec<Vec<f32>> = LENS.map(ordinary).into_iter().chain(awkward()).chain([ordinary(70_001)]).collect();
    let round = testing::SEED().round();
    on_a_real_device(3 * 4 * 70_016, |context, stream, run| {
        let notes = context.memory(1 << 20).unwrap();
        let kernels = loaded.get_or_insert_with(|| TopKKernels::load(context).unwrap());
        for (coding, elements) in
            CODECS.map(coding).iter().flat_map(|coding| parts.iter().map(move |part| (coding, part)))
        {
            let due = on_the_host(coding, round, elements);
            let varying = Varying::of(coding, round, elements.len() as u64).unwrap();
            let room = run(&bytes(elements), varying.room() as usize, &|from, to| {
                kernels.encode(stream, coding, round, (from, to), notes.region())
            });
            let found = varying.told(&room).map(|bytes| room[..bytes as usize].to_vec());
            assert!(found == due, "{}, {} elements", coding.codec, elements.len());
            let Some(body) = due else { continue };
            let found =
                run(&body, 4 * elements.len(), &|from, to| kernels.decode(stream, coding, (from, to), notes.region()));
            assert!(found == back_on_the_host(&body, elements.len()).unwrap(), "{}", coding.codec);
        }
    });
}

/// The kernels, run on the host.
struct Interpreter(ptx::Module);

impl Interpreter {
    fn new() -> Self {
        Self(module_of(PTX))
    }

    /// Encodes and decodes, and compares with the host. Returns the body, if the codec does not refuse the elements.
    fn agrees(&self, coding: &Coding, elements: &[f32], grid: (u32, u32)) -> Option<Vec<u8>> {
        let due = on_the_host(coding, testing::SEED().round(), elements);
        let found = self.encoded(coding, testing::SEED().round(), elements, grid);
        assert!(found == due, "{} by {}, {} elements, {grid:?}", coding.codec, coding.divisor, elements.len());
        if let Some(body) = &due {
            let found = self.decoded(coding, body, elements.len(), grid);
            assert!(found == back_on_the_host(body, elements.len()).unwrap(), "{}, {grid:?}", coding.codec);
        }
        due
    }

    /// Elements, notes and room lie behind each other.
    fn encoded(&self, coding: &Coding, round: Round, elements: &[f32], grid: (u32, u32)) -> Option<Vec<u8>> {
        let (elements, len) = (bytes(elements), elements.len() as u64);
        let (count, entries_max) = entries(coding, round, len);
        let varying = Varying::of(coding, round, len).unwrap();
        let notes = elements.len().next_multiple_of(8);
        let behind_notes = notes + TopKKernels::encoder_notes_bytes(coding, round, len) as usize;
        let room = behind_notes.next_multiple_of(8) + 8;
        let mut memory = Bytes(elements.clone());
        memory.0.resize(room + varying.room() as usize + 8, 0xee);
        let part = Part {
            to: room as u64,
            notes: notes as u64,
            count: count as u32,
            entries_max: entries_max as u32,
            bytes: varying.longest().bytes as u32,
            ..Part::of(coding, &region(elements.len()), &region(0))
        };
        self.run(&ENCODE, &Part { from: 0, notes: notes as u64, ..part }, grid, &mut memory);
        assert_eq!(memory.0[..elements.len()], elements, "elements are only read");
        assert!(memory.0[behind_notes..room].iter().all(|byte| *byte == 0xee), "nothing is written behind the notes");
        let (room, behind) = memory.0[room..].split_at(varying.room() as usize);
        assert_eq!(behind, [0xee; 8], "nothing is written behind the room");
        let told = varying.told(room).map(|bytes| bytes as usize);
        let written = told.unwrap_or(0)..varying.longest().bytes as usize;
        assert!(room[written].iter().all(|byte| *byte == 0xee), "nothing is written behind the body");
        told.map(|bytes| room[..bytes].to_vec())
    }

    /// Elements and notes lie before the body, behind which the memory ends.
    fn decoded(&self, coding: &Coding, body: &[u8], len: usize, grid: (u32, u32)) -> Vec<u8> {
        let notes = (4 * len + 4).next_multiple_of(8);
        let behind_notes = notes + TopKKernels::decoder_notes_bytes(body.len() as u64) as usize;
        let from = behind_notes + 8;
        let mut memory = Bytes(vec![0xee; from]);
        memory.0.extend(body);
        let part = Part {
            from: from as u64,
            to: 0,
            notes: notes as u64,
            bytes: body.len() as u32,
            ..Part::of(coding, &region(4 * len), &region(0))
        };
        self.run(&DECODE, &part, grid, &mut memory);
        assert_eq!(memory.0[behind_notes..], [&[0xee; 8], body].concat(), "a body is only read");
        assert!(memory.0[4 * len..notes].iter().all(|byte| *byte == 0xee), "nothing is written behind the elements");
        memory.0.truncate(4 * len);
        memory.0
    }

    /// Decodes any bytes: a fault is a panic, and what the host decodes has its elements.
    fn is_harmless(&self, body: &[u8], len: usize, grid: (u32, u32)) {
        let found = self.decoded(&coding("topk"), body, len, grid);
        if let Some(due) = back_on_the_host(body, len) {
            assert!(found == due, "{body:02x?}");
        }
    }

    fn run(&self, passes: &[(Work, u32)], part: &Part, (blocks, threads): (u32, u32), memory: &mut Bytes) {
        for (work, digit) in passes {
            let Part { from, to, notes, len, count, entries_max, bytes, digit, factor } =
                Part { digit: *digit, ..*part };
            let places = [from, to, notes].into_iter().flat_map(u64::to_le_bytes);
            let words =
                [len, count, entries_max, bytes, digit, factor.to_bits()].into_iter().flat_map(u32::to_le_bytes);
            let parameter: Vec<u8> = places.chain(words).collect();
            let (_, name) = KERNELS.iter().find(|(known, _)| known == work).unwrap();
            let kernel = self.0.kernel(name.trim_end_matches('\0')).unwrap();
            assert_eq!(kernel.params(), [size_of::<Part>()]);
            kernel.run(blocks, threads, &parameter, memory).unwrap();
        }
    }
}

fn region(bytes: usize) -> DeviceRegion {
    DeviceRegion::new(Ordinal(0), 0x1000, bytes)
}

/// `None` if the codec refuses the elements.
fn on_the_host(coding: &Coding, round: Round, elements: &[f32]) -> Option<Vec<u8>> {
    let mut body = vec![0; 4 * elements.len()];
    let seed = Seed::of(PartId { key: TensorKey(5), index: 6 }, round);
    let tools = Tools { kernels: reduce::Kernels::detect(), seed, workspace: &mut Workspace::default() };
    let used = coding.codec().encode(tools, coding.divisor, &bytes(elements), &mut body).ok()?;
    body.truncate(used);
    Some(body)
}

/// `None` if no encoder makes the body.
fn back_on_the_host(body: &[u8], len: usize) -> Option<Vec<u8>> {
    let mut elements = vec![0; 4 * len];
    coding("topk").codec().decode(reduce::Kernels::portable(), body, &mut elements).ok()?;
    Some(elements)
}
