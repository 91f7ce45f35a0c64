//! Reassembles withdrawals: errors sent by workers that will not contribute to a round. Decides nothing about rounds.
//!
//! Only admitted workers get this far. The whole error is booked before its first byte is accepted, and given back when it was read or its
//! exchange ended. Each process has a small reserve for its withdrawals. A full budget does not refuse them, because a withdrawal ends a
//! round, which frees memory. What goes beyond a process's reserve is booked in the node's budget, so that no process can use up the reserve
//! of another one.

use std::collections::BTreeMap;

use bytes::Bytes;

use gradlane_core::Error;
use gradlane_core::error::Result;
use gradlane_core::types::{ExchangeId, NodeId, Time};
use gradlane_core::wire::limits::REJECT_BYTES_MAX;
use gradlane_core::wire::{self, Target, Withdraw, reject};

use super::budget::Budget;

/// Bytes of withdrawals that one process may have under way whatever the budget says: the longest error, or hundreds of usual ones.
const RESERVE_BYTES: u64 = REJECT_BYTES_MAX;

/// Withdrawals that are not whole, by exchange.
#[derive(Default, Debug)]
pub(super) struct Withdrawals {
    arriving: BTreeMap<ExchangeId, Withdrawal>,
    /// Bytes of the reserves that are in use, by process.
    reserved: BTreeMap<NodeId, u64>,
}

/// A withdrawal that is arriving, or has arrived.
#[derive(Debug)]
pub(super) struct Withdrawal {
    /// The process that sends it.
    pub(super) node: NodeId,
    /// About which round.
    pub(super) header: Withdraw,
    /// The bytes of the error that came.
    body: Vec<u8>,
    /// Whether it is booked in the reserve of its process.
    is_reserved: bool,
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
        let reserved = self.reserved.get(&node).copied().unwrap_or_default() + header.error_bytes;
        let is_reserved = reserved <= RESERVE_BYTES;
        if is_reserved {
            self.reserved.insert(node, reserved);
        } else {
            budget.take(now, header.error_bytes)?;
        }
        self.arriving.insert(exchange, Withdrawal { node, header, body: Vec::new(), is_reserved });
        Ok(())
    }

    /// Takes the next bytes of an exchange. Returns the withdrawal when it is whole.
    pub(super) fn receive(
        &mut self,
        exchange: ExchangeId,
        chunks: &[Bytes],
        budget: &mut Budget,
    ) -> Option<Withdrawal> {
        let withdrawal = self.arriving.get_mut(&exchange)?;
        chunks.iter().for_each(|chunk| wire::append(&mut withdrawal.body, chunk));
        if (withdrawal.body.len() as u64) < withdrawal.header.error_bytes { None } else { self.end(exchange, budget) }
    }

    /// The exchange is over.
    pub(super) fn end(&mut self, exchange: ExchangeId, budget: &mut Budget) -> Option<Withdrawal> {
        let withdrawal = self.arriving.remove(&exchange)?;
        let bytes = withdrawal.header.error_bytes;
        if withdrawal.is_reserved {
            let reserved = self.reserved.get_mut(&withdrawal.node).expect("this withdrawal uses it");
            *reserved -= bytes;
            if *reserved == 0 {
                self.reserved.remove(&withdrawal.node);
            }
        } else {
            budget.give_back(bytes);
        }
        Some(withdrawal)
    }

    /// The process that sends the withdrawal of an exchange, and what it is about.
    pub(super) fn sender(&self, exchange: ExchangeId) -> Option<(NodeId, Target)> {
        self.arriving.get(&exchange).map(|withdrawal| (withdrawal.node, withdrawal.header.target))
    }

    /// Whether none arrives.
    pub(super) fn is_empty(&self) -> bool {
        self.arriving.is_empty()
    }

    /// The exchanges that bring one.
    pub(super) fn exchanges(&self) -> Vec<ExchangeId> {
        self.arriving.keys().copied().collect()
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
    fn a_withdrawal_is_read_when_its_last_byte_came() {
        let body = reject::to_body(&Error::Cancelled);
        let long = reject::to_body(&Error::Internal { what: "a long story".to_owned() });
        for (body, told) in [(body, Error::Cancelled), (long, Error::Internal { what: "a long story".to_owned() })] {
            let (mut withdrawals, mut budget) = world(0);
            let header = begin(&mut withdrawals, &mut budget, 7, 2, body.len() as u64).unwrap();
            let (last, rest) = body.split_last().unwrap();
            for byte in rest {
                let one = [Bytes::copy_from_slice(&[*byte])];
                assert!(withdrawals.receive(ExchangeId(7), &one, &mut budget).is_none());
            }
            let one = [Bytes::copy_from_slice(&[*last])];
            let whole = withdrawals.receive(ExchangeId(7), &one, &mut budget).unwrap();
            assert_eq!((whole.node, whole.error()), (node(2), Ok(told)));
            assert_eq!(whole.header, header);
            assert!(withdrawals.receive(ExchangeId(7), &[], &mut budget).is_none(), "it is read once");
        }
    }

    #[test]
    fn bytes_that_are_no_error_are_refused() {
        let (mut withdrawals, mut budget) = world(0);
        begin(&mut withdrawals, &mut budget, 7, 2, 1).unwrap();
        let whole = withdrawals.receive(ExchangeId(7), &[Bytes::from_static(&[99])], &mut budget).unwrap();
        assert!(matches!(whole.error(), Err(Error::Protocol { .. })), "{whole:?}");
    }

    #[test]
    fn a_full_server_takes_withdrawals_up_to_the_reserve_of_each_process() {
        let (mut withdrawals, mut budget) = world(100);
        budget.take(Time::ZERO, 100).unwrap();
        begin(&mut withdrawals, &mut budget, 1, 2, RESERVE_BYTES - 10).unwrap();
        begin(&mut withdrawals, &mut budget, 2, 2, 10).unwrap();
        let refused = begin(&mut withdrawals, &mut budget, 3, 2, 1).unwrap_err();
        assert!(matches!(refused, Error::Exhausted { .. }), "{refused}");
        begin(&mut withdrawals, &mut budget, 4, 3, RESERVE_BYTES).unwrap();
        withdrawals.end(ExchangeId(2), &mut budget).unwrap();
        begin(&mut withdrawals, &mut budget, 5, 2, 10).unwrap();
        assert_eq!(budget.booked(), 100, "reserves are apart from the budget");
    }

    #[test]
    fn what_goes_beyond_a_reserve_is_booked_in_the_budget_until_it_ends() {
        let (mut withdrawals, mut budget) = world(100);
        begin(&mut withdrawals, &mut budget, 1, 2, RESERVE_BYTES).unwrap();
        begin(&mut withdrawals, &mut budget, 2, 2, 60).unwrap();
        assert_eq!(budget.booked(), 60);
        for exchange in [1, 2] {
            withdrawals.end(ExchangeId(exchange), &mut budget).unwrap();
        }
        assert_eq!((budget.booked(), withdrawals.reserved.len()), (0, 0));
    }

    fn world(bytes_max: u64) -> (Withdrawals, Budget) {
        (Withdrawals::default(), Budget::new(bytes_max, Duration::from_secs(1), Duration::from_secs(1)))
    }

    /// A process begins a withdrawal of so many bytes.
    fn begin(
        withdrawals: &mut Withdrawals,
        budget: &mut Budget,
        exchange: u64,
        rank: u32,
        error_bytes: u64,
    ) -> Result<Withdraw> {
        let header = Withdraw { error_bytes, ..withdraw(3) };
        withdrawals.begin(Time::ZERO, node(rank), ExchangeId(exchange), header.clone(), budget)?;
        Ok(header)
    }
}
