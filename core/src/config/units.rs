//! Quantities as people write them: `4 MiB`, `250ms`, `2m`. Values are exact: a value that is not a whole number of the smallest unit is
//! refused, never rounded.

use std::time::Duration;

/// Parses a number of bytes; a plain number is bytes. `KiB` counts 1024, `KB` counts 1000, in either case.
///
/// # Errors
/// A description of the fault, as the end of a sentence that begins with the text.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let bytes = scaled(text, BYTES)?;
    u64::try_from(bytes).map_err(|_| "is too large".to_owned())
}

/// Parses a length of time; a plain number is seconds.
///
/// # Errors
/// As [`parse_bytes`].
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let nanos = scaled(text, TIMES)?;
    u64::try_from(nanos).map(Duration::from_nanos).map_err(|_| "is too long".to_owned())
}

/// Writes a number of bytes in the largest unit that needs no fraction.
pub fn print_bytes(bytes: u64) -> String {
    print(u128::from(bytes), &["TiB", "GiB", "MiB", "KiB", "B"], BYTES)
}

/// Writes a length of time in the largest unit, at most seconds, that needs no fraction.
pub fn print_duration(duration: Duration) -> String {
    print(duration.as_nanos(), &["s", "ms", "us", "ns"], TIMES)
}

/// A unit and the number of smallest units in it. The empty name is that of a plain number.
type Units = &'static [(&'static str, u128)];

const BYTES: Units = &[
    ("", 1),
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
];

const TIMES: Units = &[
    ("", 1_000_000_000),
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("min", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// `number` or `number unit`, in the smallest unit. The fraction is scaled as an integer, because a float would make 0.1 s a different
/// time.
fn scaled(text: &str, units: Units) -> Result<u128, String> {
    let text = text.trim();
    let end = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(text.len());
    let (number, unit) = (&text[..end], text[end..].trim());
    let Some((_, scale)) = units.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)) else {
        let names: Vec<&str> = units.iter().map(|(name, _)| *name).filter(|name| !name.is_empty()).collect();
        return Err(format!("has the unit {unit:?}, which is none of {}", names.join(", ")));
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = format!("{whole}{fraction}");
    if whole.is_empty() || digits.len() > DIGITS_MAX {
        return Err("is no number".to_owned());
    }
    let digits: u128 = digits.parse().map_err(|_| "is no number".to_owned())?;
    let divisor = 10_u128.pow(u32::try_from(fraction.len()).expect("few digits"));
    let scaled = digits.checked_mul(*scale).ok_or("is too large")?;
    if scaled % divisor != 0 {
        return Err("is finer than the smallest unit".to_owned());
    }
    Ok(scaled / divisor)
}

/// More digits than any quantity here has, and few enough that ten to this power fits a `u128`.
const DIGITS_MAX: usize = 24;

fn print(quantity: u128, names: &[&str], units: Units) -> String {
    let scale = |name: &str| units.iter().find(|(unit, _)| *unit == name).expect("a listed unit").1;
    match names.iter().find(|name| quantity.is_multiple_of(scale(name))) {
        Some(name) if quantity > 0 => format!("{} {name}", quantity / scale(name)),
        Some(_) | None => quantity.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn bytes_take_binary_and_decimal_units() {
        for (text, bytes) in [
            ("0", 0),
            ("4096000", 4_096_000),
            ("4MiB", 4 << 20),
            ("64 KiB", 64 << 10),
            ("64 kib", 64 << 10),
            ("1.5 GiB", 3 << 29),
            ("10MB", 10_000_000),
            (" 7 B ", 7),
        ] {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn a_plain_duration_is_in_seconds() {
        for (text, millis) in [("10", 10_000), ("0.25", 250), ("250ms", 250), ("2m", 120_000), ("1.5 h", 5_400_000)] {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, problem) in [
            ("", "is no number"),
            ("MiB", "is no number"),
            (".5", "is no number"),
            ("1.2.3", "is no number"),
            ("-1", "has the unit \"-1\""),
            ("4M", "none of B, KiB"),
            ("1.5", "finer"),
            ("99999999999999999999", "too large"),
            ("1111111111111111111111111111111111111111111111111", "is no number"),
        ] {
            let found = parse_bytes(text).unwrap_err();
            assert!(found.contains(problem), "{text:?}: {found}");
        }
        assert!(parse_duration("999999999h").unwrap_err().contains("too long"));
    }

    #[test]
    fn what_is_written_is_as_short_as_it_is_exact() {
        assert_eq!(print_bytes(4 << 20), "4 MiB");
        assert_eq!(print_bytes(4_096_000), "4000 KiB");
        assert_eq!(print_bytes(0), "0");
        assert_eq!(print_duration(Duration::from_millis(250)), "250 ms");
        assert_eq!(print_duration(Duration::from_secs(300)), "300 s");
        assert_eq!(print_duration(Duration::ZERO), "0");
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(quantity: u64) {
            prop_assert_eq!(parse_bytes(&print_bytes(quantity)), Ok(quantity));
            let duration = Duration::from_nanos(quantity);
            prop_assert_eq!(parse_duration(&print_duration(duration)), Ok(duration));
        }

        #[test]
        fn any_text_parses_or_fails_but_never_panics(text in "[0-9.]{0,60}\\PC{0,5}") {
            let _ = (parse_bytes(&text), parse_duration(&text));
        }
    }
}
