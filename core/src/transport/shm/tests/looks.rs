//! Bodies that are looked at while they are copied.

use super::*;
use crate::mem::{Region, borrow};
use crate::reduce::Kernels;
use crate::transport::{Look, Pull};
use crate::types::{DType, Finding, Participants, Round, TensorKey, WorkerSet};
use crate::wire::Contribute;

/// More than one chunk, and a last one that is short.
const LEN: usize = 3 * LARGE_BYTES / 4 + 1000;
const PLACES: [usize; 4] = [0, LARGE_BYTES / 4 - 1, LEN / 2, LEN - 1];

#[test]
fn a_refused_body_never_arrives_whole_and_the_link_goes_on() {
    let (server, worker) = connected(&Machine::new());
    for (id, at) in (1..).map(ExchangeId).zip(PLACES) {
        let mut memory = floats(at);
        let (regions, into) = regions(&mut memory);
        let (finding, sum) = exchange(&worker, id, header_of(&regions), (regions, into), Some(refusal()));
        let (opened, _) = server.opened();
        server.send(Outgoing::Accept { exchange: opened });
        let mut came = 0;
        loop {
            match server.next() {
                Incoming::Body { chunks, .. } => came += chunks.iter().map(Bytes::len).sum::<usize>(),
                Incoming::Torn { exchange, .. } if exchange == opened => break,
                other => panic!("{other:?} where the exchange was to be torn"),
            }
        }
        assert!(came <= at * 4, "{came} bytes came, and the NaN is at {}", at * 4);
        assert!(matches!(sum.soon(), Err(Torn { error, landed: 0 }) if error == refusal()));
        assert!(finding.is_raised());
        server.still_serves(&worker);
    }
}

#[test]
fn without_a_refusal_it_arrives_as_it_is() {
    let (server, worker) = connected(&Machine::new());
    let _echo = server.echo();
    for (id, at) in (1..).map(ExchangeId).zip(PLACES.into_iter().chain([usize::MAX])) {
        let mut memory = floats(at);
        let (regions, into) = regions(&mut memory);
        let (finding, sum) = exchange(&worker, id, header_of(&regions), (regions, into), None);
        sum_of(sum.soon());
        assert_eq!(memory, floats(at));
        assert_eq!(finding.is_raised(), at < LEN);
    }
}

#[test]
fn what_is_lent_is_looked_at_before() {
    let (server, worker) = connected(&Machine::new());
    let staging = staged(&staging_pool(), &floats(LEN - 1));
    let body = || (vec![staging.region()], vec![staging.region()]);
    let header = header_of(&body().0);
    let (finding, sum) = exchange(&worker, ExchangeId(1), header.clone(), body(), Some(refusal()));
    assert!(matches!(sum.soon(), Err(Torn { error, landed: 0 }) if error == refusal()));
    assert!(finding.is_raised());
    server.still_serves(&worker);
    let _echo = server.echo();
    let (finding, sum) = exchange(&worker, ExchangeId(2), header, body(), None);
    sum_of(sum.soon());
    assert!(finding.is_raised());
}

#[test]
fn names_of_participants_are_no_elements_and_no_element_is_cut() {
    let (server, worker) = connected(&Machine::new());
    let _echo = server.echo();
    // Half an element later, these bytes are an infinity.
    let near = f64::from_bits(0x7ff0_0000).to_le_bytes();
    for bytes in 1..=8 {
        let mut memory = near.repeat(LEN / 2);
        let (regions, into) = regions(&mut memory);
        let participants = Participants::of(WorkerSet::from_bytes(&vec![1; bytes]).unwrap());
        let Request::Contribute(contribute) = header_of(&regions) else { unreachable!("it contributes") };
        let header = Request::Contribute(Contribute { participants, dtype: DType::F64, ..contribute });
        let (finding, sum) = exchange(&worker, ExchangeId(bytes as u64), header, (regions, into), Some(refusal()));
        assert!(sum.soon().is_ok());
        assert!(!finding.is_raised(), "{bytes} bytes of names");
    }
}

type Answered = Due<std::result::Result<Answer, Torn>>;

fn exchange(
    worker: &Worker,
    id: ExchangeId,
    header: Request,
    (body, into): (Vec<Region>, Vec<Region>),
    refusal: Option<Error>,
) -> (Finding, Answered) {
    let Request::Contribute(Contribute { dtype, .. }) = header else { unreachable!("it contributes") };
    let (finding, (sender, due)) = (Finding::default(), std::sync::mpsc::channel());
    let look = Some(Look { dtype, finding: finding.clone(), refusal, kernels: Kernels::detect() });
    let pull = Some(Pull { into, done: Done::new(move |outcome| drop(sender.send(outcome))) });
    worker.transport.push(worker.link, id, Push { header, body, pull, look }, Done::new(drop));
    (finding, Due(due))
}

/// Two runs of whole elements, and where the answer lands.
fn regions(memory: &mut [u8]) -> (Vec<Region>, Vec<Region>) {
    let into = borrow::region_of(memory);
    let (first, second) = into.again().split_at(memory.len() / 24 * 8);
    (vec![first, second], vec![into])
}

fn header_of(body: &[Region]) -> Request {
    let Request::Contribute(contribute) = contract::header(body.iter().map(Region::len).sum::<usize>() as u64) else {
        unreachable!("it contributes")
    };
    Request::Contribute(Contribute { dtype: DType::F32, ..contribute })
}

/// Ones, with a NaN at this place.
fn floats(nan_at: usize) -> Vec<u8> {
    (0..LEN).flat_map(|at| if at == nan_at { f32::NAN } else { 1.0 }.to_le_bytes()).collect()
}

fn refusal() -> Error {
    Error::NotFinite { tensor: TensorKey(5).into(), round: Round(3), from: "worker 1".to_owned() }
}
