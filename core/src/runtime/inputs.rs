//! Decides what the driver of a state machine handles next: an input, or the deadline of the machine. The driver decides what to do with
//! either.

use crossbeam_channel::{Receiver, RecvTimeoutError};

use super::Clock;
use crate::types::Time;

/// The inputs of a driver, with its deadlines among them.
///
/// A channel returns its inputs at any time. If inputs arrive faster than a busy computer lets the driver run, the channel is never empty,
/// and with the channel alone the deadline would never come. Here the deadline comes after the inputs that were in the channel when it
/// passed, and before later inputs. So a driver that slept too long gets the inputs of that time before it learns the time. Otherwise it
/// would take its own sleep for the silence of others.
#[derive(Debug)]
pub struct Inputs<T> {
    received: Receiver<T>,
    clock: Clock,
    /// How many inputs come before the deadline that has passed. `None` while no deadline has passed.
    before_due: Option<usize>,
}

/// The next event for a driver.
#[derive(PartialEq, Eq, Debug)]
pub enum Heard<T> {
    /// An input arrived.
    Input(T),
    /// The deadline has come.
    Due,
    /// No more inputs will arrive, because all senders are gone.
    Closed,
}

impl<T> Inputs<T> {
    /// The inputs from `received`, with deadlines by `clock`.
    pub fn new(received: Receiver<T>, clock: Clock) -> Self {
        Self { received, clock, before_due: None }
    }

    /// Waits for the next input until `due`. Waits without a limit if `due` is `None`.
    pub fn next(&mut self, due: Option<Time>) -> Heard<T> {
        let Some(due) = due else {
            self.before_due = None;
            return self.received.recv().map_or(Heard::Closed, Heard::Input);
        };
        if self.clock.now() < due {
            self.before_due = None;
            match self.received.recv_deadline(self.clock.instant(due)) {
                Ok(input) => return Heard::Input(input),
                Err(RecvTimeoutError::Disconnected) => return Heard::Closed,
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
        let left = self.before_due.get_or_insert_with(|| self.received.len());
        if let Some(rest) = left.checked_sub(1)
            && let Ok(input) = self.received.try_recv()
        {
            *left = rest;
            return Heard::Input(input);
        }
        self.before_due = None;
        Heard::Due
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crossbeam_channel::{Sender, unbounded};

    use super::*;

    #[test]
    fn a_deadline_comes_though_there_is_always_another_input() {
        let (sender, mut inputs) = inputs();
        (0..3).for_each(|number| sender.send(number).unwrap());
        let mut heard = Vec::new();
        while let Heard::Input(number) = inputs.next(Some(Time::ZERO)) {
            heard.push(number);
            assert!(heard.len() < 100, "inputs that came too late keep the deadline away");
            sender.send(number + 3).unwrap();
        }
        assert_eq!(heard, [0, 1, 2], "what had come before it");
    }

    #[test]
    fn what_came_after_one_deadline_is_heard_before_the_next() {
        let (sender, mut inputs) = inputs();
        assert_eq!(inputs.next(Some(Time::ZERO)), Heard::Due);
        sender.send(7).unwrap();
        assert_eq!(inputs.next(Some(Time::ZERO)), Heard::Input(7));
        assert_eq!(inputs.next(Some(Time::ZERO)), Heard::Due);
    }

    #[test]
    fn a_deadline_that_moved_on_waits_for_its_new_time() {
        let (sender, mut inputs) = inputs();
        (0..2).for_each(|number| sender.send(number).unwrap());
        assert_eq!(inputs.next(Some(Time::ZERO)), Heard::Input(0));
        let later = inputs.clock.now() + Duration::from_secs(3600);
        assert_eq!(inputs.next(Some(later)), Heard::Input(1));
        sender.send(2).unwrap();
        assert_eq!(inputs.next(Some(Time::ZERO)), Heard::Input(2), "it was there when that one passed");
    }

    #[test]
    fn without_an_input_the_deadline_comes_in_time() {
        let (_sender, mut inputs) = inputs();
        let due = inputs.clock.now() + Duration::from_millis(5);
        assert_eq!(inputs.next(Some(due)), Heard::Due);
        assert!(inputs.clock.now() >= due);
    }

    #[test]
    fn when_all_senders_are_gone_the_rest_is_heard_and_then_the_end() {
        let (sender, mut inputs) = inputs();
        sender.send(7).unwrap();
        drop(sender);
        let due = inputs.clock.now() + Duration::from_secs(3600);
        assert_eq!(inputs.next(None), Heard::Input(7));
        assert_eq!([inputs.next(None), inputs.next(Some(due))], [Heard::Closed, Heard::Closed]);
    }

    fn inputs() -> (Sender<u32>, Inputs<u32>) {
        let (sender, received) = unbounded();
        (sender, Inputs::new(received, Clock::start()))
    }
}
