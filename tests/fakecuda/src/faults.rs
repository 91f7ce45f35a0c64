//! What fails on demand.
//!
//! The setting `FAIL` is a list with commas: `cuMemHostAlloc=2` makes every such call answer 2, `cuMemHostAlloc=2@3` every one from the
//! third on, `cuMemHostAlloc=2@3*1` the third alone. Names go without `_v2`. The operations `DtoH`, `HtoD`, `DtoD`, `Fill`, `Kernel` and
//! `Host` fail when a stream executes them, after the call was accepted: the device has failed then, and answers that code to whatever
//! asks it. An addition `:1` to the name confines it to device 1: `DtoH:1=700@2`.

use std::sync::{Mutex, PoisonError};

#[derive(Clone, Debug, PartialEq)]
struct Fault {
    name: String,
    device: Option<usize>,
    code: u32,
    /// So many pass before.
    passing: u64,
    /// So many fail after that.
    failing: u64,
}

/// The list of them.
#[derive(Default)]
pub(crate) struct Faults(Mutex<Vec<Fault>>);

impl Faults {
    /// Replaces the list; whether it was understood.
    pub(crate) fn set(&self, text: &str) -> bool {
        let pieces = text.split(',').map(str::trim).filter(|piece| !piece.is_empty());
        let Some(faults) = pieces.map(Fault::parse).collect::<Option<Vec<Fault>>>() else { return false };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = faults;
        true
    }

    /// Asked at every call and every operation: the code with which this one fails.
    pub(crate) fn strike(&self, name: &str, device: Option<usize>) -> Option<u32> {
        let name = name.strip_suffix("_v2").or_else(|| name.strip_suffix("_v3")).unwrap_or(name);
        let mut faults = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let here = |fault: &&mut Fault| fault.name == name && fault.device.is_none_or(|only| Some(only) == device);
        for fault in faults.iter_mut().filter(here) {
            if fault.passing > 0 {
                fault.passing -= 1;
            } else if fault.failing > 0 {
                fault.failing -= 1;
                return Some(fault.code);
            }
        }
        None
    }
}

impl Fault {
    fn parse(text: &str) -> Option<Self> {
        let (name, rest) = text.split_once('=')?;
        let (code, place) = rest.split_once('@').unwrap_or((rest, "1"));
        let (first, times) = place.split_once('*').map_or((place, None), |(first, times)| (first, Some(times)));
        let (name, device) = name.split_once(':').map_or((name, None), |(name, device)| (name, Some(device)));
        let name = name.trim();
        let name = name.strip_suffix("_v2").or_else(|| name.strip_suffix("_v3")).unwrap_or(name);
        Some(Self {
            name: name.to_owned(),
            device: device.map(str::parse).transpose().ok()?,
            code: code.trim().parse().ok()?,
            passing: first.parse::<u64>().ok()?.checked_sub(1)?,
            failing: times.map_or(Ok(u64::MAX), str::parse).ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_begins_at_its_call_and_ends_after_its_times() {
        let faults = Faults::default();
        assert!(faults.set("cuMemAlloc_v2=2@2*2"));
        let answers: Vec<Option<u32>> = (0..5).map(|_| faults.strike("cuMemAlloc_v2", None)).collect();
        assert_eq!(answers, [None, Some(2), Some(2), None, None]);
    }

    #[test]
    fn a_fault_of_one_device_leaves_the_others_alone() {
        let faults = Faults::default();
        assert!(faults.set("DtoH:1=700, cuInit=100"));
        assert_eq!(faults.strike("DtoH", Some(0)), None);
        assert_eq!(faults.strike("DtoH", Some(1)), Some(700));
        assert_eq!(faults.strike("cuInit", None), Some(100));
    }

    #[test]
    fn a_list_that_is_not_understood_changes_nothing() {
        let faults = Faults::default();
        assert!(faults.set("cuInit=100"));
        assert!(!faults.set("cuInit"));
        assert!(!faults.set("cuInit=1@0"));
        assert_eq!(faults.strike("cuInit", None), Some(100));
    }
}
