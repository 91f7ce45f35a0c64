//! Modules and kernels.

use std::ffi::{c_char, c_uint};
use std::sync::Arc;

use super::{bytes, exported, get, put, text};
use crate::codes::Code;
use crate::kernel::Prepared;
use crate::stream::{Step, Work};

exported! {
    fn cuModuleLoadData(module: *mut usize, image: *const c_char) |driver| {
        driver.captures.forbid()?;
        driver.current()?;
        let ptx = text(image).map_err(|_| Code::INVALID_IMAGE)?;
        // PTX begins with its version; compiled images are no text and have nothing that could be run here.
        if !ptx.contains(".version") {
            return Err(Code::INVALID_IMAGE);
        }
        let mut tables = driver.tables();
        let handle = tables.handle();
        tables.modules.insert(handle, Arc::from(ptx));
        put(module, handle)
    }
    fn cuModuleUnload(module: usize) |driver| {
        let mut tables = driver.tables();
        tables.modules.remove(&module).ok_or(Code::INVALID_HANDLE)?;
        tables.functions.retain(|_, (of, _)| *of != module);
        Ok(())
    }
    fn cuModuleGetFunction(function: *mut usize, module: usize, name: *const c_char) |driver| {
        let name = text(name)?;
        let ptx = driver.tables().modules.get(&module).cloned().ok_or(Code::INVALID_HANDLE)?;
        let found = driver.references.function(&ptx, &name)?;
        let mut tables = driver.tables();
        let handle = tables.handle();
        tables.functions.insert(handle, (module, found));
        put(function, handle)
    }
    fn cuLaunchKernel(
        function: usize, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint, block_z: c_uint,
        _shared_bytes: c_uint, stream: usize, arguments: *const *const u8, extra: *const *const u8,
    ) |driver| {
        let found = driver.stream_here(stream)?;
        let (_, function) = driver.tables().functions.get(&function).cloned().ok_or(Code::INVALID_HANDLE)?;
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        let threads = block.iter().try_fold(1_u32, |all, one| all.checked_mul(*one));
        if !extra.is_null() || grid.contains(&0) || !threads.is_some_and(|threads| (1..=1024).contains(&threads)) {
            return Err(Code::INVALID_VALUE);
        }
        // What the arguments are is copied now: the caller's places end with the call.
        let argument = |(at, size): (usize, &usize)| bytes(get(arguments.wrapping_add(at))?, *size);
        let arguments = function.parameters.iter().enumerate().map(argument).collect::<Result<_, Code>>()?;
        let prepared = Prepared { reference: function.reference, grid, block, arguments };
        driver.submit(stream, &found, Step::Work(Work::Kernel(prepared)));
        Ok(())
    }
}
