//! Errors with which workers give rounds up, while they arrive; decides nothing about rounds.

use std::collections::BTreeMap;

use bytes::Bytes;

use gradlane_core::Error;
use gradlane_core::error::Result;
use gradlane_core::types::{ExchangeId, NodeId};
use gradlane_core::wire::{self, Withdraw, reject};

/// By exchange: those that are not whole. Each holds at most `wire::limits::REJECT_BYTES_MAX` bytes, and a link has so many exchanges.
#[derive(Default, Debug)]
pub struct Letters(BTreeMap<ExchangeId, Letter>);

#[derive(Debug)]
struct Letter {
    node: NodeId,
    header: Withdraw,
    body: Vec<u8>,
}

/// What somebody wrote.
#[derive(Debug)]
pub struct Word {
    /// Who, as the connection proved.
    pub node: NodeId,
    /// About which round.
    pub header: Withdraw,
    /// Why it is given up, unless these bytes are no error.
    pub error: Result<Error>,
}

impl Letters {
    /// One begins, with a header that has been checked.
    pub fn begin(&mut self, node: NodeId, exchange: ExchangeId, header: Withdraw) {
        self.0.insert(exchange, Letter { node, header, body: Vec::new() });
    }

    /// The next bytes of an exchange. `None` where it brings no letter, or not all of it.
    pub fn take(&mut self, exchange: ExchangeId, chunks: &[Bytes]) -> Option<Word> {
        let letter = self.0.get_mut(&exchange)?;
        chunks.iter().for_each(|chunk| wire::append(&mut letter.body, chunk));
        if (letter.body.len() as u64) < letter.header.error_bytes {
            return None;
        }
        let Letter { node, header, body } = self.0.remove(&exchange)?;
        Some(Word { node, header, error: reject::from_body(&body, &format!("node {node}")) })
    }

    /// The exchange is over.
    pub fn end(&mut self, exchange: ExchangeId) {
        self.0.remove(&exchange);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::aggregate::tests::{node, withdraw};

    #[test]
    fn a_letter_is_read_when_its_last_byte_came() {
        let body = reject::to_body(&Error::Cancelled);
        let long = reject::to_body(&Error::Internal { what: "a long story".to_owned() });
        for (body, told) in [(body, Error::Cancelled), (long, Error::Internal { what: "a long story".to_owned() })] {
            let header = Withdraw { error_bytes: body.len() as u64, ..withdraw(3) };
            let mut letters = Letters::default();
            letters.begin(node(2), ExchangeId(7), header);
            let (last, rest) = body.split_last().unwrap();
            for byte in rest {
                assert!(letters.take(ExchangeId(7), &[Bytes::copy_from_slice(&[*byte])]).is_none());
            }
            let word = letters.take(ExchangeId(7), &[Bytes::copy_from_slice(&[*last])]).unwrap();
            assert_eq!((word.node, word.header, word.error), (node(2), header, Ok(told)));
            assert!(letters.take(ExchangeId(7), &[]).is_none(), "it is read once");
        }
    }

    #[test]
    fn bytes_that_are_no_error_are_refused() {
        let mut letters = Letters::default();
        letters.begin(node(2), ExchangeId(7), Withdraw { error_bytes: 1, ..withdraw(3) });
        let word = letters.take(ExchangeId(7), &[Bytes::from_static(&[99])]).unwrap();
        assert!(matches!(word.error, Err(Error::Protocol { .. })), "{word:?}");
    }
}
