//! The checksum of bodies: CRC-32C, as iSCSI uses it. All code that makes or checks a checksum calls this module.
//!
//! A body is checked at least twice on its way, and a sum as well, so this pass must be far cheaper than the others. `crc-fast` uses
//! carry-less multiplication of whole vectors. On one core of an EPYC with AVX-512, within the cache, it reaches 34 GB/s. The processor's
//! CRC instruction on three interleaved runs reaches 14 GB/s.

use crc_fast::{CrcAlgorithm, Digest};

/// The CRC-32C of `bytes` appended to data whose checksum is `crc`. The checksum of no data is 0.
///
/// ```
/// use gradlane_core::wire::checksum;
///
/// let whole = checksum(0, b"a part");
/// assert_eq!(checksum(checksum(0, b"a "), b"part"), whole);
/// ```
pub fn checksum(crc: u32, bytes: &[u8]) -> u32 {
    // The register between two runs is the complement of the checksum so far.
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!crc));
    digest.update(bytes);
    u32::try_from(digest.finalize()).expect("a CRC-32 has 32 bits")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_crc_of_the_standards() {
        assert_eq!(checksum(0, b""), 0);
        assert_eq!(checksum(0, b"123456789"), 0xe306_9283);
        // RFC 3720, appendix B.4.
        assert_eq!(checksum(0, &[0; 32]), 0x8a91_36aa);
        assert_eq!(checksum(0, &[0xff; 32]), 0x62a8_ab43);
    }

    #[test]
    fn any_cut_at_any_address_gives_the_same() {
        let bytes: Vec<u8> = (0..3000_u32).map(|index| (index.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        for start in [0, 1, 7, 63] {
            for len in [0, 1, 15, 16, 17, 127, 128, 255, 256, 257, 1023, 1024, 2048, 2900] {
                let run = &bytes[start..start + len];
                let expected = bit_by_bit(run);
                assert_eq!(checksum(0, run), expected, "{len} bytes from {start}");
                for at in [0, len / 3, len / 2, len] {
                    assert_eq!(
                        checksum(checksum(0, &run[..at]), &run[at..]),
                        expected,
                        "{len} bytes from {start}, cut at {at}"
                    );
                }
            }
        }
    }

    fn bit_by_bit(bytes: &[u8]) -> u32 {
        let step = |crc: u32, _| (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg());
        !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), step))
    }
}
