//! The PTX that is built in, run on the host, against the look of the host.

use fakecuda::ptx;
use half::{bf16, f16};

use super::*;
use crate::cuda::kernels::testing::{has_kernels, module_of};
use crate::cuda::kernels::tests::{Bytes, World, on_a_real_device};
use crate::mem::Ordinal;
use crate::reduce;
use crate::types::Span;

const FLOATS: [DType; 4] = [DType::F16, DType::BF16, DType::F32, DType::F64];
/// Zeros, small ones, and some near the largest of f16.
const FINITE: [f64; 8] = [0.0, -0.0, 1.0, -1.0, 1e-40, 60_000.0, -60_000.0, 2.0];
const SPECIAL: [f64; 4] = [f64::NAN, -f64::NAN, f64::INFINITY, f64::NEG_INFINITY];

#[test]
fn every_float_of_two_bytes_is_judged_as_on_the_host() {
    let interpreter = Interpreter::new();
    for dtype in [DType::F16, DType::BF16] {
        for bits in 0..=u16::MAX {
            let element = bits.to_le_bytes();
            let due = reduce::Kernels::portable().all_finite(dtype, &element);
            assert_eq!(interpreter.is_finite(dtype, &element, &[(0, 2)], (1, 4)), due, "{dtype}: {bits:#06x}");
        }
    }
}

#[test]
fn wider_floats_of_every_exponent_are_judged_as_on_the_host() {
    let interpreter = Interpreter::new();
    for high in (0..=u16::MAX).step_by(13) {
        for low in [0_u16, 1, 0x8000, 0xffff] {
            let single = (u32::from(high) << 16 | u32::from(low)).to_le_bytes().to_vec();
            let double = (u64::from(high) << 48 | u64::from(low)).to_le_bytes().to_vec();
            for (dtype, element) in [(DType::F32, single), (DType::F64, double)] {
                let due = reduce::Kernels::portable().all_finite(dtype, &element);
                let found = interpreter.is_finite(dtype, &element, &[(0, element.len())], (1, 4));
                assert_eq!(found, due, "{dtype}: {element:02x?}");
            }
        }
    }
}

/// Runs begin and end within words, or are shorter than one, and what is not finite lies right beside them too.
#[test]
fn what_is_not_finite_is_found_in_every_place_of_a_run_and_not_beside_it() {
    let interpreter = Interpreter::new();
    for dtype in FLOATS {
        let size = dtype.bytes() as usize;
        for (from, len) in (0..5).flat_map(|from| (0..40).map(move |len| (from, len))) {
            for grid in [(1, 1), (2, 3)] {
                let outside = filled(dtype, 50, SPECIAL[len % 4]);
                let mut memory = outside;
                let inside = filled_with_finite(dtype, len);
                memory[from * size..][..inside.len()].copy_from_slice(&inside);
                let run = [(from * size, len * size)];
                assert!(interpreter.is_finite(dtype, &memory, &run, grid), "{dtype}: {len} from {from}");
                for at in 0..len {
                    let place = (from + at) * size;
                    let before = memory[place..place + size].to_vec();
                    memory[place..place + size].copy_from_slice(&element(dtype, SPECIAL[at % 4]));
                    assert!(!interpreter.is_finite(dtype, &memory, &run, grid), "{dtype}: {at} of {len} from {from}");
                    memory[place..place + size].copy_from_slice(&before);
                }
            }
        }
    }
}

#[test]
fn each_of_many_runs_is_looked_at_whatever_the_grid() {
    let interpreter = Interpreter::new();
    let runs: Vec<(usize, usize)> = (0..7).map(|run| (400 * run, 4 * (7 * run + 1))).collect();
    for grid in [(7, 1), (14, 5), (21, 32)] {
        for (at, len) in &runs {
            let mut memory = filled_with_finite(DType::F32, 700);
            assert!(interpreter.is_finite(DType::F32, &memory, &runs, grid));
            memory[at + len..][..4].copy_from_slice(&element(DType::F32, f64::NAN));
            assert!(interpreter.is_finite(DType::F32, &memory, &runs, grid), "behind the run");
            memory[at + len - 4..][..4].copy_from_slice(&element(DType::F32, f64::NAN));
            assert!(!interpreter.is_finite(DType::F32, &memory, &runs, grid), "its last element");
        }
    }
}

#[test]
fn long_runs_are_cut_where_words_begin_and_empty_ones_are_left_out() {
    let of = |runs: &[(u64, u64)]| {
        let runs: Vec<Run> = runs.iter().map(|(from, bytes)| Run { from: *from, bytes: *bytes }).collect();
        cut(&runs).into_iter().map(|run| (run.from, run.bytes)).collect::<Vec<_>>()
    };
    assert_eq!(of(&[]), []);
    assert_eq!(of(&[(64, 0), (70, 2), (99, 0)]), [(70, 2)]);
    assert_eq!(of(&[(66, 32_768)]), [(66, 32_766), (32_832, 2)]);
    let long = of(&[(0x1002, 64 << 20)]);
    assert_eq!((long.len(), long[0], long[64]), (65, (0x1002, (1 << 20) - 2), (0x1000 + (64 << 20), 2)));
    assert!(long.windows(2).all(|pair| pair[0].0 + pair[0].1 == pair[1].0));
}

#[test]
fn a_grid_has_a_thread_for_each_word_up_to_a_bound() {
    let of = |runs: &[u64]| blocks(&runs.iter().map(|bytes| Run { from: 0, bytes: *bytes }).collect::<Vec<_>>());
    assert_eq!([of(&[1]), of(&[2048]), of(&[2049, 8])], [1, 1, 4]);
    assert_eq!([of(&[1 << 30]), of(&[1 << 20; 64]), of(&[1 << 20; 253])], [1024, 1024, 1012]);
}

#[test]
fn a_device_writes_the_number_of_the_look_that_found_something_in_the_order_of_its_stream() {
    let world = World::on(Ordinal(1));
    let kernel = FiniteKernel::load(&world.context).unwrap();
    let word = world.memory(8);
    world.control.produce(1, world.raw(), word.address(), &[0; 8]);
    for (number, dtype) in (1..).zip(FLOATS) {
        let size = dtype.bytes();
        let memory = world.memory(3000 * size as usize);
        let run = |from: u64, len: u64| memory.part(Span { offset: from * size, bytes: len * size });
        let (healthy, spoilt) = ([run(1, 2000), run(7, 0), run(2002, 997)], [run(0, 1), run(2001, 1)]);
        let mut content = filled_with_finite(dtype, 3000);
        content[2001 * size as usize..][..size as usize].copy_from_slice(&element(dtype, f64::INFINITY));
        world.control.produce(1, world.raw(), memory.address(), &content);
        let before = world.control.counter(1, "kernels");
        world.run(|stream| kernel.look(stream, dtype, &healthy, (&word, 2 * number)));
        assert_eq!(world.read(&word), (2 * number - 2 + u64::from(number > 1)).to_le_bytes(), "{dtype} is healthy");
        world.run(|stream| kernel.look(stream, dtype, &spoilt, (&word, 2 * number + 1)));
        assert_eq!(world.read(&word), (2 * number + 1).to_le_bytes(), "{dtype}");
        assert_eq!(world.control.counter(1, "kernels") - before, 2);
    }
}

#[test]
fn integers_and_empty_runs_need_no_kernel_and_crooked_memory_is_refused() {
    let world = World::on(Ordinal(2));
    let kernel = FiniteKernel::load(&world.context).unwrap();
    let (memory, word) = (world.memory(64), world.memory(8));
    let run = |offset: u64, bytes: u64| [memory.part(Span { offset, bytes })];
    let look = |dtype: DType, runs: &[DeviceRegion]| {
        let mut outcome = Ok(());
        world.run(|stream| {
            outcome = kernel.look(stream, dtype, runs, (&word, 1));
            Ok(())
        });
        outcome
    };
    let before = world.control.counter(2, "kernels");
    look(DType::I32, &run(0, 64)).unwrap();
    look(DType::F32, &run(8, 0)).unwrap();
    look(DType::F64, &[]).unwrap();
    let refused = look(DType::F32, &run(2, 8)).unwrap_err();
    assert!(matches!(&refused, Error::InvalidArgument { what, .. } if what.contains("no multiple of 4")), "{refused}");
    assert_eq!(world.control.counter(2, "kernels"), before);
}

#[test]
fn the_text_has_the_kernel_that_is_launched_and_no_other() {
    has_kernels(&module_of(PTX), iter::once(NAME));
}

/// What no test without a GPU can show; see the tests of the other kernels.
#[test]
fn a_real_device_judges_as_the_host_does() {
    on_a_real_device(2 * (3 << 20), |context, stream, run| {
        let kernel = FiniteKernel::load(context).unwrap();
        for dtype in FLOATS {
            let (size, len) = (dtype.bytes() as usize, 300_001);
            for at in [None, Some(0), Some(1), Some(150_000), Some(len - 1)] {
                let mut content = filled_with_finite(dtype, len);
                if let Some(at) = at {
                    content[at * size..][..size].copy_from_slice(&element(dtype, f64::NAN));
                }
                let output = run(&content, 8, &|from, to| {
                    // Leaves out the first element, so that the run begins within a word.
                    let bytes = (content.len() - size) as u64;
                    kernel.look(stream, dtype, &[from.part(Span { offset: size as u64, bytes })], (to, 7))
                });
                let due = if at.is_some_and(|at| at > 0) { 7_u64.to_le_bytes() } else { [0xcc; 8] };
                assert_eq!(output, due, "{dtype}, {at:?}");
            }
        }
    });
}

struct Interpreter(ptx::Module);

impl Interpreter {
    fn new() -> Self {
        Self(module_of(PTX))
    }

    /// Whether the kernel finds all elements of these runs of `memory` finite: places of their first bytes, and their lengths in bytes.
    fn is_finite(&self, dtype: DType, memory: &[u8], runs: &[(usize, usize)], (blocks, threads): (u32, u32)) -> bool {
        const NUMBER: u64 = 0x0123_4567_89ab_cdef;
        let Exponents { bits, lowest } = Exponents::of(dtype).unwrap();
        let found = memory.len().next_multiple_of(8);
        let mut bytes = memory.to_vec();
        bytes.resize(found + 8, 0xcc);
        let runs: Vec<u64> = runs.iter().flat_map(|(from, bytes)| [*from as u64, *bytes as u64]).collect();
        let head = [bits, lowest, found as u64, NUMBER, runs.len() as u64 / 2];
        let mut parameter: Vec<u8> = head.into_iter().chain(runs).flat_map(u64::to_le_bytes).collect();
        parameter.resize(size_of::<Runs>(), 0xcc);
        let kernel = self.0.kernel(NAME.trim_end_matches('\0')).unwrap();
        assert_eq!(kernel.params(), [size_of::<Runs>()]);
        let mut there = Bytes(bytes);
        kernel.run(blocks, threads, &parameter, &mut there).unwrap();
        let written = there.0.split_off(found);
        assert_eq!(there.0[..memory.len()], *memory, "it is only read");
        match u64::from_le_bytes(written.try_into().unwrap()) {
            NUMBER => false,
            0xcccc_cccc_cccc_cccc => true,
            other => panic!("{other:#x}"),
        }
    }
}

fn element(dtype: DType, value: f64) -> Vec<u8> {
    match dtype {
        DType::F16 => f16::from_f64(value).to_le_bytes().to_vec(),
        DType::BF16 => bf16::from_f64(value).to_le_bytes().to_vec(),
        DType::F32 => (value as f32).to_le_bytes().to_vec(),
        DType::F64 => value.to_le_bytes().to_vec(),
        DType::I8 | DType::U8 | DType::I32 | DType::I64 => unreachable!("integers are finite"),
    }
}

fn filled(dtype: DType, len: usize, value: f64) -> Vec<u8> {
    element(dtype, value).repeat(len)
}

fn filled_with_finite(dtype: DType, len: usize) -> Vec<u8> {
    FINITE.into_iter().cycle().take(len).flat_map(|value| element(dtype, value)).collect()
}
