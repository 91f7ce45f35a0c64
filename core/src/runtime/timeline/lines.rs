//! Lines of JSON, written quickly: a busy job has hundreds of thousands of events in a second.

use std::fmt::{self, Write as _};

use crate::types::PartId;

/// Whole lines, and the room for more of them.
pub(super) struct Lines {
    pub(super) text: String,
    /// Bytes that may still come.
    room: u64,
    /// Whether something did not fit: nothing more is written, because a timeline with holes would mislead.
    is_full: bool,
    /// How many did not fit.
    pub(super) lost: u64,
}

impl Lines {
    /// Room for so many bytes.
    pub(super) fn new(room: u64) -> Self {
        Self { text: String::new(), room, is_full: false, lost: 0 }
    }

    /// Whether there is room for so many bytes.
    pub(super) fn has_room(&self, bytes: u64) -> bool {
        !self.is_full && bytes <= self.room
    }

    /// There is no room any more.
    pub(super) fn fill_up(&mut self) {
        self.is_full = true;
    }

    /// Adds an object with these members.
    pub(super) fn add(&mut self, members: fmt::Arguments<'_>) {
        self.add_with(|line| line.write_fmt(members).expect("a string takes everything"));
    }

    /// Adds an object whose members `write` adds, if there is room for it and was for all before it.
    pub(super) fn add_with(&mut self, write: impl FnOnce(&mut String)) {
        let before = self.text.len();
        self.text.push('{');
        write(&mut self.text);
        self.text.push_str("},\n");
        let bytes = (self.text.len() - before) as u64;
        if self.has_room(bytes) {
            self.room -= bytes;
        } else {
            self.is_full = true;
            self.text.truncate(before);
            self.lost += 1;
        }
    }
}

/// Adds a number after `before`.
pub(super) fn number(line: &mut String, before: &str, number: impl itoa::Integer) {
    line.push_str(before);
    line.push_str(itoa::Buffer::new().format(number));
}

/// Adds nanoseconds after `before`, in microseconds.
pub(super) fn micros(line: &mut String, before: &str, ns: i64) {
    line.push_str(before);
    if ns < 0 {
        line.push('-');
    }
    let ns = ns.unsigned_abs();
    number(line, "", ns / 1000);
    // A digit in front keeps the zeros.
    let digits = 1000 + ns % 1000;
    line.push('.');
    line.push_str(&itoa::Buffer::new().format(digits)[1..]);
}

/// A part, by which the events of workers and servers about one sum find each other.
pub(super) fn part(PartId { key, index }: PartId) -> String {
    format!(r#""key":"{key}","part":{index}"#)
}

/// A text as JSON has it.
pub(super) fn text(text: &str) -> serde_json::Value {
    serde_json::Value::from(text)
}

/// A text as it stands between the quotation marks of JSON.
pub(super) fn escaped(text: &str) -> String {
    let quoted = self::text(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nanoseconds_are_written_in_microseconds_with_all_digits() {
        for (ns, expected) in [
            (0, "0.000"),
            (7, "0.007"),
            (-1, "-0.001"),
            (1_500, "1.500"),
            (-2_000_000, "-2000.000"),
            (i64::MAX, "9223372036854775.807"),
            (i64::MIN, "-9223372036854775.808"),
        ] {
            let mut line = String::new();
            micros(&mut line, "", ns);
            assert_eq!(line, expected);
        }
    }

    #[test]
    fn after_a_line_that_does_not_fit_nothing_more_is_written() {
        let mut lines = Lines::new(20);
        lines.add(format_args!("{}", "a".repeat(6)));
        lines.add(format_args!("{}", "b".repeat(20)));
        lines.add(format_args!("c"));
        assert_eq!((lines.text.as_str(), lines.lost), ("{aaaaaa},\n", 2));
    }
}
