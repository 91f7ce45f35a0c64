//! Names as a hostile peer chooses them, for tests of what people are shown.

use gradlane_core::types::is_printable;

/// Checks that a name in `output` forges no line and steers no terminal.
pub(crate) fn check(output: impl Fn(&str) -> String) {
    let plain = output("x");
    for name in NAMES {
        let shown = output(name);
        assert!(shown.chars().all(|c| c == '\n' || is_printable(c)), "{name:?}: {shown:?}");
        assert_eq!(shown.lines().count(), plain.lines().count(), "{name:?}: {shown}");
        assert_ne!(shown, plain, "{name:?} is in it");
    }
}

/// With ESC, BEL, ends of lines, C1 controls, and format characters.
const NAMES: [&str; 9] = [
    "\u{1b}[2Ja",
    "a\u{7}b\0",
    "a\nERROR b",
    "a\r\nb",
    "a\rb",
    "\u{9b}2Ja",
    "\u{202e}b\u{2066}",
    "a\u{2028}b\u{2029}\u{85}",
    "\u{200b}\u{feff}a\u{e0041}",
];
