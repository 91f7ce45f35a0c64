//! The keys and values of a key-value store, within the limits of a job.
//!
//! The coordinator keeps those of a job of several processes. A job of one worker keeps its own.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::types::{StoreAnswer, StoreAsk};
use crate::wire::limits::{self, STORE_BYTES_MAX, STORE_ENTRY_BYTES};

/// Keys with their values. Every [`StoreAsk`] happens as a whole or changes nothing.
#[derive(Default, Debug)]
pub struct Entries {
    values: BTreeMap<String, Vec<u8>>,
    /// What the entries count, at most [`STORE_BYTES_MAX`].
    bytes: usize,
}

impl Entries {
    /// Carries out a request at once. A read of an absent key is answered by [`StoreAnswer::Value`] without a value, also if the request
    /// wants to wait: waiting is for the caller.
    ///
    /// # Errors
    /// As [`limits::check_store_ask`]; [`Error::Exhausted`] if a value or the whole store would become too large;
    /// [`Error::InvalidArgument`] for a sum with a value that is no number, or that no 64-bit integer holds.
    pub fn ask(&mut self, ask: StoreAsk) -> Result<StoreAnswer> {
        limits::check_store_ask(&ask)?;
        match ask {
            StoreAsk::Put { key, value, expected: None } => self.set(key, value),
            StoreAsk::Put { key, value, expected: Some(expected) } => {
                let present = self.values.get(&key);
                if present.map_or(&[][..], Vec::as_slice) != expected {
                    return Ok(StoreAnswer::Value(present.cloned()));
                }
                self.set(key, value)
            }
            StoreAsk::Add { key, amount } => {
                let sum = self.sum(&key, amount)?;
                self.set(key, sum.to_string().into_bytes())?;
                Ok(StoreAnswer::Number(sum))
            }
            StoreAsk::Append { key, value } => {
                let present = self.values.get(&key).map_or(&[][..], Vec::as_slice);
                let whole = [present, &value].concat();
                self.set(key, whole)
            }
            StoreAsk::Get { key, wait: _ } => Ok(StoreAnswer::Value(self.values.get(&key).cloned())),
            StoreAsk::Delete { key, is_prefix } => {
                let keys = if is_prefix { self.keys(&key) } else { vec![key] };
                let gone = keys.into_iter().filter(|key| self.remove(key)).count();
                Ok(StoreAnswer::Number(gone.try_into().expect("keys are counted")))
            }
            StoreAsk::Dir { prefix } => Ok(StoreAnswer::Keys(self.keys(&prefix))),
        }
    }

    /// All keys with their values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.values.iter().map(|(key, value)| (key.as_str(), value.as_slice()))
    }

    /// The error of a read that has waited for its key in vain.
    pub fn absent(key: &str, waited: Duration) -> Error {
        Error::Timeout { what: format!("waiting for key {key:?} of the store, which nobody has put"), waited }
    }

    fn sum(&self, key: &str, amount: i64) -> Result<i64> {
        let number = match self.values.get(key) {
            None => Some(0),
            Some(value) => std::str::from_utf8(value).ok().and_then(|digits| digits.parse::<i64>().ok()),
        };
        let refused =
            |what: String| Error::InvalidArgument { what, hint: "use another key, or delete this one".to_owned() };
        let number =
            number.ok_or_else(|| refused(format!("adding to key {key:?} of the store, which has no number")))?;
        number.checked_add(amount).ok_or_else(|| {
            refused(format!("adding {amount} to {number} at key {key:?} of the store, beyond what 64 bits hold"))
        })
    }

    fn set(&mut self, key: String, value: Vec<u8>) -> Result<StoreAnswer> {
        limits::check_store_value(&key, value.len())?;
        let before = self.values.get(&key).map_or(0, |value| counted(&key, value));
        let bytes = self.bytes - before + counted(&key, &value);
        // Something smaller always fits, so that a full store can be emptied value by value.
        if bytes > STORE_BYTES_MAX && bytes > self.bytes {
            return Err(Error::Exhausted {
                what: format!(
                    "{} bytes under key {key:?} in the store of the job, which has {}",
                    value.len(),
                    self.bytes
                ),
                limit: format!("{STORE_BYTES_MAX} bytes"),
                hint: "delete keys that are not needed any more".to_owned(),
            });
        }
        self.bytes = bytes;
        self.values.insert(key, value);
        Ok(StoreAnswer::Done)
    }

    fn remove(&mut self, key: &str) -> bool {
        let Some(value) = self.values.remove(key) else { return false };
        self.bytes -= counted(key, &value);
        true
    }

    fn keys(&self, prefix: &str) -> Vec<String> {
        let from = self.values.range::<str, _>((Bound::Included(prefix), Bound::Unbounded));
        from.map(|(key, _)| key).take_while(|key| key.starts_with(prefix)).cloned().collect()
    }
}

fn counted(key: &str, value: &[u8]) -> usize {
    key.len() + value.len() + STORE_ENTRY_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::limits::{STORE_KEYS_MAX, STORE_VALUE_BYTES_MAX};

    #[test]
    fn a_value_is_overwritten_unless_another_one_is_expected() {
        let mut entries = Entries::default();
        let done = Ok(StoreAnswer::Done);
        assert_eq!(entries.ask(put("a", "1", None)), done);
        assert_eq!(entries.ask(put("a", "2", None)), done);
        assert_eq!(entries.ask(put("a", "3", Some("1"))), value("2"), "it is not the expected one");
        assert_eq!(entries.ask(put("a", "3", Some("2"))), done);
        assert_eq!(entries.ask(get("a")), value("3"));
        assert_eq!(entries.ask(put("b", "1", Some("0"))), Ok(StoreAnswer::Value(None)));
        assert_eq!(entries.ask(put("b", "1", Some(""))), done, "an absent key counts as empty");
        assert_eq!(entries.ask(put("b", "2", Some(""))), value("1"), "so that only the first one is put");
    }

    #[test]
    fn numbers_are_decimal_digits() {
        let mut entries = Entries::default();
        assert_eq!(entries.ask(add("n", 5)), Ok(StoreAnswer::Number(5)));
        assert_eq!(entries.ask(add("n", -7)), Ok(StoreAnswer::Number(-2)));
        assert_eq!(entries.ask(get("n")), value("-2"));
        entries.ask(put("n", "40", None)).unwrap();
        assert_eq!(entries.ask(add("n", 2)), Ok(StoreAnswer::Number(42)));
        for (present, amount, why) in
            [("abc", 1, "has no number"), ("9223372036854775807", 1, "beyond what 64 bits hold")]
        {
            entries.ask(put("n", present, None)).unwrap();
            let error = entries.ask(add("n", amount)).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
            assert_eq!(entries.ask(get("n")), value(present), "nothing has changed");
        }
    }

    #[test]
    fn bytes_are_put_behind_a_value() {
        let mut entries = Entries::default();
        for piece in ["ab", "", "c"] {
            assert_eq!(entries.ask(append("a", piece.as_bytes())), Ok(StoreAnswer::Done));
        }
        assert_eq!(entries.ask(get("a")), value("abc"));
        entries.ask(append("a", &vec![0; STORE_VALUE_BYTES_MAX - 3])).unwrap();
        let error = entries.ask(append("a", b"d")).unwrap_err();
        assert!(matches!(&error, Error::Exhausted { limit, .. } if limit == "65536 bytes"), "{error}");
    }

    #[test]
    fn keys_are_listed_and_deleted_one_by_one_or_by_prefix() {
        let mut entries = Entries::default();
        for key in ["a", "a/1", "a/2", "ab", "b"] {
            entries.ask(put(key, "", None)).unwrap();
        }
        assert_eq!(entries.ask(dir("a/")), keys(&["a/1", "a/2"]));
        assert_eq!(entries.ask(delete("a", false)), Ok(StoreAnswer::Number(1)));
        assert_eq!(entries.ask(delete("a", false)), Ok(StoreAnswer::Number(0)), "absent is no error");
        assert_eq!(entries.ask(delete("a/", true)), Ok(StoreAnswer::Number(2)));
        assert_eq!(entries.ask(dir("")), keys(&["ab", "b"]));
        assert_eq!(entries.ask(delete("", true)), Ok(StoreAnswer::Number(2)));
        assert_eq!((entries.ask(dir("")), entries.bytes), (keys(&[]), 0));
    }

    #[test]
    fn a_full_store_refuses_more_and_takes_less() {
        let mut entries = Entries::default();
        let large = "v".repeat(STORE_VALUE_BYTES_MAX);
        let mut puts = 0;
        let refused = loop {
            match entries.ask(put(&puts.to_string(), &large, None)) {
                Ok(_) => puts += 1,
                Err(error) => break error,
            }
        };
        assert_eq!(puts, 255, "the keys count too");
        let text = refused.to_string();
        assert!(text.starts_with("65536 bytes under key \"255\" in the store of the job, which has 167"), "{text}");
        assert!(text.ends_with("limit 16777216 bytes reached; delete keys that are not needed any more"), "{text}");
        assert_eq!(entries.ask(put("7", "", None)), Ok(StoreAnswer::Done));
        assert_eq!(entries.ask(put("255", &large[100..], None)), Ok(StoreAnswer::Done));
    }

    #[test]
    fn empty_values_have_a_limit_too() {
        let mut entries = Entries::default();
        let refused = (0..=STORE_KEYS_MAX).find_map(|number| entries.ask(put(&number.to_string(), "", None)).err());
        assert!(matches!(refused, Some(Error::Exhausted { .. })), "{refused:?}");
    }

    fn put(key: &str, value: &str, expected: Option<&str>) -> StoreAsk {
        let expected = expected.map(|expected| expected.as_bytes().to_vec());
        StoreAsk::Put { key: key.to_owned(), value: value.as_bytes().to_vec(), expected }
    }

    fn add(key: &str, amount: i64) -> StoreAsk {
        StoreAsk::Add { key: key.to_owned(), amount }
    }

    fn append(key: &str, value: &[u8]) -> StoreAsk {
        StoreAsk::Append { key: key.to_owned(), value: value.to_vec() }
    }

    fn get(key: &str) -> StoreAsk {
        StoreAsk::Get { key: key.to_owned(), wait: None }
    }

    fn delete(key: &str, is_prefix: bool) -> StoreAsk {
        StoreAsk::Delete { key: key.to_owned(), is_prefix }
    }

    fn dir(prefix: &str) -> StoreAsk {
        StoreAsk::Dir { prefix: prefix.to_owned() }
    }

    fn value(value: &str) -> Result<StoreAnswer> {
        Ok(StoreAnswer::Value(Some(value.as_bytes().to_vec())))
    }

    fn keys(keys: &[&str]) -> Result<StoreAnswer> {
        Ok(StoreAnswer::Keys(keys.iter().map(|key| (*key).to_owned()).collect()))
    }
}
