//! From tensors to parts, and from parts to work: which stages a part passes, how tensors are cut and fused, which server sums what.
//!
//! Everything here is decided from sizes and topology alone, without clock or randomness, so that the same declarations give the
//! same answer everywhere. When a part moves from stage to stage is the business of [`sched`](crate::sched).

pub mod neighbours;
pub mod stage;
pub mod topology;

pub mod plan;

pub mod partition;
pub mod placement;

pub mod layout;
pub mod registry;

pub mod models;

pub use layout::Layouter;
pub use neighbours::{Attachment, PcieGroups};
pub use partition::LayoutConfig;
pub use placement::{Placement, weights_for};
pub use plan::{Duty, Pipeline, Route};
pub use registry::{Lookup, ReadyPart, Registry, Submitted, Unit, Whole};
pub use stage::Stage;
pub use topology::Topology;
