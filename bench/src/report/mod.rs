//! What was measured, and how it is shown: columns as those of nccl-tests, JSON, expectations.

mod figures;

mod columns;
mod fitted;
mod reasons;
pub(crate) mod screen;

mod conclusion;
mod expect;
mod json;
mod record;

pub(crate) use columns::{Columns, DEFINITIONS};
pub(crate) use conclusion::Conclusion;
pub(crate) use figures::{Figures, OneMachine, Place, Report, Row, smoke_note};
pub(crate) use fitted::Outline;
pub(crate) use record::{Output, Record};
