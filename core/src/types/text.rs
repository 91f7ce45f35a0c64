//! Texts of peers, as they are shown to people.

/// `text` with its control characters escaped, so that a peer cannot forge lines of a log or steer a terminal.
pub fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            c if c.is_control() => shown.extend(c.escape_default()),
            c => shown.push(c),
        }
    }
    shown
}
