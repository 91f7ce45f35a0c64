//! Each instruction does what the PTX manual says, and what is not known is refused.

use super::operations::{f16_to_f32, f32_to_f16};
use super::*;

/// Each thread writes what it is into its place.
const WHO: &str = "
    .version 8.0
    .visible .entry who(
        .param .u64 who_to
    )
    {
        .reg .b64 %rd<9>;
        ld.param.u64 %rd1, [who_to];
        mov.u32 %r1, %ctaid.x;      // the block
        mov.u32 %r2, %ntid.x;
        mul.wide.u32 %rd2, %r1, %r2;
        mov.u32 %r3, %tid.x;
        cvt.u64.u32 %rd3, %r3;
        add.s64 %rd2, %rd2, %rd3;
        shl.b64 %rd4, %rd2, 1;
        add.s64 %rd4, %rd1, %rd4;
        setp.ge.u32 %p1, %r3, 2;
        @%p1 bra $END;
        add.s32 %r4, %r3, -1;
        st.global.u16 [%rd4+2], %r4;
    $END:
        ret;
    }";

#[test]
fn every_thread_of_every_block_runs_to_its_end() {
    let module = Module::parse(WHO).unwrap();
    assert_eq!(module.names().collect::<Vec<_>>(), ["who"]);
    assert_eq!(module.kernel("who").unwrap().params(), [8]);
    let mut memory = Bytes(vec![7; 14]);
    module.kernel("who").unwrap().run(2, 3, &Bytes::BASE.to_le_bytes(), &mut memory).unwrap();
    assert_eq!(memory.0, [7, 7, 0xff, 0xff, 0, 0, 7, 7, 0xff, 0xff, 0, 0, 7, 7]);
}

#[test]
fn memory_that_is_not_there_is_a_fault_with_its_address() {
    let kernel = Module::parse(WHO).unwrap().kernel("who").unwrap().clone();
    let fault = kernel.run(1, 2, &Bytes::BASE.to_le_bytes(), &mut Bytes(vec![0; 4])).unwrap_err();
    assert_eq!(fault, Fault::Access { address: Bytes::BASE + 4, bytes: 2 });
    assert!(!fault.is_misaligned());
}

#[test]
fn memory_is_reached_at_multiples_of_what_is_reached() {
    let kernel = Module::parse(WHO).unwrap().kernel("who").unwrap().clone();
    let fault = kernel.run(1, 2, &(Bytes::BASE + 1).to_le_bytes(), &mut Bytes(vec![0; 14])).unwrap_err();
    assert_eq!(fault, Fault::Access { address: Bytes::BASE + 3, bytes: 2 });
    assert!(fault.is_misaligned());
}

#[test]
fn what_is_not_known_is_refused_with_its_line() {
    let refused = |body: &str| Module::parse(&format!(".entry f(\n)\n{{\n{body};\n}}")).unwrap_err();
    assert_eq!(refused("bar.sync 0"), "line 4: `bar.sync` is not known here");
    assert_eq!(refused("add.s64 %rd1, %rd2"), "line 4: `add.s64` is not known here");
    assert_eq!(refused("ld.param.u64 %rd1, [f_x]"), "line 4: there is no parameter f_x");
    assert_eq!(refused("mov.u32 %r1, %laneid.y"), "line 4: `%laneid.y` is no register");
    assert_eq!(refused("bra $OUT"), "there is no label $OUT");
    assert_eq!(Module::parse(".global .u64 x = 1;").unwrap_err(), "line 1: `.global .u64 x = 1` is not known here");
}

#[test]
fn what_is_loaded_as_signed_keeps_its_sign_and_what_is_not_does_not() {
    let negative: [u8; 8] = (-2_i64).to_le_bytes();
    let loaded = |kind: &str| u64::from_le_bytes(computed(&[&format!("ld.global.{kind} %rd2, [%rd1]")], negative));
    assert_eq!([loaded("u8"), loaded("u16"), loaded("u32")], [0xfe, 0xfffe, 0xffff_fffe]);
    assert_eq!(["s8", "s16", "s32", "s64"].map(loaded), [(-2_i64).cast_unsigned(); 4]);
}

#[test]
fn a_structure_is_a_parameter_whose_words_are_loaded_by_address() {
    let text = ".entry f(
        .param .u64 f_to,
        .param .align 8 .b8 f_words[24]
    )
    {
        ld.param.u64 %rd1, [f_to];
        ld.param.v2.u32 {%r9, %r1}, [f_words];
        mov.b64 %rd2, f_words;
        mov.u32 %r2, %tid.x;
        mul.wide.u32 %rd3, %r2, 8;
        add.s64 %rd2, %rd2, %rd3;
        ld.param.u16 %rs1, [%rd2+8];
        st.global.u32 [%rd1], %r1;
        add.s64 %rd1, %rd1, %rd3;
        st.global.u16 [%rd1+4], %rs1;
        ret;
    }";
    let kernel = Module::parse(text).unwrap().kernel("f").unwrap().clone();
    assert_eq!(kernel.params(), [8, 24]);
    let params = [Bytes::BASE, 7 << 32, 8, 9].map(u64::to_le_bytes).concat();
    let mut memory = Bytes(vec![0; 16]);
    kernel.run(1, 2, &params, &mut memory).unwrap();
    assert_eq!(memory.0, [7, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0]);
    let fault = kernel.run(1, 4, &params, &mut Bytes(vec![0; 64])).unwrap_err();
    assert_eq!(fault, Fault::Access { address: 32, bytes: 2 }, "behind the parameters");
}

#[test]
fn integers_are_shifted_and_divided_in_the_width_of_the_instruction() {
    let table: [(&str, i64, u64); 64] = [
        ("shr.s32 %rd2, %rd2, 31", -1 << 31, 0xffff_ffff),
        ("shr.s32 %rd2, %rd2, 4", -1 << 31, 0xf800_0000),
        ("shr.s32 %rd2, %rd2, 40", i64::MAX, 0xffff_ffff),
        ("shr.s32 %rd2, %rd2, 40", 1 << 40, 0),
        ("shr.s64 %rd2, %rd2, 63", i64::MIN, u64::MAX),
        ("shr.s64 %rd2, %rd2, 64", i64::MIN, u64::MAX),
        ("shr.s64 %rd2, %rd2, 62", i64::MAX, 1),
        ("div.u32 %rd2, %rd2, 3", -1, 0x5555_5555),
        ("div.u32 %rd2, %rd2, 0", 5, 0xffff_ffff),
        ("div.u64 %rd2, %rd2, 3", -1, 0x5555_5555_5555_5555),
        ("div.u64 %rd2, %rd2, 0", 5, u64::MAX),
        ("xor.b32 %rd2, %rd2, -1", 5, 0xffff_fffa),
        ("xor.b64 %rd2, %rd2, -1", 5, u64::MAX - 5),
        ("rem.u32 %rd2, %rd2, 3", -2, 2),
        ("rem.u32 %rd2, %rd2, 0", 5, 5),
        ("shr.u64 %rd2, %rd2, 63", -1, 1),
        ("sub.s32 %rd2, %rd2, 6", 5, 0xffff_ffff),
        ("mul.lo.s32 %rd2, %rd2, 2", -1, 0xffff_fffe),
        ("neg.s64 %rd2, %rd2", 5, u64::MAX - 4),
        ("cvt.u32.u64 %rd2, %rd2", -1, 0xffff_ffff),
        ("bfe.u32 %rd2, %rd2, 16, 1", 0x1_0000, 1),
        ("bfe.u32 %rd2, %rd2, 4, 8", -1, 0xff),
        ("bfe.u32 %rd2, %rd2, 28, 8", -1, 0xf),
        ("bfe.u32 %rd2, %rd2, 256, 70", -1, 0xffff_ffff),
        ("bfe.s32 %rd2, %rd2, 0, 4", 0x18, 0xffff_fff8),
        ("bfe.s32 %rd2, %rd2, 4, 4", 0x17, 1),
        ("bfe.s32 %rd2, %rd2, 30, 8", 1 << 31, 0xffff_fffe),
        ("bfe.s32 %rd2, %rd2, 40, 8", 1 << 31, 0xffff_ffff),
        ("bfe.s32 %rd2, %rd2, 0, 0", -1, 0),
        ("bfi.b32 %rd2, %rd2, -1, 4, 8", 0x123, 0xffff_f23f),
        ("bfi.b32 %rd2, %rd2, 0, 28, 8", 0x12, 0x2000_0000),
        ("bfi.b32 %rd2, %rd2, 5, 32, 8", -1, 5),
        ("bfi.b64 %rd2, %rd2, 5, 32, 32", 0x12, 0x12_0000_0005),
        ("bfi.b64 %rd2, %rd2, -1, 4, 8", 0x123, 0xffff_ffff_ffff_f23f),
        ("brev.b32 %rd2, %rd2", 0x9000_0001, 0x8000_0009),
        ("sub.s64 %rd2, %rd2, 6", 5, u64::MAX),
        ("neg.s32 %rd2, %rd2", 5, 0xffff_fffb),
        ("setp.ne.s32 %rd2, %rd2, 7", 7 | 1 << 40, 0),
        ("prmt.b32 %rd2, %rd2, 1432778632, 30212", 0x8811_2233, 0x5566_3388),
        ("prmt.b32 %rd2, %rd2, 0, 11", -128 << 24, 0x0000_00ff),
        ("mad.lo.s32 %rd2, %rd2, 3, 4", -1, 1),
        ("min.u32 %rd2, %rd2, 7", -1, 7),
        ("max.u32 %rd2, %rd2, 7", -1, 0xffff_ffff),
        ("min.u64 %rd2, %rd2, 7", 1 << 40, 7),
        ("max.u64 %rd2, %rd2, 7", -1, u64::MAX),
        ("not.b32 %rd2, %rd2", 5, 0xffff_fffa),
        ("setp.lt.u32 %rd2, %rd2, 7", -1, 0),
        ("setp.eq.s32 %rd2, %rd2, 7", 7 | 1 << 40, 1),
        ("setp.eq.b32 %rd2, %rd2, 7", 7 | 1 << 40, 1),
        ("setp.gt.u64 %rd2, %rd2, 7", -1, 1),
        ("setp.le.u32 %rd2, %rd2, 7", 7 | 1 << 40, 1),
        ("clz.b32 %rd2, %rd2", 0x1_0000_8000, 16),
        ("clz.b32 %rd2, %rd2", 1 << 40, 32),
        ("shf.l.wrap.b32 %rd2, -2147483648, %rd2, 33", 5, 11),
        ("shf.l.wrap.b32 %rd2, -1, %rd2, 0", 5, 5),
        ("popc.b32 %rd2, %rd2", 0x1_8000_0011, 3),
        ("or.b16 %rd2, %rd2, 128", 0x1_0001, 0x81),
        ("cvt.u16.u32 %rd2, %rd2", -1, 0xffff),
        ("selp.b64 %rd2, %rd2, 5, 1", -1, u64::MAX),
        ("selp.s32 %rd2, -1, 5, 0", -1, 5),
        ("selp.u32 %rd2, %rd2, 5, 1", -1, 0xffff_ffff),
        ("and.pred %rd2, %rd2, 0", 1, 0),
        ("or.pred %rd2, %rd2, 0", 1, 1),
        ("not.pred %rd2, %rd2", 1, 0),
    ];
    for (instruction, of, expected) in table {
        let found = computed(&["ld.global.u64 %rd2, [%rd1]", instruction], of.to_le_bytes());
        assert_eq!(u64::from_le_bytes(found), expected, "{instruction} of {of:#x}");
    }
}

#[test]
fn single_floats_round_once_and_keep_what_is_subnormal() {
    let table: [(&str, f32, f32); 15] = [
        ("add.rn.f32 %rd2, %rd2, 0f4B400000", 2.5, 12_582_914.0),
        ("div.rn.f32 %rd2, %rd2, 0f42FE0000", f32::from_bits(200), f32::from_bits(2)),
        ("div.rn.f32 %rd2, %rd2, 0f00000000", -1.0, f32::NEG_INFINITY),
        ("mul.rn.f32 %rd2, %rd2, 0f3F000000", f32::from_bits(3), f32::from_bits(2)),
        ("min.f32 %rd2, %rd2, 0f42FE0000", 200.0, 127.0),
        ("min.f32 %rd2, %rd2, 0f42FE0000", f32::NAN, 127.0),
        ("min.f32 %rd2, %rd2, 0f80000000", 0.0, -0.0),
        ("max.f32 %rd2, %rd2, 0fC2FE0000", -200.0, -127.0),
        ("max.f32 %rd2, %rd2, 0f00000000", -0.0, 0.0),
        ("max.f32 %rd2, %rd2, 0f7FC00000", f32::NAN, f32::from_bits(0x7fff_ffff)),
        ("cvt.rn.f32.u32 %rd2, %rd2", f32::from_bits(u32::MAX), 4_294_967_296.0),
        ("cvt.rn.f32.s32 %rd2, %rd2", f32::from_bits(u32::MAX - 6), -7.0),
        ("selp.f32 %rd2, %rd2, 0f00000000, 1", 2.0, 2.0),
        ("setp.eq.f32 %rd2, %rd2, %rd2", f32::NAN, 0.0),
        ("setp.lt.f32 %rd2, %rd2, 0f00000000", -0.0, 0.0),
    ];
    for (instruction, of, expected) in table {
        let found = computed(&["ld.global.f32 %rd2, [%rd1]", instruction], u64::from(of.to_bits()).to_le_bytes());
        assert_eq!(u64::from_le_bytes(found), u64::from(expected.to_bits()), "{instruction} of {of:e}");
    }
}

#[test]
fn double_floats_round_once_and_keep_what_is_subnormal() {
    let table: [(&str, f64, f64); 9] = [
        ("add.rn.f64 %rd2, %rd2, 0d3FF0000000000000", 2.0_f64.powi(53), 2.0_f64.powi(53)),
        ("add.rn.f64 %rd2, %rd2, 0d3FF0000000000000", f64::NAN, f64::from_bits(0x7fff_ffff_ffff_ffff)),
        ("div.rn.f64 %rd2, %rd2, 0d4008000000000000", 1.0, 1.0 / 3.0),
        ("div.rn.f64 %rd2, %rd2, 0d4000000000000000", f64::from_bits(3), f64::from_bits(2)),
        ("sqrt.rn.f64 %rd2, %rd2", 2.0, std::f64::consts::SQRT_2),
        ("sqrt.rn.f64 %rd2, %rd2", -1.0, f64::from_bits(0x7fff_ffff_ffff_ffff)),
        ("mov.f64 %rd2, 0d3FF0000000000000", 2.0, 1.0),
        ("cvt.f64.f32 %rd2, %rd2", f64::from_bits(u64::from(f32::from_bits(3).to_bits())), 3.0 * 2.0_f64.powi(-149)),
        ("cvt.rn.f64.u32 %rd2, %rd2", f64::from_bits(u64::MAX), 4_294_967_295.0),
    ];
    for (instruction, of, expected) in table {
        let found = computed(&["ld.global.f64 %rd2, [%rd1]", instruction], of.to_le_bytes());
        assert_eq!(u64::from_le_bytes(found), expected.to_bits(), "{instruction} of {of:e}");
    }
}

#[test]
fn threads_add_and_set_bits_in_one_word_and_learn_what_it_was() {
    let last_of = |operation: &str| {
        let text = format!(
            ".entry f(\n.param .u64 f_to\n)\n{{\nld.param.u64 %rd1, [f_to];\nmov.u32 %r1, %tid.x;
            {operation} %r2, [%rd1+4], %r1;
            st.global.u32 [%rd1], %r2;
            ret;\n}}"
        );
        let mut memory = Bytes(vec![0; 8]);
        let kernel = Module::parse(&text).unwrap().kernel("f").unwrap().clone();
        kernel.run(1, 7, &Bytes::BASE.to_le_bytes(), &mut memory).unwrap();
        memory.0
    };
    assert_eq!(last_of("atom.global.add.u32"), [15, 0, 0, 0, 21, 0, 0, 0], "the last one adds 6");
    assert_eq!(last_of("atom.global.or.b32"), [7, 0, 0, 0, 7, 0, 0, 0]);
}

#[test]
fn lanes_vote_within_their_warp() {
    let text = |members: &str| {
        format!(
            ".entry f(\n.param .u64 f_to\n)\n{{\nld.param.u64 %rd1, [f_to];\nmov.u32 %r1, %tid.x;
            setp.ge.u32 %p1, %r1, 20;
            vote.sync.ballot.b32 %r2, %p1, {members};
            mul.wide.u32 %rd2, %r1, 4;
            add.s64 %rd1, %rd1, %rd2;
            st.global.u32 [%rd1], %r2;
            ret;\n}}"
        )
    };
    let vote = |members: &str| {
        let mut memory = Bytes(vec![0; 256]);
        let kernel = Module::parse(&text(members)).unwrap().kernel("f").unwrap().clone();
        kernel.run(1, 64, &Bytes::BASE.to_le_bytes(), &mut memory).map(|()| memory.0)
    };
    let of_both_warps = [[0xfff0_0000_u32.to_le_bytes(); 32], [[0xff; 4]; 32]].concat().concat();
    assert_eq!(vote("-1"), Ok(of_both_warps));
    assert_eq!(vote("255"), Err(Fault::Apart), "some of the members");
}

/// Each lane writes the word of the lane at this distance.
fn exchange(threads: u32, members: &str, first: &str) -> Result<Vec<u8>, Fault> {
    let text = format!(
        ".entry f(\n.param .u64 f_to\n)\n{{\nld.param.u64 %rd1, [f_to];\nmov.u32 %r1, %tid.x;\n{first}
        mul.lo.s32 %r2, %r1, 3;
        shfl.sync.bfly.b32 %r3|%p1, %r2, 5, 31, {members};
        mul.wide.u32 %rd2, %r1, 1;
        add.s64 %rd1, %rd1, %rd2;
        st.global.u8 [%rd1], %r3;
    $END:
        ret;\n}}"
    );
    let mut memory = Bytes(vec![0; 64]);
    let kernel = Module::parse(&text).unwrap().kernel("f").unwrap().clone();
    kernel.run(1, threads, &Bytes::BASE.to_le_bytes(), &mut memory).map(|()| memory.0)
}

#[test]
fn lanes_exchange_words_within_their_warp() {
    let expected: Vec<u8> = (0..64).map(|lane| 3 * (lane ^ 5)).collect();
    assert_eq!(exchange(64, "-1", ""), Ok(expected));
}

#[test]
fn an_exchange_without_all_lanes_is_a_fault() {
    assert_eq!(exchange(48, "-1", ""), Err(Fault::Apart), "half a warp");
    assert_eq!(exchange(32, "65535", ""), Err(Fault::Apart), "half of the members");
    let early = "setp.ge.u32 %p2, %r1, 9;\n@%p2 bra $END;";
    assert_eq!(exchange(32, "-1", early), Err(Fault::Apart), "some have ended");
}

#[test]
fn half_size_floats_round_to_nearest_even() {
    let table = [
        (0.0, 0x0000),
        (-0.0, 0x8000),
        (1.0, 0x3c00),
        (-2.0, 0xc000),
        (65504.0, 0x7bff),
        (65519.996, 0x7bff),
        (65520.0, 0x7c00),
        (1e30, 0x7c00),
        (f32::NEG_INFINITY, 0xfc00),
        (1.0 + 0.000_488_281_25, 0x3c00),
        (1.0 + 0.000_488_341_3, 0x3c01),
        (1.0 + 3.0 * 0.000_488_281_25, 0x3c02),
        (2.0_f32.powi(-14), 0x0400),
        (2.0_f32.powi(-24), 0x0001),
        (2.0_f32.powi(-25), 0x0000),
        (1.5 * 2.0_f32.powi(-25), 0x0001),
        (f32::NAN, 0x7fff),
    ];
    for (value, bits) in table {
        assert_eq!(f32_to_f16(value), bits, "{value:e}");
    }
    for bits in (0..0x7c00).chain(0x8000..0xfc01) {
        assert_eq!(f32_to_f16(f16_to_f32(bits)), bits, "{bits:#06x}");
    }
}

/// What instructions leave in `%rd2` when `%rd1` is where `data` lies.
fn computed(instructions: &[&str], data: [u8; 8]) -> [u8; 8] {
    let body = instructions.join(";\n");
    let text = format!(
        ".entry f(\n.param .u64 f_data\n)\n{{\nld.param.u64 %rd1, [f_data];\n{body};\nst.global.u64 [%rd1], %rd2;\n}}"
    );
    let mut memory = Bytes(data.to_vec());
    Module::parse(&text).unwrap().kernel("f").unwrap().run(1, 1, &Bytes::BASE.to_le_bytes(), &mut memory).unwrap();
    memory.0.try_into().unwrap()
}

/// Memory that begins at an address of its own.
struct Bytes(Vec<u8>);

impl Bytes {
    const BASE: u64 = 0x10_0000;

    fn range(&self, address: u64, len: usize) -> Option<std::ops::Range<usize>> {
        let start = usize::try_from(address.checked_sub(Self::BASE)?).ok()?;
        (start + len <= self.0.len()).then_some(start..start + len)
    }
}

impl Memory for Bytes {
    fn load(&self, address: u64, to: &mut [u8]) -> bool {
        let Some(range) = self.range(address, to.len()) else { return false };
        to.copy_from_slice(&self.0[range]);
        true
    }

    fn store(&mut self, address: u64, from: &[u8]) -> bool {
        let Some(range) = self.range(address, from.len()) else { return false };
        self.0[range].copy_from_slice(from);
        true
    }
}
