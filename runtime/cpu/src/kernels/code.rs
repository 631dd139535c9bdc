//! The PTX of kernels, loaded with their first launch.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError, RwLock};
use warpline_driver::DevicePtr;
use warpline_driver::kernel::{Kernel, Source, head};
use warpline_ptx as ptx;

/// The loaded kernels and modules of a device.
#[derive(Debug, Default)]
pub(super) struct Code {
    /// Kernels by the addresses of their descriptions.
    kernels: RwLock<HashMap<usize, ptx::Kernel>>,
    /// Modules by the addresses of their texts: several kernels may share one, and its variables.
    modules: Mutex<HashMap<usize, ptx::Module>>,
}

impl Code {
    /// Returns the PTX of a kernel, which it loads if this is the first call.
    ///
    /// # Errors
    /// Why it cannot be loaded.
    pub(super) fn of(&self, kernel: &'static Kernel) -> Result<ptx::Kernel, String> {
        let key = std::ptr::from_ref(kernel) as usize;
        if let Some(loaded) = self.kernels.read().unwrap_or_else(PoisonError::into_inner).get(&key) {
            return Ok(loaded.clone());
        }
        let load = || {
            let module = self.module(kernel)?;
            module.kernel(kernel.name).map_err(unsupported)
        };
        let loaded = load().map_err(|why| format!("{} cannot be loaded: {why}", kernel.name))?;
        let needed: usize = super::run::param_bytes(kernel);
        if loaded.param_bytes() != needed {
            return Err(format!(
                "{} cannot be loaded: its parameters have {needed} bytes together in the declaration and {} in its \
                 PTX; declare them with their natural alignment",
                kernel.name,
                loaded.param_bytes()
            ));
        }
        self.kernels.write().unwrap_or_else(PoisonError::into_inner).insert(key, loaded.clone());
        Ok(loaded)
    }

    /// Returns the address and the size in bytes of a variable in the module of `kernel`.
    ///
    /// # Errors
    /// Why the module cannot be loaded, or that it has no such variable.
    pub(super) fn variable(&self, kernel: &'static Kernel, name: &str) -> Result<(DevicePtr, usize), String> {
        let (address, len_bytes) = self.module(kernel)?.variable(name).ok_or_else(|| {
            format!(
                "the module of {} has no variable \"{name}\"; declare it extern \"C\", or pass its name in the PTX",
                kernel.name
            )
        })?;
        Ok((DevicePtr(address), len_bytes as usize))
    }

    fn module(&self, kernel: &'static Kernel) -> Result<ptx::Module, String> {
        let text = match kernel.source {
            // A text without a head is older than each one with a head; it cannot be read either.
            Source::Ptx(texts) => texts
                .iter()
                .max_by_key(|text| head(text).map(|head| head.target))
                .ok_or("it has no PTX text")?,
            Source::Cuda(_) => {
                return Err(
                    "its device code is CUDA C++, and it has no CPU form; give the kernel cpu or ptx".into(),
                );
            }
            Source::Image(_) => {
                return Err(
                    "its device code is an image, which only a GPU runs, and it has no CPU form; give the \
                            kernel cpu or ptx"
                        .into(),
                );
            }
            Source::None => {
                return Err("it has neither device code nor a CPU form; give the kernel cpu or ptx".into());
            }
        };
        let mut modules = self.modules.lock().unwrap_or_else(PoisonError::into_inner);
        let key = text.as_ptr() as usize;
        if let Some(module) = modules.get(&key) {
            return Ok(module.clone());
        }
        let module = ptx::Module::new(*text).map_err(unsupported)?;
        modules.insert(key, module.clone());
        Ok(module)
    }
}

fn unsupported(error: ptx::LoadError) -> String {
    format!("its PTX cannot run on a CPU device: {error}")
}
