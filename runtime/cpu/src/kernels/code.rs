//! The PTX of kernels, loaded with their first launch. CUDA C++ is compiled to PTX first.

use crate::kernel_options::CompileCuda;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError, RwLock};
use warpline_driver::kernel::{Kernel, Source, difference_in_ptx, head};
use warpline_driver::{DevicePtr, ErrorKind};
use warpline_ptx as ptx;

/// The loaded kernels and modules of a device.
#[derive(Debug)]
pub(super) struct Code {
    compile: Option<CompileCuda>,
    /// Kernels by the addresses of their descriptions. Of a kernel without PTX, only the twin runs.
    kernels: RwLock<HashMap<usize, Option<ptx::Kernel>>>,
    /// Modules by the addresses of their texts: several kernels may share one, and its variables.
    modules: Mutex<HashMap<usize, ptx::Module>>,
}

impl Code {
    pub(super) fn new(compile: Option<CompileCuda>) -> Self {
        Code { compile, kernels: RwLock::default(), modules: Mutex::default() }
    }

    /// Returns the PTX of a kernel, which it loads if this is the first call. Returns `None` for a
    /// kernel that has a twin and no PTX: no device code, an image, or CUDA C++ without a compiler.
    ///
    /// # Errors
    /// Why it cannot be loaded.
    pub(super) fn of(&self, kernel: &'static Kernel) -> Result<Option<ptx::Kernel>, String> {
        let key = std::ptr::from_ref(kernel) as usize;
        if let Some(loaded) = self.kernels.read().unwrap_or_else(PoisonError::into_inner).get(&key) {
            return Ok(loaded.clone());
        }
        let loaded = self.load(kernel).map_err(|why| format!("{} cannot be loaded: {why}", kernel.name))?;
        self.kernels.write().unwrap_or_else(PoisonError::into_inner).insert(key, loaded.clone());
        Ok(loaded)
    }

    fn load(&self, kernel: &'static Kernel) -> Result<Option<ptx::Kernel>, String> {
        let module = match self.module(kernel) {
            Ok(module) => module,
            Err(Missing::Code(_)) if kernel.twin.is_some() => return Ok(None),
            Err(missing) => return Err(missing.why()),
        };
        let loaded = module.kernel(kernel.name).map_err(unsupported)?;
        let needed = super::run::param_bytes(kernel);
        if loaded.param_bytes() == needed {
            return Ok(Some(loaded));
        }
        Err(format!(
            "its parameters have {needed} bytes together in the declaration and {} in its PTX; declare them with \
             their natural alignment",
            loaded.param_bytes()
        ))
    }

    /// Returns the address and the size in bytes of a variable in the module of `kernel`.
    ///
    /// # Errors
    /// Why the module cannot be loaded, or that it has no such variable.
    pub(super) fn variable(&self, kernel: &'static Kernel, name: &str) -> Result<(DevicePtr, usize), String> {
        let module = self.module(kernel).map_err(Missing::why)?;
        let (address, len_bytes) = module.variable(name).ok_or_else(|| {
            format!(
                "the module of {} has no variable \"{name}\"; declare it extern \"C\", or pass its name in the PTX",
                kernel.name
            )
        })?;
        Ok((DevicePtr(address), len_bytes as usize))
    }

    fn module(&self, kernel: &'static Kernel) -> Result<ptx::Module, Missing> {
        let none = |why: &str| {
            Err(Missing::Code(format!("{why}, and it has no CPU form; give the kernel cpu or ptx")))
        };
        let text = match kernel.source {
            // A text without a head counts as the oldest.
            Source::Ptx { texts, .. } => texts.iter().max_by_key(|text| head(text).map(|head| head.target)),
            Source::Cuda(ref text) => Some(text),
            Source::Image(_) => return none("its device code is an image, which only a GPU runs"),
            Source::None => return none("it has no device code"),
        };
        let Some(text) = text else { return none("its list of PTX texts is empty") };
        let mut modules = self.modules.lock().unwrap_or_else(PoisonError::into_inner);
        let key = text.as_ptr() as usize;
        if let Some(module) = modules.get(&key) {
            return Ok(module.clone());
        }
        let ptx = match (kernel.source, self.compile) {
            (Source::Cuda(_), None) => {
                return none(
                    "its device code is CUDA C++, and warpline was built without its feature cuda, which compiles it",
                );
            }
            (Source::Cuda(_), Some(compile)) => {
                compile(kernel.name, text).map_err(|error| match error.kind() {
                    ErrorKind::Unsupported => Missing::Code(error.to_string()),
                    _ => Missing::Loadable(error.to_string()),
                })?
            }
            _ => (*text).to_owned(),
        };
        if let Some(why) = difference_in_ptx(kernel, &ptx) {
            return Err(Missing::Loadable(why));
        }
        let module = ptx::Module::new(ptx).map_err(|error| Missing::Loadable(unsupported(error)))?;
        modules.insert(key, module.clone());
        Ok(module)
    }
}

/// Why there is no module.
enum Missing {
    /// There is no PTX. A twin can run instead.
    Code(String),
    /// There is PTX, which cannot be loaded.
    Loadable(String),
}

impl Missing {
    fn why(self) -> String {
        match self {
            Missing::Code(why) | Missing::Loadable(why) => why,
        }
    }
}

fn unsupported(error: ptx::LoadError) -> String {
    format!("its PTX cannot run on a CPU device: {error}")
}
