//! Commands to a loop that sleeps in the kernel: a queue, and a bell that wakes the loop only if it sleeps.
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
    let bell = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
    let (sleeping, corks, is_due) = Default::default();
    let bell = Arc::new(Bell { event: bell, sleeping, corks, is_due });
    Ok((Commands { sender: Some(sender), bell: Arc::clone(&bell) }, Inbox { receiver, bell }))
}

/// The callers' end. The loop is told when the last one is dropped.
#[derive(Debug)]
pub(super) struct Commands<T> {
    /// Present until drop.
    sender: Option<UnboundedSender<T>>,
    bell: Arc<Bell>,
}

impl<T> Commands<T> {
    /// Hands `command` over; never blocks.
    ///
    /// # Errors
    /// The command itself, if the loop has ended.
    pub(super) fn send(&self, command: T) -> Result<(), T> {
        let sender = self.sender.as_ref().expect("taken only by drop");
        sender.send(command).map_err(|refused| refused.0)?;
        self.bell.ring_if_open();
        Ok(())
    }

    /// Commands do not wake the loop from now on.
    pub(super) fn cork(&self) {
        self.bell.corks.fetch_add(1, Ordering::SeqCst);
    }

    /// Ends what one call of [`cork`](Self::cork) began. Wakes the loop if there was a command meanwhile.
    pub(super) fn uncork(&self) {
        self.bell.corks.fetch_sub(1, Ordering::SeqCst);
        if self.bell.is_due.swap(false, Ordering::SeqCst) {
            self.bell.ring();
        }
    }

    /// A callers' end that does not keep the loop running.
    pub(super) fn downgrade(&self) -> WeakCommands<T> {
        let sender = self.sender.as_ref().expect("taken only by drop");
        WeakCommands { sender: sender.downgrade(), bell: Arc::clone(&self.bell) }
    }
}

/// A callers' end that the loop itself can give to its helper threads: it does not keep the loop running.
#[derive(Debug)]
pub(super) struct WeakCommands<T> {
    sender: WeakUnboundedSender<T>,
    bell: Arc<Bell>,
}

impl<T> WeakCommands<T> {
    /// A callers' end, if there still is one.
    pub(super) fn upgrade(&self) -> Option<Commands<T>> {
        let sender = self.sender.upgrade()?;
        Some(Commands { sender: Some(sender), bell: Arc::clone(&self.bell) })
    }
}

impl<T> Clone for Commands<T> {
    fn clone(&self) -> Self {
        Self { sender: self.sender.clone(), bell: Arc::clone(&self.bell) }
    }
}

impl<T> Drop for Commands<T> {
    fn drop(&mut self) {
        // The sender is dropped before the bell rings: if it was the last one, the loop that wakes must find the queue closed.
        self.sender.take();
        self.bell.ring();
    }
}

/// The loop's end.
#[derive(Debug)]
pub(super) struct Inbox<T> {
    receiver: UnboundedReceiver<T>,
    bell: Arc<Bell>,
}

/// The result of looking into the inbox.
pub(super) enum Next<T> {
    /// A command.
    Command(T),
    /// Nothing now.
    Empty,
    /// Nothing, and nothing more will come, because all callers are gone or the inbox was closed.
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

    /// Announces that the loop is about to sleep. Returns whether it may: nothing is in the queue.
    pub(super) fn doze(&self) -> bool {
        self.bell.sleeping.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let quiet = self.receiver.is_empty() && !self.receiver.is_closed();
        if !quiet {
            self.bell.sleeping.store(false, Ordering::SeqCst);
        }
        quiet
    }

    /// The loop is awake again. `rung` says whether the bell woke it.
    pub(super) fn awake(&self, rung: bool) {
        self.bell.sleeping.store(false, Ordering::SeqCst);
        if rung {
            let _ = rustix::io::read(&self.bell.event, &mut [0; 8]);
        }
    }

    /// Readable once the bell was rung.
    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.event.as_fd()
    }
}

#[derive(Debug)]
struct Bell {
    event: OwnedFd,
    sleeping: AtomicBool,
    /// How many callers will ring it soon, when all their commands are in the queue.
    corks: AtomicUsize,
    /// Whether the next caller that uncorks it must ring.
    is_due: AtomicBool,
}

impl Bell {
    /// Rings unless it is corked: then whoever uncorks it next rings, after this caller's command was put into the queue.
    fn ring_if_open(&self) {
        fence(Ordering::SeqCst);
        if self.corks.load(Ordering::SeqCst) == 0 {
            return self.ring();
        }
        self.is_due.store(true, Ordering::SeqCst);
        // If the last one uncorked it before this line, it did not see that.
        if self.corks.load(Ordering::SeqCst) == 0 {
            self.ring();
        }
    }

    fn ring(&self) {
        fence(Ordering::SeqCst);
        if self.sleeping.load(Ordering::SeqCst) && self.sleeping.swap(false, Ordering::SeqCst) {
            // Fails only if the loop did not read the counter for 2^64 rings.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl<T> Inbox<T> {
        /// Whether the bell rang since the last look.
        fn was_rung(&self) -> bool {
            rustix::io::read(&self.bell.event, &mut [0; 8]).is_ok()
        }
    }

    #[test]
    fn a_loop_does_not_fall_asleep_over_a_command() {
        let (commands, mut inbox) = channel().unwrap();
        assert!(inbox.doze());
        inbox.awake(false);
        commands.send(1).unwrap();
        assert!(!inbox.doze());
        assert!(matches!(inbox.next(), Next::Command(1)));
        assert!(matches!(inbox.next(), Next::Empty));
    }

    #[test]
    fn the_bell_rings_for_a_sleeper_only() {
        let (commands, inbox) = channel().unwrap();
        commands.send(1).unwrap();
        assert!(!inbox.was_rung());
        let (commands, inbox) = channel().unwrap();
        assert!(inbox.doze());
        commands.send(1).unwrap();
        commands.send(2).unwrap();
        assert!(inbox.was_rung());
        assert!(!inbox.was_rung(), "once");
    }

    #[test]
    fn a_corked_bell_rings_when_anybody_uncorks_it() {
        let (commands, inbox) = channel().unwrap();
        assert!(inbox.doze());
        commands.cork();
        commands.cork();
        commands.send(1).unwrap();
        assert!(!inbox.was_rung());
        commands.uncork();
        assert!(inbox.was_rung(), "who uncorks it again and again must not hold others up");
    }

    #[test]
    fn nobody_is_woken_without_a_command() {
        let (commands, inbox) = channel().unwrap();
        assert!(inbox.doze());
        commands.cork();
        commands.uncork();
        assert!(!inbox.was_rung(), "the caller pushed to another transport");
        commands.cork();
        commands.send(1).unwrap();
        commands.uncork();
        assert!(inbox.was_rung());
    }

    #[test]
    fn the_loop_hears_that_the_last_caller_is_gone() {
        let (commands, mut inbox) = channel::<u8>().unwrap();
        let second = commands.clone();
        drop(commands);
        assert!(inbox.doze());
        drop(second);
        assert!(inbox.was_rung());
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
