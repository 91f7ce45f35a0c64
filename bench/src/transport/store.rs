//! The server's side of raw exchanges: keeps what workers push and returns it, without summation.
//!
//! Copies each body once, from the receive buffer to the memory that keeps it, which is the least work of any server. Answers when the body
//! is complete.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};

use gradlane_core::Error;
use gradlane_core::mem::{Frozen, Lease, Pool};
use gradlane_core::transport::{Inbox, Incoming, Listener, Outgoing};
use gradlane_core::types::{ExchangeId, LinkId, PartId, Round, TensorKey};
use gradlane_core::wire::{Body, Contributors, Request, Sum, Target};

/// The round of a push whose answer returns the body.
pub(super) const ECHO: Round = Round(0);
/// The round of a push whose answer has no body.
pub(super) const KEEP: Round = Round(1);
/// The part of a barrier: the store answers no worker before all have asked.
pub(super) const MEETING: TensorKey = TensorKey(u64::MAX);

/// The state of a store, for all links.
pub(super) struct Store {
    workers: usize,
    pool: Pool,
    shelf: Mutex<Shelf>,
    outbox: OnceLock<Box<dyn Fn(Outgoing) + Send + Sync>>,
}

#[derive(Default)]
struct Shelf {
    kept: BTreeMap<(LinkId, PartId), Frozen>,
    arriving: BTreeMap<ExchangeId, Arriving>,
    waiting: Vec<(ExchangeId, Target)>,
}

struct Arriving {
    link: LinkId,
    target: Target,
    body: Lease,
    bytes: usize,
}

/// Opens a store for `workers` workers with memory from `pool`; `listen` makes its listener.
pub(super) fn open(
    workers: u32,
    pool: Pool,
    listen: impl FnOnce(Inbox) -> gradlane_core::Result<Listener>,
) -> Result<Listener, String> {
    let store = Arc::new(Store { workers: workers as usize, pool, shelf: Mutex::default(), outbox: OnceLock::new() });
    let receiver = Arc::clone(&store);
    let listener = listen(Box::new(move |incoming| receiver.handle(incoming))).map_err(|error| error.to_string())?;
    let Listener { addresses, outbox, stop, watch } = listener;
    // No event comes before this line, because no worker knows the address yet.
    let _ = store.outbox.set(outbox);
    Ok(Listener { addresses, outbox: Box::new(move |outgoing| store.send(outgoing)), stop, watch })
}

impl Store {
    fn handle(&self, incoming: Incoming) {
        for outgoing in self.answers(incoming) {
            self.send(outgoing);
        }
    }

    fn answers(&self, incoming: Incoming) -> Vec<Outgoing> {
        let mut shelf = self.shelf.lock().expect("nobody panics while holding it");
        match incoming {
            Incoming::LinkUp { .. } | Incoming::ProcessEnded { .. } | Incoming::Answered { .. } => Vec::new(),
            Incoming::LinkDown { link, .. } => {
                shelf.kept.retain(|(of, _), _| *of != link);
                Vec::new()
            }
            Incoming::Torn { exchange, .. } => {
                shelf.arriving.remove(&exchange);
                shelf.waiting.retain(|(waiting, _)| *waiting != exchange);
                Vec::new()
            }
            Incoming::Opened { exchange, header: Request::Contribute(header), .. }
                if header.target.part.key == MEETING =>
            {
                shelf.waiting.push((exchange, header.target));
                if shelf.waiting.len() < self.workers {
                    return Vec::new();
                }
                shelf.waiting.drain(..).flat_map(|(exchange, target)| answer(exchange, target, None)).collect()
            }
            Incoming::Opened { link, exchange, header: Request::Contribute(header) } if header.body_bytes() > 0 => {
                let bytes = usize::try_from(header.body_bytes()).expect("at most PART_BYTES_MAX");
                let body = self.pool.lease(bytes);
                shelf.arriving.insert(exchange, Arriving { link, target: header.target, body, bytes: 0 });
                vec![Outgoing::Accept { exchange }]
            }
            Incoming::Opened { link, exchange, header } => {
                match (header.target(), shelf.kept.get(&(link, header.about().part))) {
                    (Some(target), Some(kept)) => answer(exchange, target, Some(kept.clone())),
                    (_, None) | (None, _) => {
                        let error = Error::FailedPrecondition {
                            what: "a pull of a part that was never pushed".to_owned(),
                            hint: "push first".to_owned(),
                        };
                        vec![Outgoing::Reject { exchange, about: header.about(), error }]
                    }
                }
            }
            Incoming::Body { exchange, chunks } => {
                let Some(arriving) = shelf.arriving.get_mut(&exchange) else { return Vec::new() };
                for chunk in chunks {
                    arriving.body[arriving.bytes..][..chunk.len()].copy_from_slice(&chunk);
                    arriving.bytes += chunk.len();
                }
                if arriving.bytes < arriving.body.len() {
                    return Vec::new();
                }
                let Arriving { link, target, body, .. } = shelf.arriving.remove(&exchange).expect("just seen");
                let body = body.freeze();
                shelf.kept.insert((link, target.part), body.clone());
                answer(exchange, target, (target.round == ECHO).then_some(body))
            }
        }
    }

    fn send(&self, outgoing: Outgoing) {
        if let Some(outbox) = self.outbox.get() {
            outbox(outgoing);
        }
    }
}

/// The answer to an exchange, with a body or without.
fn answer(exchange: ExchangeId, target: Target, body: Option<Frozen>) -> Vec<Outgoing> {
    let part_bytes = body.as_ref().map_or(0, |body| body.len() as u64);
    let header = Sum {
        target,
        attempt: 0,
        part_bytes,
        body: Body::plain(part_bytes),
        divisor: 1.0,
        contributors: Contributors::Due,
        early: false,
        checksum: false,
    };
    let begin = Outgoing::Answer { exchange, header: header.into() };
    let block = body.filter(|body| !body.is_empty()).map(|block| Outgoing::Block { exchange, block });
    [Some(begin), block, Some(Outgoing::End { exchange, checksum: 0 })].into_iter().flatten().collect()
}
