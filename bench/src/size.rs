//! Sizes as users write them.

use gradlane_core::config::units::{parse_bytes, print_bytes};

/// The largest size of a tensor, because a typing error should not fill the memory.
const BYTES_MAX: u64 = 16 << 30;

/// Bytes as nccl-tests writes them (`64K`, `4M`, `1G`: powers of 1024), or with an explicit unit (`4 MiB`, `4 MB`).
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let spelled = match text.chars().last() {
        Some(letter @ ('K' | 'k' | 'M' | 'm' | 'G' | 'g')) => format!("{}{letter}iB", &text[..text.len() - 1]),
        Some(_) | None => text.to_owned(),
    };
    match parse_bytes(&spelled) {
        Ok(0) => Err("a size of 0 bytes: nothing would be measured".to_owned()),
        Ok(bytes) if bytes > BYTES_MAX => Err(format!("is above {}, the largest size", print_bytes(BYTES_MAX))),
        Ok(bytes) => Ok(bytes),
        Err(problem) => Err(format!("{text:?} {problem}; write a size such as 65536, 64K, 4M, 1G, 4 MiB or 4 MB")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_written_as_in_nccl_tests_or_spelled_out() {
        for (text, bytes) in [("4M", 4 << 20), ("64k", 64 << 10), ("1G", 1 << 30), ("4 MB", 4_000_000), ("12", 12)] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }
}
