//! A server's side of one exchange: the state of its body and of its answer. Pure.

use super::checks::{bad, broken_off};
use crate::error::{Error, Result};
use crate::types::{Defect, planted};
use crate::wire::{Reply, Request};

/// One exchange, from its header to the end of its answer.
///
/// ```text
///  the body    offered ──accept──► wanted, chunk after chunk
///                 └───────────────────┴──an answer that is not early──► refused
///  the answer  open ──answer──► begun, block after block ──end──► complete
/// ```
/// Both advance at once: a sum may begin while the body is still on its way. A reject is an answer with one block. A reject cannot follow a
/// sum that was begun, so the exchange breaks off then. If a command fails, the transport tears the exchange with the error as the reason. If
/// bytes of the peer are wrong, the transport closes the peer's link.
#[derive(Debug)]
pub struct ServerExchange {
    body: Body,
    /// Bytes of the body that did not come yet. `u64::MAX` if nobody knows how many there are.
    body_left: u64,
    answer: Answer,
    /// For the simulation.
    defect: Option<Defect>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Body {
    /// The server has not decided whether it wants the body.
    Offered,
    Wanted,
    /// The server does not want the rest.
    Refused,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Answer {
    /// Not begun.
    Open,
    /// `left` bytes of its blocks were not given yet. `trailer_bytes` bytes of the checksum follow the last block.
    Begun {
        left: u64,
        trailer_bytes: usize,
    },
    Complete,
}

impl ServerExchange {
    /// An exchange that begins with `header`. A body without bytes is wanted, because there is nothing to decide.
    pub fn new(header: &Request) -> Self {
        let body_left = if let Request::Unknown(_) = header { u64::MAX } else { header.body_bytes() };
        let body = if body_left == 0 { Body::Wanted } else { Body::Offered };
        Self { body, body_left, answer: Answer::Open, defect: None }
    }

    /// Makes the mistake `defect`.
    #[cfg(feature = "testing")]
    #[must_use]
    pub fn planted(self, defect: Option<Defect>) -> Self {
        Self { defect, ..self }
    }

    /// The body is wanted. Returns whether that is new.
    pub fn accept(&mut self) -> bool {
        let is_new = self.body == Body::Offered;
        if is_new {
            self.body = Body::Wanted;
        }
        is_new
    }

    /// Whether bytes of the body are passed on.
    pub fn wants_body(&self) -> bool {
        self.body == Body::Wanted
    }

    /// Whether the server does not want the rest of the body.
    pub fn refuses_body(&self) -> bool {
        self.body == Body::Refused
    }

    /// Bytes of the body that did not come yet.
    pub fn body_left(&self) -> u64 {
        self.body_left
    }

    /// `bytes` more bytes of the body came.
    ///
    /// # Errors
    /// [`Error::Protocol`] if the header announced fewer.
    pub fn received(&mut self, bytes: usize, peer: &str) -> Result<()> {
        let left = self.body_left.checked_sub(bytes as u64);
        let left = left.or(if planted(self.defect, Defect::LongBodyTaken) { Some(0) } else { None });
        self.body_left = left.ok_or_else(|| bad(peer, "body", "has more bytes than its header announced"))?;
        Ok(())
    }

    /// No more bytes of the body come.
    ///
    /// # Errors
    /// [`Error::Protocol`] if the header announced more.
    pub fn body_ended(&self, peer: &str) -> Result<()> {
        if self.body_left == 0 {
            return Ok(());
        }
        Err(bad(peer, "body", format!("lacks its last {} bytes", self.body_left)))
    }

    /// Whether the answer was begun.
    pub fn is_answering(&self) -> bool {
        self.answer != Answer::Open
    }

    /// Whether all of the answer was given.
    pub fn is_complete(&self) -> bool {
        self.answer == Answer::Complete
    }

    /// The answer begins. The rest of the body is refused, unless the answer is early.
    ///
    /// # Errors
    /// The reason to tear the exchange: a reject of a sum that was begun, or [`Error::Internal`] if it was answered before.
    pub fn answer(&mut self, reply: &Reply) -> Result<()> {
        match (self.answer, reply) {
            (Answer::Open, _) => {}
            (Answer::Begun { .. }, Reply::Reject(_)) => return Err(broken_off()),
            (Answer::Begun { .. }, Reply::Response(_)) | (Answer::Complete, _) => return Err(out_of_turn()),
        }
        if !reply.is_early() && !planted(self.defect, Defect::BodyNotRefused) {
            self.body = Body::Refused;
        }
        let trailer_bytes = match reply {
            Reply::Response(header) => header.trailer_bytes(),
            Reply::Reject(_) => 0,
        };
        self.answer = Answer::Begun { left: reply.body_bytes(), trailer_bytes };
        Ok(())
    }

    /// `bytes` more bytes of the answer are given. Returns whether they are the last ones.
    ///
    /// # Errors
    /// [`Error::Internal`] if no answer was begun, or it has fewer bytes.
    pub fn block(&mut self, bytes: usize) -> Result<bool> {
        let Answer::Begun { left, .. } = &mut self.answer else { return Err(out_of_turn()) };
        *left = left.checked_sub(bytes as u64).ok_or_else(out_of_turn)?;
        Ok(*left == 0)
    }

    /// All bytes of the answer were given. Returns how many bytes of the checksum follow.
    ///
    /// # Errors
    /// [`Error::Internal`] if no answer was begun, or it has more bytes.
    pub fn end(&mut self) -> Result<usize> {
        let Answer::Begun { left: 0, trailer_bytes } = self.answer else { return Err(out_of_turn()) };
        self.answer = Answer::Complete;
        Ok(trailer_bytes)
    }
}

/// The error of a command that does not fit the state of the answer.
fn out_of_turn() -> Error {
    let what = "the server began an answer twice, sent bytes before the beginning, or sent more or fewer bytes than its header says";
    Error::Internal { what: what.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::contract;
    use crate::wire::{Response, Sum};

    /// Commands: `A`ccept, `S`um, `E`arly sum, a `B`lock of its 4 bytes, `R`eject, its `r`eason, `D`one.
    #[test]
    fn an_answer_is_begun_once_and_ended_once() {
        for commands in ["SBD", "ASBD", "EBD", "EABD", "RrD", "SAB", "ARrD"] {
            assert_eq!(obey(commands), Ok(()), "{commands}");
        }
        for commands in ["B", "D", "SS", "SD", "SBB", "SBDD", "SBDS", "SBDR", "RrDS"] {
            assert!(matches!(obey(commands), Err(Error::Internal { .. })), "{commands}");
        }
        for commands in ["SR", "SBR", "EAR", "RR"] {
            assert_eq!(obey(commands), Err(broken_off()), "{commands}");
        }
    }

    #[test]
    fn a_body_is_wanted_until_an_answer_that_is_not_early() {
        let states = |commands: &str| {
            let mut exchange = ServerExchange::new(&contract::header(4));
            let state = |exchange: &ServerExchange| match (exchange.wants_body(), exchange.refuses_body()) {
                (false, false) => 'o',
                (true, false) => 'w',
                (_, true) => 'r',
            };
            let states = commands.chars().map(|command| {
                step(&mut exchange, command).unwrap();
                state(&exchange)
            });
            states.collect::<String>()
        };
        for (commands, expected) in [("A", "w"), ("ASB", "wrr"), ("EA", "ow"), ("AEB", "www"), ("SA", "rr"), ("R", "r")]
        {
            assert_eq!(states(commands), expected, "{commands}");
        }
    }

    #[test]
    fn a_body_has_as_many_bytes_as_its_header_says() {
        let mut exchange = ServerExchange::new(&contract::header(4));
        exchange.received(3, "worker").unwrap();
        assert!(exchange.body_ended("worker").is_err());
        exchange.received(1, "worker").unwrap();
        assert_eq!(exchange.body_ended("worker"), Ok(()));
        assert!(exchange.received(1, "worker").is_err());
    }

    fn obey(commands: &str) -> Result<()> {
        let mut exchange = ServerExchange::new(&contract::header(4));
        commands.chars().try_for_each(|command| step(&mut exchange, command))
    }

    fn step(exchange: &mut ServerExchange, command: char) -> Result<()> {
        let sum = |early| Reply::Response(Response::Sum(Sum { early, ..contract::sum_header(4) }));
        let (reject, body) = super::super::reject_of(contract::header(4).about(), &broken_off());
        match command {
            'A' => {
                exchange.accept();
                Ok(())
            }
            'S' => exchange.answer(&sum(false)),
            'E' => exchange.answer(&sum(true)),
            'R' => exchange.answer(&Reply::Reject(reject)),
            'r' => exchange.block(body.len()).map(drop),
            'B' => exchange.block(4).map(drop),
            'D' => exchange.end().map(drop),
            other => panic!("{other} is no command"),
        }
    }
}
