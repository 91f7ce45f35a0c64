//! Calls of the C interface in any order, with any numbers, in jobs of one. Pointers are null or good: nobody can check more of them.
#![expect(unsafe_code, reason = "the functions under test take pointers")]

use std::ffi::{CStr, c_char, c_void};
use std::ptr::{null, null_mut};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use gradlane_session::c::*;

use super::input::Input;
use super::{Kind, Memory, Target, random_inputs};

pub(super) const C_CALLS: Target = Target {
    name: "c_calls",
    kind: Kind::Machine,
    check: c_calls,
    seeds: || random_inputs(64, 300),
    memory: Memory { bytes: 4 << 20, times: 64 << 10 },
};

/// Each number leads where it was given for, or nowhere; what is done is right, and what is refused changes nothing and says why.
fn c_calls(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut caller = Caller::enter();
    while !input.is_empty() {
        caller.call(&mut input);
    }
    caller.leave();
}

/// A program in C, which knows what its numbers are.
struct Caller {
    session: GradlaneSession,
    ended_session: GradlaneSession,
    /// The operations that were begun, and whether their numbers were not released.
    operations: Vec<(GradlaneOperation, bool)>,
    callbacks_due: u64,
    callbacks: Box<AtomicU64>,
}

/// What a number leads to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Leads {
    ToTheSession,
    ToTheEndedSession,
    ToOperation(usize),
    Nowhere,
}

/// The memory of a call, and what the library may write of it.
struct Told {
    text: [c_char; CAPACITY_MAX + 1],
    error: GradlaneError,
}

const CAPACITY_MAX: usize = 200;
const CANARY: c_char = 0x5A;

impl Caller {
    fn enter() -> Self {
        static ENDED: OnceLock<GradlaneSession> = OnceLock::new();
        let ended_session = *ENDED.get_or_init(|| {
            let session = init();
            // SAFETY: no pointers.
            assert_eq!(unsafe { gradlane_shutdown(session, 0, null_mut()) }, GradlaneStatus::Ok);
            session
        });
        Self { session: init(), ended_session, operations: Vec::new(), callbacks_due: 0, callbacks: Box::default() }
    }

    /// Makes one call.
    fn call(&mut self, input: &mut Input<'_>) {
        match input.below(12) {
            0..3 => self.submit(input),
            3..6 => self.ask(input),
            6 => self.release(input),
            7 => self.measure(input),
            8 => self.name(input),
            9 => self.arrive(input),
            10 => self.read_metrics(input),
            _ => self.submit_all(input),
        }
    }

    fn leave(self) {
        // SAFETY: no pointers.
        assert_eq!(unsafe { gradlane_shutdown(self.session, 0, null_mut()) }, GradlaneStatus::Ok);
        assert_eq!(
            self.callbacks.load(Ordering::SeqCst),
            self.callbacks_due,
            "each once, before the session has ended"
        );
        for (operation, _) in self.operations.iter().filter(|(_, is_live)| *is_live) {
            // SAFETY: no pointers.
            assert_eq!(unsafe { gradlane_release(*operation, null_mut()) }, GradlaneStatus::Ok);
        }
    }

    /// Any number, and what it leads to.
    fn number(&self, input: &mut Input<'_>) -> (u64, Leads) {
        let at = usize::from(input.byte());
        match (at % 4, self.operations.len()) {
            (0, _) => (self.session, Leads::ToTheSession),
            (1, _) => (self.ended_session, Leads::ToTheEndedSession),
            (2, count @ 1..) => (self.operations[at / 4 % count].0, Leads::ToOperation(at / 4 % count)),
            _ => {
                let word = input.word();
                let known = self.operations.iter().position(|(operation, _)| *operation == word);
                (word, known.map_or(Leads::Nowhere, Leads::ToOperation))
            }
        }
    }

    /// What a function of operations says of a number.
    fn of_operation(&self, leads: Leads) -> GradlaneStatus {
        match leads {
            Leads::ToOperation(at) if self.operations[at].1 => GradlaneStatus::Ok,
            Leads::ToOperation(_) => GradlaneStatus::FailedPrecondition,
            Leads::ToTheSession | Leads::ToTheEndedSession | Leads::Nowhere => GradlaneStatus::InvalidArgument,
        }
    }

    /// What a function of sessions says of a number, if nothing else is wrong.
    fn of_session(leads: Leads) -> GradlaneStatus {
        match leads {
            Leads::ToTheSession => GradlaneStatus::Ok,
            Leads::ToTheEndedSession => GradlaneStatus::FailedPrecondition,
            Leads::ToOperation(_) | Leads::Nowhere => GradlaneStatus::InvalidArgument,
        }
    }

    /// Asks for an operation's state, in one of three ways.
    fn ask(&self, input: &mut Input<'_>) {
        let (number, leads) = self.number(input);
        let (way, timeout_ms) = (input.below(3), input.pick(&[0, 1, u64::MAX - 1, GRADLANE_FOREVER]));
        // SAFETY: the description is null or good.
        let status = told(input, |error| unsafe {
            match way {
                0 => gradlane_poll(number, error),
                1 => gradlane_cancel(number, error),
                _ => gradlane_wait(number, timeout_ms, error),
            }
        });
        self.is_as_expected(number, leads, status, self.of_operation(leads));
    }

    /// A word that the fuzzer made up may be the number of an earlier input's session or operation, which has ended.
    fn is_as_expected(&self, number: u64, leads: Leads, status: GradlaneStatus, expected: GradlaneStatus) {
        let is_former = leads == Leads::Nowhere && status == GradlaneStatus::FailedPrecondition;
        assert!(status == expected || is_former, "{number:#x}: {status:?}, not {expected:?}");
    }

    fn release(&mut self, input: &mut Input<'_>) {
        let (number, leads) = self.number(input);
        let expected = self.of_operation(leads);
        // SAFETY: the description is null or good.
        let status = told(input, |error| unsafe { gradlane_release(number, error) });
        self.is_as_expected(number, leads, status, expected);
        if let Leads::ToOperation(at) = leads {
            self.operations[at].1 = false;
        }
    }

    fn measure(&self, input: &mut Input<'_>) {
        let (number, leads) = self.number(input);
        let [mut rank, mut size, mut in_doubt] = [u32::MAX; 3];
        let expected = Self::of_session(leads);
        // SAFETY: the variables live in this function, and the description is null or good.
        let statuses = unsafe {
            [
                told(input, |error| gradlane_rank(number, &raw mut rank, error)),
                told(input, |error| gradlane_size(number, &raw mut size, error)),
                told(input, |error| gradlane_in_doubt(number, &raw mut in_doubt, error)),
            ]
        };
        statuses.into_iter().for_each(|status| self.is_as_expected(number, leads, status, expected));
        let answers = if expected == GradlaneStatus::Ok { [0, 1, 0] } else { [u32::MAX; 3] };
        assert_eq!([rank, size, in_doubt], answers);
    }

    fn arrive(&self, input: &mut Input<'_>) {
        let ((number, leads), name) = (self.number(input), text(input));
        let timeout_ms = u64::from(input.byte());
        // SAFETY: the name is null or a text, and the description is null or good.
        let status = told(input, |error| unsafe { gradlane_barrier(number, pointer(&name), timeout_ms, error) });
        assert!(leads == Leads::ToTheSession || status != GradlaneStatus::Ok, "{status:?}");
    }

    fn read_metrics(&self, input: &mut Input<'_>) {
        let (number, leads) = self.number(input);
        let mut buffer = [CANARY; CAPACITY_MAX + 1];
        let capacity = usize::from(input.byte()).min(CAPACITY_MAX);
        let mut whole = usize::MAX;
        // SAFETY: the memory lives in this function and is that long, and the description is null or good.
        let status = told(input, |error| unsafe {
            gradlane_metrics(number, buffer.as_mut_ptr(), capacity, &raw mut whole, error)
        });
        self.is_as_expected(number, leads, status, Self::of_session(leads));
        assert!(buffer[capacity..].iter().all(|byte| *byte == CANARY), "beyond the capacity");
        assert_eq!(whole == usize::MAX, status != GradlaneStatus::Ok);
    }

    /// Declares a name or two, or takes them back.
    fn name(&self, input: &mut Input<'_>) {
        let ((number, leads), count) = (self.number(input), usize::from(input.below(3)));
        let names = [text(input), text(input)];
        let shapes = [shape(input), shape(input)];
        let status = if input.byte().is_multiple_of(2) {
            let tensors = [0, 1].map(|at| GradlaneTensor {
                struct_size: input.pick(&[size_of::<GradlaneTensor>(), 0, 8]),
                name: pointer(&names[at]),
                shape: shapes[at].as_ptr(),
                dimensions: shapes[at].len(),
                codec: input.pick(&[null(), c"fp16".as_ptr(), c"none".as_ptr(), c"fp8".as_ptr()]),
                dtype: u32::from(input.below(10)),
                reserved: u32::from(input.below(2)),
            });
            let tensors = if input.byte() == 255 { null() } else { tensors.as_ptr() };
            let (fuse, timeout_ms) = (i32::from(input.byte()), input.pick(&[0, 1, u64::MAX]));
            // SAFETY: the structures and texts live in this function, and the description is null or good.
            told(input, |error| unsafe { gradlane_declare(number, tensors, count, fuse, timeout_ms, error) })
        } else {
            let names = names.each_ref().map(pointer);
            // SAFETY: the same.
            told(input, |error| unsafe { gradlane_undeclare(number, names.as_ptr(), count, 0, error) })
        };
        assert!(leads == Leads::ToTheSession || status != GradlaneStatus::Ok, "{status:?}");
    }

    fn submit(&mut self, input: &mut Input<'_>) {
        let (number, leads) = self.number(input);
        let mut tensor = Tensor::new(input);
        let has_callback = input.byte().is_multiple_of(2);
        let submission = self.with_callback(tensor.submission(input), has_callback);
        let mut operation = 0;
        let is_waited_for = input.byte() % 8 == 7;
        // SAFETY: in a job of one the operation has ended when this returns; texts and memory live as long, and the counter of callbacks
        // until the session has ended.
        let status = told(input, |error| unsafe {
            if is_waited_for {
                gradlane_push_pull(number, &raw const submission, error)
            } else {
                gradlane_submit(number, &raw const submission, &raw mut operation, error)
            }
        });
        self.has_begun(status, operation, u64::from(has_callback));
        tensor.check(&submission, status);
        assert!(leads == Leads::ToTheSession || status != GradlaneStatus::Ok, "{status:?}");
    }

    fn submit_all(&mut self, input: &mut Input<'_>) {
        let ((number, leads), count) = (self.number(input), usize::from(input.below(3)));
        let mut tensors = [Tensor::new(input), Tensor::new(input)];
        let has_callback = input.byte().is_multiple_of(2);
        let mut submissions = tensors.each_mut().map(|tensor| tensor.submission(input));
        submissions[0] = self.with_callback(submissions[0], has_callback);
        let mut operation = 0;
        // SAFETY: as in `submit`.
        let status = told(input, |error| unsafe {
            gradlane_submit_all(number, submissions.as_ptr(), count, &raw mut operation, error)
        });
        self.has_begun(status, operation, u64::from(has_callback));
        tensors.iter().zip(&submissions).take(count).for_each(|(tensor, given)| tensor.check(given, status));
        assert!(leads == Leads::ToTheSession || status != GradlaneStatus::Ok, "{status:?}");
    }

    fn with_callback(&self, submission: GradlaneSubmission, has_callback: bool) -> GradlaneSubmission {
        unsafe extern "C" fn count(user: *mut c_void, _operation: GradlaneOperation) {
            // SAFETY: the counter of the caller, which waits for the end of its session.
            unsafe { &*user.cast::<AtomicU64>() }.fetch_add(1, Ordering::SeqCst);
        }
        let user = (&raw const *self.callbacks).cast_mut().cast();
        GradlaneSubmission { callback: has_callback.then_some(count), user, ..submission }
    }

    /// Remembers what a submission gave. What waits in the call has no number and no callback.
    fn has_begun(&mut self, status: GradlaneStatus, operation: GradlaneOperation, callbacks: u64) {
        assert!(status == GradlaneStatus::Ok || operation == 0, "{status:?} with a number");
        if operation != 0 {
            self.operations.push((operation, true));
            self.callbacks_due += callbacks;
        }
    }
}

/// The memory of a tensor, of which a call may use a part.
struct Tensor {
    name: Option<Vec<c_char>>,
    shape: Vec<u64>,
    source: Box<[u64; 8]>,
    destination: Box<[u64; 8]>,
    contribution: [u64; 8],
}

impl Tensor {
    fn new(input: &mut Input<'_>) -> Self {
        let contribution = std::array::from_fn(|_| u64::from_le_bytes([input.byte(); 8]));
        let (source, destination) = (Box::new(contribution), Box::new([0x5A5A_5A5A; 8]));
        Self { name: text(input), shape: shape(input), source, destination, contribution }
    }

    fn submission(&mut self, input: &mut Input<'_>) -> GradlaneSubmission {
        static RANKS: [u32; 2] = [0, 1];
        let source: *mut c_void = self.source.as_mut_ptr().cast();
        let submission = GradlaneSubmission {
            struct_size: size_of::<GradlaneSubmission>() - usize::from(input.byte() == 255),
            name: pointer(&self.name),
            shape: if input.byte() == 255 { null() } else { self.shape.as_ptr() },
            dimensions: self.shape.len(),
            codec: input.pick(&[null(), null(), c"fp16".as_ptr(), c"fp8".as_ptr()]),
            source: if input.byte() == 255 { null_mut() } else { source },
            destination: input.pick(&[null_mut(), source, self.destination.as_mut_ptr().cast()]),
            // No shape of those that are tried has the last length.
            bytes: input.pick(&[8, 4, 0, 1, 2, 12, 16, 64, usize::MAX - 1]),
            source_stream: u64::from(input.byte()),
            destination_stream: u64::from(input.byte()),
            timeout_ms: input.pick(&[0, 1, u64::MAX]),
            weight: input.pick(&[1.0, 0.0, -1.0, f64::NAN, f64::INFINITY]),
            dtype: u32::from(input.below(10)),
            op: u32::from(input.below(8)),
            root: u32::from(input.below(2)),
            priority: i32::from(input.byte()) << 24,
            memory: if input.byte() == 255 { 2 } else { GradlaneMemory::Host as u32 },
            device: u32::from(input.byte()),
            ..GradlaneSubmission::empty()
        };
        // Nobody reads the device of host memory, so its byte says more. Rank 0 is alone in this job.
        let (participants, receiver) = (submission.device % 8, submission.device / 8);
        GradlaneSubmission {
            members: if matches!(participants, 0 | 1) { RANKS.as_ptr() } else { null() },
            member_count: [1, 2, 1].get(participants as usize).copied().unwrap_or(0),
            has_receiver: receiver % 4,
            receiver: receiver / 16,
            ..submission
        }
    }

    /// In a job of one, the result is the contribution, but for what a weight makes of it.
    fn check(&self, given: &GradlaneSubmission, status: GradlaneStatus) {
        if given.op == GradlaneOp::WeightedMean as u32 && status == GradlaneStatus::Ok {
            return;
        }
        assert_eq!(*self.source, self.contribution, "{given:?}");
        let is_in_place = given.destination.is_null() || given.destination == given.source;
        let done = if is_in_place || status != GradlaneStatus::Ok || self.shape.contains(&0) { 0 } else { given.bytes };
        for at in 0..size_of_val(&*self.destination) {
            let from = if at < done { self.contribution } else { [0x5A5A_5A5A; 8] };
            assert_eq!(byte(&self.destination, at), byte(&from, at), "byte {at} of {given:?}");
        }
    }
}

fn byte(words: &[u64; 8], at: usize) -> u8 {
    words[at / 8].to_le_bytes()[at % 8]
}

fn init() -> GradlaneSession {
    let mut session = 0;
    // SAFETY: the variable lives in this function.
    assert_eq!(unsafe { gradlane_init(null(), 0, &raw mut session, null_mut()) }, GradlaneStatus::Ok);
    session
}

/// A text that ends with a zero, or none.
fn text(input: &mut Input<'_>) -> Option<Vec<c_char>> {
    let bytes = input.short();
    let until_zero = bytes.iter().take_while(|byte| **byte != 0).map(|byte| byte.cast_signed());
    (bytes.first() != Some(&255)).then(|| until_zero.chain([0]).collect())
}

fn pointer(text: &Option<Vec<c_char>>) -> *const c_char {
    text.as_ref().map_or(null(), |text| text.as_ptr())
}

fn shape(input: &mut Input<'_>) -> Vec<u64> {
    let dimensions = input.pick(&[1, 0, 2, 3, 65]);
    (0..dimensions).map(|_| input.pick(&[1, 2, 3, 4, 8, 16, 0, 1 << 32, u64::MAX])).collect()
}

/// Makes a call with memory for its error: none, too little, or enough. An error says why, and nothing is written beyond.
fn told(input: &mut Input<'_>, call: impl FnOnce(*mut GradlaneError) -> GradlaneStatus) -> GradlaneStatus {
    let capacity = input.pick(&[CAPACITY_MAX, 0, 1, 20]);
    let struct_size = input.pick(&[size_of::<GradlaneError>(), size_of::<GradlaneError>() + 8, 0]);
    let mut told = Told {
        text: [CANARY; CAPACITY_MAX + 1],
        error: GradlaneError {
            struct_size,
            text: null_mut(),
            text_capacity: capacity,
            text_bytes: 0,
            status: 0,
            retryable: 7,
        },
    };
    told.error.text = told.text.as_mut_ptr();
    let status = call(if input.byte() == 255 { null_mut() } else { &raw mut told.error });
    assert!(told.text[capacity..].iter().all(|byte| *byte == CANARY), "beyond the capacity");
    if told.error.retryable == 7 {
        assert!(told.text.iter().all(|byte| *byte == CANARY), "nothing is written of a success");
    } else {
        assert_ne!(status, GradlaneStatus::Ok);
        assert!(told.error.status == status as i32 && told.error.text_bytes > 0);
        // SAFETY: the library ends what it writes with a zero.
        let text = (capacity > 0).then(|| unsafe { CStr::from_ptr(told.text.as_ptr()) });
        assert!(text.is_none_or(|text| text.to_str().is_ok()), "cut within a character");
    }
    status
}
