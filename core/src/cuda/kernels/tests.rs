//! The PTX that is built in, run on the host, against the arithmetic of the host.

use std::ffi::c_void;
use std::path::Path;
use std::{iter, ptr, slice};

use fakecuda::Control;
use fakecuda::ptx::Memory;

use super::testing::{has_kernels, module_of};
use super::*;
use crate::cuda::api::Api;
use crate::cuda::{Driver, codes, fake};
use crate::mem::Ordinal;
use crate::reduce;
use crate::skip::skip;
use crate::types::{Op, Span};

/// Unusual ones too: nothing, exact and inexact, subnormal after the product, out of a half's range.
const FACTORS: [f64; 8] = [1.0, 0.5, 1.0 / 3.0, -2.5, 0.0, 1e-5, 3.0e38, f64::INFINITY];

#[test]
fn every_half_size_float_is_scaled_and_widened_as_on_the_host() {
    for dtype in [DType::F16, DType::BF16] {
        agree(dtype, dtype, &all_halves(), interpreted);
        agree(dtype, DType::F32, &all_halves(), interpreted);
    }
}

#[test]
fn single_floats_of_every_exponent_are_scaled_and_narrowed_as_on_the_host() {
    for written in [DType::F32, DType::F16, DType::BF16] {
        agree(DType::F32, written, &some_singles(), interpreted);
    }
}

#[test]
fn double_floats_of_every_exponent_are_scaled_as_on_the_host() {
    agree(DType::F64, DType::F64, &some_doubles(), interpreted);
}

#[test]
fn integers_are_divided_as_on_the_host() {
    for dtype in [DType::I8, DType::U8, DType::I32, DType::I64] {
        agree_on_quotients(dtype, |divisor, data| {
            let mut memory = Bytes(data.to_vec());
            let len = data.len() as u64 / dtype.bytes();
            run(Work::Divide(dtype), (2, 32), u64::from(divisor), &[Run { from: 0, to: 0, len }], &mut memory);
            memory.0
        });
    }
}

/// What no test without a GPU can show: that its driver takes the PTX, and that its arithmetic is that of the interpreter.
#[test]
fn a_real_device_computes_as_the_host_does() {
    on_a_real_device(2 * some_singles().len().max(all_halves().len() * 2), |context, stream, run| {
        let kernels = Kernels::load(context).unwrap();
        every_kernel_agrees(&kernels, stream, run);
    });
}

fn every_kernel_agrees(kernels: &Kernels, stream: &Stream, run: &mut OnDevice<'_>) {
    for (work, _) in KERNELS {
        match work {
            Work::Scale(read, written) => {
                let data = match read {
                    DType::F64 => some_doubles(),
                    DType::F32 => some_singles(),
                    _ => all_halves(),
                };
                agree(read, written, &data, |_, factor, data, bytes| {
                    run(data, bytes, &|from, to| kernels.scale(stream, factor, (read, written), iter::once((from, to))))
                });
            }
            Work::Divide(dtype) => {
                agree_on_quotients(dtype, |divisor, data| {
                    run(data, data.len(), &|from, to| {
                        kernels.copy(stream, iter::once((from, to)))?;
                        kernels.divide(stream, divisor, dtype, slice::from_ref(to))
                    })
                });
            }
            Work::Copy => {
                let data = all_halves();
                let output = run(&data, data.len(), &|from, to| {
                    let [from, to] = [from, to].map(in_pieces);
                    kernels.copy(stream, from.iter().zip(&to))
                });
                assert!(output == data, "the pieces together are all of it");
            }
        }
    }
}

#[test]
fn any_grid_reaches_every_element_once_and_none_beyond_the_last() {
    let data: Vec<u8> = (1..=10).flat_map(|number| (number as f32).to_le_bytes()).collect();
    for (blocks, threads) in [(1, 1), (1, 3), (3, 4), (5, 8)] {
        let mut memory = Bytes(data.clone());
        let all = [Run { from: 0, to: 0, len: 9 }];
        run(Work::Scale(DType::F32, DType::F32), (blocks, threads), 2.0_f64.to_bits(), &all, &mut memory);
        let numbers = memory.0.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
        assert_eq!(numbers.collect::<Vec<_>>(), [2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0, 16.0, 18.0, 10.0]);
    }
}

#[test]
fn bytes_are_copied_at_every_alignment_and_none_beside_them() {
    // A place of 32 bytes for each destination, behind the source.
    let cases = (0..8).flat_map(|to| (0..17).map(move |len| (to, len)));
    let places = || cases.clone().zip((32_u64..).step_by(32));
    for from in 0..8 {
        let runs: Vec<Run> = places().map(|((to, len), place)| Run { from, to: place + to, len }).collect();
        let mut expected: Vec<u8> = (0..32).collect();
        expected.resize(32 * (1 + runs.len()), 0xcc);
        let mut memory = Bytes(expected.clone());
        run(Work::Copy, (2 * runs.len() as u32, 3), 0, &runs, &mut memory);
        for Run { from, to, len } in runs {
            expected.copy_within(from as usize..(from + len) as usize, to as usize);
        }
        assert!(memory.0 == expected, "from {from}");
    }
}

#[test]
fn many_runs_share_launches_and_each_is_reached() {
    let world = World::on(Ordinal(7));
    let kernels = Kernels::load(&world.context).unwrap();
    for (runs, launches) in [(0, 0), (1, 1), (RUNS_MAX, 1), (RUNS_MAX + 1, 2), (3 * RUNS_MAX, 3)] {
        let memory = world.memory(4 * (runs + 1));
        world.control.produce(7, world.raw(), memory.address(), &[9, 0, 0, 0].repeat(runs + 1));
        // An empty run behind each.
        let spans = (0..runs as u64).flat_map(|at| [4, 0].map(|bytes| Span { offset: 4 * at, bytes }));
        let each: Vec<_> = spans.map(|span| memory.part(span)).collect();
        let before = world.control.counter(7, "kernels");
        world.run(|stream| kernels.divide(stream, 3, DType::I32, &each));
        assert_eq!(world.read(&memory), [[3, 0, 0, 0].repeat(runs), vec![9, 0, 0, 0]].concat());
        assert_eq!(world.control.counter(7, "kernels") - before, launches, "{runs} runs");
    }
}

#[test]
fn runs_that_are_longer_than_a_share_are_cut_where_words_begin() {
    let cut_lens = |lens: &[u64]| {
        let runs: Vec<Run> = lens.iter().map(|len| Run { from: 64, to: 128, len: *len }).collect();
        let cut = cut(&runs, (4, 2));
        for pair in cut.windows(2) {
            let follows = (pair[0].from + 4 * pair[0].len, pair[0].to + 2 * pair[0].len) == (pair[1].from, pair[1].to);
            assert!(follows || pair[1] == Run { from: 64, to: 128, len: pair[1].len }, "{pair:?}");
        }
        cut.iter().map(|run| run.len).collect::<Vec<_>>()
    };
    assert_eq!(cut_lens(&[]), [0; 0]);
    assert_eq!(cut_lens(&[0, 1, 4096, 0]), [1, 4096]);
    assert_eq!(cut_lens(&[5, 4097, 6]), [5, 4096, 1, 6]);
    let long = cut_lens(&[1 << 20, 3]);
    assert_eq!((long.len(), long[0], long[63], long[64]), (65, 16_392, (1 << 20) - 63 * 16_392, 3));
}

#[test]
fn the_text_has_the_kernels_that_are_launched_and_no_other() {
    has_kernels(&module_of(PTX), KERNELS.iter().map(|(_, name)| *name));
}

#[test]
fn what_is_launched_is_done_on_the_device_in_the_order_of_its_stream() {
    let world = World::new();
    let kernels = Kernels::load(&world.context).unwrap();
    let numbers: Vec<u8> = (0..1000).flat_map(|number| (number as f32).to_le_bytes()).collect();
    let (wide, narrow) = (world.memory(4000), world.memory(2000));
    world.control.produce(0, world.raw(), wide.address(), &numbers);
    world.run(|stream| {
        kernels.scale(stream, 0.5, (DType::F32, DType::BF16), iter::once((&wide, &narrow)))?;
        kernels.scale(stream, 4.0, (DType::BF16, DType::F32), iter::once((&narrow, &wide)))
    });
    let halves = on_the_host(DType::F32, DType::BF16, 0.5, &numbers);
    assert_eq!(world.read(&narrow), halves);
    assert_eq!(world.read(&wide), on_the_host(DType::BF16, DType::F32, 4.0, &halves));
}

#[test]
fn a_part_of_the_memory_is_scaled_in_place_and_its_neighbours_are_not() {
    let world = World::new();
    let kernels = Kernels::load(&world.context).unwrap();
    let memory = world.memory(64);
    world.control.produce(0, world.raw(), memory.address(), &[8_f64; 8].map(f64::to_le_bytes).concat());
    let part = memory.part(Span { offset: 16, bytes: 24 });
    let nothing = memory.part(Span { offset: 8, bytes: 0 });
    world.run(|stream| {
        kernels.scale(stream, 3.0, (DType::F64, DType::F64), iter::once((&nothing, &nothing)))?;
        kernels.scale(stream, 0.25, (DType::F64, DType::F64), iter::once((&part, &part)))
    });
    assert_eq!(world.read(&memory), [8.0_f64, 8.0, 2.0, 2.0, 2.0, 8.0, 8.0, 8.0].map(f64::to_le_bytes).concat());
}

#[test]
fn integers_are_divided_in_place_in_the_order_of_their_stream() {
    let world = World::new();
    let kernels = Kernels::load(&world.context).unwrap();
    let memory = world.memory(12);
    world.control.produce(0, world.raw(), memory.address(), &[-7_i32, -7, -7].map(i32::to_le_bytes).concat());
    let (part, nothing) = (memory.part(Span { offset: 4, bytes: 4 }), memory.part(Span { offset: 4, bytes: 0 }));
    world.run(|stream| {
        kernels.divide(stream, 9, DType::I32, slice::from_ref(&nothing))?;
        kernels.divide(stream, 2, DType::I32, slice::from_ref(&part))?;
        kernels.divide(stream, 3, DType::I32, slice::from_ref(&part))
    });
    assert_eq!(world.read(&memory), [-7_i32, -2, -7].map(i32::to_le_bytes).concat());
}

#[test]
fn a_driver_that_cannot_compile_is_told_from_a_device_that_failed() {
    let (control, driver) = fake::driver();
    let context = driver.device(Ordinal(6)).unwrap();
    for (code, is_old) in [(222, true), (221, true), (209, true), (2, false), (700, false)] {
        control.set("FAIL", &format!("cuModuleLoadData:6={code}"));
        match Kernels::load(&context).unwrap_err() {
            Error::FailedPrecondition { hint, .. } => assert!(is_old && hint.contains("525"), "{code}: {hint}"),
            Error::Device { device, .. } => assert!(!is_old && device == "cuda:6", "{code}: {device}"),
            other => panic!("{code}: {other}"),
        }
    }
    control.set("FAIL", "");
    Kernels::load(&context).unwrap();
}

#[test]
fn types_without_a_kernel_are_refused() {
    let world = World::new();
    let kernels = Kernels::load(&world.context).unwrap();
    let memory = world.memory(16);
    let scaled = kernels.scale(&world.stream, 2.0, (DType::I32, DType::I32), iter::once((&memory, &memory)));
    let divided = kernels.divide(&world.stream, 2, DType::F32, slice::from_ref(&memory));
    for (refused, word) in [(scaled, "int32"), (divided, "float32")] {
        assert!(matches!(&refused, Err(Error::InvalidArgument { what, .. }) if what.contains(word)), "{refused:?}");
    }
}

/// What a real device makes of bytes: so many others, which the work makes of them. The bytes are only read.
pub(super) type OnDevice<'a> =
    dyn FnMut(&[u8], usize, &dyn Fn(&DeviceRegion, &DeviceRegion) -> Result<()>) -> Vec<u8> + 'a;

/// Gives `test` the first device of a real driver, if there is one, for so many bytes at a time.
pub(super) fn on_a_real_device(bytes_max: usize, test: impl FnOnce(&Arc<Context>, &Stream, &mut OnDevice<'_>)) {
    // Not as usual: the fake driver answers to the usual name once it is mapped.
    let Ok(driver) = Driver::load(Some(Path::new("libcuda.so.1"))) else {
        skip("needs a CUDA device");
        return;
    };
    let context = driver.device(Ordinal(0)).unwrap();
    context.bind().unwrap();
    let stream = context.stream().unwrap();
    let mut pinned = Pinned::new(&context, bytes_max);
    test(&context, &stream, &mut |data, bytes, work| {
        let (input, output) = pinned.run(data, bytes, |from, to| {
            work(from, to).unwrap();
            let event = stream.record().unwrap();
            while !event.is_reached("a kernel").unwrap() {
                std::thread::yield_now();
            }
        });
        assert_eq!(input, data, "it is only read");
        output.to_vec()
    });
}

/// All of `memory` in runs of many lengths.
fn in_pieces(memory: &DeviceRegion) -> Vec<DeviceRegion> {
    let (mut pieces, mut offset, len) = (Vec::new(), 0, memory.len() as u64);
    while offset < len {
        let bytes = (1 + 7 * pieces.len() as u64 % 1009).min(len - offset);
        pieces.push(memory.part(Span { offset, bytes }));
        offset += bytes;
    }
    pieces
}

fn all_halves() -> Vec<u8> {
    (0..=u16::MAX).flat_map(u16::to_le_bytes).collect()
}

fn some_singles() -> Vec<u8> {
    // Below, on, and above what is half-way for f16 and for bf16.
    let lows = [0x0000, 0x0001, 0x0fff, 0x1000, 0x1001, 0x7fff, 0x8000, 0x8001, 0xffff];
    let bits = (0..=u16::MAX).step_by(29).flat_map(|high| lows.map(|low| u32::from(high) << 16 | low));
    bits.flat_map(u32::to_le_bytes).collect()
}

fn some_doubles() -> Vec<u8> {
    let bits = (0..=u16::MAX).step_by(3).map(|high| u64::from(high) << 48 | 0x0000_5555_aaaa_0001);
    bits.flat_map(u64::to_le_bytes).collect()
}

/// Numbers at which a division could err: around zero, the ends and the powers of two, and of 8 bits all.
fn some_integers(dtype: DType) -> Vec<u8> {
    let bytes = dtype.bytes() as usize;
    let powers = (0..8 * bytes).map(|bit| 1_i64 << bit);
    let near: Vec<i64> = powers.flat_map(|power| (-9..=9).map(move |more| power.wrapping_add(more))).collect();
    let negated = near.iter().map(|number| number.wrapping_neg());
    let all = if bytes == 1 { 0..256 } else { 0..0 };
    near.iter().copied().chain(negated).chain(all).flat_map(|number| number.to_le_bytes()[..bytes].to_vec()).collect()
}

/// As many as a machine has ranks, and some that do not fit 8, 16 or 31 bits.
fn some_divisors() -> impl Iterator<Item = u32> {
    (1..=64).chain([127, 128, 200, 255, 256, 257, 65_537, u32::MAX])
}

/// Has `run` scale the data from one type to the other with every factor, and compares with the host's arithmetic. `run` is given both
/// types, the factor, the data, and how many bytes come of it.
fn agree(read: DType, written: DType, data: &[u8], mut run: impl FnMut((DType, DType), f64, &[u8], usize) -> Vec<u8>) {
    for factor in FACTORS {
        let expected = on_the_host(read, written, factor, data);
        let found = run((read, written), factor, data, expected.len());
        let inputs = data.chunks(read.bytes() as usize);
        let results = found.chunks(written.bytes() as usize).zip(expected.chunks(written.bytes() as usize));
        assert_eq!(found.len(), expected.len());
        for (input, (found, expected)) in inputs.zip(results) {
            let is_equal = number(written, found) == number(written, expected);
            assert!(
                is_equal,
                "{read} to {written}: {input:02x?} times {factor:e} is {found:02x?}, on the host {expected:02x?}"
            );
        }
    }
}

/// Has `run` divide integers by every divisor, and compares with means on the host.
fn agree_on_quotients(dtype: DType, mut run: impl FnMut(u32, &[u8]) -> Vec<u8>) {
    let data = some_integers(dtype);
    for divisor in some_divisors() {
        let mut expected = vec![0; data.len()];
        reduce::Kernels::portable().finish(Op::Mean, dtype, f64::from(divisor), &data, &mut expected);
        let found = run(divisor, &data);
        assert_eq!(found.len(), expected.len());
        let element = dtype.bytes() as usize;
        let results = found.chunks(element).zip(expected.chunks(element));
        for (input, (found, expected)) in data.chunks(element).zip(results) {
            assert_eq!(found, expected, "{dtype}: {input:02x?} by {divisor}");
        }
    }
}

/// What the PTX says, run on the host.
fn interpreted((read, written): (DType, DType), factor: f64, data: &[u8], bytes: usize) -> Vec<u8> {
    let mut memory = Bytes(data.to_vec());
    memory.0.resize(data.len() + bytes, 0xcc);
    let all = [Run { from: 0, to: data.len() as u64, len: bytes as u64 / written.bytes() }];
    run(Work::Scale(read, written), (2, 32), factor.to_bits(), &all, &mut memory);
    let output = memory.0.split_off(data.len());
    assert_eq!(memory.0, data, "it is only read");
    output
}

/// What the kernels must be equal to: how the host weighs the first contribution of a sum, in the arithmetic of production.
fn on_the_host(read: DType, written: DType, factor: f64, data: &[u8]) -> Vec<u8> {
    let host = reduce::Kernels::portable();
    let mut sum = vec![0; reduce::accumulator_bytes(read, data.len() as u64) as usize];
    host.start(Op::WeightedMean, read, factor, data, &mut sum);
    if written == read.accumulator() {
        return sum;
    }
    let mut result = vec![0; data.len() / read.bytes() as usize * written.bytes() as usize];
    host.finish(Op::Sum, written, 1.0, &sum, &mut result);
    result
}

/// The bits of an element; one and the same for every NaN, whose payload is the processor's affair.
fn number(dtype: DType, bytes: &[u8]) -> u64 {
    let mut bits = [0; 8];
    bits[..bytes.len()].copy_from_slice(bytes);
    let bits = u64::from_le_bytes(bits);
    let (sign, infinity) = match dtype {
        DType::F16 => (1 << 15, 0x7c00),
        DType::BF16 => (1 << 15, 0x7f80),
        DType::F32 => (1 << 31, 0x7f80_0000),
        DType::F64 => (1 << 63, 0x7ff0_0000_0000_0000),
        DType::I32 | DType::I64 | DType::I8 | DType::U8 => unreachable!("kernels are for floats"),
    };
    if bits & !sign > infinity { u64::MAX } else { bits }
}

/// Runs the PTX of a kernel.
fn run(work: Work, (blocks, threads): (u32, u32), number: u64, runs: &[Run], memory: &mut Bytes) {
    let module = module_of(PTX);
    let (_, name) = KERNELS.iter().find(|(known, _)| *known == work).expect("a kernel");
    let kernel = module.kernel(name.trim_end_matches('\0')).unwrap();
    assert_eq!(kernel.params(), [size_of::<Runs>()]);
    let words = runs.iter().flat_map(|run| [run.from, run.to, run.len]);
    let mut parameter: Vec<u8> =
        [number, runs.len() as u64].into_iter().chain(words).flat_map(u64::to_le_bytes).collect();
    parameter.resize(size_of::<Runs>(), 0xcc);
    kernel.run(blocks, threads, &parameter, memory).unwrap();
}

/// The driver that runs on the host, and a stream of one of its devices.
pub(super) struct World {
    pub(super) control: Control,
    pub(super) context: Arc<Context>,
    stream: Stream,
}

impl World {
    fn new() -> Self {
        Self::on(Ordinal(0))
    }

    pub(super) fn on(device: Ordinal) -> Self {
        let (control, driver) = fake::driver();
        let context = driver.device(device).unwrap();
        let stream = context.stream().unwrap();
        Self { control, context, stream }
    }

    pub(super) fn raw(&self) -> u64 {
        self.stream.raw().addr() as u64
    }

    /// Memory of the device, for as long as the process lives.
    pub(super) fn memory(&self, bytes: usize) -> DeviceRegion {
        DeviceRegion::new(self.context.device(), self.control.allocate(self.device(), bytes), bytes)
    }

    pub(super) fn run(&self, work: impl FnOnce(&Stream) -> Result<()>) {
        self.context.within(|| work(&self.stream)).unwrap();
    }

    /// What lies there when the stream has come so far.
    pub(super) fn read(&self, memory: &DeviceRegion) -> Vec<u8> {
        self.control.consume(self.device(), self.raw(), memory.address(), memory.len())
    }

    fn device(&self) -> i32 {
        i32::from(self.context.device().0)
    }
}

/// Memory of the host that devices reach at its own address.
struct Pinned<'a> {
    context: &'a Context,
    start: *mut c_void,
    bytes: usize,
}

impl<'a> Pinned<'a> {
    fn new(context: &'a Context, bytes: usize) -> Self {
        let mut start = ptr::null_mut();
        // SAFETY: it writes one address, which is freed in `drop`.
        let code = unsafe { (context.api().host_alloc)(&raw mut start, bytes, 0) };
        assert_eq!(code, codes::SUCCESS);
        Self { context, start, bytes }
    }

    /// Lets `work` make so many bytes of `data`; both as they are then.
    fn run(&mut self, data: &[u8], bytes: usize, work: impl FnOnce(&DeviceRegion, &DeviceRegion)) -> (&[u8], &[u8]) {
        // Elements of any type may begin there.
        let output = data.len().next_multiple_of(8);
        assert!(output + bytes <= self.bytes);
        // SAFETY: it is ours, all of it is allocated, and no device is at it now.
        let memory = unsafe { std::slice::from_raw_parts_mut(self.start.cast::<u8>(), output + bytes) };
        memory[..data.len()].copy_from_slice(data);
        memory[output..].fill(0xcc);
        let region = |at: usize, len| DeviceRegion::new(Ordinal(0), (self.start.addr() + at) as u64, len);
        work(&region(0, data.len()), &region(output, bytes));
        (&memory[..data.len()], &memory[output..])
    }
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        // SAFETY: allocated once, and no device is at it now.
        Api::released("memory of a test", unsafe { (self.context.api().host_free)(self.start) });
    }
}

/// Memory that begins at address 0.
pub(super) struct Bytes(pub(super) Vec<u8>);

impl Memory for Bytes {
    fn load(&self, address: u64, to: &mut [u8]) -> bool {
        let from = usize::try_from(address).ok().and_then(|start| self.0.get(start..start + to.len()));
        from.inspect(|from| to.copy_from_slice(from)).is_some()
    }

    fn store(&mut self, address: u64, from: &[u8]) -> bool {
        let to = usize::try_from(address).ok().and_then(|start| self.0.get_mut(start..start + from.len()));
        to.map(|to| to.copy_from_slice(from)).is_some()
    }
}
