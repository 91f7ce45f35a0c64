//! Whether a checkpoint fits the parameters of a job.

use gradlane_core::error::{Error, Result};
use gradlane_core::types::{LoadAsk, Missing, TensorSpec};

use super::manifest::{Manifest, SavedTensor};

/// The names of the parameters that a checkpoint lacks.
///
/// # Errors
/// [`Error::NotFound`] that names one, where that is not allowed, or a tensor that the job lacks; [`Error::FailedPrecondition`] for another
/// element type or shape.
pub fn compare(manifest: &Manifest, tensors: &[TensorSpec], ask: &LoadAsk) -> Result<Vec<String>> {
    let mut lacking = Vec::new();
    for tensor in tensors {
        match manifest.tensor(&tensor.name) {
            Some(saved) => check_tensor(saved, tensor)?,
            None => lacking.push(tensor.name.clone()),
        }
    }
    if let (Missing::Refuse, Some(name)) = (ask.missing, lacking.first()) {
        return Err(Error::NotFound {
            what: format!("parameter {name} in checkpoint {} of {}", manifest.checkpoint, ask.path),
            hint: "say what becomes of missing parameters, or load a checkpoint of this model".to_owned(),
        });
    }
    let is_known = |saved: &&SavedTensor| tensors.iter().any(|tensor| tensor.name == saved.name);
    if let (false, Some(saved)) = (ask.ignore_extra, manifest.tensors.iter().find(|saved| !is_known(saved))) {
        return Err(Error::NotFound {
            what: format!("parameter {} of checkpoint {} in this job", saved.name, manifest.checkpoint),
            hint: "declare it, or ignore what the checkpoint has beside the parameters of this job".to_owned(),
        });
    }
    Ok(lacking)
}

/// Refuses a tensor that was saved with another element type or shape.
///
/// # Errors
/// [`Error::FailedPrecondition`] that names both.
pub(super) fn check_tensor(saved: &SavedTensor, tensor: &TensorSpec) -> Result<()> {
    if saved.dtype()? == tensor.dtype && saved.shape == tensor.shape {
        return Ok(());
    }
    let shape = |shape: &[u64]| shape.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
    Err(Error::FailedPrecondition {
        what: format!(
            "tensor {}: it was saved as {} of shape ({}), and is {} of shape ({}) here",
            tensor.name,
            saved.dtype,
            shape(&saved.shape),
            tensor.dtype,
            shape(&tensor.shape)
        ),
        hint: "declare it as it was saved".to_owned(),
    })
}
