//! The connection of an operator, who gives orders to a running job and is no member of it.

use std::time::Duration;

use crossbeam_channel::{Receiver, unbounded};

use super::Clock;
use crate::error::{Error, Result};
use crate::identity::Credentials;
use crate::transport::quic::control::{ControlEvent, ControlLink};
use crate::types::{Control, ControlAnswer, Time};
use crate::wire::frame::{Frame, Status};

/// A connection to the coordinator for orders.
pub struct Operator {
    link: ControlLink,
    received: Receiver<ControlEvent>,
    clock: Clock,
    address: String,
    /// The number of the last request.
    requests: u64,
}

impl Operator {
    /// Connects to the coordinator at `address`, as the admin that `credentials` prove, within `patience`.
    ///
    /// # Errors
    /// [`Error::Timeout`] after `patience`, or the reason why the connection failed.
    pub fn connect(address: &str, credentials: &Credentials, patience: Duration) -> Result<Self> {
        let (sender, received) = unbounded();
        let events = move |event| drop(sender.send(event));
        let link = ControlLink::dial(address, credentials, patience, Box::new(events))?;
        let (clock, address) = (Clock::start(), address.to_owned());
        let operator = Self { link, received, clock, address, requests: 0 };
        operator.until(operator.clock.now() + patience, "connecting", |event| match event {
            ControlEvent::Connected => Some(()),
            ControlEvent::Frame(..) | ControlEvent::Closed(_) => None,
        })?;
        Ok(operator)
    }

    /// The state of the job.
    ///
    /// # Errors
    /// [`Error::Timeout`] after `patience`, or the reason why the connection failed.
    pub fn status(&self, patience: Duration) -> Result<Status> {
        self.link.send(&Frame::StatusRequest);
        self.until(self.clock.now() + patience, "asking for the status", |event| match event {
            ControlEvent::Frame(Frame::Status(status), _) => Some(status),
            ControlEvent::Frame(..) | ControlEvent::Connected | ControlEvent::Closed(_) => None,
        })
    }

    /// Gives an order, and waits for its answer a bit longer than the order says.
    ///
    /// # Errors
    /// As [`orders`](Self::orders).
    pub fn order(&mut self, control: Control) -> Result<ControlAnswer> {
        self.orders(vec![control])?.pop().expect("there is one for each order")
    }

    /// Gives all these orders at once. Returns their answers in the same order.
    ///
    /// # Errors
    /// [`Error::Timeout`] if the coordinator does not answer, or the reason why the connection failed.
    pub fn orders(&mut self, controls: Vec<Control>) -> Result<Vec<Result<ControlAnswer>>> {
        let wait = controls.iter().map(|control| control.wait).max().unwrap_or_default();
        let first = self.requests;
        let mut answers: Vec<Option<Result<ControlAnswer>>> = controls.iter().map(|_| None).collect();
        for control in controls {
            self.link.send(&Frame::Control { request: self.requests, control });
            self.requests += 1;
        }
        let until = self.clock.now() + wait.saturating_add(ON_THE_WAY);
        while answers.iter().any(Option::is_none) {
            let (request, outcome) = self.until(until, "waiting for an answer", |event| match event {
                ControlEvent::Frame(Frame::Controlled { request, outcome }, _) => Some((request, outcome)),
                ControlEvent::Frame(..) | ControlEvent::Connected | ControlEvent::Closed(_) => None,
            })?;
            let place = request.checked_sub(first).and_then(|place| usize::try_from(place).ok());
            if let Some(answer) = place.and_then(|place| answers.get_mut(place)) {
                *answer = Some(outcome);
            }
        }
        Ok(answers.into_iter().flatten().collect())
    }

    /// Waits for what `wanted` takes of the events.
    fn until<T>(&self, until: Time, what: &str, wanted: impl Fn(ControlEvent) -> Option<T>) -> Result<T> {
        let began = self.clock.now();
        loop {
            match self.received.recv_deadline(self.clock.instant(until)) {
                Ok(ControlEvent::Frame(Frame::Refused(error), _) | ControlEvent::Closed(error)) => return Err(error),
                Ok(event) => {
                    if let Some(found) = wanted(event) {
                        return Ok(found);
                    }
                }
                Err(_) => {
                    let what = format!("the coordinator at {}: {what}", self.address);
                    return Err(Error::Timeout { what, waited: until.since(began) });
                }
            }
        }
    }
}

/// How much longer than an order an operator waits, so that the coordinator's own error arrives, which says more.
const ON_THE_WAY: Duration = Duration::from_secs(3);
