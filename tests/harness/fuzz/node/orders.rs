//! The orders of the coordinator to save and load, and what comes of them.

use std::collections::BTreeSet;

use gradlane_core::cluster::MemberEvent;
use gradlane_core::error::Error;
use gradlane_core::mem::Pool;
use gradlane_core::types::{
    ClockKey, ClockStep, DType, Order, PartId, PartLayout, Piece, Plan, ServerId, Span, Task, TensorKind, Version,
    Written,
};
use gradlane_server::checkpoint::FrozenPart;
use gradlane_server::node::command::{Archive, Archived, Errand};

use super::super::input::Input;
use super::{PARTS, World, key};

impl World {
    /// The coordinator gives an order, or says one again.
    pub(super) fn order(&mut self, input: &mut Input<'_>) {
        let chosen = input.byte();
        self.orders += u64::from(chosen & 1);
        let parts = (0..PARTS).map(|index| PartId { key: key(input), index }).collect::<BTreeSet<_>>();
        let layout = |part: PartId| PartLayout {
            part,
            dtype: DType::F32,
            kind: TensorKind::PLAIN_PARAMETER,
            server: ServerId(0),
            pieces: vec![Piece { tensor: part.key, span: Span { offset: 0, bytes: 64 } }],
        };
        let plan = Plan { tensors: Vec::new(), parts: parts.into_iter().map(layout).collect() };
        let directory = "d".to_owned();
        let task = match chosen >> 1 & 3 {
            0 => Task::Save { directory, checkpoint: 1, plan },
            1 => Task::Read { directory, with_state: true, plan },
            2 => {
                Task::Apply { bases: vec![ClockStep { clock: ClockKey(1), step: u64::from(input.byte()), samples: 0 }] }
            }
            _ => Task::Cancel,
        };
        self.node.handle_member(MemberEvent::Order(Order { number: self.orders, task }));
    }

    /// The first order was carried out, or could not be.
    pub(super) fn archived(&mut self, input: &mut Input<'_>) {
        if self.archives.is_empty() {
            return;
        }
        let Archive { order, plan, errand, .. } = self.archives.remove(0);
        let is_good = input.byte() & 3 > 0;
        let mut versions = Vec::new();
        if let (Errand::Read { .. }, true) = (&errand, is_good) {
            for part in plan.parts.iter().map(|layout| layout.part) {
                let mut block = Pool::new().lease(64);
                block.fill(7);
                let read = FrozenPart { version: Version(1), blocks: vec![block.freeze()], optimizer: None };
                self.store.take_read(part, order, read);
                versions.push((part, Version(1)));
            }
        }
        let outcome = if is_good { Ok((Written::default(), versions)) } else { Err(Error::Cancelled) };
        self.node.handle_archived(Archived { order, outcome });
    }
}
