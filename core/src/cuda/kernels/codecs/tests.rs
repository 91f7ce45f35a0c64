//! The PTX of the codecs that is built in, run on the host, against the codecs of the host.

use std::iter;

use fakecuda::ptx;

use super::*;
use crate::codec::{self, Tools, Workspace};
use crate::cuda::kernels::testing::{bytes, coding, has_kernels, module_of};
use crate::cuda::kernels::tests::{Bytes, World, on_a_real_device};
use crate::mem::Ordinal;
use crate::reduce;
use crate::types::{PartId, Round, Span, TensorKey};

/// Codecs with blocks, and what is the largest number of their grid.
const GRIDS: [(&str, f32); 4] = [("int8", 127.0), ("int4", 7.0), ("fp8_e4m3", 448.0), ("fp8_e5m2", 57_344.0)];
/// The smallest and the largest, a multiple of the lanes of a warp, and some that are none.
const BLOCKS: [usize; 6] = [32, 33, 100, 129, 256, 4096];

#[test]
fn blocks_are_those_of_the_host_whatever_is_in_them() {
    let interpreter = Interpreter::new();
    for (name, largest) in GRIDS {
        for block in BLOCKS {
            let elements = awkward(block, largest);
            for rounding in ["", ",stochastic=1"] {
                let coding = coding(&format!("{name}:block={block}{rounding}"));
                // With a whole last block, and with one of an element, or some.
                for rest in [0, 1, block / 2, block - 1] {
                    let len = elements.len() - if rest == 0 { 0 } else { block - rest };
                    interpreter.agrees(&coding, seed(), &elements[..len], 1);
                }
            }
        }
    }
}

#[test]
fn bf16_is_rounded_by_chance_as_on_the_host() {
    let interpreter = Interpreter::new();
    let coding = coding("bf16:stochastic=1");
    let low_halves = [0, 1, 0x7fff, 0x8000, 0xffff];
    let of_every_exponent =
        (0..=u16::MAX).step_by(7).flat_map(|high| low_halves.map(|low| u32::from(high) << 16 | low));
    let elements: Vec<f32> = of_every_exponent.map(f32::from_bits).collect();
    interpreter.agrees(&coding, seed(), &elements, 2);
    interpreter.agrees(&coding, seed().from_element((1 << 33) + 5), &elements[..1001], 2);
}

#[test]
fn elements_are_divided_before_they_are_encoded() {
    let interpreter = Interpreter::new();
    let elements: Vec<f32> = awkward(64, 127.0).into_iter().filter(|element| element.is_finite()).collect();
    for codec in ["int8:block=64", "fp8_e5m2:block=64,stochastic=1", "bf16:stochastic=1"] {
        for divisor in [4.0, 1024.0] {
            interpreter.agrees(&Coding { divisor, ..coding(codec) }, seed(), &elements, 2);
        }
    }
}

#[test]
fn bodies_of_a_peer_are_decoded_as_on_the_host() {
    let interpreter = Interpreter::new();
    for (name, _) in GRIDS {
        let coding = coding(&format!("{name}:block=256"));
        let unit = unit_of(&coding);
        let mut decoded = 0;
        for number in 0..256 {
            // Any bits, and every code at every place sooner or later.
            let mut body: Vec<u8> =
                (0..unit.bytes).map(|at| (bits(number) as u8).wrapping_add(at as u8 ^ number as u8)).collect();
            let scale_bytes = if name == "int4" { 2 } else { 4 };
            body[..scale_bytes]
                .copy_from_slice(&(bits(1000 + number) as u32 & !(1 << 31)).to_le_bytes()[4 - scale_bytes..]);
            if number == 0 {
                body[..scale_bytes].copy_from_slice(&f32::NAN.to_le_bytes()[4 - scale_bytes..]);
            }
            // Codes that no encoder makes are left out.
            body[scale_bytes..].iter_mut().filter(|code| is_no_code(name, **code)).for_each(|code| *code = 0x11);
            let mut due = vec![0; 4 * 256];
            if coding.codec().decode(reduce::Kernels::portable(), &body, &mut due).is_ok() {
                assert_same(&interpreter.decoded(&coding, &body, 256), &due, &format!("{name}, body {number}"));
                decoded += 1;
            }
        }
        assert!(decoded > 200, "{name}: {decoded} bodies had a scale");
    }
}

/// Whether no encoder makes a byte of codes.
fn is_no_code(name: &str, byte: u8) -> bool {
    match name {
        "int8" => byte == 0x80,
        "int4" => byte & 0xf == 8 || byte >> 4 == 8,
        "fp8_e4m3" => byte & 0x7f > 0x7e,
        _ => byte & 0x7f > 0x7b,
    }
}

#[test]
fn any_grid_makes_every_block_once_and_nothing_beside_them() {
    let interpreter = Interpreter::new();
    for codec in ["int8:block=32", "int4:block=33,stochastic=1", "bf16:stochastic=1"] {
        let coding = coding(codec);
        let elements: Vec<f32> = (0..777_u16).map(|index| f32::from(index) - 300.25).collect();
        let due = on_the_host(&coding, seed(), &elements);
        for grid in [(1, 32), (1, 64), (3, 32), (4, 256), (100, 32)] {
            assert_eq!(interpreter.encoded(&coding, seed(), &elements, grid, 2), due, "{codec}, {grid:?}");
        }
    }
}

#[test]
fn many_runs_share_launches_and_the_draws_of_their_part_go_on() {
    let world = World::on(Ordinal(5));
    let kernels = world.context.within(|| CodecKernels::load(&world.context)).unwrap();
    for (codec, runs, launches) in [
        ("bf16:stochastic=1", RUNS_MAX, 1),
        ("bf16:stochastic=1", RUNS_MAX + 1, 2),
        ("int4:block=32,stochastic=1", 5, 1),
    ] {
        let coding = coding(codec);
        // An empty run behind the first.
        let lens: Vec<usize> = [1, 0].into_iter().chain((1..runs).map(|number| 1 + number % 50)).collect();
        let elements: Vec<f32> = (0..lens.iter().sum()).map(|at| bits(at as u64) as i32 as f32).collect();
        let bodies = lens.iter().scan(0, |first, len| {
            let body = on_the_host(&coding, seed().from_element(*first as u64), &elements[*first..][..*len]);
            *first += len;
            Some(body)
        });
        let bodies: Vec<Vec<u8>> = bodies.collect();
        let (there, back) = (world.memory(4 * elements.len()), world.memory(4 * elements.len()));
        let body = world.memory(bodies.concat().len());
        world.control.produce(5, world.raw(), there.address(), &bytes(&elements));
        let parts = |whole: &DeviceRegion, lens: &mut dyn Iterator<Item = usize>| {
            let spans = lens.scan(0, |offset, len| {
                *offset += len as u64;
                Some(Span { offset: *offset - len as u64, bytes: len as u64 })
            });
            spans.map(|span| whole.part(span)).collect::<Vec<_>>()
        };
        let places = parts(&body, &mut bodies.iter().map(Vec::len));
        let from = parts(&there, &mut lens.iter().map(|len| 4 * len));
        let before = world.control.counter(5, "kernels");
        world.run(|stream| kernels.encode(stream, &coding, seed(), iter::zip(&from, &places)));
        assert_eq!(world.read(&body), bodies.concat(), "{codec}");
        assert_eq!(world.control.counter(5, "kernels") - before, launches, "{codec}");
        if CodecKernels::know(CodecSpec::of(coding.codec.encoding())) {
            let to = parts(&back, &mut lens.iter().map(|len| 4 * len));
            world.run(|stream| kernels.decode(stream, &coding, iter::zip(&places, &to)));
            let mut due = vec![0; 4 * elements.len()];
            let mut rest = &mut due[..];
            for (body, len) in bodies.iter().zip(&lens) {
                let (run, later) = rest.split_at_mut(4 * len);
                coding.codec().decode(reduce::Kernels::portable(), body, run).unwrap();
                rest = later;
            }
            assert_eq!(world.read(&back), due, "{codec}");
        }
    }
}

#[test]
fn runs_that_are_longer_than_a_share_are_cut_between_blocks() {
    let coding = coding("int8:block=100");
    let unit = unit_of(&coding);
    let whole = Stretch { elements: 1 << 20, body: 1 << 30, len: 1_000_050, first: 7 };
    let short = Stretch { len: 3, ..whole };
    let pieces = cut(&[short, Stretch { len: 0, ..whole }, whole], unit);
    assert_eq!(pieces[0], short);
    let first = pieces[1];
    assert_eq!((first.len, pieces.len()), (15_700, 1 + 64));
    for pair in pieces[1..].windows(2) {
        assert_eq!(pair[0].len % 100, 0, "only the last one has a block that is shorter");
        assert_eq!(pair[1].elements - pair[0].elements, 4 * pair[0].len);
        assert_eq!(pair[1].body - pair[0].body, pair[0].len / 100 * 104);
        assert_eq!(pair[1].first - pair[0].first, pair[0].len);
    }
    assert_eq!(pieces[1..].iter().map(|piece| piece.len).sum::<u64>(), whole.len);
    // A warp for each of 157 blocks, in each of 65 runs; then a thread for each element.
    assert_eq!(blocks(unit, &pieces), 65 * 15);
    assert_eq!(blocks(Unit { len: 1, bytes: 2 }, &[short, short]), 2);
}

#[test]
fn the_text_has_the_kernels_that_are_launched_and_no_other() {
    has_kernels(&Interpreter::new().0, KERNELS.iter().map(|(_, name)| *name));
}

#[test]
fn casts_and_what_bodies_of_the_host_alone_have_are_not_known() {
    let known = |text: &str| CodecKernels::know(text.parse().unwrap());
    assert!(["int8", "int4:block=64", "fp8_e4m3:stochastic=1", "fp8_e5m2", "bf16:stochastic=1"].into_iter().all(known));
    assert!(!["none", "fp16", "bf16", "topk", "randomk"].into_iter().any(known));
}

/// What no test without a GPU can show; see the tests of the other kernels.
#[test]
fn a_real_device_encodes_and_decodes_as_the_host_does() {
    let (mut kernels, mut cases) = (None, Vec::new());
    for (name, largest) in GRIDS {
        for block in BLOCKS {
            let elements = awkward(block, largest);
            let codecs = ["", ",stochastic=1"].map(|rounding| format!("{name}:block={block}{rounding}"));
            cases.extend(codecs.map(|codec| (coding(&codec), elements.clone())));
        }
    }
    cases.push((coding("bf16:stochastic=1"), (0..60_000).map(|at| f32::from_bits(bits(at) as u32)).collect()));
    on_a_real_device(2 * 4 * 60_000, |context, stream, run| {
        let kernels = kernels.get_or_insert_with(|| CodecKernels::load(context).unwrap());
        for (coding, elements) in &cases {
            let due = on_the_host(coding, seed(), elements);
            let body = run(&bytes(elements), due.len(), &|from, to| {
                kernels.encode(stream, coding, seed(), iter::once((from, to)))
            });
            assert_eq!(body, due, "{}", coding.codec);
            if coding.codec.encoding() != Encoding::BF16 {
                let mut decoded = vec![0; 4 * elements.len()];
                coding.codec().decode(reduce::Kernels::portable(), &due, &mut decoded).unwrap();
                let found =
                    run(&due, decoded.len(), &|from, to| kernels.decode(stream, coding, iter::once((from, to))));
                assert_same(&found, &decoded, &coding.codec.to_string());
            }
        }
    });
}

/// The kernels, run on the host.
struct Interpreter(ptx::Module);

impl Interpreter {
    fn new() -> Self {
        Self(module_of(PTX))
    }

    /// Encodes and decodes, and compares with the host. The body begins at no multiple of `odd` bytes more.
    fn agrees(&self, coding: &Coding, seed: Seed, elements: &[f32], odd: usize) {
        let due = on_the_host(coding, seed, elements);
        let found = self.encoded(coding, seed, elements, (3, 64), odd);
        let differs = iter::zip(&found, &due).position(|(found, due)| found != due);
        assert_eq!(differs, None, "{} by {}: {found:02x?}, not {due:02x?}", coding.codec, coding.divisor);
        if coding.codec.encoding() != Encoding::BF16 {
            let mut decoded = vec![0; 4 * elements.len()];
            coding.codec().decode(reduce::Kernels::portable(), &due, &mut decoded).unwrap();
            let what = coding.codec.to_string();
            assert_eq!(self.decoded(coding, &due, elements.len()), decoded, "{what}");
        }
    }

    fn encoded(&self, coding: &Coding, seed: Seed, elements: &[f32], grid: (u32, u32), odd: usize) -> Vec<u8> {
        let elements = bytes(elements);
        let len = elements.len() as u64 / 4;
        let body_bytes = coding.codec().body_bytes(len).max() as usize;
        let mut memory = Bytes(elements.clone());
        memory.0.resize(elements.len() + odd + body_bytes + 8, 0xee);
        let body = (elements.len() + odd) as u64;
        let stretch = Stretch { elements: 0, body, len, first: 0 };
        self.run(Work::Encode(coding.codec.encoding()), coding, seed, grid, stretch, &mut memory);
        let (before, rest) = memory.0.split_at(body as usize);
        assert_eq!(before, [&elements[..], &vec![0xee; odd]].concat(), "elements are only read");
        let (body, behind) = rest.split_at(body_bytes);
        assert_eq!(behind, [0xee; 8], "nothing is written behind a body");
        body.to_vec()
    }

    fn decoded(&self, coding: &Coding, body: &[u8], len: usize) -> Vec<u8> {
        // Elements lie at a multiple of their size.
        let elements = body.len().next_multiple_of(4) + 4;
        let mut memory = Bytes(vec![0xee; elements + 4 * len + 8]);
        let start = elements - body.len();
        memory.0[start..elements].copy_from_slice(body);
        let stretch = Stretch { elements: elements as u64, body: start as u64, len: len as u64, first: 0 };
        self.run(Work::Decode(coding.codec.encoding()), coding, seed(), (3, 64), stretch, &mut memory);
        assert_eq!(memory.0[start..elements], *body, "a body is only read");
        let (found, behind) = memory.0[elements..].split_at(4 * len);
        assert_eq!(behind, [0xee; 8], "nothing is written behind the elements");
        found.to_vec()
    }

    fn run(
        &self,
        work: Work,
        coding: &Coding,
        seed: Seed,
        (blocks, threads): (u32, u32),
        stretch: Stretch,
        memory: &mut Bytes,
    ) {
        let (_, name) = KERNELS.iter().find(|(known, _)| *known == work).expect("a kernel");
        let kernel = self.0.kernel(name.trim_end_matches('\0')).unwrap();
        assert_eq!(kernel.params(), [size_of::<Runs>()]);
        let Runs { factor, block, by_chance, low, high, count, runs } =
            Runs::of(work, coding, seed.words(), &cut(&[stretch], unit_of(coding)));
        // A grid is a multiple of the number of runs.
        let blocks = blocks * count;
        let words = [factor.to_bits(), block, by_chance, low, high, count];
        let runs = runs.iter().flat_map(|run| {
            let places = [run.from, run.to].into_iter().flat_map(u64::to_le_bytes);
            places.chain([run.len, run.first].into_iter().flat_map(u32::to_le_bytes))
        });
        let parameter: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).chain(runs).collect();
        kernel.run(blocks, threads, &parameter, memory).unwrap();
    }
}

/// Blocks of numbers at which an encoder could err, for a grid up to this number.
fn awkward(block: usize, largest: f32) -> Vec<f32> {
    let of = |element: fn(u64, f32) -> f32| move |index: usize| element(bits(index as u64), largest);
    let kinds: [Box<dyn Fn(usize) -> f32>; 12] = [
        // Zeros of both signs; then the smallest numbers, whose scale is zero or subnormal.
        Box::new(of(|bits, _| f32::from_bits((bits as u32) << 31))),
        Box::new(of(|bits, _| f32::from_bits(bits as u32 & 0x8000_0001))),
        Box::new(of(|bits, _| f32::from_bits(bits as u32 & 0x8000_00ff))),
        Box::new(of(|bits, _| f32::from_bits(bits as u32 & 0x807f_ffff))),
        Box::new(of(|bits, _| f32::from_bits(bits as u32 & 0x83ff_ffff))),
        // The largest, beside small ones.
        Box::new(of(|bits, _| if bits >> 60 == 0 { f32::MAX } else { f32::from_bits(bits as u32 & 0xbfff_ffff) })),
        // A scale of one, and few bits: many lie in the middle between two numbers of the grid.
        Box::new(of(|bits, largest| match bits >> 61 {
            0 => largest,
            1 => -largest,
            _ => ((bits & 0xff) as f32 - 128.0) * (bits >> 8 & 0xf) as f32 / 4096.0 * largest,
        })),
        Box::new(of(|bits, largest| if bits >> 61 == 0 { largest } else { (bits & 0xff) as f32 / 2.0 % largest })),
        // Of every size up to one.
        Box::new(of(|bits, _| f32::from_bits(bits as u32 & 0xbf7f_ffff | 0x2000_0000))),
        // No numbers, or infinite ones, now and then.
        Box::new(of(|bits, _| if bits >> 59 == 0 { f32::NAN } else { bits as u32 as f32 })),
        Box::new(of(|bits, _| if bits >> 59 == 0 { f32::NEG_INFINITY } else { bits as u32 as f32 })),
        Box::new(of(|bits, _| f32::from_bits(bits as u32))),
    ];
    kinds.iter().enumerate().flat_map(|(kind, element)| (0..block).map(move |at| element(kind * block + at))).collect()
}

/// Bits that look random.
fn bits(index: u64) -> u64 {
    seed().draw(index)
}

fn seed() -> Seed {
    Seed::of(PartId { key: TensorKey(3), index: 2 }, Round(9))
}

fn on_the_host(coding: &Coding, seed: Seed, elements: &[f32]) -> Vec<u8> {
    let codec: codec::AnyCodec = coding.codec();
    let mut body = vec![0; codec.body_bytes(elements.len() as u64).max() as usize];
    let tools = Tools { kernels: reduce::Kernels::portable(), seed, workspace: &mut Workspace::default() };
    let used = codec.encode(tools, coding.divisor, &bytes(elements), &mut body);
    assert_eq!(used, Ok(body.len()));
    body
}

/// Equal in all bits. A NaN may have any payload, if no encoder made its scale.
fn assert_same(found: &[u8], due: &[u8], what: &str) {
    assert_eq!(found.len(), due.len(), "{what}");
    let numbers = |bytes: &[u8]| bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect::<Vec<_>>();
    for (at, (found, due)) in iter::zip(numbers(found), numbers(due)).enumerate() {
        let is_same = found.to_bits() == due.to_bits() || found.is_nan() && due.is_nan();
        assert!(is_same, "{what}, element {at}: {found:e}, not {due:e}");
    }
}
