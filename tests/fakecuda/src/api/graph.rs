//! Graphs that a capture made.

use std::ffi::c_ulonglong;
use std::sync::Arc;

use super::{exported, put};
use crate::codes::Code;
use crate::graph::Exec;

/// All flags of `CUgraphInstantiate_flags`.
const FLAGS: c_ulonglong = 15;

exported! {
    fn cuGraphInstantiateWithFlags(exec: *mut usize, graph: usize, flags: c_ulonglong) |driver| {
        if flags & !FLAGS != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let mut tables = driver.tables();
        let graph = tables.graphs.get(&graph).cloned().ok_or(Code::INVALID_VALUE)?;
        let handle = tables.handle();
        tables.execs.insert(handle, Arc::new(Exec::of(graph)));
        put(exec, handle)
    }
    fn cuGraphLaunch(exec: usize, stream: usize) |driver| {
        let found = driver.stream(stream)?;
        driver.devices()[found.device].healthy()?;
        let exec = driver.tables().execs.get(&exec).cloned().ok_or(Code::INVALID_VALUE)?;
        driver.take_time();
        exec.launch(driver, stream, &found)
    }
    fn cuGraphExecDestroy(exec: usize) |driver| {
        // What was launched is still done.
        driver.tables().execs.remove(&exec).map(drop).ok_or(Code::INVALID_VALUE)
    }
    fn cuGraphDestroy(graph: usize) |driver| {
        driver.tables().graphs.remove(&graph).map(drop).ok_or(Code::INVALID_VALUE)
    }
}
