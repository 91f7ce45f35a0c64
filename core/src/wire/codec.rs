//! Writes and reads the fields of a control frame. The reader trusts nothing: every length has a limit, and each failure names the field in
//! which it happened.

use std::time::Duration;

use super::limits::ROUND_MAX;
use crate::error::{Error, Result};
use crate::types::{Round, whole_ns};

/// Appends fields to a buffer.
#[derive(Default, Debug)]
pub struct Writer(Vec<u8>);

impl Writer {
    /// The bytes written so far.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    pub(super) fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    pub(super) fn flag(&mut self, value: bool) {
        self.u8(u8::from(value));
    }

    pub(super) fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(super) fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(super) fn u128(&mut self, value: u128) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(super) fn duration(&mut self, value: Duration) {
        self.u64(whole_ns(value));
    }

    pub(super) fn raw(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// A text: `u32` length, then UTF-8. A text longer than `limit` is cut at a character boundary, so that the reader accepts it.
    pub(super) fn text(&mut self, text: &str, limit: usize) {
        let end = (0..=text.len().min(limit)).rev().find(|at| text.is_char_boundary(*at)).expect("0 is a boundary");
        let cut = &text[..end];
        self.list_len(cut.len());
        self.raw(cut.as_bytes());
    }

    /// The length of a list whose items follow.
    pub(super) fn list_len(&mut self, len: usize) {
        self.u32(u32::try_from(len).expect("lists of a frame are short"));
    }

    pub(super) fn list<T>(&mut self, items: &[T], mut item: impl FnMut(&mut Self, &T)) {
        self.list_len(items.len());
        items.iter().for_each(|value| item(self, value));
    }

    pub(super) fn option<T>(&mut self, value: Option<&T>, some: impl FnOnce(&mut Self, &T)) {
        self.u8(u8::from(value.is_some()));
        if let Some(value) = value {
            some(self, value);
        }
    }
}

/// Takes fields from a buffer that a peer sent.
#[derive(Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
    peer: &'a str,
}

impl<'a> Reader<'a> {
    /// Reads what `peer` sent.
    pub fn new(bytes: &'a [u8], peer: &'a str) -> Self {
        Self { rest: bytes, peer }
    }

    /// The error for a field of this peer that has an impossible value.
    pub(super) fn bad(&self, field: &str, problem: impl Into<String>) -> Error {
        Error::Protocol { peer: self.peer.to_owned(), field: field.to_owned(), problem: problem.into() }
    }

    /// Who sent it.
    pub(super) fn peer(&self) -> &'a str {
        self.peer
    }

    /// Fails unless everything was read.
    pub(super) fn finish(self) -> Result<()> {
        if self.rest.is_empty() {
            return Ok(());
        }
        Err(self.bad("end", format!("is followed by {} more bytes", self.rest.len())))
    }

    pub(super) fn raw(&mut self, len: usize, field: &str) -> Result<&'a [u8]> {
        let Some((head, tail)) = self.rest.split_at_checked(len) else {
            return Err(self.bad(field, format!("needs {len} bytes where {} are left", self.rest.len())));
        };
        self.rest = tail;
        Ok(head)
    }

    fn array<const N: usize>(&mut self, field: &str) -> Result<[u8; N]> {
        Ok(self.raw(N, field)?.try_into().expect("N bytes"))
    }

    pub(super) fn bytes32(&mut self, field: &str) -> Result<[u8; 32]> {
        self.array(field)
    }

    pub(super) fn u8(&mut self, field: &str) -> Result<u8> {
        Ok(self.array::<1>(field)?[0])
    }

    pub(super) fn flag(&mut self, field: &str) -> Result<bool> {
        match self.u8(field)? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(self.bad(field, format!("is {other}"))),
        }
    }

    pub(super) fn u32(&mut self, field: &str) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array(field)?))
    }

    pub(super) fn u64(&mut self, field: &str) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array(field)?))
    }

    pub(super) fn round(&mut self, field: &str) -> Result<Round> {
        match self.u64(field)? {
            round if round <= ROUND_MAX => Ok(Round(round)),
            round => Err(self.bad(field, format!("is {round}, above {ROUND_MAX}"))),
        }
    }

    pub(super) fn u128(&mut self, field: &str) -> Result<u128> {
        Ok(u128::from_le_bytes(self.array(field)?))
    }

    pub(super) fn duration(&mut self, field: &str) -> Result<Duration> {
        Ok(Duration::from_nanos(self.u64(field)?))
    }

    pub(super) fn text(&mut self, limit: usize, field: &str) -> Result<String> {
        let len = self.list_len(limit, field)?;
        let bytes = self.raw(len, field)?;
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(text.to_owned()),
            Err(_) => Err(self.bad(field, "is not UTF-8")),
        }
    }

    pub(super) fn list_len(&mut self, limit: usize, field: &str) -> Result<usize> {
        let len = self.u32(field)? as usize;
        if len > limit {
            return Err(self.bad(field, format!("has length {len}, above {limit}")));
        }
        Ok(len)
    }

    /// A list of at most `limit` items. Memory grows with the items that really arrive, not with the announced length.
    pub(super) fn list<T>(
        &mut self,
        limit: usize,
        field: &str,
        mut item: impl FnMut(&mut Self) -> Result<T>,
    ) -> Result<Vec<T>> {
        let len = self.list_len(limit, field)?;
        let mut items = Vec::with_capacity(len.min(self.rest.len() / size_of::<T>().max(1)));
        for _ in 0..len {
            items.push(item(self)?);
        }
        Ok(items)
    }

    pub(super) fn option<T>(&mut self, field: &str, some: impl FnOnce(&mut Self) -> Result<T>) -> Result<Option<T>> {
        match self.u8(field)? {
            0 => Ok(None),
            1 => some(self).map(Some),
            tag => Err(self.bad(field, format!("has presence byte {tag}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_huge_announced_length_is_refused_before_it_is_believed() {
        let mut reader = Reader::new(&[0xff, 0xff, 0xff, 0xff], "worker 0");
        let error = reader.text(256, "name").unwrap_err().to_string();
        assert!(error.contains("name") && error.contains("above 256"), "{error}");
    }

    #[test]
    fn a_long_text_is_cut_at_a_character() {
        let mut writer = Writer::default();
        writer.text("aé", 2);
        let bytes = writer.into_bytes();
        assert_eq!(Reader::new(&bytes, "x").text(2, "text"), Ok("a".to_owned()));
    }

    #[test]
    fn what_is_left_over_is_an_error() {
        assert!(Reader::new(&[1], "x").finish().is_err());
    }
}
