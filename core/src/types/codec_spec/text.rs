//! Codecs as users write them.

use std::fmt;
use std::str::FromStr;

use super::{CodecSpec, Encoding, FEEDBACK, FLAGS, MOMENTA, TABLE, known_parameters, two_shares};
use crate::error::{Error, Result};
use crate::types::Momentum;

impl fmt::Display for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.row().name)
    }
}

/// As it is parsed. Parameters with their default are left out.
impl fmt::Display for CodecSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = self.parameters().iter().zip(self.encoding.row().parameters);
        let told: Vec<String> = named
            .filter(|(value, parameter)| **value != parameter.default)
            .map(|(value, parameter)| format!("{}={value}", parameter.name))
            .chain(FLAGS.iter().filter(|(bit, _)| self.flags & bit != 0).map(|(_, name)| format!("{name}=1")))
            .chain(self.momentum.map(|momentum| {
                let [correction, nesterov] = MOMENTA;
                let name = if momentum.is_nesterov() { nesterov } else { correction };
                format!("{name}={}", momentum.millionths())
            }))
            .collect();
        if told.is_empty() {
            return self.encoding.fmt(f);
        }
        f.pad(&format!("{}:{}", self.encoding, told.join(",")))
    }
}

impl FromStr for CodecSpec {
    type Err = Error;

    /// Reads `name`, or `name:parameter=value,parameter=value`.
    fn from_str(text: &str) -> Result<Self> {
        let (name, assignments) = text.split_once(':').map_or((text, None), |(name, rest)| (name, Some(rest)));
        let row = TABLE.iter().find(|row| row.name == name).ok_or_else(|| Error::InvalidArgument {
            what: format!("there is no codec {text:?}"),
            hint: format!("use one of {}", TABLE.each_ref().map(|row| row.name).join(", ")),
        })?;
        let mut spec = Self::of(row.encoding);
        let mut named = 0_u32; // The parameters that have a word, as bits.
        for word in assignments.into_iter().flat_map(|assignments| assignments.split(',')) {
            let unknown = || Error::InvalidArgument {
                what: format!("codec {text:?}: {word:?} sets no parameter"),
                hint: known_parameters(row.encoding),
            };
            let (parameter, value) = word.split_once('=').ok_or_else(unknown)?;
            let flag = FLAGS.iter().find(|(bit, name)| *name == parameter.trim() && row.flags & bit != 0);
            if let Some((bit, _)) = flag {
                match value.trim() {
                    "0" => spec.flags &= !bit,
                    "1" => spec.flags |= bit,
                    _ => return Err(unknown()),
                }
                continue;
            }
            if row.flags & FEEDBACK != 0
                && let Some(kind) = MOMENTA.iter().position(|name| *name == parameter.trim())
            {
                let millionths = value.trim().parse().map_err(|_| unknown())?;
                spec.momentum = Some(Momentum::new(millionths, kind == 1)?);
                continue;
            }
            let index = row.parameters.iter().position(|known| known.name == parameter.trim()).ok_or_else(unknown)?;
            let value = value.trim().parse().map_err(|_| unknown())?;
            row.parameters[index].check(row.encoding, value)?;
            spec.parameters[index] = value;
            named |= 1 << index;
        }
        if spec.encoding == Encoding::TopK && named & 0b11 == 0b11 && spec.parameters[1] > 0 {
            return Err(two_shares(spec));
        }
        if spec.momentum.is_some() && !spec.has_feedback() {
            return Err(Error::InvalidArgument {
                what: format!("codec {text:?} has a momentum and no error feedback"),
                hint: "add feedback=1".to_owned(),
            });
        }
        spec.check()
    }
}
