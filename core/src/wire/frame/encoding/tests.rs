use proptest::prelude::*;

use super::*;
use crate::error::Error;
use crate::types::{CodecSpec, DType, Encoding, Piece, Role, Span, TensorKind};
use crate::wire::limits::{
    FRAME_BYTES_MAX, PART_BYTES_MAX, STORE_BYTES_MAX, STORE_ENTRY_BYTES, STORE_KEY_BYTES_MAX, STORE_VALUE_BYTES_MAX,
};
use crate::wire::samples;

#[test]
fn golden_bytes() {
    let frames = samples::frames();
    assert_eq!(frames.len(), GOLDEN.len());
    let encoded: Vec<String> = frames.iter().map(|frame| hex(&frame.encode())).collect();
    for (frame, golden) in encoded.iter().zip(GOLDEN) {
        assert_eq!(*frame, golden.replace(' ', ""), "all frames as they are now: {encoded:#?}");
    }
}

#[test]
fn every_frame_round_trips() {
    for frame in samples::frames() {
        assert_eq!(Frame::decode(&frame.encode(), PEER), Ok(frame));
    }
    for error in samples::errors() {
        let frame = Frame::Refused(error);
        assert_eq!(Frame::decode(&frame.encode(), PEER), Ok(frame));
    }
}

#[test]
fn a_frame_cut_anywhere_is_refused() {
    for frame in samples::frames() {
        let bytes = frame.encode();
        for len in 0..bytes.len() {
            let error = Frame::decode(&bytes[..len], PEER).unwrap_err();
            assert!(matches!(error, Error::Protocol { .. }), "{frame:?} cut at {len}: {error}");
        }
    }
}

#[test]
fn a_frame_with_more_bytes_behind_it_is_refused() {
    for frame in samples::frames() {
        let mut bytes = frame.encode();
        bytes.push(0);
        assert!(matches!(Frame::decode(&bytes, PEER), Err(Error::Protocol { .. })), "{frame:?}");
    }
}

#[test]
fn extreme_integers_anywhere_never_panic() {
    for frame in samples::frames() {
        let golden = frame.encode();
        for extreme in [0, 1, u64::MAX, u64::MAX - 1, 1 << 31, 1 << 63] {
            for width in [4, 8] {
                for at in 2..golden.len().saturating_sub(width - 1) {
                    let mut bytes = golden.clone();
                    bytes[at..at + width].copy_from_slice(&extreme.to_le_bytes()[..width]);
                    match Frame::decode(&bytes, PEER) {
                        Ok(decoded) => assert_eq!(decoded.encode(), bytes, "{frame:?}"),
                        Err(error) => assert!(matches!(error, Error::Protocol { .. }), "{frame:?}: {error}"),
                    }
                }
            }
        }
    }
}

#[test]
fn the_answer_to_the_largest_declaration_fits_one_frame() {
    // Every tensor shares one part with others; the other parts have one piece each.
    let layout = samples::part();
    let piece = layout.pieces[0];
    let shared =
        PartLayout { pieces: vec![Piece { span: Span { offset: 0, bytes: 0 }, ..piece }; TENSORS_MAX], ..layout };
    let alone = PartLayout { pieces: vec![piece], ..shared.clone() };
    let parts = std::iter::once(shared).chain(std::iter::repeat_n(alone, PARTS_MAX - 1)).collect();
    let bytes = Frame::Declared { request: 1, outcome: Ok(parts) }.encode().len();
    assert!(bytes <= FRAME_BYTES_MAX, "{bytes} bytes");
}

#[test]
fn another_version_is_incompatible() {
    for version in [VERSION - 1, VERSION + 1] {
        // The version decides, whatever the other bytes are.
        let error = Frame::decode(&[version, 0xee, 0xee], PEER).unwrap_err();
        let expected = (VERSION.to_string(), version.to_string());
        assert!(
            matches!(error, Error::Incompatible { ours, theirs, .. } if (&ours, &theirs) == (&expected.0, &expected.1))
        );
    }
}

#[test]
fn an_unknown_kind_is_named() {
    let error = Frame::decode(&[VERSION, 0], PEER).unwrap_err().to_string();
    assert!(error.contains("kind is 0"), "{error}");
}

#[test]
fn a_long_name_is_refused_and_not_cut() {
    let frame = Frame::Barrier { request: 0, name: "n".repeat(300), timeout: Default::default() };
    let error = Frame::decode(&frame.encode(), PEER).unwrap_err().to_string();
    assert!(error.contains("barrier name has length 300"), "{error}");
}

#[test]
fn what_is_too_long_for_the_store_is_refused_before_it_is_read() {
    let key = |bytes: usize| "k".repeat(bytes);
    for (key, value_bytes, fits) in [
        (key(STORE_KEY_BYTES_MAX), STORE_VALUE_BYTES_MAX, true),
        (key(STORE_KEY_BYTES_MAX + 1), 0, false),
        (key(1), STORE_VALUE_BYTES_MAX + 1, false),
    ] {
        let value = vec![7; value_bytes];
        let ask = StoreAsk::Put { key: key.clone(), value: value.clone(), expected: None };
        let expects = StoreAsk::Put { key: key.clone(), value: Vec::new(), expected: Some(value.clone()) };
        for ask in [ask, expects, StoreAsk::Append { key, value }] {
            let decoded = Frame::decode(&Frame::Store { request: 1, ask }.encode(), PEER);
            assert_eq!(decoded.is_ok(), fits, "{value_bytes} bytes");
        }
    }
}

#[test]
fn the_list_of_all_keys_that_the_store_can_have_fits_one_frame() {
    let keys_of = |bytes: usize| STORE_BYTES_MAX / (bytes + STORE_ENTRY_BYTES);
    for bytes in [1, STORE_KEY_BYTES_MAX] {
        let keys = vec!["k".repeat(bytes); keys_of(bytes)];
        let frame = Frame::StoreDone { request: 1, outcome: Ok(StoreAnswer::Keys(keys)) };
        let encoded = frame.encode();
        assert!(encoded.len() <= FRAME_BYTES_MAX, "{} bytes", encoded.len());
        assert_eq!(Frame::decode(&encoded, PEER), Ok(frame));
    }
}

#[test]
fn a_certificate_that_is_too_long_is_refused_before_it_is_read() {
    for (len, fits) in [(CERTIFICATE_BYTES_MAX, true), (CERTIFICATE_BYTES_MAX + 1, false)] {
        let frame = Frame::Renewed { outcome: Ok(vec![0x30; len]) };
        let decoded = Frame::decode(&frame.encode(), PEER);
        assert_eq!(decoded.is_ok(), fits, "{len} bytes");
    }
}

#[test]
fn a_part_that_cannot_exist_is_refused() {
    let of = |pieces: &[(u64, u64)]| PartLayout {
        pieces: pieces
            .iter()
            .map(|&(offset, bytes)| Piece { tensor: TensorKey(8), span: Span { offset, bytes } })
            .collect(),
        ..samples::part()
    };
    for (layout, problem) in [
        (of(&[]), "none"),
        (of(&[(u64::MAX - 1, 4)]), "elements"),
        (of(&[(1, 4)]), "elements"),
        (of(&[(0, 3)]), "elements"),
        (of(&[(0, PART_BYTES_MAX), (0, 2)]), "longer"),
        (of(&[(0, 1 << 63), (0, 1 << 63)]), "longer"),
    ] {
        let frame = Frame::Declared { request: 0, outcome: Ok(vec![layout]) };
        let error = Frame::decode(&frame.encode(), PEER).unwrap_err().to_string();
        assert!(error.contains("pieces") && error.contains(problem), "{error}");
    }
}

#[test]
fn a_codec_that_does_not_encode_its_elements_is_refused() {
    let of = |codec| PartLayout { kind: TensorKind::Sum { codec }, ..samples::part() };
    for codec in [CodecSpec::F16, CodecSpec::BF16] {
        let frame = Frame::Declared { request: 0, outcome: Ok(vec![of(codec)]) };
        let error = Frame::decode(&frame.encode(), PEER).unwrap_err().to_string();
        assert!(error.contains(&format!("codec is {codec} of float16")), "{error}");
    }
}

#[test]
fn a_huge_announced_list_fails_at_its_first_missing_item() {
    // The length is within the limit, so the reader accepts it. But it reserves memory only for bytes that are there, and there are none.
    let mut writer = Writer::default();
    writer.u8(VERSION);
    writer.u8(kind::DECLARE);
    writer.u64(0);
    writer.list_len(TENSORS_MAX);
    let error = Frame::decode(&writer.into_bytes(), PEER).unwrap_err().to_string();
    assert!(error.contains("tensor name needs 4 bytes where 0 are left"), "{error}");
}

#[test]
fn a_member_is_a_worker_or_a_server() {
    let mut bytes = samples::frames()[0].encode();
    bytes[2] = Role::Coordinator as u8;
    let error = Frame::decode(&bytes, PEER).unwrap_err().to_string();
    assert!(error.contains("role is 3"), "{error}");
}

proptest! {
    #[test]
    fn declarations_round_trip(
        request: u64,
        fuse: bool,
        specs in proptest::collection::vec(("\\PC{0,20}", 1..=8_u8, 1..=3_u8, proptest::collection::vec(any::<u64>(), 0..5)), 0..20),
    ) {
        let tensors = specs
            .into_iter()
            .map(|(name, dtype, codec, shape)| {
                let codec = CodecSpec::of(Encoding::from_code(codec).unwrap());
                TensorSpec::new(name, DType::from_code(dtype).unwrap(), shape).with_codec(codec)
            })
            .collect();
        let frame = Frame::Declare { request, tensors, fuse };
        prop_assert_eq!(Frame::decode(&frame.encode(), PEER), Ok(frame));
    }

    #[test]
    fn arbitrary_fields_of_any_kind_decode_or_fail_but_never_panic(kind: u8, fields in proptest::collection::vec(any::<u8>(), 0..200)) {
        let bytes: Vec<u8> = [VERSION, kind].into_iter().chain(fields).collect();
        if let Ok(frame) = Frame::decode(&bytes, PEER) {
            prop_assert_eq!(frame.encode(), bytes);
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

const PEER: &str = "worker 0";

/// The bytes of [`samples::frames`], spaced at their fields. If these bytes change, the version, which is their first byte, must change.
#[rustfmt::skip]
const GOLDEN: [&str; 90] = [
    "1c 01 01 07000000000000000000000000000000 02000000 6e31 4d000000 01000000 02 02000000 2f73 0600000000000000 02000000 00 \
     01 01000000 00 02000000 00000000",
    "1c 01 02 07000000000000000000000000000000 02000000 6e31 4d000000 04000000 02 02000000 2f73 01 04000000 6e313a39 \
     01 07000000 6e312d69623a39 09 01000000 3f 0600000000000000 00000000 01 \
     00 01 03000000 02000000 00000000 01000000",
    "1c 02 0500000000000000 01 0800000000000000 0400000000000000 03000000 0010000000000000",
    "1c 03 0900000000000000 01000000 01000000 77 03 01 01 00000000 02000000 0300000000000000 0400000000000000 00 00 01",
    "1c 03 0900000000000000 01000000 01000000 77 03 01 01 00000000 01000000 0300000000000000 01 02000000 0202 01 09000000 00",
    "1c 03 0900000000000000 01000000 01000000 70 01 02 00 05000000 6173796e63 00 01000000 0300000000000000 00 00 00",
    "1c 03 0900000000000000 01000000 01000000 70 01 02 01 07 05000000 2d431cebe2361a3f cdccccccccccec3f ae47e17a14aeef3f 0000000000000000 0000000000000000 05000000 6173796e63 00 01000000 0300000000000000 00 00 00",
    "1c 09 0b00000000000000 01000000 01000000 77",
    "1c 04 0a00000000000000 03000000 656e64 0600000000000000",
    "1c 0c 0c00000000000000 01 01000000 6b 02000000 7631 01 01000000 76",
    "1c 0c 0c00000000000000 01 01000000 6b 00000000 00",
    "1c 0c 0c00000000000000 02 01000000 6e feffffffffffffff",
    "1c 0c 0c00000000000000 03 01000000 6b 01000000 76",
    "1c 0c 0c00000000000000 04 01000000 6b 00",
    "1c 0c 0c00000000000000 04 01000000 6b 01 0600000000000000",
    "1c 0c 0c00000000000000 05 01000000 6b 01",
    "1c 0c 0c00000000000000 06 00000000",
    "1c 10 0d00000000000000 01000000 63 0b000000 7373703a626f756e643d34 01 1bf8b9469a21408c 0700000000000000 2000000000000000 00 01 00ca9a3b00000000",
    "1c 10 0e00000000000000 01000000 63 05000000 6173796e63 01 1bf8b9469a21408c 0100000000000000 0000000000000000 01 00",
    "1c 0d 0d00000000000000 0200000000000000 01 00 01",
    "1c 0e 01000000020000000100000008000000000000000300000001000000000000000100000008000000000000000300000002000000\
     000000000200000008000000000000000300000003000000000000000800000000000000030000000400000000000000",
    "1c 0f 0100000002000000",
    "1c 05 0800000000000000 01000000 0400000000000000 01000000 01000000 0200000000000000",
    "1c 19 01000000 0800000000000000 01000000 0400000000000000 0200000000000000 01000000 01000000 07000000",
    "1c 06",
    "1c 08 01000000 63",
    "1c 0b 0909090909090909090909090909090909090909090909090909090909090909 4d000000",
    "1c 07",
    "1c 0a",
    "1c 18 06000000 776f726b6572 01000000 30 01000000 06000000 707573686573 0300000000000000",
    "1c 1a 01000000 01000000 70 03000000 332e31 01000000 01000000 73 01000000 76 01000000 6f",
    "1c 81 010000006a01000000020000000203000000020000000101020000000107000000000000000000000000000000020000006e314d00\
     00000100000002020000002f7306000000000000000000000001ababababababababababababababababababababababababababababab\
     ababab0000000009000000000000000207000000000000000000000000000000020000006e314d0000000400000002020000002f730104\
     0000006e313a3901070000006e312d69623a3909010000003f06000000000000000000000001ababababababababababababababababab\
     ababababababababababababababab000000000900000000000000",
    "1c 81 010000006a0100000002000000041203000000020000000101020000000107000000000000000000000000000000020000006e314d\
     0000000100000002020000002f7306000000000000000000000001abababababababababababababababababababababababababababab\
     abababab0000000009000000000000000207000000000000000000000000000000020000006e314d0000000400000002020000002f7301\
     040000006e313a3901070000006e312d69623a3909010000003f06000000000000000000000001abababababababababababababababab\
     abababababababababababababababab000000000900000000000000",
    "1c 81 010000006a01000000020000000503000000020000000101020000000107000000000000000000000000000000020000006e314d00\
     00000100000002020000002f7306000000000000000000000001ababababababababababababababababababababababababababababab\
     ababab0000000009000000000000000207000000000000000000000000000000020000006e314d0000000400000002020000002f730104\
     0000006e313a3901070000006e312d69623a3909010000003f06000000000000000000000001ababababababababababababababababab\
     ababababababababababababababab000000000900000000000000",
    "1c 81 010000006a0100000002000000061203000000020000000101020000000107000000000000000000000000000000020000006e314d\
     0000000100000002020000002f7306000000000000000000000001abababababababababababababababababababababababababababab\
     abababab0000000009000000000000000207000000000000000000000000000000020000006e314d0000000400000002020000002f7301\
     040000006e313a3901070000006e312d69623a3909010000003f06000000000000000000000001abababababababababababababababab\
     abababababababababababababababab000000000900000000000000",
    "1c 82 0a 01000000 02000000",
    "1c 83 0500000000000000 0600000000000000 0700000000000000 0800000000000000",
    "1c 84 0900000000000000 00 01000000 0800000000000000 01000000 03 01 01 00000000 02000000 01000000 0800000000000000 \
     0800000000000000 1000000000000000",
    "1c 84 0900000000000000 01 12",
    "1c 89 0b00000000000000",
    "1c 8a 01000000 0800000000000000 07000000",
    "1c 85 0800000000000000 12",
    "1c 86 0a00000000000000 00",
    "1c 86 0a00000000000000 01 12",
    "1c 8e 0c00000000000000 00 01",
    "1c 8e 0c00000000000000 00 02 00",
    "1c 8e 0c00000000000000 00 02 01 01000000 76",
    "1c 8e 0c00000000000000 00 03 ffffffffffffffff",
    "1c 8e 0c00000000000000 00 04 02000000 01000000 6b 01000000 6e",
    "1c 8e 0c00000000000000 01 12",
    "1c 8f 0200000000000000 00 00",
    "1c 8f 0200000000000000 01 0d00000000000000 01 \
     02000000 04000000 01000000 1b000000 776f726b65722032206f6e206820287069642033293a20676f6e65 01000000 0600000000000000",
    "1c 90 0200000000000000 00 0d00000000000000 02000000 0202 01 01",
    "1c 90 0200000000000000 01 12",
    "1c 92 0d00000000000000 00 0700000000000000 1400000000000000 0200000000000000 04",
    "1c 93 0900000000000000 0700000000000000 00 01000000 05 01 6000000000000000",
    "1c 91 0100000002000000010000000800000000000000030000000100000000000000010000000800000000000000030000000200000000000000",
    "1c 87 01000000 77 0800000000000000 01000000 0400000000000000 01000000 01000000 0200000000000000 01000000 \
     64",
    "1c 88 010000006a0100000002000000010300000002000000010101 0000000107000000000000000000000000000000020000006e314d00\
     00000100000002020000002f7306000000000000000000000001ababababababababababababababababababababababababababababab\
     ababab00000000090000000000000001000000020300000000000000000000000000000000000000000010000000000000020000000000\
     0000e204000000000000 01 02000000 04000000 01000000 1b000000 776f726b65722032206f6e206820287069642033293a20676f6e65 01000000 0600000000000000\
     01000000 01000000 77 08000000 7365727665722031 0400000000000000 0800000000000000 01000000 0400000000000000 0200000000000000 \
     01000000 01000000 00000000 01000000 08000000 7365727665722030 01000000",
    "1c 8d 01 01000000 08000000 776f726b65722031 07000000 01000000 15000000 776f726b65722030206f6e20682028706964203329 00000000",
    "1c 8b 00 02000000 3082",
    "1c 8b 01 12",
    "1c 8c cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd",
    "1c 11 0900000000000000 0700000000000000 000000000000f83f",
    "1c 93 0900000000000000 0700000000000000 01 000000000000f07f",
    "1c 14 0f00000000000000 01 01000000 70 01 03000000 02000000 7b7d 01 00ca9a3b00000000",
    "1c 14 1000000000000000 02 01000000 70 01 0400000000000000 03 01 00 01 00ca9a3b00000000",
    "1c 15 0500000000000000 00 01 01000000 74 0600000000000000 07000000 0300000000000000 0800000000000000 01000000 0900000000000000 0700000000000000 0200000000000000",
    "1c 15 0500000000000000 01 12",
    "1c 96 0f00000000000000 00 0400000000000000 0e000000 702f636865636b706f696e742d34 0200000000000000 0800000000000000 0400000000000000 01000000 0900000000000000 0700000000000000 0200000000000000 02000000 7b7d",
    "1c 97 0500000000000000 01 01000000 64 0400000000000000 01000000 01000000 70 03 02 00 05000000 6173796e63 00 02000000 0300000000000000 0400000000000000 00 00 01000000 0800000000000000 01000000 03 01 01 00000000 02000000 01000000 0800000000000000 0800000000000000 1000000000000000",
    "1c 97 0600000000000000 02 01000000 64 01 01000000 01000000 70 03 02 00 05000000 6173796e63 00 02000000 0300000000000000 0400000000000000 00 00 01000000 0800000000000000 01000000 03 01 01 00000000 02000000 01000000 0800000000000000 0800000000000000 1000000000000000",
    "1c 97 0600000000000000 03 01000000 0900000000000000 0300000000000000 0200000000000000",
    "1c 97 0600000000000000 04",
    "1c 16 1200000000000000 020200000000ca9a3b000000000100000000",
    "1c 16 1200000000000000 010100000000ca9a3b00000000020800000004000000696e666f",
    "1c 16 1200000000000000 000000000000ca9a3b00000000040a00000001000000700103000000",
    "1c 16 1200000000000000 000000000000ca9a3b0000000005160000000100000077000000000000e03f012800000000000000",
    "1c 16 1200000000000000 010100000000ca9a3b00000000061a00000001000000770700000000000000010000006400ca9a3b00000000",
    "1c 16 1200000000000000 010100000000ca9a3b0000000007050000000100000064",
    "1c 16 1200000000000000 020200000000ca9a3b0000000008160000000100000064bc02000000000000010300000000000000",
    "1c 16 1200000000000000 020200000000ca9a3b000000000900000000",
    "1c 16 1200000000000000 000000000000ca9a3b00000000c8020000000102",
    "1c 17 1300000000000000 000206000000776f726b6572010000003001000000060000007075736865730300000000000000",
    "1c 17 1300000000000000 0112",
    "1c 98 1200000000000000 0001",
    "1c 98 1200000000000000 0004012800000000000000",
    "1c 98 1200000000000000 0005010000000100000066",
    "1c 98 1200000000000000 000304000000000000000e000000702f636865636b706f696e742d3402000000000000000800000000000000040000000000000001000000090000000000000007000000000000000200000000000000020000007b7d",
    "1c 99 1300000000000000 0300000000",
];
