//! Checks of a submission that do not need the machine.

use std::sync::Arc;

use super::memory::Memory;
use crate::config::NanCheck;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::types::{Demand, InCopies, Op, TensorSpec};

/// The thread that submits parts up to this length pushes them itself, because copying them takes no longer than waking another thread.
pub(super) const HERE_BYTES_MAX: u64 = 64 << 10;

/// Refuses invalid submissions, whatever the job's state.
pub(super) fn check(
    tensor: &TensorSpec,
    source: &Memory,
    destination: &Memory,
    demand: Demand,
    device: Option<&Arc<dyn Device>>,
) -> Result<()> {
    tensor.participants.check(&tensor.name)?;
    check_tensor(tensor, [source.len(), destination.len()], demand)?;
    let invalid = |what: String, hint: &str| Err(Error::InvalidArgument { what, hint: hint.to_owned() });
    match (source.device(), destination.device(), device) {
        (None, None, _) => {}
        (_, _, None) => {
            return invalid(
                format!("tensor {}: memory of a device, of which this process was given none", tensor.name),
                "copy the tensor to host memory, or start with support for the device",
            );
        }
        (from, to, Some(device)) if from != to => {
            let name =
                |ordinal: Option<_>| ordinal.map_or_else(|| "the host".to_owned(), |ordinal| device.name(ordinal));
            return invalid(
                format!("tensor {}: from memory of {} to memory of {}", tensor.name, name(from), name(to)),
                "source and result must lie on one device",
            );
        }
        (_, _, Some(_)) => {}
    }
    if let Demand::Reduce { weight, .. } = demand
        && (!weight.is_finite() || weight < 0.0)
    {
        return invalid(format!("weight {weight}"), "a weight is zero or a positive number");
    }
    Ok(())
}

/// Refuses a tensor of which this cannot be asked, or with source and result of another length than its own.
pub(super) fn check_tensor(tensor: &TensorSpec, bytes: [usize; 2], demand: Demand) -> Result<()> {
    demand.check(tensor)?;
    // How long these are follows from the ids of a use; the engine has made them.
    let is_of_rows = matches!(demand, Demand::Rows { .. });
    if is_of_rows || bytes.iter().all(|bytes| tensor.bytes() == Some(*bytes as u64)) {
        return Ok(());
    }
    let (TensorSpec { name, dtype, shape, .. }, [source, result]) = (tensor, bytes);
    Err(Error::InvalidArgument {
        what: format!("tensor {name}: shape {shape:?} of {dtype} with buffers of {source} and {result} bytes"),
        hint: "both buffers must be as long as the shape says".to_owned(),
    })
}

/// What copies of the device in whose memory `source` lies do with a tensor and its codec. Nothing where contributions are looked at: the
/// elements must come to the host first.
pub(super) fn in_copies(
    tensor: &TensorSpec,
    source: &Memory,
    device: Option<&Arc<dyn Device>>,
    nan_check: NanCheck,
) -> InCopies {
    let may_encode = source.device().is_some() && nan_check == NanCheck::Off;
    let device = device.filter(|_| may_encode);
    device.map_or(InCopies::Nothing, |device| device.in_copies(tensor.dtype, tensor.kind.codec()))
}

/// A root, members and a receiver must be workers with which the job began, `size` in number.
pub(super) fn check_ranks(tensors: &[TensorSpec], demand: Demand, size: u32) -> Result<()> {
    let is_of_all = |tensor: &TensorSpec| tensor.participants.is_everybody();
    let root = match demand.op() {
        Some(Op::Broadcast { root }) => Some(root),
        _ if tensors.iter().all(is_of_all) => return Ok(()),
        _ => None,
    };
    if let Some(root) = root.filter(|root| root.0 >= size) {
        return Err(Error::InvalidArgument {
            what: format!("a broadcast from {root}, which does not exist in a job of {size} workers"),
            hint: format!("give a root from 0 to {}", size.saturating_sub(1)),
        });
    }
    tensors.iter().try_for_each(|tensor| tensor.participants.check_size(&tensor.name, size))
}
