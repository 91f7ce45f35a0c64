//! What the fuzzer reaches of shared memory: the messages of a ring, and a server whose worker writes anything anywhere.

use super::layout::{MESSAGE_WORDS, Message};

/// A message of a ring has one form.
pub fn shm_message(bytes: &[u8]) {
    let mut words = [0; MESSAGE_WORDS];
    for (word, eight) in words.iter_mut().zip(bytes.chunks(8)) {
        let mut padded = [0; 8];
        padded.iter_mut().zip(eight).for_each(|(to, from)| *to = *from);
        *word = u64::from_le_bytes(padded);
    }
    if let Ok(message) = Message::decode(&words, "worker 0") {
        assert_eq!(message.encode(), words);
    }
}

/// Not yet.
pub fn shm_link(_bytes: &[u8]) {}
