//! How reports look on a terminal: tables that fit its width. Programs that read a pipe get one line a row instead.

use std::io::{IsTerminal, Write};

use comfy_table::{ContentArrangement, Table, presets};
use gradlane_core::Result;
use gradlane_core::types::{is_printable, printable};

use crate::exit;

/// The columns of the terminal on standard output; nothing if standard output is none.
pub(super) fn columns() -> Option<u16> {
    size().map(|(columns, _)| columns)
}

/// The columns and the lines of the terminal on standard output; nothing if standard output is none.
pub(super) fn size() -> Option<(u16, u16)> {
    let stdout = std::io::stdout();
    let size = stdout.is_terminal().then(|| terminal_size::terminal_size_of(&stdout)).flatten();
    size.map(|(width, height)| (width.0, height.0))
}

/// Prints a result: lines for people, or JSON. A reader that has closed the pipe, such as `head`, is no failure.
pub(super) fn say(text: &str) -> Result<i32> {
    let _ = writeln!(std::io::stdout(), "{}", harmless(text.trim_end()));
    Ok(exit::SUCCESS)
}

/// `text` without what a terminal would obey. Names in it have been made printable before, in lines for people. JSON still has some of these
/// characters in its texts, so they are escaped as JSON escapes them.
fn harmless(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if c == '\n' || is_printable(c) {
            shown.push(c);
        } else {
            c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| shown.push_str(&format!("\\u{unit:04x}")));
        }
    }
    shown
}

/// Empties the terminal on standard output, and goes to its first line (ECMA-48: CUP, ED).
pub(super) fn clear() {
    let _ = write!(std::io::stdout(), "\x1b[H\x1b[2J");
}

/// Puts `text` over what the terminal shows, line by line, so that nothing flickers (ECMA-48: CUP, EL, ED).
pub(super) fn draw(text: &str) {
    let lines: String = harmless(text).lines().map(|line| format!("{line}\x1b[K\n")).collect();
    let mut stdout = std::io::stdout();
    let _ = write!(stdout, "\x1b[H{lines}\x1b[J").and_then(|()| stdout.flush());
}

/// A table with `header` (none if it is empty). A cell is one printable line. Long cells wrap if `columns` are given and not enough.
pub(super) fn table<const N: usize>(
    header: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
    columns: Option<u16>,
) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    if header.iter().any(|name| !name.is_empty()) {
        table.set_header(header);
    }
    table.add_rows(rows.into_iter().map(|row| row.map(|cell| printable(&cell))));
    match columns {
        Some(columns) => table.set_content_arrangement(ContentArrangement::Dynamic).set_width(columns),
        None => table.set_content_arrangement(ContentArrangement::Disabled),
    };
    table.lines().fold(String::new(), |text, line| text + line.trim_end() + "\n")
}

/// A table for each heading, in the order in which the headings come first.
pub(super) fn sections<const N: usize>(rows: impl IntoIterator<Item = (String, [String; N])>, columns: u16) -> String {
    let mut sections: Vec<(String, Vec<[String; N]>)> = Vec::new();
    for (heading, row) in rows {
        match sections.last_mut() {
            Some((last, rows)) if *last == heading => rows.push(row),
            Some(_) | None => sections.push((heading, vec![row])),
        }
    }
    let texts = sections.into_iter().map(|(heading, rows)| heading + "\n" + &table([""; N], rows, Some(columns)));
    texts.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_fits_its_columns_and_loses_no_word() {
        let rows = || [["partition_bytes", "4 MiB", "larger tensors are split into parts of this size at most"]];
        let rows = || rows().map(|row| row.map(str::to_owned));
        let text = table(["setting", "value", "meaning"], rows(), Some(50));
        assert!(text.lines().all(|line| line.chars().count() <= 50), "{text}");
        for word in rows()[0][2].split(' ') {
            assert!(text.contains(word), "{word}: {text}");
        }
        let text = table(["setting", "value", "meaning"], rows(), None);
        assert_eq!(text.lines().count(), 2, "one line a row: {text}");
    }

    #[test]
    fn json_stays_json_and_steers_no_terminal() {
        let value = serde_json::json!({ "job": "a\u{9b}2J\u{202e}\u{e0041}\n\"é" });
        let shown = harmless(&format!("{value}\n{value}"));
        assert!(shown.chars().all(|c| c == '\n' || is_printable(c)), "{shown}");
        let read: Vec<serde_json::Value> = shown.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(read, [value.clone(), value]);
    }

    #[test]
    fn rows_with_one_heading_stand_together() {
        let row = |heading: &str, cell: &str| (heading.to_owned(), [cell.to_owned()]);
        let text = sections([row("a", "1"), row("a", "2"), row("b", "3")], 80);
        let lines: Vec<_> = text.lines().map(str::trim).collect();
        assert_eq!(lines, ["a", "1", "2", "", "b", "3"]);
    }
}
