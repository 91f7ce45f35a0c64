//! The arguments that the subcommands share, named as nccl-tests names them: sizes, types, operations, repetitions, and the files for
//! results. Decides what a combination of arguments means, and reports a wrong one.

use clap::Args;
use gradlane_core::config::units::print_bytes;
use gradlane_core::types::{DType, Op};

use crate::size::parse_size;

/// The sizes to measure.
#[derive(Args, Clone, Debug)]
pub(crate) struct Sizes {
    /// Smallest size of a tensor in bytes; K, M and G are powers of 1024, as in nccl-tests. Default: 64K.
    #[arg(short = 'b', long = "minbytes", value_name = "SIZE", value_parser = parse_size)]
    first: Option<u64>,
    /// Largest size. Default: the size of -b, or 256M if -b is not given either.
    #[arg(short = 'e', long = "maxbytes", value_name = "SIZE", value_parser = parse_size)]
    last: Option<u64>,
    /// Multiply each size by this to get the next one. Default: 4, unless -i is given.
    #[arg(short = 'f', long = "stepfactor", value_name = "FACTOR", conflicts_with = "step", value_parser = clap::value_parser!(u64).range(2..=1024))]
    factor: Option<u64>,
    /// Add this to each size to get the next one.
    #[arg(short = 'i', long = "stepbytes", value_name = "SIZE", value_parser = parse_size)]
    step: Option<u64>,
    /// These sizes instead, separated by commas.
    #[arg(long = "sizes", value_name = "SIZES", value_delimiter = ',', conflicts_with_all = ["first", "last", "factor", "step"], value_parser = parse_size)]
    listed: Vec<u64>,
}

/// Sizes, types and operations; the cases are all combinations.
#[derive(Args, Clone, Debug)]
pub(crate) struct Sweep {
    #[command(flatten)]
    sizes: Sizes,
    /// Element types, separated by commas: our names, those of nccl-tests (float, half, double), or all.
    #[arg(short = 'd', long = "datatype", value_name = "TYPES", default_value = "float32", value_parser = parse_types)]
    dtypes: Types,
    /// Operations, separated by commas: sum, mean (or avg), min, max, or all.
    #[arg(short = 'o', long = "op", value_name = "OPS", default_value = "sum", value_parser = parse_ops)]
    ops: Ops,
}

/// How often each case is measured.
#[derive(Args, Clone, Debug)]
pub(crate) struct Effort {
    /// Exchanges that are timed in one repetition.
    #[arg(short = 'n', long = "iters", value_name = "COUNT", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) iterations: u32,
    /// Exchanges before each repetition, of the same size and not timed.
    #[arg(short = 'w', long = "warmup-iters", alias = "warmup_iters", value_name = "COUNT", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) warmup: u32,
    /// Repetitions. The contenders take turns, one repetition each; the table shows the median of the repetitions.
    #[arg(short = 'N', long = "repetitions", alias = "run_cycles", value_name = "COUNT", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) repetitions: u32,
    /// Limit the bytes of tensors in one repetition: large tensors are exchanged less often, but at least twice.
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = parse_size)]
    pub(crate) volume: u64,
    /// 1 verifies every element of every timed sum, outside of the measured time; 0 verifies nothing.
    #[arg(short = 'c', long = "check", value_name = "0|1", default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=1))]
    pub(crate) check: u8,
    /// Give up a repetition after this many seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) patience: u64,
    /// A few small sizes, few repetitions: verifies every sum, but the figures mean nothing. Takes seconds.
    #[arg(long)]
    pub(crate) smoke: bool,
}

/// Settings of our own processes.
#[derive(Args, Clone, Debug)]
pub(crate) struct Ours {
    /// A setting for all our processes, such as --set partition_bytes=1MiB. They do not read the environment. May be repeated.
    #[arg(long = "set", value_name = "NAME=VALUE")]
    pub(crate) settings: Vec<String>,
    /// Change one result on purpose, to test that the benchmark reports it.
    #[arg(long, hide = true)]
    pub(crate) plant_wrong_sum: bool,
}

/// An operation that a benchmark reduces with.
pub(crate) type Redop = Op;

#[derive(Clone, Debug)]
struct Types(Vec<DType>);

#[derive(Clone, Debug)]
struct Ops(Vec<Op>);

/// One combination of a sweep.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Point {
    pub(crate) bytes: u64,
    pub(crate) dtype: DType,
    pub(crate) op: Redop,
}

/// The sizes of a sweep without arguments.
const FIRST_BYTES: u64 = 64 << 10;
const LAST_BYTES: u64 = 256 << 20;
const FACTOR: u64 = 4;
const SIZES_MAX: usize = 1000;
/// The least number of exchanges in a repetition, however large the tensors are.
const EXCHANGES_MIN: u64 = 2;

impl Sweep {
    /// Every combination, sizes in the innermost loop.
    ///
    /// # Errors
    /// What is wrong with the sizes.
    pub(crate) fn points(&self) -> Result<Vec<Point>, String> {
        let sizes = self.sizes.list()?;
        let mut points = Vec::new();
        for &op in &self.ops.0 {
            for &dtype in &self.dtypes.0 {
                for &bytes in &sizes {
                    if bytes % dtype.bytes() != 0 {
                        return Err(format!(
                            "a size of {bytes} bytes is no whole number of {dtype} elements of {} bytes; choose -b, -e, -f and -i so that \
                             every size is",
                            dtype.bytes()
                        ));
                    }
                    points.push(Point { bytes, dtype, op });
                }
            }
        }
        Ok(points)
    }

    /// The same types and operations with the sizes of a smoke run.
    pub(crate) fn smoke(&self) -> Self {
        Self { sizes: self.sizes.smoke(), ..self.clone() }
    }

    /// The element types.
    pub(crate) fn dtypes(&self) -> &[DType] {
        &self.dtypes.0
    }

    /// The operations.
    pub(crate) fn ops(&self) -> &[Op] {
        &self.ops.0
    }
}

impl Sizes {
    /// The sizes of a smoke run.
    pub(crate) fn smoke(&self) -> Self {
        Self { first: Some(4 << 10), last: Some(256 << 10), factor: Some(64), step: None, listed: Vec::new() }
    }

    /// All sizes, in ascending order unless they were listed in another.
    ///
    /// # Errors
    /// What is wrong with the sizes.
    pub(crate) fn list(&self) -> Result<Vec<u64>, String> {
        if !self.listed.is_empty() {
            return Ok(self.listed.clone());
        }
        let first = self.first.unwrap_or(FIRST_BYTES);
        let last = self.last.unwrap_or(if self.first.is_some() { first } else { LAST_BYTES });
        if first > last {
            return Err(format!(
                "the sizes begin at {} (-b) and end at {} (-e); the first must not be larger than the last",
                print_bytes(first),
                print_bytes(last)
            ));
        }
        let factor = self.factor.unwrap_or(FACTOR);
        let next = |size: &u64| match self.step {
            Some(step) => size.checked_add(step),
            None => size.checked_mul(factor),
        };
        let sizes: Vec<u64> =
            std::iter::successors(Some(first), next).take_while(|size| *size <= last).take(SIZES_MAX + 1).collect();
        if sizes.len() > SIZES_MAX {
            return Err(format!("more than {SIZES_MAX} sizes; choose a larger step (-i) or a factor (-f)"));
        }
        Ok(sizes)
    }
}

impl Effort {
    /// Whether sums are verified.
    pub(crate) fn checks(&self) -> bool {
        self.check == 1
    }

    /// How many exchanges of `bytes` each are timed in one repetition.
    pub(crate) fn iterations_of(&self, bytes: u64) -> u32 {
        let fitting = (self.volume / bytes.max(1)).max(EXCHANGES_MIN);
        u32::try_from(fitting).unwrap_or(u32::MAX).min(self.iterations)
    }

    /// Describes the effort in the head of a table.
    pub(crate) fn describe(&self) -> String {
        let Self { repetitions, iterations, warmup, check, .. } = self;
        let volume = print_bytes(self.volume);
        format!(
            "{repetitions} repetitions of {iterations} exchanges (of large tensors as many as make {volume}, at least {EXCHANGES_MIN}) \
             after {warmup} to warm up; validation {check}"
        )
    }

    /// The effort of a smoke run if `--smoke` was given, else this one.
    pub(crate) fn or_smoke(&self) -> Self {
        if !self.smoke {
            return self.clone();
        }
        Self { iterations: 3, warmup: 1, repetitions: 2, patience: self.patience.min(60), ..self.clone() }
    }
}

fn parse_types(text: &str) -> Result<Types, String> {
    if text == "all" {
        return Ok(Types(DType::ALL.to_vec()));
    }
    let parse = |word: &str| match word.trim() {
        "float" => Ok(DType::F32),
        "double" => Ok(DType::F64),
        "half" => Ok(DType::F16),
        word => word.parse::<DType>().map_err(|error| error.to_string()),
    };
    text.split(',').map(parse).collect::<Result<_, _>>().map(Types)
}

fn parse_ops(text: &str) -> Result<Ops, String> {
    if text == "all" {
        return Ok(Ops(vec![Op::Sum, Op::Mean, Op::Min, Op::Max]));
    }
    text.split(',').map(|word| parse_op(word.trim())).collect::<Result<_, _>>().map(Ops)
}

/// An operation by its name.
pub(crate) fn parse_op(word: &str) -> Result<Op, String> {
    match word {
        "sum" => Ok(Op::Sum),
        "mean" | "avg" => Ok(Op::Mean),
        "min" => Ok(Op::Min),
        "max" => Ok(Op::Max),
        other => Err(format!("{other:?} is no operation; use sum, mean, min or max")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sweep(first: &str, last: Option<&str>) -> Sweep {
        let (first, last) = (parse_size(first).unwrap(), last.map(|last| parse_size(last).unwrap()));
        Sweep {
            sizes: Sizes { first: Some(first), last, factor: None, step: None, listed: Vec::new() },
            dtypes: Types(vec![DType::F32]),
            ops: Ops(vec![Op::Sum]),
        }
    }

    fn bytes(sweep: &Sweep) -> Vec<u64> {
        sweep.points().unwrap().into_iter().map(|point| point.bytes).collect()
    }

    #[test]
    fn sizes_grow_by_the_factor_or_by_the_step() {
        let mut sizes = sweep("64K", Some("1M"));
        assert_eq!(bytes(&sizes), [64 << 10, 256 << 10, 1 << 20]);
        sizes.sizes.step = Some(512 << 10);
        assert_eq!(bytes(&sizes), [64 << 10, 576 << 10]);
        assert_eq!(bytes(&sweep("8M", None)), [8 << 20]);
        sizes.sizes.listed = vec![4 << 10, 64 << 20];
        assert_eq!(bytes(&sizes), [4 << 10, 64 << 20], "those that are listed");
    }

    #[test]
    fn what_is_wrong_with_sizes_is_said() {
        assert!(sweep("4M", Some("1M")).points().unwrap_err().contains("4 MiB (-b) and end at 1 MiB (-e)"));
        assert!(sweep("6", None).points().unwrap_err().contains("no whole number of float32 elements"));
        assert!(parse_size("0").unwrap_err().contains("0 bytes"));
        assert!(parse_size("4MX").unwrap_err().contains("unit"));
        assert!(parse_size("17G").unwrap_err().contains("largest"));
        let mut many = sweep("4", Some("1M"));
        many.sizes.step = Some(4);
        assert!(many.points().unwrap_err().contains("larger step"));
    }

    #[test]
    fn a_volume_makes_large_exchanges_fewer() {
        let effort =
            Effort { iterations: 50, warmup: 1, repetitions: 5, volume: 64 << 20, check: 1, patience: 9, smoke: false };
        assert_eq!([64 << 10, 4 << 20, 256 << 20].map(|bytes| effort.iterations_of(bytes)), [50, 16, 2]);
        let effort = Effort { volume: u64::MAX, ..effort };
        assert_eq!(effort.iterations_of(256 << 20), 50);
    }

    #[test]
    fn types_and_operations_have_the_names_of_nccl_tests_too() {
        assert_eq!(parse_types("float,bf16,half").unwrap().0, [DType::F32, DType::BF16, DType::F16]);
        assert_eq!(parse_types("all").unwrap().0.len(), DType::ALL.len());
        assert_eq!(parse_ops("avg,max").unwrap().0, [Op::Mean, Op::Max]);
        assert!(parse_op("prod").unwrap_err().contains("use sum"));
    }
}
