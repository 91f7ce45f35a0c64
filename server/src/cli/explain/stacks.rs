//! Where a Python program was, from the text that `faulthandler` writes.

/// The places of the main thread's innermost functions that are not Gradlane's own, as `loader.py:17 (next_batch), called from train.py:40
/// (<module>)`. `None` if the text has no stack.
///
/// `faulthandler` writes the threads from the newest to the oldest, so the main thread comes last, and each stack from the innermost
/// function on. If the file has several dumps, the last one counts.
pub(super) fn main_thread(text: &str) -> Option<String> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let begin = lines.iter().rposition(|line| line.contains("(most recent call first)"))?;
    let frames: Vec<Frame<'_>> = lines[begin + 1..].iter().map_while(|line| Frame::of(line)).collect();
    let theirs: Vec<&Frame<'_>> = frames.iter().filter(|frame| !frame.is_ours()).take(FRAMES_MAX).collect();
    let told = if theirs.is_empty() { frames.iter().take(1).collect() } else { theirs };
    let places: Vec<String> = told.into_iter().map(Frame::place).collect();
    (!places.is_empty()).then(|| places.join(", called from "))
}

/// So many functions are told: the innermost one is often of a library.
const FRAMES_MAX: usize = 3;

/// A line such as `File "/a/loader.py", line 17 in next_batch`.
struct Frame<'a> {
    file: &'a str,
    line: u32,
    function: &'a str,
}

impl<'a> Frame<'a> {
    fn of(line: &'a str) -> Option<Self> {
        let (file, rest) = line.strip_prefix("File \"")?.rsplit_once("\", line ")?;
        let (line, function) = rest.split_once(" in ")?;
        Some(Self { file, line: line.parse().ok()?, function })
    }

    fn place(&self) -> String {
        let Self { file, line, function } = self;
        let name = file.rsplit('/').next().unwrap_or(file);
        format!("{name}:{line} ({function})")
    }

    /// Whether it is in the package of Gradlane: its callers say more.
    fn is_ours(&self) -> bool {
        self.file.contains("/gradlane/")
    }
}
