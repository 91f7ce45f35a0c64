//! Looks for NaN and infinities in memory of a device: a stream, and the thread that submits to it.
//!
//! All looks share one word of device memory. Each has a number, which the kernel writes there if it finds something, and the word is copied
//! to the host behind the kernel. Looks are done in the order of the stream, so nobody has to clear the word between them.
//!
//! The thread submits, because loading the kernel and pinning memory may wait for all work of the device.

use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender, unbounded};

use super::copies::{copy_in, copy_out};
use super::copy_queue::ended;
use crate::cuda::{Context, DeviceMemory, Event, FiniteKernel, Mark, Reaper, Stream};
use crate::error::Result;
use crate::local::OwnThread;
use crate::mem::borrow::{self, Staging};
use crate::mem::{Copies, DeviceRegion, Pool};
use crate::types::{DType, Done};

/// A submitted look.
pub(super) struct Look {
    pub(super) runs: Vec<DeviceRegion>,
    pub(super) dtype: DType,
    pub(super) after: Vec<Mark>,
    /// Told whether all elements are finite.
    pub(super) done: Done<bool>,
}

/// The stream and the thread for looks at one device.
pub(super) struct LookQueue {
    looks: Sender<Command>,
    thread: OwnThread,
}

enum Command {
    Look(Look),
    End,
}

/// What the thread has.
struct Line {
    stream: Stream,
    reaper: Arc<Reaper>,
    /// Pinned memory for answers.
    answers: Pool,
    /// Loaded for the first look.
    eye: Option<Eye>,
    /// The number of the last look; the first one has 1.
    number: u64,
    /// The end of the last look.
    last: Option<Arc<Event>>,
}

/// The kernel, and the word in which it writes.
struct Eye {
    kernel: FiniteKernel,
    word: DeviceMemory,
    /// The zero with which the word begins, for the copy of it.
    _zero: Staging,
}

const WORD_BYTES: usize = 8;

/// The name of a look in errors.
const LOOK: &str = "a look for NaN and infinities";

impl LookQueue {
    /// Makes the stream and starts the thread. Answers are copied to memory of `answers`.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device) if the device cannot make a stream, [`Error::Io`](crate::Error::Io) if the system cannot
    /// start a thread.
    pub(super) fn start(context: &Arc<Context>, reaper: Arc<Reaper>, answers: Pool) -> Result<Self> {
        let line = Line { stream: context.stream()?, reaper, answers, eye: None, number: 0, last: None };
        let (looks, commands) = unbounded();
        let thread = OwnThread::start("gl-look", move || line.run(&commands))?;
        Ok(Self { looks, thread })
    }

    /// Has the thread submit a look, after the earlier ones.
    pub(super) fn submit(&self, look: Look) {
        if let Err(unsent) = self.looks.send(Command::Look(look))
            && let Command::Look(look) = unsent.into_inner()
        {
            look.done.err(ended());
        }
    }

    /// Makes the thread fail all looks that it has not begun, and end. Returns it, so that the caller can wait for it.
    pub(super) fn close(self) -> OwnThread {
        // The thread may have ended already.
        let _ = self.looks.send(Command::End);
        self.thread
    }
}

impl Line {
    fn run(mut self, commands: &Receiver<Command>) {
        let bound = self.stream.context().bind();
        while let Ok(Command::Look(look)) = commands.recv() {
            self.put(look, bound.clone());
        }
        for command in commands.try_iter() {
            if let Command::Look(look) = command {
                look.done.err(ended());
            }
        }
        // To free it would wait for all work of the device, with the driver's lock held. These looks may never end.
        if self.last.is_some_and(|event| event.is_reached(LOOK) == Ok(false)) {
            std::mem::forget(self.eye);
        }
    }

    /// Submits a look; `ready` says whether this thread has the context.
    fn put(&mut self, Look { runs, dtype, after, done }: Look, ready: Result<()>) {
        self.number += 1;
        let (number, answer) = (self.number, Staging::new(self.answers.lease(WORD_BYTES)));
        let submitted = ready.and_then(|()| self.submit(&runs, dtype, &after, &answer));
        let event = self.stream.record();
        self.last = event.as_ref().ok().cloned();
        match (submitted, event) {
            (Ok(()), Ok(event)) => {
                let judge = move |outcome: Result<()>| done.report(outcome.map(|()| read(&answer) != number));
                self.reaper.when(event, LOOK, Done::new(judge));
            }
            // What was submitted before the failure still uses the memory, so the error is reported after its end.
            (Err(error), Ok(event)) => {
                let fail = move |_: Result<()>| {
                    drop(answer);
                    done.err(error);
                };
                self.reaper.when(event, LOOK, Done::new(fail));
            }
            (Err(error), Err(_)) | (Ok(()), Err(error)) => done.err(error),
        }
    }

    /// Submits the waits, the kernel and the copy of its answer.
    fn submit(&mut self, runs: &[DeviceRegion], dtype: DType, after: &[Mark], answer: &Staging) -> Result<()> {
        let (stream, number) = (&self.stream, self.number);
        let eye = match &self.eye {
            Some(eye) => eye,
            None => &*self.eye.insert(Eye::load(stream, &self.answers)?),
        };
        after.iter().try_for_each(|mark| stream.wait(mark))?;
        eye.kernel.look(stream, dtype, runs, (eye.word.region(), number))?;
        copy_out(stream, eye.word.region(), answer.region())
    }
}

impl Eye {
    /// Loads the kernel, and submits the begin of the word.
    fn load(stream: &Stream, answers: &Pool) -> Result<Self> {
        let (kernel, word) = (FiniteKernel::load(stream.context())?, stream.context().memory(WORD_BYTES)?);
        let mut zero = answers.lease(WORD_BYTES);
        zero.fill(0);
        let zero = Staging::new(zero);
        copy_in(stream, &zero.region(), word.region())?;
        Ok(Self { kernel, word, _zero: zero })
    }
}

/// The word that a device has copied.
fn read(answer: &Staging) -> u64 {
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("a word"));
    borrow::read(&[answer.region()], &Copies::default(), word)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use fakecuda::Control;

    use super::*;
    use crate::device::cuda::tests::fake_device;
    use crate::device::{CudaDevice, Device};
    use crate::error::Error;
    use crate::mem::{Doubt, Ordinal};

    #[test]
    fn a_look_waits_for_the_marks_before_it_and_each_gets_its_own_answer() {
        let world = World::start();
        let looked: Vec<_> = [1.0, f32::NAN, 2.0, f32::INFINITY, f32::MIN, f32::NEG_INFINITY, 0.0]
            .into_iter()
            .map(|value| {
                let content: Vec<u8> = [3.0, value, 4.0].into_iter().flat_map(f32::to_le_bytes).collect();
                let address = world.control.allocate(0, content.len());
                // What is there before the stream comes to it is not finite.
                world.control.produce(0, 0, address, &[0xff; 12]);
                world.control.produce(0, 0, address, &content);
                let mark = world.cuda.mark(Ordinal(0), 0).unwrap();
                (value, world.look(vec![DeviceRegion::new(Ordinal(0), address, 12)], &[mark]))
            })
            .collect();
        for (value, outcome) in looked {
            assert_eq!(outcome.recv_timeout(PATIENCE), Ok(Ok(value.is_finite())), "{value}");
        }
    }

    #[test]
    fn nothing_is_finite_and_memory_of_several_devices_is_refused() {
        let world = World::start();
        let run = |device, bytes| DeviceRegion::new(Ordinal(device), 0x1000, bytes);
        for runs in [vec![], vec![run(0, 0), run(1, 0)]] {
            assert_eq!(world.look(runs, &[]).recv_timeout(PATIENCE), Ok(Ok(true)));
        }
        let several = world.look(vec![run(0, 4), run(1, 4)], &[]).recv_timeout(PATIENCE).unwrap();
        assert!(matches!(several, Err(Error::Internal { .. })), "{several:?}");
    }

    #[test]
    fn a_look_at_crooked_memory_is_an_error_and_the_next_one_is_made() {
        let world = World::start();
        let address = world.control.allocate(0, 16);
        world.control.produce(0, 0, address, &[0; 16]);
        let mark = || [world.cuda.mark(Ordinal(0), 0).unwrap()];
        let look = |offset: u64| {
            let run = DeviceRegion::new(Ordinal(0), address + offset, 8);
            world.look(vec![run], &mark()).recv_timeout(PATIENCE).unwrap()
        };
        let refused = look(2);
        assert!(matches!(refused, Err(Error::InvalidArgument { .. })), "{refused:?}");
        assert_eq!(look(4), Ok(true));
    }

    #[test]
    fn after_the_end_looks_are_refused() {
        let world = World::start();
        world.cuda.shutdown(&Doubt::default());
        let refused = world.look(vec![DeviceRegion::new(Ordinal(0), 0x1000, 4)], &[]).recv_timeout(PATIENCE).unwrap();
        assert!(matches!(refused, Err(Error::FailedPrecondition { .. })), "{refused:?}");
    }

    struct World {
        control: Control,
        cuda: CudaDevice,
    }

    impl World {
        fn start() -> Self {
            let (control, cuda) = fake_device();
            Self { control, cuda }
        }

        fn look(&self, runs: Vec<DeviceRegion>, after: &[Mark]) -> mpsc::Receiver<Result<bool>> {
            let (sender, outcome) = mpsc::channel();
            self.cuda.all_finite(runs, DType::F32, after, Done::new(move |found| sender.send(found).unwrap()));
            outcome
        }
    }

    /// Longer than the fake driver takes on a busy machine.
    const PATIENCE: Duration = Duration::from_secs(60);
}
