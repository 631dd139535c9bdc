//! Modules and functions.

use crate::abi::{BlockToShared, CUdeviceptr, CUfunction, CUmodule, In, Out, Text};
use crate::context;
use crate::device::{MAX_THREADS, MULTIPROCESSORS, SHARED_OPTIN_BYTES};
use crate::door::exports;
use crate::errors::{Code, Outcome, refuse};
use crate::jit_log::JitLog;
use crate::launch::occupancy;
use crate::module::{self, Image};
use std::ffi::{c_char, c_int, c_void};

fn max_active_blocks(out: Out<c_int>, function: CUfunction, block: c_int, shared_bytes: usize) -> Outcome {
    context::current()?;
    let threads = u32::try_from(block).map_err(|_| Code::INVALID_VALUE)?;
    out.set(occupancy(module::function(function)?, threads, shared_bytes)? as c_int)
}

fn max_potential_block(
    (min_grid, block): (Out<c_int>, Out<c_int>),
    function: CUfunction,
    shared_of: Option<BlockToShared>,
    shared_bytes: usize,
    limit: c_int,
) -> Outcome {
    context::current()?;
    let function = module::function(function)?;
    let limit = if limit <= 0 { MAX_THREADS } else { MAX_THREADS.min(limit as u32) };
    let mut best = (0, 0);
    for threads in (1..=limit).rev().filter(|threads| threads % 32 == 0 || *threads == limit) {
        let shared_bytes = match shared_of {
            // SAFETY: the caller promises a function that takes the threads per block and returns
            // the bytes of shared memory.
            Some(shared_of) => unsafe { shared_of(threads as c_int) },
            None => shared_bytes,
        };
        let blocks = occupancy(function, threads, shared_bytes).unwrap_or(0);
        if blocks * threads > best.0 * best.1 {
            best = (blocks, threads);
        }
    }
    min_grid.set((best.0 * MULTIPROCESSORS) as c_int)?;
    block.set(best.1 as c_int)
}

exports! {
    fn cuModuleLoad(out: Out<CUmodule>, name: Text) {
        out.set(module::load(&Image::of_file(&name.get()?)?)?)
    }

    fn cuModuleLoadData(out: Out<CUmodule>, image: *const c_char) {
        out.set(module::load(&Image::at(image)?)?)
    }

    fn cuModuleLoadDataEx(
        out: Out<CUmodule>,
        image: *const c_char,
        option_count: u32,
        options: In<c_int>,
        values: Out<*mut c_void>,
    ) {
        let log = JitLog::of(option_count, options, &values)?;
        out.set(log.keep(Image::at(image).and_then(|image| module::load(&image)))?)
    }

    fn cuModuleGetLoadingMode(mode: Out<c_int>) {
        // `CU_MODULE_EAGER_LOADING`.
        mode.set(1)
    }

    fn cuFuncLoad(function: CUfunction) {
        context::current()?;
        module::function(function).map(drop)
    }

    fn cuModuleUnload(module: CUmodule) {
        module::unload(module)
    }

    fn cuModuleGetFunction(out: Out<CUfunction>, module: CUmodule, name: Text) {
        out.set(module::get_function(module, &name.get()?)?)
    }

    fn cuModuleGetGlobal_v2(address: Out<CUdeviceptr>, bytes: Out<usize>, module: CUmodule, name: Text) {
        let (start, len) = module::get_global(module, &name.get()?)?;
        address.set_if_asked(start);
        bytes.set_if_asked(len);
        Ok(())
    }

    fn cuFuncGetAttribute(value: Out<c_int>, attribute: c_int, function: CUfunction) {
        context::current()?;
        value.set(module::function(function)?.attribute(attribute)?)
    }

    fn cuFuncSetAttribute(function: CUfunction, attribute: c_int, value: c_int) {
        context::current()?;
        module::function(function)?.set_attribute(attribute, value)
    }

    fn cuFuncSetCacheConfig(function: CUfunction, config: u32) {
        context::current()?;
        module::function(function)?;
        if config > 3 {
            refuse!(INVALID_VALUE, "cache configuration {config}");
        }
        Ok(())
    }

    fn cuFuncGetParamInfo(function: CUfunction, index: usize, offset: Out<usize>, size: Out<usize>) {
        context::current()?;
        let param = module::function(function)?.params()?.get(index).copied().ok_or(Code::INVALID_VALUE)?;
        offset.set(param.offset)?;
        size.set_if_asked(param.bytes);
        Ok(())
    }

    fn cuFuncGetName(name: Out<*const c_char>, function: CUfunction) {
        context::current()?;
        name.set(module::function(function)?.name.as_ptr())
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
        out: Out<c_int>,
        function: CUfunction,
        block: c_int,
        shared_bytes: usize,
    ) {
        max_active_blocks(out, function, block, shared_bytes)
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        out: Out<c_int>,
        function: CUfunction,
        block: c_int,
        shared_bytes: usize,
        _flags: u32,
    ) {
        max_active_blocks(out, function, block, shared_bytes)
    }

    fn cuOccupancyMaxPotentialBlockSize(
        min_grid: Out<c_int>,
        block: Out<c_int>,
        function: CUfunction,
        shared_of: Option<BlockToShared>,
        shared_bytes: usize,
        limit: c_int,
    ) {
        max_potential_block((min_grid, block), function, shared_of, shared_bytes, limit)
    }

    fn cuOccupancyMaxPotentialBlockSizeWithFlags(
        min_grid: Out<c_int>,
        block: Out<c_int>,
        function: CUfunction,
        shared_of: Option<BlockToShared>,
        shared_bytes: usize,
        limit: c_int,
        _flags: u32,
    ) {
        max_potential_block((min_grid, block), function, shared_of, shared_bytes, limit)
    }

    fn cuOccupancyAvailableDynamicSMemPerBlock(
        bytes: Out<usize>,
        function: CUfunction,
        blocks: c_int,
        block: c_int,
    ) {
        context::current()?;
        module::function(function)?;
        if blocks <= 0 || block <= 0 {
            refuse!(INVALID_VALUE, "{blocks} blocks of {block} threads");
        }
        bytes.set((SHARED_OPTIN_BYTES / blocks as u32) as usize)
    }
}
