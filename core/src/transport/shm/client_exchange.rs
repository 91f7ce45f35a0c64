//! One exchange of a worker, and the actions that threads put off until they have released the lock.

use std::sync::{Arc, mpsc};

use super::landing::Arriving;
use super::layout::Message;
use super::link::Link;
use super::outbound::Piece;
use super::poller::Poller;
use crate::error::{Error, Result};
use crate::mem::Returned;
use crate::metrics::LinkMeter;
use crate::transport::exchange::{WorkerExchange, costs_the_link};
use crate::transport::{Answer, Look};
use crate::types::{Done, LinkId};

/// An exchange, until both its reports are made.
pub(super) struct Exchange {
    pub(super) link: LinkId,
    /// The name of the exchange at the server. 0 until the exchange may begin.
    pub(super) name: u64,
    /// The body of an exchange that may not begin yet.
    pub(super) body: Vec<Piece>,
    /// How the body is looked at while it is copied.
    pub(super) look: Option<Arc<Look>>,
    pub(super) state: WorkerExchange,
    /// Receives the proof that no thread reads the caller's memory any more.
    pub(super) returned: mpsc::Receiver<Returned>,
    /// Absent while the thread lands a sum.
    pub(super) arriving: Option<Arriving>,
    /// Counts the bytes of its link, if anything does.
    pub(super) meter: Option<Arc<LinkMeter>>,
}

/// The actions that a thread carries out once it has released the lock.
#[derive(Default)]
pub(super) struct Noted {
    /// Bytes that are not sent any more. Dropping them returns the caller's memory.
    pub(super) dropped: Vec<Piece>,
    /// An exchange that is over. Its end is reported.
    pub(super) over: Option<Exchange>,
    /// The server may send the whole sums of these exchanges.
    pub(super) accepted: Vec<(Arc<Link>, u64)>,
    /// Contributions that were handed over.
    pub(super) handed_over: Vec<Done<()>>,
    /// The thread has something to look at.
    pub(super) wakes: bool,
}

/// An answer that lands without the lock.
pub(super) struct Landing {
    pub(super) arriving: Arriving,
    pub(super) link: Option<Arc<Link>>,
}

impl Exchange {
    /// An exchange on `link` that has not begun. `returned` receives the proof that `body` is read no more.
    pub(super) fn new(
        link: LinkId,
        (body, look): (Vec<Piece>, Option<Look>),
        state: WorkerExchange,
        returned: mpsc::Receiver<Returned>,
    ) -> Self {
        let (look, arriving) = (look.map(Arc::new), Some(Arriving::default()));
        Self { link, name: 0, body, look, state, returned, arriving, meter: None }
    }

    /// Reports `error` for an exchange that was not entered.
    pub(super) fn refuse(mut self, error: Error) {
        drop(std::mem::take(&mut self.body));
        self.state.end(Err(error));
        self.report();
    }

    /// Whether the thread has something to do for this exchange.
    pub(super) fn has_news(&self) -> bool {
        self.state.has_ended() || self.arriving.as_ref().is_none_or(Arriving::has_news)
    }

    /// No thread reads the caller's memory any more.
    pub(super) fn returned(&mut self) {
        if self.state.is_lent() {
            // The proof is here, or a thread that ends the exchange drops the last piece just now. It needs no lock for that.
            self.state.returned(self.returned.recv().expect("a loan returns"));
        }
    }

    /// Reports the end of an exchange that is over.
    pub(super) fn report(self) {
        let landed = self.arriving.map_or(0, |arriving| arriving.arrival.landed());
        if let Some(meter) = self.meter.filter(|_| self.name > 0) {
            meter.moved(self.state.push().body_bytes(), landed);
        }
        self.state.report(landed);
    }

    /// Whether the whole answer is here. Then it counts, also if the link is lost.
    pub(super) fn is_answered(&self) -> bool {
        !self.state.has_ended() && self.arriving.as_ref().is_some_and(Arriving::is_whole)
    }

    /// Ends with `error`. Returns the name.
    pub(super) fn stop(&mut self, error: Error, noted: &mut Noted) -> u64 {
        self.state.end(Err(error));
        noted.dropped.append(&mut self.body);
        self.name
    }

    /// Ends because the answer is wrong or was damaged. The link ends too, unless it is in order.
    pub(super) fn fail(&mut self, error: Error, link: Option<&Arc<Link>>) {
        self.state.end(Err(error.clone()));
        if let Some(link) = link.filter(|_| costs_the_link(&error)) {
            link.fail(error);
        }
    }
}

impl Noted {
    /// Carries out the actions. Calls back, so the caller must not hold the lock.
    pub(super) fn carry_out(self, poller: &Poller) {
        drop(self.dropped);
        if let Some(exchange) = self.over {
            exchange.report();
        }
        for (link, name) in self.accepted {
            link.post_quietly(&Message::Accept { exchange: name });
        }
        self.handed_over.into_iter().for_each(|done| done.ok(()));
        if self.wakes {
            poller.wake();
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        let Self { dropped, over, accepted, handed_over, wakes } = self;
        !wakes && dropped.is_empty() && over.is_none() && accepted.is_empty() && handed_over.is_empty()
    }
}

impl Landing {
    /// Lands the bytes that came. The answer, if that was all.
    ///
    /// # Errors
    /// As for [`Arriving::advance`].
    pub(super) fn advance(&mut self) -> Result<Option<Answer>> {
        self.arriving.advance(peer_of(self.link.as_ref()))
    }
}

pub(super) fn peer_of(link: Option<&Arc<Link>>) -> &str {
    link.map_or("the server", |link| &link.peer)
}
