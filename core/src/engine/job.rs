//! A step of the machine with its memory: the input of an executor.

use super::payload::Payload;
use super::residuals::SharedResidual;
use super::state::State;
use crate::codec::Coding;
use crate::codec::feedback::Start;
use crate::collective::Operation;
use crate::cuda::Mark;
use crate::device::Transfer;
use crate::mem::{Ordinal, Region};
use crate::pipeline::Stage;
use crate::sched::Task;
use crate::types::{ExchangeId, Finding, LinkId, Time};
use crate::wire::Request;
use crate::worker::{Action, Landing, Meeting, Step, Use};

/// The step.
pub(super) struct Job {
    pub(super) task: Task,
    pub(super) stage: Stage,
    /// Whether the task has its result after this step.
    pub(super) is_last: bool,
    pub(super) work: Work,
}

/// The work of a stage, with the task's memory.
pub(super) enum Work {
    Push {
        link: LinkId,
        exchange: ExchangeId,
        header: Request,
        body: Vec<Region>,
        /// Where the sum lands; `None` if memory for it must be found, beside the contribution.
        into: Option<Vec<Region>>,
    },
    CopyToHost {
        from: Ordinal,
        staged: Staged,
    },
    CopyToDevice {
        transfer: Transfer,
        after: Vec<Mark>,
    },
    Encode {
        from: Vec<Region>,
        coding: Coding,
        /// What bodies of the part have lost, and how this one uses it. Without error feedback there is none.
        residual: Option<(SharedResidual, Start)>,
        link: Option<LinkId>,
    },
    Land {
        from: Region,
        to: Vec<Region>,
    },
    Decode {
        from: Region,
        /// Where the elements go; `None` if memory must be found, from which they are copied to a device.
        to: Option<Vec<Region>>,
        coding: Coding,
        /// Whether the sum lies there in its own type.
        refused: bool,
    },
    Meet {
        operation: Operation,
        /// Whether the contribution is in the memory of the result afterwards.
        takes: bool,
        /// Whether memory must be found to reduce it in, in place of that of its tensors.
        aside: bool,
        /// The team that does it.
        team: u32,
    },
}

/// What COPYD2H stages.
#[derive(Clone, Copy)]
pub(super) struct Staged {
    pub(super) bytes: u64,
    /// How the device encodes the bytes, if it does.
    pub(super) coding: Option<Coding>,
    /// The link over which they will go, if there is one now.
    pub(super) link: Option<LinkId>,
    /// Whether there is anything to copy.
    pub(super) contributes: bool,
    /// Whether the sum lands in other memory, which is pinned as well.
    pub(super) lands_beside: bool,
}

impl State {
    /// The next job of `stage`.
    pub(super) fn take(&mut self, now: Time, stage: Stage) -> Option<Job> {
        let step = self.worker.take(now, stage)?;
        Some(self.job(now, step))
    }

    /// As [`take`](Self::take), if it has at most `bytes_max` bytes. Also returns whether others wait that are held up only by their turn or
    /// their credit.
    pub(super) fn take_short(&mut self, now: Time, stage: Stage, bytes_max: u64) -> (Option<Job>, bool) {
        let step = self.worker.take_short(now, stage, bytes_max);
        (step.map(|step| self.job(now, step)), self.worker.has_ready(stage))
    }

    fn job(&mut self, now: Time, Step { task, stage, is_last, action }: Step) -> Job {
        if let Some(trace) = &mut self.trace {
            trace.taken(now, &task, stage);
        }
        self.record_taken(now, task.id, stage);
        let payload = self.payloads.get_mut(task.id).expect("a task has a payload until it is released");
        let work = match action {
            Action::Push { link, exchange, header, landing } => {
                let body = if header.body_bytes() == 0 { Vec::new() } else { payload.contribution() };
                let into = match landing {
                    Landing::Nowhere => Some(Vec::new()),
                    Landing::InPlace => Some(payload.landing()),
                    Landing::Beside => payload.beside().map(|region| vec![region]),
                };
                Work::Push { link, exchange, header, body, into }
            }
            Action::CopyToHost { bytes, coding, link, contributes, lands_beside } => {
                let from = payload.on_device().device();
                Work::CopyToHost { from, staged: Staged { bytes, coding, link, contributes, lands_beside } }
            }
            Action::CopyToDevice { coding } => {
                let (transfer, after) = payload.on_device().to_device(coding);
                Work::CopyToDevice { transfer, after }
            }
            Action::Encode { coding, residual, link } => {
                let residual = residual.map(|start| (self.residuals.of(task.part), start));
                Work::Encode { from: payload.elements(), coding, residual, link }
            }
            Action::Land => {
                let (from, to) = payload.to_land();
                Work::Land { from, to }
            }
            Action::Decode { coding, body } => {
                let landing = payload.landing().pop().expect("a sum to decode lies in one piece");
                let (from, _) = landing.split_at(usize::try_from(body.bytes).expect("it landed there"));
                let to = if payload.is_encoded_in_place() { None } else { Some(payload.result()) };
                Work::Decode { from, to, coding, refused: body.refused }
            }
            Action::Meet(Meeting { goal, claim, failure, memory, takes, aside, team }) => {
                let aside = aside && !payload.is_aside();
                let memory = meeting_memory(payload, memory);
                let (part, round, finding) = (task.part, task.round, Finding::default());
                let operation = Operation { part, round, goal, failure, claim, memory, finding };
                Work::Meet { operation, takes, aside, team }
            }
        };
        Job { task, stage, is_last, work }
    }
}

fn meeting_memory(payload: &mut Payload, uses: Use) -> crate::collective::Memory {
    match uses {
        Use::Tensors => payload.memory(),
        Use::Staged => payload.staged_memory(),
        Use::Received => {
            payload.contribute_result();
            payload.unstage();
            payload.memory()
        }
    }
}
