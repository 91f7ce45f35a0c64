//! The PTX of `dithering` that is built in, run on the host, against the codec of the host.

use fakecuda::ptx;

use super::*;
use crate::codec::{Tools, Workspace, testing};
use crate::cuda::kernels::testing::{awkward, bits, bytes, coding, has_kernels, module_of, ordinary};
use crate::cuda::kernels::tests::{Bytes, World, on_a_real_device};
use crate::device::Varying;
use crate::mem::Ordinal;
use crate::reduce;

const CODECS: [&str; 7] = [
    "dithering",
    "dithering:s=1",
    "dithering:s=127",
    "dithering:s=1,natural=1",
    "dithering:s=9,natural=1",
    "dithering:s=99,norm=1",
    "dithering:s=14,natural=1,norm=1",
];
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
    // More blocks than the lanes of a warp read at once.
    let elements = ordinary(150_000);
    for codec in ["dithering:s=2", "dithering:s=20,norm=1"] {
        assert!(interpreter.agrees(&coding(codec), &elements, (4, 256)).is_some());
    }
}

#[test]
fn a_distance_over_many_blocks_and_a_long_level_are_written_whole() {
    let interpreter = Interpreter::new();
    let mut elements = vec![0.0; 70_001];
    (elements[0], elements[40_000], elements[40_001], elements[70_000]) = (1.0, -1.0, 1.0, -0.5);
    for codec in CODECS {
        interpreter.agrees(&coding(codec), &elements, (3, 32)).unwrap();
    }
    // At each place of a word.
    for zeros in 0..40 {
        let elements: Vec<f32> = (0..4_000).map(|at| if at % (40 + zeros) == 3 { -1.0 } else { 0.0 }).collect();
        interpreter.agrees(&coding("dithering:s=15,natural=1"), &elements, (2, 64)).unwrap();
    }
}

#[test]
fn what_has_a_number_that_is_none_or_a_scale_that_is_none_is_refused() {
    let interpreter = Interpreter::new();
    for codec in ["dithering", "dithering:norm=1"] {
        for strange in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for at in [0, 31, 2047, 2048, 4999, 5000] {
                let mut elements = ordinary(5001);
                elements[at] = strange;
                assert_eq!(interpreter.agrees(&coding(codec), &elements, (2, 64)), None, "{codec}, {strange} at {at}");
            }
        }
    }
    assert_eq!(interpreter.agrees(&coding("dithering:norm=1"), &[f32::MAX; 100], (2, 64)), None);
    assert!(interpreter.agrees(&coding("dithering"), &[f32::MAX; 100], (2, 64)).is_some());
    // Eight bytes and those of the codes are too many of two elements.
    assert_eq!(
        [2, 3].map(|len| interpreter.agrees(&coding("dithering"), &vec![0.0; len], (1, 32)).is_some()),
        [false, true]
    );
}

#[test]
fn squares_are_added_in_the_order_of_the_host() {
    let interpreter = Interpreter::new();
    for (places, _) in testing::ORDERS_OF_SQUARES {
        let elements = testing::at_a_tie_of_squares(places);
        interpreter.agrees(&coding("dithering:s=127,norm=1"), &elements, (3, 64)).unwrap();
    }
}

#[test]
fn any_grid_makes_the_same_body() {
    let interpreter = Interpreter::new();
    let elements = ordinary(9_777);
    for codec in CODECS {
        for grid in [(1, 32), (1, 64), (3, 32), (4, 256), (50, 32)] {
            interpreter.agrees(&coding(codec), &elements, grid);
        }
    }
}

#[test]
fn elements_are_divided_before_their_levels_are_drawn() {
    let interpreter = Interpreter::new();
    for divisor in [4.0, 1024.0] {
        for codec in CODECS {
            interpreter.agrees(&Coding { divisor, ..coding(codec) }, &ordinary(3_000), (3, 64));
        }
        // Subnormal ones become equal, or zero.
        let small: Vec<f32> = (0..3_000).map(|at| f32::from_bits(bits(at) as u32 & 0x8000_00ff)).collect();
        interpreter.agrees(&Coding { divisor, ..coding("dithering") }, &small, (3, 64));
    }
}

#[test]
fn what_is_launched_is_done_on_the_device_in_the_order_of_its_stream() {
    let world = World::on(Ordinal(4));
    let kernels = world.context.within(|| DitheringKernels::load(&world.context)).unwrap();
    let (coding, elements) = (coding("dithering"), ordinary(100_000));
    let due = on_the_host(&coding, &elements).unwrap();
    let varying = Varying::of(&coding, testing::SEED().round(), elements.len() as u64).unwrap();
    let there = world.memory(4 * elements.len());
    let room = world.memory(varying.room() as usize);
    let notes = world.memory(DitheringKernels::notes_bytes(elements.len() as u64) as usize);
    world.control.produce(4, world.raw(), there.address(), &bytes(&elements));
    world.run(|stream| kernels.encode(stream, &coding, testing::SEED(), (&there, &room), &notes));
    let found = world.read(&room);
    assert!(varying.told(&found) == Some(due.len() as u64) && found[..due.len()] == due);
}

#[test]
fn a_grid_has_a_warp_for_each_block() {
    let of = |len| KERNELS.map(|(work, _)| blocks(work, &Part { len, ..Part::default() }));
    assert_eq!(of(1), [1; 5]);
    assert_eq!(of(8 * 2048 + 1), [2, 1, 2, 1, 2]);
    assert_eq!(of(1 << 24), [1024, 1, 1024, 1, 1024]);
    assert_eq!([0, 1, 2048, 2049].map(DitheringKernels::notes_bytes), [8, 24, 24, 40]);
}

#[test]
fn the_text_has_the_kernels_that_are_launched_and_no_other() {
    has_kernels(&Interpreter::new().0, KERNELS.iter().map(|(_, name)| *name));
}

#[test]
fn no_other_codec_is_known() {
    let known = |text: &str| DitheringKernels::know(text.parse().unwrap());
    assert!(CODECS.into_iter().all(known));
    assert!(!["none", "bf16", "int8", "onebit", "randomk", "topk", "lossless"].into_iter().any(known));
}

/// What no test without a GPU can show; see the tests of the other kernels.
#[test]
fn a_real_device_encodes_as_the_host_does() {
    let mut loaded = None;
    let parts: Vec<Vec<f32>> = LENS.map(ordinary).into_iter().chain(awkward()).chain([ordinary(70_001)]).collect();
    on_a_real_device(3 * 4 * 70_016, |context, stream, run| {
        let notes = context.memory(1 << 20).unwrap();
        let kernels = loaded.get_or_insert_with(|| DitheringKernels::load(context).unwrap());
        for (coding, elements) in
            CODECS.map(coding).iter().flat_map(|coding| parts.iter().map(move |part| (coding, part)))
        {
            let varying = Varying::of(coding, testing::SEED().round(), elements.len() as u64).unwrap();
            let room = run(&bytes(elements), varying.room() as usize, &|from, to| {
                kernels.encode(stream, coding, testing::SEED(), (from, to), notes.region())
            });
            let found = varying.told(&room).map(|bytes| room[..bytes as usize].to_vec());
            assert!(found == on_the_host(coding, elements), "{}, {} elements", coding.codec, elements.len());
        }
    });
}

/// The kernels, run on the host.
struct Interpreter(ptx::Module);

impl Interpreter {
    fn new() -> Self {
        Self(module_of(PTX))
    }

    /// Encodes, and compares with the host. Returns the body, if the codec does not refuse the elements.
    fn agrees(&self, coding: &Coding, elements: &[f32], grid: (u32, u32)) -> Option<Vec<u8>> {
        let due = on_the_host(coding, elements);
        let found = self.encoded(coding, elements, grid);
        assert!(found == due, "{} by {}, {} elements, {grid:?}", coding.codec, coding.divisor, elements.len());
        due
    }

    /// Elements, notes and room lie behind each other.
    fn encoded(&self, coding: &Coding, elements: &[f32], (blocks, threads): (u32, u32)) -> Option<Vec<u8>> {
        let (elements, len) = (bytes(elements), elements.len() as u64);
        let varying = Varying::of(coding, testing::SEED().round(), len).unwrap();
        let (notes, notes_bytes) = (elements.len().next_multiple_of(8), DitheringKernels::notes_bytes(len) as usize);
        let room = notes + notes_bytes + 8;
        let mut memory = Bytes(elements.clone());
        memory.0.resize(room + varying.room() as usize + 8, 0xee);
        let region = |at: usize, bytes| DeviceRegion::new(Ordinal(0), at as u64, bytes);
        let regions = (&region(0, elements.len()), &region(room, varying.room() as usize));
        let part = Part::of(coding, testing::SEED(), regions, &region(notes, notes_bytes));
        for (_, name) in KERNELS {
            let kernel = self.0.kernel(name.trim_end_matches('\0')).unwrap();
            assert_eq!(kernel.params(), [size_of::<Part>()]);
            kernel.run(blocks, threads, &parameter(&part), &mut memory).unwrap();
        }
        assert_eq!(memory.0[..elements.len()], elements, "elements are only read");
        assert_eq!(memory.0[notes + notes_bytes..room], [0xee; 8], "nothing is written behind the notes");
        let (room, behind) = memory.0[room..].split_at(varying.room() as usize);
        assert_eq!(behind, [0xee; 8], "nothing is written behind the room");
        let told = varying.told(room).map(|bytes| bytes as usize);
        let written = told.unwrap_or(0)..varying.longest().bytes as usize;
        assert!(room[written].iter().all(|byte| *byte == 0), "nothing is written behind the body");
        told.map(|bytes| room[..bytes].to_vec())
    }
}

fn parameter(part: &Part) -> Vec<u8> {
    let Part { from, to, notes, len, bytes, levels, is_natural, is_euclid, low, high, factor } = *part;
    let places = [from, to, notes].into_iter().flat_map(u64::to_le_bytes);
    let words = [len, bytes, levels.to_bits(), is_natural, is_euclid, low, high, factor.to_bits()];
    places.chain(words.into_iter().flat_map(u32::to_le_bytes)).collect()
}

/// `None` if the codec refuses the elements.
fn on_the_host(coding: &Coding, elements: &[f32]) -> Option<Vec<u8>> {
    let mut bodies = reduce::Kernels::all().into_iter().map(|kernels| {
        let mut body = vec![0; 4 * elements.len()];
        let tools = Tools { kernels, seed: testing::SEED(), workspace: &mut Workspace::default() };
        let used = coding.codec().encode(tools, coding.divisor, &bytes(elements), &mut body).ok()?;
        body.truncate(used);
        Some(body)
    });
    let first = bodies.next().unwrap();
    assert!(bodies.all(|body| body == first), "vectors of each length make the same body");
    first
}
