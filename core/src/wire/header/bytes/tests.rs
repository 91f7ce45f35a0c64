use proptest::prelude::*;

use super::*;
use crate::codec;
use crate::types::{Access, CodecSpec, DType, KeyPart, Op, Participants, Update, WorkerId, WorkerSet};
use crate::wire::header::{
    AnswerResidual, Body, Contribute, Contribution, Contributors, Hold, ResidualAction, Sum, Use, Withdraw,
};
use crate::wire::{limits, samples};

fn contribute() -> Contribute {
    match samples::headers().swap_remove(0) {
        Header::Contribute(header) => header,
        other => panic!("{other:?}"),
    }
}

fn sum() -> Sum {
    match samples::headers().swap_remove(11) {
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
            "474c4e451c014000020000000300000008070605040302010900000000100000",
            "01060101000001054d00000000000000000000000000f83f00100000efbeadde"
        ),
        // a contribution without
        concat!(
            "474c4e451c014000020000000300000008070605040302010900000000100000",
            "01060001000001054d00000000000000000000000000f83f0010000000000000"
        ),
        // a contribution as bf16
        concat!(
            "474c4e451c014000020000000300000008070605040302010900000000080000",
            "01060103000001054d00000000000000000000000000f83f0010000006000000"
        ),
        // a repeat after 1000 bytes of the sum landed
        concat!(
            "474c4e451c014000020000000300000008070605040302010900000000100000",
            "01060401000001054d00000000000000000000000000f83f00100000e8030000"
        ),
        // a question for a broadcast's sum
        concat!(
            "474c4e451c014000020000000300000008070605040302010900000000000000",
            "01060200050003064d00000000000000000000000000f03f0010000000000000"
        ),
        // a contribution of workers 1 and 9, whose sum goes to worker 9
        concat!(
            "474c4e451c014600020000000300000008070605040302010900000000100000",
            "01061101000001054d00000000000000000000000000f83f00100000efbeadde",
            "02000a000202"
        ),
        // a contribution of all workers, whose sum goes to worker 5
        concat!(
            "474c4e451c014400020000000300000008070605040302010900000000100000",
            "01061101000001054d00000000000000000000000000f83f00100000efbeadde",
            "00000600"
        ),
        // a withdrawal
        concat!(
            "474c4e451c01400002000000030000000807060504030201090000004d000000",
            "03000000050003064d0000000000000000000000000000000000000000000000"
        ),
        // a withdrawal from a round of workers 1 and 9
        concat!(
            "474c4e451c01460002000000030000000807060504030201090000004d000000",
            "03001000050003064d0000000000000000000000000000000000000000000000",
            "02000a000202"
        ),
        // a restored sum
        concat!(
            "474c4e451c014400020000000300000008070605040302010900000000100000",
            "04000101000001024d00000000000000000000000000004000100000efbeadde",
            "02000202"
        ),
        // a restored sum for some workers, with a codec, of nobody
        concat!(
            "474c4e451c01540002000000030000000807060504030201090000002c010000",
            "04001005000001024d0000000000000000000000000000400010000000000000",
            "102700000000000000000000000002000a000202"
        ),
        // a sum of all workers due
        concat!(
            "474c4e451c014000020000000300000008070605040302010900000000100000",
            "02000101010000004d0000000000000000000000000000400010000000000000"
        ),
        // a sum of workers 1 and 9, while the contribution is on its way
        concat!(
            "474c4e451c014200020000000300000008070605040302010900000000100000",
            "02001801010000004d0000000000000000000000000000400010000000000000",
            "0202"
        ),
        // a reject
        concat!(
            "474c4e451c014000020000000300000008070605040302010900000009000000",
            "0000000000000000000000000000000000000000000000000000000000000000"
        ),
        // a push_pull of a parameter, with a checksum
        concat!(
            "474c4e451c024000020000000300000008070605040302010900000000100000",
            "01060105010000004d00000000000000000000000000000000100000efbeadde"
        ),
        // a pull that wants the checksum
        concat!(
            "474c4e451c024000020000000300000008070605040302010900000000000000",
            "01060304010000004d0000000000000000000000000000000010000000000000"
        ),
        // a gradient for a rule
        concat!(
            "474c4e451c027100020000000300000008070605040302010900000000100000",
            "01060107010000004d00000000000000000000000000000000100000efbeadde",
            "03fca9f1d24d62503fcdccccccccccec3f2b8716d9cef7ef3f3a8c30e28e79453e",
            "7b14ae47e17a843f0000000000000000"
        ),
        // a value
        concat!(
            "474c4e451c024000020000000300000008070605040302010900000000100000",
            "02000100000000004d0000000000000005000000000000000000000000000000"
        ),
        // the answer to a push
        concat!(
            "474c4e451c024000020000000300000008070605040302010900000000000000",
            "02000000000000004d0000000000000005000000000000000000000000000000"
        ),
        // a reject of a use
        concat!(
            "474c4e451c024000020000000300000008070605040302010900000009000000",
            "0000000000000000000000000000000000000000000000000000000000000000"
        ),
        // a contribution of the largest 1 %
        concat!(
            "474c4e451c014c0002000000030000000807060504030201090000002c010000",
            "01060005000001054d00000000000000000000000000f83f0010000000000000",
            "102700000000000000000000"
        ),
        // a contribution that topk refused
        concat!(
            "474c4e451c014c00020000000300000008070605040302010900000000100000",
            "01062005000001054d00000000000000000000000000f83f0010000000000000",
            "102700000000000000000000"
        ),
        // a sum with fewer bytes than its part
        concat!(
            "474c4e451c014c0002000000030000000807060504030201090000002d010000",
            "02000105010000004d0000000000000000000000000000400010000000000000",
            "102700000000000000000000"
        ),
        // a sum that topk refused
        concat!(
            "474c4e451c014c00020000000300000008070605040302010900000000100000",
            "02002105010000004d0000000000000000000000000000400010000000000000",
            "102700000000000000000000"
        ),
        // a pull of an average, by a rule with a schedule
        concat!(
            "474c4e451c02e100020000000300000008070605040302010900000000000000",
            "0106020a010000004d0000000000000000000000000000000010000000000000",
            "01fca9f1d24d62503f0000000000000000000000000000000000000000000000",
            "0000000000000000000000000000000000000000000000084000000000000014",
            "4000000000000000009a9999999999b93f000000000000594000000000000000",
            "00000000000000f03f00000000000000000000000000000000000000000000e0",
            "3f000000000088c340000000000088c340000000000000000000000000000000",
            "00"
        ),
        // a change by a clock, of version 4
        concat!(
            "474c4e451c026300020000000300000008070605040302010900000000100000",
            "01060505010000004d00000000000000040000000000000000100000efbeadde",
            "0400000300000000000000080706050403020106000000000000000000000000",
            "000000"
        ),
        // a change whose staleness is bounded, for a rule
        concat!(
            "474c4e451c029400020000000300000008070605040302010900000000100000",
            "01060505010000004d00000000000000000000000000000000100000efbeadde",
            "0100020000000008000000080706050403020100000000000000000000000000",
            "00000001fca9f1d24d62503f0000000000000000000000000000000000000000",
            "0000000000000000000000000000000000000000"
        ),
        // the answer to a change that was scaled
        concat!(
            "474c4e451c024000020000000300000008070605040302010900000000100000",
            "02000102000000004d0000000000000005000000000000000900000000000000"
        ),
        // a change of a key, of the part at byte 4096
        concat!(
            "474c4e451c025800020000000300000008070605040302010900000000100000",
            "01060905010000004d00000000000000000000000000000000100000efbeadde",
            "0300000000000000ffffffffffffffff0010000000000000"
        ),
        // a push of rows, with a checksum
        concat!(
            "474c4e451c035700020000000300000008070605040302010900000030000000",
            "01060103000200014d000000000000004c0000000000000003000000efbeadde",
            "7367643a6c723d302e313b64696d3d322c736565643d37"
        ),
        // a look at rows
        concat!(
            "474c4e451c035700020000000300000008070605040302010900000018000000",
            "01060002000200014d000000000000004c000000000000000300000000000000",
            "7367643a6c723d302e313b64696d3d322c736565643d37"
        ),
        // a shrink
        concat!(
            "474c4e451c035700020000000300000008070605040302010900000020000000",
            "01060104000200014d000000000000004c0000000000000000000000efbeadde",
            "7367643a6c723d302e313b64696d3d322c736565643d37"
        ),
        // the beginning of a scan
        concat!(
            "474c4e451c035700020000000300000008070605040302010900000020000000",
            "01060107000200014d000000000000004c0000000000000000100000efbeadde",
            "7367643a6c723d302e313b64696d3d322c736565643d37"
        ),
        // its next page, without a checksum
        concat!(
            "474c4e451c035700020000000300000008070605040302010900000018000000",
            "01060008000200014d000000000000004c000000000000000000100000000000",
            "7367643a6c723d302e313b64696d3d322c736565643d37"
        ),
        // a restore of rows
        concat!(
            "474c4e451c035700020000000300000008070605040302010900000048000000",
            "01060109000200014d000000000000004c0000000000000003000000efbeadde",
            "7367643a6c723d302e313b64696d3d322c736565643d37"
        ),
        // rows
        concat!(
            "474c4e451c034000020000000300000008070605040302010900000000100000",
            "02000100000000004d0000000000000005000000000000000000000000000000"
        ),
        // the answer to a push of rows
        concat!(
            "474c4e451c034000020000000300000008070605040302010900000000000000",
            "02000000000000004d0000000000000005000000000000000000000000000000"
        ),
        // a reject of a use of rows
        concat!(
            "474c4e451c034000020000000300000008070605040302010900000009000000",
            "0000000000000000000000000000000000000000000000000000000000000000"
        ),
        // a contribution whose sum may be taken back
        concat!(
            "474c4e451c014000020000000300000008070605040302010900000000080000",
            "01064083000001054d00000000000000000000000000f83f0010000000000000"
        ),
        // a contribution after a sum that was taken back
        concat!(
            "474c4e451c014000020000000300000008070605040302010900000000080000",
            "0106c083000001054d00000000000000000000000000f83f0010000000000000"
        ),
        // a contribution whose answer begins with what was given
        concat!(
            "474c4e451c014000020000000300000008070605040302010900000000080000",
            "01060883000001054d00000000000000000000000000f83f0010000000000000"
        ),
        // one whose sum may be taken back, too
        concat!(
            "474c4e451c014000020000000300000008070605040302010900000000080000",
            "01064883000001054d00000000000000000000000000f83f0010000000000000"
        ),
        // a question for the residual of answers
        concat!(
            "474c4e451c014000020000000300000008070605040302010900000000000000",
            "05000083000000004d0000000000000000000000000000000010000000000000"
        ),
        // one after a sum that was taken back
        concat!(
            "474c4e451c014000020000000300000008070605040302010900000000000000",
            "0500c083000000004d0000000000000000000000000000000010000000000000"
        ),
        // a residual that is given for workers 1 and 9
        concat!(
            "474c4e451c014a00020000000300000008070605040302010900000000100000",
            "05001186000000004d00000000000000000000000000000000100000efbeadde",
            "8000000002000a000202"
        ),
        // a contribution that waited 7 us for the device, 18 us in queues, and as long as there are numbers for credit
        concat!(
            "474c4e451c014000020000000300000008070605040302010900000000100000",
            "01060101000001054d000000000711ff000000000000f83f00100000efbeadde"
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
        (6, 63, "header length"),
        (6, 65, "header"),
        (7, 0xff, "header length"),
        (31, 0xff, "body length"),
        (32, 9, "kind"),
        (33, 8, "urgency"),
        (34, 3, "flags"),
        (34, 5, "flags"),
        (34, 6, "flags"),
        (34, 8, "flags"),
        (34, 32, "flags"),
        (34, 34, "flags"),
        (34, 66, "flags"),
        (34, 64, "flags"),
        (34, 129, "flags"),
        (34, 192, "flags"),
        (35, 0, "codec"),
        (35, 0xff, "codec"),
        (36, 1, "root"),
        (38, 0, "dtype"),
        (39, 0, "op"),
        (55, 0xff, "weight"),
        (56, 1, "length"),
        (59, 0x10, "length"),
    ] {
        let mut bytes = Header::Contribute(contribute()).encode();
        bytes[at] = value;
        assert_eq!(field_of(&bytes), field, "byte {at}");
    }
}

#[test]
fn each_bad_field_of_a_residual_is_named() {
    let of = |action| AnswerResidual {
        target: contribute().target,
        participants: Participants::ALL,
        codec: "bf16:feedback=1".parse().unwrap(),
        part_bytes: 4096,
        action,
    };
    let read = || Header::AnswerResidual(of(ResidualAction::Read(Hold::No))).encode();
    let given = || Header::AnswerResidual(of(ResidualAction::Give { checksum: 7 })).encode();
    for (header, at, value, field) in [
        (read(), 29, 1, "body length"),
        (given(), 29, 0, "body length"),
        (read(), 33, 1, "reserved byte"),
        (read(), 34, 2, "flags"),
        (read(), 34, 8, "flags"),
        (read(), 34, 128, "flags"),
        (given(), 34, 65, "flags"),
        (read(), 35, 3, "codec"),
        (read(), 35, 0, "codec"),
        (read(), 38, 1, "reserved byte"),
        (read(), 48, 1, "reserved byte"),
        (read(), 56, 1, "length"),
        (read(), 59, 0x10, "length"),
        (read(), 60, 1, "reserved byte"),
    ] {
        let mut bytes = header;
        bytes[at] = value;
        assert_eq!(field_of(&bytes), field, "byte {at}");
    }
}

#[test]
fn a_contribution_does_not_give_a_residual_and_take_one_back() {
    let held = samples::headers().into_iter().find_map(|header| match header {
        Header::Contribute(header) if header.hold == Hold::TakenBack => Some(header),
        _ => None,
    });
    let bytes = Header::Contribute(Contribute { is_given: true, ..held.unwrap() }).encode();
    assert_eq!(field_of(&bytes), "flags");
}

#[test]
fn each_bad_field_of_a_use_is_named() {
    for (at, value, field) in [
        (28, 1, "body length"),
        (32, 9, "kind"),
        (33, 8, "urgency"),
        (34, 4, "checksum"),
        (34, 5, "mode"),
        (34, 9, "key"),
        (34, 16, "flags"),
        (34, 0, "checksum"),
        (35, 0, "access"),
        (35, 7, "rule"),
        (35, 11, "access"),
        (35, 4, "flags"),
        (36, 0, "dtype"),
        (37, 1, "reserved byte"),
        (47, 1, "round"),
        (55, 1, "version"),
        (56, 1, "length"),
        (59, 0x10, "length"),
    ] {
        let mut bytes = samples::headers()[14].encode();
        bytes[at] = value;
        assert_eq!(field_of(&bytes), field, "byte {at}");
    }
    let mut pull = samples::headers()[15].encode();
    pull[35] = 9;
    assert_eq!(field_of(&pull), "rule", "an average that no rule keeps");
    let mut value = samples::headers()[17].encode();
    value[55] = 1;
    assert_eq!(field_of(&value), "version");
    (value[55], value[35]) = (0, 5);
    assert_eq!(field_of(&value), "fate");
}

#[test]
fn each_bad_field_of_a_use_of_rows_is_named() {
    let scan = |header: &Header| matches!(header, Header::Rows(rows) if rows.action.scans());
    let scan = samples::headers().into_iter().find(scan).expect("a scan").encode();
    for (at, value, field) in [
        (35, 11, "action"),
        (35, 1, "body length"),
        (34, 2, "flags"),
        (39, 9, "shards"),
        (52, 1, "step"),
        (57, 0, "page length"),
        (59, 1, "ids"),
    ] {
        let mut bytes = scan.clone();
        bytes[at] = value;
        assert_eq!(field_of(&bytes), field, "byte {at}");
    }
}

/// A mode, its clock, and where that stands lie behind the front, at byte 64.
#[test]
fn each_bad_field_of_a_mode_is_named() {
    let headers = samples::headers();
    let timed = headers.iter().find(|header| matches!(header, Header::Use(part_use) if part_use.clock_at > 0));
    let timed = timed.expect("a use by a clock").encode();
    for (at, value) in [(64, 0), (64, 5), (64, 3), (65, 2), (66, 1), (66, 3), (67, 0), (71, 1), (90, 0x80)] {
        let mut bytes = timed.clone();
        bytes[at] = value;
        assert_eq!(field_of(&bytes), "mode", "byte {at}");
    }
    let step = Access::Push(Update::Step);
    let gradient = |access: Access, clock_at: u64| {
        let Some(Header::Use(timed)) =
            headers.iter().find(|header| matches!(header, Header::Use(one) if one.clock_at > 0))
        else {
            panic!("a use by a clock")
        };
        let rule = Some("sgd".parse().expect("a rule"));
        Header::decode(&Use { access, clock_at, rule, ..*timed }.encode(), "worker 0")
    };
    assert!(gradient(step, 1).is_ok());
    for refused in [gradient(step, 0), gradient(Access::PushPull(Update::Step), 1)] {
        assert!(matches!(&refused, Err(Error::Protocol { field, .. }) if field == "access"), "{refused:?}");
    }
    let mut no_clock = timed.clone();
    no_clock[75..83].fill(0);
    assert_eq!(field_of(&no_clock), "mode");
    assert_eq!(field_of(&timed[..90]), "header", "a mode that is cut off");
}

/// A key, and the place of the part in its value, lie behind the front, at byte 64.
#[test]
fn each_bad_field_of_a_key_is_named() {
    let Some(Header::Use(of_key)) =
        samples::headers().into_iter().find(|header| matches!(header, Header::Use(one) if one.key.is_some()))
    else {
        panic!("a use of a key")
    };
    let (bytes, part) = (of_key.encode(), of_key.key.expect("it was looked for"));
    assert_eq!((bytes.len(), of_key.header_bytes()), (64 + 24, 64 + 24));
    for offset in [2, u64::MAX - 3] {
        let elsewhere = Use { key: Some(KeyPart { offset, ..part }), ..of_key };
        assert_eq!(field_of(&elsewhere.encode()), "key", "at {offset}");
    }
    assert_eq!(field_of(&bytes[..80]), "header", "a key that is cut off");
    for access in [Access::Init, Access::Push(Update::Assign)] {
        assert_eq!(field_of(&Use { access, ..of_key }.encode()), "key", "{access}");
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
fn an_unknown_service_is_read_whatever_follows_so_that_the_server_can_refuse_it() {
    for header in samples::headers() {
        let mut bytes = header.encode();
        bytes[at::SERVICE] = 200;
        let request = Header::decode(&bytes, "worker 0").unwrap().into_request("worker 0").unwrap();
        let service = Service::Unknown(200);
        assert_eq!(request, Request::Unknown(About { service, ..header.about() }), "{header:?}");
    }
    let refusal = Service::Unknown(200).refusal("worker 0").to_string();
    assert!(refusal.contains("service") && refusal.contains("200"), "{refusal}");
}

#[test]
fn a_reject_is_read_of_any_service() {
    let about = About { service: Service::Unknown(200), ..contribute().target.about() };
    let reject = Reject { about, error_bytes: 7 };
    let read = Header::decode(&reject.encode(), "server 0").and_then(|header| header.into_reply("server 0"));
    assert_eq!(read, Ok(Reply::Reject(reject)));
}

#[test]
fn a_cast_halves_floats_and_encodes_nothing_else() {
    let body = Body { bytes: 2048, codec: CodecSpec::F16, refused: false };
    let cast = |dtype, op| {
        let contribution = Contribution::First { body, checksum: None };
        Header::Contribute(Contribute { dtype, op, contribution, ..contribute() }).encode()
    };
    assert!(Header::decode(&cast(DType::F32, Op::Sum), "worker 0").is_ok());
    for dtype in [DType::F16, DType::I32] {
        assert_eq!(field_of(&cast(dtype, Op::Sum)), "codec");
    }
}

#[test]
fn error_feedback_is_one_bit_of_the_codec_and_of_f32_alone() {
    let of = |dtype, codec: CodecSpec| {
        let bytes = codec::body_bytes(codec.without_feedback(), dtype, 4096).max();
        let contribution = Contribution::First { body: Body { bytes, refused: false, codec }, checksum: None };
        Header::Contribute(Contribute { dtype, contribution, ..contribute() })
    };
    for [without, with] in [["bf16", "bf16:feedback=1"], ["int8:block=64", "int8:block=64,feedback=1"]] {
        let [without, with] = [without, with].map(|text| of(DType::F32, text.parse().unwrap()));
        assert_eq!(Header::decode(&with.encode(), "worker 0").as_ref(), Ok(&with));
        let mut bytes = without.encode();
        bytes[35] |= 0x80;
        assert_eq!(bytes, with.encode());
    }
    assert_eq!(field_of(&of(DType::F64, "bf16:feedback=1".parse().unwrap()).encode()), "codec");
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
        [Header::Withdraw(withdraw), Header::Reject(Reject { about: target.about(), error_bytes })]
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
    assert_eq!(field_of(&bytes[..HEADER_BYTES + 1]), "header");
    assert_eq!(field_of(&[&bytes[..], &[1]].concat()), "header length");
    assert_eq!(field_of(&[&bytes[..HEADER_BYTES + 1], &[0]].concat()), "contributors");
    let of = |header: &[u8], behind: &[u8]| {
        let mut bytes = [header, behind].concat();
        let all = u16::try_from(bytes.len()).unwrap();
        bytes[at::HEADER_BYTES..at::TERM].copy_from_slice(&all.to_le_bytes());
        bytes
    };
    assert_eq!(field_of(&of(&bytes[..HEADER_BYTES], &[1; 513])), "contributors");
    assert_eq!(field_of(&of(&sum().encode(), &[1])), "header");
    let reject = Reject { about: sum().target.about(), error_bytes: 9 }.encode();
    assert_eq!(field_of(&of(&reject, &[1])), "header");
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
    for service in [1, 2, 3, 200] {
        let mut bytes = Sum { contributors: Contributors::Only(WorkerSet::default()), ..sum() }.encode();
        bytes[at::HEADER_BYTES..at::TERM].copy_from_slice(&u16::MAX.to_le_bytes());
        bytes[at::SERVICE] = service;
        let mut reader = HeaderReader::default();
        reader.take(&bytes);
        assert_eq!(reader.missing(), 0);
        assert_eq!(reader.finish("server 0").is_err(), service < 4);
    }
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
    fn arbitrary_bytes_decode_or_fail_but_never_panic(service in 1_u8..3, kind in 0_u8..4, bytes in proptest::collection::vec(any::<u8>(), 40..80)) {
        let mut header = Header::Contribute(contribute()).encode()[..24].to_vec();
        header.extend(&bytes);
        header[6] = u8::try_from(header.len()).unwrap();
        header[5] = service;
        header[32] = kind;
        if let Ok(decoded) = Header::decode(&header, "worker 0") {
            prop_assert_eq!(decoded.encode(), header);
        }
    }

    #[test]
    fn arbitrary_bytes_for_an_unknown_service_are_a_request(service in 4_u8.., bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
        let stream = [&MAGIC[..], &[VERSION, service], &bytes].concat();
        let (mut reader, mut rest) = (HeaderReader::default(), &stream[..]);
        while reader.missing() > 0 && !rest.is_empty() {
            let (piece, after) = rest.split_at(reader.missing().min(rest.len()));
            reader.take(piece);
            rest = after;
        }
        let request = reader.finish("worker 0").and_then(|header| header.into_request("worker 0")).unwrap();
        prop_assert_eq!(request.about().service, Service::Unknown(service));
    }
}
