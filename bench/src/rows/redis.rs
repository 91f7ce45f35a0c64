//! Rows as strings in a Redis, in its own protocol: a client library would cost more than what it is asked.

use std::collections::BTreeSet;
use std::io::{BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use gradlane_core::types::TableSpec;

use super::contender::Contender;

/// A connection to a Redis on this host.
pub(super) struct Redis {
    row_bytes: usize,
    link: TcpStream,
    answers: BufReader<TcpStream>,
    request: Vec<u8>,
    /// The ids whose rows were put, which are to be removed.
    put: BTreeSet<u64>,
}

impl Redis {
    /// Connects to the Redis at this port.
    ///
    /// # Errors
    /// Why nothing answers there.
    pub(super) fn connect(port: u16, spec: TableSpec, patience: Duration) -> Result<Self, String> {
        let failed = |cause: std::io::Error| format!("the Redis at 127.0.0.1:{port}: {cause}");
        let link = TcpStream::connect(("127.0.0.1", port)).map_err(failed)?;
        link.set_nodelay(true).map_err(failed)?;
        link.set_read_timeout(Some(patience)).map_err(failed)?;
        link.set_write_timeout(Some(patience)).map_err(failed)?;
        let answers = BufReader::with_capacity(1 << 16, link.try_clone().map_err(failed)?);
        let row_bytes = usize::try_from(spec.shard_bytes()).expect("DIM_MAX");
        Ok(Self { row_bytes, link, answers, request: Vec::new(), put: BTreeSet::new() })
    }

    /// Removes what was put.
    ///
    /// # Errors
    /// Why Redis did not.
    pub(super) fn leave(mut self) -> Result<(), String> {
        let keys: Vec<u64> = self.put.iter().copied().collect();
        for keys in keys.chunks(1 << 16) {
            self.begin(b"UNLINK", keys.len());
            keys.iter().for_each(|key| self.key(*key));
            self.send()?;
            let line = self.line()?;
            if !line.starts_with(':') {
                return Err(format!("Redis answers {line:?} to UNLINK"));
            }
        }
        Ok(())
    }

    fn begin(&mut self, command: &[u8], words: usize) {
        self.request.clear();
        write!(self.request, "*{}\r\n${}\r\n", words + 1, command.len()).expect("to memory");
        self.request.extend_from_slice(command);
        self.request.extend_from_slice(b"\r\n");
    }

    fn key(&mut self, id: u64) {
        let key = format!("gl:{id}");
        write!(self.request, "${}\r\n{key}\r\n", key.len()).expect("to memory");
    }

    fn send(&mut self) -> Result<(), String> {
        self.link.write_all(&self.request).map_err(|cause| format!("writing to Redis: {cause}"))
    }

    fn line(&mut self) -> Result<String, String> {
        let mut line = Vec::new();
        loop {
            let mut byte = [0];
            self.answers.read_exact(&mut byte).map_err(|cause| format!("reading from Redis: {cause}"))?;
            match byte {
                [b'\n'] => return Ok(String::from_utf8_lossy(&line).trim_end().to_owned()),
                [byte] => line.push(byte),
            }
        }
    }
}

/// Each id once, in order.
fn distinct(ids: &[u64]) -> Vec<u64> {
    let mut distinct = ids.to_vec();
    distinct.sort_unstable();
    distinct.dedup();
    distinct
}

impl Contender for Redis {
    fn name(&self) -> String {
        "redis".to_owned()
    }

    fn pull(&mut self, ids: &[u64], _rows: &mut [f32]) -> Result<(), String> {
        let ids = distinct(ids);
        self.begin(b"MGET", ids.len());
        ids.iter().for_each(|id| self.key(*id));
        self.send()?;
        let head = self.line()?;
        if head != format!("*{}", ids.len()) {
            return Err(format!("Redis answers {head:?} to MGET of {} rows", ids.len()));
        }
        let mut row = vec![0; self.row_bytes + 2];
        for id in ids {
            let length = self.line()?;
            if length != format!("${}", self.row_bytes) {
                return Err(format!("Redis has {length:?} of row {id}"));
            }
            self.answers.read_exact(&mut row).map_err(|cause| format!("reading from Redis: {cause}"))?;
        }
        Ok(())
    }

    fn push(&mut self, ids: &[u64], gradients: &[f32]) -> Result<(), String> {
        let ids = distinct(ids);
        self.begin(b"MSET", 2 * ids.len());
        let dim = self.row_bytes / 4;
        for (id, row) in ids.iter().zip(gradients.chunks_exact(dim)) {
            self.key(*id);
            write!(self.request, "${}\r\n", self.row_bytes).expect("to memory");
            row.iter().for_each(|number| self.request.extend_from_slice(&number.to_le_bytes()));
            self.request.extend_from_slice(b"\r\n");
            self.put.insert(*id);
        }
        self.send()?;
        match self.line()?.as_str() {
            "+OK" => Ok(()),
            other => Err(format!("Redis answers {other:?} to MSET")),
        }
    }
}
