//! What the fuzzer reaches of the files of a launcher.

use super::rendezvous::{content, join_in, published, writer};

/// A file with a join string, published by a coordinator or written by hand.
pub fn rendezvous(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let (join, writer) = (published(text), writer(text));
    // A carriage return before the end of a line belongs to the end.
    let is_plain = |found: &&super::writer_process::WriterProcess| !found.host.ends_with('\r');
    if let (Ok(join), Some(found)) = (&join, writer.as_ref().filter(is_plain)) {
        let written = content(join, found);
        assert_eq!(
            (published(&written).as_ref(), super::rendezvous::writer(&written).as_ref()),
            (Ok(join), Some(found))
        );
    }
    match join_in(text) {
        Ok(Some(named)) => assert_eq!(Ok(named), join),
        Ok(None) => assert!(join.is_err(), "an empty line is no join string"),
        Err(error) => assert_eq!(Err(error), join),
    }
}

/// A file that this process would publish.
pub fn a_rendezvous(join: &gradlane_core::types::join::JoinString) -> Vec<u8> {
    let writer = super::writer_process::WriterProcess {
        pid: 77,
        start: 123_456,
        namespace: "pid:[4026531836]".to_owned(),
        host: "n1".to_owned(),
    };
    content(join, &writer).into_bytes()
}
