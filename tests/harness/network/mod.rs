//! Networks that are as bad as a test wants them: a relay of datagrams ([`Relay`]), what it does to them ([`Conditions`]), and the table
//! of bad networks that jobs must live with ([`CASES`]).

mod cases;
mod path;
mod relay;
mod trial;

pub use cases::{CASES, Case, Due};
pub use path::{CLEAR, CUT, Conditions, Loss, OVERTAKEN, Path, Rate};
pub use relay::Relay;
pub use trial::{CALL_ENDS, Moment, Outcome, RECOVERY_MAX, run};
