//! The PTX of the codecs of whole parts that is built in, run on the host, against the codecs of the host.

use std::iter;

use fakecuda::ptx;

use super::*;
use crate::codec::{Tools, Workspace, testing};
use crate::cuda::kernels::testing::{awkward, bits, bytes, coding, has_kernels, module_of, ordinary};
use crate::cuda::kernels::tests::{Bytes, World, on_a_real_device};
use crate::mem::Ordinal;
use crate::reduce;

const CODECS: [&str; 5] = ["onebit", "onebit:scaling=0", "randomk", "randomk:k=300000", "randomk:k=500000"];
/// Around the ends of words, of what a warp stores at once, and of blocks; and more blocks than a warp has lanes, whole ones or not.
const LENS: [usize; 15] = [1, 2, 31, 32, 33, 100, 1023, 1024, 1025, 2047, 2048, 2049, 4096, 32 * 2048, 70_001];

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
fn no_elements_have_no_signs_and_a_seed() {
    let interpreter = Interpreter::new();
    assert_eq!(interpreter.agrees(&coding("onebit"), &[], (1, 32)).len(), 0);
    assert_eq!(interpreter.agrees(&coding("randomk"), &[], (1, 32)).len(), 8);
}

#[test]
fn a_number_that_is_none_is_found_at_any_place_and_spoils_its_part() {
    let interpreter = Interpreter::new();
    for codec in CODECS {
        for strange in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for at in [0, 31, 2047, 2048, 4999, 5000] {
                let mut elements = ordinary(5001);
                elements[at] = strange;
                let body = interpreter.agrees(&coding(codec), &elements, (2, 64));
                let values = interpreter.decoded(&coding(codec), &body, elements.len(), (2, 64));
                let values = values.as_chunks().0.iter().map(|value| f32::from_le_bytes(*value));
                let is_sent = |value: &f32| codec.starts_with("onebit") || *value != 0.0;
                assert!(values.filter(is_sent).all(f32::is_nan), "{codec}, {strange} at {at}");
            }
        }
    }
}

#[test]
fn magnitudes_are_added_in_the_order_of_the_host() {
    let interpreter = Interpreter::new();
    for (places, _) in testing::ORDERS {
        interpreter.agrees(&coding("onebit"), &testing::at_a_tie(places), (3, 64));
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
fn elements_are_divided_before_they_are_encoded() {
    let interpreter = Interpreter::new();
    for codec in CODECS {
        for divisor in [4.0, 1024.0] {
            interpreter.agrees(&Coding { divisor, ..coding(codec) }, &ordinary(3_000), (3, 64));
        }
    }
}

#[test]
fn any_seed_and_any_bits_of_a_peer_are_decoded_as_on_the_host() {
    let interpreter = Interpreter::new();
    for number in 0..40 {
        let len = 1 + bits(number) as usize % 3_000;
        let coding = coding("randomk:k=300000");
        let bytes = coding.codec().body_bytes(len as u64).max();
        let body: Vec<u8> = (0..bytes).map(|at| bits(at << 8 | number) as u8).collect();
        interpreter.agrees_on_elements(&coding, &body, len, (3, 64));
    }
    for scale in [0, 1, f32::MAX.to_bits(), 0x7fc0_0000, 0x7f80_0001, 0xffc0_1234] {
        let body = [0x9234_5678_u32, 0xf000_0000, scale].map(u32::to_le_bytes).concat();
        interpreter.agrees_on_elements(&coding("onebit"), &body, 36, (1, 32));
    }
}

#[test]
fn what_is_launched_is_done_on_the_device_in_the_order_of_its_stream() {
    let world = World::on(Ordinal(4));
    let kernels = world.context.within(|| PartKernels::load(&world.context)).unwrap();
    let elements = ordinary(300_000);
    for codec in CODECS {
        let coding = coding(codec);
        let due = on_the_host(&coding, &elements);
        let [there, back] = [(); 2].map(|()| world.memory(4 * elements.len()));
        let body = world.memory(due.len());
        let notes = world.memory(PartKernels::notes_bytes(elements.len() as u64) as usize);
        world.control.produce(4, world.raw(), there.address(), &bytes(&elements));
        world.run(|stream| {
            kernels.encode(stream, &coding, testing::SEED(), (&there, &body), &notes)?;
            kernels.decode(stream, &coding, (&body, &back))
        });
        assert!(world.read(&body) == due, "{codec}");
        assert!(world.read(&back) == back_on_the_host(&coding, &due, elements.len()), "{codec}");
    }
}

#[test]
fn a_grid_has_a_warp_for_each_block_or_a_thread_for_each_element() {
    let part = |len, count| Part { from: 0, to: 0, notes: 0, seed: 0, len, count, factor: 1.0, has_mean: 1 };
    let of = |part: Part| KERNELS.map(|(work, _)| blocks(work, &part));
    assert_eq!(of(part(1, 1)), [1; 7]);
    assert_eq!(of(part(8 * 2048 + 1, 513)), [2, 1, 65, 2, 3, 65, 3]);
    assert_eq!(of(part(1 << 24, 1 << 23)), [1024, 1, 1024, 1024, 1024, 1024, 1024]);
    assert_eq!([0, 1, 2048, 2049].map(PartKernels::notes_bytes), [0, 8, 8, 16]);
}

#[test]
fn the_text_has_the_kernels_that_are_launched_and_no_other() {
    has_kernels(&Interpreter::new().0, KERNELS.iter().map(|(_, name)| *name));
}

#[test]
fn codecs_with_small_units_and_bodies_that_vary_are_not_known() {
    let known = |text: &str| PartKernels::know(text.parse().unwrap());
    assert!(CODECS.into_iter().all(known));
    assert!(!["none", "bf16", "int8", "topk", "dithering", "lossless"].into_iter().any(known));
}

/// What no test without a GPU can show; see the tests of the other kernels.
#[test]
fn a_real_device_encodes_and_decodes_as_the_host_does() {
    let mut loaded = None;
    let of_all_lens = LENS.map(ordinary).into_iter().chain(awkward());
    let parts: Vec<Vec<f32>> = of_all_lens.collect();
    on_a_real_device(2 * 4 * 70_008, |context, stream, run| {
        let notes = context.memory(PartKernels::notes_bytes(70_001) as usize).unwrap();
        let kernels = loaded.get_or_insert_with(|| PartKernels::load(context).unwrap());
        for (coding, elements) in
            CODECS.map(coding).iter().flat_map(|coding| parts.iter().map(move |part| (coding, part)))
        {
            let due = on_the_host(coding, elements);
            let body = run(&bytes(elements), due.len(), &|from, to| {
                kernels.encode(stream, coding, testing::SEED(), (from, to), notes.region())
            });
            assert!(body == due, "{}, {} elements", coding.codec, elements.len());
            let found = run(&due, 4 * elements.len(), &|from, to| kernels.decode(stream, coding, (from, to)));
            assert!(found == back_on_the_host(coding, &due, elements.len()), "{}", coding.codec);
        }
    });
}

/// The kernels, run on the host.
struct Interpreter(ptx::Module);

impl Interpreter {
    fn new() -> Self {
        Self(module_of(PTX))
    }

    /// Encodes and decodes, and compares with the host. Returns the body.
    fn agrees(&self, coding: &Coding, elements: &[f32], grid: (u32, u32)) -> Vec<u8> {
        let due = on_the_host(coding, elements);
        let found = self.encoded(coding, elements, grid);
        let differs = iter::zip(&found, &due).position(|(found, due)| found != due);
        assert_eq!(differs, None, "{} by {}, {} elements, {grid:?}", coding.codec, coding.divisor, elements.len());
        self.agrees_on_elements(coding, &due, elements.len(), grid);
        due
    }

    fn agrees_on_elements(&self, coding: &Coding, body: &[u8], len: usize, grid: (u32, u32)) {
        let found = self.decoded(coding, body, len, grid);
        assert!(found == back_on_the_host(coding, body, len), "{}, {len} elements, {grid:?}", coding.codec);
    }

    /// The notes lie before the body.
    fn encoded(&self, coding: &Coding, elements: &[f32], grid: (u32, u32)) -> Vec<u8> {
        let (elements, len) = (bytes(elements), elements.len() as u64);
        let body_bytes = coding.codec().body_bytes(len).max() as usize;
        let notes = elements.len().next_multiple_of(8);
        // At a multiple of 4 that is none of 8.
        let body = notes + PartKernels::notes_bytes(len) as usize + 4;
        let mut memory = Bytes(elements.clone());
        memory.0.resize(body + body_bytes + 8, 0xee);
        let places =
            Part { from: 0, to: body as u64, notes: notes as u64, seed: testing::SEED().draw(0), ..part(coding, len) };
        self.run(known(coding, &region(body_bytes)).0, &places, grid, &mut memory);
        assert_eq!(memory.0[..elements.len()], elements, "elements are only read");
        assert_eq!(memory.0[body - 4..body], [0xee; 4], "nothing is written behind the notes");
        let (body, behind) = memory.0[body..].split_at(body_bytes);
        assert_eq!(behind, [0xee; 8], "nothing is written behind a body");
        body.to_vec()
    }

    fn decoded(&self, coding: &Coding, body: &[u8], len: usize, grid: (u32, u32)) -> Vec<u8> {
        let mut memory = Bytes([body, &vec![0xee; 4 + 4 * len + 8]].concat());
        let elements = body.len() + 4;
        let places = Part { from: 0, to: elements as u64, ..part(coding, len as u64) };
        self.run(known(coding, &region(body.len())).1, &places, grid, &mut memory);
        assert_eq!(memory.0[..elements], [body, &[0xee; 4]].concat(), "a body is only read");
        let (found, behind) = memory.0[elements..].split_at(4 * len);
        assert_eq!(behind, [0xee; 8], "nothing is written behind the elements");
        found.to_vec()
    }

    fn run(&self, passes: &[Work], part: &Part, (blocks, threads): (u32, u32), memory: &mut Bytes) {
        let Part { from, to, notes, seed, len, count, factor, has_mean } = *part;
        let places = [from, to, notes, seed].into_iter().flat_map(u64::to_le_bytes);
        let parameter: Vec<u8> =
            places.chain([len, count, factor.to_bits(), has_mean].into_iter().flat_map(u32::to_le_bytes)).collect();
        for work in passes {
            let (_, name) = KERNELS.iter().find(|(known, _)| known == work).unwrap();
            let kernel = self.0.kernel(name.trim_end_matches('\0')).unwrap();
            assert_eq!(kernel.params(), [size_of::<Part>()]);
            kernel.run(blocks, threads, &parameter, memory).unwrap();
        }
    }
}

/// The parameter for so many elements, without places.
fn part(coding: &Coding, len: u64) -> Part {
    Part::of(coding, &region(4 * len as usize), &region(coding.codec().body_bytes(len).max() as usize))
}

fn region(bytes: usize) -> DeviceRegion {
    DeviceRegion::new(Ordinal(0), 0x1000, bytes)
}

fn on_the_host(coding: &Coding, elements: &[f32]) -> Vec<u8> {
    let mut bodies = reduce::Kernels::all().into_iter().map(|kernels| {
        let mut body = vec![0; coding.codec().body_bytes(elements.len() as u64).max() as usize];
        let tools = Tools { kernels, seed: testing::SEED(), workspace: &mut Workspace::default() };
        coding.codec().encode(tools, coding.divisor, &bytes(elements), &mut body).unwrap();
        body
    });
    let first = bodies.next().unwrap();
    assert!(bodies.all(|body| body == first), "vectors of each length make the same body");
    first
}

fn back_on_the_host(coding: &Coding, body: &[u8], len: usize) -> Vec<u8> {
    let mut elements = vec![0; 4 * len];
    // An encoder makes no body of some of the scales. What a kernel makes of them is what the bits say.
    if coding.codec().decode(reduce::Kernels::portable(), body, &mut elements).is_err() {
        let (words, scale) = body.split_last_chunk::<4>().unwrap();
        let scale = u32::from_le_bytes(*scale);
        for (at, element) in elements.as_chunks_mut().0.iter_mut().enumerate() {
            let word = u32::from_le_bytes(words.as_chunks().0[at / 32]);
            *element = (scale | word << (at % 32) & 1 << 31).to_le_bytes();
        }
    }
    elements
}
