//! How fast do servers apply rules?
//!
//! A step of each rule and `memcpy` take turns within one run.

use std::hint::black_box;

use clap::Args;
use gradlane_core::codec::Seed;
use gradlane_core::reduce::{Kernels, OptimizerState};
use gradlane_core::types::{DType, PartId, Round, Rule, TensorKey};

use crate::measure::{Samples, time};
use crate::report::{Conclusion, Record, Report, Row, smoke_note};
use crate::size::parse_size;
use crate::table::Table;

/// Bytes of `--smoke`: more than a run of the loops, and a tail.
const SMOKE_BYTES: u64 = 8 * 1001;
/// Blocks of a part on a server are no longer than this.
const BLOCK_BYTES: usize = 256 << 10;

/// How fast do servers apply rules?
///
/// A step reads a value and a gradient, writes the value that they make, and reads and writes what the rule keeps. GB/s (10⁹ bytes) are all
/// these bytes in a second, of one thread. The bound is the speed of a memcpy, whose bytes count twice (one read, one write), in the same run
/// and over as much memory; "of copy" is the share of it that the step reaches. ± is half the distance between the slowest and the fastest
/// sample. A part of 64 MiB or more lies in no cache.
///
/// Every value is verified: all instruction sets make the same bits.
///
/// In the JSON file and with --expect, algbw is GB/s as above. The contender is `step`, with rows named after the rules, such as 'step adamw';
/// its peer is `copy`: 'step adamw/ratio:copy>=0.5'.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Rules with their settings, such as sgd:momentum=0.9. Give the option for each.
    #[arg(short, long, value_name = "RULE", default_values = RULES)]
    rule: Vec<Rule>,
    /// Bytes of the value of a part; several are separated by commas.
    #[arg(short = 'b', long, value_name = "SIZES", value_delimiter = ',', default_value = "64M", value_parser = parse_size)]
    bytes: Vec<u64>,
    /// Element types of floats, separated by commas.
    #[arg(short = 'd', long, value_name = "TYPES", value_delimiter = ',', default_value = "f32")]
    dtype: Vec<DType>,
    /// Samples of each contender.
    #[arg(long, default_value_t = 11, value_parser = clap::value_parser!(u32).range(5..))]
    iterations: u32,
    #[command(flatten)]
    record: Record,
    /// Verify every value, but with small parts and few samples: the figures mean nothing.
    #[arg(long)]
    smoke: bool,
}

/// What is measured if nobody names a rule.
const RULES: [&str; 8] = ["sgd", "sgd:momentum=0.9", "adam", "adamw", "adagrad", "rmsprop", "adamax", "lion"];

/// Measures and prints.
pub(crate) fn answer(arguments: &Arguments) -> Conclusion {
    Conclusion::of(measure(arguments), &arguments.record)
}

/// The table, and the same as a report for files; or the wrong result or argument.
fn measure(arguments: &Arguments) -> Result<(String, Report), Conclusion> {
    let (sizes, iterations) = match arguments.smoke {
        true => (&[SMOKE_BYTES][..], 5),
        false => (&arguments.bytes[..], arguments.iterations),
    };
    let kernels = Kernels::detect();
    let setting = vec![
        format!("gradlane-bench rule, {}, {kernels}", env!("CARGO_PKG_VERSION")),
        format!("one thread, {iterations} samples each, taken in turns; all values verified"),
        "GB/s of all bytes that are read or written; the bound is a copy".to_owned(),
    ];
    let mut report = Report::begin("rule", setting);
    report.setting.extend(smoke_note(arguments.smoke));
    let mut table = Table::new(["rule", "dtype", "bytes", "kept bytes", "step GB/s", "copy GB/s", "step of copy"]);
    for (&bytes, &dtype) in sizes.iter().flat_map(|bytes| arguments.dtype.iter().map(move |dtype| (bytes, dtype))) {
        for rule in &arguments.rule {
            if !rule.changes(dtype) || bytes < dtype.bytes() || !bytes.is_multiple_of(dtype.bytes()) {
                let why = format!("{bytes} bytes of {dtype}: rules are for whole floats; see -b and -d");
                return Err(Conclusion::Failed(why));
            }
            if rule.optimizer().is_of_matrices() {
                return Err(Conclusion::Failed(format!(
                    "{rule}: it changes matrices, and this measures rules of elements"
                )));
            }
            let (step, copy) = contest(kernels, *rule, dtype, bytes, iterations).map_err(Conclusion::Wrong)?;
            table.push([
                rule.to_string(),
                dtype.to_string(),
                bytes.to_string(),
                OptimizerState::bytes_of(rule, dtype, bytes).to_string(),
                step.to_string(),
                copy.to_string(),
                format!("{:.2}", step.over(&copy)),
            ]);
            for (name, speeds) in [("step", &step), ("copy", &copy)] {
                let row = Row::new(name, name != "copy", &rule.to_string());
                report.rows.push(row.of_speeds(bytes, dtype, bytes, speeds));
            }
        }
    }
    Ok((report.above(&table, &arguments.record), report))
}

/// The speeds of a step and of a copy.
fn contest(
    kernels: Kernels,
    rule: Rule,
    dtype: DType,
    bytes: u64,
    iterations: u32,
) -> Result<(Samples, Samples), String> {
    verify(rule, dtype)?;
    let (mut value, gradient) = (numbers(1, dtype, bytes), numbers(2, dtype, bytes));
    let mut next = gradient.clone();
    let mut state = OptimizerState::new(rule, dtype, bytes);
    let touched = 3 * bytes + 2 * OptimizerState::bytes_of(&rule, dtype, bytes);
    let (mut from, mut to) = (vec![1_u8; touched as usize / 2], vec![2_u8; touched as usize / 2]);
    let (mut steps, mut copies) = (Samples::default(), Samples::default());
    for sample in 0..=iterations {
        let of_step = time(|| step(&mut state, kernels, black_box(&value), black_box(&mut next)));
        std::mem::swap(&mut value, &mut next);
        next.copy_from_slice(&gradient);
        let of_copy = time(|| black_box(&mut to).copy_from_slice(black_box(&from)));
        std::mem::swap(&mut from, &mut to);
        // The first one makes the pages of the memory.
        if sample > 0 {
            steps.push_speed(touched, of_step);
            copies.push_speed(touched, of_copy);
        }
    }
    Ok((steps, copies))
}

fn step(state: &mut OptimizerState, kernels: Kernels, value: &[u8], gradient: &mut [u8]) {
    state.step(kernels, None, value.chunks(BLOCK_BYTES).zip(gradient.chunks_mut(BLOCK_BYTES)));
}

/// Checks that all instruction sets make the same values, in three steps.
fn verify(rule: Rule, dtype: DType) -> Result<(), String> {
    let after = |kernels: Kernels| {
        let mut value = numbers(1, dtype, SMOKE_BYTES);
        let mut state = OptimizerState::new(rule, dtype, SMOKE_BYTES);
        for turn in 0..3 {
            let mut gradient = numbers(2 + turn, dtype, SMOKE_BYTES);
            step(&mut state, kernels, &value, &mut gradient);
            value = gradient;
        }
        value
    };
    let (ours, portable) = (Kernels::detect(), Kernels::portable());
    if after(ours) == after(portable) && after(ours) != numbers(1, dtype, SMOKE_BYTES) {
        return Ok(());
    }
    Err(format!("{rule} of {dtype}: {ours} and {portable} make different values, or none"))
}

/// Numbers between -1 and 1.
fn numbers(seed: u64, dtype: DType, bytes: u64) -> Vec<u8> {
    let seed = Seed::of(PartId { key: TensorKey(seed), index: 0 }, Round(0));
    let number = |index| (seed.draw(index) >> 11) as f64 / (1_u64 << 52) as f64 - 1.0;
    let all = (0..bytes / dtype.bytes()).map(number);
    match dtype {
        DType::F64 => all.flat_map(f64::to_le_bytes).collect(),
        DType::F32 => all.flat_map(|number| (number as f32).to_le_bytes()).collect(),
        DType::F16 => all.flat_map(|number| half::f16::from_f64(number).to_le_bytes()).collect(),
        _ => all.flat_map(|number| half::bf16::from_f64(number).to_le_bytes()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Place;

    fn arguments(bytes: u64, dtype: Vec<DType>, smoke: bool) -> Arguments {
        let rule = RULES.map(|rule| rule.parse().expect("a rule")).to_vec();
        Arguments { rule, bytes: vec![bytes], dtype, iterations: 5, record: Record::default(), smoke }
    }

    #[test]
    fn a_smoke_run_verifies_every_rule() {
        let types = vec![DType::F32, DType::F64, DType::F16, DType::BF16];
        let (table, report) = measure(&arguments(0, types, true)).expect("all values are right");
        assert!(report.rows.iter().filter(|row| row.ours).all(|row| report.ratio(row, "copy", Place::In).is_some()));
        assert!(RULES.iter().all(|rule| table.contains(rule)), "{table}");
    }

    #[test]
    fn what_has_no_rule_is_refused() {
        for (bytes, dtype) in [(3, DType::F32), (6, DType::F32), (64, DType::I32)] {
            let refused = measure(&arguments(bytes, vec![dtype], false));
            assert!(matches!(refused, Err(Conclusion::Failed(_))), "{bytes} of {dtype}");
        }
    }
}
