use std::sync::mpsc::{Receiver, channel};

use super::*;
use crate::mem::Loan;
use crate::mem::borrow::region_of;
use crate::transport::contract;
use crate::wire::Sum;

#[test]
fn a_sum_lands_in_whatever_order_its_header_its_pull_and_the_memory_come() {
    for order in ["HPM", "HMP", "PHM", "PMH", "MHP", "MPH"] {
        let mut memory = [1; 4];
        let mut tried = Tried::new(&mut memory);
        for (at, step) in order.chars().enumerate() {
            assert!(!tried.place(), "{order}: begins after {at} steps");
            tried.step(step);
        }
        assert!(tried.place(), "{order}: does not begin");
        tried.arrival.take(&[7, 8, 9, 6], PEER).unwrap();
        let answer = tried.arrival.finish(None, PEER).unwrap();
        assert!(!tried.exchange.is_over());
        tried.exchange.end(Ok(answer));
        assert!(tried.exchange.is_over(), "{order}");
        let Tried { exchange, arrival, told, .. } = tried;
        exchange.report(arrival.landed());
        assert_eq!(told.try_iter().collect::<Vec<_>>(), ["pushed", "sum"], "{order}");
        assert_eq!(memory, [7, 8, 9, 6]);
    }
}

/// Steps: `P`ull, `S`ent, `M`emory back, `F`ailed, `G`iven up, `R`ejected. What is told, and whether the exchange is over after each.
#[test]
fn an_end_is_reported_once_the_memory_is_back_and_somebody_asks() {
    for (steps, over, told) in [
        // A failed push ends the exchange, also for a pull that came before it failed.
        ("FM", "01", &["push failed"][..]),
        ("MF", "01", &["push failed"]),
        ("PFM", "001", &["push failed", "torn"]),
        // What was pushed and not pulled keeps its failure for the pull.
        ("SMFP", "0001", &["pushed", "torn"]),
        ("SFMP", "0001", &["pushed", "torn"]),
        ("SPFM", "0001", &["pushed", "torn"]),
        // Nobody asks for what was given up.
        ("SMG", "001", &["pushed"]),
        ("SMFG", "0001", &["pushed"]),
        ("GM", "01", &["push cancelled"]),
        ("SPGM", "0001", &["pushed", "cancelled"]),
        // The first end stays.
        ("SPFGM", "00001", &["pushed", "torn"]),
        ("SPRFM", "00001", &["pushed", "reject"]),
        // An answer ends the push too, and waits for its pull.
        ("PRM", "001", &["pushed", "reject"]),
        ("RSMP", "0001", &["pushed", "reject"]),
    ] {
        let mut memory = [1; 4];
        let mut tried = Tried::new(&mut memory);
        for (step, over) in steps.chars().zip(over.chars()) {
            tried.step(step);
            assert_eq!(tried.exchange.is_over(), over == '1', "{steps} after {step}");
        }
        let Tried { exchange, arrival, told: heard, .. } = tried;
        exchange.report(arrival.landed());
        assert_eq!(heard.try_iter().collect::<Vec<_>>(), told, "{steps}");
    }
}

#[test]
fn what_does_not_answer_the_push_is_found_before_the_memory_is_back() {
    let mut memory = [1; 5];
    let mut tried = Tried::new(&mut memory);
    "HP".chars().for_each(|step| tried.step(step));
    let error = tried.exchange.place(&mut tried.arrival, PEER).unwrap_err();
    assert!(error.to_string().contains("is 4 instead of 5"), "{error}");
}

#[test]
fn an_answer_that_is_too_long_or_too_short_is_a_fault_of_the_server() {
    let mut memory = [1; 4];
    let mut tried = Tried::new(&mut memory);
    "HPM".chars().for_each(|step| tried.step(step));
    assert!(tried.place());
    tried.arrival.take(&[7], PEER).unwrap();
    assert_eq!((tried.arrival.wants(), tried.arrival.landed()), (3, 1));
    assert!(tried.arrival.finish(None, PEER).is_err());
    assert!(tried.arrival.take(&[7; 4], PEER).is_err());
}

struct Tried {
    exchange: WorkerExchange,
    arrival: Arrival,
    told: Receiver<&'static str>,
    returned: Receiver<Returned>,
    pull: Option<Pull>,
}

impl Tried {
    /// An exchange that pushes `memory` and pulls into it.
    fn new(memory: &mut [u8]) -> Self {
        let (tell, told) = channel();
        let pulled = tell.clone();
        let done = Done::new(move |outcome| {
            let word = match outcome {
                Ok(()) => "pushed",
                Err(Error::Cancelled) => "push cancelled",
                Err(_) => "push failed",
            };
            let _ = tell.send(word);
        });
        let pull = Done::new(move |outcome: std::result::Result<Answer, Torn>| {
            let word = match outcome {
                Ok(Answer::Response(_)) => "sum",
                Ok(Answer::Reject(_)) => "reject",
                Err(Torn { error: Error::Cancelled, .. }) => "cancelled",
                Err(_) => "torn",
            };
            let _ = pulled.send(word);
        });
        let (give_back, returned) = channel();
        drop(Loan::new(Vec::new(), move |proof| drop(give_back.send(proof))));
        Self {
            exchange: WorkerExchange::new(contract::header(4), done, None),
            arrival: Arrival::default(),
            told,
            returned,
            pull: Some(Pull { into: vec![region_of(memory)], done: pull }),
        }
    }

    fn step(&mut self, step: char) {
        match step {
            'H' => self.arrival.take(&sum().encode(), PEER).unwrap(),
            'P' => self.exchange.pull(self.pull.take().unwrap()),
            'S' => self.exchange.handed_over().unwrap().ok(()),
            'M' => self.exchange.returned(self.returned.try_recv().unwrap()),
            'F' => self.exchange.end(Err(failed())),
            'G' => self.exchange.end(Err(Error::Cancelled)),
            'R' => self.exchange.end(Ok(Answer::Reject(failed()))),
            other => panic!("{other} is no step"),
        }
    }

    fn place(&mut self) -> bool {
        self.exchange.place(&mut self.arrival, PEER).unwrap() && self.arrival.is_sum()
    }
}

fn sum() -> Sum {
    Sum { checksum: false, ..contract::sum_header(4) }
}

fn failed() -> Error {
    Error::Unavailable { what: PEER.to_owned(), cause: "it is gone".to_owned() }
}

const PEER: &str = "server 0";
