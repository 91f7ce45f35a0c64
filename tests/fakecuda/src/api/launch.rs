//! Modules and kernels.

use std::ffi::{c_char, c_uint};
use std::sync::Arc;

use super::{bytes, exported, get, put, text};
use crate::codes::Code;
use crate::kernel::Launch;
use crate::ptx::Module;
use crate::stream::{Step, Work};

exported! {
    fn cuModuleLoadData(module: *mut usize, image: *const c_char) |driver| {
        driver.captures.forbid()?;
        driver.synchronize_implicitly(driver.current()?);
        // Compiled images are no PTX and have nothing that could be run here.
        let parsed = Module::parse(&text(image)?).map_err(|_| Code::INVALID_PTX)?;
        let settings = driver.settings.get();
        if parsed.version() > settings.ptx_version() {
            return Err(Code::UNSUPPORTED_PTX_VERSION);
        }
        if parsed.target() > settings.capability {
            return Err(Code::INVALID_PTX);
        }
        let mut tables = driver.tables();
        let handle = tables.handle();
        tables.modules.insert(handle, parsed);
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
        let mut tables = driver.tables();
        let parsed = tables.modules.get(&module).ok_or(Code::INVALID_HANDLE)?;
        let kernel = Arc::new(parsed.kernel(&name).ok_or(Code::NOT_FOUND)?.clone());
        let handle = tables.handle();
        tables.functions.insert(handle, (module, kernel));
        put(function, handle)
    }
    fn cuLaunchKernel(
        function: usize, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint, block_z: c_uint,
        _shared_bytes: c_uint, stream: usize, arguments: *const *const u8, extra: *const *const u8,
    ) |driver| {
        let found = driver.stream_here(stream)?;
        let (_, kernel) = driver.tables().functions.get(&function).cloned().ok_or(Code::INVALID_HANDLE)?;
        // Nothing here is of more than one dimension.
        let ([blocks, 1, 1], [threads @ 1..=1024, 1, 1]) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]) else {
            return Err(Code::INVALID_VALUE);
        };
        if !extra.is_null() || blocks == 0 {
            return Err(Code::INVALID_VALUE);
        }
        // What the arguments are is copied now: the caller's places end with the call.
        let argument = |(at, size): (usize, &usize)| bytes(get(arguments.wrapping_add(at))?, *size);
        driver.take_time();
        let arguments = kernel.params().iter().enumerate().map(argument).collect::<Result<Vec<_>, Code>>()?.concat();
        driver.submit(stream, &found, Step::Work(Work::Kernel(Launch { kernel, blocks, threads, arguments })));
        Ok(())
    }
}
