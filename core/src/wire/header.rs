//! The 64 bytes that open each direction of an exchange.

use bytes::Bytes;

use crate::error::{Error, Result};
use crate::types::{DType, Epoch, Op, PartId, Round, TensorKey};

use super::{VERSION, check_version, limits};

/// Bytes of an encoded header.
pub const HEADER_BYTES: usize = 64;

/// The most urgent class of exchanges.
pub const URGENCY_MAX: u8 = 7;

const MAGIC: [u8; 4] = *b"GLNE";

/// Opens one direction of an exchange; the module's parent has the picture.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Header {
    /// What it opens.
    pub kind: HeaderKind,
    /// See [`Flags`].
    pub flags: Flags,
    /// The membership the sender believes in.
    pub epoch: Epoch,
    /// Which part of which tensor.
    pub part: PartId,
    /// Its element type.
    pub dtype: DType,
    /// How it is reduced.
    pub op: Op,
    /// Which sum.
    pub round: Round,
    /// Bytes of the part or, where an error follows, of that.
    pub bytes: u64,
    /// Push: this worker's weight. Sum: what the sum was divided by.
    pub weight: f64,
    /// Sum: how many workers contributed. 0 elsewhere (a broadcast's root travels with `op`).
    pub contributors: u32,
    /// Which of two exchanges on one link goes first; higher is sooner. 0 to 7.
    pub urgency: u8,
    /// Push with [`Flags::CHECKSUM`]: CRC-32C of the body. Push with [`Flags::RESUMED`]: how many bytes of the sum landed. 0 elsewhere.
    pub checksum: u32,
}

/// What an exchange header opens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum HeaderKind {
    /// Worker to server: a contribution, or the wish for the sum.
    Push = 1,
    /// Server to worker: the sum follows.
    Sum = 2,
    /// Server to worker: an encoded error follows.
    Reject = 3,
    /// Worker to server: it will not contribute to the round, and an encoded error follows that says why.
    GiveUp = 4,
}

impl HeaderKind {
    /// Whether it opens an exchange, and does not answer one.
    pub fn opens(self) -> bool {
        match self {
            Self::Push | Self::GiveUp => true,
            Self::Sum | Self::Reject => false,
        }
    }
}

/// A set of bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Flags(pub u16);

impl Flags {
    /// Push: `checksum` is the body's. Sum: the CRC-32C of the body follows it, as 4 bytes in little-endian order.
    pub const CHECKSUM: Self = Self(1);
    /// Push: no body follows, though `bytes` still tells the part's length.
    pub const NO_BODY: Self = Self(2);
    /// Push: a repeat, after bytes of the sum landed where the contribution lay; `checksum` tells how many. Never with
    /// [`Flags::CHECKSUM`].
    pub const RESUMED: Self = Self(8);
    /// Sum: the server has not received the whole contribution yet and still wants the rest.
    pub const EARLY: Self = Self(16);

    const ALL: u16 = 27;

    /// Whether all bits of `other` are set.
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The bits of both.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl Header {
    /// Bytes that follow the header on the stream.
    pub fn body_bytes(&self) -> u64 {
        if self.flags.contains(Flags::NO_BODY) { 0 } else { self.bytes }
    }

    /// Bytes that follow the body of a sum: its checksum, where there is one.
    pub fn trailer_bytes(&self) -> usize {
        if self.kind == HeaderKind::Sum && self.flags.contains(Flags::CHECKSUM) { size_of::<u32>() } else { 0 }
    }

    /// The header's bytes on the wire, to be sent.
    pub fn to_bytes(&self) -> Bytes {
        Bytes::from(self.encode().to_vec())
    }

    /// The header's bytes on the wire.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let argument = match self.kind {
            HeaderKind::Push | HeaderKind::GiveUp => self.op.argument(),
            HeaderKind::Sum | HeaderKind::Reject => self.contributors,
        };
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..4].copy_from_slice(&MAGIC);
        bytes[4] = VERSION;
        bytes[5] = self.kind as u8;
        bytes[6..8].copy_from_slice(&self.flags.0.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.epoch.term.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.epoch.number.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.part.key.0.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.part.index.to_le_bytes());
        bytes[28] = self.dtype as u8;
        bytes[29] = self.op.code();
        bytes[30] = self.urgency;
        bytes[32..40].copy_from_slice(&self.round.0.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.bytes.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.weight.to_le_bytes());
        bytes[56..60].copy_from_slice(&argument.to_le_bytes());
        bytes[60..64].copy_from_slice(&self.checksum.to_le_bytes());
        bytes
    }

    /// What is wrong with a header of which `peer` sent only these bytes: perhaps it is whole in another version, where it was shorter.
    pub fn cut_short(bytes: &[u8], peer: &str) -> Error {
        if let [magic @ .., version] = bytes.get(..=MAGIC.len()).unwrap_or_default()
            && *magic == MAGIC
            && let Err(other_version) = check_version(*version, peer)
        {
            return other_version;
        }
        let problem = format!("ends after {} bytes", bytes.len());
        Error::Protocol { peer: peer.to_owned(), field: "header".to_owned(), problem }
    }

    /// Reads a header that `peer` sent, checking every field.
    ///
    /// # Errors
    /// [`Error::Incompatible`] for another version, [`Error::Protocol`] naming the field for anything else.
    pub fn decode(bytes: &[u8; HEADER_BYTES], peer: &str) -> Result<Self> {
        let bad =
            |field: &str, problem: String| Error::Protocol { peer: peer.to_owned(), field: field.to_owned(), problem };
        let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));

        if bytes[0..4] != MAGIC {
            return Err(bad("magic", format!("is {:02x?} instead of {MAGIC:02x?}", &bytes[0..4])));
        }
        check_version(bytes[4], peer)?;
        let kind = match bytes[5] {
            1 => HeaderKind::Push,
            2 => HeaderKind::Sum,
            3 => HeaderKind::Reject,
            4 => HeaderKind::GiveUp,
            code => return Err(bad("kind", format!("is {code}"))),
        };
        let flags = Flags(u16::from_le_bytes([bytes[6], bytes[7]]));
        if flags.0 & !Flags::ALL != 0 {
            return Err(bad("flags", format!("are {:#06x}", flags.0)));
        }
        if flags.contains(Flags::RESUMED) && flags.contains(Flags::CHECKSUM) {
            return Err(bad("flags", "announce a checksum of a body that is partly overwritten".to_owned()));
        }
        if flags.contains(Flags::RESUMED) && flags.contains(Flags::NO_BODY) {
            return Err(bad("flags", "resume a body and announce none".to_owned()));
        }
        if kind == HeaderKind::GiveUp && flags != Flags::default() {
            return Err(bad("flags", format!("are {:#06x} where nothing is contributed", flags.0)));
        }
        let dtype = DType::from_code(bytes[28]).ok_or_else(|| bad("dtype", format!("is {}", bytes[28])))?;
        let argument = u32_at(56);
        let root = if kind.opens() { argument } else { 0 };
        let op = Op::from_code(bytes[29], root).ok_or_else(|| bad("op", format!("is {}", bytes[29])))?;
        op.check(dtype).map_err(|_| bad("op", format!("is {op} of {dtype}")))?;
        let urgency = bytes[30];
        if urgency > URGENCY_MAX {
            return Err(bad("urgency", format!("is {urgency}, above {URGENCY_MAX}")));
        }
        if bytes[31] != 0 {
            return Err(bad("reserved byte", format!("is {}", bytes[31])));
        }
        let length = u64_at(40);
        let limit = match kind {
            HeaderKind::Push | HeaderKind::Sum => limits::PART_BYTES_MAX,
            HeaderKind::Reject | HeaderKind::GiveUp => limits::REJECT_BYTES_MAX,
        };
        if length > limit {
            return Err(bad("length", format!("is {length}, above {limit}")));
        }
        if matches!(kind, HeaderKind::Push | HeaderKind::Sum) && length % dtype.bytes() != 0 {
            return Err(bad("length", format!("is {length}, no multiple of {} bytes", dtype.bytes())));
        }
        let weight = f64::from_bits(u64_at(48));
        if !weight.is_finite() || weight < 0.0 {
            return Err(bad("weight", format!("is {weight}")));
        }
        Ok(Self {
            kind,
            flags,
            epoch: Epoch { term: u32_at(8), number: u32_at(12) },
            part: PartId { key: TensorKey(u64_at(16)), index: u32_at(24) },
            dtype,
            op,
            round: Round(u64_at(32)),
            bytes: length,
            weight,
            contributors: if kind.opens() { 0 } else { argument },
            urgency,
            checksum: u32_at(60),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::types::WorkerId;

    fn push() -> Header {
        Header {
            kind: HeaderKind::Push,
            flags: Flags::CHECKSUM,
            epoch: Epoch { term: 2, number: 3 },
            part: PartId { key: TensorKey(0x0102_0304_0506_0708), index: 9 },
            dtype: DType::F16,
            op: Op::Broadcast { root: WorkerId(5) },
            round: Round(77),
            bytes: 4096,
            weight: 1.5,
            contributors: 0,
            urgency: 6,
            checksum: 0xdead_beef,
        }
    }

    #[test]
    fn golden_bytes() {
        #[rustfmt::skip]
        let golden: [u8; HEADER_BYTES] = [
            b'G', b'L', b'N', b'E', 4, 1, 1, 0,  2, 0, 0, 0, 3, 0, 0, 0,
            8, 7, 6, 5, 4, 3, 2, 1,              9, 0, 0, 0, 3, 6, 6, 0,
            77, 0, 0, 0, 0, 0, 0, 0,             0, 16, 0, 0, 0, 0, 0, 0,
            0, 0, 0, 0, 0, 0, 0xf8, 0x3f,        5, 0, 0, 0, 0xef, 0xbe, 0xad, 0xde,
        ];
        assert_eq!(push().encode(), golden);
        assert_eq!(Header::decode(&golden, "worker 0"), Ok(push()));
    }

    #[test]
    fn each_bad_field_is_named() {
        for (at, value, field) in [
            (0, 0, "magic"),
            (5, 9, "kind"),
            (7, 1, "flags"),
            (6, 4, "flags"),
            (28, 0, "dtype"),
            (29, 0, "op"),
            (6, 9, "flags"),
            (30, 8, "urgency"),
            (31, 1, "reserved"),
            (40, 1, "length"),
            (47, 1, "length"),
            (55, 0xff, "weight"),
        ] {
            let mut bytes = push().encode();
            bytes[at] = value;
            let error = Header::decode(&bytes, "worker 0").unwrap_err().to_string();
            assert!(error.contains(field), "byte {at}: {error}");
        }
    }

    #[test]
    fn a_round_is_given_up_with_an_error_of_any_length_and_without_flags() {
        let header = Header { kind: HeaderKind::GiveUp, flags: Flags::default(), bytes: 4097, ..push() };
        assert_eq!(Header::decode(&header.encode(), "worker 0"), Ok(header));
        for (bad, field) in [
            (Header { flags: Flags::NO_BODY, ..header }, "flags"),
            (Header { bytes: limits::REJECT_BYTES_MAX + 1, ..header }, "length"),
        ] {
            let error = Header::decode(&bad.encode(), "worker 0").unwrap_err().to_string();
            assert!(error.contains(field), "{error}");
        }
    }

    #[test]
    fn another_version_is_named_on_both_sides() {
        for version in [VERSION - 1, VERSION + 1] {
            // Whatever else it may say.
            let mut bytes = [0xee; HEADER_BYTES];
            bytes[..4].copy_from_slice(&MAGIC);
            bytes[4] = version;
            let both = |error: Error| match error {
                Error::Incompatible { field, ours, theirs, .. } => [field, ours, theirs],
                other => panic!("{other}"),
            };
            let expected = ["protocol version", &VERSION.to_string(), &version.to_string()].map(str::to_owned);
            assert_eq!(both(Header::decode(&bytes, "worker 0").unwrap_err()), expected);
            for length in [5, 40, 63] {
                assert_eq!(both(Header::cut_short(&bytes[..length], "worker 0")), expected, "a shorter header");
            }
        }
    }

    #[test]
    fn a_header_that_ends_early_says_where() {
        let whole = push().encode();
        for length in [0, 4, 5, 63] {
            let error = Header::cut_short(&whole[..length], "worker 0").to_string();
            assert!(error.contains(&format!("header ends after {length} bytes")), "{error}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_decode_or_fail_but_never_panic(bytes in proptest::array::uniform32(any::<u8>()), tail in proptest::array::uniform32(any::<u8>())) {
            let mut header = push().encode();
            header[5..32].copy_from_slice(&bytes[5..]);
            header[32..].copy_from_slice(&tail);
            if let Ok(decoded) = Header::decode(&header, "worker 0") {
                prop_assert_eq!(Header::decode(&decoded.encode(), "worker 0"), Ok(decoded));
            }
        }
    }
}
