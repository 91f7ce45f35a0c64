//! What is in the dump of a coordinator.

use super::fields::{Fields, list, other, short};

/// What has happened to a job, as its coordinator tells it.
#[derive(Clone, Default, Debug)]
pub(super) struct Coordinator {
    /// Losses, refusals, sums that wait and what ends a job: when, and in words.
    pub(super) troubles: Vec<(u64, String)>,
}

impl Coordinator {
    /// That of the fields of a dump.
    ///
    /// # Errors
    /// What is wrong with them.
    pub(super) fn of(value: &Fields) -> Result<Self, String> {
        let mut troubles = Vec::new();
        for event in list(value, "events")? {
            let Some([at, what, member, _, _, text, ..]) = event.as_array().map(Vec::as_slice) else {
                return Err(short());
            };
            let (Some(at_ns), Some(what)) = (at.as_u64(), what.as_str()) else { return Err(other()) };
            if TROUBLES.contains(&what) {
                let text = text.as_str().unwrap_or("its cause is not kept any more");
                let member = member.as_str().map(|member| format!("{member} {what}: ")).unwrap_or_default();
                troubles.push((at_ns, member + text));
            }
        }
        Ok(Self { troubles })
    }
}

/// The words of events that may explain why a job is held up.
const TROUBLES: [&str; 10] =
    ["gave-up", "declaration-refused", "refused", "suspect", "lost", "stalled", "ends", "restores", "holds", "goes-on"];
