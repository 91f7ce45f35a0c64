//! From tensors to parts, and from parts to work: which stages a part passes, how tensors are cut and fused, which server sums what.
//!
//! All decisions here follow from sizes and topology alone, without a clock or randomness. So the same declarations give the same answer on
//! every process. [`sched`](crate::sched) decides when a part moves from stage to stage.

pub mod neighbours;
pub mod stage;
pub mod topology;

pub mod plan;

pub mod owner;
pub mod partition;
pub mod placement;

pub mod layout;
pub mod registry;

pub mod models;

pub use layout::Layouter;
pub use neighbours::{Attachment, PcieGroups};
pub use owner::server_of;
pub use partition::LayoutConfig;
pub use placement::{Placement, weights_for};
pub use plan::{Duty, Pipeline, Route};
pub use registry::{Lookup, ReadyPart, Registry, Submitted, Unit, Whole};
pub use stage::Stage;
pub use topology::Topology;
