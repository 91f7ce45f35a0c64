//! How close does summation come to the speed of memory?
//!
//! Three contenders take turns within one run: the sum kernel of this machine, a plain loop, and `memcpy`. The buffers of each have the
//! same total size, so that all three work in the same level of the cache.

use std::hint::black_box;
use std::iter::{repeat, repeat_n, zip};

use clap::Args;
use gradlane_core::reduce::{Kernels, accumulator_bytes};
use gradlane_core::types::{DType, Op};
use half::{bf16, f16};

use crate::measure::{Samples, time};
use crate::report::{Conclusion, Record, Report, Row, smoke_note};
use crate::size::parse_size;
use crate::table::Table;

/// Bytes of contributions that one sample adds: so many that a sample of small buffers lasts much longer than the clock's resolution.
const SAMPLE_BYTES: u64 = 64 << 20;
/// Bytes of `--smoke`: a few vectors and a tail.
const SMOKE_BYTES: u64 = 4096 + 24;

/// How close does summation come to the speed of memory?
///
/// GB/s (10⁹ bytes) count every byte that is read or written. An f32 sum touches 3 bytes for each byte of the contribution (two reads, one
/// write); an f16 or bf16 sum, whose accumulator is f32, touches 5; a memcpy touches 2 (one read, one write).
///
/// The bound is the speed of a memcpy on this machine, in the same run and in as much memory; "of copy" is the share of it that the sum
/// reaches, sum ÷ memcpy. It may exceed 1, because a memcpy may fetch the cache lines that it overwrites, which are not counted, and a sum
/// reads more than it writes. "of plain" is sum ÷ plain loop; the plain loop is `sum += x`, compiled for the base instruction set. Both are
/// medians of the ratios of neighbouring samples. ± is half the distance between the slowest and the fastest sample.
///
/// In the JSON file and with --expect, algbw is GB/s as above, and time is that of one pass. The contender is `sum`, with rows named after
/// the kernels such as 'sum avx2'; its peers are `plain` and `copy`: 'ratio:copy>=0.9@256M'.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Bytes of a contribution; several are separated by commas.
    #[arg(short = 'b', long, value_name = "SIZES", value_delimiter = ',', default_value = "4M,256M", value_parser = parse_size)]
    bytes: Vec<u64>,
    /// Element types; several are separated by commas.
    #[arg(short = 'd', long, value_name = "TYPES", value_delimiter = ',', default_value = "f32,f16,bf16")]
    dtype: Vec<DType>,
    /// Kernels to measure: `best`, those with the widest vectors of this machine, or `all` that it can run.
    #[arg(long, default_value = "best")]
    kernels: Which,
    /// Bytes by which contributions are misaligned, as they can be when they arrive from a network.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u16).range(0..4096))]
    misplaced: u16,
    /// Samples of each contender.
    #[arg(long, default_value_t = 11, value_parser = clap::value_parser!(u32).range(5..))]
    iterations: u32,
    #[command(flatten)]
    record: Record,
    /// Verify every sum, but with tiny buffers and few samples: the figures mean nothing.
    #[arg(long)]
    smoke: bool,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Which {
    Best,
    All,
}

/// Measures and prints.
pub(crate) fn answer(arguments: &Arguments) -> Conclusion {
    Conclusion::of(measure(arguments), &arguments.record)
}

/// The table, and the same as a report for files; or the wrong result or argument.
fn measure(arguments: &Arguments) -> Result<(String, Report), Conclusion> {
    let contenders = match arguments.kernels {
        Which::Best => vec![Kernels::detect()],
        Which::All => Kernels::all(),
    };
    let misplaced = usize::from(arguments.misplaced);
    let smoke_sizes = [SMOKE_BYTES];
    let (sizes, iterations, sample_bytes) = match arguments.smoke {
        true => (&smoke_sizes[..], 5, SMOKE_BYTES),
        false => (&arguments.bytes[..], arguments.iterations, SAMPLE_BYTES),
    };
    let setting = vec![
        format!("gradlane-bench reduce, {}", env!("CARGO_PKG_VERSION")),
        format!("one thread, {iterations} samples each, taken in turns; all sums verified"),
        "GB/s of bytes touched: 3 a byte of f32, 5 of f16 and bf16, 2 of a copy; the bound is the copy".to_owned(),
    ];
    let mut report = Report::begin("reduce", setting);
    report.setting.extend(smoke_note(arguments.smoke));
    let mut table =
        Table::new(["dtype", "bytes", "kernels", "sum GB/s", "plain GB/s", "copy GB/s", "of plain", "of copy"]);
    if let Some(bytes) = sizes.iter().find(|bytes| **bytes < DType::F64.bytes()) {
        return Err(Conclusion::Failed(format!(
            "{bytes} bytes are less than one element of some types; choose -b 8 or more"
        )));
    }
    for &bytes in sizes {
        for (&dtype, &kernels) in arguments.dtype.iter().flat_map(|dtype| zip(repeat(dtype), &contenders)) {
            let passes = sample_bytes.div_ceil(bytes);
            let speeds = match dtype {
                DType::F32 => contest::<f32>(kernels, dtype, bytes, misplaced, iterations, passes),
                DType::F64 => contest::<f64>(kernels, dtype, bytes, misplaced, iterations, passes),
                DType::F16 => contest::<f16>(kernels, dtype, bytes, misplaced, iterations, passes),
                DType::BF16 => contest::<bf16>(kernels, dtype, bytes, misplaced, iterations, passes),
                DType::I32 => contest::<i32>(kernels, dtype, bytes, misplaced, iterations, passes),
                DType::I64 => contest::<i64>(kernels, dtype, bytes, misplaced, iterations, passes),
                DType::I8 => contest::<i8>(kernels, dtype, bytes, misplaced, iterations, passes),
                DType::U8 => contest::<u8>(kernels, dtype, bytes, misplaced, iterations, passes),
            };
            let speeds = speeds.map_err(Conclusion::Wrong)?;
            let count = bytes / dtype.bytes();
            let touched = count * dtype.bytes() + 2 * accumulator_bytes(dtype, count * dtype.bytes());
            for (name, speeds) in [("sum", &speeds.sum), ("plain", &speeds.plain), ("copy", &speeds.copy)] {
                let row = Row::new(name, name == "sum", &kernels.to_string());
                report.rows.push(row.of_speeds(bytes, dtype, touched, speeds));
            }
            table.push([
                dtype.to_string(),
                bytes.to_string(),
                kernels.to_string(),
                speeds.sum.to_string(),
                speeds.plain.to_string(),
                speeds.copy.to_string(),
                format!("{:.2}", speeds.sum.over(&speeds.plain)),
                format!("{:.2}", speeds.sum.over(&speeds.copy)),
            ]);
        }
    }
    Ok((report.above(&table, &arguments.record), report))
}

/// GB/s of the three contenders, sample by sample.
#[derive(Default)]
struct Speeds {
    sum: Samples,
    plain: Samples,
    copy: Samples,
}

fn contest<T: Plain>(
    kernels: Kernels,
    dtype: DType,
    bytes: u64,
    misplaced: usize,
    iterations: u32,
    passes: u64,
) -> Result<Speeds, String> {
    let elements = (bytes / dtype.bytes()) as usize;
    let bytes = elements as u64 * dtype.bytes();
    let accumulator_bytes = accumulator_bytes(dtype, bytes);

    let terms: Vec<T> = (0..elements).map(|index| T::term(value(index))).collect();
    let mut plain = vec![T::sum(0); elements];
    let displaced = repeat_n(0, misplaced).chain(terms.iter().flat_map(|x| x.bytes()));
    let contribution = Aligned::new(displaced, bytes + misplaced as u64);
    let mut accumulator = Aligned::new(repeat_n(0, accumulator_bytes as usize), accumulator_bytes);
    let copy_bytes = (bytes + accumulator_bytes) / 2;
    let from = Aligned::new(repeat_n(1, copy_bytes as usize), copy_bytes);
    let mut to = Aligned::new(repeat_n(0, copy_bytes as usize), copy_bytes);

    let mut speeds = Speeds::default();
    let mut add =
        || kernels.add(Op::Sum, dtype, 1.0, black_box(&contribution.bytes()[misplaced..]), accumulator.bytes_mut());
    let mut add_plainly = || add_plainly(black_box(&terms), &mut plain);
    let mut copy = || black_box(to.bytes_mut()).copy_from_slice(black_box(from.bytes()));
    let sum_traffic = (bytes + 2 * accumulator_bytes) * passes;
    for _ in 0..iterations {
        sample(&mut speeds.sum, sum_traffic, passes, &mut add);
        sample(&mut speeds.plain, sum_traffic, passes, &mut add_plainly);
        sample(&mut speeds.copy, 2 * copy_bytes * passes, passes, &mut copy);
    }

    let added = i64::from(iterations) * (passes as i64 + 1);
    let wrong = |contender: &str, index: usize| format!("{contender}, {dtype}, {bytes} bytes: element {index}");
    for (index, (found, plain)) in zip(accumulator.bytes().chunks_exact(size_of::<T::Sum>()), &plain).enumerate() {
        let expected = T::sum(added * value(index));
        if *plain != expected {
            return Err(wrong("plain loop", index));
        }
        if !T::sum_bytes(expected).eq(found.iter().copied()) {
            return Err(wrong("sum kernel", index));
        }
    }
    if to.bytes() != from.bytes() {
        return Err(wrong("memcpy", 0));
    }
    Ok(speeds)
}

/// Measures `passes` calls of `pass`. One call before them is not measured; it loads the memory into the cache if it fits.
fn sample(samples: &mut Samples, traffic_bytes: u64, passes: u64, pass: &mut impl FnMut()) {
    pass();
    samples.push_speed(traffic_bytes, time(|| (0..passes).for_each(|_| pass())));
}

#[inline(never)]
fn add_plainly<T: Plain>(terms: &[T], sums: &mut [T::Sum]) {
    for (sum, term) in zip(sums, terms) {
        *sum = T::plus(*sum, *term);
    }
}

/// Small integers, whose sums stay exact in f32 for millions of passes; integer types wrap.
fn value(index: usize) -> i64 {
    (index % 7) as i64 - 3
}

/// Adds an element in a plain loop, without this engine.
trait Plain: Copy {
    type Sum: Copy + PartialEq;

    fn term(value: i64) -> Self;
    fn bytes(self) -> impl Iterator<Item = u8>;
    fn sum(value: i64) -> Self::Sum;
    fn sum_bytes(sum: Self::Sum) -> impl Iterator<Item = u8>;
    fn plus(sum: Self::Sum, term: Self) -> Self::Sum;
}

macro_rules! plain {
    ($($type:ty, $sum:ty, $term:expr, $plus:expr;)*) => { $(
        impl Plain for $type {
            type Sum = $sum;

            fn term(value: i64) -> Self {
                $term(value)
            }
            fn bytes(self) -> impl Iterator<Item = u8> {
                self.to_le_bytes().into_iter()
            }
            fn sum(value: i64) -> $sum {
                value as $sum
            }
            fn sum_bytes(sum: $sum) -> impl Iterator<Item = u8> {
                sum.to_le_bytes().into_iter()
            }
            fn plus(sum: $sum, term: Self) -> $sum {
                $plus(sum, term)
            }
        }
    )* };
}

plain! {
    f32, f32, |x| x as f32, |sum, x| sum + x;
    f64, f64, |x| x as f64, |sum, x| sum + x;
    f16, f32, |x| f16::from_f32(x as f32), |sum, x: f16| sum + x.to_f32();
    bf16, f32, |x| bf16::from_f32(x as f32), |sum, x: bf16| sum + x.to_f32();
    i32, i32, |x| x as i32, i32::wrapping_add;
    i64, i64, |x| x, i64::wrapping_add;
    i8, i8, |x| x as i8, i8::wrapping_add;
    u8, u8, |x| x as u8, u8::wrapping_add;
}

/// Bytes that start on a page, as the engine's own buffers do. An address that is not on a cache line makes wide vectors up to a fifth
/// slower.
struct Aligned {
    memory: Vec<u8>,
    start: usize,
}

impl Aligned {
    const PAGE: usize = 4096;

    fn new(content: impl Iterator<Item = u8>, bytes: u64) -> Self {
        let mut memory: Vec<u8> = Vec::with_capacity(bytes as usize + Self::PAGE);
        let start = memory.as_ptr().align_offset(Self::PAGE);
        memory.resize(start, 0);
        memory.extend(content.take(bytes as usize));
        Self { memory, start }
    }

    fn bytes(&self) -> &[u8] {
        &self.memory[self.start..]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Place;

    #[test]
    fn a_smoke_run_verifies_every_element_type() {
        let arguments = Arguments {
            bytes: vec![],
            dtype: DType::ALL.to_vec(),
            kernels: Which::All,
            misplaced: 3,
            iterations: 5,
            record: Record::default(),
            smoke: true,
        };
        let (table, report) = measure(&arguments).expect("all sums are right");
        assert!(report.rows.iter().filter(|row| row.ours).all(|row| report.ratio(row, "copy", Place::In).is_some()));
        for dtype in DType::ALL {
            assert!(table.contains(dtype.name()), "{table}");
        }
    }

    #[test]
    fn an_aligned_buffer_starts_on_a_page_and_holds_its_content() {
        let mut buffer = Aligned::new([1, 2, 3].into_iter(), 3);
        assert_eq!(buffer.bytes(), [1, 2, 3]);
        assert_eq!(buffer.bytes_mut().as_ptr().align_offset(Aligned::PAGE), 0);
    }
}
