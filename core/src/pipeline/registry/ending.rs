//! Tensors whose names end.

use std::collections::BTreeSet;

use super::{Registry, State};
use crate::error::{Error, Result};
use crate::types::{TensorKey, TensorSpec};

impl Registry {
    /// The keys of these names, if they may end. The caller must check that none of them is being reduced.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if a name was not declared, or shares a part with one that is not among them;
    /// [`Error::FailedPrecondition`] if the declaration of one has no answer yet.
    pub fn check_ending(&self, names: &[String]) -> Result<BTreeSet<TensorKey>> {
        let keys: BTreeSet<TensorKey> = names.iter().map(|name| TensorKey::of(name)).collect();
        for name in names {
            let tensor = self.tensors.get(&TensorKey::of(name)).filter(|tensor| tensor.spec.name == *name);
            let parts = match tensor.map(|tensor| &tensor.state) {
                Some(State::Ready { parts }) => parts.as_slice(),
                Some(State::Failed { .. }) => &[],
                Some(State::Declaring { .. }) => {
                    return Err(Error::FailedPrecondition {
                        what: format!("tensor {name} is still being declared"),
                        hint: "wait for the answer before you undeclare it".to_owned(),
                    });
                }
                None => {
                    return Err(Error::InvalidArgument {
                        what: format!("tensor {name} is not declared on {}", self.rank),
                        hint: "undeclare each name once, on every worker; a tensor without elements is not declared"
                            .to_owned(),
                    });
                }
            };
            let mut pieces = parts.iter().flat_map(|share| &share.part.pieces);
            if let Some(other) = pieces.find(|piece| !keys.contains(&piece.tensor)) {
                return Err(Error::InvalidArgument {
                    what: format!("tensor {name} shares a part with {}", self.label(other.tensor)),
                    hint: "undeclare tensors that were declared together in one call".to_owned(),
                });
            }
        }
        Ok(keys)
    }

    /// Forgets these tensors, which [`check_ending`](Self::check_ending) returned. They cannot be declared until [`ended`](Self::ended).
    pub fn end(&mut self, keys: &BTreeSet<TensorKey>) {
        for key in keys {
            let tensor = self.tensors.remove(key).expect("it was checked");
            if let State::Ready { parts } = tensor.state {
                for share in parts {
                    self.drop_assemblies(share.part.part);
                    self.parts.remove(&share.part.part);
                }
            }
        }
        self.ending.extend(keys);
    }

    /// The coordinator will hear that these tensors are used no more before it hears of another declaration.
    pub fn ended(&mut self, keys: &BTreeSet<TensorKey>) {
        self.ending.retain(|key| !keys.contains(key));
    }

    pub(super) fn check_not_ending(&self, spec: &TensorSpec) -> Result<()> {
        if self.ending.is_empty() || !self.ending.contains(&spec.key()) {
            return Ok(());
        }
        Err(Error::FailedPrecondition {
            what: format!("tensor {} is being undeclared", spec.name),
            hint: "wait until that is done before you use the name again".to_owned(),
        })
    }
}
