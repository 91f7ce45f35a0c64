//! Texts of peers, as they are shown to people.

/// `text` with everything escaped that is not printable, so that a peer cannot forge lines of a log, steer a terminal, or turn the order of
/// letters round.
pub fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if is_printable(c) {
            shown.push(c);
        } else {
            shown.extend(c.escape_default());
        }
    }
    shown
}

/// Whether people see `c` as itself. Control and format characters, ends of lines, spaces other than `' '`, and what Unicode has not assigned
/// are not printable. That is the rule of `str.isprintable` in Python.
pub fn is_printable(c: char) -> bool {
    match c {
        ' '..='~' => true,
        // `escape_debug` has the same rule, and escapes a combining character only where it begins a text.
        c => ['a', c].iter().collect::<String>().escape_debug().nth(1) == Some(c),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_printable_is_escaped_and_all_else_is_kept() {
        for (text, shown) in [
            ("layer4.conv3.weight", "layer4.conv3.weight"),
            (r#"C:\a "b" 'c'"#, r#"C:\a "b" 'c'"#),
            ("é e\u{301} 漢字 🙂 \u{fe0f}", "é e\u{301} 漢字 🙂 \u{fe0f}"),
            ("a\nb\r\tc\0", r"a\nb\r\tc\u{0}"),
            ("\u{1b}[2J\u{7f}", r"\u{1b}[2J\u{7f}"),
            ("\u{9b}2J", r"\u{9b}2J"),
            ("\u{202e}abc\u{2066}", r"\u{202e}abc\u{2066}"),
            ("a\u{2028}b\u{2029}", r"a\u{2028}b\u{2029}"),
            ("a\u{a0}b\u{3000}", r"a\u{a0}b\u{3000}"),
            ("\u{200b}\u{200d}\u{feff}\u{ad}", r"\u{200b}\u{200d}\u{feff}\u{ad}"),
            ("\u{e000}\u{e0041}\u{10ffff}", r"\u{e000}\u{e0041}\u{10ffff}"),
        ] {
            assert_eq!(printable(text), shown);
            assert_eq!(printable(shown), shown, "once more changes nothing");
        }
    }
}
