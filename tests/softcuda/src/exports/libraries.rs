//! Libraries and their kernels.

use crate::abi::{CUdevice, CUdeviceptr, CUfunction, CUkernel, CUlibrary, CUmodule, In, Out, Text};
use crate::context;
use crate::device;
use crate::door::exports;
use crate::errors::{Code, Outcome, refuse};
use crate::jit_log::JitLog;
use crate::libraries;
use crate::module::{self, Function, Image};
use std::ffi::{c_char, c_int, c_void};

/// Returns the function of a kernel on a device, which has to be that of the current context.
fn on_device(kernel: CUkernel, device: CUdevice) -> Outcome<&'static Function> {
    let (current, asked) = (context::current()?.device, device::checked(device)?);
    if current != asked {
        refuse!(
            NOT_SUPPORTED,
            "the current context is on device {current}, and the call names device {asked}"
        );
    }
    libraries::known_kernel(kernel)?;
    module::function(CUfunction(kernel.0))
}

exports! {
    fn cuLibraryLoadData(
        out: Out<CUlibrary>,
        code: *const c_char,
        options: In<c_int>,
        values: Out<*mut c_void>,
        option_count: u32,
        _library_options: In<c_int>,
        _library_values: In<*mut c_void>,
        _library_option_count: u32,
    ) {
        let log = JitLog::of(option_count, options, &values)?;
        out.set(log.keep(Image::at(code).and_then(libraries::load))?)
    }

    fn cuLibraryLoadFromFile(
        out: Out<CUlibrary>,
        name: Text,
        options: In<c_int>,
        values: Out<*mut c_void>,
        option_count: u32,
        _library_options: In<c_int>,
        _library_values: In<*mut c_void>,
        _library_option_count: u32,
    ) {
        let log = JitLog::of(option_count, options, &values)?;
        out.set(log.keep(Image::of_file(&name.get()?).and_then(libraries::load))?)
    }

    fn cuLibraryUnload(library: CUlibrary) {
        libraries::unload(library)
    }

    fn cuLibraryGetKernel(out: Out<CUkernel>, library: CUlibrary, name: Text) {
        out.set(libraries::kernel(library, &name.get()?)?)
    }

    fn cuLibraryGetKernelCount(count: Out<u32>, library: CUlibrary) {
        count.set(libraries::names(library)?.len() as u32)
    }

    fn cuLibraryEnumerateKernels(kernels: Out<CUkernel>, most: u32, library: CUlibrary) {
        for (index, name) in libraries::names(library)?.iter().take(most as usize).enumerate() {
            kernels.set_at(index, libraries::kernel(library, name)?)?;
        }
        Ok(())
    }

    fn cuLibraryGetModule(out: Out<CUmodule>, library: CUlibrary) {
        out.set(libraries::module_of(library)?)
    }

    fn cuLibraryGetGlobal(address: Out<CUdeviceptr>, bytes: Out<usize>, library: CUlibrary, name: Text) {
        let (start, len) = module::get_global(libraries::module_of(library)?, &name.get()?)?;
        address.set_if_asked(start);
        bytes.set_if_asked(len);
        Ok(())
    }

    fn cuKernelGetFunction(out: Out<CUfunction>, kernel: CUkernel) {
        libraries::known_kernel(kernel)?;
        out.set(libraries::function_of(kernel)?.ok_or(Code::INVALID_HANDLE)?)
    }

    fn cuKernelGetLibrary(out: Out<CUlibrary>, kernel: CUkernel) {
        out.set(libraries::known_kernel(kernel)?.library)
    }

    fn cuKernelGetAttribute(value: Out<c_int>, attribute: c_int, kernel: CUkernel, device: CUdevice) {
        value.set(on_device(kernel, device)?.attribute(attribute)?)
    }

    fn cuKernelSetAttribute(attribute: c_int, value: c_int, kernel: CUkernel, device: CUdevice) {
        on_device(kernel, device)?.set_attribute(attribute, value)
    }

    fn cuKernelSetCacheConfig(kernel: CUkernel, config: u32, device: CUdevice) {
        on_device(kernel, device)?;
        if config > 3 {
            refuse!(INVALID_VALUE, "cache configuration {config}");
        }
        Ok(())
    }

    fn cuKernelGetName(name: Out<*const c_char>, kernel: CUkernel) {
        name.set(libraries::known_kernel(kernel)?.name.as_ptr())
    }

    fn cuKernelGetParamInfo(kernel: CUkernel, index: usize, offset: Out<usize>, size: Out<usize>) {
        libraries::known_kernel(kernel)?;
        let params = module::function(CUfunction(kernel.0))?.params()?;
        let param = params.get(index).copied().ok_or(Code::INVALID_VALUE)?;
        offset.set(param.offset)?;
        size.set_if_asked(param.bytes);
        Ok(())
    }
}
