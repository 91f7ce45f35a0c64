//! Places at which a test ends, stops or slows a process: `GRADLANE_FAILPOINT=push_begins:3:kill` kills the process that comes to that place for
//! the third time, and `adds:1:slow=5` makes it wait there for 5 ms each time.
//!
//! Only builds with the feature `testing` read the variable. In all others [`reach`] is empty, and nothing is left of a place.

/// Writes the enum and the list of names from one table.
macro_rules! failpoints {
    ($($(#[$doc:meta])+ $name:ident = $text:literal,)+) => {
        /// A place in the code that a process may not come past.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Failpoint {
            $($(#[$doc])+ $name,)+
        }

        impl Failpoint {
            /// All of them.
            #[cfg(feature = "testing")]
            pub const ALL: &'static [Self] = &[$(Self::$name),+];

            /// Its name in the variable.
            #[cfg(feature = "testing")]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)+
                }
            }
        }
    };
}

failpoints! {
    /// A member has heard that it has joined, and does not know the others yet.
    Joined = "joined",
    /// A member has heard of another view, and has not followed it.
    ViewHeard = "view_heard",
    /// A worker has heard that the membership is to change, and has not told how many steps it has begun.
    BoundaryHeard = "boundary_heard",
    /// A worker has heard behind which step the boundary is.
    LimitHeard = "limit_heard",
    /// A worker has told that it stands at the boundary.
    Stands = "stands",
    /// A worker has heard that the boundary is passed, and has begun no step behind it.
    PassedHeard = "passed_heard",
    /// A worker knows what it has of the parts of a lost server, and has told nobody.
    HoldingsKnown = "holdings_known",
    /// A worker has heard which sums it is to bring to other servers.
    RestoreHeard = "restore_heard",
    /// A worker begins to bring such a sum.
    RestoreBegins = "restore_begins",
    /// A worker has brought all of them, and has told nobody.
    Restored = "restored",
    /// A process has shown another one of its machine its memory, and the link is not used yet.
    Greets = "greets",
    /// A worker begins a step.
    StepBegins = "step_begins",
    /// A worker is about to push.
    PushBegins = "push_begins",
    /// Some bytes of a body have left a worker or a server, and others have not.
    BytesLeave = "bytes_leave",
    /// The transport has taken the last byte of a push.
    Pushed = "pushed",
    /// Some bytes of a sum have come to a worker, and others have not.
    SumFlows = "sum_flows",
    /// The last byte of a sum has come.
    SumCame = "sum_came",
    /// A sum was copied from beside its contribution to its destination.
    SumLanded = "sum_landed",
    /// A server has a link to another worker.
    PeerCame = "peer_came",
    /// A server has heard the header of a contribution.
    HeaderHeard = "header_heard",
    /// A server has some bytes of a contribution.
    BodyFlows = "body_flows",
    /// A lane of a server is about to add bytes of a contribution.
    Adds = "adds",
    /// A server has added a whole contribution.
    BodyWhole = "body_whole",
    /// A server is about to publish a sum.
    Publishes = "publishes",
    /// A server is about to answer a worker.
    Answers = "answers",
    /// A server has given its transport the whole answer for a worker, and not those for all.
    Answered = "answered",
    /// A worker has taken a sum from a server.
    SumTaken = "sum_taken",
    /// A server has heard the header of a sum that a worker restores.
    RestoreOpened = "restore_opened",
    /// A server was asked to stop.
    Drains = "drains",
    /// A coordinator has an input to write down.
    RecordMade = "record_made",
    /// What a coordinator has decided is on the disk, and nobody has heard of it.
    RecordKept = "record_kept",
    /// A coordinator has told a member of a view, and not all of them.
    ViewTold = "view_told",
    /// A coordinator has told a worker of a boundary, and not all of them.
    BoundaryTold = "boundary_told",
    /// A coordinator has told a worker that a boundary is passed, and not all of them.
    PassedTold = "passed_told",
    /// A coordinator has told a worker which sums it is to restore.
    RestoreTold = "restore_told",
    /// A server, or a worker without servers, is about to write a checkpoint.
    SaveBegins = "save_begins",
    /// The values of a checkpoint are on the disk.
    ValuesWritten = "values_written",
    /// What the rules keep is on the disk.
    StateWritten = "state_written",
    /// A server has written all of its part of a checkpoint.
    TableWritten = "table_written",
    /// All servers have written, and the manifest has not its name yet.
    ManifestMade = "manifest_made",
    /// A checkpoint is whole, and is not the latest yet.
    ManifestWritten = "manifest_written",
    /// The latest checkpoint is another one.
    LatestMoved = "latest_moved",
    /// A server has read a checkpoint, and has not applied it.
    CheckpointRead = "checkpoint_read",
    /// A coordinator has read the journal of another one.
    Resumed = "resumed",
}

/// The process has come to `point`.
#[cfg(not(feature = "testing"))]
#[inline(always)]
pub const fn reach(_point: Failpoint) {}

#[cfg(feature = "testing")]
pub use armed::{VARIABLE, reach};

#[cfg(feature = "testing")]
mod armed {
    use std::io::Write;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use rustix::process::{Signal, getpid, kill_process};

    use super::Failpoint;

    /// The variable that arms one place of a process: its name, how often the process may come there, and how it ends then.
    pub const VARIABLE: &str = "GRADLANE_FAILPOINT";

    /// The process has come to `point`.
    ///
    /// # Panics
    /// If the variable cannot be read.
    #[expect(clippy::disallowed_methods, reason = "a test asks for the delay")]
    pub fn reach(point: Failpoint) {
        static ARMED: OnceLock<Option<Armed>> = OnceLock::new();
        let Some(armed) = ARMED.get_or_init(|| told().as_deref().map(Armed::read)) else { return };
        if armed.point != point {
            return;
        }
        let reached = armed.reached.fetch_add(1, Ordering::Relaxed) + 1;
        match armed.action {
            Action::Slow(time) if reached >= armed.nth => std::thread::sleep(time),
            Action::Ends(end) if reached == armed.nth => armed.end(end),
            Action::Slow(_) | Action::Ends(_) => {}
        }
    }

    #[expect(clippy::disallowed_methods, reason = "no setting: it is there for tests alone")]
    fn told() -> Option<String> {
        std::env::var(VARIABLE).ok()
    }

    struct Armed {
        point: Failpoint,
        nth: u64,
        action: Action,
        reached: AtomicU64,
    }

    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    enum Action {
        /// It waits for so long, from then on each time.
        Slow(Duration),
        Ends(End),
    }

    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    enum End {
        Kill,
        Stop,
        Abort,
        Exit,
    }

    impl Armed {
        fn read(text: &str) -> Self {
            let words: Vec<&str> = text.split(':').collect();
            let armed = if let [name, nth, action] = words[..] {
                let point = Failpoint::ALL.iter().copied().find(|point| point.name() == name);
                let action = match action {
                    "kill" => Some(Action::Ends(End::Kill)),
                    "stop" => Some(Action::Ends(End::Stop)),
                    "abort" => Some(Action::Ends(End::Abort)),
                    "exit" => Some(Action::Ends(End::Exit)),
                    _ => {
                        let millis = action.strip_prefix("slow=").and_then(|millis| millis.parse().ok());
                        millis.map(|millis| Action::Slow(Duration::from_millis(millis)))
                    }
                };
                let nth = nth.parse().ok().filter(|nth| *nth > 0);
                point.zip(nth).zip(action)
            } else {
                None
            };
            let Some(((point, nth), action)) = armed else {
                panic!("{VARIABLE}={text} is not <name>:<nth>:<kill, stop, abort, exit or slow=MILLISECONDS>");
            };
            Self { point, nth, action, reached: AtomicU64::new(0) }
        }

        fn end(&self, end: End) {
            let Self { point, nth, .. } = self;
            // In one piece, because others may write to the same place.
            let told = format!("failpoint {} reached {nth} times\n", point.name());
            let _ = std::io::stderr().write_all(told.as_bytes());
            match end {
                End::Kill => drop(kill_process(getpid(), Signal::KILL)),
                End::Stop => drop(kill_process(getpid(), Signal::STOP)),
                End::Abort => std::process::abort(),
                End::Exit => std::process::exit(CODE),
            }
        }
    }

    /// The exit code of a process that a failpoint has ended.
    const CODE: i32 = 86;

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn every_place_has_a_name_of_its_own_that_the_variable_can_say() {
            for point in Failpoint::ALL {
                let armed = Armed::read(&format!("{}:2:stop", point.name()));
                assert_eq!((armed.point, armed.nth, armed.action), (*point, 2, Action::Ends(End::Stop)));
            }
        }

        #[test]
        fn a_place_can_be_slow() {
            let armed = Armed::read("adds:3:slow=5");
            assert_eq!((armed.nth, armed.action), (3, Action::Slow(Duration::from_millis(5))));
        }

        #[test]
        fn what_cannot_be_read_is_told() {
            for wrong in [
                "",
                "adds:1:slow",
                "adds:1:slow=x",
                "pushed",
                "pushed:1",
                "pushed:0:kill",
                "pushed:x:kill",
                "push:1:kill",
                "pushed:1:end",
            ] {
                assert!(std::panic::catch_unwind(|| Armed::read(wrong)).is_err(), "{wrong}");
            }
        }
    }
}
