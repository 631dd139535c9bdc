//! Links.

use crate::abi::{CUlinkState, In, Out, Text};
use crate::context;
use crate::door::exports;
use crate::errors::refuse;
use crate::jit_log::JitLog;
use crate::linker;
use std::ffi::{c_int, c_void};

exports! {
    fn cuLinkCreate_v2(option_count: u32, options: In<c_int>, values: Out<*mut c_void>, out: Out<CUlinkState>) {
        context::current()?;
        out.set(linker::create(JitLog::of(option_count, options, &values)?))
    }

    fn cuLinkAddData_v2(
        state: CUlinkState,
        kind: u32,
        data: *const u8,
        bytes: usize,
        name: Text,
        _option_count: u32,
        _options: In<c_int>,
        _values: In<*mut c_void>,
    ) {
        if data.is_null() {
            refuse!(INVALID_VALUE, "the data is null");
        }
        // SAFETY: not null, so the caller promises that many bytes there, which live until the
        // call returns.
        let data = unsafe { std::slice::from_raw_parts(data, bytes) };
        linker::add(state, kind, data, &name.get().unwrap_or_default())
    }

    fn cuLinkAddFile_v2(
        state: CUlinkState,
        kind: u32,
        path: Text,
        _option_count: u32,
        _options: In<c_int>,
        _values: In<*mut c_void>,
    ) {
        let path = path.get()?;
        let Ok(bytes) = std::fs::read(&path) else {
            refuse!(FILE_NOT_FOUND, "{path} cannot be read");
        };
        linker::add(state, kind, &bytes, &path)
    }

    fn cuLinkComplete(state: CUlinkState, image: Out<*const u8>, bytes: Out<usize>) {
        let (start, len) = linker::complete(state)?;
        image.set(start)?;
        bytes.set_if_asked(len);
        Ok(())
    }

    fn cuLinkDestroy(state: CUlinkState) {
        linker::destroy(state)
    }
}
