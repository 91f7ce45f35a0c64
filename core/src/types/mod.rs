//! The basic types of the engine: identities, element types, reductions, time.

pub mod access;
pub mod address;
pub mod checkpoint;
pub mod clock;
pub mod codec_choice;
pub mod codec_spec;
pub mod control;
pub mod defect;
pub mod device;
pub mod done;
pub mod dtype;
pub mod finding;
pub mod join;
pub mod kind;
pub mod kv;
pub mod layout;
pub mod machines;
pub mod mode;
pub mod momentum;
pub mod op;
pub mod operation;
pub mod participants;
pub mod priority;
pub mod process;
pub mod recovery;
pub mod role;
pub mod row_action;
pub mod rule;
pub mod shared_secret;
pub mod span;
pub mod steps;
pub mod store;
pub mod table;
pub mod text;
pub mod time;
pub mod version;
pub mod view;
pub mod worker_set;
pub mod workers_key;

pub use crate::id::{
    Epoch, ExchangeId, Incarnation, LinkId, MachineId, NodeId, PartId, Round, ServerId, TensorKey, WorkerId,
};
pub use access::{Access, Demand, ResidualUse, Update};
pub use address::{Address, Peer, Reach, Scheme};
pub use checkpoint::{
    CheckpointAsk, Checkpointed, ClockStep, Contents, LoadAsk, Missing, Order, Plan, SaveAsk, TableFile, Task, Written,
    check_saved,
};
pub use clock::{Answer, Ask, Closing, Half, Squares, Tick, Ticked};
pub use codec_choice::CodecChoice;
pub use codec_spec::{CodecSpec, Encoding};
pub use control::{Control, ControlAnswer, ControlCommand, Recipient, Stats};
pub use defect::{Defect, planted};
pub use device::{DeviceKind, InCopies};
pub use done::Done;
pub use dtype::DType;
pub use finding::Finding;
pub use join::JoinString;
pub use kind::{Declared, Difference, Extent, TensorKind};
pub use kv::KeyPart;
pub use layout::{PartLayout, Piece, TensorSpec};
pub use machines::Machines;
pub use mode::{ClockKey, Compensation, Effect, Fate, Merge, Mode, Pace, Quorum, Staleness};
pub use momentum::Momentum;
pub use op::{Op, total_weight};
pub use operation::{Claim, Declined, Goal, Slot, Unmet, meeting_again};
pub use participants::Participants;
pub use priority::Priority;
pub use process::{Process, Wiring};
pub use recovery::{Holdings, SumId};
pub use role::Role;
pub use row_action::{RowAction, RowsCut, ScanPoint, ShrinkBounds};
pub use rule::{Average, Optimizer, Rule, Schedule};
pub use shared_secret::SharedSecret;
pub use span::Span;
pub use steps::{Passage, StepReport};
pub use store::{StoreAnswer, StoreAsk};
pub use table::{Admission, Full, RowForm, RowInit, Shards, Spread, TableSpec, Turns};
pub use text::printable;
pub use time::Time;
pub use version::Version;
pub use view::{HostPlace, Member, Phase, View};
pub use worker_set::WorkerSet;
pub use workers_key::WorkersKey;
