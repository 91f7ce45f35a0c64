//! How fast are gradients encoded, decoded and added?
//!
//! The three operations of each codec and `memcpy` take turns within one run, on elements of the same memory.

use std::hint::black_box;

use clap::Args;
use gradlane_core::codec::{self, AnyCodec, Seed, Tools, Workspace};
use gradlane_core::reduce::Kernels;
use gradlane_core::types::{CodecSpec, DType, Op, PartId, Round, TensorKey};

use crate::measure::{Samples, time};
use crate::report::{Conclusion, Record, Report, Row, smoke_note};
use crate::size::parse_size;
use crate::table::Table;

/// Bytes of elements in one sample: so many that it lasts much longer than the clock's resolution.
const SAMPLE_BYTES: u64 = 16 << 20;
/// Bytes of `--smoke`: more than a block of every codec, and a tail.
const SMOKE_BYTES: u64 = 4 * 5000 + 4;

/// How fast are gradients encoded, decoded and added?
///
/// GB/s (10⁹ bytes) are bytes of the elements, encoded or not, in a second, of one thread. The bound is the speed of a memcpy of the same
/// elements, in the same run; "of copy" is the share of it that the operation reaches. `add` decodes a body and adds it to a sum, as a
/// server does. ± is half the distance between the slowest and the fastest sample. "ratio" is bytes of a body ÷ bytes of its elements.
///
/// Elements are normally distributed. What the bodies bring is compared with them, and "error" is the root of the mean square of the
/// difference ÷ that of the elements.
///
/// In the JSON file and with --expect, algbw is GB/s as above. The contenders are `encode`, `decode` and `add`, with rows named after the
/// codecs such as 'encode int8'; their peer is `copy`: 'encode int8/ratio:copy>=0.5'.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Codecs with their parameters, such as int8:block=1024. Give the option for each.
    #[arg(short, long, value_name = "CODEC", default_values = CODECS)]
    codec: Vec<CodecSpec>,
    /// Bytes of the elements of a part; several are separated by commas.
    #[arg(short = 'b', long, value_name = "SIZES", value_delimiter = ',', default_value = "4M", value_parser = parse_size)]
    bytes: Vec<u64>,
    /// Element types: f32, f64 or both, separated by commas. A codec that does not encode a type is left out.
    #[arg(short = 'd', long, value_name = "TYPES", value_delimiter = ',', default_value = "f32")]
    dtype: Vec<DType>,
    /// Samples of each contender.
    #[arg(long, default_value_t = 11, value_parser = clap::value_parser!(u32).range(5..))]
    iterations: u32,
    #[command(flatten)]
    record: Record,
    /// Verify every body, but with small parts and few samples: the figures mean nothing.
    #[arg(long)]
    smoke: bool,
}

/// What is measured if nobody names a codec.
const CODECS: [&str; 17] = [
    "fp16",
    "bf16",
    "bf16:stochastic=1",
    "int8",
    "int8:stochastic=1",
    "fp8_e4m3",
    "fp8_e4m3:stochastic=1",
    "fp8_e5m2",
    "int4",
    "int4:stochastic=1",
    "onebit",
    "dithering",
    "dithering:natural=1",
    "lossless",
    "topk",
    "randomk",
    "randomk:k=100000",
];

/// Measures and prints.
pub(crate) fn answer(arguments: &Arguments) -> Conclusion {
    Conclusion::of(measure(arguments), &arguments.record)
}

/// The table, and the same as a report for files; or the wrong result or argument.
fn measure(arguments: &Arguments) -> Result<(String, Report), Conclusion> {
    let (sizes, iterations, sample_bytes) = match arguments.smoke {
        true => (&[SMOKE_BYTES][..], 5, SMOKE_BYTES),
        false => (&arguments.bytes[..], arguments.iterations, SAMPLE_BYTES),
    };
    let kernels = Kernels::detect();
    let setting = vec![
        format!("gradlane-bench codec, {}, {kernels}", env!("CARGO_PKG_VERSION")),
        format!("one thread, {iterations} samples each, taken in turns; all bodies verified"),
        "GB/s of the elements; the bound is a copy of them".to_owned(),
    ];
    let mut report = Report::begin("codec", setting);
    report.setting.extend(smoke_note(arguments.smoke));
    let mut table = Table::new([
        "codec",
        "dtype",
        "bytes",
        "ratio",
        "encode GB/s",
        "decode GB/s",
        "add GB/s",
        "copy GB/s",
        "encode of copy",
        "decode of copy",
        "add of copy",
        "error",
    ]);
    for (&bytes, &dtype) in sizes.iter().flat_map(|bytes| arguments.dtype.iter().map(move |dtype| (bytes, dtype))) {
        if !matches!(dtype, DType::F32 | DType::F64) || bytes < dtype.bytes() {
            let why =
                format!("{bytes} bytes of {dtype}: codecs are for f32 and f64, and need an element; see -b and -d");
            return Err(Conclusion::Failed(why));
        }
        for spec in arguments.codec.iter().filter(|spec| spec.encodes(dtype) && !spec.is_plain()) {
            let found = contest(kernels, *spec, dtype, bytes, iterations, sample_bytes).map_err(Conclusion::Wrong)?;
            let of_copy = |speeds: &Samples| format!("{:.2}", speeds.over(&found.copy));
            table.push([
                spec.to_string(),
                dtype.to_string(),
                bytes.to_string(),
                format!("{:.4}", found.ratio),
                found.encode.to_string(),
                found.decode.to_string(),
                found.add.to_string(),
                found.copy.to_string(),
                of_copy(&found.encode),
                of_copy(&found.decode),
                of_copy(&found.add),
                format!("{:.2e}", found.error),
            ]);
            for (name, speeds) in found.speeds() {
                let row = Row::new(name, name != "copy", &spec.to_string());
                report.rows.push(row.of_speeds(bytes, dtype, bytes, speeds));
            }
        }
    }
    Ok((report.above(&table, &arguments.record), report))
}

/// What was found of a codec.
#[derive(Default)]
struct Found {
    encode: Samples,
    decode: Samples,
    add: Samples,
    copy: Samples,
    /// Bytes of a body ÷ bytes of its elements.
    ratio: f64,
    error: f64,
}

impl Found {
    fn speeds(&self) -> [(&'static str, &Samples); 4] {
        [("encode", &self.encode), ("decode", &self.decode), ("add", &self.add), ("copy", &self.copy)]
    }
}

fn contest(
    kernels: Kernels,
    spec: CodecSpec,
    dtype: DType,
    bytes: u64,
    iterations: u32,
    sample_bytes: u64,
) -> Result<Found, String> {
    let codec = codec::of(spec, dtype).expect("it encodes the type, and is not plain");
    let len = bytes / dtype.bytes();
    let elements = normal(len as usize, dtype);
    let (mut body, mut decoded) = (vec![0; codec.body_bytes(len).max() as usize], vec![0; elements.len()]);
    let (mut sum, mut copied) = (vec![0; (codec.sum_type().bytes() * len) as usize], vec![0; elements.len()]);
    let mut workspace = Workspace::default();
    let mut used = 0;
    let mut found = Found::default();
    let passes = sample_bytes.div_ceil(bytes);
    let sample = |samples: &mut Samples, pass: &mut dyn FnMut()| {
        pass();
        samples.push_speed(elements.len() as u64 * passes, time(|| (0..passes).for_each(|_| pass())));
    };
    for _ in 0..iterations {
        sample(&mut found.encode, &mut || {
            used = encode(&codec, kernels, &mut workspace, black_box(&elements), black_box(&mut body));
        });
        let body = black_box(&body[..used]);
        sample(&mut found.decode, &mut || codec.decode(kernels, body, black_box(&mut decoded)).expect("its own body"));
        codec.start(kernels, Op::Sum, 1.0, body, &mut sum).expect("its own body");
        sample(&mut found.add, &mut || {
            codec.add(kernels, Op::Sum, 1.0, body, black_box(&mut sum)).expect("its own body")
        });
        sample(&mut found.copy, &mut || black_box(&mut copied).copy_from_slice(black_box(&elements)));
    }
    found.ratio = used as f64 / elements.len() as f64;
    found.error = verify(&codec, kernels, dtype, &elements, &body[..used], &decoded)?;
    Ok(found)
}

fn encode(codec: &AnyCodec, kernels: Kernels, workspace: &mut Workspace, elements: &[u8], body: &mut [u8]) -> usize {
    let seed = Seed::of(PartId { key: TensorKey(1), index: 0 }, Round(0));
    codec.encode(Tools { kernels, seed, workspace }, 1.0, elements, body).expect("finite elements, which get shorter")
}

/// Checks that all kernels make this body, and that what is added twice is twice what it brings. Returns the relative error of what it
/// brings.
fn verify(
    codec: &AnyCodec,
    kernels: Kernels,
    dtype: DType,
    elements: &[u8],
    body: &[u8],
    decoded: &[u8],
) -> Result<f64, String> {
    let (spec, portable) = (codec.spec(), Kernels::portable());
    let (elements_read, decoded) = (numbers(elements, dtype), numbers(decoded, dtype));
    let mut again = vec![0; codec.body_bytes(elements_read.len() as u64).max() as usize];
    let used = encode(codec, portable, &mut Workspace::default(), elements, &mut again);
    if again[..used] != *body {
        return Err(format!("{spec}: {kernels} and {portable} make different bodies"));
    }
    let mut sum = vec![0; codec.sum_type().bytes() as usize * elements_read.len()];
    codec.start(kernels, Op::Sum, 1.0, body, &mut sum).expect("its own body");
    codec.add(kernels, Op::Sum, 1.0, body, &mut sum).expect("its own body");
    let twice = numbers(&sum, codec.sum_type());
    if let Some(at) = decoded.iter().zip(&twice).position(|(once, twice)| 2.0 * once != *twice) {
        return Err(format!("{spec}: element {at} is {}, and {} when it was added twice", decoded[at], twice[at]));
    }
    let square = |terms: &mut dyn Iterator<Item = f64>| terms.map(|term| term * term).sum::<f64>();
    let lost = square(&mut elements_read.iter().zip(&decoded).map(|(element, brought)| element - brought));
    Ok((lost / square(&mut elements_read.iter().copied())).sqrt())
}

/// These elements as numbers.
fn numbers(elements: &[u8], dtype: DType) -> Vec<f64> {
    match dtype {
        DType::F64 => elements.as_chunks().0.iter().map(|double| f64::from_le_bytes(*double)).collect(),
        _ => elements.as_chunks().0.iter().map(|float| f64::from(f32::from_le_bytes(*float))).collect(),
    }
}

/// Elements that are normally distributed, near enough: each is a sum of twelve that are evenly distributed.
fn normal(len: usize, dtype: DType) -> Vec<u8> {
    let seed = Seed::of(PartId { key: TensorKey(2), index: 0 }, Round(0));
    let mut bytes = Vec::with_capacity(len * dtype.bytes() as usize);
    for index in 0..len as u64 {
        let even = |term: u64| (seed.draw(12 * index + term) >> 11) as f64 / (1_u64 << 53) as f64;
        let element = (0..12).map(even).sum::<f64>() - 6.0;
        match dtype {
            DType::F64 => bytes.extend(element.to_le_bytes()),
            _ => bytes.extend((element as f32).to_le_bytes()),
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Place;

    #[test]
    fn a_smoke_run_verifies_every_codec() {
        let arguments = Arguments {
            codec: CODECS.map(|codec| codec.parse().expect("a codec")).to_vec(),
            bytes: vec![],
            dtype: vec![DType::F32, DType::F64],
            iterations: 5,
            record: Record::default(),
            smoke: true,
        };
        let (table, report) = measure(&arguments).expect("all bodies are right");
        assert!(report.rows.iter().filter(|row| row.ours).all(|row| report.ratio(row, "copy", Place::In).is_some()));
        assert!(CODECS.iter().all(|codec| table.contains(codec)), "{table}");
    }

    #[test]
    fn what_has_no_codec_is_refused() {
        let arguments = |bytes, dtype| Arguments {
            codec: vec![CodecSpec::BF16],
            bytes: vec![bytes],
            dtype: vec![dtype],
            iterations: 5,
            record: Record::default(),
            smoke: false,
        };
        for (bytes, dtype) in [(3, DType::F32), (64, DType::I32)] {
            assert!(matches!(measure(&arguments(bytes, dtype)), Err(Conclusion::Failed(_))), "{bytes} of {dtype}");
        }
    }
}
