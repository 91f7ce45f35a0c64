use proptest::prelude::*;

use super::*;
use crate::types::WorkerId;
use crate::wire::samples;

fn contribute() -> Contribute {
    match samples::headers().swap_remove(0) {
        Header::Contribute(header) => header,
        other => panic!("{other:?}"),
    }
}

fn sum() -> Sum {
    match samples::headers().swap_remove(9) {
        Header::Sum(header) => header,
        other => panic!("{other:?}"),
    }
}

/// The field that the error of these bytes names.
fn field_of(bytes: &[u8]) -> String {
    match Header::decode(bytes, "worker 0").unwrap_err() {
        Error::Protocol { field, .. } => field,
        other => panic!("{other}"),
    }
}

#[test]
fn every_header_is_read_as_it_was_written() {
    for header in samples::headers() {
        assert_eq!(Header::decode(&header.encode(), "worker 0"), Ok(header));
    }
}

/// A change of these bytes is a change of the protocol and needs another [`VERSION`].
#[test]
fn golden_bytes() {
    let golden = [
        // a contribution with a checksum
        concat!(
            "474c4e4507010101020000000300000008070605040302010900000001000601",
            "4d000000000000000010000000100000000000000000f83f01050000efbeadde"
        ),
        // a contribution without
        concat!(
            "474c4e4507010100020000000300000008070605040302010900000001000601",
            "4d000000000000000010000000100000000000000000f83f0105000000000000"
        ),
        // a contribution as bf16
        concat!(
            "474c4e4507010101020000000300000008070605040302010900000001000603",
            "4d000000000000000010000000080000000000000000f83f0105000006000000"
        ),
        // a repeat after 1000 bytes of the sum landed
        concat!(
            "474c4e4507010104020000000300000008070605040302010900000001000601",
            "4d000000000000000010000000100000000000000000f83f01050000e8030000"
        ),
        // a question for a broadcast's sum
        concat!(
            "474c4e4507010102020000000300000008070605040302010900000001000600",
            "4d000000000000000010000000000000000000000000f03f0306050000000000"
        ),
        // a contribution of workers 1 and 9, whose sum goes to worker 9
        concat!(
            "474c4e4507010111020000000300000008070605040302010900000001000601",
            "4d000000000000000010000000100000000000000000f83f01050000efbeadde",
            "02000a000202"
        ),
        // a contribution of all workers, whose sum goes to worker 5
        concat!(
            "474c4e4507010111020000000300000008070605040302010900000001000601",
            "4d000000000000000010000000100000000000000000f83f01050000efbeadde",
            "00000600"
        ),
        // a withdrawal
        concat!(
            "474c4e4507040100020000000300000008070605040302010900000001000000",
            "4d00000000000000000000004d00000000000000000000000306050000000000"
        ),
        // a withdrawal from a round of workers 1 and 9
        concat!(
            "474c4e4507040110020000000300000008070605040302010900000001000000",
            "4d00000000000000000000004d00000000000000000000000306050000000000",
            "02000a000202"
        ),
        // a sum of all workers due
        concat!(
            "474c4e4507020101020000000300000008070605040302010900000001000001",
            "4d00000000000000001000000010000000000000000000400000000000000000"
        ),
        // a sum of workers 1 and 9, while the contribution is on its way
        concat!(
            "474c4e4507020118020000000300000008070605040302010900000001000001",
            "4d000000000000000010000000100000000000000000004002000000000000000202"
        ),
        // a reject
        concat!(
            "474c4e4507030100020000000300000008070605040302010900000001000000",
            "4d00000000000000000000000900000000000000000000000000000000000000"
        ),
    ];
    let headers = samples::headers();
    assert_eq!(headers.len(), golden.len());
    for (header, golden) in headers.iter().zip(golden) {
        let hex: String = header.encode().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, golden, "{header:?}");
    }
}

#[test]
fn each_bad_field_is_named() {
    for (at, value, field) in [
        (0, 0, "magic"),
        (5, 9, "kind"),
        (7, 3, "flags"),
        (7, 5, "flags"),
        (7, 6, "flags"),
        (7, 8, "flags"),
        (30, 8, "urgency"),
        (31, 0, "encoding"),
        (31, 4, "encoding"),
        (31, 2, "body length"),
        (39, 1, "round"),
        (40, 1, "length"),
        (43, 0x10, "length"),
        (44, 1, "body length"),
        (47, 1, "body length"),
        (55, 0xff, "weight"),
        (56, 0, "dtype"),
        (57, 0, "op"),
        (58, 1, "root"),
    ] {
        let mut bytes = Header::Contribute(contribute()).encode();
        bytes[at] = value;
        assert_eq!(field_of(&bytes), field, "byte {at}");
    }
}

#[test]
fn a_byte_that_means_nothing_is_zero() {
    for header in samples::headers() {
        let bytes = header.encode();
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut changed = bytes.clone();
                changed[at] ^= 1 << bit;
                if let Ok(read) = Header::decode(&changed, "worker 0") {
                    assert_ne!(read, header, "byte {at} of {header:?}");
                }
            }
        }
    }
}

#[test]
fn an_unknown_service_is_read_so_that_the_server_can_refuse_it() {
    let mut bytes = Header::Contribute(contribute()).encode();
    bytes[6] = 200;
    assert_eq!(Header::decode(&bytes, "worker 0").unwrap().target().service, Service::Unknown(200));
    assert!(Service::refusal(200, "worker 0").to_string().contains("service"));
}

#[test]
fn a_cast_halves_floats_and_encodes_nothing_else() {
    let body = Body { bytes: 2048, codec: CodecSpec::F16 };
    let cast = |dtype, op| {
        let contribution = Contribution::First { body, checksum: None };
        Header::Contribute(Contribute { dtype, op, contribution, ..contribute() }).encode()
    };
    assert!(Header::decode(&cast(DType::F32, Op::Sum), "worker 0").is_ok());
    for dtype in [DType::F16, DType::I32] {
        assert_eq!(field_of(&cast(dtype, Op::Sum)), "encoding");
    }
}

#[test]
fn more_cannot_have_landed_than_there_is() {
    let resumed = |landed| {
        let contribution = Contribution::Resumed { body: Body::plain(4096), landed };
        Header::Contribute(Contribute { contribution, ..contribute() }).encode()
    };
    assert!(Header::decode(&resumed(4096), "worker 0").is_ok());
    assert_eq!(field_of(&resumed(4097)), "landed bytes");
}

#[test]
fn an_error_behind_a_header_has_a_limit() {
    let target = contribute().target;
    let errors = |error_bytes| {
        let participants = Participants::ALL;
        let withdraw = Withdraw { target, dtype: DType::F32, op: Op::Sum, participants, error_bytes };
        [Header::Withdraw(withdraw), Header::Reject(Reject { target, error_bytes })]
    };
    for header in errors(limits::REJECT_BYTES_MAX) {
        assert_eq!(Header::decode(&header.encode(), "worker 0"), Ok(header));
    }
    for header in errors(limits::REJECT_BYTES_MAX + 1) {
        assert_eq!(field_of(&header.encode()), "length");
    }
}

#[test]
fn all_workers_due_cost_no_byte_and_any_set_of_a_job_fits() {
    assert_eq!(sum().encode().len(), HEADER_BYTES);
    for ranks in [0..0, 3..4, 0..4096] {
        let bytes = (ranks.end as usize).div_ceil(8);
        let contributors = Contributors::Only(ranks.map(WorkerId).collect());
        let header = Sum { contributors, ..sum() };
        let encoded = header.encode();
        assert_eq!((encoded.len(), header.header_bytes()), (HEADER_BYTES + bytes, HEADER_BYTES + bytes));
        assert_eq!(Header::decode(&encoded, "server 0"), Ok(Header::Sum(header)));
    }
}

#[test]
fn a_set_of_another_length_than_announced_is_refused() {
    let contributors = Contributors::Only([3, 9].into_iter().map(WorkerId).collect());
    let bytes = Sum { contributors, ..sum() }.encode();
    assert_eq!(field_of(&bytes[..HEADER_BYTES + 1]), "contributors");
    assert_eq!(field_of(&[&bytes[..], &[1]].concat()), "contributors");
    assert_eq!(field_of(&[&bytes[..HEADER_BYTES + 1], &[0]].concat()), "contributors");
    let mut huge = bytes;
    huge[56..58].copy_from_slice(&513_u16.to_le_bytes());
    assert_eq!(field_of(&huge), "contributors");
    let all = [&sum().encode()[..], &[1]].concat();
    assert_eq!(field_of(&all), "contributors");
    let reject = Reject { target: sum().target, error_bytes: 9 }.encode();
    assert_eq!(field_of(&[&reject[..], &[1]].concat()), "header");
}

#[test]
fn a_header_is_gathered_from_pieces_and_takes_nothing_of_its_body() {
    for header in samples::headers() {
        let stream = [&header.encode()[..], &[0xbb; 700]].concat();
        for step in [1, 7, 64, 1000] {
            let (mut reader, mut read) = (HeaderReader::default(), 0);
            while reader.missing() > 0 {
                let piece = &stream[read..read + reader.missing().min(step)];
                reader.take(piece);
                read += piece.len();
            }
            assert_eq!((reader.finish("peer"), read), (Ok(header.clone()), header.encode().len()));
        }
    }
}

#[test]
fn a_reader_believes_no_length_beyond_the_limit() {
    let mut bytes = Sum { contributors: Contributors::Only(WorkerSet::default()), ..sum() }.encode();
    bytes[56..58].copy_from_slice(&u16::MAX.to_le_bytes());
    let mut reader = HeaderReader::default();
    reader.take(&bytes);
    assert_eq!(reader.missing(), 0);
    assert!(reader.finish("server 0").is_err());
}

#[test]
fn another_version_is_named_on_both_sides() {
    for version in [VERSION - 1, VERSION + 1] {
        // The version decides, whatever the other bytes are.
        let mut bytes = [0xee; HEADER_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4] = version;
        let expected = ["protocol version", &VERSION.to_string(), &version.to_string()].map(str::to_owned);
        for length in [5, 40, 63, 64] {
            let mut reader = HeaderReader::default();
            reader.take(&bytes[..length]);
            match reader.finish("worker 0").unwrap_err() {
                Error::Incompatible { field, ours, theirs, .. } => {
                    assert_eq!([field, ours, theirs], expected, "a header of {length} bytes");
                }
                other => panic!("{other}"),
            }
        }
    }
}

#[test]
fn a_header_that_ends_early_says_where() {
    let whole = Header::Contribute(contribute()).encode();
    for length in [0, 4, 5, 63] {
        let error = Header::decode(&whole[..length], "worker 0").unwrap_err().to_string();
        assert!(error.contains(&format!("header ends after {length} bytes")), "{error}");
    }
}

#[test]
fn a_root_that_no_job_has_stays_one_that_no_job_has() {
    let op = Op::Broadcast { root: WorkerId(u32::MAX) };
    let header = Header::Contribute(Contribute { op, ..contribute() });
    match Header::decode(&header.encode(), "worker 0") {
        Ok(Header::Contribute(Contribute { op: Op::Broadcast { root }, .. })) => {
            assert!(root.0 as usize >= limits::MEMBERS_MAX, "{root}");
        }
        other => panic!("{other:?}"),
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_decode_or_fail_but_never_panic(kind in 1_u8..5, bytes in proptest::collection::vec(any::<u8>(), 56..80)) {
        let mut header = Header::Contribute(contribute()).encode()[..6].to_vec();
        header[5] = kind;
        header.extend(&bytes);
        if let Ok(decoded) = Header::decode(&header, "worker 0") {
            prop_assert_eq!(decoded.encode(), header);
        }
    }
}
