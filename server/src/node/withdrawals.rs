//! Reassembles withdrawals: errors sent by workers that will not contribute to a round. Decides nothing about rounds.
//!
//! Only admitted workers get this far. The whole error is booked in the node's budget before its first byte is accepted, and given back when
//! it was read or its exchange ended.

use std::collections::BTreeMap;

use bytes::Bytes;

use gradlane_core::Error;
use gradlane_core::error::Result;
use gradlane_core::types::{ExchangeId, NodeId, Time};
use gradlane_core::wire::{self, Target, Withdraw, reject};

use super::budget::Budget;

/// Withdrawals that are not whole, by exchange.
#[derive(Default, Debug)]
pub(super) struct Withdrawals(BTreeMap<ExchangeId, Withdrawal>);

/// A withdrawal that is arriving, or has arrived.
#[derive(Debug)]
pub(super) struct Withdrawal {
    /// The process that sends it.
    pub(super) node: NodeId,
    /// About which round.
    pub(super) header: Withdraw,
    /// The bytes of the error that came.
    body: Vec<u8>,
}

impl Withdrawals {
    /// Books a withdrawal whose header has been checked.
    pub(super) fn begin(
        &mut self,
        now: Time,
        node: NodeId,
        exchange: ExchangeId,
        header: Withdraw,
        budget: &mut Budget,
    ) -> Result<()> {
        budget.take(now, header.error_bytes)?;
        self.0.insert(exchange, Withdrawal { node, header, body: Vec::new() });
        Ok(())
    }

    /// Takes the next bytes of an exchange. Returns the withdrawal when it is whole.
    pub(super) fn receive(
        &mut self,
        exchange: ExchangeId,
        chunks: &[Bytes],
        budget: &mut Budget,
    ) -> Option<Withdrawal> {
        let withdrawal = self.0.get_mut(&exchange)?;
        chunks.iter().for_each(|chunk| wire::append(&mut withdrawal.body, chunk));
        if (withdrawal.body.len() as u64) < withdrawal.header.error_bytes { None } else { self.end(exchange, budget) }
    }

    /// The exchange is over.
    pub(super) fn end(&mut self, exchange: ExchangeId, budget: &mut Budget) -> Option<Withdrawal> {
        let withdrawal = self.0.remove(&exchange)?;
        budget.give_back(withdrawal.header.error_bytes);
        Some(withdrawal)
    }

    /// The process that sends the withdrawal of an exchange, and what it is about.
    pub(super) fn sender(&self, exchange: ExchangeId) -> Option<(NodeId, Target)> {
        self.0.get(&exchange).map(|withdrawal| (withdrawal.node, withdrawal.header.target))
    }

    /// The exchanges that bring one.
    pub(super) fn exchanges(&self) -> Vec<ExchangeId> {
        self.0.keys().copied().collect()
    }
}

impl Withdrawal {
    /// The error that was sent, or the reason why these bytes are none.
    pub(super) fn error(&self) -> Result<Error> {
        reject::from_body(&self.body, &format!("node {}", self.node))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::node::aggregate::tests::{node, withdraw};

    #[test]
    fn a_withdrawal_is_read_when_its_last_byte_came_and_is_booked_until_then() {
        let body = reject::to_body(&Error::Cancelled);
        let long = reject::to_body(&Error::Internal { what: "a long story".to_owned() });
        for (body, told) in [(body, Error::Cancelled), (long, Error::Internal { what: "a long story".to_owned() })] {
            let header = Withdraw { error_bytes: body.len() as u64, ..withdraw(3) };
            let (mut withdrawals, mut budget) = begun(header);
            let (last, rest) = body.split_last().unwrap();
            for byte in rest {
                let one = [Bytes::copy_from_slice(&[*byte])];
                assert!(withdrawals.receive(ExchangeId(7), &one, &mut budget).is_none());
            }
            assert_eq!(budget.booked(), body.len() as u64);
            let one = [Bytes::copy_from_slice(&[*last])];
            let whole = withdrawals.receive(ExchangeId(7), &one, &mut budget).unwrap();
            assert_eq!((whole.node, whole.header, whole.error()), (node(2), header, Ok(told)));
            assert_eq!(budget.booked(), 0);
            assert!(withdrawals.receive(ExchangeId(7), &[], &mut budget).is_none(), "it is read once");
        }
    }

    #[test]
    fn bytes_that_are_no_error_are_refused() {
        let (mut withdrawals, mut budget) = begun(Withdraw { error_bytes: 1, ..withdraw(3) });
        let whole = withdrawals.receive(ExchangeId(7), &[Bytes::from_static(&[99])], &mut budget).unwrap();
        assert!(matches!(whole.error(), Err(Error::Protocol { .. })), "{whole:?}");
    }

    fn begun(header: Withdraw) -> (Withdrawals, Budget) {
        let (mut withdrawals, mut budget) = (Withdrawals::default(), Budget::new(100, Duration::ZERO));
        withdrawals.begin(Time::ZERO, node(2), ExchangeId(7), header, &mut budget).unwrap();
        (withdrawals, budget)
    }
}
