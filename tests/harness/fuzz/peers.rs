//! What processes send each other beside headers and frames: certificates, enrolment, answers, messages in shared memory, bodies.

use std::sync::LazyLock;

use gradlane_core::codec;
use gradlane_core::identity::Authority;
use gradlane_core::identity::fuzzing as identity;
use gradlane_core::reduce::Kernels;
use gradlane_core::runtime::exporter::fuzzing as exporter;
use gradlane_core::transport::fuzzing as transport;
use gradlane_core::types::{CodecSpec, DType, Encoding, Op};
use gradlane_core::wire::{Header, Reject, reject, samples};

use super::input::Input;
use super::{Kind, Memory, Target, corpus};

pub(super) const CERTIFICATE: Target = Target {
    name: "certificate",
    kind: Kind::Decoder,
    check: identity::certificate,
    seeds: || corpus::inputs(include_str!("seeds/certificate.hex")),
    memory: Memory { bytes: 64 << 10, times: 256 },
};

pub(super) const ENROLMENT_REQUEST: Target = Target {
    name: "enrolment_request",
    kind: Kind::Decoder,
    check: |bytes| identity::enrolment_request(&AUTHORITY, bytes),
    seeds: || corpus::inputs(include_str!("seeds/enrolment_request.hex")),
    memory: Memory { bytes: 64 << 10, times: 256 },
};

pub(super) const ENROLMENT_ANSWER: Target = Target {
    name: "enrolment_answer",
    kind: Kind::Decoder,
    check: identity::enrolment_answer,
    seeds: || corpus::inputs(include_str!("seeds/enrolment_answer.hex")),
    memory: Memory { bytes: 64 << 10, times: 256 },
};

pub(super) const ANSWER: Target = Target {
    name: "answer",
    kind: Kind::Decoder,
    check: |bytes| {
        let mut input = Input::new(bytes);
        let (piece, room) = (input.byte(), input.byte());
        transport::answer(piece.into(), usize::from(room) * 16, input.rest());
    },
    seeds: answer_seeds,
    memory: Memory { bytes: 32 << 10, times: 40 },
};

pub(super) const SHM_MESSAGE: Target = Target {
    name: "shm_message",
    kind: Kind::Decoder,
    check: transport::shm_message,
    seeds: || (1..=8).map(|kind: u64| [kind, 7, 3, 5].iter().flat_map(|word| word.to_le_bytes()).collect()).collect(),
    memory: Memory { bytes: 4 << 10, times: 1 },
};

pub(super) const CODEC: Target = Target {
    name: "codec",
    kind: Kind::Decoder,
    check: decode,
    seeds: || {
        let body = [0, 0x7c, 1, 0x7c, 0xff, 0xff, 0, 0x80, 1, 0, 0xc0, 0x7f, 0x80, 0xff, 0x34, 0x12];
        let chosen = (0..8).flat_map(|form| (0..5).map(move |op| [form, op, 3]));
        let whole = chosen.map(|chosen| [&chosen[..], &body].concat());
        let sparse =
            [&[SPARSE, 200, 2, 3, 60, 0, 0, 0x80, 0x3f, 0, 0, 0, 0xc0][..], &[SPARSE, 250, 1, 0x7c, 1, 0, 0, 0]];
        let levels = [
            &[LEVELS, 0, 200, 0, 0, 0, 0xa0, 3, 0, 0, 0, 0, 0, 0x80, 0x3f][..],
            &[LEVELS, 1, 40, 0, 0, 0x80, 0xac, 9, 0, 0, 0, 0, 0, 0, 0x40],
        ];
        // Streams of sevens, with the codes of the standard and as they are.
        let planes = [
            &[PLANES, 0, 100, 6, 0, 0x63, 0x67, 0x27, 0x15, 0x00, 0x00][..],
            &[PLANES, 1, 6, 3, 0, 3, 0, 3, 0, 3, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12],
        ];
        whole.chain(sparse.into_iter().chain(levels).chain(planes).map(<[u8]>::to_vec)).collect()
    },
    memory: Memory { bytes: 32 << 10, times: 32 },
};

pub(super) const HTTP_REQUEST: Target = Target {
    name: "http_request",
    kind: Kind::Decoder,
    check: |bytes| {
        if let Some((&piece, request)) = bytes.split_first() {
            exporter::request(request, usize::from(piece));
        }
    },
    seeds: || {
        let requests = [
            "GET /metrics HTTP/1.1\r\nHost: localhost:9400\r\nAccept: text/plain;version=0.0.4\r\n\r\n",
            "HEAD http://n7/healthz?a=b HTTP/1.0\r\nhost: 127.0.0.1\r\n\r\nGET /",
            "GET /readyz HTTP/1.1\nHost: [::ffff:127.0.0.1]:1\n\n",
        ];
        let pieces = [&[1][..], &[7], &[255]];
        requests.iter().zip(pieces).map(|(request, piece)| [piece, request.as_bytes()].concat()).collect()
    },
    memory: Memory { bytes: 64 << 10, times: 32 },
};

/// The first byte of inputs for [`decode_sparse`].
const SPARSE: u8 = 0xff;
/// The first byte of inputs for [`decode_levels`].
const LEVELS: u8 = 0xfe;
/// The first byte of inputs for [`decode_planes`].
const PLANES: u8 = 0xfd;

static AUTHORITY: LazyLock<Authority> =
    LazyLock::new(|| Authority::create("fuzz").expect("the library has randomness"));

/// A body of any bytes of a codec that sends some elements: what is decoded has the entries that encode to it again.
fn decode_sparse(mut input: Input<'_>) {
    let topk = codec::of(CodecSpec::of(Encoding::TopK), DType::F32).expect("not plain");
    let (kernels, len) = (Kernels::portable(), usize::from(input.byte() / 2));
    let body = input.rest();
    let (mut elements, mut sum) = (vec![0xee; 4 * len], vec![0xee; 4 * len]);
    let is_fine = topk.decode(kernels, body, &mut elements).is_ok();
    assert_eq!(topk.check(body, len as u64).is_ok(), is_fine);
    assert_eq!(topk.start(kernels, Op::Sum, 1.0, body, &mut sum).is_ok(), is_fine);
    if !is_fine {
        return;
    }
    assert_eq!(sum, elements);
    match codec::testing::finished(&*topk, kernels, Op::Sum, 1.0, &sum) {
        Ok(again) => assert_eq!(again, body),
        Err(_) => assert!(body.len() >= sum.len(), "{} bytes for {len} elements", body.len()),
    }
}

/// A body of any bytes of a codec that sends levels: what is decoded is what is added, and encodes to a body again.
fn decode_levels(mut input: Input<'_>) {
    let spec: CodecSpec = input.pick(&["dithering", "dithering:natural=1"]).parse().expect("a codec");
    let dithering = codec::of(spec, DType::F32).expect("not plain");
    let (kernels, len) = (Kernels::portable(), usize::from(input.byte() / 2));
    let body = input.rest();
    let (mut elements, mut sum) = (vec![0xee; 4 * len], vec![0xee; 4 * len]);
    let is_fine = dithering.decode(kernels, body, &mut elements).is_ok();
    assert_eq!(dithering.check(body, len as u64).is_ok(), is_fine);
    assert_eq!(dithering.start(kernels, Op::Sum, 1.0, body, &mut sum).is_ok(), is_fine);
    if !is_fine {
        return;
    }
    let numbers =
        |bytes: &[u8]| -> Vec<f32> { bytes.as_chunks().0.iter().map(|float| f32::from_le_bytes(*float)).collect() };
    // Not their bytes: added to 0, -0 becomes 0.
    assert_eq!(numbers(&sum), numbers(&elements));
    assert!(numbers(&elements).iter().all(|element| element.is_finite()));
    if let Ok(again) = codec::testing::encoded(&*dithering, kernels, 1.0, &elements, len as u64) {
        assert_eq!(dithering.check(&again, len as u64), Ok(()));
    }
}

/// A body of any bytes of a codec without loss: what is decoded is what is added.
fn decode_planes(mut input: Input<'_>) {
    let dtype = input.pick(&[DType::U8, DType::F32, DType::F64]);
    let lossless = codec::of(CodecSpec::LOSSLESS, dtype).expect("not plain");
    let (kernels, len) = (Kernels::portable(), u64::from(input.byte() / 2));
    let body = input.rest();
    let room = usize::try_from(len * dtype.bytes()).expect("small");
    let (mut elements, mut sum, mut plain) = (vec![0xee; room], vec![0xee; room], vec![0; room]);
    let is_fine = lossless.decode(kernels, body, &mut elements).is_ok();
    assert_eq!(lossless.check(body, len).is_ok(), is_fine);
    assert_eq!(lossless.start(kernels, Op::Sum, 1.0, body, &mut sum).is_ok(), is_fine);
    if is_fine {
        kernels.start(Op::Sum, dtype, 1.0, &elements, &mut plain);
        assert_eq!(sum, plain);
    }
}

/// A body of any bytes: its decoded elements are those that encode to it again, but for NaNs, whose payload may change.
fn decode(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    match bytes.split_first() {
        Some((&SPARSE, rest)) => return decode_sparse(Input::new(rest)),
        Some((&LEVELS, rest)) => return decode_levels(Input::new(rest)),
        Some((&PLANES, rest)) => return decode_planes(Input::new(rest)),
        _ => {}
    }
    let of = |encoding| CodecSpec::with_parameters(encoding, &[32]).expect("the least of a block, or few elements");
    let blocks = [Encoding::Int8, Encoding::Int4, Encoding::Fp8E4M3, Encoding::Fp8E5M2].map(of);
    let casts = [CodecSpec::F16, CodecSpec::BF16];
    let others = [of(Encoding::RandomK), CodecSpec::of(Encoding::OneBit)];
    let spec = input.pick(&[&casts[..], &blocks, &others].concat());
    let dtype = input.pick(&[DType::F32, DType::F64]);
    let op = input.pick(&[Op::Sum, Op::Mean, Op::Min, Op::Max, Op::WeightedMean]);
    let weight = f64::from(input.byte());
    let body = input.rest();
    let spec = spec.for_dtype(dtype);
    let Some(codec) = codec::of(spec, dtype) else { return };
    let bytes = body.len() as u64;
    let len = match spec.encoding() {
        Encoding::Int4 => bytes * 32 / 18,
        Encoding::RandomK => 100,
        Encoding::OneBit => bytes.saturating_sub(4) * 8,
        _ if spec.is_elementwise() => bytes / 2,
        _ => bytes * 32 / 36,
    };
    if codec.body_bytes(len).check(body.len() as u64).is_err() {
        return;
    }
    let kernels = Kernels::portable();
    let mut elements = vec![0; usize::try_from(len * dtype.bytes()).expect("small")];
    if codec.decode(kernels, body, &mut elements).is_err() {
        return;
    }
    let again = codec::testing::encoded(&*codec, kernels, 1.0, &elements, len).expect("it refuses nothing");
    // A block that was not made by rounding may get another scale, which changes all of it.
    let is_same = |was: &[u8], is: &[u8]| !spec.is_elementwise() || was == is;
    let is_nan = |pair: &[u8]| {
        let bits = u16::from_le_bytes([pair[0], pair[1]]) & 0x7fff;
        bits > if spec == CodecSpec::F16 { 0x7c00 } else { 0x7f80 }
    };
    for (was, is) in body.chunks(2).zip(again.chunks(2)) {
        assert!(is_same(was, is) || is_nan(was) && is_nan(is), "{was:?} became {is:?}");
    }
    let mut sum = vec![0; usize::try_from(len * 4).expect("small")];
    codec.start(kernels, op, weight, body, &mut sum).expect("it was decoded");
    codec.add(kernels, op, weight, body, &mut sum).expect("it was decoded");
    codec::testing::finished(&*codec, kernels, op, 2.0, &sum).expect("it refuses nothing");
}

fn answer_seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for header in samples::headers() {
        match header {
            Header::Sum(mut sum) => {
                (sum.part_bytes, sum.body.bytes) = (64, 64);
                seeds.push(answer(&sum.encode(), sum.checksum));
            }
            Header::Value(mut value) => {
                value.part_bytes = 64;
                seeds.push(answer(&Header::Value(value).encode(), value.checksum));
            }
            Header::Reject(header) => {
                for error in samples::errors() {
                    let body = reject::to_body(&error);
                    let header = Reject { error_bytes: body.len() as u64, ..header };
                    seeds.push([&[9, 4], &header.encode()[..], &body].concat());
                }
            }
            Header::RowsAnswer(mut rows) => {
                rows.body_bytes = 64;
                seeds.push(answer(&Header::RowsAnswer(rows).encode(), rows.checksum));
            }
            Header::Contribute(_)
            | Header::Withdraw(_)
            | Header::Restore(_)
            | Header::AnswerResidual(_)
            | Header::Use(_)
            | Header::Rows(_)
            | Header::Unknown(_) => {}
        }
    }
    seeds
}

/// An answer with this header and a body of 64 bytes.
fn answer(header: &[u8], has_checksum: bool) -> Vec<u8> {
    let body = [7; 64];
    let checksum = gradlane_core::wire::checksum(0, &body).to_le_bytes();
    let trailer: &[u8] = if has_checksum { &checksum } else { &[] };
    [&[9, 4], header, &body, trailer].concat()
}
