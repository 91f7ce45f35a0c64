//! Graphs: what was captured, and what runs it again.
//!
//! The streams of a capture become one queue, in the order of submission. Their events allow this order, because a stream waits only for
//! what was recorded before. A device may run side by side what no event orders.

use std::sync::{Arc, Mutex, PoisonError};

use crate::codes::{Code, Outcome};
use crate::copies::{Copy, Fill};
use crate::driver::Driver;
use crate::event::Point;
use crate::kernel::Launch;
use crate::memory::Spot;
use crate::stream::{Call, Step, Stream, Work};

/// Work that is done whenever its graph is launched. It keeps no memory: memory that a graph uses may be freed, and its next launch fails.
pub(crate) enum Node {
    Copy { to: Spot, from: Spot, bytes: usize },
    Fill { to: Spot, pattern: Vec<u8>, bytes: usize },
    Kernel(Launch),
    Call(Call),
}

/// What `cuStreamEndCapture` makes.
#[derive(Clone)]
pub(crate) struct Graph {
    pub(crate) device: usize,
    pub(crate) nodes: Arc<[Node]>,
}

/// What `cuGraphInstantiate` makes.
pub(crate) struct Exec {
    graph: Graph,
    /// The end of the last launch.
    last: Mutex<Option<Arc<Point>>>,
}

impl Node {
    pub(crate) fn of(work: Work) -> Self {
        match work {
            Work::Copy(Copy { to, from, bytes }) => Self::Copy { to: to.spot(), from: from.spot(), bytes },
            Work::Fill(Fill { to, pattern, bytes }) => Self::Fill { to: to.spot(), pattern, bytes },
            Work::Kernel(launch) => Self::Kernel(launch),
            Work::Call(call) => Self::Call(call),
        }
    }

    /// Its work once more; none if its memory was freed. What memory a kernel uses shows when it runs.
    fn work(&self) -> Option<Work> {
        Some(match self {
            Self::Copy { to, from, bytes } => Work::Copy(Copy { to: to.place()?, from: from.place()?, bytes: *bytes }),
            Self::Fill { to, pattern, bytes } => {
                Work::Fill(Fill { to: to.place()?, pattern: pattern.clone(), bytes: *bytes })
            }
            Self::Kernel(launch) => Work::Kernel(launch.clone()),
            Self::Call(call) => Work::Call(*call),
        })
    }
}

impl Exec {
    pub(crate) fn of(graph: Graph) -> Self {
        Self { graph, last: Mutex::default() }
    }

    /// Puts all of it into a stream of the device where it was captured, behind its own last launch. A stream under capture takes its nodes.
    pub(crate) fn launch(&self, driver: &Driver, handle: usize, stream: &Arc<Stream>) -> Outcome {
        if stream.device != self.graph.device {
            return Err(Code::INVALID_VALUE);
        }
        let device = &driver.devices()[stream.device];
        let Some(works) = self.graph.nodes.iter().map(Node::work).collect::<Option<Vec<Work>>>() else {
            device.fail(Code::ILLEGAL_ADDRESS.0);
            return Err(Code::ILLEGAL_ADDRESS);
        };
        if driver.captures.of(handle).is_some() {
            works.into_iter().for_each(|work| driver.submit(handle, stream, Step::Work(work)));
            return Ok(());
        }
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(point) = last.take().filter(|point| point.reached().is_none()) {
            driver.submit(handle, stream, Step::Wait(point));
        }
        let end = Arc::new(Point::default());
        driver.submit(handle, stream, Step::Graph(works));
        driver.submit(handle, stream, Step::Reach(Arc::clone(&end)));
        *last = Some(end);
        Ok(())
    }
}
