//! The commands of a node to its driver, and the receipts of bodies.

use std::time::Duration;

use gradlane_core::codec;
use gradlane_core::codec::feedback::Start;
use gradlane_core::error::{Error, Result};
use gradlane_core::types::{CodecSpec, DType, ExchangeId, Late, LinkId, Op, PartId, Round, Squares, WorkerId, Written};
use gradlane_core::wire::frame::Stall;
use gradlane_core::wire::{About, Body, Sum};

mod archive;
mod missing;
mod parameter;
mod table;

pub use self::archive::{Archive, Archived, Errand};
pub use self::missing::Missing;
pub use self::parameter::{Change, KeyUse, ValueStep, ValueUpload};
pub use self::table::{AskedRows, RowsStep, Served};

/// The sum of one round of one part, from its first byte to its last reader.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SlotId {
    /// The part.
    pub part: PartId,
    /// The round.
    pub round: Round,
}

/// What the driver must do.
#[derive(Clone, PartialEq, Debug)]
pub enum Command {
    /// Carry out the next step of a service on memory. The steps of one part are carried out in their order.
    ///
    /// If the step [receives](Work::receives) a body, the driver notes the route of its exchange, so that the bytes of the body go there, and
    /// then accepts the body.
    Step(Work),
    /// Accept the body of an exchange that has no route. Its bytes go to [`Node::handle_body`](super::machine::Node::handle_body).
    Accept {
        /// The exchange.
        exchange: ExchangeId,
    },
    /// Forget the route of an exchange, because nothing more of its body is needed.
    Unroute {
        /// The exchange.
        exchange: ExchangeId,
    },
    /// Send an error; the exchange has ended.
    Reject {
        /// The exchange.
        exchange: ExchangeId,
        /// What the exchange was about, under the server's epoch.
        about: About,
        /// Why.
        error: Error,
    },
    /// Let the peer of a link have sent so many bytes that nobody has read.
    Grant {
        /// The link.
        link: LinkId,
        /// How many.
        unread_bytes_max: u64,
    },
    /// Close a link. Its exchanges end as if it had broken, and no event of it must follow.
    Disconnect {
        /// The link.
        link: LinkId,
        /// Why.
        reason: Error,
    },
    /// Tell the log that a request had to wait for memory. At most once a `stall_warn`.
    Short {
        /// The figures.
        shortage: Shortage,
    },
    /// Write parts to a checkpoint, or read them. The steps that freeze the parts come after this command. Its outcome goes to
    /// [`Node::handle_archived`](super::machine::Node::handle_archived).
    Archive(Archive),
    /// Tell the coordinator what became of its order.
    Obeyed {
        /// The number of the order.
        order: u64,
        /// What was written or read, or why not.
        outcome: Result<Written>,
    },
    /// Count how long a round took, and who was late.
    Timed {
        /// From its first header to its sum.
        took: Duration,
        /// The worker whose contribution came last, and how long only it was missing, without the time in which another round waited for it alone. `None`
        /// if the round had one contribution.
        last: Option<(WorkerId, Late)>,
        /// Whether it is a further step: no round of a higher or equal number had a sum before.
        is_step: bool,
    },
    /// Tell the coordinator that a round waits.
    Stalled {
        /// Which round, for which workers, since when.
        stall: Stall,
    },
    /// Tell the coordinator this server's share of the norm of a round, and again on each new connection.
    Measured {
        /// The share.
        squares: Squares,
    },
}

/// A step of one of the services on memory: what the [`Store`](super::store::Store) carries out.
#[derive(Clone, PartialEq, Debug)]
pub enum Work {
    /// Of a sum.
    Sum {
        /// The slot.
        slot: SlotId,
        /// What to do.
        step: Step,
    },
    /// Of a parameter.
    Parameter {
        /// The part.
        part: PartId,
        /// What to do.
        step: ValueStep,
    },
    /// Of a table.
    Table {
        /// The part.
        part: PartId,
        /// What to do.
        step: RowsStep,
    },
}

impl Work {
    /// The part that it is about.
    pub fn part(&self) -> PartId {
        match self {
            Self::Sum { slot, .. } => slot.part,
            Self::Parameter { part, .. } | Self::Table { part, .. } => *part,
        }
    }

    /// The exchange whose body it receives, and where the bytes go. `None` if it receives none.
    pub fn receives(&self) -> Option<(ExchangeId, Route)> {
        match self {
            Self::Sum { slot, step: Step::Receive { worker, exchange, .. } } => {
                Some((*exchange, Route::Sum { slot: *slot, worker: *worker }))
            }
            Self::Sum { slot, step: Step::TakeGift { exchange, .. } } => {
                Some((*exchange, Route::Gift { part: slot.part }))
            }
            Self::Parameter { part, step: ValueStep::Receive { exchange, .. } } => {
                Some((*exchange, Route::Parameter { part: *part }))
            }
            Self::Table { part, step: RowsStep::Serve { exchange, asked } } if asked.header.body_bytes() > 0 => {
                Some((*exchange, Route::Table { part: *part }))
            }
            Self::Sum {
                step:
                    Step::Begin(_)
                    | Step::Publish { .. }
                    | Step::Answer { .. }
                    | Step::Seal
                    | Step::Drop
                    | Step::DropResidual
                    | Step::DropGift
                    | Step::AnswerResidual { .. },
                ..
            }
            | Self::Parameter {
                step:
                    ValueStep::Change { .. }
                    | ValueStep::Keep { .. }
                    | ValueStep::Merge { .. }
                    | ValueStep::Apply { .. }
                    | ValueStep::Release { .. }
                    | ValueStep::Forget { .. }
                    | ValueStep::Answer { .. }
                    | ValueStep::Freeze { .. }
                    | ValueStep::Restore { .. }
                    | ValueStep::Unread
                    | ValueStep::Drop,
                ..
            }
            | Self::Table { .. } => None,
        }
    }

    /// The exchange that it answers, and the bytes of the answer's body, or the most that they can be. `None` if it answers none.
    pub fn answers(&self) -> Option<(ExchangeId, u64)> {
        match self {
            Self::Sum { step: Step::Answer { exchange, header, .. }, .. } => Some((*exchange, header.body.bytes)),
            Self::Sum { step: Step::AnswerResidual { exchange, header, .. }, .. } => {
                Some((*exchange, header.body.bytes))
            }
            Self::Parameter { step: ValueStep::Answer { exchange, header, .. }, .. } => {
                Some((*exchange, header.part_bytes))
            }
            Self::Sum {
                step:
                    Step::Begin(_)
                    | Step::Receive { .. }
                    | Step::Publish { .. }
                    | Step::Seal
                    | Step::Drop
                    | Step::DropResidual
                    | Step::TakeGift { .. }
                    | Step::DropGift,
                ..
            }
            | Self::Parameter {
                step:
                    ValueStep::Receive { .. }
                    | ValueStep::Change { .. }
                    | ValueStep::Keep { .. }
                    | ValueStep::Merge { .. }
                    | ValueStep::Apply { .. }
                    | ValueStep::Release { .. }
                    | ValueStep::Forget { .. }
                    | ValueStep::Freeze { .. }
                    | ValueStep::Restore { .. }
                    | ValueStep::Unread
                    | ValueStep::Drop,
                ..
            }
            | Self::Table { .. } => None,
        }
    }
}

/// Where the bytes of a body go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Route {
    /// Into a sum.
    Sum {
        /// Which one.
        slot: SlotId,
        /// Whose contribution it is.
        worker: WorkerId,
    },
    /// To the residual that is given for a sum.
    Gift {
        /// Which part of it.
        part: PartId,
    },
    /// To a parameter.
    Parameter {
        /// Which part of it.
        part: PartId,
    },
    /// To a table.
    Table {
        /// Which part of it.
        part: PartId,
    },
}

impl Route {
    /// The part that it leads to.
    pub fn part(&self) -> PartId {
        match self {
            Self::Sum { slot, .. } => slot.part,
            Self::Gift { part } | Self::Parameter { part } | Self::Table { part } => *part,
        }
    }
}

/// A request for which there was no memory, for the log of the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shortage {
    /// Bytes that were asked for.
    pub wanted: u64,
    /// Bytes in use.
    pub booked: u64,
    /// Bytes that there are.
    pub bytes_max: u64,
}

/// A step in the life of a sum: `Begin`, any number of `Receive` and `Answer`, `Publish` and `Seal` in between, `Drop`.
#[derive(Clone, PartialEq, Debug)]
pub enum Step {
    /// Begin a sum without contributions.
    Begin(SumSpec),
    /// Take the contribution of `worker` from what `exchange` brings. What earlier exchanges brought of it stays; the rest of them is
    /// ignored.
    Receive {
        /// Whose contribution.
        worker: WorkerId,
        /// What brings it.
        exchange: ExchangeId,
        /// What its header said.
        upload: Upload,
    },
    /// All contributions have begun: send each block of the sum as soon as all have passed it, but for the last.
    Publish {
        /// What the sum is divided by.
        divisor: f64,
        /// If its codec has error feedback: how the answer uses the residual of the part, which the sum has from now on.
        residual: Option<Feedback>,
    },
    /// Send the sum, from its first block on.
    Answer {
        /// To whom; an earlier exchange of the same worker gets no more.
        worker: WorkerId,
        /// On which exchange.
        exchange: ExchangeId,
        /// Complete, but for the length of a body that varies: the most that it can be stands there.
        header: Sum,
    },
    /// All contributions are whole: the last block may go too. The part gets its residual back.
    Seal,
    /// Free the memory. Blocks that are being sent stay alive until they are sent. A residual that the sum still has is gone with it.
    Drop,
    /// Free the residual of the part, whatever the round.
    DropResidual,
    /// Take the residual that `exchange` brings for the part, of so many bytes and with this CRC-32C. What was given before is freed.
    TakeGift {
        /// What brings it.
        exchange: ExchangeId,
        /// How long it is.
        bytes: u64,
        /// What its body must have.
        checksum: u32,
    },
    /// Free what was given for the part, as far as it came.
    DropGift,
    /// Answer a use of the residual of the part.
    AnswerResidual {
        /// On which exchange.
        exchange: ExchangeId,
        /// Complete.
        header: Sum,
        /// What to send: the residual that an answer would begin with. `None` if nothing was asked for.
        shown: Option<Feedback>,
    },
}

/// How an answer uses the residual of its part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Feedback {
    /// Where it begins.
    pub start: Start,
    /// Whether that is kept beside what the answer leaves, so that the answer can be taken back.
    pub is_held: bool,
    /// Whether what was given takes the place of what the answers before have left.
    pub is_given: bool,
}

impl Feedback {
    /// Nothing was there before, and nothing is kept.
    pub const NONE: Self = Self { start: Start::Zero, is_held: false, is_given: false };
}

/// What is summed.
#[derive(Clone, PartialEq, Debug)]
pub struct SumSpec {
    /// Bytes of the part in its own element type.
    pub bytes: u64,
    /// Its element type.
    pub dtype: DType,
    /// How its bodies encode it, contributions and sum alike.
    pub codec: CodecSpec,
    /// How contributions are combined.
    pub op: Op,
    /// Who contributes, by rank.
    pub senders: Vec<WorkerId>,
    /// In which order they are added.
    pub order: Order,
    /// Bytes of a contribution that one block of the sum holds; a multiple of eight, so that no element lies in two blocks. With a codec it
    /// is as many of them as whole units have.
    pub block_bytes: u64,
}

/// In which order contributions are added.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// As their bytes come.
    Arrival,
    /// By rank, so that every run gives the same bits.
    Rank,
}

impl SumSpec {
    /// The place of a worker among the senders.
    pub fn sender(&self, worker: WorkerId) -> Option<usize> {
        self.senders.binary_search(&worker).ok()
    }

    /// Bytes of a body, or the most that they can be.
    pub fn body_bytes(&self) -> u64 {
        codec::body_bytes(self.codec, self.dtype, self.bytes).max()
    }

    /// Bytes of memory for the sum: 16-bit floats become f32, and encoded elements what their codec says, but a broadcast keeps its bits.
    pub fn grown_bytes(&self) -> u64 {
        let accumulator = match self.op {
            Op::Broadcast { .. } => self.dtype,
            _ => codec::of(self.codec, self.dtype).map_or(self.dtype.accumulator(), |codec| codec.sum_type()),
        };
        self.bytes / self.dtype.bytes() * accumulator.bytes()
    }
}

/// What a header says of the contribution that follows it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Upload {
    /// What follows; the same in a repeat.
    pub body: Body,
    /// Its factor in a weighted mean.
    pub weight: f64,
    /// CRC-32C of the contribution, as it was before anything landed on it.
    pub checksum: Option<u32>,
    /// How many of its first bytes are overwritten with the sum.
    pub landed: u64,
}

/// The receipt of a body, and how busy the store was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Added {
    /// What became of the body.
    pub receipt: Receipt,
    /// For how long there was always something that the store had not added yet.
    pub behind: Duration,
}

impl From<Receipt> for Added {
    /// Of a store that was not behind.
    fn from(receipt: Receipt) -> Self {
        Self { receipt, behind: Duration::ZERO }
    }
}

/// The receipt of a body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Receipt {
    /// All of it was taken.
    Whole,
    /// All of it was taken, but its checksum is wrong. A sum is spoiled by it; of a parameter nothing was changed.
    Damaged,
    /// It cannot be taken. Of a contribution, bytes that were not taken are overwritten. Of a parameter, a defect of the server has lost the
    /// value.
    Lost,
}
