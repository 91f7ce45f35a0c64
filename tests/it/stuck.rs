//! An engine whose own threads are stuck: every wait of a caller ends all the same, with an error that names the tensor, and the memory stays
//! in use until the engine lets go of it.
#![expect(unsafe_code, reason = "the functions of the C interface take pointers")]

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use gradlane_core::Error;
use gradlane_core::engine::{Handle, Submission};
use gradlane_core::runtime::Clock;
use gradlane_core::types::Op;
use gradlane_server::{Embedded, EmbeddedOptions};
use gradlane_session::c::{
    GRADLANE_FOREVER, GradlaneDtype, GradlaneError, GradlaneOp, GradlaneOperation, GradlaneStatus, GradlaneSubmission,
    LentSession, gradlane_poll, gradlane_push_pull, gradlane_release, gradlane_submit, gradlane_wait,
};
use gradlane_session::{Completions, Found, JoinRequest, Session};
use gradlane_tests::cluster::{PATIENCE, Tensor, config};
use gradlane_tests::matrix;
use gradlane_tests::over::Over;
use gradlane_tests::patience::{elapsed, eventually};

matrix! {
    [locally, over_shm, over_quic]:
        every_wait_of_a_caller_ends_though_the_engine_is_stuck,
        the_waits_of_the_c_interface_end_though_the_engine_is_stuck,
        a_timeout_of_the_submission_bounds_the_wait_though_the_engine_is_stuck,
        an_engine_that_goes_on_in_time_is_not_given_up;
}

/// A handle is given up 2 s after the longest wait of the engine, which is `step_timeout` and 10 s, and after 2 s to catch up.
const SETTINGS: [(&str, &str); 3] = [("step_timeout", "4 s"), ("stall_warn", "1 s"), ("dead_timeout", "3 s")];

fn every_wait_of_a_caller_ends_though_the_engine_is_stuck(over: Over) {
    let job = Job::start(over);
    let session = &job.sessions[0];
    let completions = Completions::default();
    assert!(completions.next(Duration::ZERO).is_empty());
    let hold = job.hold_up();

    let mut tensors: Vec<Tensor> = (0..3).map(|index| Tensor::new(&format!("w{index}"), vec![1.0; 40_000])).collect();
    let [waited, followed, reduced] = &mut tensors[..] else { panic!("three tensors") };
    let began = Clock::start();
    let handles = [waited, followed].map(|tensor| session.submit(tensor.submission(Op::Sum), None, |_| {}).unwrap());
    handles.iter().for_each(|handle| completions.watch(handle));
    std::thread::scope(|scope| {
        let [waited, followed] = &handles;
        let wait = scope.spawn(|| waited.wait(None));
        let follow = scope.spawn(|| followed.follow(None, |_| None));
        let reduce =
            scope.spawn(|| session.submit(reduced.submission(Op::Sum), Some(Duration::MAX), |_| {})?.wait(None));
        is_given_up(wait.join().unwrap(), "w0");
        is_given_up(follow.join().unwrap(), "w1");
        is_given_up(reduce.join().unwrap(), "w2");
    });
    assert!(elapsed(began) < PATIENCE, "{:?}", elapsed(began));
    let mut told = completions.next(PATIENCE);
    told.extend(completions.next(Duration::ZERO));
    told.sort_unstable();
    assert_eq!(told, handles.each_ref().map(Handle::id), "a future completes, with the error");

    // The engine may still write to the memory, so nobody gets it.
    assert!(handles.iter().all(|handle| handle.outcome().is_none() && handle.is_given_up()));
    let refused = session.submit(tensors[0].submission(Op::Sum), None, |_| {}).unwrap_err();
    assert!(refused.to_string().contains("its memory is in use"), "{refused}");

    let began = Clock::start();
    let _ = session.shutdown(Duration::from_millis(100));
    assert!(elapsed(began) < PATIENCE, "{:?}", elapsed(began));
    hold.let_go();
    for handle in &handles {
        let _how = eventually("the engine lets go of the memory", || handle.outcome());
    }
}

fn the_waits_of_the_c_interface_end_though_the_engine_is_stuck(over: Over) {
    let job = Job::start(over);
    let lent = LentSession::new(Arc::clone(&job.sessions[0])).unwrap();
    let hold = job.hold_up();

    let (called, calls) = channel();
    let (mut first, mut second) = (vec![1_f32; 40_000], vec![1_f32; 40_000]);
    let (first_name, second_name) = (CString::new("c0").unwrap(), CString::new("c1").unwrap());
    let callback = Box::new(called);
    let shape = [40_000_u64];
    let user = (&raw const *callback).cast_mut().cast();
    let given = GradlaneSubmission { callback: Some(tell), user, ..submission(&first_name, &shape, &mut first) };
    let mut told = Told::new();
    let (mut operation, mut status) = (0, GradlaneStatus::Ok);
    std::thread::scope(|scope| {
        // SAFETY: the arrays live until the engine has let go of them, which is waited for below.
        unsafe { assert_eq!(gradlane_submit(lent.key(), &given, &mut operation, null_mut()), GradlaneStatus::Ok) };
        let (key, name) = (lent.key(), &second_name);
        let (second, shape) = (&mut second, &shape);
        let blocking = scope.spawn(move || {
            let given = submission(name, shape, second);
            // SAFETY: as above.
            unsafe { gradlane_push_pull(key, &given, null_mut()) }
        });
        // SAFETY: the description belongs to this function.
        status = unsafe { gradlane_wait(operation, GRADLANE_FOREVER, told.error()) };
        assert_eq!(blocking.join().unwrap(), GradlaneStatus::Unresponsive);
    });
    assert_eq!(status, GradlaneStatus::Unresponsive);
    assert!(told.text().contains("tensor c0"), "{}", told.text());
    assert_eq!(calls.recv_timeout(PATIENCE), Ok(operation), "the callback runs");
    // SAFETY: no memory is given.
    unsafe { assert_eq!(gradlane_poll(operation, null_mut()), GradlaneStatus::Unresponsive) };

    hold.let_go();
    // SAFETY: as above.
    let ended = || unsafe { gradlane_poll(operation, null_mut()) } != GradlaneStatus::Unresponsive;
    eventually("the engine lets go of the memory", || ended().then_some(()));
    // With the engine, so that nothing writes to the second array any more.
    drop((lent, job));
    // SAFETY: the number is released once.
    unsafe { gradlane_release(operation, null_mut()) };
    drop((first, second));
}

fn a_timeout_of_the_submission_bounds_the_wait_though_the_engine_is_stuck(over: Over) {
    const LONG: (&str, &str) = ("step_timeout", "1 h");
    let job = Job::start_with(over, &[LONG, SETTINGS[1], SETTINGS[2]]);
    let hold = job.hold_up();
    let mut tensor = Tensor::new("w0", vec![1.0; 1000]);
    let submission = Submission { timeout: Some(Duration::from_secs(1)), ..tensor.submission(Op::Sum) };
    let began = Clock::start();
    let handle = job.sessions[0].submit(submission, None, |_| {}).unwrap();
    is_given_up(handle.wait(None), "w0");
    assert!(elapsed(began) < PATIENCE, "{:?}", elapsed(began));
    hold.let_go();
    let _how = eventually("the engine lets go of the memory", || handle.outcome());
}

fn an_engine_that_goes_on_in_time_is_not_given_up(over: Over) {
    let job = Job::start(over);
    let [one, other] = &job.sessions[..] else { panic!("two workers") };
    let hold = job.hold_up();
    let mut tensors = [1.0, 2.0].map(|value| Tensor::new("w", vec![value; 1000]));
    let [ours, theirs] = &mut tensors;
    let waiting = one.submit(ours.submission(Op::Sum), None, |_| {}).unwrap();
    let early = waiting.wait(Some(Duration::from_millis(100)));
    assert!(matches!(early, Err(Error::StillRunning { .. })), "stuck, and not for long yet: {early:?}");
    assert!(!waiting.is_given_up());
    hold.let_go();
    std::thread::scope(|scope| {
        let waited = scope.spawn(|| waiting.wait(None));
        other.submit(theirs.submission(Op::Sum), Some(PATIENCE), |_| {}).unwrap().wait(None).unwrap();
        assert_eq!(waited.join().unwrap(), Ok(()));
    });
    assert!(!waiting.is_given_up());
    assert!(tensors.iter().flat_map(|tensor| &tensor.data).all(|sum| *sum == 3.0));
}

fn is_given_up(outcome: Result<(), Error>, tensor: &str) {
    match outcome {
        Err(Error::Unresponsive { what, .. }) => assert_eq!(what, format!("tensor {tensor}")),
        // A step that the engine's timer could still end.
        other => panic!("{tensor}: {other:?}"),
    }
}

/// Two workers and a server.
struct Job {
    sessions: Vec<Arc<Session>>,
    _embedded: Embedded,
}

/// What holds up a thread of the engine of worker 0.
struct Hold(Sender<()>);

impl Hold {
    fn let_go(self) {
        drop(self.0);
    }
}

impl Job {
    fn start(over: Over) -> Self {
        Self::start_with(over, &SETTINGS)
    }

    fn start_with(over: Over, settings: &[(&str, &str)]) -> Self {
        let config = config(over, settings);
        let embedded =
            Embedded::start(EmbeddedOptions { config: config.clone(), workers: 2, servers: 1 }).expect("starts");
        let sessions = std::thread::scope(|scope| {
            let join = |rank| {
                let request = JoinRequest {
                    rank: Some(rank),
                    workers: 2,
                    servers: 1,
                    patience: PATIENCE,
                    software: BTreeMap::new(),
                };
                let found = Found::from(embedded.join_string().clone());
                Arc::new(Session::join(found, request, config.clone()).expect("joins"))
            };
            let joining = [0, 1].map(|rank| scope.spawn(move || join(rank)));
            joining.into_iter().map(|session| session.join().expect("no panic")).collect()
        });
        Self { sessions, _embedded: embedded }
    }

    /// Blocks the thread of worker 0 that tells the end of a reduction, until the hold is let go. That is the thread that does the work of the
    /// transport, or of the machine's ranks.
    fn hold_up(&self) -> Hold {
        let (hold, held): (Sender<()>, Receiver<()>) = channel();
        let (blocked, is_blocked) = channel();
        let mut tensors = [(); 2].map(|()| Tensor::new("held", vec![1.0; 10]));
        let [ours, theirs] = &mut tensors;
        let block = move |_| {
            let _ = blocked.send(());
            let _ = held.recv();
        };
        self.sessions[0].submit(ours.submission(Op::Sum), None, block).unwrap();
        self.sessions[1].submit(theirs.submission(Op::Sum), None, |_| {}).unwrap().wait(Some(PATIENCE)).unwrap();
        is_blocked.recv_timeout(PATIENCE).expect("its end is told");
        Hold(hold)
    }
}

/// A callback that sends the number of its operation.
unsafe extern "C" fn tell(user: *mut c_void, operation: GradlaneOperation) {
    // SAFETY: the test gives the address of a sender that lives longer than the operation.
    let sender = unsafe { &*user.cast::<Sender<GradlaneOperation>>() };
    let _ = sender.send(operation);
}

fn submission(name: &CStr, shape: &[u64; 1], data: &mut [f32]) -> GradlaneSubmission {
    GradlaneSubmission {
        name: name.as_ptr(),
        shape: shape.as_ptr(),
        dimensions: 1,
        source: data.as_mut_ptr().cast(),
        bytes: size_of_val(data),
        dtype: GradlaneDtype::Float32 as u32,
        op: GradlaneOp::Sum as u32,
        ..GradlaneSubmission::empty()
    }
}

/// The description of an error.
struct Told {
    text: Vec<u8>,
    error: GradlaneError,
}

impl Told {
    fn new() -> Self {
        let mut text = vec![0_u8; 1024];
        let error = GradlaneError {
            struct_size: size_of::<GradlaneError>(),
            text: text.as_mut_ptr().cast::<c_char>(),
            text_capacity: text.len(),
            text_bytes: 0,
            status: 0,
            retryable: 0,
        };
        Self { text, error }
    }

    fn error(&mut self) -> *mut GradlaneError {
        &raw mut self.error
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.text[..self.error.text_bytes]).into_owned()
    }
}
