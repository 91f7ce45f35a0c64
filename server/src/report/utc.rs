//! A date in UTC, for people and for names of files.

use time::OffsetDateTime;

/// A moment as `2026-11-30T16:08:48Z`, by nanoseconds since 1970.
pub(super) fn utc(unix_ns: u64) -> String {
    let at = OffsetDateTime::from_unix_timestamp_nanos(unix_ns.into()).expect("it is before the year 2555");
    let (year, month, day, (hour, minute, second)) = (at.year(), u8::from(at.month()), at.day(), at.to_hms());
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_is_that_of_the_calendar() {
        for (seconds, date) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_796_054_928, "2026-11-30T16:08:48Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
            (u64::MAX / 1_000_000_000 - 1, "2554-07-21T23:34:32Z"),
        ] {
            assert_eq!(utc(seconds * 1_000_000_000 + 999_999_999), date);
        }
    }
}
