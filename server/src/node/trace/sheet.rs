//! The rows of a server's timeline.

use std::borrow::Cow;

use gradlane_core::runtime::timeline::{Event, Writer};
use gradlane_core::types::PartId;

/// An open file, and how many rows it has.
#[derive(Debug)]
pub(super) struct Sheet {
    writer: Writer,
    rows: u64,
}

impl Sheet {
    /// An empty one.
    pub(super) fn new(writer: Writer) -> Self {
        Self { writer, rows: 0 }
    }

    /// Names a new row of a part, which `what` tells from its other rows. `None` if there is no room for the name.
    pub(super) fn add_row(&mut self, part: PartId, what: impl Into<Cow<'static, str>>) -> Option<u64> {
        let row = self.rows + 1;
        let has_room = self.writer.send(Event::SumRow { row, part, what: what.into() });
        has_room.then(|| {
            self.rows = row;
            row
        })
    }

    /// Has an event written, if there is room.
    pub(super) fn send(&self, event: Event) {
        self.writer.send(event);
    }

    /// The file.
    pub(super) fn into_writer(self) -> Writer {
        self.writer
    }
}

/// No row: what goes there counts as lost.
pub(super) const NOWHERE: u64 = 0;
