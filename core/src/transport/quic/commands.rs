//! Commands to a loop that sleeps in the kernel: a queue, and an event that wakes the loop only if it sleeps.
//!
//! A caller puts its command into the queue and then checks one flag. The loop sets this flag and checks the queue once more before it
//! sleeps. So a call costs no system call while the loop is busy, and no command is missed.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};

use rustix::event::{EventfdFlags, eventfd};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender, WeakUnboundedSender};

/// A queue of commands for one loop.
///
/// # Errors
/// If the system gives no event descriptor.
pub(super) fn channel<T>() -> io::Result<(Commands<T>, Inbox<T>)> {
    let (sender, receiver) = mpsc::unbounded_channel();
    let wakeup = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
    let (sleeping, corks, is_due) = Default::default();
    let wakeup = Arc::new(Wakeup { event: wakeup, sleeping, corks, is_due });
    Ok((Commands { sender: Some(sender), wakeup: Arc::clone(&wakeup) }, Inbox { receiver, wakeup }))
}

/// The callers' end. The loop is told when the last one is dropped.
#[derive(Debug)]
pub(super) struct Commands<T> {
    /// Present until drop.
    sender: Option<UnboundedSender<T>>,
    wakeup: Arc<Wakeup>,
}

impl<T> Commands<T> {
    /// Hands `command` over; never blocks.
    ///
    /// # Errors
    /// The command itself, if the loop has ended.
    pub(super) fn send(&self, command: T) -> Result<(), T> {
        let sender = self.sender.as_ref().expect("taken only by drop");
        sender.send(command).map_err(|refused| refused.0)?;
        self.wakeup.wake_unless_corked();
        Ok(())
    }

    /// Commands do not wake the loop from now on.
    pub(super) fn cork(&self) {
        self.wakeup.corks.fetch_add(1, Ordering::SeqCst);
    }

    /// Ends what one call of [`cork`](Self::cork) began. Wakes the loop if there was a command meanwhile.
    pub(super) fn uncork(&self) {
        self.wakeup.corks.fetch_sub(1, Ordering::SeqCst);
        if self.wakeup.is_due.swap(false, Ordering::SeqCst) {
            self.wakeup.wake();
        }
    }

    /// A callers' end that does not keep the loop running.
    pub(super) fn downgrade(&self) -> WeakCommands<T> {
        let sender = self.sender.as_ref().expect("taken only by drop");
        WeakCommands { sender: sender.downgrade(), wakeup: Arc::clone(&self.wakeup) }
    }
}

/// A callers' end that the loop itself can give to its helper threads: it does not keep the loop running.
#[derive(Debug)]
pub(super) struct WeakCommands<T> {
    sender: WeakUnboundedSender<T>,
    wakeup: Arc<Wakeup>,
}

impl<T> WeakCommands<T> {
    /// A callers' end, if there still is one.
    pub(super) fn upgrade(&self) -> Option<Commands<T>> {
        let sender = self.sender.upgrade()?;
        Some(Commands { sender: Some(sender), wakeup: Arc::clone(&self.wakeup) })
    }
}

impl<T> Clone for Commands<T> {
    fn clone(&self) -> Self {
        Self { sender: self.sender.clone(), wakeup: Arc::clone(&self.wakeup) }
    }
}

impl<T> Drop for Commands<T> {
    fn drop(&mut self) {
        // The sender is dropped before the loop is woken. If it was the last sender, the loop must find the queue closed.
        self.sender.take();
        self.wakeup.wake();
    }
}

/// The loop's end.
#[derive(Debug)]
pub(super) struct Inbox<T> {
    receiver: UnboundedReceiver<T>,
    wakeup: Arc<Wakeup>,
}

/// The result of [`Inbox::next`].
pub(super) enum Next<T> {
    /// A command.
    Command(T),
    /// Nothing now.
    Empty,
    /// No command, and none will come, because all callers are gone or the inbox was closed.
    Closed,
}

impl<T> Inbox<T> {
    pub(super) fn next(&mut self) -> Next<T> {
        match self.receiver.try_recv() {
            Ok(command) => Next::Command(command),
            Err(mpsc::error::TryRecvError::Empty) => Next::Empty,
            Err(mpsc::error::TryRecvError::Disconnected) => Next::Closed,
        }
    }

    /// From now on commands are refused. Those in the queue are still handed out.
    pub(super) fn close(&mut self) {
        self.receiver.close();
    }

    /// Announces that the loop is about to sleep. Returns whether it may sleep, because the queue is empty.
    pub(super) fn prepare_sleep(&self) -> bool {
        self.wakeup.sleeping.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let quiet = self.receiver.is_empty() && !self.receiver.is_closed();
        if !quiet {
            self.wakeup.sleeping.store(false, Ordering::SeqCst);
        }
        quiet
    }

    /// The loop is awake again. `woken` says whether a caller woke it.
    pub(super) fn awake(&self, woken: bool) {
        self.wakeup.sleeping.store(false, Ordering::SeqCst);
        if woken {
            let _ = rustix::io::read(&self.wakeup.event, &mut [0; 8]);
        }
    }

    /// Readable once a caller has woken the loop.
    pub(super) fn wakeup(&self) -> BorrowedFd<'_> {
        self.wakeup.event.as_fd()
    }
}

#[derive(Debug)]
struct Wakeup {
    event: OwnedFd,
    sleeping: AtomicBool,
    /// Callers that will wake the loop once all their commands are in the queue.
    corks: AtomicUsize,
    /// Whether the next caller that uncorks must wake the loop.
    is_due: AtomicBool,
}

impl Wakeup {
    /// Wakes the loop, unless it is corked. Then the next caller that uncorks wakes it, after this caller's command was put into the queue.
    fn wake_unless_corked(&self) {
        fence(Ordering::SeqCst);
        if self.corks.load(Ordering::SeqCst) == 0 {
            return self.wake();
        }
        self.is_due.store(true, Ordering::SeqCst);
        // The last caller may have uncorked before it could see the line above.
        if self.corks.load(Ordering::SeqCst) == 0 {
            self.wake();
        }
    }

    fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.sleeping.load(Ordering::SeqCst) && self.sleeping.swap(false, Ordering::SeqCst) {
            // Fails only if the loop did not read the counter for 2^64 wakeups.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl<T> Inbox<T> {
        /// Whether a caller woke the loop since the last look.
        fn was_woken(&self) -> bool {
            rustix::io::read(&self.wakeup.event, &mut [0; 8]).is_ok()
        }
    }

    #[test]
    fn a_loop_does_not_fall_asleep_over_a_command() {
        let (commands, mut inbox) = channel().unwrap();
        assert!(inbox.prepare_sleep());
        inbox.awake(false);
        commands.send(1).unwrap();
        assert!(!inbox.prepare_sleep());
        assert!(matches!(inbox.next(), Next::Command(1)));
        assert!(matches!(inbox.next(), Next::Empty));
    }

    #[test]
    fn a_loop_is_woken_only_if_it_sleeps() {
        let (commands, inbox) = channel().unwrap();
        commands.send(1).unwrap();
        assert!(!inbox.was_woken());
        let (commands, inbox) = channel().unwrap();
        assert!(inbox.prepare_sleep());
        commands.send(1).unwrap();
        commands.send(2).unwrap();
        assert!(inbox.was_woken());
        assert!(!inbox.was_woken(), "once");
    }

    #[test]
    fn a_corked_loop_is_woken_when_any_caller_uncorks_it() {
        let (commands, inbox) = channel().unwrap();
        assert!(inbox.prepare_sleep());
        commands.cork();
        commands.cork();
        commands.send(1).unwrap();
        assert!(!inbox.was_woken());
        commands.uncork();
        assert!(inbox.was_woken(), "a caller that uncorks again and again must not delay others");
    }

    #[test]
    fn nobody_is_woken_without_a_command() {
        let (commands, inbox) = channel().unwrap();
        assert!(inbox.prepare_sleep());
        commands.cork();
        commands.uncork();
        assert!(!inbox.was_woken(), "the caller pushed to another transport");
        commands.cork();
        commands.send(1).unwrap();
        commands.uncork();
        assert!(inbox.was_woken());
    }

    #[test]
    fn the_loop_hears_that_the_last_caller_is_gone() {
        let (commands, mut inbox) = channel::<u8>().unwrap();
        let second = commands.clone();
        drop(commands);
        assert!(inbox.prepare_sleep());
        drop(second);
        assert!(inbox.was_woken());
        assert!(matches!(inbox.next(), Next::Closed));
    }

    #[test]
    fn a_closed_inbox_hands_out_what_it_holds_and_refuses_the_rest() {
        let (commands, mut inbox) = channel().unwrap();
        commands.send(1).unwrap();
        inbox.close();
        assert_eq!(commands.send(2), Err(2));
        assert!(matches!(inbox.next(), Next::Command(1)));
        assert!(matches!(inbox.next(), Next::Closed));
    }
}
